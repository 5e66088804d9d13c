// seq[2 b] += seq[2 b + 1]. A block works on T0 sequences.
#include "dart.cuh"

KERNEL_FUNCTION(advance, simt)
{
    static_assert(TILE0_advance_simt <= block_size, "a thread per sequence");
    int32_t *seq = INTS(advance, seq) + args.seq_at;
    FOR_TILES(tile) {
        const uint32_t b = tile * TILE0_advance_simt + threadIdx.x;
        if (threadIdx.x < TILE0_advance_simt && b < args.B) seq[2 * size_t(b)] += seq[2 * size_t(b) + 1];
    }
}
