// y_t = weight_{ids_t} for the ids that this launch holds, NaN for ids outside the vocabulary. A block copies a row.
#include "lib/dart.cuh"

KERNEL_FUNCTION(embed, simt)
{
    const int32_t *ids = INTS(embed, ids);
    const View weight = VIEW(embed, weight), y = VIEW(embed, y);
    FOR_TILES(tile) {
        const uint32_t id = uint32_t(ids[args.ids_at + size_t(tile)]); // a negative one is beyond any vocabulary
        const size_t to = args.y_at + size_t(tile) * args.y_row;
        if (id >= args.vocabulary) {
            if (args.first != 0) continue;
            for (uint32_t i = threadIdx.x; i < args.width; i += block_size)
                store(y, to + i, __uint_as_float(0x7fc00000u));
        } else if (id >= args.first && id - args.first < args.count) {
            const size_t from = args.weight_at + size_t(id - args.first) * args.width;
            for (uint32_t i = threadIdx.x; i < args.width; i += block_size) store(y, to + i, load(weight, from + i));
        }
    }
}
