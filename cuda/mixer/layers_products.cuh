// The products of layers.cu: in_proj and sma_proj with their convolutions, and out_proj behind the norm. Lanes of a warp share a row.
#ifndef DART_MIXER_LAYERS_PRODUCTS_CUH
#define DART_MIXER_LAYERS_PRODUCTS_CUH

#include "layers_posts.cuh"

constexpr uint32_t layers_batch = 8; // outputs of a warp at a time: lane k finishes the k-th

template <uint32_t chunks> struct LayersProducts : Layers<chunks> {
    using Base = Layers<chunks>;
    static constexpr uint32_t layers_words = chunks < 5 ? 12 : 8; // words of weights that are fetched ahead, of a product: more of them spill
    static constexpr uint32_t ahead = chunks > layers_words ? 0 : chunks * layers_batch <= layers_words ? layers_batch : layers_words / chunks;
    static constexpr uint32_t ahead_y = 2 * chunks < layers_words ? 2 * chunks : layers_words;
    uint4 project_words[ahead * chunks], output_words[ahead_y];
    uint32_t chunks_y; // of a row of I inputs
    // The convolution of an output
    float kept[layers_taps - 1], taps[layers_taps], bias;
    View tail;
    uint32_t tail_row, channel;
    bool is_channel;

    __device__ __forceinline__ const uint4 *project_row(uint32_t layer, uint32_t o) const
    {
        const bool inner = o < this->R;
        return this->template at<const uint4>(layer, inner ? PLACE_IN_PROJ : PLACE_SMA_PROJ) + size_t(inner ? o : o - this->R) * (32 * chunks) +
               this->lane;
    }
    __device__ __forceinline__ const uint4 *output_row(uint32_t layer, uint32_t o) const
    {
        return this->template at<const uint4>(layer, PLACE_OUT_PROJ) + size_t(o) * (this->I / 8) + this->lane;
    }
    // What project() and add_output() ask for before their inputs are there.
    __device__ __forceinline__ void fetch_project(uint32_t layer)
    {
#pragma unroll
        for (uint32_t i = 0; i < ahead * chunks; i++)
            project_words[i] = stream_word(project_row(layer, min(this->first + i / chunks * this->step, this->outputs - 1)) + i % chunks * 32);
    }
    __device__ __forceinline__ void fetch_output(uint32_t layer)
    {
        if (this->first >= this->W) return;
        const uint4 *row = output_row(layer, this->first);
#pragma unroll
        for (uint32_t i = 0; i < ahead_y; i++) output_words[i] = stream_word(row + min(i, chunks_y - 1) * 32);
    }
    // Brings the rest of this warp's rows into the L2 cache.
    __device__ __forceinline__ void announce(const uint4 *row, uint32_t words) const
    {
        for (uint32_t i = 8 * this->lane; i < words; i += 8 * 32) announce_line(row + i); // 8 words: a line
    }
    __device__ __forceinline__ void announce_project(uint32_t layer) const
    {
        for (uint32_t o = this->first + ahead * this->step; o < this->outputs; o += this->step)
            announce(project_row(layer, o) - this->lane, 32 * chunks);
    }
    __device__ __forceinline__ void announce_output(uint32_t layer) const
    {
        for (uint32_t o = this->first; o < this->W; o += this->step) announce(output_row(layer, o) - this->lane, this->I / 8);
    }

    __device__ __forceinline__ void fetch_channel(uint32_t layer, uint32_t o)
    {
        const bool inner = o < this->R;
        is_channel = inner ? o >= this->I && o - this->I < this->channels : o - this->R < layers_queries;
        channel = !is_channel ? 0 : inner ? o - this->I : o - this->R;
        tail_row = inner ? this->channels : layers_queries;
        tail = {this->template at<char>(layer, inner ? PLACE_TAIL : PLACE_SMA_TAIL), this->tail_dtype};
        const float *of = this->template at<const float>(layer, inner ? PLACE_TAPS : PLACE_SMA_TAPS) + channel * layers_taps;
        const float *bias_of = this->template at<const float>(layer, inner ? PLACE_BIAS : PLACE_SMA_BIAS);
#pragma unroll
        for (uint32_t k = 0; k < layers_taps; k++) taps[k] = __ldg(of + k);
#pragma unroll
        for (uint32_t k = 0; k + 1 < layers_taps; k++) kept[k] = load(tail, k * tail_row + channel);
        bias = bias_of != nullptr ? __ldg(bias_of + channel) : 0.0f;
    }
    __device__ __forceinline__ float convolve(float value)
    {
        float sum = bias;
#pragma unroll
        for (uint32_t k = 0; k + 1 < layers_taps; k++) sum = fmaf(taps[k], kept[k], sum);
#pragma unroll
        for (uint32_t k = 0; k + 2 < layers_taps; k++) store(tail, k * tail_row + channel, kept[k + 1]);
        store(tail, (layers_taps - 2) * tail_row + channel, value);
        return silu(fmaf(taps[layers_taps - 1], value, sum));
    }

    template <bool bf> __device__ __forceinline__ float add(float sum, const uint4 &words, uint32_t chunk) const
    {
        const float4 low = this->shared.low[chunk * 32 + this->lane], high = this->shared.high[chunk * 32 + this->lane];
        multiply_word<bf>(words, {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, sum);
        return sum;
    }

    // Outputs first, first + step, ... of both products.
    template <bool bf> __device__ __forceinline__ void project_all(uint32_t layer, float squares)
    {
        const float scale = rsqrtf(squares / float(this->W) + this->args.eps);
        const uint32_t lane = this->lane, step = this->step, outputs = this->outputs;
#pragma unroll 1
        for (uint32_t batch = this->first; batch < outputs; batch += layers_batch * step) {
            const uint32_t mine = batch + min(lane, layers_batch - 1) * step;
            const bool begins = batch == this->first;
            float value = 0.0f;
            if (begins) {
                float totals[ahead] = {};
#pragma unroll
                for (uint32_t i = 0; i < ahead * chunks; i++) totals[i / chunks] = add<bf>(totals[i / chunks], project_words[i], i % chunks);
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++) {
                    const float total = warp_sum(totals[k]);
                    if (lane == k) value = total;
                }
            } else {
                fetch_channel(layer, min(mine, outputs - 1));
            }
#pragma unroll 1
            for (uint32_t k = begins ? ahead : 0; k < layers_batch && batch + k * step < outputs; k += 2) {
                const uint4 *rows[2] = {project_row(layer, batch + k * step), project_row(layer, min(batch + (k + 1) * step, outputs - 1))};
                uint4 words[2 * chunks];
                float pair[2] = {};
#pragma unroll
                for (uint32_t i = 0; i < 2 * chunks; i++) words[i] = stream_word(rows[i / chunks] + i % chunks * 32);
#pragma unroll
                for (uint32_t i = 0; i < 2 * chunks; i++) pair[i / chunks] = add<bf>(pair[i / chunks], words[i], i % chunks);
                const float even = warp_sum(pair[0]), odd = warp_sum(pair[1]);
                if (lane == k) value = even;
                if (lane == k + 1) value = odd;
            }
            if (lane < layers_batch && mine < outputs) {
                value *= scale;
                this->post(this->project_posts() + mine, is_channel ? convolve(value) : value);
            }
        }
    }
    __device__ __forceinline__ void project(uint32_t layer, float squares)
    {
        if (this->weight_dtype == DTYPE_BF16) project_all<true>(layer, squares);
        else project_all<false>(layer, squares);
    }

    // Outputs first, first + step, ... of the product behind the norm, added to the stream; `stream` is the first of them as it was.
    template <bool bf> __device__ __forceinline__ float add_all(uint32_t layer, float squares, float stream)
    {
        constexpr uint32_t part = layers_words / 2;
        const bool is_last = layer + 1 == this->args.layers;
        const float scale = rsqrtf(squares / float(this->I) + this->args.eps);
#pragma unroll 1
        for (uint32_t o = this->first; o < this->W; o += this->step) {
            const bool begins = o == this->first;
            float sum = 0.0f;
            uint32_t c = 0;
            if (begins) {
#pragma unroll
                for (uint32_t i = 0; i < ahead_y; i++)
                    if (i < chunks_y) sum = add<bf>(sum, output_words[i], i);
                c = ahead_y;
            }
            const uint4 *row = output_row(layer, o);
#pragma unroll 1
            for (; c < chunks_y; c += part) {
                uint4 words[part];
#pragma unroll
                for (uint32_t i = 0; i < part; i++) words[i] = stream_word(row + min(c + i, chunks_y - 1) * 32);
#pragma unroll
                for (uint32_t i = 0; i < part; i++)
                    if (c + i < chunks_y) sum = add<bf>(sum, words[i], c + i);
            }
            float value = scale * warp_sum(sum);
            if (begins) stream = value += stream;
            else if (this->lane == 0) value += this->x[o];
            if (this->lane == 0) {
                this->post(Base::x_posts + o, value);
                if (is_last || !begins) this->x[o] = value;
            }
        }
        return stream;
    }
    __device__ __forceinline__ float add_output(uint32_t layer, float squares, float stream)
    {
        return this->weight_dtype == DTYPE_BF16 ? add_all<true>(layer, squares, stream) : add_all<false>(layer, squares, stream);
    }
};

#endif
