// Four and eight elements at a time, in words of 8 or 16 bytes, of tensors whose offsets and row pitches are multiples of eight elements
// (FITS_TILES); and teams of threads that share a row.
#ifndef DART_EIGHT_CUH
#define DART_EIGHT_CUH

#include "slope.cuh"
#include "tensor.cuh"

// Eight elements as they lie in memory, 16-bit elements in `low`. Loads can be under way long before unpack8 converts them.
struct Words { uint4 low, high; };
__device__ __forceinline__ Words fetch8(const View &view, size_t i)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(view.base);
    if (view.dtype == DTYPE_F32) return {from[i / 4], from[i / 4 + 1]};
    return {from[i / 8], make_uint4(0, 0, 0, 0)};
}
__device__ __forceinline__ Words no_words() { return {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)}; }
__device__ __forceinline__ void unpack_pair(uint32_t pair, bool bf, float &low, float &high)
{
    const float2 v = bf ? unpack<true>(pair) : unpack<false>(pair);
    low = v.x;
    high = v.y;
}
__device__ __forceinline__ void unpack8(const Words &w, uint32_t dtype, float (&v)[8])
{
    const uint32_t low[4] = {w.low.x, w.low.y, w.low.z, w.low.w}, high[4] = {w.high.x, w.high.y, w.high.z, w.high.w};
    if (dtype == DTYPE_F32) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            v[k] = __uint_as_float(low[k]);
            v[k + 4] = __uint_as_float(high[k]);
        }
        return;
    }
    if (dtype == DTYPE_BF16) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) unpack_pair(low[k], true, v[2 * k], v[2 * k + 1]);
    } else {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) unpack_pair(low[k], false, v[2 * k], v[2 * k + 1]);
    }
}
__device__ __forceinline__ void store8(const View &view, size_t i, const float (&v)[8])
{
    uint4 *to = reinterpret_cast<uint4 *>(view.base);
    if (view.dtype == DTYPE_F32) {
        to[i / 4] = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
        to[i / 4 + 1] = make_uint4(__float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]), __float_as_uint(v[7]));
    } else if (view.dtype == DTYPE_BF16) {
        to[i / 8] = make_uint4(pack<true>(v[0], v[1]), pack<true>(v[2], v[3]), pack<true>(v[4], v[5]), pack<true>(v[6], v[7]));
    } else {
        to[i / 8] = make_uint4(pack<false>(v[0], v[1]), pack<false>(v[2], v[3]), pack<false>(v[4], v[5]), pack<false>(v[6], v[7]));
    }
}
// Four elements; fetch4_whole and unpack4 of dart.cuh load them.
__device__ __forceinline__ void store4(const View &view, size_t i, const float4 &v)
{
    if (view.dtype == DTYPE_F32) reinterpret_cast<float4 *>(view.base)[i / 4] = v;
    else if (view.dtype == DTYPE_BF16) reinterpret_cast<uint2 *>(view.base)[i / 4] = make_uint2(pack<true>(v.x, v.y), pack<true>(v.z, v.w));
    else reinterpret_cast<uint2 *>(view.base)[i / 4] = make_uint2(pack<false>(v.x, v.y), pack<false>(v.z, v.w));
}

// SiLU and its derivative. For 16-bit results the fast exp and division are accurate enough: their relative error is below
// (4 + |x|) 2^-23. Below -80 the exponent stays at 80, so that exp does not overflow.
__device__ __forceinline__ Slope silu_slope_for(bool half, float x)
{
    if (!half) return silu_slope(x);
    const float sigma = __fdividef(1.0f, 1.0f + __expf(fminf(-x, 80.0f)));
    return {x * sigma, sigma * (1.0f + x * (1.0f - sigma))};
}
__device__ __forceinline__ float silu_for(bool half, float x)
{
    return half ? __fdividef(x, 1.0f + __expf(fminf(-x, 80.0f))) : silu(x);
}

// A team of threads takes a row of at most 256 elements, a multiple of eight, eight neighbours a thread: thread t is member
// t % team of its team. Members from width / 8 on have no elements. A team lies in a warp.
__device__ __forceinline__ uint32_t team_of(uint32_t width)
{
    uint32_t team = 2;
    while (8 * team < width) team *= 2;
    return team;
}
// The sum over a team, the same in all of its threads. Call with whole warps.
__device__ __forceinline__ float team_sum(float value, uint32_t team)
{
    for (uint32_t step = team / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
// to[i] = the sum over the teams of a block of `threads` threads of what they hold of column i, for the columns below width: the teams of
// a warp in pairs, then the warps in order. `scratch` has room for 256 columns of each warp. Call with the whole block, which may not use
// scratch before another barrier.
template <uint32_t threads>
__device__ __forceinline__ void sum_columns(float (&v)[8], uint32_t team, uint32_t width, float (&scratch)[threads / 32][256], float *to)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t step = team; step < 32; step *= 2) {
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) v[k] += __shfl_xor_sync(0xffffffffu, v[k], step);
    }
    if (lane < team) {
        float4 *at = reinterpret_cast<float4 *>(&scratch[threadIdx.x / 32][8 * lane]);
        at[0] = make_float4(v[0], v[1], v[2], v[3]);
        at[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < width; i += threads) {
        float sum = scratch[0][i];
#pragma unroll
        for (uint32_t w = 1; w < threads / 32; w++) sum += scratch[w][i];
        to[i] = sum;
    }
}

#endif
