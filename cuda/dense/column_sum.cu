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
