// The gradient of the embedding (args.h): embed_backward adds up the tokens of a piece, embed_backward_sum the pieces of an id. A thread
// takes a column.
#include "lib/dart.cuh"

KERNEL_FUNCTION(embed_backward, simt)
{
    static_assert(TILE0_embed_backward_simt == block_size, "a thread a column");
    const int32_t *plan = INTS(embed_backward, plan) + args.plan_at, *order = plan + 2;
    const View up_y = VIEW(embed_backward, up_y);
    float *grad_weight = FLOATS(embed_backward, grad_weight) + args.grad_weight_at, *partial = FLOATS(embed_backward, partial);
    const uint32_t blocks = ceil_div(args.width, block_size);
    FOR_TILES(tile) {
        if (tile / blocks >= uint32_t(plan[0])) break;
        const int32_t *piece = order + args.rows + 4 * size_t(tile / blocks);
        const uint32_t i = tile % blocks * block_size + threadIdx.x;
        if (i >= args.width) continue;
        float sum = 0.0f;
        for (int32_t k = piece[1]; k < piece[2]; k++) sum += load(up_y, args.up_y_at + size_t(order[k]) * args.up_y_row + i);
        if (piece[3] < 0) grad_weight[size_t(piece[0]) * args.width + i] += sum;
        else partial[size_t(piece[3]) * args.width + i] = sum;
    }
}

KERNEL_FUNCTION(embed_backward_sum, simt)
{
    static_assert(TILE0_embed_backward_sum_simt == block_size, "a thread a column");
    const int32_t *plan = INTS(embed_backward_sum, plan) + args.plan_at;
    const int32_t *runs = plan + 2 + args.rows + 4 * (size_t(args.rows) / EMBED_PIECE + min(args.rows, args.vocabulary));
    const float *partial = FLOATS(embed_backward_sum, partial);
    float *grad_weight = FLOATS(embed_backward_sum, grad_weight) + args.grad_weight_at;
    const uint32_t blocks = ceil_div(args.width, block_size);
    FOR_TILES(tile) {
        if (tile / blocks >= uint32_t(plan[1])) break;
        const int32_t *run = runs + 3 * size_t(tile / blocks);
        const uint32_t i = tile % blocks * block_size + threadIdx.x;
        if (i >= args.width) continue;
        float sum = 0.0f;
        for (int32_t k = 0; k < run[2]; k++) sum += partial[size_t(run[1] + k) * args.width + i];
        grad_weight[size_t(run[0]) * args.width + i] += sum;
    }
}

// The same for a width that is a multiple of 16: T0 / 4 threads read a token or slot, four columns each, and the block as many of them at once
// as it has threads for. A thread adds up its own in order, then the threads of a column are added in order.
template <uint32_t T0> struct EmbedColumns {
    static constexpr uint32_t quads = T0 / 4, teams = block_size / quads;
    // The sum over the teams, in the threads of team 0. Call with the whole block.
    static __device__ __forceinline__ float4 add(float4 sum, float4 (&sums)[block_size])
    {
        __syncthreads();
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x >= quads) return sum;
        for (uint32_t k = 1; k < teams; k++) plus(sum, sums[k * quads + threadIdx.x]);
        return sum;
    }
    static __device__ __forceinline__ void plus(float4 &sum, const float4 &v)
    {
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
};

KERNEL_FUNCTION(embed_backward, wide)
{
    constexpr uint32_t T0 = TILE0_embed_backward_wide;
    using Own = EmbedColumns<T0>;
    __shared__ float4 sums[block_size];
    const int32_t *plan = INTS(embed_backward, plan) + args.plan_at, *order = plan + 2;
    const View up_y = VIEW(embed_backward, up_y);
    float *grad_weight = FLOATS(embed_backward, grad_weight) + args.grad_weight_at, *partial = FLOATS(embed_backward, partial);
    const uint32_t blocks = ceil_div(args.width, T0);
    FOR_TILES(tile) {
        if (tile / blocks >= uint32_t(plan[0])) break;
        const int32_t *piece = order + args.rows + 4 * size_t(tile / blocks);
        const uint32_t i = tile % blocks * T0 + threadIdx.x % Own::quads * 4;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < args.width) {
#pragma unroll 4
            for (int32_t k = piece[1] + int32_t(threadIdx.x / Own::quads); k < piece[2]; k += int32_t(Own::teams))
                Own::plus(sum, unpack4(fetch4_whole(up_y, args.up_y_at + size_t(order[k]) * args.up_y_row + i), up_y.dtype));
        }
        sum = Own::add(sum, sums);
        if (threadIdx.x >= Own::quads || i >= args.width) continue;
        if (piece[3] < 0) Own::plus(*reinterpret_cast<float4 *>(grad_weight + size_t(piece[0]) * args.width + i), sum);
        else *reinterpret_cast<float4 *>(partial + size_t(piece[3]) * args.width + i) = sum;
    }
}

KERNEL_FUNCTION(embed_backward_sum, wide)
{
    constexpr uint32_t T0 = TILE0_embed_backward_sum_wide;
    using Own = EmbedColumns<T0>;
    __shared__ float4 sums[block_size];
    const int32_t *plan = INTS(embed_backward_sum, plan) + args.plan_at;
    const int32_t *runs = plan + 2 + args.rows + 4 * (size_t(args.rows) / EMBED_PIECE + min(args.rows, args.vocabulary));
    const float *partial = FLOATS(embed_backward_sum, partial);
    float *grad_weight = FLOATS(embed_backward_sum, grad_weight) + args.grad_weight_at;
    const uint32_t blocks = ceil_div(args.width, T0);
    FOR_TILES(tile) {
        if (tile / blocks >= uint32_t(plan[1])) break;
        const int32_t *run = runs + 3 * size_t(tile / blocks);
        const uint32_t i = tile % blocks * T0 + threadIdx.x % Own::quads * 4;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < args.width) {
#pragma unroll 4
            for (int32_t k = int32_t(threadIdx.x / Own::quads); k < run[2]; k += int32_t(Own::teams))
                Own::plus(sum, *reinterpret_cast<const float4 *>(partial + size_t(run[1] + k) * args.width + i));
        }
        sum = Own::add(sum, sums);
        if (threadIdx.x >= Own::quads || i >= args.width) continue;
        Own::plus(*reinterpret_cast<float4 *>(grad_weight + size_t(run[0]) * args.width + i), sum);
    }
}
