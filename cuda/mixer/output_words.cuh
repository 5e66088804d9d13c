// mixer_output of one row with 16-bit weights: every multiprocessor has one block, which makes an even share of the outputs (args.tiles is the number
// of shares); a warp multiplies slices of 1,536 inputs, `slices` a row. Weights are fetched and SiLU(z) and SiLU(gate) made before the launch before,
// which makes y and the partials, has ended. All threads of a block make the inputs, in pairs, beside eight threads a head that find what the
// partials count for. Shared memory: 34.2 KiB, wide 88.1 KiB, weights but for 10 and 16 KiB.
#ifndef DART_MIXER_OUTPUT_WORDS_CUH
#define DART_MIXER_OUTPUT_WORDS_CUH

#include "lib/one_row.cuh"

constexpr uint32_t output_slice = 1536, output_factors = 1024; // inputs; heads times splits

// room: the slices of a warp that are under way together.
template <uint32_t slices> struct OutputShared {
    static constexpr uint32_t room = slices == 1 ? 1 : 3;
    uint4 weights[warps][room][output_slice / 8];
    float4 u[slices * output_slice / 4];
    float factors[output_factors], squares[warps], parts[warps * room];
};

// factors[s heads + h] = gate exp(top_s - T) / sum_s exp(top_s - T) den_s of a head, 0 of partials without memories. Eight threads a head.
__device__ __forceinline__ void partial_factors(const float *partial, uint32_t P, uint32_t heads, uint32_t splits, float gate, float *factors)
{
    constexpr uint32_t ahead = 4, team = 8; // splits of a thread that are in flight together
    const uint32_t pitch = heads * (P + 4);
#pragma unroll 1
    for (uint32_t h0 = 0; h0 < heads; h0 += block_size / team) {
        const uint32_t h = h0 + threadIdx.x / team, own = threadIdx.x % team;
        const uint32_t ends = min(h, heads - 1) * (P + 4) + P;
        float top = lowest, den = 0.0f;
#pragma unroll 1
        for (uint32_t s0 = own; s0 < splits; s0 += ahead * team) {
            float2 end[ahead];
            float now = top;
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) {
                const uint32_t s = s0 + k * team;
                end[k] = s < splits ? *reinterpret_cast<const float2 *>(partial + (ends + s * pitch)) : make_float2(lowest, 0.0f);
                if (!(end[k].y > 0.0f)) end[k] = make_float2(lowest, 0.0f);
                now = fmaxf(now, end[k].x);
                if (h < heads && s < splits) factors[s * heads + h] = end[k].x;
            }
            den *= exp_below(top - now);
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) den = fmaf(exp_below(end[k].x - now), end[k].y, den);
            top = now;
        }
        float all = top;
        for (uint32_t apart = 1; apart < team; apart *= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, apart));
        den *= exp_below(top - all);
        for (uint32_t apart = 1; apart < team; apart *= 2) den += __shfl_xor_sync(0xffffffffu, den, apart);
        const float scale = den > 0.0f ? __fdividef(gate, den) : 0.0f;
#pragma unroll 1
        for (uint32_t s = own; s < splits && h < heads; s += team) {
            const float end = factors[s * heads + h];
            factors[s * heads + h] = end > lowest ? scale * exp_below(end - all) : 0.0f;
        }
    }
}

template <bool bf, uint32_t slices>
__device__ __forceinline__ void output_words(const mixer_output_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks,
                                             OutputShared<slices> &shared)
{
    constexpr uint32_t words = output_slice / 256, turns = slices * output_slice / (2 * block_size); // a turn: a pair of inputs a thread
    constexpr uint32_t room = OutputShared<slices>::room, most = warps * room / slices, ahead = 4;   // outputs of a block at a time; splits
    const View norm = VIEW(mixer_output, norm), weight = VIEW(mixer_output, weight);
    const float *y = FLOATS(mixer_output, y) + args.y_at, *z = FLOATS(mixer_output, z) + args.z_at, *partial = FLOATS(mixer_output, partial);
    float *x = FLOATS(mixer_output, x) + args.x_at, *u = reinterpret_cast<float *>(shared.u);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, P = args.P, heads = args.inputs / P;
    const uint32_t splits = args.flags & HAS_SMA ? args.splits : 0;
    const uint32_t pitch = heads * (P + 4), share = ceil_div(args.outputs, args.tiles);
    bool waited = false, there = false;
    float scale = 0.0f;
    FOR_TILES_OF(tile, blocks) {
        const uint32_t begin = tile * share, end = min(begin + share, args.outputs);
#pragma unroll 1
        for (uint32_t first = begin; first < begin + share; first += most) {
            // Part i of the block: slice i % slices of output first + i / slices. A warp has parts warp, warp + warps, ...
            const uint32_t o = first + threadIdx.x;
            const bool own = threadIdx.x < most && o < end; // finished by this thread
#pragma unroll
            for (uint32_t k = 0; k < room; k++) {
                const uint32_t part = warp + k * warps, output = first + part / slices;
                if (output < end)
                    AsyncWeights<words>(shared.weights[warp][k])
                        .fetch(weight, args.weight_at, output, args.outputs, args.inputs, part % slices * (output_slice / 8));
            }
            const float before = own ? __ldcg(x + o) : 0.0f;
            if (!waited) {
                uint32_t own_head[turns], own_at[turns]; // in partial
                float2 open[turns];                      // SiLU(z); u has SiLU(z) norm until y is there
                uint2 norm_bits[turns];
                // All loads together, before anything is made of one.
                float gate = splits > 0 ? __ldcg(FLOATS(mixer_output, gate) + args.gate_at) : 0.0f;
#pragma unroll
                for (uint32_t j = 0; j < turns; j++) {
                    const uint32_t i = min(2 * (threadIdx.x + j * block_size), args.inputs - 2);
                    open[j] = __ldcg(reinterpret_cast<const float2 *>(z + i));
                    norm_bits[j] = fetch_pair_early(norm, args.norm_at + i);
                    own_head[j] = i / P;
                    own_at[j] = own_head[j] * (P + 4) + i % P;
                }
                there = piece_early(INTS(mixer_output, seq) + args.seq_at, args.flags, 1, 0).count != 0;
                gate = silu_step(gate);
#pragma unroll
                for (uint32_t j = 0; j < turns; j++) {
                    const uint32_t i = 2 * (threadIdx.x + j * block_size);
                    const float2 gain = pair_of(norm_bits[j], norm.dtype);
                    open[j] = make_float2(silu_step(open[j].x), silu_step(open[j].y));
                    if (i < args.inputs) reinterpret_cast<float2 *>(u)[i / 2] = make_float2(open[j].x * gain.x, open[j].y * gain.y);
                }
                predecessors_wait();
                successors_begin();
                waited = true;
                // Of `ahead` splits together, the first ones on their way beside what gives their weights.
                float2 v[turns], acc[turns][ahead];
                const auto fetch = [&](uint32_t s0) {
#pragma unroll
                    for (uint32_t j = 0; j < turns; j++)
#pragma unroll
                        for (uint32_t k = 0; k < ahead; k++)
                            acc[j][k] = *reinterpret_cast<const float2 *>(partial + (own_at[j] + min(s0 + k, splits - 1) * pitch));
                };
#pragma unroll
                for (uint32_t j = 0; j < turns; j++) {
                    const uint32_t i = min(2 * (threadIdx.x + j * block_size), args.inputs - 2);
                    v[j] = *reinterpret_cast<const float2 *>(y + i);
                }
                if (splits > 0) {
                    fetch(0);
                    partial_factors(partial, P, heads, splits, gate, shared.factors);
                    __syncthreads();
                }
#pragma unroll 1
                for (uint32_t s0 = 0; s0 < splits; s0 += ahead) {
#pragma unroll
                    for (uint32_t j = 0; j < turns; j++) {
#pragma unroll
                        for (uint32_t k = 0; k < ahead; k++) {
                            const float factor = s0 + k < splits ? shared.factors[(s0 + k) * heads + own_head[j]] : 0.0f;
                            if (factor != 0.0f) v[j] = make_float2(fmaf(factor, acc[j][k].x, v[j].x), fmaf(factor, acc[j][k].y, v[j].y));
                        }
                    }
                    if (s0 + ahead < splits) fetch(s0 + ahead);
                }
                float square = 0.0f;
#pragma unroll
                for (uint32_t j = 0; j < turns; j++) {
                    const uint32_t i = 2 * (threadIdx.x + j * block_size);
                    if (i >= args.inputs) continue;
                    const float2 gain = reinterpret_cast<const float2 *>(u)[i / 2], opened = make_float2(v[j].x * open[j].x, v[j].y * open[j].y);
                    square = fmaf(opened.x, opened.x, fmaf(opened.y, opened.y, square));
                    reinterpret_cast<float2 *>(u)[i / 2] = make_float2(v[j].x * gain.x, v[j].y * gain.y);
                }
                square = warp_sum(square);
                if (lane == 0) shared.squares[warp] = square;
                __syncthreads();
                for (uint32_t w = 0; w < warps; w++) scale += shared.squares[w];
                scale = rsqrtf(scale / float(args.inputs) + args.eps);
            }
            AsyncWeights<words>(shared.weights[warp][0]).landed();
#pragma unroll
            for (uint32_t k = 0; k < room; k++) {
                const uint32_t part = warp + k * warps, at = part % slices * (output_slice / 8);
                float sum = 0.0f;
#pragma unroll
                for (uint32_t j = 0; j < words; j++) {
                    const uint32_t i = at + lane + 32 * j;
                    if (i >= args.inputs / 8) continue;
                    const float4 low = shared.u[2 * i], high = shared.u[2 * i + 1];
                    const float in[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                    multiply_word<bf>(shared.weights[warp][k][lane + 32 * j], in, sum);
                }
                sum = warp_sum(sum);
                if (lane == 0) shared.parts[part] = sum;
            }
            __syncthreads();
            if (own && there) {
                float sum = shared.parts[threadIdx.x * slices];
                if (slices > 1) sum += shared.parts[threadIdx.x * slices + 1];
                x[o] = fmaf(sum, scale, before);
            }
            __syncthreads();
        }
    }
    if (!waited) predecessors_wait();
}

template <uint32_t slices>
__device__ __forceinline__ void output_words_run(const mixer_output_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks)
{
    OutputShared<slices> &shared = *reinterpret_cast<OutputShared<slices> *>(tensor_memory);
    if (VIEW(mixer_output, weight).dtype == DTYPE_BF16) output_words<true, slices>(args, bindings, dtypes, blocks, shared);
    else output_words<false, slices>(args, bindings, dtypes, blocks, shared);
}

#endif
