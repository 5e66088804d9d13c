// The scan of layers.cu: the state of a head, what closes, and the gated output. Sixteen threads share a row of a state.
#ifndef DART_MIXER_LAYERS_SCAN_CUH
#define DART_MIXER_LAYERS_SCAN_CUH

#include "layers_memories.cuh"

struct LayersScan : LayersMemories {
    using LayersMemories::LayersMemories;
    const bool closes = has_open && (position + 1) % args.S == 0;
    float a_log, step_bias, skip, before; // of the head

    __device__ __forceinline__ void fetch_head(uint32_t layer)
    {
        a_log = ask_float(at<const float>(layer, PLACE_A_LOG) + role().head);
        step_bias = ask_float(at<const float>(layer, PLACE_DT_BIAS) + role().head);
        skip = ask_float(at<const float>(layer, PLACE_D) + role().head);
        before = has_open ? ask_float(at<const float>(layer, PLACE_OPEN_DECAY) + role().head) : 0.0f;
    }

    // Of the chunk that closes: the memory of a head goes to its run. Threads hold rows n = threadIdx.x / 16 + layers_threads / 16 r.
    __device__ __forceinline__ void append(uint32_t layer, const float4 (&opens)[layers_state_rows]) const
    {
        const uint32_t m = position / args.S, word = threadIdx.x % 16;
        for (uint32_t c = 0; c < args.closing; c++) {
            const uint2 run = layers_shared().runs[MIXER_RUNS + c];
            if (m < run.x || m - run.x >= run.y) continue;
            const size_t first = (size_t(m - run.x) * H + role().head) * layers_n;
            const View to = {at<char>(layer, PLACE_CLOSING + 2 * c), dh_dtype};
            float *sizes = at<float>(layer, PLACE_CLOSING + 2 * c + 1);
#pragma unroll
            for (uint32_t r = 0; r < layers_state_rows; r++) {
                const float4 open = opens[r];
                float squares = open.x * open.x + open.y * open.y + open.z * open.z + open.w * open.w;
#pragma unroll
                for (uint32_t apart = 8; apart > 0; apart /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, apart);
                const float size = sqrtf(squares / float(layers_p) + args.sma_eps);
                const size_t n = first + threadIdx.x / 16 + layers_threads / 16 * r, at = n * layers_p + 4 * word;
                if (word == 0) sizes[n] = size;
                store4(to, at, make_float4(open.x / size, open.y / size, open.z / size, open.w / size));
            }
        }
    }

    // Row r of those that a thread has of a state whose halves are there.
    static __device__ __forceinline__ float4 half_of(const uint4 *const *halves, uint32_t r)
    {
        constexpr uint32_t in_half = layers_state_rows / 2;
        return unpack4(halves[r / in_half][r % in_half * layers_threads], DTYPE_F32);
    }

    // Makes of what this thread has gathered what the scan takes: SiLU of z and of the gate; of the step its size, what open and h are multiplied by,
    // and the decay since the chunk began.
    __device__ __forceinline__ void prepare() const
    {
        float *taken = layers_shared().taken;
        const uint32_t t = threadIdx.x;
        if (t < layers_p || (has_open && t == layers_step + 1)) taken[t] = silu_step(taken[t]);
        if (t != layers_step) return;
        const float raw = taken[layers_step] + step_bias;
        const float step = fminf(fmaxf(fmaxf(raw, 0.0f) + log1pf(expf(-fabsf(raw))), args.dt_min), args.dt_max);
        const float decay = -expf(a_log) * step;
        taken[layers_step] = step;
        taken[layers_step + 2] = exp_below(decay);
        taken[layers_step + 3] = exp_below(before + decay);
        taken[layers_step + 4] = before + decay;
    }

    // The scan of this block's head. Its output goes to y or, where memories are merged with it, to what merge() takes.
    __device__ __forceinline__ void scan(uint32_t layer)
    {
        const float *taken = layers_shared().taken;
        const uint32_t t = threadIdx.x, word = t % 16, row = t / 16, head = role().head;
        const float step = taken[layers_step], keep_open = taken[layers_step + 2], keep_h = taken[layers_step + 3];
        float x[4], sum[4] = {};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) x[i] = step * taken[layers_p + 4 * word + i];
        const uint4 *words[4]; // of h and open, in halves
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) words[i] = i < 2 || has_open ? layers_shared().items[take_slot()] + t : nullptr;
        float4 opens[layers_state_rows];
#pragma unroll
        for (uint32_t r = 0; r < layers_state_rows; r++) {
            const uint32_t n = row + layers_threads / 16 * r;
            const float key = taken[2 * layers_p + n], read = taken[2 * layers_p + layers_n + n];
            const float4 was_h = half_of(words, r), was_open = has_open ? half_of(words + 2, r) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float4 open;
            open.x = fmaf(keep_open, was_open.x, key * x[0]);
            open.y = fmaf(keep_open, was_open.y, key * x[1]);
            open.z = fmaf(keep_open, was_open.z, key * x[2]);
            open.w = fmaf(keep_open, was_open.w, key * x[3]);
            sum[0] = fmaf(read, fmaf(keep_h, was_h.x, open.x), sum[0]);
            sum[1] = fmaf(read, fmaf(keep_h, was_h.y, open.y), sum[1]);
            sum[2] = fmaf(read, fmaf(keep_h, was_h.z, open.z), sum[2]);
            sum[3] = fmaf(read, fmaf(keep_h, was_h.w, open.w), sum[3]);
            opens[r] = open;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 16);
        if (lane < 16) reinterpret_cast<float4 *>(layers_shared().found)[warp * 16 + word] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        meet();
        if (t == 0 && has_open && !closes) release_slots(4); // all threads have read them
        float y = 0.0f;
        if (t < layers_p) {
            y = skip * taken[layers_p + t];
#pragma unroll
            for (uint32_t w = 0; w < layers_warps; w++) y += layers_shared().found[w * layers_p + t];
        }
        if (t < layers_p && attends == 0) post(y_posts() + head * layers_p + t, y * taken[t]);
        if (t < layers_p && attends > 0) {
            layers_shared().outputs[t] = y;
            layers_shared().gates[t] = taken[t];
            if (t == 0) layers_shared().gates[layers_p] = taken[layers_step + 1];
        }
        // What nobody waits for.
        float4 *to_open = at<float4>(layer, PLACE_OPEN), *to_h = at<float4>(layer, PLACE_H);
#pragma unroll
        for (uint32_t r = 0; r < layers_state_rows; r++) {
            const size_t at = (size_t(head) * layers_state_rows + r) * layers_threads + t;
            const float4 was_h = half_of(words, r), open = opens[r];
            if (has_open) to_open[at] = closes ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : open;
            if (closes || !has_open)
                to_h[at] = make_float4(fmaf(keep_h, was_h.x, open.x), fmaf(keep_h, was_h.y, open.y), fmaf(keep_h, was_h.z, open.z),
                                       fmaf(keep_h, was_h.w, open.w));
        }
        if (closes) append(layer, opens);
        if (has_open && t == 0) at<float>(layer, PLACE_OPEN_DECAY)[head] = closes ? 0.0f : taken[layers_step + 4];
        if (has_open && !closes) return;
        meet();
        if (t == 0) release_slots(has_open ? 4 : 2);
    }
};

#endif
