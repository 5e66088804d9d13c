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

// Places that are on their way at a time. More of them come sooner, but delay what blocks pass to one another: with four of all kinds a step of 64
// sequences takes 2 % longer, with two memories arrive at 0.9 of the rate (H200, November 2026).
constexpr uint32_t windows_on_their_way = 2, windows_memories_on_their_way = 4;

// One place's worth: eight rows of weights, of in_proj's or sma_proj's or half of out_proj's inputs, or a state or a memory with its scales.
enum WindowsCopyKind { windows_copy_in, windows_copy_out, windows_copy_state, windows_copy_memory };
struct WindowsCopy {
    uint64_t from, scales;
    uint32_t kind;
};

struct WindowsCopies : WindowsWalk {
    uint32_t lane = threadIdx.x % 32, on_their_way = 0;
    RingTurn turn, oldest;
    using WindowsWalk::WindowsWalk;

    // Number i of a layer's copies, in the order in which they are read: tiles of in_proj; the states of this block's heads, then memory by memory
    // those of its heads; tiles of out_proj, each in two halves of its inputs. Each lane works out one of its own.
    __device__ __forceinline__ WindowsCopy copy_at(uint32_t i) const
    {
        const uint32_t items = items_count();
        uint32_t kind = windows_copy_state, which = PLACE_HIN;
        uint64_t bytes, head = uint64_t(shape().b) * args.H + shape().first_head;
        if (i < shape().tiles_in) {
            const uint32_t o = 8 * (shape().begin_in + i); // of sma_proj there are as many rows as tiles ask for
            const bool inner = o < rows();
            kind = windows_copy_in, which = inner ? PLACE_IN_PROJ : PLACE_SMA_PROJ;
            bytes = uint64_t(inner ? o : o - rows()) * (2 * args.W);
        } else if (i >= shape().tiles_in + items) {
            const uint32_t part = i - shape().tiles_in - items;
            kind = windows_copy_out, which = PLACE_OUT_PROJ;
            bytes = (uint64_t(8 * (shape().begin_out + part / 2)) * 2 + part % 2) * width();
        } else if (i - shape().tiles_in < shape().ring_states()) {
            head += i - shape().tiles_in;
        } else {
            const uint32_t k = i - shape().tiles_in - shape().ring_states();
            uint32_t m = k / shape().heads, run = 0;
            for (; run + 1 < args.runs && m >= shape().seen_of[run]; run++) m -= shape().seen_of[run];
            kind = windows_copy_memory, which = PLACE_RUNS + 2 * run;
            head = (uint64_t(shape().b) * windows_shared().runs[run].y + m) * args.H + shape().first_head + k % shape().heads;
        }
        const uint64_t base = place(which), scales = place(which + 1);
        if (kind == windows_copy_state || kind == windows_copy_memory) bytes = head * windows_item;
        return {base + bytes, scales + head * (4 * windows_n), kind};
    }
    __device__ __forceinline__ uint32_t items_count() const { return shape().has_heads ? shape().ring_states() + shape().heads * shape().seen : 0; }
    // Asks for what lane k has worked out, in the next place once that is free. False where this block has given up.
    __device__ __forceinline__ bool ask(const WindowsCopy &copy, uint32_t k)
    {
        const uint32_t kind = __shfl_sync(0xffffffffu, copy.kind, k);
        const uint64_t from = __shfl_sync(0xffffffffu, copy.from, k), scales = __shfl_sync(0xffffffffu, copy.scales, k);
        for (; on_their_way >= (kind == windows_copy_memory ? windows_memories_on_their_way : windows_on_their_way); on_their_way--) {
            wait_until_there(windows_shared().places[oldest.at], oldest);
            oldest.step(windows_room);
        }
        on_their_way++;
        while (!is_empty(windows_shared().places[turn.at], turn))
            if (windows_gave_up()) return false;
        const uint32_t there = attend::shared_address(&windows_shared().places[turn.at].there);
        const uint32_t to = attend::shared_address(windows_shared().ring[turn.at]);
        const uint32_t apart = 2 * (kind == windows_copy_in ? args.W : width()), row = kind == windows_copy_in ? apart : apart / 2; // of weights
        if (lane == 0 && (kind == windows_copy_state || kind == windows_copy_memory)) {
            attend::barrier_arrive_bytes(there, windows_place);
            store_count(&windows_shared().asked, turn.round * windows_room + turn.at + 1);
            attend::bulk_copy(to, reinterpret_cast<const void *>(from), windows_item, there);
            attend::bulk_copy(to + windows_item, reinterpret_cast<const void *>(scales), 4 * windows_n, there);
        } else if (lane == 0) {
            attend::barrier_arrive_bytes(there, 8 * row);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                attend::bulk_copy(to + i * (row + 16), reinterpret_cast<const char *>(from) + i * apart, row, there);
        }
        __syncwarp();
        turn.step(windows_room);
        return true;
    }
    __device__ __forceinline__ bool copy_layer()
    {
        const uint32_t all = shape().tiles_in + items_count() + 2 * shape().tiles_out;
#pragma unroll 1
        for (uint32_t begin = 0; begin < all; begin += 32) {
            const WindowsCopy copy = copy_at(min(begin + lane, all - 1));
            const uint32_t count = min(all - begin, 32u);
#pragma unroll 1
            for (uint32_t k = 0; k < count; k++)
                if (!ask(copy, k)) return false;
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
