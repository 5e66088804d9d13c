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
