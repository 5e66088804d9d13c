// The key of the largest of T0 consecutive logits of a row and its lowest index; NaN never wins.
#include "ranking.cuh"

KERNEL_FUNCTION(argmax_part, simt)
{
    constexpr uint32_t T0 = TILE0_argmax_part_simt;
    predecessors_wait();
    successors_begin();
    const View logits = VIEW(argmax_part, logits);
    uint32_t *part = reinterpret_cast<uint32_t *>(INTS(argmax_part, part));
    const uint32_t blocks = ceil_div(args.width, T0);
    FOR_TILES(tile) {
        const size_t from = args.logits_at + size_t(tile / blocks) * args.logits_row;
        const uint32_t begin = tile % blocks * T0, end = min(begin + T0, args.width);
        float v[T0 / block_size];
        const auto load_all = [&](const auto &load_one) { // before the first is looked at
#pragma unroll
            for (uint32_t i = 0; i < T0 / block_size; i++) {
                const uint32_t at = begin + i * block_size + threadIdx.x;
                v[i] = at < end ? load_one(from + at) : __uint_as_float(0x7fc00000u);
            }
        };
        if (logits.dtype == DTYPE_F32) load_all([&](size_t i) { return reinterpret_cast<const float *>(logits.base)[i]; });
        else load_all([&](size_t i) { return load(logits, i); });
        unsigned long long best = 0; // key above the complement of the index, so that the lowest index wins
#pragma unroll
        for (uint32_t i = 0; i < T0 / block_size; i++) {
            const uint32_t key = key_of(v[i]);
            if (key) best = max(best, (unsigned long long)(key) << 32 | uint32_t(~(begin + i * block_size + threadIdx.x)));
        }
        best = block_max(best);
        if (threadIdx.x == 0) {
            part[2 * size_t(tile)] = uint32_t(best >> 32);
            part[2 * size_t(tile) + 1] = ~uint32_t(best);
        }
    }
}
