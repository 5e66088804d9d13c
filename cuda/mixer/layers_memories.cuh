// The memories of layers.cu: those that a token sees, their sums by parts, and the merge of a head's parts. Eight threads share a row of a memory.
#ifndef DART_MIXER_LAYERS_MEMORIES_CUH
#define DART_MIXER_LAYERS_MEMORIES_CUH

#include "layers_products.cuh"

struct LayersMemories : LayersProducts {
    using LayersProducts::LayersProducts;
    RingTurn slot; // of what items read

    // The next slot, which is there then. To be released by one thread, once all have read it.
    __device__ __forceinline__ uint32_t take_slot()
    {
        const uint32_t at = slot.at;
        wait_until_there(layers_shared().item_places[at], slot);
        slot.skip(1, layers_slots);
        return at;
    }
    // The last `count` slots.
    __device__ __forceinline__ void release_slots(uint32_t count) const
    {
        for (uint32_t i = 1; i <= count; i++)
            attend::barrier_arrive(attend::shared_address(&layers_shared().item_places[(slot.at + layers_slots - i) % layers_slots].empty));
    }

    // Memories from .. end - 1 of those that head `head` sees. `turn` goes on from call to call.
    template <bool bf> __device__ __forceinline__ void attend_all(uint32_t head, uint32_t from, uint32_t end, uint32_t &turn)
    {
        const uint32_t part = from > 0 ? role().part : 0; // blocks before this one have what is before `from`
        const float *taken = layers_shared().taken;
        const uint32_t t = threadIdx.x, column = t % 8, row = t / 8;
        const float square = t < layers_queries ? taken[t] * taken[t] : 0.0f;
        float e[8], sum[8] = {}, top = lowest, den = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) e[i] = taken[layers_n + 8 * column + i];
#pragma unroll 1
        for (; from < end; from += layers_slots, turn++) {
            const uint32_t count = min(end - from, layers_slots);
            const uint32_t first_slot = slot.at;
            float logits[8] = {};
#pragma unroll 1
            for (uint32_t m = 0; m < count; m++) {
                const uint4 *item = layers_shared().items[take_slot()] + t;
                float logit = 0.0f;
#pragma unroll
                for (uint32_t r = 0; r < layers_rows; r++) {
                    float product = 0.0f;
                    multiply_word<bf>(item[r * layers_threads], e, product);
                    logit = fmaf(taken[row + r * (layers_threads / 8)], product, logit);
                }
#pragma unroll
                for (uint32_t i = 0; i < layers_slots; i++) logits[i] = i == m ? logit : logits[i];
            }
            logits[layers_slots] = t < layers_n ? square : 0.0f;
            logits[layers_slots + 1] = t < layers_n ? 0.0f : square;
            const float total = sum_of_eight_over_all(logits, turn);
            const float q_squares = __shfl_sync(0xffffffffu, total, layers_slots), e_squares = __shfl_sync(0xffffffffu, total, layers_slots + 1);
            const float scale = rsqrtf(q_squares / float(layers_n) + args.sma_eps) * rsqrtf(e_squares / float(layers_p) + args.sma_eps) *
                                rsqrtf(float(layers_n));
            float now = top;
#pragma unroll 1
            for (uint32_t m = 0; m < count; m++) now = fmaxf(now, scale * __shfl_sync(0xffffffffu, total, m));
            const float keep = exp_below(top - now);
            den *= keep;
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) sum[i] *= keep;
#pragma unroll 1
            for (uint32_t m = 0; m < count; m++) {
                const uint32_t at = (first_slot + m) % layers_slots;
                const float gain = exp_below(scale * __shfl_sync(0xffffffffu, total, m) - now);
                den += gain;
#pragma unroll
                for (uint32_t r = 0; r < layers_rows; r++) {
                    const uint32_t n = row + r * (layers_threads / 8);
                    const float weight = gain * taken[layers_queries + n] * layers_shared().scales[at][n];
                    float v[8];
                    unpack8({layers_shared().items[at][t + r * layers_threads], {}}, bf ? DTYPE_BF16 : DTYPE_F16, v);
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++) sum[i] = fmaf(weight, v[i], sum[i]);
                }
            }
            top = now;
            meet();
            if (t == 0) release_slots(count);
        }
        // Lanes of the same columns add up by halves: first each keeps four of eight columns, then two of four.
        const bool upper = lane & 8, right = lane & 16;
        float four[4], two[2];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) four[i] = (upper ? sum[4 + i] : sum[i]) + __shfl_xor_sync(0xffffffffu, upper ? sum[i] : sum[4 + i], 8);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) two[i] = (right ? four[2 + i] : four[i]) + __shfl_xor_sync(0xffffffffu, right ? four[i] : four[2 + i], 16);
        reinterpret_cast<float2 *>(layers_shared().found)[(warp * layers_p + 8 * column + (upper ? 4 : 0) + (right ? 2 : 0)) / 2] =
            make_float2(two[0], two[1]);
        meet();
        const uint32_t to = partial_posts() + (head * (args.splits + 1) + part) * layers_partial;
        if (t < layers_p) {
            float total = 0.0f;
#pragma unroll
            for (uint32_t w = 0; w < layers_warps; w++) total += layers_shared().found[w * layers_p + t];
            post(to + t, total);
        }
        if (t == layers_p) post(to + t, top);
        if (t == layers_p + 1) post(to + t, den);
    }
    __device__ __forceinline__ void attend()
    {
        uint32_t turn = 0;
        each_head([&](uint32_t head, uint32_t from, uint32_t end) {
            if (dh_dtype == DTYPE_BF16) attend_all<true>(head, from, end, turn);
            else attend_all<false>(head, from, end, turn);
        });
    }

    // Waits for the sums of parts of the memories of this block's head, whose scan left its output and gates, and posts the gated row.
    __device__ __forceinline__ void merge() const
    {
        const uint32_t t = threadIdx.x, head = role().head, count = role().parts;
        float *parts = layers_shared().parts;
        for (uint32_t i = t; i < count * layers_partial; i += layers_threads)
            parts[i] = take(partial_posts() + head * (args.splits + 1) * layers_partial + i);
        meet();
        if (t >= layers_p) return;
        float top = lowest, sum = 0.0f, den = 0.0f;
        for (uint32_t k = 0; k < count; k++)
            if (parts[k * layers_partial + layers_p + 1] > 0.0f) top = fmaxf(top, parts[k * layers_partial + layers_p]);
        for (uint32_t k = 0; k < count; k++) {
            if (!(parts[k * layers_partial + layers_p + 1] > 0.0f)) continue;
            const float gain = exp_below(parts[k * layers_partial + layers_p] - top);
            sum = fmaf(gain, parts[k * layers_partial + t], sum);
            den = fmaf(gain, parts[k * layers_partial + layers_p + 1], den);
        }
        const float r = den > 0.0f ? sum / den : 0.0f, *gates = layers_shared().gates;
        post(y_posts() + head * layers_p + t, fmaf(gates[layers_p], r, layers_shared().outputs[t]) * gates[t]);
    }
};

#endif
