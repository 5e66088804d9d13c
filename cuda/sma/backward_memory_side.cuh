// What the kernels of sma_backward_memory_side for N 128 share.
#ifndef DART_SMA_BACKWARD_MEMORY_SIDE_CUH
#define DART_SMA_BACKWARD_MEMORY_SIDE_CUH

#include "sma/backward.cuh"
#include "sma/products.cuh"

// A lane holds of a row of 64 the columns 8 x + 2 (lane % 4) + {0, 1} as sum[4 x] and sum[4 x + 1]; grad and w_row point at the first of them.
constexpr uint32_t memory_columns = 64;

// grad = by sum: Y.
__device__ __forceinline__ void put_memory_row(float *grad, float by, const float *sum)
{
#pragma unroll
    for (uint32_t x = 0; x < memory_columns / 8; x++) *reinterpret_cast<float2 *>(grad + 8 * x) = make_float2(by * sum[4 * x], by * sum[4 * x + 1]);
}

// grad += of_x (sum - w mean_p(sum w)): what X adds to Y.
template <bool bf> __device__ __forceinline__ void add_memory_row(float *grad, const uint16_t *w_row, float of_x, const float *sum)
{
    uint32_t pairs[memory_columns / 8];
    float along = 0.0f;
#pragma unroll
    for (uint32_t x = 0; x < memory_columns / 8; x++) {
        pairs[x] = *reinterpret_cast<const uint32_t *>(w_row + 8 * x);
        const float2 w = unpack<bf>(pairs[x]);
        along = fmaf(sum[4 * x], w.x, fmaf(sum[4 * x + 1], w.y, along));
    }
    along = lines_sum(along) / float(memory_columns);
#pragma unroll
    for (uint32_t x = 0; x < memory_columns / 8; x++) {
        float2 *to = reinterpret_cast<float2 *>(grad + 8 * x);
        const float2 w = unpack<bf>(pairs[x]), y = *to;
        *to = make_float2(fmaf(of_x, sum[4 * x] - along * w.x, y.x), fmaf(of_x, sum[4 * x + 1] - along * w.y, y.y));
    }
}

#endif
