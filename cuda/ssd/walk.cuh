// What the kernels share that walk over small chunks, S and N at most 32, P at most 64: a block has the heads of a group of one sequence.
//
// It computes in lines of 64 columns p: `batch` heads at a time, R lines each, R = 16 or 32 not below S and N, so that the batch fills 32
// lines. A line is a token or a row n. Of every product with such lines a thread has a piece: 4 lines of one head x 4 columns.
#ifndef DART_SSD_WALK_CUH
#define DART_SSD_WALK_CUH

#include "lib/dart.cuh"

namespace ssd_walk {

constexpr uint32_t threads = 128, lines = 32, columns = 64, four = 4;
constexpr uint32_t pitch = columns + 4; // eight neighbouring lines begin in different banks
static_assert(threads * four * four == lines * columns, "a piece a thread");

typedef float Sheet[lines][pitch]; // lines of a batch
template <uint32_t R> struct Matrix { alignas(16) float of[R][R + 4]; };

// The piece of this thread: lines t to t + 3 of head `head` of the batch, lines `line` and so on of all; columns p to p + 3. A warp has eight lines.
// Neighbouring lanes have the same columns, here and elsewhere: 16-byte loads from shared memory serve a whole warp in fewer steps where pairs of
// neighbours, or every other lane of four, load the same.
struct Piece4 { uint32_t line, head, t, p; };
template <uint32_t R> __device__ __forceinline__ Piece4 own_piece()
{
    const uint32_t line = (threadIdx.x / 32 * 2 + threadIdx.x % 2) * four;
    return {line, line / R, line % R, threadIdx.x / 2 % 16 * four};
}
// The sum over the threads that have the same lines.
__device__ __forceinline__ float line_sum4(float value)
{
#pragma unroll
    for (uint32_t apart = 2; apart < 32; apart *= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
}
// Pairs of tokens of a head: a thread has lines i + 8 a of R, and columns k and k + R / 2.
struct Pair4 { uint32_t i, k; };
template <uint32_t R> __device__ __forceinline__ Pair4 own_pairs() { return {threadIdx.x / R % 4 * 2 + threadIdx.x % 2, threadIdx.x / 2 % (R / 2)}; }

// How many of four from i on lie below the end.
__device__ __forceinline__ uint32_t of_four(uint32_t i, uint32_t end) { return i < end ? min(end - i, four) : 0; }

// A piece in memory: `rows` rows of `valid` elements are there, the others count as zero. What follows has two forms: with `whole` pieces are
// there with all columns or with none, and lie at multiples of four elements.
struct Source {
    View view;
    size_t at, row;
    uint32_t rows, valid;
};
// With whole: as it lies in memory, so that other loads begin before put_piece converts it. Else put_piece does all.
struct Raw4 { uint4 row[four]; };
template <bool whole> __device__ __forceinline__ void fetch_piece(Raw4 &to, const Source &from)
{
    if constexpr (whole) {
        const uint32_t rows = from.valid > 0 ? from.rows : 0;
        if (from.view.dtype == DTYPE_F32) {
            const float *base = reinterpret_cast<const float *>(from.view.base) + from.at;
#pragma unroll
            for (uint32_t i = 0; i < four; i++) {
                to.row[i] = make_uint4(0, 0, 0, 0);
                if (i < rows) to.row[i] = *reinterpret_cast<const uint4 *>(base + i * from.row);
            }
        } else {
            const uint16_t *base = reinterpret_cast<const uint16_t *>(from.view.base) + from.at;
#pragma unroll
            for (uint32_t i = 0; i < four; i++) {
                uint2 pairs = make_uint2(0, 0);
                if (i < rows) pairs = *reinterpret_cast<const uint2 *>(base + i * from.row);
                to.row[i] = make_uint4(pairs.x, pairs.y, 0, 0);
            }
        }
    }
}
template <bool whole> __device__ __forceinline__ void put_piece(Sheet &to, const Piece4 &own, const Raw4 &raw, const Source &from)
{
    if (whole) {
#pragma unroll
        for (uint32_t i = 0; i < four; i++) *reinterpret_cast<float4 *>(&to[own.line + i][own.p]) = unpack4(raw.row[i], from.view.dtype);
    } else {
#pragma unroll 1
        for (uint32_t i = 0; i < four; i++) {
#pragma unroll 1
            for (uint32_t p = 0; p < four; p++)
                to[own.line + i][own.p + p] = i < from.rows && p < from.valid ? load(from.view, from.at + i * from.row + p) : 0.0f;
        }
    }
}

template <bool whole> __device__ __forceinline__ void store_four(const View &view, size_t at, const float4 &v, uint32_t valid)
{
    if (whole) {
        if (valid == 0) return;
        if (view.dtype == DTYPE_F32) {
            *reinterpret_cast<float4 *>(reinterpret_cast<float *>(view.base) + at) = v;
        } else {
            const uint2 pairs = view.dtype == DTYPE_F16
                ? make_uint2(to_half(v.x) | to_half(v.y) << 16, to_half(v.z) | to_half(v.w) << 16)
                : make_uint2(to_bfloat(v.x) | to_bfloat(v.y) << 16, to_bfloat(v.z) | to_bfloat(v.w) << 16);
            *reinterpret_cast<uint2 *>(reinterpret_cast<uint16_t *>(view.base) + at) = pairs;
        }
    } else {
        if (valid > 0) store(view, at, v.x);
        if (valid > 1) store(view, at + 1, v.y);
        if (valid > 2) store(view, at + 2, v.z);
        if (valid > 3) store(view, at + 3, v.w);
    }
}

__device__ __forceinline__ float4 zero4() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
__device__ __forceinline__ float4 scaled(float by, const float4 &v) { return make_float4(by * v.x, by * v.y, by * v.z, by * v.w); }
__device__ __forceinline__ void add_scaled(float4 &to, float by, const float4 &v)
{
    to.x = fmaf(by, v.x, to.x);
    to.y = fmaf(by, v.y, to.y);
    to.z = fmaf(by, v.z, to.z);
    to.w = fmaf(by, v.w, to.w);
}
__device__ __forceinline__ float dot(const float4 &a, const float4 &b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ __forceinline__ float4 line4(const Sheet &of, uint32_t line, uint32_t p) { return *reinterpret_cast<const float4 *>(&of[line][p]); }
template <uint32_t R> __device__ __forceinline__ float4 matrix4(const Matrix<R> &m, uint32_t row, uint32_t column)
{
    return *reinterpret_cast<const float4 *>(&m.of[row][column]);
}

// Rows of b or c of a chunk, R x R elements; a thread has `quads` times four of them.
template <uint32_t R, bool whole> struct Keys {
    static constexpr uint32_t across = R / four, quads = R * across / threads + (R * across % threads != 0);
    uint4 raw[quads];
    __device__ __forceinline__ void fetch(const View &view, size_t at, size_t row, uint32_t length, uint32_t N)
    {
        if constexpr (whole) {
#pragma unroll
            for (uint32_t i = 0; i < quads; i++) {
                const uint32_t item = threadIdx.x + i * threads, t = item / across, n = item % across * four;
                raw[i] = make_uint4(0, 0, 0, 0);
                if (t < min(length, R) && n < N) raw[i] = fetch4_whole(view, at + t * row + n);
            }
        }
    }
    __device__ __forceinline__ void put(Matrix<R> &to, const View &view, size_t at, size_t row, uint32_t length, uint32_t N) const
    {
        if (whole) {
#pragma unroll
            for (uint32_t i = 0; i < quads; i++) {
                const uint32_t item = threadIdx.x + i * threads;
                if (item < R * across) *reinterpret_cast<float4 *>(&to.of[item / across][item % across * four]) = unpack4(raw[i], view.dtype);
            }
        } else {
#pragma unroll 1
            for (uint32_t item = threadIdx.x; item < R * R; item += threads) {
                const uint32_t t = item / R, n = item % R;
                to.of[t][n] = t < length && n < N ? load(view, at + t * row + n) : 0.0f;
            }
        }
    }
};

// ---- Decays ----

// Of the tokens of a chunk, R of each head, those beyond the chunk with a step of 0: {hi, lo} of cum, step, exp(cum), keep.
struct Decays { float hi[lines], lo[lines], step[lines], read[lines], keep[lines]; };

// The parameters of a head.
struct Head { float rate, bias; };
struct Limits { float least, most; };

__device__ __forceinline__ float step_size(float raw, const Head &head, const Limits &limits, uint32_t flags)
{
    if (flags & IS_STEP) return raw;
    const float v = raw + head.bias, step = fmaxf(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))), limits.least);
    return limits.most > 0.0f ? fminf(step, limits.most) : step;
}
// By the whole warp of a head of the batch, step: of token `lane`. The sum is f64, rounded once to hi + lo.
template <uint32_t R> __device__ __forceinline__ void put_decays(Decays &to, float step, const Head &head)
{
    const uint32_t lane = threadIdx.x % 32, line = threadIdx.x / 32 * R + lane;
    double sum = double(__fmul_rn(head.rate, step));
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, sum, apart);
        if (lane >= apart) sum += other;
    }
    const double all = __shfl_sync(0xffffffffu, sum, 31);
    if (lane >= R) return;
    const float hi = float(sum);
    to.hi[line] = hi;
    to.lo[line] = float(sum - double(hi));
    to.step[line] = step;
    to.read[line] = exp_below(hi);
    to.keep[line] = exp_below(float(all - sum));
}
// exp(cum_t - cum_s) of two lines of a head.
__device__ __forceinline__ float decay_from(const Decays &of, uint32_t t, uint32_t s)
{
    return exp_below((of.hi[t] - of.hi[s]) + (of.lo[t] - of.lo[s]));
}

// ---- The state ----

// sum_t factor_t key_t[n] line_t[p] over the tokens of a chunk for the rows n and the columns of the own piece.
template <uint32_t R, class Factor>
__device__ __forceinline__ void outer_sum(float4 (&sum)[four], const Piece4 &own, const Matrix<R> &keys, const Sheet &of, uint32_t length,
                                          Factor factor)
{
#pragma unroll
    for (uint32_t i = 0; i < four; i++) sum[i] = zero4();
#pragma unroll 4
    for (uint32_t t = 0; t < length; t++) {
        const uint32_t line = own.head * R + t;
        const float4 k = scaled(factor(line), matrix4(keys, t, own.t)), v = line4(of, line, own.p);
        add_scaled(sum[0], k.x, v);
        add_scaled(sum[1], k.y, v);
        add_scaled(sum[2], k.z, v);
        add_scaled(sum[3], k.w, v);
    }
}
// sum_n key_t[n] rows[n][p] for the tokens t and the columns of the own piece.
template <uint32_t R> __device__ __forceinline__ void inner_sum(float4 (&sum)[four], const Piece4 &own, const Matrix<R> &keys, const Sheet &rows)
{
#pragma unroll
    for (uint32_t i = 0; i < four; i++) sum[i] = zero4();
#pragma unroll 2
    for (uint32_t n = 0; n < R; n += four) {
        const uint32_t line = own.head * R + n;
        float4 k[four];
#pragma unroll
        for (uint32_t i = 0; i < four; i++) k[i] = matrix4(keys, own.t + i, n);
        const float4 v0 = line4(rows, line, own.p), v1 = line4(rows, line + 1, own.p);
        const float4 v2 = line4(rows, line + 2, own.p), v3 = line4(rows, line + 3, own.p);
#pragma unroll
        for (uint32_t i = 0; i < four; i++) {
            add_scaled(sum[i], k[i].x, v0);
            add_scaled(sum[i], k[i].y, v1);
            add_scaled(sum[i], k[i].z, v2);
            add_scaled(sum[i], k[i].w, v3);
        }
    }
}

} // namespace ssd_walk

#endif
