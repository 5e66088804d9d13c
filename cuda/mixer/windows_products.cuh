// The products of windows.cu: in_proj and sma_proj with their convolutions, and out_proj, which also adds to the stream and rounds the next layer's
// inputs. Fragments and ldmatrix as in lib/attend.cuh; sums over parts of the inputs go through shared memory in a fixed order.
// A multiprocessor runs each line of this once a layer, so that its time is that of fetching instructions, too: loops are not unrolled without need.
#ifndef DART_MIXER_WINDOWS_PRODUCTS_CUH
#define DART_MIXER_WINDOWS_PRODUCTS_CUH

#include "windows_tails.cuh"

struct WindowsProducts : Windows {
    using Windows::Windows;
    static constexpr uint32_t in_tiles = 2, in_parts = 4, in_steps = 6, out_tiles = 4, out_steps = 3; // of a warp, at most: see keep_in and keep_out
    static constexpr uint32_t most_kept = 12;
    uint32_t kept_weights[most_kept][4];

    // ---- Inputs ----

    // Asks for `there` rows of `count` 16-bit inputs, to shared memory, 16 bytes apart besides. What lies there for other rows does not matter: the
    // products of a row are its own. All threads have made their last accesses there seen by copies, and met.
    __device__ __forceinline__ void ask_rows(const uint16_t *from, uint32_t count, uint32_t there) const
    {
        const uint32_t barrier = attend::shared_address(&windows_shared().rows_there), to = attend::shared_address(windows_shared().inputs);
        if (warp != 0) return;
        if (lane == 0) attend::barrier_arrive_bytes(barrier, there * count * 2);
        __syncwarp();
        attend::copies_see_memory();
        if (lane < there) attend::bulk_copy(to + lane * windows_row(count), from + size_t(lane) * count, 2 * count, barrier);
    }
    // Waits for the rows: the k-th that this launch asks for.
    static __device__ __forceinline__ void await_rows(uint32_t k)
    {
        attend::barrier_wait(attend::shared_address(&windows_shared().rows_there), k & 1);
    }
    // Keeps the weights of this warp's `count` tiles: tile t lies in place first_place + t `apart` from the turn on, in rows of `inputs`, and of each
    // are kept those of 32 inputs `steps` times, from `from` on. Frees the places, so that what comes behind is on its way while the block waits for
    // what the weights are multiplied with.
    template <uint32_t tiles, uint32_t most_steps>
    __device__ __forceinline__ void keep(uint32_t count, uint32_t inputs, uint32_t from, uint32_t steps, uint32_t first_place, uint32_t apart,
                                         uint32_t arrivals)
    {
        static_assert(tiles * most_steps <= most_kept, "weights in registers");
#pragma unroll
        for (uint32_t i = 0; i < 4 * most_kept; i++) kept_weights[i / 4][i % 4] = 0; // else a compiler keeps what was there before, too
        RingTurn own = turn;
        own.skip(first_place, windows_room);
#pragma unroll
        for (uint32_t t = 0; t < tiles; t++) {
            if (t >= count) continue;
            wait_until_there(windows_shared().places[own.at], own);
            const uint32_t at = attend::shared_address(windows_shared().ring[own.at]) + lane % 8 * windows_row(inputs) + 2 * from + lane / 8 * 16;
#pragma unroll
            for (uint32_t s = 0; s < most_steps; s++)
                if (s < steps) attend::load_matrices(kept_weights[t * most_steps + s], at + 64 * s);
            __syncwarp();
            if (lane < arrivals) attend::barrier_arrive(attend::shared_address(&windows_shared().places[own.at].empty));
            own.skip(apart, windows_room);
        }
    }
    // sums[t] += rows `row` .. row + 15 of the inputs times the weights that were kept of tile t, over inputs `from` .. from + 32 steps - 1.
    template <uint32_t tiles, uint32_t most_steps>
    __device__ __forceinline__ void multiply(float (&sums)[tiles][4], uint32_t count, uint32_t inputs, uint32_t row, uint32_t from,
                                             uint32_t steps) const
    {
        const uint32_t at = attend::shared_address(windows_shared().inputs) + (row + lane % 16) * windows_row(inputs) + 2 * from + lane / 16 * 16;
#pragma unroll
        for (uint32_t s = 0; s < most_steps; s++) {
            if (s >= steps) continue;
            uint32_t a[2][4];
            attend::load_matrices(a[0], at + 64 * s);
            attend::load_matrices(a[1], at + 64 * s + 32);
#pragma unroll
            for (uint32_t t = 0; t < tiles; t++) {
                if (t >= count) continue;
                attend::multiply<DTYPE_BF16>(sums[t], a[0], kept_weights[t * most_steps + s]);
                attend::multiply<DTYPE_BF16>(sums[t], a[1], kept_weights[t * most_steps + s] + 2);
            }
        }
    }
    // To the partial sums, in rows of `pitch` numbers, from row `row` and column `column` on.
    template <uint32_t tiles>
    __device__ __forceinline__ void leave(const float (&sums)[tiles][4], uint32_t count, uint32_t row, uint32_t column, uint32_t pitch) const
    {
        float *to = reinterpret_cast<float *>(windows_shared().inputs) + (row + lane / 4) * pitch + column + lane % 4 * 2;
#pragma unroll
        for (uint32_t t = 0; t < tiles; t++) {
            if (t >= count) continue;
            *reinterpret_cast<float2 *>(to + 8 * t) = make_float2(sums[t][0], sums[t][1]);
            *reinterpret_cast<float2 *>(to + 8 * t + 8 * pitch) = make_float2(sums[t][2], sums[t][3]);
        }
    }

    // ---- Outputs of in_proj and sma_proj ----

    // Output `column` of this block for row `row` of the group: `value` is the product.
    __device__ __forceinline__ void finish(uint32_t layer, uint32_t row, uint32_t column, float value) const
    {
        WindowsTails &tails = windows_shared().tails;
        const uint32_t o = 8 * shape().begin_in + column, sequence = shape().first + row;
        const size_t window = size_t(sequence) * WINDOW + uint32_t(windows_shared().slots[row]);
        const WindowsChannel channel = channel_of(o);
        uint64_t *word = number_at(sequence, o);
        if (channel.is_step) {
            const float raw = value + tails.biases[column];
            const float step = fminf(fmaxf(fmaxf(raw, 0.0f) + log1pf(expf(-fabsf(raw))), args.dt_min), args.dt_max);
            const float log_decay = -expf(tails.taps[column / 8 * 32 + column % 8]) * step;
            post_number(word, step);
            post_number(number_at(sequence, outputs() + channel.number), log_decay);
            at<float2>(layer, PLACE_STEPS)[window * args.H + channel.number] = make_float2(log_decay, step);
            return;
        }
        float sum = value;
        if (channel.is_channel) {
            const float4 taps = *reinterpret_cast<const float4 *>(&tails.taps[column * windows_taps]);
            sum = fmaf(taps.x, from_bfloat(tails.inputs[row][0][column]), tails.biases[column]);
            sum = fmaf(taps.y, from_bfloat(tails.inputs[row][1][column]), sum);
            sum = fmaf(taps.w, value, fmaf(taps.z, from_bfloat(tails.inputs[row][2][column]), sum));
            tails.inputs[row][0][column] = uint16_t(to_bfloat(value)); // in place of the oldest
        }
        const float result = silu_step(sum);
        post_number(word, result);
        if (channel.is_channel && channel.inner && channel.number < kept())
            at<uint16_t>(layer, PLACE_ROWS)[window * kept() + channel.number] = uint16_t(to_bfloat(result));
    }
    // Warp w multiplies a quarter of the tiles and of the inputs.
    __device__ __forceinline__ uint32_t in_part() const { return warp % in_parts; }
    __device__ __forceinline__ uint32_t in_first() const { return warp / in_parts * ceil_div(shape().tiles_in, windows_warps / in_parts); }
    __device__ __forceinline__ uint32_t in_count() const
    {
        return min(ceil_div(shape().tiles_in, windows_warps / in_parts), max(shape().tiles_in, in_first()) - in_first());
    }
    __device__ __forceinline__ void keep_in()
    {
        static_assert(windows_readers == 2 * in_parts, "two arrivals of each warp that reads a place");
        keep<in_tiles, in_steps>(in_count(), args.W, in_part() * (args.W / in_parts), args.W / in_parts / 32, in_first(), 1, 2);
        turn.skip(shape().tiles_in, windows_room);
    }
    __device__ __forceinline__ void project(uint32_t layer)
    {
        WindowsShared &shared = windows_shared();
        ask_rows(work.inputs() + size_t(shape().first) * args.W, args.W, shape().sequences);
        { // the norm of row t / 16, whose squares have as many parts as its quarter has blocks
            const uint32_t row = threadIdx.x / 16, count = row < shape().sequences ? shape().blocks_of(row) : 0;
            const float *from = work.input_squares() + size_t(shape().first + row) * work.blocks();
            float sum = 0.0f;
#pragma unroll 4
            for (uint32_t i = threadIdx.x % 16; i < count; i += 16) sum += __ldcg(from + i);
#pragma unroll
            for (uint32_t apart = 8; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            if (threadIdx.x % 16 == 0) shared.roots[row] = rsqrtf(sum / float(args.W) + args.eps);
        }
        await_rows(2 * layer);
        meet();
        float sums[windows_rows_in / 16][in_tiles][4] = {};
#pragma unroll
        for (uint32_t i = 0; i < windows_rows_in / 16; i++)
            if (16 * i < shape().sequences)
                multiply<in_tiles, in_steps>(sums[i], in_count(), args.W, 16 * i, in_part() * (args.W / in_parts), args.W / in_parts / 32);
        meet(); // all have read the inputs
#pragma unroll
        for (uint32_t i = 0; i < windows_rows_in / 16; i++)
            leave(sums[i], in_count(), in_part() * windows_rows_in + 16 * i, 8 * in_first(), windows_pitch_in);
        meet();
        // Warp w finishes rows 2 w and 2 w + 1, lane l of it outputs l and l + 32 of the block.
        const auto row_of = [&](uint32_t i) { return 2 * warp + i / 2; };
        const auto column_of = [&](uint32_t i) { return lane + 32 * (i % 2); };
        float values[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const float *from = reinterpret_cast<const float *>(shared.inputs) + row_of(i) * windows_pitch_in + column_of(i);
            float sum = 0.0f;
#pragma unroll
            for (uint32_t k = 0; k < in_parts; k++) sum += column_of(i) < 8 * windows_most_in ? from[k * windows_rows_in * windows_pitch_in] : 0.0f;
            values[i] = shared.roots[row_of(i)] * sum;
        }
        attend::shared_visible_to_products(); // the copy engine writes there next
        __syncwarp();
        if (lane == 0) attend::barrier_arrive(attend::shared_address(&shared.inputs_free));
        windows_await(shared.tails_there, layer);
#pragma unroll 1
        for (uint32_t i = 0; i < 4; i++) {
            const float value = i == 0 ? values[0] : i == 1 ? values[1] : i == 2 ? values[2] : values[3];
            const uint32_t column = column_of(i);
            if (shared.slots[row_of(i)] >= 0 && column < 8 * shape().tiles_in && 8 * shape().begin_in + column < outputs())
                finish(layer, row_of(i), column, value);
        }
        meet();
        finished(windows_in);
    }

    // ---- Outputs of out_proj: warp w finishes row first_row + w of the group, lane l output 8 begin_out + l, which stays in `stream` ----

    __device__ __forceinline__ bool has_stream() const { return lane < 8 * shape().tiles_out && shape().first_row + warp < shape().sequences; }
    __device__ __forceinline__ uint32_t stream_row() const { return shape().first + shape().first_row + warp; }
    __device__ __forceinline__ uint32_t stream_output() const { return 8 * shape().begin_out + lane; }
    // Rounds the inputs of the next layer, whose norm is `norm`.
    __device__ __forceinline__ void post_stream(float stream, float norm) const
    {
        const bool there = has_stream();
        const float squares = warp_sum(there ? stream * stream : 0.0f);
        if (there) work.inputs()[size_t(stream_row()) * args.W + stream_output()] = uint16_t(to_bfloat(stream * norm));
        if (lane == 0 && shape().first_row + warp < shape().sequences)
            work.input_squares()[size_t(stream_row()) * work.blocks() + shape().quarter_member] = squares;
        meet();
        finished(windows_out);
    }
    // Warp w multiplies a sixteenth of the inputs, of which a half of the tiles' places has it.
    __device__ __forceinline__ uint32_t out_inputs() const { return width() / windows_warps; }
    __device__ __forceinline__ void keep_out()
    {
        constexpr uint32_t half_warps = windows_warps / 2;
        static_assert(windows_readers == half_warps, "an arrival of each warp that reads a place");
        keep<out_tiles, out_steps>(shape().tiles_out, width() / 2, warp % half_warps * out_inputs(), out_inputs() / 32, warp / half_warps, 2, 1);
        turn.skip(2 * shape().tiles_out, windows_room);
    }
    // What out_proj adds to the stream. Waits for the heads of this quarter's sequences.
    __device__ __forceinline__ float output(uint32_t layer)
    {
        const uint32_t rows = min(shape().sequences - shape().first_row, windows_rows_out);
        ask_rows(work.outputs() + size_t(shape().first + shape().first_row) * width(), width(), rows);
        float squares = 0.0f;
        const float *parts = work.output_squares() + size_t(stream_row()) * args.share;
        for (uint32_t i = lane; warp < rows && i < args.share; i += 32) squares += __ldcg(parts + i);
        squares = warp_sum(squares);
        await_rows(2 * layer + 1);
        meet();
        float sums[out_tiles][4] = {};
        multiply<out_tiles, out_steps>(sums, shape().tiles_out, width(), 0, warp * out_inputs(), out_inputs() / 32);
        meet();
        leave(sums, shape().tiles_out, warp * windows_rows_out, 0, windows_pitch_out);
        meet();
        const float *from = reinterpret_cast<const float *>(windows_shared().inputs) + warp * windows_pitch_out + lane;
        float sum = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < windows_warps; k++) sum += from[k * windows_rows_out * windows_pitch_out];
        attend::shared_visible_to_products(); // the copy engine writes there next
        return rsqrtf(squares / float(width()) + args.eps) * sum;
    }
};

#endif
