// seq[2 b] += seq[2 b + 1], with HAS_ROWS the id of b into its log, with HAS_STOPS the end of sequences that reach it (see
// args.h). A block works on T0 sequences.
#include "lib/dart.cuh"

KERNEL_FUNCTION(advance, simt)
{
    static_assert(TILE0_advance_simt <= block_size, "a thread per sequence");
    predecessors_wait();
    successors_begin();
    int32_t *seq = INTS(advance, seq) + args.seq_at;
    FOR_TILES(tile) {
        const uint32_t b = tile * TILE0_advance_simt + threadIdx.x;
        if (threadIdx.x >= TILE0_advance_simt || b >= args.B) continue;
        const uint32_t count = uint32_t(seq[2 * size_t(b) + 1]), position = uint32_t(seq[2 * size_t(b)]) + count;
        if (count == 0) continue;
        seq[2 * size_t(b)] = int32_t(position);
        if (args.flags & HAS_ROWS)
            INTS(advance, log)[args.log_at + size_t(b) * args.slots + position % args.slots] = INTS(advance, ids)[args.ids_at + size_t(b)];
        if (!(args.flags & HAS_STOPS)) continue;
        const int32_t *stop = INTS(advance, stops) + args.stops_at + STOP_WORDS * size_t(b);
        const int32_t id = INTS(advance, ids)[args.ids_at + size_t(b)];
        bool ended = stop[END_IDS] > 0 && position >= uint32_t(stop[END_IDS]);
        for (uint32_t i = 0; i < END_IDS; i++) ended |= stop[i] == id;
        if (!ended) continue;
        seq[2 * size_t(b) + 1] = 0;
        INTS(advance, live)[args.live_at + size_t(b)] = -1;
    }
}
