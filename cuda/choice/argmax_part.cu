// The key of the largest of T0 consecutive logits of a row and its lowest index; NaN never wins.
#include "ranking.cuh"

KERNEL_FUNCTION(argmax_part, simt)
{
    constexpr uint32_t T0 = TILE0_argmax_part_simt;
    const View logits = VIEW(argmax_part, logits);
    uint32_t *part = reinterpret_cast<uint32_t *>(INTS(argmax_part, part));
    const uint32_t blocks = ceil_div(args.width, T0);
    FOR_TILES(tile) {
        const size_t from = args.logits_at + size_t(tile / blocks) * args.logits_row;
        const uint32_t begin = tile % blocks * T0, end = min(begin + T0, args.width);
        unsigned long long best = 0; // key above the complement of the index, so that the lowest index wins
        for (uint32_t i = begin + threadIdx.x; i < end; i += block_size) {
            const uint32_t key = key_of(load(logits, from + i));
            if (key) best = max(best, (unsigned long long)(key) << 32 | uint32_t(~i));
        }
        best = block_max(best);
        if (threadIdx.x == 0) {
            part[2 * size_t(tile)] = uint32_t(best >> 32);
            part[2 * size_t(tile) + 1] = ~uint32_t(best);
        }
    }
}
