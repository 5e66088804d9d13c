// Order of logits as integers: larger logits give larger keys, both zeros the same, NaN gives 0 and nothing else does.
#ifndef DART_RANKING_CUH
#define DART_RANKING_CUH

#include "lib/dart.cuh"

__device__ __forceinline__ uint32_t key_of(float v)
{
    if (isnan(v)) return 0;
    const uint32_t bits = v == 0.0f ? 0u : __float_as_uint(v);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_key(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// The largest value of the block, in every thread. To be called by the whole block.
template <uint32_t threads = block_size>
__device__ __forceinline__ unsigned long long block_max(unsigned long long value)
{
    __shared__ unsigned long long parts[threads / 32];
    for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (uint32_t w = 0; w < threads / 32; w++) value = max(value, parts[w]);
    __syncthreads();
    return value;
}

// The key of a row's largest logit above the complement of its lowest index, from the parts of the row; 0 where there is
// no number. To be called by the whole block.
template <uint32_t threads = block_size>
__device__ __forceinline__ unsigned long long best_of_parts(const uint32_t *part, uint32_t row, uint32_t blocks)
{
    unsigned long long best = 0;
    for (uint32_t i = threadIdx.x; i < blocks; i += threads) {
        const uint32_t *at = part + 2 * (size_t(row) * blocks + i);
        if (at[0]) best = max(best, (unsigned long long)(at[0]) << 32 | uint32_t(~at[1]));
    }
    return block_max<threads>(best);
}

// Running sums over the threads: `with` includes this thread, `before` is exactly the `with` of the thread before.
template <class T> struct Scan { T before, with, total; };
template <uint32_t threads = block_size, class T> __device__ __forceinline__ Scan<T> block_scan(T value)
{
    __shared__ T parts[threads / 32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t step = 1; step < 32; step *= 2) {
        const T lower = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value = lower + value;
    }
    const T below = __shfl_up_sync(0xffffffffu, value, 1);
    if (lane == 31) parts[warp] = value;
    __syncthreads();
    T offset = 0, total = 0;
    for (uint32_t w = 0; w < threads / 32; w++) {
        if (w == warp) offset = total;
        total = total + parts[w];
    }
    __syncthreads();
    return {lane == 0 ? offset : offset + below, offset + value, total};
}

#endif
