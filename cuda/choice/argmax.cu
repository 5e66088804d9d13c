// ids[t] = the lowest index of the largest logit, from the parts of the row. A block works on a row.
#include "ranking.cuh"

KERNEL_FUNCTION(argmax, simt)
{
    const uint32_t *part = reinterpret_cast<const uint32_t *>(INTS(argmax, part));
    int32_t *ids = INTS(argmax, ids);
    FOR_TILES(tile) {
        const unsigned long long best = best_of_parts(part, tile, args.blocks);
        if (threadIdx.x == 0) ids[args.ids_at + size_t(tile)] = best ? int32_t(~uint32_t(best)) : 0;
    }
}
