// The output of a chunk of at most 256 tokens from what its head brings, N = 128, P = 64, 16-bit operands of one type, by warpgroup
// products: what ssd_output_tensor and ssd_piece share. Each of four warpgroups has 64 tokens of the chunk.
//
// With e_j the last token of block j of 64, tokens t of block i take from block j < i
//   exp(cum_t - cum_e(i-1)) exp(cum_e(i-1) - cum_e(i-2)) ... exp(cum_e(j+1) - cum_e(j))
//       sum_s cb_ts (exp(cum_e(j) - cum_s) step_s x_s)
// and from hin the same with exp(cum_e(0)) (c_t hin): what is in brackets is rounded once to 16 bits as it is put into
// shared memory, all other factors go into the f32 sums from block to block, and no exponent is above 0. Within the own block
// the fragments of c.b are multiplied: by factors that split at every 16 tokens before the own 16 in the same way, there by the
// exponential itself. d is added where s = t.
//
// f16: c.b is held 2^-4 as large, so that products above 65504 do not overflow.
#ifndef DART_SSD_CHUNK_CUH
#define DART_SSD_CHUNK_CUH

#include "lib/tensor.cuh"

namespace ssd_chunk {

constexpr uint32_t tokens = 256, blocks = tokens / 64, N = 128, P = 64;
struct alignas(16) Vectors { // of one head
    float2 cum[tokens]; // {hi, lo}; those of the last token beyond the chunk
    float near[tokens]; // exp(cum_e - cum_s) step_s with e the last of the 16 tokens that s is one of; 0 beyond the chunk
    uint2 far[tokens];  // the same of 64, as factors_of a pair
    float step[tokens]; // 0 beyond the chunk
    float skip;         // d
};

template <bool bf> __device__ constexpr float shrink() { return bf ? 1.0f : 0.0625f; }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Which 16 tokens of its block of 64 a warp has: those with most to do differ from warpgroup to warpgroup, so that not all
// of them are the same scheduler's.
__device__ __forceinline__ uint32_t slab_of(uint32_t block) { return uniform((threadIdx.x / 32 + block) % 4); }

// The 16 lines of c of a warp: fetched as they lie in memory, 16 bytes of line 2 i + lane / 16 in c[i], since a load that
// reaches into eight lines at once takes eight times as long, and turned into fragments, columns 16 k to 16 k + 15 in c[k],
// through 2 KiB of shared memory of the warp's own.
__device__ __forceinline__ void fetch_c(uint32_t (&c)[N / 16][4], const uint16_t *rows, uint64_t row, uint32_t length,
                                        uint32_t block)
{
    const uint32_t lane = threadIdx.x % 32, t0 = 64 * block + 16 * slab_of(block) + lane / 16;
    const uint16_t *from = rows + t0 * row + lane % 16 * 8;
#pragma unroll
    for (uint32_t i = 0; i < N / 16; i++, from += 2 * row) {
        uint4 sixteen = make_uint4(0, 0, 0, 0);
        if (t0 + 2 * i < length) sixteen = *reinterpret_cast<const uint4 *>(from);
        c[i][0] = sixteen.x, c[i][1] = sixteen.y, c[i][2] = sixteen.z, c[i][3] = sixteen.w;
    }
}
__device__ __forceinline__ void turn_c(uint32_t (&c)[N / 16][4], char *own)
{
    const uint32_t lane = threadIdx.x % 32, at = shared_address(own);
    uint32_t turned[N / 16][4];
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < N / 16; i++)
            if (lane % 16 / 8 == half) put16(own, 2 * i + lane / 16, lane % 8, make_uint4(c[i][0], c[i][1], c[i][2], c[i][3]));
        __syncwarp();
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) load_matrices(turned[4 * half + k], at + tile_at(lane % 16, 2 * k + lane / 16));
    }
#pragma unroll
    for (uint32_t k = 0; k < N / 16; k++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) c[k][i] = turned[k][i];
    }
}

// The products of c.b of a warpgroup's tokens with those of block s, in the registers of fragments.
template <bool bf>
__device__ __forceinline__ void multiply_chunk(uint32_t (&to)[4][4], const uint32_t (&c)[N / 16][4], uint32_t b_tiles,
                                               uint32_t s)
{
    const uint64_t b = operand_at(b_tiles + 64 * s * tile_row);
    float sums[32];
    clear(sums);
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < N / 16; k++)
        multiply<bf, true>(sums, c[k], operand_on(b, k / 4 * (tokens * tile_row) + k % 4 * 32));
    products_wait(sums);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            to[k][i] = pack<bf>(sums[8 * k + 2 * i] * shrink<bf>(), sums[8 * k + 2 * i + 1] * shrink<bf>());
    }
}

// All of them: with the own block in cb, with earlier ones as tiles.
template <bool bf>
__device__ __forceinline__ void enter_chunk(uint32_t (&cb)[4][4], const uint32_t (&c)[N / 16][4], uint32_t block, uint32_t b_tiles,
                                            char (*cb_tiles)[64 * tile_row])
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t s = 0; s <= block; s++) {
        multiply_chunk<bf>(cb, c, b_tiles, s);
        if (s == block) break;
        char *to = cb_tiles[block * (block - 1) / 2 + s];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) store_matrices(shared_address(to) + tile_at(warp % 4 * 16 + lane % 16, 2 * k + lane / 16), cb[k]);
    }
    stores_done();
}

// The 16 tokens x 64 columns of a warp of one head.
template <bool bf>
__device__ __forceinline__ void multiply_head(float (&sums)[32], uint32_t block, const uint32_t (&c)[N / 16][4],
                                              const uint32_t (&cb)[4][4], uint32_t cb_tiles, uint32_t hin_tile, uint32_t x_tile,
                                              uint32_t weighted_tile, const Vectors &v, float2 unit)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, column = lane % 4 * 2, slab = slab_of(block);
    const uint32_t t0 = 64 * block + 16 * slab;
    const uint64_t hin = operand_at(hin_tile), x = operand_at(x_tile + 64 * block * tile_row);
    clear(sums);
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < N / 16; k++) multiply<bf>(sums, c[k], operand_on(hin, 16 * k * tile_row));
    products_commit();
    // The own block: whole fragments before the 16 tokens, the triangle within them, nothing after. Computed while products run,
    // the triangle first, and selected, since the compiler lets products that it finds among branches run one by one.
    const float inverse = bf ? 1.0f : 1.0f / unit.x;
    const float2 first = v.cum[t0], cum[2] = {v.cum[t0 + g], v.cum[t0 + g + 8]};
    const float own[2] = {decay_between(cum[0], first) * inverse, decay_between(cum[1], first) * inverse};
    const float skip = v.skip * (shrink<bf>() * inverse);
    uint32_t last[4][4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t s = column + i / 2 * 8, t = g + i % 2 * 8;
        uint32_t pair = cb[0][i];
#pragma unroll
        for (uint32_t k = 1; k < 4; k++) pair = k == slab ? cb[k][i] : pair;
        const float4 earlier = *reinterpret_cast<const float4 *>(&v.cum[t0 + s]);
        const float2 products = unpack<bf>(pair), steps = *reinterpret_cast<const float2 *>(v.step + t0 + s);
        const float left = products.x * (decay_between(cum[i % 2], make_float2(earlier.x, earlier.y)) * (steps.x * inverse));
        const float right = products.y * (decay_between(cum[i % 2], make_float2(earlier.z, earlier.w)) * (steps.y * inverse));
        last[3][i] = pack<bf>(s < t ? left : s == t ? left + skip : 0.0f,
                              s + 1 < t ? right : s + 1 == t ? right + skip : 0.0f);
    }

    // From block to block; the sums are in units of what is multiplied next.
    const float entering = unit.y * (shrink<bf>() * inverse);
    float2 before = make_float2(0.0f, 0.0f);
    uint64_t left = operand_at(cb_tiles + block * (block - 1) / 2 * (64 * tile_row));
    uint64_t weighted = operand_at(weighted_tile);
#pragma unroll 1
    for (uint32_t j = 0; j < block; j++) {
        const float2 here = v.cum[64 * j + 63];
        const float factor = decay_between(here, before) * (j == 0 ? entering : 1.0f);
        before = here;
        products_wait(sums);
#pragma unroll
        for (int i = 0; i < 32; i++) sums[i] *= factor;
        products_begin();
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            multiply<bf, false>(sums, operand_on(left, 32 * k), operand_on(weighted, 16 * k * tile_row));
        left = operand_on(left, 64 * tile_row);
        weighted = operand_on(weighted, 64 * tile_row);
        products_commit();
    }
#pragma unroll
    for (uint32_t k = 0; k < 3; k++) {
        const uint32_t q = 4 * block + k;
        const float between = decay_between(first, v.cum[16 * q + 15]);
        const float factors[2] = {own[0] * between, own[1] * between};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const float2 keys = *reinterpret_cast<const float2 *>(v.near + 16 * q + column + i / 2 * 8);
            const float2 all = unpack<bf>(cb[k][i]);
            const uint32_t whole = pack<bf>(all.x * (keys.x * factors[i % 2]), all.y * (keys.y * factors[i % 2]));
            last[k][i] = k < slab ? whole : k == slab ? last[3][i] : 0;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) last[3][i] = slab == 3 ? last[3][i] : 0;

    const float to_own = block == 0 ? entering : 1.0f;
    const float factors[2] = {decay_between(cum[0], before) * to_own, decay_between(cum[1], before) * to_own};
    products_wait(sums);
#pragma unroll
    for (int i = 0; i < 32; i++) sums[i] *= factors[i / 2 % 2];
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) multiply<bf>(sums, last[k], operand_on(x, 16 * k * tile_row));
    products_wait(sums);
    if (!bf) {
        const float out = unit.x / shrink<bf>();
#pragma unroll
        for (int i = 0; i < 32; i++) sums[i] *= out;
    }
}

#endif

} // namespace ssd_chunk

#endif
