// The tails of windows.cu: two warps bring what the convolutions of a block's outputs read to shared memory, a layer ahead, and store the inputs with
// this token's behind the products.
#ifndef DART_MIXER_WINDOWS_TAILS_CUH
#define DART_MIXER_WINDOWS_TAILS_CUH

#include "windows_copies.cuh"

constexpr uint32_t windows_tail_threads = 64;

struct WindowsTailsWalk : WindowsOutputs {
    static constexpr uint32_t inputs = windows_rows_in * (windows_taps - 1), pieces = inputs + 10; // of a tile: inputs; then biases and taps
    const uint32_t thread;

    __device__ __forceinline__ explicit WindowsTailsWalk(const WindowsSizes &sizes)
        : WindowsOutputs{sizes}, thread(threadIdx.x % windows_tail_threads)
    {
    }
    // Eight inputs of a channel and the next ones, number k of a row: the oldest is number 0.
    __device__ __forceinline__ uint16_t *input_at(uint64_t tail, const WindowsChannel &channel, uint32_t row, uint32_t k) const
    {
        const uint32_t width = channel.inner ? channels() : windows_queries;
        return reinterpret_cast<uint16_t *>(tail) + (size_t(shape().first + row) * (windows_taps - 1) + k) * width + channel.number;
    }
    __device__ __forceinline__ void fetch(uint32_t layer) const
    {
        WindowsTails &to = windows_shared().tails;
        const uint64_t tail = place_of(layer, PLACE_TAIL), sma_tail = place_of(layer, PLACE_SMA_TAIL);
#pragma unroll 1
        for (uint32_t i = thread; i < shape().tiles_in * pieces; i += windows_tail_threads) {
            const uint32_t tile = i / pieces, piece = i % pieces;
            const WindowsChannel channel = channel_of(8 * (shape().begin_in + tile));
            if (!channel.is_channel && !channel.is_step) continue;
            const void *from, *here;
            if (piece < inputs) {
                const uint32_t row = piece / (windows_taps - 1), k = piece % (windows_taps - 1);
                if (row >= shape().sequences || channel.is_step) continue;
                from = input_at(channel.inner ? tail : sma_tail, channel, row, k);
                here = &to.inputs[row][k][8 * tile];
            } else if (piece < inputs + 2) {
                const uint64_t biases = place_of(layer, channel.is_step ? PLACE_DT_BIAS : channel.inner ? PLACE_BIAS : PLACE_SMA_BIAS);
                const uint32_t first = 4 * (piece - inputs);
                from = reinterpret_cast<const float *>(biases) + channel.number + first;
                here = &to.biases[8 * tile + first];
                if (biases == 0) {
                    *reinterpret_cast<float4 *>(&to.biases[8 * tile + first]) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    continue;
                }
            } else { // of steps a_log
                const uint32_t number = piece - inputs - 2;
                if (channel.is_step && number >= 2) continue;
                const uint64_t numbers = place_of(layer, channel.is_step ? PLACE_A_LOG : channel.inner ? PLACE_TAPS : PLACE_SMA_TAPS);
                from = reinterpret_cast<const float *>(numbers) + (channel.is_step ? channel.number : channel.number * windows_taps) + 4 * number;
                here = &to.taps[8 * tile * windows_taps + 4 * number];
            }
            attend::copy_16(attend::shared_address(here), from);
        }
        attend::copies_wait();
        attend::barrier_arrive(attend::shared_address(&windows_shared().tails_there));
    }
    // Copies to where inputs lie, once nobody reads sums there, b of the tokens before this one in the window, then the states that the ring has no
    // room for.
    __device__ __forceinline__ void fetch_extras(uint32_t layer) const
    {
        if (!shape().has_heads || thread >= 32) return;
        const uint32_t to = attend::shared_address(windows_shared().inputs), there = attend::shared_address(&windows_shared().extras_there);
        const uint32_t extra = shape().heads - shape().ring_states(), slots = shape().slot;
        const uint64_t head = uint64_t(shape().b) * args.H + shape().first_head + shape().ring_states() + thread;
        const uint64_t keys = place_of(layer, PLACE_ROWS) + (uint64_t(shape().b) * WINDOW + thread) * kept() * 2 + width() * 2;
        const uint64_t states = place_of(layer, PLACE_HIN) + head * windows_item, scales = place_of(layer, PLACE_HIN_SCALE) + head * (4 * windows_n);
        if (!windows_await(windows_shared().inputs_free, layer)) return;
        if (thread == 0) attend::barrier_arrive_bytes(there, slots * (2 * windows_n) + extra * windows_place);
        __syncwarp();
        if (thread < slots) attend::bulk_copy(to + thread * (2 * windows_n), reinterpret_cast<const void *>(keys), 2 * windows_n, there);
        if (thread >= extra) return;
        const uint32_t own = to + windows_keys + thread * windows_place;
        attend::bulk_copy(own, reinterpret_cast<const void *>(states), windows_item, there);
        attend::bulk_copy(own + windows_item, reinterpret_cast<const void *>(scales), 4 * windows_n, there);
    }
    // This token's inputs stand in place of the oldest.
    __device__ __forceinline__ void store(uint32_t layer) const
    {
        const uint64_t tail = place_of(layer, PLACE_TAIL), sma_tail = place_of(layer, PLACE_SMA_TAIL);
#pragma unroll 1
        for (uint32_t i = thread; i < shape().tiles_in * inputs; i += windows_tail_threads) {
            const uint32_t tile = i / inputs, row = i % inputs / (windows_taps - 1), k = i % (windows_taps - 1);
            const WindowsChannel channel = channel_of(8 * (shape().begin_in + tile));
            if (!channel.is_channel || windows_shared().slots[row] < 0) continue;
            *reinterpret_cast<uint4 *>(input_at(channel.inner ? tail : sma_tail, channel, row, k)) =
                *reinterpret_cast<const uint4 *>(&windows_shared().tails.inputs[row][(k + 1) % (windows_taps - 1)][8 * tile]);
        }
    }
};

__device__ __forceinline__ void windows_tails(const WindowsSizes &sizes)
{
    const WindowsTailsWalk walk(sizes);
    walk.fetch(0);
    for (uint32_t layer = 0; layer < sizes.args.layers; layer++) {
        walk.fetch_extras(layer);
        if (!windows_await(windows_shared().finished[windows_in], layer)) return;
        walk.store(layer);
        asm volatile("bar.sync 2, %0;" ::"n"(windows_tail_threads) : "memory"); // both warps have read them
        if (layer + 1 < sizes.args.layers) walk.fetch(layer + 1);
    }
}

#endif
