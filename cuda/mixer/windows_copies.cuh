// The copies of windows.cu: a warp brings weights, states and memories to the ring in the order in which they are needed, as far ahead as there is
// room.
#ifndef DART_MIXER_WINDOWS_COPIES_CUH
#define DART_MIXER_WINDOWS_COPIES_CUH

#include "windows_shape.cuh"

// Rows of weights in a place of the ring: 16 bytes apart besides, so that eight rows begin in different banks.
__device__ __forceinline__ uint32_t windows_row(uint32_t inputs) { return 2 * inputs + 16; }

// A warp that copies goes from layer to layer, all of it the same way: lane k holds place k of the layer.
struct WindowsWalk : WindowsSizes {
    const uint64_t *table;
    uint64_t own, next;

    __device__ __forceinline__ explicit WindowsWalk(const WindowsSizes &sizes)
        : WindowsSizes(sizes), table(sizes.places + RUN_PAIRS + threadIdx.x % 32), own(0)
    {
        static_assert(PLACE_STEPS == 32, "what copies need is a place a lane");
        next = ask_place(table);
    }
    __device__ __forceinline__ bool begin(uint32_t layer)
    {
        if (layer == args.layers || windows_gave_up()) return false;
        own = next;
        table += WINDOW_PLACES;
        if (layer + 1 < args.layers) next = ask_place(table);
        return true;
    }
    __device__ __forceinline__ uint64_t place(uint32_t which) const { return __shfl_sync(0xffffffffu, own, which); }
};

// Places that are on their way at a time. One to nine of them took as long within 3 % (H200, November 2026).
constexpr uint32_t windows_on_their_way = 2;

struct WindowsCopies : WindowsWalk {
    uint32_t lane = threadIdx.x % 32, on_their_way = 0;
    RingTurn turn, oldest;
    using WindowsWalk::WindowsWalk;

    // Copies `bytes` from `from` to `to` in the next place once that is free, each of lanes 0 .. `lanes` - 1 its own; `all` together. False where
    // this block has given up.
    __device__ __forceinline__ bool copy(uint64_t from, uint32_t to, uint32_t bytes, uint32_t lanes, uint32_t all)
    {
        if (on_their_way == windows_on_their_way) {
            wait_until_there(windows_shared().places[oldest.at], oldest);
            oldest.skip(1, windows_room);
        } else {
            on_their_way++;
        }
        while (!is_empty(windows_shared().places[turn.at], turn))
            if (windows_gave_up()) return false;
        const uint32_t there = attend::shared_address(&windows_shared().places[turn.at].there);
        if (lane == 0) {
            attend::barrier_arrive_bytes(there, all);
            store_count(&windows_shared().asked, turn.round * windows_room + turn.at + 1);
        }
        __syncwarp();
        const uint32_t place_at = attend::shared_address(windows_shared().ring[turn.at]);
        if (lane < lanes) attend::bulk_copy(place_at + to, reinterpret_cast<const void *>(from), bytes, there);
        turn.skip(1, windows_room);
        return !windows_gave_up();
    }
    // All of a layer in the order in which it is read: tiles of in_proj; the states of this block's heads, then memory by memory those of its heads;
    // tiles of out_proj, each in two halves of its inputs.
    __device__ __forceinline__ bool copy_layer()
    {
        const uint64_t in = place(PLACE_IN_PROJ), sma = place(PLACE_SMA_PROJ), out = place(PLACE_OUT_PROJ);
        const uint64_t states = place(PLACE_HIN), scales = place(PLACE_HIN_SCALE), head = uint64_t(shape().b) * args.H + shape().first_head;
        const uint32_t items = shape().has_heads ? shape().ring_states() + shape().heads * shape().seen : 0;
        const uint32_t all = shape().tiles_in + items + 2 * shape().tiles_out;
        uint32_t j = 0, m = 0, run = 0; // of the next item: its head; memory m of a run, 0 for the states, which come first
        bool of_state = true;
#pragma unroll 1
        for (uint32_t i = 0; i < all; i++) {
            uint64_t from;
            uint32_t to = lane * windows_row(args.W), bytes = 2 * args.W, lanes = 8;
            if (i < shape().tiles_in) {
                const uint32_t o = 8 * (shape().begin_in + i) + lane; // of sma_proj there are as many rows as tiles ask for
                from = o < rows() || !has_open() ? in + uint64_t(min(o, rows() - 1)) * bytes : sma + uint64_t(o - rows()) * bytes;
            } else if (i < shape().tiles_in + items) {
                uint64_t base = states, sizes = scales, at = head + j;
                if (!of_state) {
                    base = place(PLACE_RUNS + 2 * run), sizes = place(PLACE_RUNS + 2 * run + 1);
                    at = (uint64_t(shape().b) * windows_shared().runs[run].y + m) * args.H + shape().first_head + j;
                }
                from = lane == 0 ? base + at * windows_item : sizes + at * (4 * windows_n);
                to = lane * windows_item, bytes = lane == 0 ? windows_item : 4 * windows_n, lanes = 2;
                if (++j == (of_state ? shape().ring_states() : shape().heads)) {
                    j = 0;
                    if (of_state) of_state = false;
                    else m++;
                    while (run < args.runs && m >= shape().seen_of[run]) m = 0, run++;
                }
            } else {
                const uint32_t part = i - shape().tiles_in - items;
                bytes = width(), to = lane * (bytes + 16);
                from = out + (uint64_t(8 * (shape().begin_out + part / 2) + lane) * 2 + part % 2) * bytes;
            }
            if (!copy(from, to, bytes, lanes, lanes == 2 ? windows_place : 8 * bytes)) return false;
        }
        return true;
    }
    // Nothing may be on its way to shared memory when a block ends: waits for the last of what was asked for.
    __device__ __forceinline__ void drain() const
    {
        for (uint32_t i = 0; i < windows_room; i++)
            if (i < turn.at || turn.round > 0)
                attend::barrier_wait(attend::shared_address(&windows_shared().places[i].there), (i < turn.at ? turn.round : turn.round - 1) & 1);
    }
};

__device__ __forceinline__ void windows_copy(const WindowsSizes &sizes)
{
    WindowsCopies copies(sizes);
    for (uint32_t layer = 0; copies.begin(layer) && copies.copy_layer(); layer++) continue;
    copies.drain();
}

#endif
