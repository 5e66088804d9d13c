// y_t = bias, or y_t += bias with IS_ADD. A block takes T0 consecutive elements, counted row by row.
#include "lib/dart.cuh"

KERNEL_FUNCTION(bias, simt)
{
    constexpr uint32_t T0 = TILE0_bias_simt;
    const View bias = VIEW(bias, bias), y = VIEW(bias, y);
    FOR_TILES(tile) {
        for (uint32_t e = threadIdx.x; e < T0; e += block_size) {
            const uint64_t element = uint64_t(tile) * T0 + e, row = element / args.width, i = element % args.width;
            if (row >= args.rows) continue;
            const size_t at = size_t(args.y_at + row * args.y_row + i);
            const float value = load(bias, size_t(args.bias_at + i));
            store(y, at, args.flags & IS_ADD ? load(y, at) + value : value);
        }
    }
}
