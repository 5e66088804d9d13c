// y[i] = last + sum_j a_j[i] w_j + sum_{j > 16} w_j: every argument and every binding of the widest kernel, see WideCheckArgs.
// A block writes T0 consecutive elements.
#include "lib/dart.cuh"

KERNEL_FUNCTION(wide_check, simt)
{
    constexpr uint32_t inputs = 17, words = 31;
    const uint32_t *at = &args.a00_at, *weights = &args.w00; // fields that follow one another
    float rest = args.last;
    for (uint32_t j = inputs; j < words; j++) rest += float(weights[j]);
    float *y = FLOATS(wide_check, y) + args.y_at;
    FOR_TILES(tile) {
        for (uint32_t k = threadIdx.x; k < TILE0_wide_check_simt; k += block_size) {
            const size_t i = size_t(tile) * TILE0_wide_check_simt + k;
            if (i >= args.count) break;
            float sum = rest;
            for (uint32_t j = 0; j < inputs; j++)
                sum += reinterpret_cast<const float *>(bindings.address[j])[at[j] + i] * float(weights[j]);
            y[i] = sum;
        }
    }
}
