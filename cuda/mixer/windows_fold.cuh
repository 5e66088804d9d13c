// What becomes of full windows in windows.cu, see WindowFoldArgs: a block folds those of its heads in all layers once the last layer is done, a warp
// a head. The tokens of the window add a product of matrices to a state; step times x is split in two bf16 numbers, so that it errs by less than
// 2^-16.
#ifndef DART_MIXER_WINDOWS_FOLD_CUH
#define DART_MIXER_WINDOWS_FOLD_CUH

#include "windows_heads.cuh"

struct WindowsFold : WindowsHeads {
    using WindowsHeads::WindowsHeads;
    static constexpr uint32_t columns = windows_p / 8, key_row = 2 * windows_n + 16; // tiles of eight columns; bytes of a row of b
    static_assert(WINDOW * (windows_most_heads * windows_p * 2 + 16 + key_row) <= windows_room / 2 * windows_place, "room for two layers");

    // x and b of the window lie in the ring, which nobody copies to any more: those of every second layer.
    __device__ __forceinline__ uint32_t value_row() const { return shape().heads * windows_p * 2 + 16; }
    __device__ __forceinline__ uint32_t tokens_at(uint32_t layer) const
    {
        return attend::shared_address(windows_shared().ring) + layer % 2 * (windows_room / 2 * windows_place);
    }
    __device__ __forceinline__ void fetch_tokens(uint32_t layer) const
    {
        const uint32_t to = tokens_at(layer), x_words = shape().heads * (windows_p / 8);
        const uint16_t *rows = reinterpret_cast<const uint16_t *>(place_of(layer, PLACE_ROWS)) + size_t(shape().b) * WINDOW * kept();
#pragma unroll 1
        for (uint32_t k = warp; k < WINDOW; k += windows_warps) {
            const uint16_t *row = rows + k * kept();
            const bool there = k <= shape().slot;
#pragma unroll 1
            for (uint32_t i = lane; i < x_words; i += 32)
                attend::copy_16_or_0(to + k * value_row() + 16 * i, row + shape().first_head * windows_p + 8 * i, there);
            if (lane < windows_n / 8) attend::copy_16_or_0(to + WINDOW * value_row() + k * key_row + 16 * lane, row + width() + 8 * lane, there);
        }
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
    __device__ __forceinline__ void fold_head(uint32_t layer, bool closes) const
    {
        const uint32_t head = this->head(), tokens = tokens_at(layer);
        float2 *step_of = reinterpret_cast<float2 *>(place_of(layer, PLACE_STEPS)) + (size_t(shape().b) * WINDOW + lane) * args.H + head;
        float *open_decay = reinterpret_cast<float *>(place_of(layer, PLACE_OPEN_DECAY)) + size_t(shape().b) * args.H + head;
        const float2 own = lane <= shape().slot ? __ldcg(step_of) : make_float2(0.0f, 0.0f);
        const float before = has_open() ? __ldcg(open_decay) : 0.0f;
        float from = own.x; // the log-decays from this slot on
#pragma unroll
        for (uint32_t apart = 1; apart < 32; apart *= 2) {
            const float more = __shfl_down_sync(0xffffffffu, from, apart);
            if (lane + apart < 32) from += more;
        }
        const float next = __shfl_down_sync(0xffffffffu, from, 1), weight = exp_below(lane < 31 ? next : 0.0f) * own.y;
        const float all = __shfl_sync(0xffffffffu, from, 0), keep = exp_below(all), keep_h = has_open() ? exp_below(before + all) : 0.0f;
        *step_of = make_float2(0.0f, 0.0f);
        if (lane == 0 && has_open()) *open_decay = closes ? 0.0f : before + all;
        // Lane l has of each tile of x tokens 2 (l % 4) and the next, and those eight further on, of both halves of the window.
        float weights[2][4];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            weights[i / 4][i % 4] = __shfl_sync(0xffffffffu, weight, 16 * (i / 4) + lane % 4 * 2 + i % 2 + i % 4 / 2 * 8);
        const uint32_t values_at = tokens + lane % 16 * value_row() + warp * (2 * windows_p) + lane / 16 * 16;
        const uint32_t keys_at = tokens + WINDOW * value_row() + (lane % 8 + lane / 16 * 8) * key_row + lane / 8 % 2 * 16;
        const size_t first_number = (size_t(shape().b) * args.H + head) * (windows_n * windows_p) + lane / 4 * windows_p + lane % 4 * 2;
        float *h = reinterpret_cast<float *>(place_of(layer, PLACE_H)) + first_number;
        float *open = reinterpret_cast<float *>(place_of(layer, PLACE_OPEN)) + first_number;
        uint16_t *hin = reinterpret_cast<uint16_t *>(place_of(layer, PLACE_HIN)) + first_number;
        float *hin_scale = reinterpret_cast<float *>(place_of(layer, PLACE_HIN_SCALE)) + (size_t(shape().b) * args.H + head) * windows_n + lane / 4;
#pragma unroll 1
        for (uint32_t n = 0; n < windows_n; n += 16) {
            float sums[columns][4];
            float2 old[columns][2];
            float *h_row = h + n * windows_p, *open_row = open + n * windows_p;
#pragma unroll
            for (uint32_t tile = 0; tile < columns; tile++) {
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    old[tile][r] = __ldcs(reinterpret_cast<const float2 *>(h_row + 8 * r * windows_p + 8 * tile));
                    const float2 now = has_open() ? __ldcs(reinterpret_cast<const float2 *>(open_row + 8 * r * windows_p + 8 * tile)) : old[tile][r];
                    sums[tile][2 * r] = keep * now.x;
                    sums[tile][2 * r + 1] = keep * now.y;
                }
            }
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                uint32_t keys[4]; // of 16 tokens and 16 n, turned: rows of the left operand are n
                attend::load_matrices_turned(keys, keys_at + 16 * half * key_row + 2 * n);
#pragma unroll
                for (uint32_t tile = 0; tile < columns; tile += 2) {
                    uint32_t raw[4];
                    attend::load_matrices_turned(raw, values_at + 16 * half * value_row() + 16 * tile);
#pragma unroll
                    for (uint32_t i = 0; i < 2; i++) {
                        uint32_t high[2], low[2];
                        weigh(raw[2 * i], weights[half][0], weights[half][1], high[0], low[0]);
                        weigh(raw[2 * i + 1], weights[half][2], weights[half][3], high[1], low[1]);
                        attend::multiply<DTYPE_BF16>(sums[tile + i], keys, high);
                        attend::multiply<DTYPE_BF16>(sums[tile + i], keys, low);
                    }
                }
            }
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                float squares = 0.0f;
#pragma unroll
                for (uint32_t tile = 0; tile < columns; tile++) {
                    float2 &state = old[tile][r];
                    const float2 now = make_float2(sums[tile][2 * r], sums[tile][2 * r + 1]);
                    state = has_open() ? make_float2(fmaf(keep_h, state.x, now.x), fmaf(keep_h, state.y, now.y)) : now;
                    squares = fmaf(state.x, state.x, fmaf(state.y, state.y, squares));
                    if (closes || !has_open()) *reinterpret_cast<float2 *>(h_row + 8 * r * windows_p + 8 * tile) = state;
                    if (has_open()) *reinterpret_cast<float2 *>(open_row + 8 * r * windows_p + 8 * tile) = closes ? make_float2(0.0f, 0.0f) : now;
                }
                const float root = sqrtf(sum_of_row(squares) / float(windows_p) + args.sma_eps), factor = 1.0f / root;
#pragma unroll
                for (uint32_t tile = 0; tile < columns; tile++)
                    *reinterpret_cast<uint32_t *>(hin + (n + 8 * r) * windows_p + 8 * tile) =
                        pack<true>(factor * old[tile][r].x, factor * old[tile][r].y);
                if (lane % 4 == 0) hin_scale[n + 8 * r] = root;
            }
            if (closes) append(layer, head, n, sums);
        }
    }
    // Rows n + lane / 4 and eight behind that of the memory of the chunk that closes, for the run that has room for it.
    __device__ __forceinline__ void append(uint32_t layer, uint32_t head, uint32_t n, const float (&memory)[columns][4]) const
    {
        const uint32_t m = shape().position / args.S;
        for (uint32_t c = 0; c < args.closing; c++) {
            const uint2 run = windows_shared().runs[MIXER_RUNS + c];
            if (m < run.x || m - run.x >= run.y) continue;
            const size_t row = ((size_t(shape().b) * run.y + (m - run.x)) * args.H + head) * windows_n + n + lane / 4;
            uint16_t *to = reinterpret_cast<uint16_t *>(place_of(layer, PLACE_CLOSING + 2 * c)) + row * windows_p + lane % 4 * 2;
            float *sizes = reinterpret_cast<float *>(place_of(layer, PLACE_CLOSING + 2 * c + 1)) + row;
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                float squares = 0.0f;
#pragma unroll
                for (uint32_t tile = 0; tile < columns; tile++)
                    squares = fmaf(memory[tile][2 * r], memory[tile][2 * r], fmaf(memory[tile][2 * r + 1], memory[tile][2 * r + 1], squares));
                const float size = sqrtf(sum_of_row(squares) / float(windows_p) + args.sma_eps), factor = 1.0f / size;
#pragma unroll
                for (uint32_t tile = 0; tile < columns; tile++)
                    *reinterpret_cast<uint32_t *>(to + 8 * r * windows_p + 8 * tile) =
                        pack<true>(factor * memory[tile][2 * r], factor * memory[tile][2 * r + 1]);
                if (lane % 4 == 0) sizes[8 * r] = size;
            }
        }
    }

    __device__ __forceinline__ bool folds() const
    {
        return shape().has_heads && (shape().slot + 1 == WINDOW || (shape().position + 1) % args.S == 0);
    }
    // After all blocks of the group have posted the heads of the last layer, and with them all that goes into windows.
    __device__ __forceinline__ void fold() const
    {
        const bool closes = has_open() && (shape().position + 1) % args.S == 0;
        fetch_tokens(0);
#pragma unroll 1
        for (uint32_t layer = 0; layer < args.layers; layer++) {
            attend::copies_wait();
            meet();
            if (layer + 1 < args.layers) fetch_tokens(layer + 1);
            if (warp < shape().heads) fold_head(layer, closes);
        }
    }
};

#endif
