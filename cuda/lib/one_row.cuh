// Products of one row with 16-bit weights, whose loads are under way before the row is there: a warp makes `outs` neighbouring outputs of a slice of
// the inputs, a lane multiplies words (eight weights) lane, lane + 32, ... of it. Needs weights and inputs in multiples of eight elements.
#ifndef DART_ONE_ROW_CUH
#define DART_ONE_ROW_CUH

#include "eight.cuh"

// A word that nobody reads again soon.
__device__ __forceinline__ uint4 stream_word(const uint4 *from)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// sum += eight weights times v.
template <bool bf> __device__ __forceinline__ void multiply_word(const uint4 &weights, const float (&v)[8], float &sum)
{
    const uint32_t pairs[4] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        float low, high;
        unpack_pair(pairs[i], bf, low, high);
        sum = fmaf(low, v[2 * i], fmaf(high, v[2 * i + 1], sum));
    }
}

// A lane's words of a slice of one output in shared memory, where they take no registers while they are under way. room: of the warp.
template <uint32_t words> struct AsyncWeights {
    uint4 *own; // word j is own[32 j]
    __device__ __forceinline__ explicit AsyncWeights(uint4 (&room)[32 * words]) : own(room + threadIdx.x % 32) {}
    __device__ __forceinline__ void fetch(const View &weight, uint32_t weight_at, uint32_t output, uint32_t outputs, uint32_t inputs, uint32_t begin)
    {
        const uint32_t row = inputs / 8, lane = begin + threadIdx.x % 32;
        const uint4 *from = reinterpret_cast<const uint4 *>(weight.base) + weight_at / 8 + size_t(min(output, outputs - 1)) * row + lane;
#pragma unroll
        for (uint32_t j = 0; j < words; j++) {
            const uint32_t to = uint32_t(__cvta_generic_to_shared(own + 32 * j));
            if (lane + 32 * j < row) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from + 32 * j) : "memory");
        }
    }
    __device__ __forceinline__ void landed() const { asm volatile("cp.async.wait_all;" ::: "memory"); }
};

// x sigma(x) and 1 / sqrt(x), within 4 ulp, without the branches of exact divisions, which keep loads behind them from being under way together.
__device__ __forceinline__ float silu_step(float x)
{
    const float e = expf(-fabsf(x));
    return x * __fdividef(x >= 0.0f ? 1.0f : e, 1.0f + e);
}

// Two neighbouring elements, i even, as they lie in memory (load_early).
__device__ __forceinline__ uint2 fetch_pair_early(const View &view, size_t i)
{
    if (view.dtype == DTYPE_F32) return __ldcg(reinterpret_cast<const uint2 *>(view.base) + i / 2);
    return make_uint2(__ldcg(reinterpret_cast<const uint32_t *>(view.base) + i / 2), 0);
}
__device__ __forceinline__ float2 pair_of(const uint2 &bits, uint32_t dtype)
{
    if (dtype == DTYPE_F32) return make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y));
    return dtype == DTYPE_F16 ? unpack<false>(bits.x) : unpack<true>(bits.x);
}

// Eight elements from element i on of f32 that earlier launches of the step wrote.
__device__ __forceinline__ void load8(const View &view, size_t i, float (&v)[8])
{
    const float4 *from = reinterpret_cast<const float4 *>(view.base) + i / 4;
    const float4 low = from[0], high = from[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

#endif
