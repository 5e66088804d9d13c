// What all stages of windows.cu share: who does what, where things lie, and how blocks wait for one another.
#ifndef DART_MIXER_WINDOWS_SHAPE_CUH
#define DART_MIXER_WINDOWS_SHAPE_CUH

#include "resident.cuh"

constexpr uint32_t windows_threads = 512, windows_warps = windows_threads / 32; // that compute
constexpr uint32_t windows_n = 128, windows_p = 64, windows_taps = 4;
constexpr uint32_t windows_queries = windows_n + windows_p;     // channels of [q|e]; the gate is next
constexpr uint32_t windows_rows_in = 32, windows_rows_out = 16; // of a tile of in_proj, of out_proj
constexpr uint32_t windows_most_in = 8;                         // tiles of eight outputs of in_proj in a block
constexpr uint32_t windows_room = WINDOWS_RING, windows_readers = 8;       // places of the ring; arrivals when one has been read
constexpr uint32_t windows_item = windows_n * windows_p * 2;    // bytes of a state or a memory
constexpr uint32_t windows_place = windows_item + 4 * windows_n; // ... and with its scales
constexpr uint32_t windows_keys = WINDOW * windows_n * 2;       // bytes of b in a window
constexpr uint32_t windows_most_heads = WINDOWS_MOST_HEADS;                     // in a block
// Bytes of the inputs of a stage; for the heads b and the states that the ring has no room for.
constexpr uint32_t windows_inputs = windows_keys + (windows_most_heads - windows_room) * windows_place;
constexpr uint32_t windows_pitch_in = 72, windows_pitch_out = 40; // of partial sums

// Who does what, and where: for all threads of a block, in shared memory, where it takes no registers.
struct WindowsShape {
    uint32_t member, blocks;   // this block is number `member` of the `blocks` of its group
    uint32_t first, sequences; // those of the group
    // The tiles of eight outputs of in_proj and sma_proj; of out_proj, for a quarter of the sequences at a time, from first_row of the group on.
    uint32_t begin_in, tiles_in, begin_out, tiles_out, first_row, quarter_member;
    // The heads of a sequence whose windows this block has, its place in its window, and the memories that it sees of all runs and of each.
    uint32_t has_heads, b, first_head, heads, position, slot, seen, seen_of[MIXER_RUNS];

    static __device__ __forceinline__ uint32_t share_of(uint32_t count, uint32_t i, uint32_t of) { return uint32_t(uint64_t(count) * i / of); }
    // Blocks of the quarter that has row `row` of the group's.
    __device__ __forceinline__ uint32_t blocks_of(uint32_t row) const
    {
        const uint32_t quarters = ceil_div(sequences, windows_rows_out), each = blocks / quarters;
        return row / windows_rows_out + 1 < quarters ? each : blocks - (quarters - 1) * each;
    }
    // The states of this block's heads that the ring has: the others lie among the inputs.
    __device__ __forceinline__ uint32_t ring_states() const { return min(heads, windows_room); }
    __device__ __forceinline__ void make(const mixer_windows_args &args, uint32_t outputs, const int32_t *seq, const uint2 *runs)
    {
        blocks = gridDim.x / args.groups;
        const uint32_t group = min(blockIdx.x / blocks, args.groups - 1);
        member = blockIdx.x - group * blocks;
        if (group + 1 == args.groups) blocks = gridDim.x - group * blocks;
        first = group * args.members;
        sequences = min(args.B - first, args.members);
        const uint32_t in = ceil_div(outputs, 8);
        begin_in = share_of(in, member, blocks);
        tiles_in = share_of(in, member + 1, blocks) - begin_in;
        const uint32_t quarters = ceil_div(sequences, windows_rows_out), quarter = min(member / (blocks / quarters), quarters - 1);
        first_row = quarter * windows_rows_out;
        quarter_member = member - quarter * (blocks / quarters);
        begin_out = share_of(args.W / 8, quarter_member, blocks_of(first_row));
        tiles_out = share_of(args.W / 8, quarter_member + 1, blocks_of(first_row)) - begin_out;
        b = first + member / args.share;
        first_head = member % args.share * args.heads;
        heads = first_head < args.H ? min(args.heads, args.H - first_head) : 0;
        position = slot = seen = 0;
        has_heads = member / args.share < sequences && heads > 0;
        const Piece piece = has_heads ? piece_of(seq, args.flags, 1, b) : Piece{0, 0};
        has_heads = piece.count != 0;
        position = piece.position;
        slot = position % args.S % WINDOW;
        for (uint32_t i = 0; i < args.runs; i++) {
            const uint32_t all = position / args.S;
            seen_of[i] = all > runs[i].x ? min(all - runs[i].x, runs[i].y) : 0;
            seen += seen_of[i];
        }
    }
};

// What the convolutions of a block's outputs read: inputs before this token's, taps and biases; of steps a_log and their biases.
struct WindowsTails {
    uint16_t inputs[windows_rows_in][windows_taps - 1][8 * windows_most_in];
    float taps[8 * windows_most_in * windows_taps], biases[8 * windows_most_in];
};
struct WindowsShared {
    char ring[windows_room][windows_place];
    // In turn: the inputs of in_proj; its partial sums; b of the window, and states; the inputs of out_proj; its partial sums.
    char inputs[windows_inputs];
    WindowsTails tails;
    float c[windows_n], queries[windows_queries + 1], scores[WINDOW], roots[windows_rows_in], squares[windows_warps];
    RingPlace places[windows_room];
    // Barriers. A phase of each kind of stage ends when the block has finished one; of inputs_free, when nobody reads sums there; of the others, when
    // they are there: tails; what lies among the inputs for the heads; the rows of inputs of a product.
    uint64_t finished[3], inputs_free, tails_there, extras_there, rows_there;
    uint64_t table[2 * WINDOW_PLACES]; // of this layer and of the next
    uint2 runs[RUN_PAIRS];             // first and M
    WindowsShape shape;
    // Of the group's sequences: their places in their windows, below 0 where a sequence takes no step, and their positions; those that fold.
    int32_t slots[windows_rows_in];
    uint32_t positions[windows_rows_in], folding[windows_rows_in], folding_count;
    uint32_t gave_up, asked;           // asked: how often the ring was asked for a copy
};
static_assert(sizeof(WindowsShared) <= SHARED_mixer_windows_resident, "shared memory");
__device__ __forceinline__ WindowsShared &windows_shared() { return *reinterpret_cast<WindowsShared *>(tensor_memory); }
__device__ __forceinline__ bool windows_gave_up() { return *reinterpret_cast<const volatile uint32_t *>(&windows_shared().gave_up) != 0; }

// ---- Work that blocks pass to one another, in f32 but for inputs of products ----
struct WindowsWork {
    float *base;
    const mixer_windows_args &args;
    __device__ __forceinline__ uint32_t width() const { return args.H * windows_p; }
    __device__ __forceinline__ uint32_t blocks() const { return gridDim.x / args.groups + args.groups; } // of a group, at most
    __device__ __forceinline__ uint16_t *inputs() const { return reinterpret_cast<uint16_t *>(base); }             // x norm, B W
    __device__ __forceinline__ uint16_t *outputs() const { return inputs() + size_t(args.B) * args.W; }            // of the mixer, times norm, B I
    __device__ __forceinline__ float *input_squares() const { return base + size_t(args.B) * (args.W + width()) / 2; } // B blocks()
    __device__ __forceinline__ float *output_squares() const { return input_squares() + size_t(args.B) * blocks(); } // B share
};

// Sizes of a launch.
struct WindowsSizes {
    const mixer_windows_args &args;
    const uint64_t *places;
    __device__ __forceinline__ uint32_t width() const { return args.H * windows_p; }              // I
    __device__ __forceinline__ uint32_t channels() const { return width() + 2 * windows_n; }      // of the convolution of [x|b|c]
    __device__ __forceinline__ uint32_t kept() const { return width() + windows_n; }              // of a row of the window
    __device__ __forceinline__ uint32_t rows() const { return width() + channels() + args.H; }    // of in_proj
    __device__ __forceinline__ bool has_open() const { return args.flags & HAS_OPEN; }
    __device__ __forceinline__ uint32_t outputs() const { return has_open() ? rows() + windows_queries + 1 : rows(); } // with sma_proj and the gate
    static __device__ __forceinline__ const WindowsShape &shape() { return windows_shared().shape; }
    __device__ __forceinline__ uint64_t place_of(uint32_t layer, uint32_t which) const
    {
        return ask_place(places + RUN_PAIRS + layer * WINDOW_PLACES + which);
    }
};

// The eight outputs of a tile are of one kind: z, channels of one of the convolutions, steps, or the gate.
struct WindowsChannel {
    bool inner, is_channel, is_step;
    uint32_t number; // of the channel, or of the step's head
};
struct WindowsOutputs : WindowsSizes {
    __device__ __forceinline__ WindowsChannel channel_of(uint32_t o) const
    {
        const bool inner = o < rows(), is_step = inner && o >= width() + channels();
        const bool is_channel = inner ? o >= width() && !is_step : o - rows() < windows_queries;
        return {inner, is_channel, is_step, !inner ? o - rows() : is_step ? o - width() - channels() : o - width()};
    }
};

// What the blocks of a group finish in each layer: the products of the input, the heads, the products of the output. The latter two they post.
enum WindowsStage { windows_heads, windows_out, windows_in };
constexpr uint32_t windows_posts_begin = 8, windows_posted = 2;
__device__ __forceinline__ uint64_t *windows_posts(uint64_t *posts, WindowsStage stage)
{
    return posts + windows_posts_begin + stage * gridDim.x + (blockIdx.x - windows_shared().shape.member);
}
// Waits for the phase of a barrier in layer `layer`, of which each layer has one; false where this block has given up.
__device__ __forceinline__ bool windows_await(const uint64_t &barrier, uint32_t layer)
{
    while (!attend::barrier_passed(attend::shared_address(&barrier), layer & 1))
        if (windows_gave_up()) return false;
    return true;
}
// A thread that posts the tag of a layer for each stage that the block has finished, in their order: it waits until all stores of the block have
// arrived.
__device__ __forceinline__ void windows_post(const mixer_windows_args &args, uint64_t *posts)
{
    const uint32_t begun = uint32_t(load_post(posts)) + 1;
    for (uint32_t i = 0; i < 2 * args.layers; i++) { // what goes into the first layer counts as an output
        const WindowsStage stage = i % 2 == 0 ? windows_out : windows_heads;
        if (!windows_await(windows_shared().finished[stage], i / 2)) return;
        release_post(windows_posts(posts, stage) + windows_shared().shape.member, uint64_t(begun + i / 2) << 32);
    }
}

// The layer at hand, in a thread that computes.
struct Windows : WindowsOutputs {
    uint64_t *posts;
    WindowsWork work;
    uint32_t lane, warp, tag;
    RingTurn turn;

    __device__ __forceinline__ Windows(const WindowsSizes &sizes, uint64_t *posts, float *base)
        : WindowsOutputs{sizes}, posts(posts), work{base, sizes.args}, lane(threadIdx.x % 32), warp(threadIdx.x / 32), tag(0)
    {
    }

    __device__ __forceinline__ void meet() const { asm volatile("bar.sync 1, %0;" ::"n"(windows_threads) : "memory"); }
    template <class T> static __device__ __forceinline__ T *at(uint32_t layer, uint32_t which)
    {
        return reinterpret_cast<T *>(windows_shared().table[layer % 2 * WINDOW_PLACES + which]);
    }

    // Numbers that pass from in_proj and sma_proj to the heads have a tag each, so that nothing but they need arrive: those of a sequence by outputs,
    // then the log-decays of its heads.
    __device__ __forceinline__ uint64_t *number_at(uint32_t sequence, uint32_t output) const
    {
        return posts + windows_posts_begin + windows_posted * gridDim.x + size_t(sequence) * ((outputs() + args.H + 1) / 2 * 2) + output;
    }
    __device__ __forceinline__ void post_number(uint64_t *word, float value) const { store_post(word, uint64_t(tag) << 32 | __float_as_uint(value)); }
    // After a meet().
    __device__ __forceinline__ void finished(WindowsStage stage) const
    {
        if (threadIdx.x == 0) attend::barrier_arrive(attend::shared_address(&windows_shared().finished[stage]));
    }
    // Waits for the posts of members from .. from + count - 1. False where one never came; all threads learn that together.
    __device__ __forceinline__ bool await(WindowsStage stage, uint32_t from, uint32_t count) const
    {
        if (threadIdx.x < count) {
            const uint64_t *word = windows_posts(posts, stage) + from + threadIdx.x;
            bool missing = true;
#pragma unroll 1
            for (uint32_t tries = 0; missing && tries < MIXER_PATIENCE; tries++) missing = uint32_t(acquire_post(word) >> 32) != tag;
            if (missing) windows_shared().gave_up = 1;
        }
        meet();
        return windows_shared().gave_up == 0;
    }
};

#endif
