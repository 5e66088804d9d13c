// What becomes of full windows in windows.cu, see WindowFoldArgs, once the last layer is done. All blocks of a group share the windows that fold, so
// that one sequence that folds does not keep the others waiting. The tokens of the window add a product of matrices to a state; step times x is split
// in two bf16 numbers, so that it errs by less than 2^-16. States go through shared memory, so that each access to memory is of whole lines.
#ifndef DART_MIXER_WINDOWS_FOLD_CUH
#define DART_MIXER_WINDOWS_FOLD_CUH

#include "windows_heads.cuh"

constexpr uint32_t windows_fold_heads = 6, windows_fold_keys = 2 * windows_n + 16; // of a part; bytes of a row of b

// The window of some heads of a sequence in a layer.
struct WindowsFoldPart {
    uint32_t layer, row, first_head, heads; // row: of the sequence in the group
};
// What is left of the tokens of the window, and of the state and the open chunk before it, at its end.
struct WindowsDecays {
    float weights[windows_fold_heads][WINDOW], keep[windows_fold_heads], keep_h[windows_fold_heads];
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
    __device__ __forceinline__ WindowsFoldPart part_of(uint32_t k) const
    {
        const uint32_t first_head = k / args.layers % parts_of_heads() * windows_fold_heads;
        return {k % args.layers, windows_shared().folding[k / args.layers / parts_of_heads()], first_head, min(windows_fold_heads, args.H - first_head)};
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
        float2 *steps = reinterpret_cast<float2 *>(place_of(part.layer, PLACE_STEPS));
        return steps + (size_t(shape().first + part.row) * WINDOW + lane) * args.H + part.first_head + warp;
    }
    __device__ __forceinline__ float *open_decay_at(const WindowsFoldPart &part) const
    {
        float *decays = reinterpret_cast<float *>(place_of(part.layer, PLACE_OPEN_DECAY));
        return decays + size_t(shape().first + part.row) * args.H + part.first_head + warp;
    }
    // Of the part's head `warp`: {log-decay, step} of slot `lane`; the log-decay of the open chunk.
    float2 own;
    float before;

    __device__ __forceinline__ void fetch(const WindowsFoldPart &part, uint32_t turn)
    {
        const uint32_t to = tokens_at(turn), x_words = part.heads * (windows_p / 8), last = uint32_t(windows_shared().slots[part.row]);
        const uint16_t *rows = reinterpret_cast<const uint16_t *>(place_of(part.layer, PLACE_ROWS)) + size_t(shape().first + part.row) * WINDOW * kept();
#pragma unroll 1
        for (uint32_t k = warp; k < WINDOW; k += windows_warps) {
            const uint16_t *row = rows + k * kept();
#pragma unroll 1
            for (uint32_t i = lane; i < x_words; i += 32)
                attend::copy_16_or_0(to + k * value_row(part) + 16 * i, row + part.first_head * windows_p + 8 * i, k <= last);
            if (lane < windows_n / 8)
                attend::copy_16_or_0(to + WINDOW * value_row(part) + k * windows_fold_keys + 16 * lane, row + width() + 8 * lane, k <= last);
        }
        own = make_float2(0.0f, 0.0f);
        before = 0.0f;
        if (warp >= part.heads) return;
        if (lane <= last) own = __ldcg(step_at(part));
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
        to.weights[warp][lane] = exp_below(lane < 31 ? next : 0.0f) * own.y;
        *step_at(part) = make_float2(0.0f, 0.0f);
        if (lane != 0) return;
        to.keep[warp] = exp_below(from);
        to.keep_h[warp] = has_open() ? exp_below(before + from) : 0.0f;
        if (has_open()) *open_decay_at(part) = closes ? 0.0f : before + from;
    }

    // A pair of numbers times two weights as a sum of two pairs of bf16.
    static __device__ __forceinline__ void weigh(uint32_t pair, float low, float high, uint32_t &rounded, uint32_t &rest)
    {
        const float2 v = unpack<true>(pair);
        const float x = low * v.x, y = high * v.y;
        rounded = pack<true>(x, y);
        const float2 back = unpack<true>(rounded);
        rest = pack<true>(x - back.x, y - back.y);
    }
    // Over the four lanes that share a row.
    static __device__ __forceinline__ float sum_of_row(float value)
    {
        value += __shfl_xor_sync(0xffffffffu, value, 1);
        return value + __shfl_xor_sync(0xffffffffu, value, 2);
    }
    // ---- Rows of a task: lanes 0 .. 15 have one of the state each, lanes 16 .. 31 one of the open chunk ----

    __device__ __forceinline__ uint32_t rows() const { return has_open() ? 32 : 16; }
    __device__ __forceinline__ uint32_t own_row() const { return attend::shared_address(folding().rows[warp][lane / 16][lane % 16]); }
    // Its number among those of all sequences.
    __device__ __forceinline__ size_t own_number(const WindowsFoldPart &part, uint32_t task) const
    {
        const size_t head = size_t(shape().first + part.row) * args.H + part.first_head + task / blocks_of_rows;
        return head * windows_n + task % blocks_of_rows * 16 + lane % 16;
    }
    __device__ __forceinline__ float *own_row_at(const WindowsFoldPart &part, uint32_t task) const
    {
        return reinterpret_cast<float *>(place_of(part.layer, lane < 16 ? PLACE_H : PLACE_OPEN)) + own_number(part, task) * windows_p;
    }
    // Asks for the rows once those before have been stored.
    __device__ __forceinline__ void ask_rows_of(const WindowsFoldPart &part, uint32_t task) const
    {
        const uint32_t there = attend::shared_address(&windows_shared().states_there[warp]);
        attend::bulk_stores_read();
        if (lane == 0) attend::barrier_arrive_bytes(there, rows() * (4 * windows_p));
        __syncwarp();
        if (lane < rows()) attend::bulk_copy(own_row(), own_row_at(part, task), 4 * windows_p, there);
    }
    // Before what the warp wrote to its rows is stored.
    __device__ __forceinline__ void publish() const
    {
        attend::shared_visible_to_products();
        __syncwarp();
    }
    // Stores rounded rows of a memory of the chunk that closes, with their scales, for the runs that have room for it.
    __device__ __forceinline__ void append(const WindowsFoldPart &part, uint32_t task, const float (&scales)[2]) const
    {
        const uint32_t m = windows_shared().positions[part.row] / args.S, b = shape().first + part.row;
        for (uint32_t c = 0; c < args.closing; c++) {
            const uint2 run = windows_shared().runs[MIXER_RUNS + c];
            if (m < run.x || m - run.x >= run.y) continue;
            const size_t others = (size_t(b) * run.y + (m - run.x)) - (shape().first + part.row); // rows of that many sequences are before this one's
            const size_t number = own_number(part, task) + others * args.H * windows_n;
            uint16_t *to = reinterpret_cast<uint16_t *>(place_of(part.layer, PLACE_CLOSING + 2 * c)) + number * windows_p;
            float *sizes = reinterpret_cast<float *>(place_of(part.layer, PLACE_CLOSING + 2 * c + 1)) + (number - lane % 16 + lane / 4);
            if (lane >= 16) attend::bulk_store(to, own_row(), 2 * windows_p);
            if (lane % 4 == 0) sizes[0] = scales[0], sizes[8] = scales[1];
        }
    }

    // A task: sixteen rows of head task / 8 of the part.
    __device__ __forceinline__ void fold_rows(const WindowsFoldPart &part, uint32_t turn, uint32_t task, bool closes) const
    {
        const uint32_t j = task / blocks_of_rows, n = task % blocks_of_rows * 16, tokens = tokens_at(turn);
        const WindowsDecays &left = decays(turn);
        const float keep = left.keep[j], keep_h = left.keep_h[j];
        // Lane l has of each tile of x tokens 2 (l % 4) and the next, and those eight further on, of both halves of the window.
        float2 weights[2][2];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) weights[i / 2][i % 2] = *reinterpret_cast<const float2 *>(&left.weights[j][8 * i + lane % 4 * 2]);
        const uint32_t values_at = tokens + lane % 16 * value_row(part) + j * (2 * windows_p) + lane / 16 * 16;
        const uint32_t keys_at = tokens + WINDOW * value_row(part) + (lane % 8 + lane / 16 * 8) * windows_fold_keys + lane / 8 % 2 * 16 + 2 * n;
        // Lane l has of a tile of rows columns 2 (l % 4) and the next of rows l / 4 and l / 4 + 8.
        const auto pair_at = [&](uint32_t of_open, uint32_t r, uint32_t tile) {
            return reinterpret_cast<float2 *>(folding().rows[warp][of_open][lane / 4 + 8 * r]) + 4 * tile + lane % 4;
        };
        float2 state[2][columns], open[2][columns];
#pragma unroll
        for (uint32_t i = 0; i < 2 * columns; i++) {
            const uint32_t r = i % 2, tile = i / 2;
            state[r][tile] = *pair_at(0, r, tile);
            open[r][tile] = has_open() ? *pair_at(1, r, tile) : state[r][tile];
            open[r][tile] = make_float2(keep * open[r][tile].x, keep * open[r][tile].y);
        }
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
                    weigh(raw[2 * i], weights[half][0].x, weights[half][0].y, high[0], low[0]);
                    weigh(raw[2 * i + 1], weights[half][1].x, weights[half][1].y, high[1], low[1]);
                    float2 &upper = open[0][tile + i], &lower = open[1][tile + i];
                    float sums[4] = {upper.x, upper.y, lower.x, lower.y};
                    attend::multiply<DTYPE_BF16>(sums, keys, high);
                    attend::multiply<DTYPE_BF16>(sums, keys, low);
                    upper = make_float2(sums[0], sums[1]);
                    lower = make_float2(sums[2], sums[3]);
                }
            }
        }
        // Rows of the state and of the open chunk, which is empty once it closes. The state changes only then, or where there is no open chunk.
        const bool state_changes = closes || !has_open();
#pragma unroll
        for (uint32_t i = 0; i < 2 * columns; i++) {
            const uint32_t r = i % 2, tile = i / 2;
            const float2 now = open[r][tile];
            float2 &all = state[r][tile];
            all = has_open() ? make_float2(fmaf(keep_h, all.x, now.x), fmaf(keep_h, all.y, now.y)) : now;
            if (has_open()) *pair_at(1, r, tile) = closes ? make_float2(0.0f, 0.0f) : now;
            if (state_changes) *pair_at(0, r, tile) = all;
        }
        if (state_changes) {
            publish();
            if (lane < rows()) attend::bulk_store(own_row_at(part, task), own_row(), 4 * windows_p);
            attend::bulk_stores_read();
            __syncwarp();
        }
        // Rounded rows, scaled by the root of their mean square: the state before the next window, and the memory.
        const auto round_rows = [&](const float2 (&values)[2][columns], uint32_t of_open, float (&scales)[2]) {
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                float squares = 0.0f;
#pragma unroll
                for (uint32_t tile = 0; tile < columns; tile++)
                    squares = fmaf(values[r][tile].x, values[r][tile].x, fmaf(values[r][tile].y, values[r][tile].y, squares));
                scales[r] = sqrtf(sum_of_row(squares) / float(windows_p) + args.sma_eps);
                const float factor = 1.0f / scales[r];
                uint32_t *to = reinterpret_cast<uint32_t *>(folding().rows[warp][of_open][lane / 4 + 8 * r]) + lane % 4;
#pragma unroll
                for (uint32_t tile = 0; tile < columns; tile++) to[4 * tile] = pack<true>(factor * values[r][tile].x, factor * values[r][tile].y);
            }
        };
        float scales[2], of_memory[2];
        round_rows(state, 0, scales);
        if (closes) round_rows(open, 1, of_memory);
        publish();
        const size_t number = own_number(part, task);
        float *sizes = reinterpret_cast<float *>(place_of(part.layer, PLACE_HIN_SCALE)) + (number - lane % 16 + lane / 4);
        if (lane % 4 == 0) sizes[0] = scales[0], sizes[8] = scales[1];
        if (lane < 16) attend::bulk_store(reinterpret_cast<uint16_t *>(place_of(part.layer, PLACE_HIN)) + number * windows_p, own_row(), 2 * windows_p);
        else if (has_open() && !closes) attend::bulk_store(own_row_at(part, task), own_row(), 4 * windows_p);
        if (closes) append(part, task, of_memory);
    }

    // After all blocks of the group have posted the heads of the last layer, and with them all that goes into windows.
    __device__ __forceinline__ void fold()
    {
        const uint32_t there = attend::shared_address(&windows_shared().states_there[warp]);
        WindowsFoldPart part = {};
        uint32_t phase = 0;
        if (shape().member < parts()) {
            fetch(part = part_of(shape().member), 0);
            if (first_task(part, warp) < first_task(part, warp + 1)) ask_rows_of(part, first_task(part, warp));
        }
#pragma unroll 1
        for (uint32_t k = shape().member, turn = 0; k < parts(); k += shape().blocks, turn++) {
            const WindowsFoldPart now = part;
            const bool closes = has_open() && (windows_shared().positions[now.row] + 1) % args.S == 0;
            decay(now, turn, closes);
            attend::copies_wait();
            meet();
            const bool goes_on = k + shape().blocks < parts();
            if (goes_on) fetch(part = part_of(k + shape().blocks), turn + 1);
            const uint32_t end = first_task(now, warp + 1);
#pragma unroll 1
            for (uint32_t task = first_task(now, warp); task < end; task++, phase ^= 1) {
                attend::barrier_wait(there, phase);
                fold_rows(now, turn, task, closes);
                if (task + 1 < end) ask_rows_of(now, task + 1);
            }
            if (goes_on && first_task(part, warp) < first_task(part, warp + 1)) ask_rows_of(part, first_task(part, warp));
        }
        attend::bulk_stores_done();
    }
};

#endif
