// mixer_project of one row with 16-bit weights: `share` warps have 768 inputs each of the same 2 share outputs, and each finishes two of them.
// Before the launch before has ended, weights and norm are fetched and the convolution is made up to the new input: its tail is written by this
// launch alone. Shared memory: 18.6 KiB.
#ifndef DART_MIXER_PROJECT_WORDS_CUH
#define DART_MIXER_PROJECT_WORDS_CUH

#include "lib/one_row.cuh"

constexpr uint32_t project_tile = 2 * warps, project_slice = 768, project_most = 2 * project_slice; // outputs; inputs of a warp, of a row

template <bool bf, uint32_t share>
__device__ __forceinline__ void project_words(const mixer_project_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks)
{
    constexpr uint32_t outs = 2 * share, words = project_slice / 256;
    __shared__ float parts[2][warps][outs + 1]; // of tiles by turns; the last one: squares
    __shared__ float4 norms[share * project_slice / 4];
    const View x = VIEW(mixer_project, x), norm = VIEW(mixer_project, norm), weight = VIEW(mixer_project, weight);
    const View y = VIEW(mixer_project, y), taps = VIEW(mixer_project, taps), bias = VIEW(mixer_project, bias);
    const View tail = VIEW(mixer_project, tail), a_log = VIEW(mixer_project, a_log), dt_bias = VIEW(mixer_project, dt_bias);
    const float *open_decay = FLOATS(mixer_project, open_decay);
    float *cum = FLOATS(mixer_project, cum), *decay = cum + args.decay_at;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, keep = args.K - 1, k = lane % 16;
    const uint32_t slice = warp % share, word = slice * (project_slice / 8) + lane;
    const bool there = piece_early(INTS(mixer_project, seq) + args.seq_at, args.flags, 1, 0).count != 0;
    float v[words][8], rms = 0.0f;
    bool waited = false;
    uint32_t turn = 0;
    FOR_TILES_OF(tile, blocks) {
        const uint32_t first = tile * project_tile + warp / share * outs;
        const uint32_t o = first + 2 * slice + lane / 16; // half a warp finishes an output, a lane a tap
        RowWeights<2, words> weights;
        weights.fetch(weight, args.weight_at, first, args.outputs, args.inputs, word - lane);
#pragma unroll
        for (uint32_t i = 2; i < outs; i += 2) weights.announce(weight, args.weight_at, first + i, args.outputs, args.inputs, word - lane);
        const bool channel = o >= args.first && o - args.first < args.C && o < args.outputs;
        const bool step = (args.flags & HAS_STEPS) && o >= args.first + args.C && o - args.first - args.C < args.H && o < args.outputs;
        const uint32_t ch = channel ? o - args.first : 0, h = step ? o - args.first - args.C : 0;
        const size_t old = args.tail_at + size_t(k) * args.C + ch, tap = args.taps_at + size_t(ch) * args.K;
        const float in = channel && k < keep ? load_early(tail, old) : 0.0f;
        float sum = channel && k < keep ? load_early(taps, tap + k) * in : 0.0f, last = 0.0f, offset = 0.0f, before = 0.0f;
        if (channel) last = load_early(taps, tap + keep);
        if (channel && (args.flags & HAS_BIAS)) offset = load_early(bias, args.bias_at + ch);
        if (step) {
            last = -expf(load_early(a_log, args.a_log_at + h));
            offset = load_early(dt_bias, args.dt_bias_at + h);
            before = args.flags & HAS_OPEN ? __ldcg(open_decay + h) : 0.0f;
        }
#pragma unroll
        for (uint32_t apart = 4; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
        sum += offset;
        if (!waited) {
            for (uint32_t i = threadIdx.x; i < args.inputs; i += block_size) reinterpret_cast<float *>(norms)[i] = load_early(norm, args.norm_at + i);
            __syncthreads();
            predecessors_wait();
            successors_begin();
            float square = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < words; j++) {
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) v[j][i] = 0.0f;
                if (word + 32 * j < args.inputs / 8) load8(x, args.x_at + 8 * (word + 32 * j), v[j]);
            }
#pragma unroll
            for (uint32_t j = 0; j < words; j++) {
                const uint32_t i4 = min(2 * (word + 32 * j), args.inputs / 4 - 2);
                const float4 early = norms[i4], late = norms[i4 + 1];
                const float n[8] = {early.x, early.y, early.z, early.w, late.x, late.y, late.z, late.w};
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
                    square = fmaf(v[j][i], v[j][i], square);
                    v[j][i] *= n[i];
                }
            }
            rms = warp_sum(square);
        }
        float sums[outs];
#pragma unroll
        for (uint32_t i = 0; i < outs; i += 2) {
            float pair[2] = {};
            if (i > 0) weights.fetch(weight, args.weight_at, first + i, args.outputs, args.inputs, word - lane);
#pragma unroll
            for (uint32_t j = 0; j < words; j++) weights.template multiply<bf>(j, v[j], pair);
            sums[i] = pair[0], sums[i + 1] = pair[1];
        }
#pragma unroll
        for (uint32_t i = 0; i < outs; i++) sums[i] = warp_sum(sums[i]);
        float low = sums[0], high = sums[1];
        if constexpr (share > 1) {
            float(*own)[outs + 1] = parts[turn];
            turn ^= 1;
            if (lane == 0) {
#pragma unroll
                for (uint32_t i = 0; i < outs; i++) own[warp][i] = sums[i];
                own[warp][outs] = rms;
            }
            __syncthreads();
            low = high = 0.0f;
            if (!waited) rms = 0.0f;
            for (uint32_t w = warp - slice; w < warp - slice + share; w++) {
                low += own[w][2 * slice], high += own[w][2 * slice + 1];
                if (!waited) rms += own[w][outs];
            }
        }
        if (!waited) rms = 1.0f / sqrtf(rms / float(args.inputs) + args.eps);
        waited = true;
        const float value = (lane < 16 ? low : high) * rms;
        if (!there || o >= args.outputs) continue;
        if (channel && k < keep) store(tail, old - (k > 0 ? args.C : 0) + (k > 0 ? 0 : size_t(keep - 1) * args.C), k > 0 ? in : value);
        if (k > 0) continue;
        if (step) {
            const float raw = value + offset;
            const float dt = fminf(fmaxf(raw > 20.0f ? raw : log1pf(expf(raw)), args.dt_min), args.dt_max), log_decay = last * dt;
            cum[h * CUM_STRIDE] = log_decay;
            cum[h * CUM_STRIDE + 1] = 0.0f;
            cum[h * CUM_STRIDE + 2] = dt;
            decay[h] = before;
            decay[args.H + h] = log_decay;
        }
        store(y, args.y_at + o, channel ? silu(fmaf(last, value, sum)) : value);
    }
    if (!waited) predecessors_wait(); // so that whoever waits for this launch has waited for those before, too
}

__device__ __forceinline__ void project_words_run(const mixer_project_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks)
{
    const bool bf = VIEW(mixer_project, weight).dtype == DTYPE_BF16;
    if (args.inputs <= project_slice) {
        if (bf) project_words<true, 1>(args, bindings, dtypes, blocks);
        else project_words<false, 1>(args, bindings, dtypes, blocks);
    } else {
        if (bf) project_words<true, 2>(args, bindings, dtypes, blocks);
        else project_words<false, 2>(args, bindings, dtypes, blocks);
    }
}

#endif
