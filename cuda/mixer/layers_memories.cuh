// The memories of layers.cu: those that a token sees, their sums by splits, and the merge of a head's splits. Eight threads share a row of a memory.
#ifndef DART_MIXER_LAYERS_MEMORIES_CUH
#define DART_MIXER_LAYERS_MEMORIES_CUH

#include "layers_products.cuh"

template <uint32_t chunks> struct LayersMemories : LayersProducts<chunks> {
    // Memories that the token sees of a run.
    __device__ __forceinline__ uint32_t seen_of(uint32_t run) const
    {
        const uint32_t seen = this->position / this->args.S;
        const uint2 of = this->shared.runs[run];
        return seen > of.x ? min(seen - of.x, of.y) : 0;
    }
    // Memories j, j + 1 of those below `end` that the token sees, of all runs.
    __device__ __forceinline__ void fetch_pair(uint32_t layer, uint32_t head, uint32_t j, uint32_t end)
    {
        if (j >= end) return;
#pragma unroll
        for (uint32_t m = 0; m < layers_pair; m++) {
            uint32_t run = 0, number = min(j + m, end - 1);
            while (run + 1 < this->args.runs && number >= seen_of(run)) number -= seen_of(run++);
            const size_t at = size_t(number) * this->H + head;
            const uint4 *memory = this->template at<const uint4>(layer, PLACE_RUNS + 2 * run) + at * (layers_n * layers_p / 8) + threadIdx.x;
            const float *scales = this->template at<const float>(layer, PLACE_RUNS + 2 * run + 1) + at * layers_n + threadIdx.x / 8;
#pragma unroll
            for (uint32_t r = 0; r < layers_rows; r++) {
                this->own[m * layers_rows + r] = fetch_state_word(memory + r * block_size);
                this->factors[m * layers_rows + r] = __ldcg(scales + r * (block_size / 8));
            }
        }
    }

    // The memories j .. end - 1 of those that head `head` sees, the first two of them fetched already.
    template <bool bf> __device__ __forceinline__ void attend_all(uint32_t layer, uint32_t head, uint32_t split, uint32_t j, uint32_t end)
    {
        const float *taken = this->shared.taken;
        const uint32_t t = threadIdx.x, column = t % 8, row = t / 8, lane = this->lane;
        const float square = t < layers_queries ? taken[t] * taken[t] : 0.0f;
        float e[8], sum[8] = {}, top = lowest, den = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) e[i] = taken[layers_n + 8 * column + i];
#pragma unroll 1
        for (uint32_t from = j; from < end; from += layers_pair) {
            float logits[layers_pair] = {};
#pragma unroll
            for (uint32_t m = 0; m < layers_pair; m++) {
#pragma unroll
                for (uint32_t r = 0; r < layers_rows; r++) {
                    float product = 0.0f;
                    multiply_word<bf>(this->own[m * layers_rows + r], e, product);
                    logits[m] = fmaf(taken[row + r * (block_size / 8)], product, logits[m]);
                }
            }
            const float4 sums = this->sum_of_four(make_float4(logits[0], logits[1], t < layers_n ? square : 0.0f, t < layers_n ? 0.0f : square));
            const float scale = rsqrtf(sums.z / float(layers_n) + this->args.sma_eps) * rsqrtf(sums.w / float(layers_p) + this->args.sma_eps) *
                                rsqrtf(float(layers_n));
            const float keys[layers_pair] = {scale * sums.x, scale * sums.y};
            float now = top;
#pragma unroll
            for (uint32_t m = 0; m < layers_pair; m++) now = from + m < end ? fmaxf(now, keys[m]) : now;
            const float keep = exp_below(top - now);
            den *= keep;
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) sum[i] *= keep;
#pragma unroll
            for (uint32_t m = 0; m < layers_pair; m++) {
                const float gain = from + m < end ? exp_below(keys[m] - now) : 0.0f;
                den += gain;
#pragma unroll
                for (uint32_t r = 0; r < layers_rows; r++) {
                    const float weight = gain * taken[layers_queries + row + r * (block_size / 8)] * this->factors[m * layers_rows + r];
                    float v[8];
                    unpack8({this->own[m * layers_rows + r], {}}, bf ? DTYPE_BF16 : DTYPE_F16, v);
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++) sum[i] = fmaf(weight, v[i], sum[i]);
                }
            }
            top = now;
            fetch_pair(layer, head, from + layers_pair, end);
        }
        // Lanes of the same columns add up by halves: first each keeps four of eight columns, then two of four.
        const bool upper = lane & 8, right = lane & 16;
        float four[4], two[2];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) four[i] = (upper ? sum[4 + i] : sum[i]) + __shfl_xor_sync(0xffffffffu, upper ? sum[i] : sum[4 + i], 8);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) two[i] = (right ? four[2 + i] : four[i]) + __shfl_xor_sync(0xffffffffu, right ? four[i] : four[2 + i], 16);
        reinterpret_cast<float2 *>(this->shared.found)[(this->warp * layers_p + 8 * column + (upper ? 4 : 0) + (right ? 2 : 0)) / 2] =
            make_float2(two[0], two[1]);
        __syncthreads();
        const uint32_t to = this->partial_posts() + (head * this->args.splits + split) * layers_partial;
        if (t < layers_p) {
            float total = 0.0f;
#pragma unroll
            for (uint32_t w = 0; w < warps; w++) total += this->shared.found[w * layers_p + t];
            this->post(to + t, total);
        }
        if (t == layers_p) this->post(to + t, top);
        if (t == layers_p + 1) this->post(to + t, den);
    }
    __device__ __forceinline__ void attend(uint32_t layer, uint32_t head, uint32_t split, uint32_t j, uint32_t end)
    {
        if (this->dh_dtype == DTYPE_BF16) attend_all<true>(layer, head, split, j, end);
        else attend_all<false>(layer, head, split, j, end);
    }

    // r of column threadIdx.x of a head, in the first P threads.
    __device__ __forceinline__ float merged(uint32_t head) const
    {
        float *parts = this->shared.parts;
        const uint32_t t = threadIdx.x, next = t + block_size, count = this->args.splits * layers_partial;
        const uint32_t from = this->partial_posts() + head * count;
        if (t < count) {
            const float2 values = this->take(from + t, from + (next < count ? next : t));
            parts[t] = values.x;
            if (next < count) parts[next] = values.y;
        }
        __syncthreads();
        float top = lowest, sum = 0.0f, den = 0.0f;
        if (t >= layers_p) return 0.0f;
        for (uint32_t k = 0; k < this->args.splits; k++)
            if (parts[k * layers_partial + layers_p + 1] > 0.0f) top = fmaxf(top, parts[k * layers_partial + layers_p]);
        for (uint32_t k = 0; k < this->args.splits; k++) {
            if (!(parts[k * layers_partial + layers_p + 1] > 0.0f)) continue;
            const float gain = exp_below(parts[k * layers_partial + layers_p] - top);
            sum = fmaf(gain, parts[k * layers_partial + t], sum);
            den = fmaf(gain, parts[k * layers_partial + layers_p + 1], den);
        }
        return den > 0.0f ? sum / den : 0.0f;
    }
};

#endif
