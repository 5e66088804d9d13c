// The merge of partials as a launch of its own, a block a (sequence, head).
#include "merge.cuh"

KERNEL_FUNCTION(sma_merge, simt)
{
    static_assert(MAX_STATE <= block_size, "a thread per column");
    __shared__ MergeShared<block_size> shared;
    FOR_TILES(tile) {
        if (piece_of(INTS(sma_merge, seq) + args.seq_at, args.flags, 1, tile / args.H).count == 0) continue;
        merge_partials<block_size>(args, tile, FLOATS(sma_merge, partial), VIEW(sma_merge, r), FLOATS(sma_merge, lse), shared);
    }
}
