// y[g, i] (+)= the sum over the rows s of part g of x[s, i], in order. A thread adds up a column of a part.
#include "lib/dart.cuh"

KERNEL_FUNCTION(column_sum, simt)
{
    static_assert(TILE0_column_sum_simt == block_size, "a thread a column");
    const float *x = FLOATS(column_sum, x);
    const View y = VIEW(column_sum, y);
    const uint32_t blocks = ceil_div(args.width, block_size);
    FOR_TILES(tile) {
        const uint32_t i = tile % blocks * block_size + threadIdx.x, part = tile / blocks, end = min((part + 1) * args.share, args.rows);
        if (i >= args.width) continue;
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t s = part * args.share; s < end; s++) sum += x[size_t(s) * args.width + i];
        const size_t to = size_t(part) * args.width + i, at = args.y_at + to / args.line * args.y_row + to % args.line;
        store(y, at, args.flags & IS_ADD ? load(y, at) + sum : sum);
    }
}

// The same for a width that is a multiple of 16: T0 / 4 threads read a row, four columns each, and the block as many rows at once as it has
// threads for. A thread adds up its rows in order, then the threads of a column are added in order.
KERNEL_FUNCTION(column_sum, wide)
{
    constexpr uint32_t T0 = TILE0_column_sum_wide, quads = T0 / 4, teams = block_size / quads;
    __shared__ float sums[teams][T0];
    const float4 *x = reinterpret_cast<const float4 *>(FLOATS(column_sum, x));
    const View y = VIEW(column_sum, y);
    const uint32_t blocks = ceil_div(args.width, T0), row = args.width / 4, team = threadIdx.x / quads, own = threadIdx.x % quads;
    FOR_TILES(tile) {
        const uint32_t first = tile % blocks * T0, part = tile / blocks, end = min((part + 1) * args.share, args.rows), quad = first / 4 + own;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (quad < row) {
#pragma unroll 4
            for (uint32_t s = part * args.share + team; s < end; s += teams) {
                const float4 v = x[size_t(s) * row + quad];
                sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
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
