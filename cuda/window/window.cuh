// Slots of a window and what decays leave of them, see args.h.
#ifndef WINDOW_CUH
#define WINDOW_CUH

#include "lib/dart.cuh"

struct WindowShared {
    float log_decays[WINDOW];
    float keeps[WINDOW]; // times step
    float log_decay_of_all;
};

// For slots 0 .. n - 1 of one head. To be called by the whole block.
__device__ __forceinline__ void weigh_slots(WindowShared &shared, const float *steps, uint32_t H, uint32_t b, uint32_t h,
    uint32_t n)
{
    static_assert(WINDOW <= block_size, "a thread per slot");
    const uint32_t k = threadIdx.x;
    float step = 0.0f;
    __syncthreads();
    if (k < WINDOW) {
        const float *from = steps + 2 * ((size_t(b) * WINDOW + k) * H + h);
        shared.log_decays[k] = k < n ? from[0] : 0.0f;
        step = k < n ? from[1] : 0.0f;
    }
    __syncthreads();
    if (k < WINDOW) {
        float after = 0.0f;
        for (uint32_t i = k + 1; i < WINDOW; i++) after += shared.log_decays[i];
        shared.keeps[k] = exp_below(after) * step;
        if (k == 0) shared.log_decay_of_all = after + shared.log_decays[0];
    }
    __syncthreads();
}

#endif
