// The copies of layers.cu: two warps that do nothing else bring weights, memories and states to shared memory in the order in which the others need
// them, as far ahead as there is room. Who asks the copy engine while it is busy waits for it.
#ifndef DART_MIXER_LAYERS_COPIES_CUH
#define DART_MIXER_LAYERS_COPIES_CUH

#include "layers_posts.cuh"

__device__ __forceinline__ bool has_given_up() { return *reinterpret_cast<const volatile uint32_t *>(&layers_shared().gave_up) != 0; }

// A warp that copies goes from layer to layer, all of it the same way: lane k holds place k of the layer, lane 0 asks.
struct LayersWalk {
    const LayersShape &shape;
    const uint64_t *table;
    uint64_t own, next;

    __device__ __forceinline__ explicit LayersWalk(const LayersShape &shape) : shape(shape), table(shape.places + RUN_PAIRS + threadIdx.x % 32)
    {
        static_assert(PLACES == 32, "a place a lane");
        next = ask_place(table);
    }
    // Goes to the next layer, whose places were asked for when the one before began; false where there is none.
    __device__ __forceinline__ bool begin(uint32_t layer)
    {
        if (layer == shape.args.layers || has_given_up()) return false;
        own = next;
        table += PLACES;
        if (layer + 1 < shape.args.layers) next = ask_place(table);
        return true;
    }
    __device__ __forceinline__ uint64_t place(uint32_t which) const { return __shfl_sync(0xffffffffu, own, which); }

    // Rows of in_proj and sma_proj in the order in which this block's warps multiply them: take(from, bytes, from_sma, bytes_sma) of up to eight that
    // lie side by side, since the engine takes few large copies faster than many small ones.
    template <class Take> __device__ __forceinline__ void rows_in(const Take &take) const
    {
        const uint32_t row = 2 * shape.W, begin = shape.begin_of(shape.outputs), end = begin + shape.rows_of(shape.outputs);
        const uint64_t in = place(PLACE_IN_PROJ), sma = place(PLACE_SMA_PROJ);
        for (uint32_t o = begin; o < end; o += layers_place_rows) {
            const uint32_t count = min(end - o, layers_place_rows), inner = o < shape.R ? min(shape.R - o, count) : 0;
            if (!take(in + uint64_t(o) * row, inner * row, sma + uint64_t(o + inner - shape.R) * row, (count - inner) * row)) return;
        }
    }
    // Likewise of out_proj, up to eight or, where they are longer than W, four.
    template <class Take> __device__ __forceinline__ void rows_out(const Take &take) const
    {
        const uint32_t row = 2 * shape.I, begin = shape.begin_of(shape.W), end = begin + shape.rows_of(shape.W), together = shape.together();
        const uint64_t out = place(PLACE_OUT_PROJ);
        for (uint32_t o = begin; o < end; o += together)
            if (!take(out + uint64_t(o) * row, min(end - o, together) * row, 0, 0)) return;
    }
    // What this block's scan or memories read: take(from, bytes, from_scales, bytes) of memories with their scales, of a scan's h and open in halves.
    template <class Take> __device__ __forceinline__ void items(const Take &take) const
    {
        constexpr uint32_t bytes = 16 * layers_slot_words, scales = 4 * layers_n;
        for (uint32_t i = 0; shape.does_scan() && i < (shape.has_open ? 4 : 2); i++)
            if (!take(place(i < 2 ? PLACE_H : PLACE_OPEN) + uint64_t(shape.role().head) * (2 * bytes) + i % 2 * bytes, bytes, 0, 0)) return;
        shape.each_head([&](uint32_t head, uint32_t m, uint32_t end) {
            for (; m < end; m++) {
                uint32_t run = 0, number = m;
                while (run + 1 < shape.args.runs && number >= shape.seen_of(run)) number -= shape.seen_of(run++);
                const uint64_t at = uint64_t(number) * shape.H + head;
                if (!take(place(PLACE_RUNS + 2 * run) + at * bytes, bytes, place(PLACE_RUNS + 2 * run + 1) + at * scales, scales)) return;
            }
        });
    }
};

// Fills a ring. No more than `most` places are on their way: posts and looks at them would wait behind them.
struct LayersCopies : LayersWalk {
    RingPlace *ring;
    uint32_t room, most, on_their_way = 0;
    RingTurn turn, oldest; // what is asked for next; of what is on its way

    __device__ __forceinline__ LayersCopies(const LayersShape &shape, RingPlace *ring, uint32_t room, uint32_t most)
        : LayersWalk(shape), ring(ring), room(room), most(most)
    {
    }
    // Copies two parts, of which one may be empty, to the next place when it is free; false where this block has given up.
    __device__ __forceinline__ bool copy(void *to, uint64_t from, uint32_t bytes, void *to_second, uint64_t second, uint32_t second_bytes)
    {
        if (has_given_up()) return false;
        if (on_their_way == most) {
            wait_until_there(ring[oldest.at], oldest);
            oldest.skip(1, room);
        } else {
            on_their_way++;
        }
        while (!is_empty(ring[turn.at], turn))
            if (has_given_up()) return false;
        const uint32_t there = attend::shared_address(&ring[turn.at].there);
        if (threadIdx.x % 32 == 0) {
            attend::barrier_arrive_bytes(there, bytes + second_bytes);
            if (bytes > 0) attend::bulk_copy(attend::shared_address(to), reinterpret_cast<const void *>(from), bytes, there);
            if (second_bytes > 0) attend::bulk_copy(attend::shared_address(to_second), reinterpret_cast<const void *>(second), second_bytes, there);
        }
        turn.skip(1, room);
        return true;
    }
    // Nothing may be on its way to shared memory when a block ends: waits for the last of what was asked for.
    __device__ __forceinline__ void drain() const
    {
        for (uint32_t i = 0; i < room; i++)
            if (i < turn.at || turn.round > 0)
                attend::barrier_wait(attend::shared_address(&ring[i].there), (i < turn.at ? turn.round : turn.round - 1) & 1);
    }
};

// Brings to the L2 cache what threads that compute load by themselves: of the norms every block a share, of channels and of scans' heads this block's
// own.
__device__ __forceinline__ void announce_numbers(const LayersShape &shape, const LayersWalk &walk, uint32_t tail_bytes)
{
    const uint32_t lane = threadIdx.x % 32, lines = shape.W / 32, begin = shape.begin_of(shape.outputs), rows = shape.rows_of(shape.outputs);
    const uint64_t norm = walk.place(PLACE_NORM), norm_y = walk.place(PLACE_MIXER_NORM);
    const auto announce_at = [](uint64_t from, uint64_t bytes) { announce(reinterpret_cast<const char *>(from + bytes)); };
    for (uint32_t line = blockIdx.x + lane * gridDim.x; line < lines + shape.I / 32; line += 32 * gridDim.x)
        if (line < lines) announce_at(norm, 128 * line);
        else announce_at(norm_y, 128 * (line - lines));
    const uint64_t taps = walk.place(PLACE_TAPS), bias = walk.place(PLACE_BIAS), tail = walk.place(PLACE_TAIL);
    const uint64_t sma_taps = walk.place(PLACE_SMA_TAPS), sma_bias = walk.place(PLACE_SMA_BIAS), sma_tail = walk.place(PLACE_SMA_TAIL);
    for (uint32_t row = lane; row < rows; row += 32) {
        const auto channel = shape.channel_of(begin + row);
        if (!channel.is_channel) continue;
        const uint64_t bias_of = channel.inner ? bias : sma_bias;
        announce_at(channel.inner ? taps : sma_taps, 4 * layers_taps * channel.number);
        if (bias_of != 0) announce_at(bias_of, 4 * channel.number);
        for (uint32_t k = 0; k + 1 < layers_taps; k++)
            announce_at(channel.inner ? tail : sma_tail, tail_bytes * (k * (channel.inner ? shape.channels : layers_queries) + channel.number));
    }
    if (shape.does_attend()) return;
    const uint32_t which = lane == 0 ? PLACE_A_LOG : lane == 1 ? PLACE_DT_BIAS : lane == 2 ? PLACE_D : PLACE_OPEN_DECAY;
    const uint64_t numbers = walk.place(which);
    if (shape.does_scan() && lane < (shape.has_open ? 4 : 3)) announce_at(numbers, 4 * shape.role().head);
}

constexpr uint32_t layers_bytes_on_their_way = 49152; // of weights, in a block
__device__ __forceinline__ void copy_weights(const LayersShape &shape, uint32_t tail_bytes)
{
    LayersCopies copies(shape, layers_shared().weight_places, layers_ring_words / shape.W,
                        max(layers_bytes_on_their_way / (2 * layers_place_rows * shape.W), 1u));
    const auto take = [&](uint64_t from, uint32_t bytes, uint64_t second, uint32_t second_bytes) {
        char *to = reinterpret_cast<char *>(layers_shared().weights + copies.turn.at * shape.W);
        return copies.copy(to, from, bytes, to + bytes, second, second_bytes);
    };
    for (uint32_t layer = 0; copies.begin(layer); layer++) {
        announce_numbers(shape, copies, tail_bytes);
        copies.rows_in(take);
        copies.rows_out(take);
    }
    copies.drain();
}
__device__ __forceinline__ void copy_items(const LayersShape &shape)
{
    LayersCopies copies(shape, layers_shared().item_places, layers_slots, layers_slots);
    const auto take = [&](uint64_t from, uint32_t bytes, uint64_t scales, uint32_t scales_bytes) {
        return copies.copy(layers_shared().items[copies.turn.at], from, bytes, layers_shared().scales[copies.turn.at], scales, scales_bytes);
    };
    for (uint32_t layer = 0; copies.begin(layer); layer++) copies.items(take);
    copies.drain();
}

#endif
