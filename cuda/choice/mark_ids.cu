// Sets bit id mod 32 of word id / 32 of the set of sequence b for each of its tokens, see args.h. A block marks a sequence.
#include "lib/dart.cuh"

KERNEL_FUNCTION(mark_ids, simt)
{
    const int32_t *ids = INTS(mark_ids, ids) + args.ids_at, *seq = INTS(mark_ids, seq) + args.seq_at;
    uint32_t *seen = reinterpret_cast<uint32_t *>(INTS(mark_ids, seen)) + args.seen_at;
    const uint32_t words = ceil_div(args.V, 32);
    FOR_TILES(tile) {
        const Sequence own = sequence_of(seq, args.flags, args.L, args.T, tile);
        for (uint32_t t = threadIdx.x; t < own.count; t += block_size) {
            const uint32_t id = uint32_t(ids[size_t(own.row) + t]);
            if (id < args.V) atomicOr(&seen[size_t(tile) * words + id / 32], 1u << id % 32);
        }
    }
}
