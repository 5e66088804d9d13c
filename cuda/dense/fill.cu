// y[i] = value. A block writes T0 consecutive elements.
#include "lib/dart.cuh"

KERNEL_FUNCTION(fill, simt)
{
    const View y = VIEW(fill, y);
    const size_t total = size_t(args.rows) * args.width;
    FOR_TILES(tile) {
        const size_t first = size_t(tile) * TILE0_fill_simt;
        for (uint32_t k = threadIdx.x; k < TILE0_fill_simt && first + k < total; k += block_size) {
            const size_t i = first + k;
            store(y, args.y_at + i / args.width * args.y_row + i % args.width, args.value);
        }
    }
}
