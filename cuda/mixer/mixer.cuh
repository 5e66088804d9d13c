// The product of a mixer's step: a block makes OUTPUTS outputs of up to ROWS rows, its threads share the inputs out, four
// at a time, and add up what they have beside the squares that the norm wants. So the rows are read once, and nothing
// waits for the norm.
#ifndef DART_MIXER_CUH
#define DART_MIXER_CUH

#include "lib/dart.cuh"

constexpr uint32_t mixer_outputs = 8, mixer_rows = 4, mixer_sums = mixer_outputs + 1; // the last one: the squares

struct MixerShared {
    float parts[mixer_rows * mixer_sums][warps], totals[mixer_rows][mixer_sums];
};

// inputs -> outputs first .. first + OUTPUTS - 1 of `outputs`.
struct MixerProduct {
    View norm, weight;
    uint32_t norm_at, weight_at, inputs, outputs, first;
};

// totals[r][o] = sum_i rows(r, i) norm_i weight[o][i], totals[r][OUTPUTS] = sum_i rows(r, i)^2, in a fixed order;
// rows(r, i, valid) gives elements i .. i + 3 of row r, zeros beyond valid. To be called by the whole block.
// whole: everything is aligned and a multiple of 4, so that the fetches stand side by side without branches; then the
// type of the weights is known, too.
template <bool whole, uint32_t known, class Rows>
__device__ __forceinline__ void mixer_add_up(const Rows &rows_of, uint32_t rows, const MixerProduct &of, MixerShared &shared)
{
    const View weight = {of.weight.base, whole ? known : of.weight.dtype}, norm = of.norm;
    const uint32_t inputs = of.inputs, weight_at = of.weight_at, norm_at = of.norm_at;
    const bool w_aligned = multiples_of_4(weight_at, inputs), n_aligned = multiples_of_4(norm_at, 0);
    float sums[mixer_rows][mixer_sums] = {};
    for (uint32_t i = threadIdx.x * 4; i < inputs; i += block_size * 4) {
        const uint32_t valid = inputs - i;
        uint4 raw[mixer_outputs];
#pragma unroll
        for (uint32_t o = 0; o < mixer_outputs; o++) {
            const size_t line = weight_at + size_t(min(of.first + o, of.outputs - 1)) * inputs;
            raw[o] = whole ? fetch4_whole(weight, line + i) : fetch4(weight, line + i, valid, w_aligned);
        }
        const size_t at = norm_at + size_t(i);
        const float4 scale = unpack4(whole ? fetch4_whole(norm, at) : fetch4(norm, at, valid, n_aligned), norm.dtype);
#pragma unroll
        for (uint32_t r = 0; r < mixer_rows; r++) {
            if (r >= rows) break;
            float4 v = rows_of(r, i, valid);
            sums[r][mixer_outputs] = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sums[r][mixer_outputs]))));
            v = make_float4(v.x * scale.x, v.y * scale.y, v.z * scale.z, v.w * scale.w);
#pragma unroll
            for (uint32_t o = 0; o < mixer_outputs; o++) {
                const float4 w = unpack4(raw[o], weight.dtype);
                sums[r][o] = fmaf(w.x, v.x, fmaf(w.y, v.y, fmaf(w.z, v.z, fmaf(w.w, v.w, sums[r][o]))));
            }
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < mixer_rows; r++) {
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

template <class Rows>
__device__ __forceinline__ void mixer_product(const Rows &rows_of, uint32_t rows, const MixerProduct &of, MixerShared &shared)
{
    if (!multiples_of_4(of.weight_at, of.inputs, of.norm_at)) {
        mixer_add_up<false, DTYPE_F32>(rows_of, rows, of, shared);
        return;
    }
    switch (of.weight.dtype) {
    case DTYPE_F32: mixer_add_up<true, DTYPE_F32>(rows_of, rows, of, shared); break;
    case DTYPE_F16: mixer_add_up<true, DTYPE_F16>(rows_of, rows, of, shared); break;
    default: mixer_add_up<true, DTYPE_BF16>(rows_of, rows, of, shared); break;
    }
}

#endif
