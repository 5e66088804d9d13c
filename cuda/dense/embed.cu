// y_t = weight_{ids_t} for the ids that this launch holds, NaN for ids outside the vocabulary. A block copies a row.
#include "lib/eight.cuh"

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

// The same for a width that is a multiple of 16: a block copies T0 rows in words of 16 bytes.
KERNEL_FUNCTION(embed, eight)
{
    constexpr uint32_t T0 = TILE0_embed_eight;
    const int32_t *ids = INTS(embed, ids) + args.ids_at;
    const View weight = VIEW(embed, weight), y = VIEW(embed, y);
    const uint32_t eights = args.width / 8;
    FOR_TILES(tile) {
        const uint32_t begin = tile * T0, count = min(T0, args.rows - begin) * eights;
        for (uint32_t k = threadIdx.x; k < count; k += block_size) {
            const uint32_t row = begin + k / eights, i = k % eights * 8, id = uint32_t(ids[row]);
            const size_t to = args.y_at + size_t(row) * args.y_row + i;
            float v[8];
            if (id >= args.vocabulary) {
                if (args.first != 0) continue;
                for (uint32_t c = 0; c < 8; c++) v[c] = __uint_as_float(0x7fc00000u);
            } else {
                if (id < args.first || id - args.first >= args.count) continue;
                unpack8(fetch8(weight, args.weight_at + size_t(id - args.first) * args.width + i), weight.dtype, v);
            }
            store8(y, to, v);
        }
    }
}
