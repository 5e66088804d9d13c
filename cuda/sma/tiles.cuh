// What the kernels of sma for tensor cores share: tiles of tokens, 16-bit pairs, the softmax over memories and its end.
// The matrices of a warp are 16 tokens x 64: a thread holds of the rows lane / 4 (k = 0) and lane / 4 + 8 (k = 1) the
// columns 8 j + 2 (lane % 4) + {0, 1} as elements 4 j + 2 k + {0, 1}. Logits are in units of log 2.
#ifndef DART_SMA_TILES_CUH
#define DART_SMA_TILES_CUH

#include "lib/attend.cuh"

namespace attend {

struct Tile {
    uint32_t t0, h, b, g, lines, memories; // memories of this launch that its last token sees
    uint32_t first_position;               // of its first token in the sequence
};

__device__ __forceinline__ uint32_t memories_before(const sma_args &args, uint32_t position)
{
    const uint32_t before = position / args.S;
    return before > args.first ? min(before - args.first, args.count) : 0u;
}

__device__ __forceinline__ Tile tile_of(const sma_args &args, const int32_t *seq, uint32_t t0, uint32_t h, uint32_t b)
{
    Tile tile;
    tile.t0 = t0;
    tile.h = h;
    tile.b = b;
    tile.g = h / (args.H / args.G);
    const Piece piece = piece_of(seq, args.flags, args.L, b);
    tile.lines = t0 < piece.count ? min(piece.count - t0, TOKENS) : 0;
    tile.first_position = piece.position + t0;
    tile.memories = tile.lines ? memories_before(args, tile.first_position + tile.lines - 1) : 0;
    return tile;
}

// Tile `number` in the order from long to short: late tokens see most memories.
__device__ __forceinline__ Tile tile_at(const sma_args &args, const int32_t *seq, uint32_t number)
{
    const uint32_t heads = args.H * args.B, head = number % heads;
    return tile_of(args, seq, (args.tiles / heads - 1 - number / heads) * TOKENS, head % args.H, head / args.H);
}

// The power of two that a memory's factors are divided by, not below the largest of them, which is `most` in some lane.
__device__ __forceinline__ float power_above(float most)
{
    const uint32_t exponent = __reduce_max_sync(0xffffffffu, __float_as_uint(most)) & 0x7f800000u;
    return __uint_as_float(max(exponent, 0x00800000u)) * 2.0f;
}

// ---- The softmax over memories ----

// How many memories of the launch a thread's two rows see, and the factors of their logits and results. Rows past the tile
// see all.
struct Rows {
    uint32_t seen[2];
    float unit[2], result_unit[2];
    uint32_t all; // memories that all rows of the warp see
    __device__ __forceinline__ void compare() { all = __reduce_min_sync(0xffffffffu, min(seen[0], seen[1])); }
};

// Of a thread's two rows. `top` is at least the largest logit so far and at most that + headroom, so that it seldom changes;
// weight is that of the last memory: its value is added to the result in the next turn.
struct Softmax {
    float top[2] = {lowest, lowest}, den[2] = {}, weight[2] = {};
};
constexpr float headroom = 40.0f; // takes 2^-40 from the range of weights: those below 2^-86 of the largest are 0

// Adds en_t . keyed_t over the columns a thread holds.
template <uint32_t dtype>
__device__ __forceinline__ void add_logits(float (&part)[4], const float (&keyed)[32], const uint32_t (&verifier)[16])
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 e0 = Pair<dtype>::unpack(verifier[j]), e1 = Pair<dtype>::unpack(verifier[8 + j]);
        part[0] = fmaf(e0.x, keyed[4 * j], part[0]);
        part[1] = fmaf(e0.y, keyed[4 * j + 1], part[1]);
        part[2] = fmaf(e1.x, keyed[4 * j + 2], part[2]);
        part[3] = fmaf(e1.y, keyed[4 * j + 3], part[3]);
    }
}

// The logits of memory m for a thread's two rows, from what its four threads hold of each. masked: rows may not see it.
__device__ __forceinline__ void sum_logits(float (&logit)[2], const float (&part)[4], const Rows &rows, uint32_t m, bool masked)
{
    for (int k = 0; k < 2; k++) logit[k] = part[2 * k] + part[2 * k + 1];
#pragma unroll
    for (int apart = 1; apart <= 2; apart *= 2) {
        const float other[2] = {__shfl_xor_sync(0xffffffffu, logit[0], apart), __shfl_xor_sync(0xffffffffu, logit[1], apart)};
        for (int k = 0; k < 2; k++) logit[k] += other[k];
    }
    for (int k = 0; k < 2; k++) {
        logit[k] *= rows.unit[k];
        if (masked && m >= rows.seen[k]) logit[k] = __uint_as_float(0xff800000u);
    }
}

// power: what the value of this memory is divided by.
__device__ __forceinline__ void take_weights(Softmax &softmax, const float (&logit)[2], float power)
{
    for (int k = 0; k < 2; k++) {
        const float weight = exp2_below(logit[k] - softmax.top[k]);
        softmax.den[k] += weight;
        softmax.weight[k] = weight * power;
    }
}

// The softmax over one memory.
__device__ __forceinline__ Softmax softmax_of(const float (&logit)[2], float power)
{
    Softmax softmax;
    for (int k = 0; k < 2; k++) softmax.top[k] = logit[k] > lowest ? logit[k] + headroom : lowest;
    take_weights(softmax, logit, power);
    return softmax;
}

// The softmax takes in a memory; last: the weight of the one before, whose value the result has yet to take in.
__device__ __forceinline__ void take_logits(Softmax &softmax, const float (&logit)[2], float power, float (&last)[2],
                                            float (&result)[32])
{
    for (int k = 0; k < 2; k++) last[k] = softmax.weight[k];
    if (__any_sync(0xffffffffu, logit[0] > softmax.top[0] || logit[1] > softmax.top[1])) {
        float correction[2];
        for (int k = 0; k < 2; k++) {
            const float top = logit[k] > softmax.top[k] ? logit[k] + headroom : softmax.top[k];
            correction[k] = exp2_below(softmax.top[k] - top);
            softmax.top[k] = top;
            softmax.den[k] *= correction[k];
            last[k] *= correction[k];
        }
#pragma unroll
        for (int j = 0; j < 32; j++) result[j] *= correction[j / 2 % 2];
    }
    take_weights(softmax, logit, power);
}

// The result takes in the value of memory m. masked: rows may not see it; it may then hold anything: 0 times it is not 0.
__device__ __forceinline__ void take_value(float (&result)[32], const float (&value)[32], const float (&weight)[2],
                                           const Rows &rows, uint32_t m, bool masked)
{
    if (!masked) {
#pragma unroll
        for (int j = 0; j < 32; j++) result[j] = fmaf(weight[j / 2 % 2], value[j], result[j]);
    } else {
#pragma unroll
        for (int j = 0; j < 32; j++)
            result[j] = m < rows.seen[j / 2 % 2] ? fmaf(weight[j / 2 % 2], value[j], result[j]) : result[j];
    }
}

// Writes lse, and columns [0, columns) of r from column p0 on: the result of these memories, merged with what r and lse
// hold where that is asked for.
__device__ __forceinline__ void finish(const sma_args &args, const Tile &tile, uint32_t line0, const Rows &rows,
                                       const Softmax &softmax, const float (&result)[32], uint32_t p0, uint32_t columns,
                                       const View &r, float *lse)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t t = line0 + lane / 4 + 8 * k;
        const bool there = t < tile.lines;
        const size_t row = size_t(tile.b) * args.L + tile.t0 + t, lse_at = args.lse_at + row * args.H + tile.h;
        const size_t r_at = args.r_at + row * args.r_row + tile.h * args.P + p0 + lane % 4 * 2;
        const bool any = softmax.den[k] != 0.0f;
        float share = any ? rows.result_unit[k] / softmax.den[k] : 0.0f, keep = 0.0f;
        float log = any ? softmax.top[k] + log2f(softmax.den[k]) : lowest;
        if ((args.flags & IS_MERGE) && there) {
            const float old = lse[lse_at] * log2e, most = fmaxf(log, old); // -inf counts as nothing
            if (!(old <= lowest)) {
                const float mine = exp2_below(log - most), theirs = exp2_below(old - most), total = mine + theirs;
                share *= mine / total;
                keep = theirs / total;
                log = most + log2f(total);
            }
        }
        __syncwarp(); // all lanes of the row have read lse
        if (there && lane % 4 == 0 && p0 + columns >= args.P)
            lse[lse_at] = log <= lowest ? __uint_as_float(0xff800000u) : log * ln2;
        if (!there) continue;
        char *to = r.base + r_at * (r.dtype == DTYPE_F32 ? 4 : 2);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (8 * j >= columns) continue;
            float x = result[4 * j + 2 * k] * share, y = result[4 * j + 2 * k + 1] * share;
            if (keep != 0.0f) {
                x = fmaf(keep, load(r, r_at + 8 * j), x);
                y = fmaf(keep, load(r, r_at + 8 * j + 1), y);
            }
            if (r.dtype == DTYPE_F32) *reinterpret_cast<float2 *>(to + 32 * j) = make_float2(x, y);
            else
                *reinterpret_cast<uint32_t *>(to + 16 * j) =
                    r.dtype == DTYPE_BF16 ? Pair<DTYPE_BF16>::round(x, y) : Pair<DTYPE_F16>::round(x, y);
        }
    }
}

} // namespace attend

#endif
