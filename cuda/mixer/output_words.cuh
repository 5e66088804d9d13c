// mixer_output of one row with 16-bit weights: a warp makes an output of up to 1,536 inputs, or two warps two outputs of up to 3,072, half each.
// Weights are fetched and SiLU(z) and SiLU(gate) made before the launch before, which makes y and the partials, has ended. All threads of a block
// make the inputs, in pairs, beside eight threads a head that find what the partials count for. Shared memory: 40.2 KiB, weights among it.
#ifndef DART_MIXER_OUTPUT_WORDS_CUH
#define DART_MIXER_OUTPUT_WORDS_CUH

#include "lib/one_row.cuh"

constexpr uint32_t output_slice = 1536, output_most = 2 * output_slice, output_factors = 1024; // inputs of a warp, of a row; heads times splits

struct OutputWordsShared {
    float4 u[output_most / 4];
    uint4 weights[warps][output_slice / 8];
    float factors[output_factors], squares[warps], parts[2][warps][2];
};

// factors[s heads + h] = gate exp(top_s - T) / sum_s exp(top_s - T) den_s of a head, 0 of partials without memories. Eight threads a head.
__device__ __forceinline__ void partial_factors(const float *partial, uint32_t P, uint32_t heads, uint32_t splits, float gate, float *factors)
{
    constexpr uint32_t ahead = 4, team = 8; // splits of a thread that are in flight together
    const uint32_t pitch = heads * (P + 4);
    for (uint32_t h0 = 0; h0 < heads; h0 += block_size / team) {
        const uint32_t h = h0 + threadIdx.x / team, own = threadIdx.x % team;
        const uint32_t ends = min(h, heads - 1) * (P + 4) + P;
        float top = lowest, den = 0.0f;
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
        const float scale = den > 0.0f ? gate / den : 0.0f;
        for (uint32_t s = own; s < splits && h < heads; s += team) {
            const float end = factors[s * heads + h];
            factors[s * heads + h] = end > lowest ? scale * exp_below(end - all) : 0.0f;
        }
    }
}

template <bool bf, uint32_t share>
__device__ __forceinline__ void output_words(const mixer_output_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks,
                                             OutputWordsShared &shared)
{
    constexpr uint32_t words = output_slice / 256, turns = share * output_slice / (2 * block_size); // a turn: a pair of inputs a thread
    constexpr uint32_t ahead = share == 1 ? 4 : 1;                                                  // splits
    const View norm = VIEW(mixer_output, norm), weight = VIEW(mixer_output, weight);
    const float *y = FLOATS(mixer_output, y) + args.y_at, *z = FLOATS(mixer_output, z) + args.z_at, *partial = FLOATS(mixer_output, partial);
    float *x = FLOATS(mixer_output, x) + args.x_at, *u = reinterpret_cast<float *>(shared.u);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, P = args.P, heads = args.inputs / P;
    const uint32_t splits = args.flags & HAS_SMA ? args.splits : 0;
    const uint32_t slice = warp % share, word = slice * (output_slice / 8) + lane;
    const uint32_t pitch = heads * (P + 4);
    const bool there = piece_early(INTS(mixer_output, seq) + args.seq_at, args.flags, 1, 0).count != 0;
    bool waited = false;
    uint32_t turn = 0;
    float scale = 0.0f;
    FOR_TILES_OF(tile, blocks) {
        const uint32_t o = tile * warps + warp; // the one that the warp finishes
        AsyncWeights<words> weights(shared.weights[warp]);
        weights.fetch(weight, args.weight_at, o - slice, args.outputs, args.inputs, word - lane);
#pragma unroll
        for (uint32_t k = 1; k < share; k++)
            RowWeights<1, words>::announce(weight, args.weight_at, o - slice + k, args.outputs, args.inputs, word - lane);
        const float before = o < args.outputs ? __ldcg(x + o) : 0.0f;
        if (!waited) {
            const float gate = splits > 0 ? silu(__ldcg(FLOATS(mixer_output, gate) + args.gate_at)) : 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < turns; j++) {
                const uint32_t i = 2 * (threadIdx.x + j * block_size);
                if (i < args.inputs) reinterpret_cast<float2 *>(u)[i / 2] = make_float2(silu(__ldcg(z + i)), silu(__ldcg(z + i + 1)));
            }
            uint32_t own_head[turns], own_at[turns]; // in partial
#pragma unroll
            for (uint32_t j = 0; j < turns; j++) {
                const uint32_t i = min(2 * (threadIdx.x + j * block_size), args.inputs - 2);
                own_head[j] = i / P;
                own_at[j] = own_head[j] * (P + 4) + i % P;
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
                v[j] = make_float2(y[i], y[i + 1]);
            }
            if (splits > 0) {
                fetch(0);
                partial_factors(partial, P, heads, splits, gate, shared.factors);
                __syncthreads();
            }
            for (uint32_t s0 = 0; s0 < splits; s0 += ahead) {
#pragma unroll
                for (uint32_t j = 0; j < turns; j++) {
#pragma unroll
                    for (uint32_t k = 0; k < ahead; k++) {
                        const float own = s0 + k < splits ? shared.factors[(s0 + k) * heads + own_head[j]] : 0.0f;
                        if (own != 0.0f) v[j] = make_float2(fmaf(own, acc[j][k].x, v[j].x), fmaf(own, acc[j][k].y, v[j].y));
                    }
                }
                if (s0 + ahead < splits) fetch(s0 + ahead);
            }
            float square = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < turns; j++) {
                const uint32_t i = 2 * (threadIdx.x + j * block_size);
                if (i >= args.inputs) continue;
                const float2 open = reinterpret_cast<const float2 *>(u)[i / 2];
                v[j] = make_float2(v[j].x * open.x, v[j].y * open.y);
                square = fmaf(v[j].x, v[j].x, fmaf(v[j].y, v[j].y, square));
                reinterpret_cast<float2 *>(u)[i / 2] =
                    make_float2(v[j].x * load(norm, args.norm_at + i), v[j].y * load(norm, args.norm_at + i + 1));
            }
            square = warp_sum(square);
            if (lane == 0) shared.squares[warp] = square;
            __syncthreads();
            for (uint32_t w = 0; w < warps; w++) scale += shared.squares[w];
            scale = 1.0f / sqrtf(scale / float(args.inputs) + args.eps);
        }
        float sums[share];
#pragma unroll
        for (uint32_t k = 0; k < share; k++) {
            float own_sum = 0.0f;
            if (k > 0) weights.fetch(weight, args.weight_at, o - slice + k, args.outputs, args.inputs, word - lane);
            weights.landed();
#pragma unroll
            for (uint32_t j = 0; j < words; j++) {
                const uint32_t i = word + 32 * j;
                if (i >= args.inputs / 8) continue;
                const float4 low = shared.u[2 * i], high = shared.u[2 * i + 1];
                const float own[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                multiply_word<bf>(weights.own[32 * j], own, own_sum);
            }
            sums[k] = warp_sum(own_sum);
        }
        float sum = sums[0];
        if constexpr (share > 1) {
            float(*parts)[2] = shared.parts[turn];
            turn ^= 1;
            if (lane == 0) parts[warp][0] = sums[0], parts[warp][1] = sums[1];
            __syncthreads();
            sum = parts[warp - slice][slice] + parts[warp - slice + 1][slice];
        }
        if (lane == 0 && there && o < args.outputs) x[o] = fmaf(sum, scale, before);
    }
    if (!waited) predecessors_wait();
}

__device__ __forceinline__ void output_words_run(const mixer_output_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks)
{
    __shared__ OutputWordsShared shared;
    const bool bf = VIEW(mixer_output, weight).dtype == DTYPE_BF16;
    if (args.inputs <= output_slice) {
        if (bf) output_words<true, 1>(args, bindings, dtypes, blocks, shared);
        else output_words<false, 1>(args, bindings, dtypes, blocks, shared);
    } else {
        if (bf) output_words<true, 2>(args, bindings, dtypes, blocks, shared);
        else output_words<false, 2>(args, bindings, dtypes, blocks, shared);
    }
}

#endif
