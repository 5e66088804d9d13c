// seq[2 b] += seq[2 b + 1], and with HAS_ROWS the id of b into its log. A block works on T0 sequences.
#include "lib/dart.cuh"

KERNEL_FUNCTION(advance, simt)
{
    static_assert(TILE0_advance_simt <= block_size, "a thread per sequence");
    int32_t *seq = INTS(advance, seq) + args.seq_at;
    FOR_TILES(tile) {
        const uint32_t b = tile * TILE0_advance_simt + threadIdx.x;
        if (threadIdx.x >= TILE0_advance_simt || b >= args.B) continue;
        const uint32_t position = uint32_t(seq[2 * size_t(b)]) + uint32_t(seq[2 * size_t(b) + 1]);
        seq[2 * size_t(b)] = int32_t(position);
        if (args.flags & HAS_ROWS)
            INTS(advance, log)[args.log_at + size_t(b) * args.slots + position % args.slots] = INTS(advance, ids)[args.ids_at + size_t(b)];
    }
}
