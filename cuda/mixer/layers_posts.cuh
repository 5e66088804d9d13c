// How the blocks of layers.cu pass numbers to one another: words with tags, rows of them, and what a stage gathers of both products.
#ifndef DART_MIXER_LAYERS_POSTS_CUH
#define DART_MIXER_LAYERS_POSTS_CUH

#include "resident.cuh"

constexpr uint32_t layers_threads = 512, layers_warps = layers_threads / 32; // that compute
constexpr uint32_t layers_n = 128, layers_p = 64, layers_taps = 4;
constexpr uint32_t layers_queries = layers_n + layers_p;              // channels of [q|e], then the gate
constexpr uint32_t layers_slots = 4;                                   // memories that are looked at together
constexpr uint32_t layers_rows = layers_n * layers_p / 8 / layers_threads; // words of each of them in a thread
constexpr uint32_t layers_state_rows = layers_n * layers_p / 4 / layers_threads;
constexpr uint32_t layers_partial = layers_p + 2;
constexpr uint32_t layers_step = 2 * layers_p + 2 * layers_n; // of a scan in `taken`: where the step lies; the gate is next

constexpr uint32_t layers_slot_words = layers_n * layers_p / 8; // of 16 bytes: a memory, or half of a state
constexpr uint32_t layers_ring_words = LAYERS_RING_WORDS;       // of the weights
// Rows of in_proj in a place of it, W words; warps that share a place, two rows each.
constexpr uint32_t layers_place_rows = LAYERS_PLACE_ROWS, layers_sharers = 4;
constexpr uint32_t layers_most_room = layers_ring_words / 256;
constexpr uint32_t layers_most_rows = 256;                       // of out_proj in a block

// What this block does, where it takes no registers. Memories of all heads, those of a head side by side, are shared out to the first `sharers`
// blocks; this one has numbers begin .. end - 1. A block that scans head `head`, none from H on, merges what `parts` blocks have of it.
struct LayersRole {
    uint32_t seen, sharers, begin, end, part, head, parts; // seen: memories of a head that the token sees; part: this block's of its first head
};

struct LayersShared {
    uint4 items[layers_slots][layers_slot_words], weights[layers_ring_words]; // see layers_copies.cuh
    float scales[layers_slots][layers_n];
    float4 low[512], high[512]; // an input row: of each eight elements the first and the last four
    float found[layers_warps * layers_p];
    float taken[layers_threads], sums[layers_warps], sums8[2][layers_warps * 8], parts[(MIXER_MOST_SPLITS + 1) * layers_partial];
    float outputs[layers_p], gates[layers_p + 1]; // of a scan: D x and C h; SiLU of z and of the gate
    float halves[2 * layers_most_rows]; // of outputs
    RingPlace item_places[layers_slots], weight_places[layers_most_room];
    uint64_t table[2 * PLACES]; // of this layer and of the next
    uint2 runs[RUN_PAIRS];      // first and M
    LayersRole role;
    uint32_t gave_up;
};
static_assert(sizeof(LayersShared) <= SHARED_mixer_layers_resident, "shared memory");
// No pointer to it is kept: a compiler that has lost sight of what one points to loads more slowly.
__device__ __forceinline__ LayersShared &layers_shared() { return *reinterpret_cast<LayersShared *>(tensor_memory); }

// Among the threads that compute.
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(layers_threads) : "memory"); }

// ---- What all stages share ----

// Of a launch: what threads that compute and threads that copy make of it.
struct LayersShape {
    const mixer_layers_args &args;
    const uint64_t *places;
    uint32_t W, H, I, channels, R, outputs; // I = H P; channels of the convolution of [x|b|c]; R rows of in_proj; outputs: with sma_proj and gate
    uint32_t position;
    uint32_t attends; // the first blocks share out the memories of all heads; H others have a scan each
    bool has_open;

    __device__ __forceinline__ LayersShape(const mixer_layers_args &args, const uint64_t *places, uint32_t position)
        : args(args), places(places), position(position)
    {
        W = args.W;
        H = args.H;
        I = H * layers_p;
        channels = I + 2 * layers_n;
        R = I + channels + H;
        has_open = args.flags & HAS_OPEN;
        outputs = has_open ? R + layers_queries + 1 : R;
        attends = has_open && args.runs > 0 ? min(H * args.splits, gridDim.x - H) : 0;
    }
    // What a thread works out for its block, see LayersRole.
    __device__ __forceinline__ void make_role(LayersRole &role) const
    {
        role.seen = 0;
        for (uint32_t i = 0; i < args.runs; i++) role.seen += seen_of(i);
        const uint32_t all = H * role.seen, block = blockIdx.x;
        role.sharers = min(attends, all);
        role.begin = block < role.sharers ? uint32_t(uint64_t(all) * block / role.sharers) : 0;
        role.end = block < role.sharers ? uint32_t(uint64_t(all) * (block + 1) / role.sharers) : 0;
        role.part = role.begin < role.end ? block - sharer_of(role.begin / role.seen * role.seen, role) : 0;
        role.head = block < attends ? H : block - attends;
        const uint32_t first = role.head * role.seen, last = first + role.seen;
        role.parts = role.head < H && role.seen > 0 ? sharer_of(last - 1, role) - sharer_of(first, role) + 1 : 0;
    }
    // The block that has number k of all memories of all heads.
    __device__ __forceinline__ uint32_t sharer_of(uint32_t k, const LayersRole &role) const
    {
        return uint32_t((uint64_t(k + 1) * role.sharers - 1) / (H * role.seen));
    }
    // Memories that the token sees of a run.
    __device__ __forceinline__ uint32_t seen_of(uint32_t run) const
    {
        const uint32_t all = position / args.S;
        const uint2 of = layers_shared().runs[run];
        return all > of.x ? min(all - of.x, of.y) : 0;
    }
    __device__ __forceinline__ bool does_attend() const { return blockIdx.x < attends; }
    __device__ __forceinline__ bool does_scan() const { return role().head < H; }
    static __device__ __forceinline__ const LayersRole &role() { return layers_shared().role; }
    // take(head, from, end) of each head of which this block has memories.
    template <class Take> __device__ __forceinline__ void each_head(const Take &take) const
    {
        for (uint32_t k = role().begin, next; k < role().end; k = next) {
            const uint32_t head = k / role().seen, first = head * role().seen;
            next = min(role().end, first + role().seen);
            take(head, k - first, next - first);
        }
    }
    // The channel of output o, of the convolution of [x|b|c] or of [q|e]; none where is_channel is false.
    struct Channel {
        bool inner, is_channel;
        uint32_t number;
    };
    __device__ __forceinline__ Channel channel_of(uint32_t o) const
    {
        const bool inner = o < R, is_channel = inner ? o >= I && o - I < channels : o - R < layers_queries;
        return {inner, is_channel, !is_channel ? 0 : inner ? o - I : o - R};
    }
    // Rows of out_proj that a place of the ring has: where they are longer than W, two warps share one.
    __device__ __forceinline__ uint32_t together() const { return I > W ? layers_place_rows / 2 : layers_place_rows; }
    // Block b makes outputs b count / blocks .. of `count`.
    static __device__ __forceinline__ uint32_t begin_of(uint32_t count) { return uint32_t(uint64_t(count) * blockIdx.x / gridDim.x); }
    static __device__ __forceinline__ uint32_t rows_of(uint32_t count)
    {
        return uint32_t(uint64_t(count) * (blockIdx.x + 1) / gridDim.x) - begin_of(count);
    }
};

// The layer at hand, in a thread that computes.
struct Layers : LayersShape {
    uint64_t *posts;
    float *x;
    uint32_t weight_dtype, tail_dtype, dh_dtype;
    uint32_t lane, warp, tag;

    __device__ __forceinline__ Layers(const LayersShape &shape, uint64_t *posts, float *x)
        : LayersShape(shape), posts(posts), x(x), lane(threadIdx.x % 32), warp(threadIdx.x / 32)
    {
    }

    __device__ __forceinline__ uint64_t place(uint32_t layer, uint32_t which) const { return layers_shared().table[layer % 2 * PLACES + which]; }
    template <class T> __device__ __forceinline__ T *at(uint32_t layer, uint32_t which) const
    {
        return reinterpret_cast<T *>(place(layer, which));
    }

    // Where posts lie.
    static constexpr uint32_t x_posts = 8;
    __device__ __forceinline__ uint32_t project_posts() const { return x_posts + W; }
    __device__ __forceinline__ uint32_t y_posts() const { return project_posts() + R + layers_queries + 1; }
    __device__ __forceinline__ uint32_t partial_posts() const { return y_posts() + I; }

    __device__ __forceinline__ void post(uint32_t word, float value) const
    {
        store_post(posts + word, uint64_t(tag) << 32 | __float_as_uint(value));
    }
    // 0 where the word is there.
    __device__ __forceinline__ uint32_t is_missing(uint64_t word) const { return uint32_t(word >> 32) ^ tag; }
    static __device__ __forceinline__ float number(uint64_t word) { return __uint_as_float(uint32_t(word)); }
    // Of a word that never came the other threads learn at the next barrier.
    __device__ __forceinline__ void give_up() const { layers_shared().gave_up = 1; }
    __device__ __forceinline__ float take(uint32_t at) const
    {
        uint64_t word = 0;
        bool missing = true;
        const uint64_t *from = anew(posts + at);
#pragma unroll 1
        for (uint32_t tries = 0; missing && tries < MIXER_PATIENCE; tries++) {
            word = load_post(from);
            missing = is_missing(word);
        }
        if (missing) give_up();
        return number(word);
    }

    // ---- Rows of inputs ----

    // The sum over the block of what warps left in `sums`.
    static __device__ __forceinline__ float sum_over_all()
    {
        static_assert(layers_warps == 16, "four words of four numbers");
        const float4 *sums = reinterpret_cast<const float4 *>(layers_shared().sums);
        float four[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) four[i] = sums[i].x + sums[i].y + (sums[i].z + sums[i].w);
        return four[0] + four[1] + (four[2] + four[3]);
    }
    // Eight sums over the warp, of which a lane gets number lane % 8: the lanes halve what they hold while they exchange the other half.
    __device__ __forceinline__ float sum_of_eight(const float (&values)[8]) const
    {
        const bool upper = lane & 4, right = lane & 2, odd = lane & 1;
        float four[4], two[2];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            four[i] = (upper ? values[4 + i] : values[i]) + __shfl_xor_sync(0xffffffffu, upper ? values[i] : values[4 + i], 4);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) two[i] = (right ? four[2 + i] : four[i]) + __shfl_xor_sync(0xffffffffu, right ? four[i] : four[2 + i], 2);
        float sum = (odd ? two[1] : two[0]) + __shfl_xor_sync(0xffffffffu, odd ? two[0] : two[1], 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 8);
        return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
    }
    // Eight sums over the block; `turn` alternates from call to call.
    __device__ __forceinline__ float sum_of_eight_over_all(const float (&values)[8], uint32_t turn) const
    {
        static_assert(layers_warps == 16, "a lane adds up what four warps have");
        float *sums = layers_shared().sums8[turn % 2];
        const float own = sum_of_eight(values);
        if (lane < 8) sums[8 * warp + lane] = own;
        meet();
        float sum = sums[lane] + sums[32 + lane] + (sums[64 + lane] + sums[96 + lane]);
        sum += __shfl_xor_sync(0xffffffffu, sum, 8);
        return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
    }
    // Waits for the row of `count` numbers that is posted at `from`; a thread looks at at_once of them together, from one address. low and high
    // become the row times its norms; returns the sum of the squares of this thread's numbers.
    template <uint32_t at_once> __device__ __forceinline__ float take_row(uint32_t from, uint32_t count, const float *norm) const
    {
        const uint32_t t = threadIdx.x;
        float *to = reinterpret_cast<float *>(t % 8 < 4 ? layers_shared().low : layers_shared().high) + t / 8 * 4 + t % 4; // element t
        const uint64_t *row = anew(posts + from + t);
        float squares = 0.0f;
#pragma unroll 1
        for (uint32_t first = t; first < count; first += at_once * layers_threads) {
            float norms[at_once];
            uint64_t words[at_once] = {};
#pragma unroll
            for (uint32_t k = 0; k < at_once; k++)
                if (first + k * layers_threads < count) norms[k] = ask_float(norm + first + k * layers_threads);
            uint32_t missing = 1;
#pragma unroll 1
            for (uint32_t tries = 0; missing != 0 && tries < MIXER_PATIENCE; tries++) {
                missing = 0;
#pragma unroll
                for (uint32_t k = 0; k < at_once; k++)
                    if (first + k * layers_threads < count) words[k] = load_post(row + k * layers_threads);
#pragma unroll
                for (uint32_t k = 0; k < at_once; k++)
                    if (first + k * layers_threads < count) missing |= is_missing(words[k]);
            }
            if (missing != 0) give_up();
#pragma unroll
            for (uint32_t k = 0; k < at_once; k++) {
                if (first + k * layers_threads >= count) continue;
                const float value = number(words[k]);
                to[k * (layers_threads / 2)] = value * norms[k];
                squares = fmaf(value, value, squares);
            }
            row += at_once * layers_threads;
            to += at_once * (layers_threads / 2);
        }
        meet();
        return squares;
    }
    // In one round each for models up to 1,536 wide.
    __device__ __forceinline__ float take_x(uint32_t layer) const { return take_row<3>(x_posts, W, at<const float>(layer, PLACE_NORM)); }
    __device__ __forceinline__ float take_y(uint32_t layer) const
    {
        return take_row<6>(y_posts(), I, at<const float>(layer, PLACE_MIXER_NORM));
    }

    // What memories and what the scan of a head read of the products: a thread's number. In `taken`, for memories: q, e, c; for a
    // scan: z, x, b, c, the step, the gate. The caller meets.
    __device__ __forceinline__ void gather(bool is_scan) const
    {
        const uint32_t t = threadIdx.x, head = role().head;
        const uint32_t count = !is_scan ? layers_queries + layers_n : has_open ? layers_step + 2 : layers_step + 1;
        uint32_t from = is_scan ? 2 * I + t - 2 * layers_p : 2 * I + layers_n + t - layers_queries; // b and c; c
        if (!is_scan && t < layers_queries) from = R + t;
        if (is_scan && t < layers_p) from = head * layers_p + t;
        else if (is_scan && t < 2 * layers_p) from = I + head * layers_p + t - layers_p;
        else if (is_scan && t == layers_step) from = I + channels + head;
        else if (is_scan && t == layers_step + 1) from = R + layers_queries;
        meet(); // taken and found are free
        if (t < count) layers_shared().taken[t] = take(project_posts() + from);
        __syncwarp();
    }
};

#endif
