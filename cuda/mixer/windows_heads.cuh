// The heads of windows.cu: a warp has a head of its block's sequence, its state before the window, the tokens of the window, and its memories. Eight
// lanes share a row of 64 columns, so that a lane has columns 8 (lane % 8) .. of rows lane / 8, lane / 8 + 4, ...
#ifndef DART_MIXER_WINDOWS_HEADS_CUH
#define DART_MIXER_WINDOWS_HEADS_CUH

#include "windows_products.cuh"

struct WindowsHeads : WindowsProducts {
    using WindowsProducts::WindowsProducts;
    // Of this warp's head: {log-decay, step} of slot `lane` of the window; D; the norm and SiLU of z of columns own_column() and the next.
    float2 step, norm, z;
    float skip;
    uint4 x[WINDOW / 4]; // eight columns of its x of slots lane / 8, lane / 8 + 4, ...

    __device__ __forceinline__ bool has_head() const { return shape().has_heads && warp < shape().heads; }
    __device__ __forceinline__ uint32_t head() const { return shape().first_head + warp; }
    // Of the two columns that a lane has in the end.
    __device__ __forceinline__ uint32_t own_column() const { return lane % 8 * 8 + (lane & 8 ? 4 : 0) + (lane & 16 ? 2 : 0); }
    __device__ __forceinline__ size_t own_number() const { return size_t(shape().b) * width() + head() * windows_p + own_column(); }
    __device__ __forceinline__ const float2 *step_at(uint32_t layer) const
    {
        return reinterpret_cast<const float2 *>(at<char>(layer, PLACE_STEPS)) + (size_t(shape().b) * WINDOW + lane) * args.H + head();
    }
    // What is of earlier steps for this warp's head: x of the window, steps, D and the norm. Then what this layer's products make: of this token x,
    // the step and z for this warp's head; for all heads c, q, e and the gate, and b behind those of the window.
    __device__ __forceinline__ void gather(uint32_t layer)
    {
        WindowsShared &shared = windows_shared();
        const uint32_t t = threadIdx.x, key = t - windows_n, query = key - windows_n; // c is behind b
        const uint64_t *numbers = number_at(shape().b, 0), *own = numbers, *of_x = numbers, *of_z = numbers;
        const uint32_t slots = shape().slot;
        step = norm = z = make_float2(0.0f, 0.0f); // else a compiler keeps those of the layer before meanwhile
        skip = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < WINDOW / 4; i++) x[i] = make_uint4(0, 0, 0, 0);
        if (has_head()) {
            step = lane < slots ? __ldcg(step_at(layer)) : make_float2(0.0f, 0.0f);
            const size_t row = size_t(shape().b) * WINDOW + lane / 8;
            const uint16_t *x_at = at<const uint16_t>(layer, PLACE_ROWS) + row * kept() + head() * windows_p + lane % 8 * 8;
#pragma unroll
            for (uint32_t i = 0; i < WINDOW / 4; i++)
                x[i] = 4 * i + lane / 8 < slots ? __ldcg(reinterpret_cast<const uint4 *>(x_at + 4 * i * kept())) : make_uint4(0, 0, 0, 0);
            skip = ask_float(at<const float>(layer, PLACE_D) + head());
            const float *from = at<const float>(layer, PLACE_MIXER_NORM) + head() * windows_p + own_column();
            norm = make_float2(ask_float(from), ask_float(from + 1));
            of_x += width() + head() * windows_p + 2 * lane;
            of_z += head() * windows_p + own_column();
        }
        if (t < windows_n) own += 2 * width() + windows_n + t;
        else if (key < windows_n) own += 2 * width() + key;
        else if (has_open() && query < windows_queries + 1) own += rows() + query;
        const uint64_t *of_step = numbers, *of_decay = numbers;
        if (has_head() && lane == slots) of_step += width() + channels() + head(), of_decay += outputs() + head();
        // All at once: one look after another would be as many trips to memory.
        uint64_t words[7];
        bool missing = true;
#pragma unroll 1
        for (uint32_t tries = 0; missing && tries < MIXER_PATIENCE; tries++) {
            const uint64_t *const from[7] = {own, of_x, of_x + 1, of_z, of_z + 1, of_step, of_decay};
#pragma unroll
            for (uint32_t i = 0; i < 7; i++) words[i] = load_post(from[i]);
            missing = false;
#pragma unroll
            for (uint32_t i = 0; i < 7; i++) missing = missing || uint32_t(words[i] >> 32) != tag;
        }
        if (missing) shared.gave_up = 1;
        const auto number = [&](uint32_t i) { return __uint_as_float(uint32_t(words[i])); };
        if (has_head()) {
            if (lane == slots) step = make_float2(number(6), number(5));
            z = make_float2(number(3), number(4));
            const uint32_t pair = pack<true>(number(1), number(2));
            uint4 newest;
            newest.x = __shfl_sync(0xffffffffu, pair, lane % 8 * 4);
            newest.y = __shfl_sync(0xffffffffu, pair, lane % 8 * 4 + 1);
            newest.z = __shfl_sync(0xffffffffu, pair, lane % 8 * 4 + 2);
            newest.w = __shfl_sync(0xffffffffu, pair, lane % 8 * 4 + 3);
#pragma unroll
            for (uint32_t i = 0; i < WINDOW / 4; i++)
                if (4 * i + lane / 8 == slots) x[i] = newest;
        }
        windows_await(shared.extras_there, layer);
        if (t < windows_n) shared.c[t] = number(0);
        else if (key < windows_n) reinterpret_cast<uint16_t *>(shared.inputs)[slots * windows_n + key] = uint16_t(to_bfloat(number(0)));
        else if (has_open() && query < windows_queries + 1) shared.queries[query] = number(0);
    }
    // c . b_k of the slots of the window.
    __device__ __forceinline__ void score() const
    {
        WindowsShared &shared = windows_shared();
        const float4 c = reinterpret_cast<const float4 *>(shared.c)[lane];
#pragma unroll 1
        for (uint32_t k = warp; k <= shape().slot; k += windows_warps) {
            const uint2 pair = *reinterpret_cast<const uint2 *>(shared.inputs + k * (2 * windows_n) + 8 * lane);
            const float2 low = unpack<true>(pair.x), high = unpack<true>(pair.y);
            const float sum = warp_sum(fmaf(c.x, low.x, fmaf(c.y, low.y, fmaf(c.z, high.x, c.w * high.y))));
            if (lane == 0) shared.scores[k] = sum;
        }
    }
    __device__ __forceinline__ const char *item(const RingTurn &own) const
    {
        wait_until_there(windows_shared().places[own.at], own);
        return windows_shared().ring[own.at];
    }
    // The same where other warps may still have to read what lies there: a barrier tells its last phase from the one before only, so that this waits
    // first until the copy was asked for, which ends all phases before its own.
    __device__ __forceinline__ const char *later_item(const RingTurn &own) const
    {
        while (load_count(&windows_shared().asked) <= own.round * windows_room + own.at) continue;
        return item(own);
    }
    __device__ __forceinline__ void release(const RingTurn &own) const
    {
        static_assert(windows_readers == 8, "an arrival of each of eight lanes");
        __syncwarp();
        if (lane < windows_readers) attend::barrier_arrive(attend::shared_address(&windows_shared().places[own.at].empty));
    }

    // y += the state before the window, decayed by `keep`, times c.
    __device__ __forceinline__ void read_state(const char *state, float keep, float (&y)[8]) const
    {
        const float *scales = reinterpret_cast<const float *>(state + windows_item), *c = windows_shared().c;
        float sum[8] = {};
#pragma unroll 4
        for (uint32_t i = 0; i < windows_n / 4; i++) {
            const uint32_t n = 4 * i + lane / 8;
            const float weight = c[n] * scales[n];
            float v[8];
            unpack8({*reinterpret_cast<const uint4 *>(state + 128 * n + lane % 8 * 16), {}}, DTYPE_BF16, v);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) sum[k] = fmaf(weight, v[k], sum[k]);
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) y[i] = fmaf(keep, sum[i], y[i]);
    }
    // y += the tokens of the window. weight: of slot `lane`, 0 behind this token's.
    __device__ __forceinline__ void read_window(float weight, float (&y)[8]) const
    {
#pragma unroll
        for (uint32_t i = 0; i < WINDOW / 4; i++) {
            const float own = __shfl_sync(0xffffffffu, weight, 4 * i + lane / 8);
            float v[8];
            unpack8({x[i], {}}, DTYPE_BF16, v);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) y[k] = fmaf(own, v[k], y[k]);
        }
    }
    // y += the gated readout of the memories from place `own` on; there are `seen` of them, those of a head `heads` places apart.
    __device__ __forceinline__ void read_memories(RingTurn own, float (&y)[8]) const
    {
        const WindowsShared &shared = windows_shared();
        const float *q = shared.queries, *c = shared.c;
        float e[8], sum[8] = {}, top = lowest, den = 0.0f, squares = 0.0f, e_squares = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            e[i] = q[windows_n + lane % 8 * 8 + i];
            e_squares = fmaf(e[i], e[i], e_squares); // of its columns, which four rows of lanes have
        }
#pragma unroll
        for (uint32_t i = 0; i < windows_n / 32; i++) squares = fmaf(q[lane + 32 * i], q[lane + 32 * i], squares);
        const float scale = rsqrtf(warp_sum(squares) / float(windows_n) + args.sma_eps) *
                            rsqrtf(warp_sum(e_squares) / (4.0f * float(windows_p)) + args.sma_eps) * rsqrtf(float(windows_n));
#pragma unroll 1
        for (uint32_t m = 0; m < shape().seen; m++) {
            const char *memory = later_item(own);
            const float *sizes = reinterpret_cast<const float *>(memory + windows_item);
            float value[8] = {}, logit = 0.0f;
#pragma unroll 2
            for (uint32_t j = 0; j < windows_n / 4; j++) {
                const uint32_t n = 4 * j + lane / 8;
                const float weight = c[n] * sizes[n];
                float v[8], product = 0.0f;
                unpack8({*reinterpret_cast<const uint4 *>(memory + 128 * n + lane % 8 * 16), {}}, DTYPE_BF16, v);
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
                    product = fmaf(v[i], e[i], product);
                    value[i] = fmaf(weight, v[i], value[i]);
                }
                logit = fmaf(q[n], product, logit);
            }
            release(own);
            own.skip(shape().heads, windows_room);
            logit = scale * warp_sum(logit);
            const float now = fmaxf(top, logit), keep = exp_below(top - now), gain = exp_below(logit - now);
            den = fmaf(keep, den, gain);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) sum[i] = fmaf(keep, sum[i], gain * value[i]);
            top = now;
        }
        const float gate = den > 0.0f ? q[windows_queries] / den : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) y[i] = fmaf(gate, sum[i], y[i]);
    }

    // The gated output of this warp's head, times the norm's weight; returns the sum of its squares before that.
    __device__ __forceinline__ float run_head()
    {
        float from = step.x; // the log-decays from this slot on
#pragma unroll
        for (uint32_t apart = 1; apart < 32; apart *= 2) {
            const float more = __shfl_down_sync(0xffffffffu, from, apart);
            if (lane + apart < 32) from += more;
        }
        const float next = __shfl_down_sync(0xffffffffu, from, 1), keep = exp_below(__shfl_sync(0xffffffffu, from, 0));
        float weight = lane <= shape().slot ? exp_below(lane < 31 ? next : 0.0f) * step.y * windows_shared().scores[lane] : 0.0f;
        if (lane == shape().slot) weight += skip;
        float y[8] = {};
        read_window(weight, y);
        RingTurn own = turn;
        if (warp < windows_room) {
            own.skip(warp, windows_room);
            read_state(item(own), keep, y);
            release(own);
        } else {
            read_state(windows_shared().inputs + windows_keys + (warp - windows_room) * windows_place, keep, y);
        }
        if (shape().seen > 0) {
            own = turn;
            own.skip(shape().ring_states() + warp, windows_room);
            read_memories(own, y);
        }
        // Lanes of the same columns add up by halves: first each keeps four of eight columns, then two of four.
        const bool upper = lane & 8, right = lane & 16;
        float four[4], two[2];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) four[i] = (upper ? y[4 + i] : y[i]) + __shfl_xor_sync(0xffffffffu, upper ? y[i] : y[4 + i], 8);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) two[i] = (right ? four[2 + i] : four[i]) + __shfl_xor_sync(0xffffffffu, right ? four[i] : four[2 + i], 16);
        two[0] *= z.x;
        two[1] *= z.y;
        reinterpret_cast<uint32_t *>(work.outputs())[own_number() / 2] = pack<true>(two[0] * norm.x, two[1] * norm.y);
        return warp_sum(fmaf(two[0], two[0], two[1] * two[1]));
    }
    // False where this block has given up.
    __device__ __forceinline__ bool run_heads(uint32_t layer)
    {
        WindowsShared &shared = windows_shared();
        if (shape().has_heads) {
            gather(layer);
            meet();
            if (shared.gave_up != 0) return false;
            score();
            meet();
            if (has_head()) {
                const float squares = run_head();
                if (lane == 0) shared.squares[warp] = squares;
            }
            attend::shared_visible_to_products(); // the copy engine writes where inputs lie next
            turn.skip(shape().ring_states() + shape().heads * shape().seen, windows_room);
            meet();
            if (threadIdx.x == 0) {
                float sum = 0.0f;
                for (uint32_t j = 0; j < shape().heads; j++) sum += shared.squares[j];
                work.output_squares()[size_t(shape().b) * args.share + shape().first_head / args.heads] = sum;
            }
        } else {
            meet();
        }
        finished(windows_heads);
        return true;
    }
};

#endif
