// What the kernels of sma_backward_token_side share.
#ifndef DART_SMA_BACKWARD_TOKEN_SIDE_CUH
#define DART_SMA_BACKWARD_TOKEN_SIDE_CUH

#include "sma/backward.cuh"
#include "sma/products.cuh"

namespace sma_token_side {

// Pairs of elements of the tokens line0 + lane / 4 + {0, 8} as fragments of a left operand; `from` is that of element 0 of the first token of the
// tile, rows lie `row` elements apart, rows from `live` on are zeros. The first fragment is that of 16 columns from 16 begin on, the others follow
// in turns.
__device__ __forceinline__ void load_fragments(uint32_t (&a)[4][4], const uint16_t *from, uint32_t row, uint32_t line0, uint32_t live,
                                               uint32_t begin = 0)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        const uint32_t t = line0 + lane / 4 + j % 2 * 8;
#pragma unroll
        for (uint32_t s = 0; s < 4; s++)
            a[s][j] = t < live ? *reinterpret_cast<const uint32_t *>(from + size_t(t) * row + 16 * ((s + begin) % 4) + lane % 4 * 2 + j / 2 * 8) : 0u;
    }
}

// sum + pair . (x, y)
template <bool bf> __device__ __forceinline__ float add_pair(uint32_t pair, float x, float y, float sum)
{
    const float2 v = unpack<bf>(pair);
    return fmaf(v.x, x, fmaf(v.y, y, sum));
}

// sum + up . r for eight neighbours of a token: `up` of up_r, those of r from element p of its row on.
template <bool bf> __device__ __forceinline__ float add_eight(const uint4 &up, const View &r, uint32_t p, float sum)
{
    const float4 low = unpack4(fetch4_whole(r, p), r.dtype), high = unpack4(fetch4_whole(r, p + 4), r.dtype);
    sum = add_pair<bf>(up.x, low.x, low.y, add_pair<bf>(up.y, low.z, low.w, sum));
    return add_pair<bf>(up.z, high.x, high.y, add_pair<bf>(up.w, high.z, high.w, sum));
}

// Stores the pairs of elements 8 i + {0, 1} of a row of 8 count, or adds to them.
template <uint32_t count> __device__ __forceinline__ void put_row(const View &view, size_t at, float2 (&v)[count], bool adds)
{
    const bool bf = view.dtype == DTYPE_BF16;
    if (view.dtype == DTYPE_F32) {
        float2 *to = reinterpret_cast<float2 *>(view.base) + at / 2;
#pragma unroll
        for (uint32_t i = 0; i < count; i++) {
            const float2 held = adds ? to[4 * i] : make_float2(0.0f, 0.0f);
            to[4 * i] = make_float2(v[i].x + held.x, v[i].y + held.y);
        }
        return;
    }
    uint32_t *to = reinterpret_cast<uint32_t *>(view.base) + at / 2;
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t pair = adds ? to[4 * i] : 0u;
        const float2 held = bf ? unpack<true>(pair) : unpack<false>(pair);
        to[4 * i] = bf ? pack<true>(v[i].x + held.x, v[i].y + held.y) : pack<false>(v[i].x + held.x, v[i].y + held.y);
    }
}

} // namespace sma_token_side

#endif
