// The products of layers.cu: in_proj and sma_proj with their convolutions, and out_proj behind the norm. Lanes of a warp share a row of weights.
#ifndef DART_MIXER_LAYERS_PRODUCTS_CUH
#define DART_MIXER_LAYERS_PRODUCTS_CUH

#include "layers_copies.cuh"

struct LayersProducts : Layers {
    using Layers::Layers;
    const uint32_t room = layers_ring_words / W; // four at least
    // Outputs of this block. There are no more than 128 of in_proj and sma_proj, nor than layers_most_rows of out_proj, where a device has twice as
    // many multiprocessors as a model has heads (layers_traits).
    const uint32_t begin_in = begin_of(outputs), rows_in = rows_of(outputs);
    const uint32_t begin_out = begin_of(W), rows_out = rows_of(W);
    RingTurn turn; // of the weights
    // Of the next product of the input, this warp's two rows of the first four places. Where the ring has no room for all that a layer reads, threads
    // take them while they wait for its inputs, so that the last places are on their way before the product begins.
    static constexpr uint32_t held_chunks = LAYERS_HELD_WIDTH / 256;
    using Held = uint4[2][held_chunks];
    __device__ __forceinline__ void hold(Held &held) const
    {
        RingTurn own = turn;
        own.skip(warp / layers_sharers, room);
        RingPlace &place = layers_shared().weight_places[own.at];
        const uint4 *rows = layers_shared().weights + own.at * W + warp % layers_sharers * 2 * (W / 8) + lane;
#pragma unroll
        for (uint32_t i = 0; i < 2 * held_chunks; i++) held[i / held_chunks][i % held_chunks] = make_uint4(0, 0, 0, 0); // nothing of before is kept
        wait_until_there(place, own);
#pragma unroll
        for (uint32_t c = 0; c < held_chunks; c++) {
            if (256 * c >= W) continue;
            held[0][c] = rows[32 * c];
            held[1][c] = rows[W / 8 + 32 * c];
        }
        __syncwarp();
        if (lane == 0) attend::barrier_arrive(attend::shared_address(&place.empty));
    }
    // The convolution of an output
    uint32_t kept[layers_taps - 1]; // the bits of elements of the tail
    float taps[layers_taps], bias;

    __device__ __forceinline__ View tail_of(uint32_t layer, const Channel &channel) const
    {
        return {at<char>(layer, channel.inner ? PLACE_TAIL : PLACE_SMA_TAIL), tail_dtype};
    }
    __device__ __forceinline__ uint32_t tail_row(const Channel &channel) const { return channel.inner ? channels : layers_queries; }
    __device__ __forceinline__ void fetch_channel(uint32_t layer, const Channel &channel)
    {
        const float *of = at<const float>(layer, channel.inner ? PLACE_TAPS : PLACE_SMA_TAPS) + channel.number * layers_taps;
        const float *bias_of = at<const float>(layer, channel.inner ? PLACE_BIAS : PLACE_SMA_BIAS);
        const View tail = tail_of(layer, channel);
#pragma unroll
        for (uint32_t k = 0; k < layers_taps; k++) taps[k] = ask_float(of + k);
#pragma unroll
        for (uint32_t k = 0; k + 1 < layers_taps; k++) kept[k] = ask_bits(tail, k * tail_row(channel) + channel.number);
        bias = bias_of != nullptr ? ask_float(bias_of + channel.number) : 0.0f;
    }
    __device__ __forceinline__ float convolve(float value) const
    {
        float sum = bias;
#pragma unroll
        for (uint32_t k = 0; k + 1 < layers_taps; k++) sum = fmaf(taps[k], value_of(kept[k], tail_dtype), sum);
        return silu_step(fmaf(taps[layers_taps - 1], value, sum));
    }
    __device__ __forceinline__ void keep(uint32_t layer, const Channel &channel, float value) const
    {
        const View tail = tail_of(layer, channel);
#pragma unroll
        for (uint32_t k = 0; k + 2 < layers_taps; k++) store(tail, k * tail_row(channel) + channel.number, value_of(kept[k + 1], tail_dtype));
        store(tail, (layers_taps - 2) * tail_row(channel) + channel.number, value);
    }

    // Sums over `places` places of the ring, sixteen at most. Warp w shares place w / 4 and every fourth behind it with three others; it multiplies
    // two of the place's rows, whose words begin at `at` and `apart` behind it, with `chunks` chunks of the row in shared memory, from chunk `from`
    // on. Lane k gets what the first (k even) or second row of its place k / 2 gave; lanes from 2 on nothing where there are four places or fewer.
    // `squares`, of this thread's numbers of the row, are summed up beside the products, so that blocks meet once for both (sum_over_all).
    // is_held: those of the first four places are in `held`.
    template <bool bf, bool is_held>
    __device__ __forceinline__ float multiply_places(uint32_t at, uint32_t apart, uint32_t from, uint32_t chunks, uint32_t places, float squares,
                                                     const Held &held)
    {
        float sums[4] = {}; // of the first row in even lanes, of the second in odd ones
        const float4 *low = layers_shared().low + 32 * from + lane, *high = layers_shared().high + 32 * from + lane;
        const bool odd = lane & 1;
        float sum, next;
        const auto multiply = [&](uint32_t c, const uint4 &first, const uint4 &second) {
            const float4 a = low[c], b = high[c];
            const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            multiply_word<bf>(first, v, sum);
            multiply_word<bf>(second, v, next);
        };
        RingTurn own = turn;
        own.skip(warp / layers_sharers, room);
        uint32_t k = 0;
        if (is_held) {
            sum = next = 0.0f;
#pragma unroll
            for (uint32_t c = 0; c < held_chunks; c++)
                if (c < chunks) multiply(32 * c, held[0][c], held[1][c]);
            sums[0] = (odd ? next : sum) + __shfl_xor_sync(0xffffffffu, odd ? sum : next, 1);
            own.skip(4, room);
            k = 1;
        }
#pragma unroll 1
        for (; 4 * k + warp / layers_sharers < places; k++) { // one copy of the code: fetching it takes time, too
            RingPlace &place = layers_shared().weight_places[own.at];
            const uint4 *one = layers_shared().weights + own.at * W + at + lane, *other = one + apart;
            sum = next = 0.0f;
            wait_until_there(place, own);
#pragma unroll 1
            for (uint32_t c = 0; c < 32 * chunks; c += 32) multiply(c, one[c], other[c]);
            const float both = (odd ? next : sum) + __shfl_xor_sync(0xffffffffu, odd ? sum : next, 1);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) sums[i] = k == i ? both : sums[i];
            if (lane == 0) attend::barrier_arrive(attend::shared_address(&place.empty)); // all lanes have read it
            own.skip(4, room);
        }
        turn.skip(places, room);
        squares = warp_sum(squares);
        if (lane == 0) layers_shared().sums[warp] = squares;
        float two[2] = {sums[0], sums[1]};
        sum = sums[0];
        if (places > 4) {
            const bool upper = lane & 4, right = lane & 2;
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
                two[i] = (upper ? sums[2 + i] : sums[i]) + __shfl_xor_sync(0xffffffffu, upper ? sums[i] : sums[2 + i], 4);
            sum = (right ? two[1] : two[0]) + __shfl_xor_sync(0xffffffffu, right ? two[0] : two[1], 2);
        } else {
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 8);
        return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
    }
    static __device__ __forceinline__ bool has_row(uint32_t lane, uint32_t places) { return lane < (places > 4 ? 8 : 2); }
    // Of the row that lane k of multiply_places has: the number of its place, and which of two rows it is.
    __device__ __forceinline__ uint32_t place_of(uint32_t k) const { return k / 2 * 4 + warp / layers_sharers; }

    // This block's outputs of both products: thread t finishes number begin_in + t.
    __device__ __forceinline__ void fetch_channels(uint32_t layer)
    {
        const uint32_t t = anew(threadIdx.x);
        if (t < rows_in) fetch_channel(layer, channel_of(begin_in + t));
    }
    template <bool bf, bool is_held> __device__ __forceinline__ void project_all(uint32_t layer, float squares, const Held &held)
    {
        const uint32_t t = anew(threadIdx.x), words = W / 8, places = ceil_div(rows_in, layers_place_rows), row_at = warp % layers_sharers * 2;
        const float sum = multiply_places<bf, is_held>(row_at * words, words, 0, W / 256, places, squares, held);
        const uint32_t row = place_of(lane) * layers_place_rows + row_at + lane % 2;
        if (has_row(lane, places) && row < rows_in) layers_shared().halves[row] = sum;
        meet();
        if (t >= rows_in) return;
        const Channel channel = channel_of(begin_in + t);
        const float value = rsqrtf(__fdividef(sum_over_all(), float(W)) + args.eps) * layers_shared().halves[t];
        post(project_posts() + begin_in + t, channel.is_channel ? convolve(value) : value);
        if (channel.is_channel) keep(layer, channel, value);
    }
    template <bool is_held> __device__ __forceinline__ void project(uint32_t layer, float squares, const Held &held)
    {
        if (weight_dtype == DTYPE_BF16) project_all<true, is_held>(layer, squares, held);
        else project_all<false, is_held>(layer, squares, held);
    }

    // This block's outputs of the product behind the norm, added to the stream: thread t has number begin_out + t. A warp multiplies two rows, or
    // half of each.
    template <bool bf> __device__ __forceinline__ float add_all(float squares, float stream)
    {
        const uint32_t t = anew(threadIdx.x), all = I / 256, sharer = warp % layers_sharers;
        const bool halved = I > W; // a row is shared by two warps
        const uint32_t rows = together(), half = halved ? sharer % 2 : 0, row_at = halved ? sharer & 2 : 2 * sharer;
        const uint32_t first_half = halved ? (all + 1) / 2 : all, from = half * first_half, chunks = min(first_half, all - from);
#pragma unroll 1
        for (uint32_t base = 0; base < rows_out; base += 16 * rows) {
            const uint32_t left = rows_out - base, places = min(halved ? (left + 3) / 4 : (left + 7) / 8, 16u);
            const float sum = multiply_places<bf, false>(32 * (row_at * all + from), 32 * all, from, chunks, places, squares, {});
            const uint32_t o = base + place_of(lane) * rows + row_at + lane % 2;
            if (has_row(lane, places) && o < rows_out) layers_shared().halves[2 * o + half] = sum;
        }
        meet();
        if (t >= rows_out) return 0.0f;
        const float sum = layers_shared().halves[2 * t] + (halved ? layers_shared().halves[2 * t + 1] : 0.0f);
        stream = fmaf(rsqrtf(__fdividef(sum_over_all(), float(I)) + args.eps), sum, stream);
        post(x_posts + begin_out + t, stream);
        return stream;
    }
    __device__ __forceinline__ float add_output(float squares, float stream)
    {
        return weight_dtype == DTYPE_BF16 ? add_all<true>(squares, stream) : add_all<false>(squares, stream);
    }
};

#endif
