// The scan of layers.cu: the state of a head, what closes, and the gated output. Sixteen threads share a row of a state.
#ifndef DART_MIXER_LAYERS_SCAN_CUH
#define DART_MIXER_LAYERS_SCAN_CUH

#include "layers_memories.cuh"

template <uint32_t chunks> struct LayersScan : LayersMemories<chunks> {
    __device__ __forceinline__ void fetch_state(uint32_t layer, uint32_t head)
    {
        const size_t from = size_t(head) * layers_state_rows * block_size + threadIdx.x;
        const uint4 *h = this->template at<const uint4>(layer, PLACE_H) + from;
#pragma unroll
        for (uint32_t r = 0; r < layers_state_rows; r++) this->own[r] = fetch_state_word(h + r * block_size);
        this->a_log = __ldg(this->template at<const float>(layer, PLACE_A_LOG) + head);
        this->step_bias = __ldg(this->template at<const float>(layer, PLACE_DT_BIAS) + head);
        this->skip = __ldg(this->template at<const float>(layer, PLACE_D) + head);
        this->before = 0.0f;
        if (!this->has_open) return;
        this->before = __ldcg(this->template at<const float>(layer, PLACE_OPEN_DECAY) + head);
        const uint4 *open = this->template at<const uint4>(layer, PLACE_OPEN) + from;
#pragma unroll
        for (uint32_t r = 0; r < layers_state_rows; r++) this->own[layers_state_rows + r] = fetch_state_word(open + r * block_size);
    }

    // Of the chunk that closes: the memory of a head goes to its run. Threads hold rows n = threadIdx.x / 16 + block_size / 16 r.
    __device__ __forceinline__ void append(uint32_t layer, uint32_t head) const
    {
        const uint32_t m = this->position / this->args.S, word = threadIdx.x % 16;
        for (uint32_t c = 0; c < this->args.closing; c++) {
            const uint2 run = this->shared.runs[MIXER_RUNS + c];
            if (m < run.x || m - run.x >= run.y) continue;
            const size_t first = (size_t(m - run.x) * this->H + head) * layers_n;
            const View to = {this->template at<char>(layer, PLACE_CLOSING + 2 * c), this->dh_dtype};
            float *sizes = this->template at<float>(layer, PLACE_CLOSING + 2 * c + 1);
#pragma unroll
            for (uint32_t r = 0; r < layers_state_rows; r++) {
                const float4 open = unpack4(this->own[layers_state_rows + r], DTYPE_F32);
                float squares = open.x * open.x + open.y * open.y + open.z * open.z + open.w * open.w;
#pragma unroll
                for (uint32_t apart = 8; apart > 0; apart /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, apart);
                const float size = sqrtf(squares / float(layers_p) + this->args.sma_eps);
                const size_t n = first + threadIdx.x / 16 + block_size / 16 * r, at = n * layers_p + 4 * word;
                if (word == 0) sizes[n] = size;
                store4(to, at, make_float4(open.x / size, open.y / size, open.z / size, open.w / size));
            }
        }
    }

    __device__ __forceinline__ void scan(uint32_t layer, uint32_t head)
    {
        const float *taken = this->shared.taken;
        const uint32_t t = threadIdx.x, word = t % 16, row = t / 16;
        const bool has_open = this->has_open, closes = has_open && (this->position + 1) % this->args.S == 0;
        const float raw = taken[layers_step] + this->step_bias;
        const float step = fminf(fmaxf(fmaxf(raw, 0.0f) + log1pf(expf(-fabsf(raw))), this->args.dt_min), this->args.dt_max);
        const float decay = -expf(this->a_log) * step, total = this->before + decay, keep_open = exp_below(decay), keep_h = exp_below(total);
        float x[4], sum[4] = {};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) x[i] = step * taken[layers_p + 4 * word + i];
        float4 *to_open = this->template at<float4>(layer, PLACE_OPEN), *to_h = this->template at<float4>(layer, PLACE_H);
#pragma unroll
        for (uint32_t r = 0; r < layers_state_rows; r++) {
            const uint32_t n = row + block_size / 16 * r;
            const float key = taken[2 * layers_p + n], read = taken[2 * layers_p + layers_n + n];
            const float4 was = unpack4(this->own[r], DTYPE_F32), kept = unpack4(this->own[layers_state_rows + r], DTYPE_F32);
            const float was_h[4] = {was.x, was.y, was.z, was.w}, was_open[4] = {kept.x, kept.y, kept.z, kept.w};
            float open[4], state[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                open[i] = key * x[i];
                if (has_open) open[i] = fmaf(keep_open, was_open[i], open[i]);
                state[i] = fmaf(keep_h, was_h[i], open[i]);
                sum[i] = fmaf(read, state[i], sum[i]);
            }
            const size_t at = (size_t(head) * layers_state_rows + r) * block_size + t;
            const float4 now = make_float4(open[0], open[1], open[2], open[3]);
            const uint4 kept_now = make_uint4(__float_as_uint(now.x), __float_as_uint(now.y), __float_as_uint(now.z), __float_as_uint(now.w));
            if (has_open) to_open[at] = closes ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : now;
            if (closes || !has_open) to_h[at] = make_float4(state[0], state[1], state[2], state[3]);
            this->own[layers_state_rows + r] = kept_now;
        }
        if (closes) append(layer, head);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 16);
        if (this->lane < 16) reinterpret_cast<float4 *>(this->shared.found)[this->warp * 16 + word] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        __syncthreads();
        if (has_open && t == 0) this->template at<float>(layer, PLACE_OPEN_DECAY)[head] = closes ? 0.0f : total; // all threads have read it
        float y = 0.0f;
        if (t < layers_p) {
            y = this->skip * taken[layers_p + t];
#pragma unroll
            for (uint32_t w = 0; w < warps; w++) y += this->shared.found[w * layers_p + t];
        }
        if (has_open && this->args.runs > 0) y = fmaf(silu(taken[layers_step + 1]), this->merged(head), y);
        if (t < layers_p) this->post(this->y_posts() + head * layers_p + t, y * silu(taken[t]));
    }
};

#endif
