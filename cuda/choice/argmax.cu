// ids[t] = the lowest index of the largest logit, from the parts of the row. A block works on a row.
#include "ranking.cuh"

KERNEL_FUNCTION(argmax, simt)
{
    const uint32_t *part = reinterpret_cast<const uint32_t *>(INTS(argmax, part));
    int32_t *ids = INTS(argmax, ids);
    FOR_TILES(tile) {
        unsigned long long best = 0;
        for (uint32_t i = threadIdx.x; i < args.blocks; i += block_size) {
            const uint32_t *at = part + 2 * (size_t(tile) * args.blocks + i);
            if (at[0]) best = max(best, (unsigned long long)(at[0]) << 32 | uint32_t(~at[1]));
        }
        best = block_max(best);
        if (threadIdx.x == 0) ids[args.ids_at + size_t(tile)] = best ? int32_t(~uint32_t(best)) : 0;
    }
}
