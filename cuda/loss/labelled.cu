// y_t = x_t where row t has a label, else 0. A block copies a row.
#include "lib/dart.cuh"

KERNEL_FUNCTION(labelled, simt)
{
    const View x = VIEW(labelled, x), y = VIEW(labelled, y);
    const int32_t *targets = INTS(labelled, targets) + args.targets_at;
    FOR_TILES(tile) {
        const int32_t target = targets[tile];
        const bool has_label = target >= 0 && uint32_t(target) < args.vocabulary;
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size)
            store(y, args.y_at + size_t(tile) * args.width + i, has_label ? load(x, args.x_at + size_t(tile) * args.x_row + i) : 0.0f);
    }
}
