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

template <uint32_t outs, uint32_t words> struct RowWeights {
    uint4 word[outs][words];
    // Of outputs first .. first + outs - 1, the last one again where there are no more, from word `begin` on.
    __device__ __forceinline__ void fetch(const View &weight, uint32_t weight_at, uint32_t first, uint32_t outputs, uint32_t inputs, uint32_t begin)
    {
        const uint4 *from = reinterpret_cast<const uint4 *>(weight.base) + weight_at / 8;
        const uint32_t row = inputs / 8, lane = begin + threadIdx.x % 32;
#pragma unroll
        for (uint32_t k = 0; k < outs; k++) {
            const uint4 *own = from + size_t(min(first + k, outputs - 1)) * row;
#pragma unroll
            for (uint32_t j = 0; j < words; j++)
                word[k][j] = lane + 32 * j < row ? stream_word(own + lane + 32 * j) : make_uint4(0, 0, 0, 0);
        }
    }
    // The same words on their way to the cache.
    static __device__ __forceinline__ void announce(const View &weight, uint32_t weight_at, uint32_t first, uint32_t outputs, uint32_t inputs,
                                                    uint32_t begin)
    {
        const uint4 *from = reinterpret_cast<const uint4 *>(weight.base) + weight_at / 8;
        const uint32_t row = inputs / 8, lane = begin + threadIdx.x % 32;
#pragma unroll
        for (uint32_t k = 0; k < outs; k++) {
            const uint4 *own = from + size_t(min(first + k, outputs - 1)) * row;
#pragma unroll
            for (uint32_t j = 0; j < words; j++)
                if (lane + 32 * j < row) asm volatile("prefetch.global.L2 [%0];" ::"l"(own + lane + 32 * j));
        }
    }
    // sums[k] += the lane's share of output k, v being elements 8 lane .. 8 lane + 7 of word j.
    template <bool bf> __device__ __forceinline__ void multiply(uint32_t j, const float (&v)[8], float (&sums)[outs]) const
    {
#pragma unroll
        for (uint32_t k = 0; k < outs; k++) multiply_word<bf>(word[k][j], v, sums[k]);
    }
};

// Eight elements from element i on of f32 that earlier launches of the step wrote.
__device__ __forceinline__ void load8(const View &view, size_t i, float (&v)[8])
{
    const float4 *from = reinterpret_cast<const float4 *>(view.base) + i / 4;
    const float4 low = from[0], high = from[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

#endif
