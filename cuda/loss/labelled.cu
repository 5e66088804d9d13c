// y_t = x_t where row t has a label, else 0. A block copies a row.
#include "lib/eight.cuh"

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

// The same for a width that is a multiple of 16: a block copies T0 rows in words of 16 bytes.
KERNEL_FUNCTION(labelled, eight)
{
    constexpr uint32_t T0 = TILE0_labelled_eight;
    const View x = VIEW(labelled, x), y = VIEW(labelled, y);
    const int32_t *targets = INTS(labelled, targets) + args.targets_at;
    const uint32_t eights = args.width / 8;
    FOR_TILES(tile) {
        const uint32_t first = tile * T0, count = min(T0, args.rows - first) * eights;
        for (uint32_t k = threadIdx.x; k < count; k += block_size) {
            const uint32_t row = first + k / eights, i = k % eights * 8;
            const int32_t target = targets[row];
            float v[8] = {};
            if (target >= 0 && uint32_t(target) < args.vocabulary) unpack8(fetch8(x, args.x_at + size_t(row) * args.x_row + i), x.dtype, v);
            store8(y, args.y_at + size_t(row) * args.width + i, v);
        }
    }
}
