// mixer_project of one row with 16-bit weights: every multiprocessor has one block, which makes an even share of the outputs (args.tiles is the
// number of shares). A warp makes up to four neighbouring outputs at a time and holds the whole row in registers. Before the launch before has ended,
// the weights of the first outputs are on their way to shared memory, as are the convolutions' inputs: the tail is written by this launch alone.
// Eight lanes finish an output, a lane a tap. Shared memory: 51 KiB, wide 78 KiB, weights but for 3 and 6 KiB.
#ifndef DART_MIXER_PROJECT_WORDS_CUH
#define DART_MIXER_PROJECT_WORDS_CUH

#include "lib/one_row.cuh"

// words: of a lane, of eight inputs each; a row has at most 256 words inputs. group: the outputs of a warp that are under way together.
template <uint32_t words> struct ProjectShared {
    static constexpr uint32_t most = 256 * words, group = words == 3 ? 4 : 3;
    uint4 weights[warps][group][32 * words];
    float4 norms[most / 4];
};

template <bool bf, uint32_t words>
__device__ __forceinline__ void project_words(const mixer_project_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks,
                                              ProjectShared<words> &shared)
{
    constexpr uint32_t group = ProjectShared<words>::group, team = 8; // lanes of an output
    const View x = VIEW(mixer_project, x), norm = VIEW(mixer_project, norm), weight = VIEW(mixer_project, weight);
    const View y = VIEW(mixer_project, y), taps = VIEW(mixer_project, taps), bias = VIEW(mixer_project, bias);
    const View tail = VIEW(mixer_project, tail), a_log = VIEW(mixer_project, a_log), dt_bias = VIEW(mixer_project, dt_bias);
    const float *open_decay = FLOATS(mixer_project, open_decay);
    float *cum = FLOATS(mixer_project, cum), *decay = cum + args.decay_at;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, keep = args.K - 1, k = lane % team, row = args.inputs / 8;
    const uint32_t share = ceil_div(args.outputs, args.tiles), groups = ceil_div(share, warps * group);
    float v[words][8], rms = 0.0f;
    bool waited = false, there = false;
    FOR_TILES_OF(tile, blocks) {
        const uint32_t begin = tile * share, end = min(begin + share, args.outputs);
        const auto fetch = [&](uint32_t output, uint32_t j) {
            if (output < end) AsyncWeights<words>(shared.weights[warp][j]).fetch(weight, args.weight_at, output, args.outputs, args.inputs, 0);
        };
#pragma unroll
        for (uint32_t j = 0; j < group; j++) fetch(begin + warp * group + j, j);
#pragma unroll 1
        for (uint32_t g = 0; g < groups; g++) {
            const uint32_t first = begin + (g * warps + warp) * group, o = first + lane / team;
            const bool own = lane / team < group && o < end, channel = own && o >= args.first && o - args.first < args.C;
            const bool step = own && (args.flags & HAS_STEPS) && o >= args.first + args.C && o - args.first - args.C < args.H;
            const uint32_t ch = channel ? o - args.first : 0, h = step ? o - args.first - args.C : 0;
            const size_t old = args.tail_at + size_t(k) * args.C + ch, tap = args.taps_at + size_t(ch) * args.K;
            // All loads together, before anything is made of one: what the product is combined with is, of a channel, its last tap and its bias,
            // of a step size a_log and dt_bias.
            const bool past = channel && k < keep, biased = step || (channel && (args.flags & HAS_BIAS)), opens = step && (args.flags & HAS_OPEN);
            const View with = channel ? taps : a_log, more = channel ? bias : dt_bias;
            const uint32_t in_bits = past ? fetch_early(tail, old) : 0, tap_bits = past ? fetch_early(taps, tap + k) : 0;
            const uint32_t last_bits = channel || step ? fetch_early(with, channel ? tap + keep : args.a_log_at + h) : 0;
            const uint32_t offset_bits = biased ? fetch_early(more, channel ? args.bias_at + ch : args.dt_bias_at + h) : 0;
            const float before = opens ? __ldcg(open_decay + h) : 0.0f;
            if (!waited) {
                uint32_t norm_bits[words];
#pragma unroll
                for (uint32_t j = 0; j < words; j++)
                    norm_bits[j] = fetch_early(norm, args.norm_at + min(threadIdx.x + j * block_size, args.inputs - 1));
                there = piece_early(INTS(mixer_project, seq) + args.seq_at, args.flags, 1, 0).count != 0;
#pragma unroll
                for (uint32_t j = 0; j < words; j++)
                    reinterpret_cast<float *>(shared.norms)[threadIdx.x + j * block_size] = value_of(norm_bits[j], norm.dtype);
                __syncthreads();
                predecessors_wait();
                successors_begin();
                waited = true;
#pragma unroll
                for (uint32_t j = 0; j < words; j++) {
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++) v[j][i] = 0.0f;
                    if (lane + 32 * j < row) load8(x, args.x_at + 8 * (lane + 32 * j), v[j]);
                }
#pragma unroll
                for (uint32_t j = 0; j < words; j++) {
                    const float4 early = shared.norms[2 * (lane + 32 * j)], late = shared.norms[2 * (lane + 32 * j) + 1];
                    const float n[8] = {early.x, early.y, early.z, early.w, late.x, late.y, late.z, late.w};
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++) {
                        rms = fmaf(v[j][i], v[j][i], rms);
                        v[j][i] *= n[i];
                    }
                }
                rms = rsqrtf(warp_sum(rms) / float(args.inputs) + args.eps);
            }
            const float in = value_of(in_bits, tail.dtype), offset = value_of(offset_bits, more.dtype), last = value_of(last_bits, with.dtype);
            float sum = value_of(tap_bits, taps.dtype) * in, sums[4] = {};
#pragma unroll
            for (uint32_t apart = 1; apart < team; apart *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            AsyncWeights<words>(shared.weights[warp][0]).landed();
#pragma unroll
            for (uint32_t j = 0; j < group; j++) {
#pragma unroll
                for (uint32_t i = 0; i < words; i++)
                    if (lane + 32 * i < row) multiply_word<bf>(shared.weights[warp][j][lane + 32 * i], v[i], sums[j]);
                if (g + 1 < groups) fetch(first + warps * group + j, j);
            }
            add_halves<2>(sums, 16);
            add_halves<1>(sums, 8);
            float value = sums[0];
#pragma unroll
            for (uint32_t apart = 1; apart < team; apart *= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
            value *= rms;
            if (!there || !own) continue;
            if (past) store(tail, old - (k > 0 ? args.C : 0) + (k > 0 ? 0 : size_t(keep - 1) * args.C), k > 0 ? in : value);
            if (k > 0) continue;
            if (step) {
                const float raw = value + offset;
                const float dt = fminf(fmaxf(raw > 20.0f ? raw : log1pf(expf(raw)), args.dt_min), args.dt_max), log_decay = -expf(last) * dt;
                cum[h * CUM_STRIDE] = log_decay;
                cum[h * CUM_STRIDE + 1] = 0.0f;
                cum[h * CUM_STRIDE + 2] = dt;
                decay[h] = before;
                decay[args.H + h] = log_decay;
            }
            store(y, args.y_at + o, channel ? silu_step(fmaf(last, value, sum + offset)) : value);
        }
    }
    if (!waited) predecessors_wait(); // so that whoever waits for this launch has waited for those before, too
}

template <uint32_t words>
__device__ __forceinline__ void project_words_run(const mixer_project_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks)
{
    ProjectShared<words> &shared = *reinterpret_cast<ProjectShared<words> *>(tensor_memory);
    if (VIEW(mixer_project, weight).dtype == DTYPE_BF16) project_words<true, words>(args, bindings, dtypes, blocks, shared);
    else project_words<false, words>(args, bindings, dtypes, blocks, shared);
}

#endif
