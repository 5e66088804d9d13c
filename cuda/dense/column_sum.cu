// y[g, i] (+)= the sum over the rows s of part g of x[s, i]. A team has a thread for each column of a tile and reads a row at once; a thread adds up
// its rows in order, `ahead` of them on their way at once, then the teams are added in pairs.
#include "lib/dart.cuh"

KERNEL_FUNCTION(column_sum, simt)
{
    constexpr uint32_t T0 = TILE0_column_sum_simt, ahead = 16;
    static_assert(T0 <= block_size, "at least one team");
    __shared__ float sums[block_size];
    const float *x = FLOATS(column_sum, x);
    const View y = VIEW(column_sum, y);
    const uint32_t blocks = ceil_div(args.width, T0), columns = min(T0, args.width), teams = block_size / columns, team = threadIdx.x / columns;
    FOR_TILES(tile) {
        const uint32_t i = tile % blocks * T0 + threadIdx.x % columns, part = tile / blocks;
        const uint32_t end = team < teams && i < args.width ? min((part + 1) * args.share, args.rows) : 0;
        float sum = 0.0f;
        for (uint32_t s = part * args.share + team; s < end; s += ahead * teams) {
            float some[ahead];
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) some[k] = s + k * teams < end ? x[size_t(s + k * teams) * args.width + i] : 0.0f;
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) sum += some[k];
        }
        __syncthreads();
        sums[threadIdx.x] = sum;
        for (uint32_t left = teams; left > 1; left = (left + 1) / 2) {
            const uint32_t apart = (left + 1) / 2;
            __syncthreads();
            if (team + apart < left) sums[threadIdx.x] += sums[threadIdx.x + apart * columns];
        }
        if (team > 0 || i >= args.width) continue;
        sum = sums[threadIdx.x];
        const size_t to = size_t(part) * args.width + i, at = args.y_at + to / args.line * args.y_row + to % args.line;
        store(y, at, args.flags & IS_ADD ? load(y, at) + sum : sum);
    }
}

// The same for a width that is a multiple of 16: T0 / 4 threads read a row, four columns each, and the block as many rows at once as it has
// threads for. A thread adds up its rows in order, `ahead` of them on their way at once, then the threads of a column are added in order.
KERNEL_FUNCTION(column_sum, wide)
{
    constexpr uint32_t T0 = TILE0_column_sum_wide, quads = T0 / 4, teams = block_size / quads, ahead = 8;
    __shared__ float sums[teams][T0];
    const float4 *x = reinterpret_cast<const float4 *>(FLOATS(column_sum, x));
    const View y = VIEW(column_sum, y);
    const uint32_t blocks = ceil_div(args.width, T0), row = args.width / 4, team = threadIdx.x / quads, own = threadIdx.x % quads;
    FOR_TILES(tile) {
        const uint32_t first = tile % blocks * T0, part = tile / blocks, end = min((part + 1) * args.share, args.rows), quad = first / 4 + own;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (quad < row) {
            for (uint32_t s = part * args.share + team; s < end; s += ahead * teams) {
                float4 some[ahead];
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++)
                    some[k] = s + k * teams < end ? x[size_t(s + k * teams) * row + quad] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++)
                    sum = make_float4(sum.x + some[k].x, sum.y + some[k].y, sum.z + some[k].z, sum.w + some[k].w);
            }
        }
        __syncthreads();
        reinterpret_cast<float4 *>(sums[team])[own] = sum;
        __syncthreads();
        const uint32_t i = first + threadIdx.x;
        if (threadIdx.x >= T0 || i >= args.width) continue;
        float total = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < teams; k++) total += sums[k][threadIdx.x];
        const size_t to = size_t(part) * args.width + i, at = args.y_at + to / args.line * args.y_row + to % args.line;
        store(y, at, args.flags & IS_ADD ? load(y, at) + total : total);
    }
}
