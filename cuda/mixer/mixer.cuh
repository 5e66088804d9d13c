// The product of a mixer's step: a block makes OUTPUTS outputs of up to `most` rows (fewer rows need fewer registers), its threads share
// the inputs out, four at a time, and add up what they have beside the squares that the norm wants. So the rows are read once, and
// nothing waits for the norm.
#ifndef DART_MIXER_CUH
#define DART_MIXER_CUH

#include "lib/dart.cuh"

constexpr uint32_t mixer_outputs = 8, mixer_sums = mixer_outputs + 1; // the last one: the squares

template <uint32_t most> struct MixerShared {
    float parts[most * mixer_sums][warps], totals[most][mixer_sums];
};

// Four weights as they lie in memory. plain: a float type, `known` one with words that are aligned and whole. q8, q4: of quantised rows
// (dart_quantise), which begin at multiples of 16 bytes: {numbers, their scale and minimum as bf16}.
enum class MixerWeights { any, f32, f16, bf16, q8, q4 };

template <MixerWeights kind> __device__ __forceinline__ constexpr uint32_t mixer_dtype(uint32_t dtype)
{
    return kind == MixerWeights::f32 ? DTYPE_F32 : kind == MixerWeights::f16 ? DTYPE_F16 : kind == MixerWeights::bf16 ? DTYPE_BF16 : dtype;
}

// Weights i .. i + 3 of row `output`.
template <MixerWeights kind>
__device__ __forceinline__ uint4 mixer_fetch(const View &weight, uint32_t weight_at, uint32_t output, uint32_t inputs, uint32_t i)
{
    if constexpr (kind == MixerWeights::q8 || kind == MixerWeights::q4) {
        constexpr bool four = kind == MixerWeights::q4;
        const uint32_t blocks = inputs / 32;
        const char *row = weight.base + weight_at + size_t(output) * ceil_div(blocks * (four ? 20 : 34), 16) * 16;
        const uint16_t *scales = reinterpret_cast<const uint16_t *>(row + blocks * (four ? 16 : 32));
        if (!four) return make_uint4(*reinterpret_cast<const uint32_t *>(row + i), 0, scales[i / 32], 0);
        const uint2 words = *reinterpret_cast<const uint2 *>(row + i / 32 * 16 + i % 8 * 2);
        return make_uint4(words.x, words.y, scales[i / 32], scales[blocks + i / 32]);
    } else {
        const size_t at = weight_at + size_t(output) * inputs + i;
        const View view = {weight.base, mixer_dtype<kind>(weight.dtype)};
        if constexpr (kind == MixerWeights::any) return fetch4(view, at, inputs - i, multiples_of_4(weight_at, inputs));
        return fetch4_whole(view, at);
    }
}

template <MixerWeights kind> __device__ __forceinline__ float4 mixer_unpack(const uint4 &raw, uint32_t i, uint32_t dtype)
{
    if constexpr (kind == MixerWeights::q8 || kind == MixerWeights::q4) {
        const float scale = from_bfloat(raw.z), minimum = from_bfloat(raw.w); // 0 of q8
        float n[4];
        if constexpr (kind == MixerWeights::q8) {
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) n[k] = float(int32_t(raw.x << (24 - 8 * k)) >> 24);
        } else {
            const uint32_t shift = i / 8 % 4 * 4; // numbers 8 j to 8 j + 7 of a block: nibbles j and j + 4 of its four words
            n[0] = float(raw.x >> shift & 15u), n[1] = float(raw.x >> (16 + shift) & 15u);
            n[2] = float(raw.y >> shift & 15u), n[3] = float(raw.y >> (16 + shift) & 15u);
        }
        return make_float4(fmaf(scale, n[0], minimum), fmaf(scale, n[1], minimum), fmaf(scale, n[2], minimum), fmaf(scale, n[3], minimum));
    } else {
        return unpack4(raw, mixer_dtype<kind>(dtype));
    }
}

// inputs -> outputs first .. first + OUTPUTS - 1 of `outputs`.
struct MixerProduct {
    View norm, weight;
    uint32_t norm_at, weight_at, inputs, outputs, first;
};

// totals[r][o] = sum_i rows(r, i) norm_i weight[o][i], totals[r][OUTPUTS] = sum_i rows(r, i)^2, in a fixed order;
// rows(r, i, valid) gives elements i .. i + 3 of row r, zeros beyond valid. To be called by the whole block.
// Of a kind that is known everything is aligned and a multiple of 4, so that the fetches stand side by side without branches.
template <MixerWeights kind, uint32_t most, class Rows>
__device__ __forceinline__ void mixer_add_up(const Rows &rows_of, uint32_t rows, const MixerProduct &of, MixerShared<most> &shared)
{
    constexpr bool whole = kind == MixerWeights::f32 || kind == MixerWeights::f16 || kind == MixerWeights::bf16;
    const View weight = of.weight, norm = of.norm;
    const uint32_t inputs = of.inputs, norm_at = of.norm_at;
    const bool n_aligned = multiples_of_4(norm_at, 0);
    float sums[most][mixer_sums] = {};
    for (uint32_t i = threadIdx.x * 4; i < inputs; i += block_size * 4) {
        const uint32_t valid = inputs - i;
        uint4 raw[mixer_outputs];
#pragma unroll
        for (uint32_t o = 0; o < mixer_outputs; o++)
            raw[o] = mixer_fetch<kind>(weight, of.weight_at, min(of.first + o, of.outputs - 1), inputs, i);
        const size_t at = norm_at + size_t(i);
        const float4 scale = unpack4(whole ? fetch4_whole(norm, at) : fetch4(norm, at, valid, n_aligned), norm.dtype);
#pragma unroll
        for (uint32_t r = 0; r < most; r++) {
            if (r >= rows) break;
            float4 v = rows_of(r, i, valid);
            sums[r][mixer_outputs] = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sums[r][mixer_outputs]))));
            v = make_float4(v.x * scale.x, v.y * scale.y, v.z * scale.z, v.w * scale.w);
#pragma unroll
            for (uint32_t o = 0; o < mixer_outputs; o++) {
                const float4 w = mixer_unpack<kind>(raw[o], i, weight.dtype);
                sums[r][o] = fmaf(w.x, v.x, fmaf(w.y, v.y, fmaf(w.z, v.z, fmaf(w.w, v.w, sums[r][o]))));
            }
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < most; r++) {
        if (r >= rows) break;
#pragma unroll
        for (uint32_t o = 0; o < mixer_sums; o++) {
            const float total = warp_sum(sums[r][o]);
            if (threadIdx.x % 32 == 0) shared.parts[r * mixer_sums + o][threadIdx.x / 32] = total;
        }
    }
    __syncthreads();
    if (threadIdx.x < rows * mixer_sums) {
        float total = 0.0f;
        for (uint32_t w = 0; w < warps; w++) total += shared.parts[threadIdx.x][w];
        shared.totals[threadIdx.x / mixer_sums][threadIdx.x % mixer_sums] = total;
    }
    __syncthreads();
}

template <bool quantised, uint32_t most, class Rows>
__device__ __forceinline__ void mixer_product(const Rows &rows_of, uint32_t rows, const MixerProduct &of, MixerShared<most> &shared)
{
    if constexpr (quantised) {
        if (of.weight.dtype == 0) mixer_add_up<MixerWeights::q8, most>(rows_of, rows, of, shared);
        else mixer_add_up<MixerWeights::q4, most>(rows_of, rows, of, shared);
        return;
    }
    if (!multiples_of_4(of.weight_at, of.inputs, of.norm_at)) {
        mixer_add_up<MixerWeights::any, most>(rows_of, rows, of, shared);
        return;
    }
    switch (of.weight.dtype) {
    case DTYPE_F32: mixer_add_up<MixerWeights::f32, most>(rows_of, rows, of, shared); break;
    case DTYPE_F16: mixer_add_up<MixerWeights::f16, most>(rows_of, rows, of, shared); break;
    default: mixer_add_up<MixerWeights::bf16, most>(rows_of, rows, of, shared); break;
    }
}

#endif
