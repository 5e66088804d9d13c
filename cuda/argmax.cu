// ids[t] = the lowest index of the largest logit; NaN never wins. A block works on a row.
#include "ranking.cuh"

KERNEL_FUNCTION(argmax, simt)
{
    const View logits = VIEW(argmax, logits);
    int32_t *ids = INTS(argmax, ids);
    FOR_TILES(tile) {
        const size_t from = args.logits_at + size_t(tile) * args.logits_row;
        unsigned long long best = 0; // key above the complement of the index, so that the lowest index wins
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            const uint32_t key = key_of(load(logits, from + i));
            if (key) best = max(best, (unsigned long long)(key) << 32 | ~i);
        }
        best = block_max(best);
        if (threadIdx.x == 0) ids[args.ids_at + size_t(tile)] = best ? int32_t(~uint32_t(best)) : 0;
    }
}
