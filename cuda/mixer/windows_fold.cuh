// What becomes of full windows in windows.cu, see WindowFoldArgs, once the last layer is done. All blocks of a group share the windows that fold, so
// that one sequence that folds does not keep the others waiting. The tokens of the window add a product of matrices to a state; step times x is split
// in two bf16 numbers, so that it errs by less than 2^-16. States go through shared memory, so that each access to memory is
// of whole lines.
#ifndef DART_MIXER_WINDOWS_FOLD_CUH
#define DART_MIXER_WINDOWS_FOLD_CUH

#include "windows_heads.cuh"

constexpr uint32_t windows_fold_heads = 6, windows_fold_keys = 2 * windows_n + 16; // of a part; bytes of a row of b

// The window of some heads of a sequence in a layer.
struct WindowsFoldPart {
    uint32_t row, first_head, heads; // row: of the sequence in the group
    uint64_t places;                 // of the layer: lane k holds place k, lane 0 that of steps
    __device__ __forceinline__ uint64_t place(uint32_t which) const
    {
        static_assert(PLACE_STEPS == 32 && PLACE_NORM == 0, "windows that fold need no norm");
        return __shfl_sync(0xffffffffu, places, which % 32);
    }
};
// What is left at the end of a window of its tokens, times their steps, as a sum of two bf16 numbers each, and of the open chunk and the state.
struct WindowsDecays {
    uint16_t weights[2][windows_fold_heads][WINDOW];
    float keep[windows_fold_heads], keep_h[windows_fold_heads];
};
// Lies where the ring and inputs lay, to which nobody copies any more. Tokens are x, then b, of every second part.
struct WindowsFolding {
    char tokens[2][WINDOW * (windows_fold_heads * windows_p * 2 + 16 + windows_fold_keys)];
    char rows[windows_warps][2][16][4 * windows_p + 16]; // of a warp's states and open chunks
    WindowsDecays decays[2];
};
static_assert(sizeof(WindowsFolding) <= windows_room * windows_place + windows_inputs, "room for what folds");

struct WindowsFold : WindowsHeads {
    using WindowsHeads::WindowsHeads;
    static constexpr uint32_t columns = windows_p / 8, blocks_of_rows = windows_n / 16; // tiles of eight columns; blocks of rows of a state

    static __device__ __forceinline__ WindowsFolding &folding() { return *reinterpret_cast<WindowsFolding *>(windows_shared().ring); }
    __device__ __forceinline__ uint32_t parts_of_heads() const { return ceil_div(args.H, windows_fold_heads); }
    __device__ __forceinline__ uint32_t parts() const { return windows_shared().folding_count * parts_of_heads() * args.layers; }
    __device__ __forceinline__ uint64_t ask_places(uint32_t k) const
    {
        const uint32_t layer = min(k, parts() - 1) / (parts_of_heads() * windows_shared().folding_count);
        return ask_place(this->places + RUN_PAIRS + layer * WINDOW_PLACES + (lane == 0 ? PLACE_STEPS : lane));
    }
    __device__ __forceinline__ WindowsFoldPart part_of(uint32_t k, uint64_t places) const
    {
        const uint32_t first_head = k % parts_of_heads() * windows_fold_heads, sequence = k / parts_of_heads();
        const uint32_t row = windows_shared().folding[sequence % windows_shared().folding_count];
        return {row, first_head, min(windows_fold_heads, args.H - first_head), places};
    }
    static __device__ __forceinline__ uint32_t value_row(const WindowsFoldPart &part) { return part.heads * windows_p * 2 + 16; }
    static __device__ __forceinline__ uint32_t tokens_at(uint32_t turn) { return attend::shared_address(folding().tokens[turn % 2]); }
    static __device__ __forceinline__ WindowsDecays &decays(uint32_t turn) { return folding().decays[turn % 2]; }
    // A warp folds sixteen rows of a head at a time: those of a part from `first_task` on.
    __device__ __forceinline__ uint32_t first_task(const WindowsFoldPart &part, uint32_t warp) const
    {
        return part.heads * blocks_of_rows * warp / windows_warps;
    }
    __device__ __forceinline__ float2 *step_at(const WindowsFoldPart &part) const
    {
        float2 *steps = reinterpret_cast<float2 *>(part.place(PLACE_STEPS));
        return steps + (size_t(shape().first + part.row) * WINDOW + lane) * args.H + part.first_head + warp;
    }
    __device__ __forceinline__ float *open_decay_at(const WindowsFoldPart &part) const
    {
        float *decays = reinterpret_cast<float *>(part.place(PLACE_OPEN_DECAY));
        return decays + size_t(shape().first + part.row) * args.H + part.first_head + warp;
    }
    // Of the part's head `warp`: {log-decay, step} of slot `lane`; the log-decay of the open chunk.
    float2 own;
    float before;

    __device__ __forceinline__ void fetch(const WindowsFoldPart &part, uint32_t turn)
    {
        const uint32_t to = tokens_at(turn), x_words = part.heads * (windows_p / 8), last = uint32_t(windows_shared().slots[part.row]);
        const uint16_t *rows = reinterpret_cast<const uint16_t *>(part.place(PLACE_ROWS)) + size_t(shape().first + part.row) * WINDOW * kept();
#pragma unroll 1
        for (uint32_t k = warp; k < WINDOW; k += windows_warps) {
            const uint16_t *row = rows + k * kept();
#pragma unroll 1
            for (uint32_t i = lane; i < x_words; i += 32)
                attend::copy_16_or_0(to + k * value_row(part) + 16 * i, row + part.first_head * windows_p + 8 * i, k <= last);
            if (lane < windows_n / 8)
                attend::copy_16_or_0(to + WINDOW * value_row(part) + k * windows_fold_keys + 16 * lane, row + width() + 8 * lane, k <= last);
        }
        attend::copies_commit();
        own = make_float2(0.0f, 0.0f);
        before = 0.0f;
        if (warp >= part.heads) return;
        const float2 *step = step_at(part);
        if (lane <= last) own = __ldcg(step);
        if (has_open()) before = __ldcg(open_decay_at(part));
    }
    __device__ __forceinline__ void decay(const WindowsFoldPart &part, uint32_t turn, bool closes) const
    {
        if (warp >= part.heads) return;
        float from = own.x; // the log-decays from this slot on
#pragma unroll
        for (uint32_t apart = 1; apart < 32; apart *= 2) {
            const float more = __shfl_down_sync(0xffffffffu, from, apart);
            if (lane + apart < 32) from += more;
        }
        const float next = __shfl_down_sync(0xffffffffu, from, 1);
        WindowsDecays &to = decays(turn);
        const float weight = exp_below(lane < 31 ? next : 0.0f) * own.y;
        const uint16_t high = uint16_t(to_bfloat(weight));
        to.weights[0][warp][lane] = high;
        to.weights[1][warp][lane] = uint16_t(to_bfloat(weight - from_bfloat(high)));
        *step_at(part) = make_float2(0.0f, 0.0f);
        float *const open_decay = open_decay_at(part);
        if (lane != 0) return;
        to.keep[warp] = exp_below(from);
        to.keep_h[warp] = has_open() ? exp_below(before + from) : 0.0f;
        if (has_open()) *open_decay = closes ? 0.0f : before + from;
    }

    // A pair of bf16 numbers times two weights, each a sum of two bf16 numbers, as such a sum. What `rounded` misses of the product with the first
    // has eight bits, so that it is exact; the product with the second is added and rounded, an error of less than 2^-17 of the whole.
    static __device__ __forceinline__ void weigh(uint32_t pair, uint32_t weights, uint32_t more, uint32_t &rounded, uint32_t &rest)
    {
        const auto both = [](uint32_t bits) { return reinterpret_cast<const __nv_bfloat162 &>(bits); };
        const __nv_bfloat162 product = __hmul2(both(pair), both(weights));
        const __nv_bfloat162 left = __hfma2(both(pair), both(more), __hfma2(both(pair), both(weights), __hneg2(product)));
        rounded = reinterpret_cast<const uint32_t &>(product);
        rest = reinterpret_cast<const uint32_t &>(left);
    }
    // Over the four lanes that share a row.
    static __device__ __forceinline__ float sum_of_row(float value)
    {
        value += __shfl_xor_sync(0xffffffffu, value, 1);
        return value + __shfl_xor_sync(0xffffffffu, value, 2);
    }
    // ---- Rows of a task: those of the state and of the open chunk, in shared memory ----

    // The number of the first among those of all sequences.
    __device__ __forceinline__ size_t first_number(const WindowsFoldPart &part, uint32_t task) const
    {
        const size_t head = size_t(shape().first + part.row) * args.H + part.first_head + task / blocks_of_rows;
        return head * windows_n + task % blocks_of_rows * 16;
    }
    using Rows = char[16][4 * windows_p + 16];
    // Lanes beside one another have sixteen bytes beside one another of rows of `bytes`: what(shared, global) for each sixteen of a lane.
    template <uint32_t bytes, class What> __device__ __forceinline__ void each_piece(Rows &rows, uint64_t at, const What &what) const
    {
        constexpr uint32_t lanes = bytes / 16;
#pragma unroll
        for (uint32_t row = 0; row < 16; row += 32 / lanes)
            what(rows[row + lane / lanes] + lane % lanes * 16, reinterpret_cast<char *>(at) + row * bytes + lane * 16);
    }
    template <uint32_t bytes> __device__ __forceinline__ void store_rows(Rows &rows, uint64_t at) const
    {
        __syncwarp();
        each_piece<bytes>(rows, at, [](const char *from, char *to) { *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from); });
        __syncwarp();
    }
    // Asks for the rows of a task, which form the newest group of copies. The warp is through with what lay there.
    __device__ __forceinline__ void ask_states(const WindowsFoldPart &part, uint32_t task) const
    {
        const auto ask = [](const char *to, const char *from) { attend::copy_16(attend::shared_address(to), from); };
        const uint64_t bytes = first_number(part, task) * (4 * windows_p), h = part.place(PLACE_H) + bytes, open = part.place(PLACE_OPEN) + bytes;
        if (task < first_task(part, warp + 1)) {
            each_piece<4 * windows_p>(folding().rows[warp][0], h, ask);
            if (has_open()) each_piece<4 * windows_p>(folding().rows[warp][1], open, ask);
        }
        attend::copies_commit();
    }
    // Of a tile of rows lane l has columns 2 (l % 4) and the next of rows l / 4 and l / 4 + 8.
    using Tiles = float2[2][columns];
    __device__ __forceinline__ void store(const Tiles &values, Rows &rows, uint64_t at) const
    {
#pragma unroll
        for (uint32_t i = 0; i < 2 * columns; i++)
            reinterpret_cast<float2 *>(rows[lane / 4 + i / columns * 8])[i % columns * 4 + lane % 4] = values[i / columns][i % columns];
        store_rows<4 * windows_p>(rows, at);
    }
    // Rounded rows and their scales, the root of their mean square, from row `number` on.
    __device__ __forceinline__ void store_rounded(const Tiles &values, Rows &rows, uint64_t at, uint64_t scales, size_t number) const
    {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            float squares = 0.0f;
#pragma unroll
            for (uint32_t tile = 0; tile < columns; tile++)
                squares = fmaf(values[r][tile].x, values[r][tile].x, fmaf(values[r][tile].y, values[r][tile].y, squares));
            const float scale = sqrtf(sum_of_row(squares) / float(windows_p) + args.sma_eps), factor = 1.0f / scale;
            if (lane % 4 == 0) reinterpret_cast<float *>(scales)[number + lane / 4 + 8 * r] = scale;
#pragma unroll
            for (uint32_t tile = 0; tile < columns; tile++)
                reinterpret_cast<uint32_t *>(rows[lane / 4 + 8 * r])[tile * 4 + lane % 4] =
                    pack<true>(factor * values[r][tile].x, factor * values[r][tile].y);
        }
        store_rows<2 * windows_p>(rows, at + number * (2 * windows_p));
    }
    // A memory of the chunk that closes, for the runs that have room for it.
    __device__ __forceinline__ void append(const WindowsFoldPart &part, uint32_t task, const Tiles &memory) const
    {
        const uint32_t m = windows_shared().positions[part.row] / args.S, b = shape().first + part.row;
        for (uint32_t c = 0; c < args.closing; c++) {
            const uint2 run = windows_shared().runs[MIXER_RUNS + c];
            if (m < run.x || m - run.x >= run.y) continue;
            const size_t before = (size_t(b) * run.y + (m - run.x)) - b; // memories of that many sequences more
            store_rounded(memory, folding().rows[warp][1], part.place(PLACE_CLOSING + 2 * c),
                          part.place(PLACE_CLOSING + 2 * c + 1), first_number(part, task) + before * args.H * windows_n);
        }
    }

    // A task: sixteen rows of head task / 8 of the part.
    __device__ __forceinline__ void fold_rows(const WindowsFoldPart &part, uint32_t turn, uint32_t task, bool closes) const
    {
        const uint32_t j = task / blocks_of_rows, n = task % blocks_of_rows * 16, tokens = tokens_at(turn);
        const WindowsDecays &left = decays(turn);
        const float keep = left.keep[j], keep_h = left.keep_h[j];
        // Lane l has of each tile of x tokens 2 (l % 4) and the next, and those eight further on, of both halves of the window.
        uint32_t weights[2][2][2];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            weights[i / 4][i / 2 % 2][i % 2] = *reinterpret_cast<const uint32_t *>(&left.weights[i % 2][j][8 * (i / 2) + lane % 4 * 2]);
        const uint32_t values_at = tokens + lane % 16 * value_row(part) + j * (2 * windows_p) + lane / 16 * 16;
        const uint32_t keys_at = tokens + WINDOW * value_row(part) + (lane % 8 + lane / 16 * 8) * windows_fold_keys + lane / 8 % 2 * 16 + 2 * n;
        Tiles state, open;
#pragma unroll
        for (uint32_t i = 0; i < 2 * columns; i++) {
            const uint32_t r = i % 2, tile = i / 2;
            const auto pair_of = [&](uint32_t k) {
                return reinterpret_cast<const float2 *>(folding().rows[warp][k][lane / 4 + 8 * r])[4 * tile + lane % 4];
            };
            state[r][tile] = pair_of(0);
            open[r][tile] = has_open() ? pair_of(1) : state[r][tile];
            open[r][tile] = make_float2(keep * open[r][tile].x, keep * open[r][tile].y);
        }
        __syncwarp();
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t keys[4]; // of 16 tokens and 16 n, turned: rows of the left operand are n
            attend::load_matrices_turned(keys, keys_at + 16 * half * windows_fold_keys);
#pragma unroll
            for (uint32_t tile = 0; tile < columns; tile += 2) {
                uint32_t raw[4];
                attend::load_matrices_turned(raw, values_at + 16 * half * value_row(part) + 16 * tile);
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    uint32_t high[2], low[2];
                    weigh(raw[2 * i], weights[half][0][0], weights[half][0][1], high[0], low[0]);
                    weigh(raw[2 * i + 1], weights[half][1][0], weights[half][1][1], high[1], low[1]);
                    float2 &upper = open[0][tile + i], &lower = open[1][tile + i];
                    float sums[4] = {upper.x, upper.y, lower.x, lower.y};
                    attend::multiply<DTYPE_BF16>(sums, keys, high);
                    attend::multiply<DTYPE_BF16>(sums, keys, low);
                    upper = make_float2(sums[0], sums[1]);
                    lower = make_float2(sums[2], sums[3]);
                }
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 2 * columns; i++) {
            const float2 now = open[i % 2][i / 2];
            float2 &all = state[i % 2][i / 2];
            all = has_open() ? make_float2(fmaf(keep_h, all.x, now.x), fmaf(keep_h, all.y, now.y)) : now;
        }
        // The state changes when the chunk closes, which leaves none open, or where there is no open chunk.
        Rows *rows = folding().rows[warp];
        const size_t number = first_number(part, task);
        store_rounded(state, rows[0], part.place(PLACE_HIN), part.place(PLACE_HIN_SCALE), number);
        if (closes || !has_open()) store(state, rows[0], part.place(PLACE_H) + number * (4 * windows_p));
        if (closes) append(part, task, open);
        if (!has_open()) return;
#pragma unroll
        for (uint32_t i = 0; i < 2 * columns && closes; i++) open[i % 2][i / 2] = make_float2(0.0f, 0.0f);
        store(open, rows[1], part.place(PLACE_OPEN) + number * (4 * windows_p));
    }

    // After all blocks of the group have posted the heads of the last layer, and with them all that goes into windows.
    __device__ __forceinline__ void fold()
    {
        const uint32_t all = parts(), member = shape().member, blocks = shape().blocks;
        if (member >= all) return;
        WindowsFoldPart part = part_of(member, ask_places(member));
        uint64_t next_places = ask_places(member + blocks);
        fetch(part, 0);
        ask_states(part, first_task(part, warp));
#pragma unroll 1
        for (uint32_t k = member, turn = 0; k < all; k += blocks, turn++) {
            const bool closes = has_open() && (windows_shared().positions[part.row] + 1) % args.S == 0;
            decay(part, turn, closes);
            attend::copies_wait_but<1>(); // the first task's rows
            meet();
            const WindowsFoldPart next = part_of(min(k + blocks, all - 1), next_places);
            next_places = ask_places(k + 2 * blocks);
            if (k + blocks < all) fetch(next, turn + 1);
            else attend::copies_commit();
            const uint32_t first = first_task(part, warp), end = first_task(part, warp + 1);
#pragma unroll 1
            for (uint32_t task = first; task < end; task++) {
                if (task == first) attend::copies_wait_but<1>(); // the next part's tokens
                else attend::copies_wait();
                __syncwarp();
                fold_rows(part, turn, task, closes);
                if (task + 1 < end) ask_states(part, task + 1);
            }
            part = next;
            if (k + blocks < all) ask_states(part, first_task(part, warp));
        }
        attend::copies_wait();
    }
};

#endif
