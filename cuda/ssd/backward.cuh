// What the kernels of the scan's backward pass share: the chunk of a tile, pairs of tiles, operands of their products. C x C matrices
// hold row t, column s at t C + s.
#ifndef DART_SSD_BACKWARD_CUH
#define DART_SSD_BACKWARD_CUH

#include "lib/product.cuh"
#include "memory.cuh"

struct Place {
    uint32_t size;        // its tokens, 0: empty
    size_t slot, token;   // of its matrices; its first row
    size_t row;           // the first of its sequence
    uint32_t begin, span; // its first token in the sequence; tokens in cum from head to head
};
// Chunk j of sequence b, index j + M b. Args has flags, L, T, S and M.
template <class Args> __device__ __forceinline__ Place place_of(const Args &args, const int32_t *seq, uint32_t index)
{
    const uint32_t j = index % args.M, b = index / args.M;
    const Sequence piece = sequence_of(seq, args.flags, args.L, args.T, b);
    const Chunk chunk = chunk_of(piece, args.S, j);
    return {chunk.length(), size_t(piece.slot(args.M, args.S)) + j, size_t(piece.row) + chunk.begin,
            piece.row, chunk.begin, piece.span};
}
// {hi, lo, step} of the first token of the chunk, CUM_STRIDE floats a token.
template <class Args> __device__ __forceinline__ const float *cum_of(const Args &args, const float *cum, const Place &at, uint32_t h)
{
    return cum + (at.row * args.H + at.begin + size_t(h) * at.span) * CUM_STRIDE;
}

// Row and column tile of a pair.
__device__ __forceinline__ uint2 pair_of(uint32_t pair)
{
    uint32_t i = uint32_t((sqrtf(8.0f * float(pair) + 1.0f) - 1.0f) * 0.5f);
    while (i * (i + 1) / 2 > pair) i--;
    while ((i + 1) * (i + 2) / 2 <= pair) i++;
    return make_uint2(i, pair - i * (i + 1) / 2);
}

__device__ __forceinline__ float4 times(float factor, const float4 &v) { return make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w); }

// Columns, each step k multiplied by exp(cum_k).
struct ReadColumns {
    static constexpr bool by_line = false;
    struct Fetched { uint4 raw; float weight; };
    Columns columns;
    const float *cum; // of step 0
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const
    {
        const float *at = cum + size_t(k) * CUM_STRIDE;
        return {columns.fetch(line, k), k < columns.K ? exp_below(at[0] + at[1]) : 0.0f};
    }
    __device__ __forceinline__ float4 value(const Fetched &f) const { return times(f.weight, columns.value(f.raw)); }
};

// lambda + up_dh, N x P of a head: element (line, k) is at [at + k row + line] with by_line false, at [at + line row + k] otherwise.
template <bool lines_first> struct Gains {
    static constexpr bool by_line = lines_first;
    struct Fetched { uint4 lambda, up; };
    const float *lambda, *up; // up: nullptr if it is zero
    uint32_t row, lines, K;
    bool aligned;
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const
    {
        const bool there = line < lines && k < K;
        const size_t at = lines_first ? size_t(line) * row + k : size_t(k) * row + line;
        const uint32_t valid = !there ? 0 : lines_first ? K - k : lines - line;
        const View of_lambda = {reinterpret_cast<char *>(const_cast<float *>(lambda)), DTYPE_F32};
        const View of_up = {reinterpret_cast<char *>(const_cast<float *>(up)), DTYPE_F32};
        return {fetch4(of_lambda, at, valid, aligned), up != nullptr ? fetch4(of_up, at, valid, false) : make_uint4(0, 0, 0, 0)};
    }
    __device__ __forceinline__ float4 value(const Fetched &f) const
    {
        const float4 a = unpack4(f.lambda, DTYPE_F32), b = unpack4(f.up, DTYPE_F32);
        return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
};

// Column s of a C x C matrix as line, row t as step, 0 where s > t: line is s - s0, step t - t0. With cum also multiplied by
// exp(cum_t - cum_s).
struct SquareColumns {
    static constexpr bool by_line = false;
    typedef float4 Fetched;
    const float *square, *cum; // cum: of the first token of the chunk, or nullptr
    uint32_t C, s0, t0, size;
    __device__ __forceinline__ float element(uint32_t s, uint32_t t) const
    {
        if (s > t || t >= size) return 0.0f;
        const float value = square[size_t(t) * C + s];
        return cum == nullptr ? value : value * exp_below(cum_between(cum + size_t(t) * CUM_STRIDE, cum + size_t(s) * CUM_STRIDE));
    }
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const
    {
        const uint32_t s = s0 + line, t = t0 + k;
        return make_float4(element(s, t), element(s + 1, t), element(s + 2, t), element(s + 3, t));
    }
    __device__ __forceinline__ float4 value(const Fetched &f) const { return f; }
};

// Row t of a C x C matrix as line, column s as step, 0 where s > t.
struct SquareLines {
    static constexpr bool by_line = true;
    typedef float4 Fetched;
    const float *square;
    uint32_t C, t0, size;
    __device__ __forceinline__ float element(uint32_t t, uint32_t s) const { return s > t || t >= size ? 0.0f : square[size_t(t) * C + s]; }
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t s) const
    {
        const uint32_t t = t0 + line;
        return make_float4(element(t, s), element(t, s + 1), element(t, s + 2), element(t, s + 3));
    }
    __device__ __forceinline__ float4 value(const Fetched &f) const { return f; }
};

// The sum of a value over the 16 neighbouring threads that share output lines, the same in all of them.
__device__ __forceinline__ float line_sum(float value)
{
    for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
// The sum of the values of lanes 0 to lane - 1.
__device__ __forceinline__ float sum_before(float value)
{
    const uint32_t lane = threadIdx.x % 32;
    float sum = value;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, sum, apart);
        if (lane >= apart) sum += other;
    }
    const float before = __shfl_up_sync(0xffffffffu, sum, 1);
    return lane > 0 ? before : 0.0f;
}
// The sum of the values of lanes lane to 31.
__device__ __forceinline__ float sum_from(float value)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const float other = __shfl_down_sync(0xffffffffu, value, apart);
        if (lane + apart < 32) value += other;
    }
    return value;
}

#endif
