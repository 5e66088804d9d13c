// What ssd_memory and ssd_output on the warp products of sm_80 share: the run of a block, one head of one chunk a tile, a
// thread's token, and rows of results.
#ifndef DART_SSD_WARP_CUH
#define DART_SSD_WARP_CUH

#include "segment.cuh"

namespace ssd_warp {

constexpr uint32_t threads = 256, tokens = 256, columns = 64, rows_apart = threads / 8;

template <class Args> __device__ __forceinline__ uint32_t run_begin(const Args &args, uint32_t block)
{
    return uint32_t(uint64_t(args.tiles) * block / gridDim.x);
}

// This thread's token of cum, the last one beyond the chunk, where its step is 0.
struct Token {
    float2 cum;
    float step;
};
__device__ __forceinline__ Token fetch_token(const float *chunk, uint32_t length)
{
    const float *at = chunk + min(threadIdx.x, length - 1) * CUM_STRIDE;
    return {make_float2(at[0], at[1]), threadIdx.x < length ? at[2] : 0.0f};
}

// 16 x 8 pieces numbers of a warp as 16-bit rows `row` elements apart, through 1 KiB of shared memory of the warp's own; rows
// from `valid` on are not written.
template <bool bf>
__device__ __forceinline__ void store_block(uint16_t *to, size_t row, uint32_t valid, uint32_t pieces, const float (&v)[32],
                                            char *stage)
{
    const uint32_t lane = threadIdx.x % 32, piece = lane % 8;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            *reinterpret_cast<uint32_t *>(stage + tile_at(lane / 4, i) + lane % 4 * 4) =
                pack<bf>(v[4 * i + 2 * half], v[4 * i + 2 * half + 1]);
        __syncwarp();
#pragma unroll
        for (uint32_t r = lane / 8; r < 8; r += 4) {
            const uint4 sixteen = get16(stage, r, piece);
            if (8 * half + r < valid && piece < pieces)
                *reinterpret_cast<uint4 *>(to + (8 * half + r) * row + piece * 8) = sixteen;
        }
    }
}

} // namespace ssd_warp

#endif
