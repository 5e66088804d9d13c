// sma_backward_parts: see args.h. A warp takes a (token, group), lanes take its columns.
#include "lib/dart.cuh"

namespace sma_parts {

constexpr uint32_t COUNT = 8; // columns of a lane at most: rows have up to 256

// This lane's share of a row of `width` columns: what `parts` of them add up to, which lie `step` floats apart.
__device__ __forceinline__ void take_sums(float (&sums)[COUNT], const float *from, size_t step, uint32_t parts, uint32_t width)
{
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) sums[i] = 0.0f;
    for (uint32_t part = 0; part < parts; part++) {
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++)
            if (threadIdx.x % 32 + 32 * i < width) sums[i] += from[part * step + threadIdx.x % 32 + 32 * i];
    }
}

// A row of q or e, and its sums.
struct Row {
    float values[COUNT], sums[COUNT];
    uint32_t width;
    // This lane's share of the sum of squares, and of that of sums times values.
    __device__ __forceinline__ float2 shares() const
    {
        float2 of = make_float2(0.0f, 0.0f);
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++) of.x = fmaf(values[i], values[i], of.x), of.y = fmaf(values[i], sums[i], of.y);
        return of;
    }
    __device__ __forceinline__ void take(const View &view, size_t at, const float *parts, size_t step, uint32_t count, uint32_t columns, bool live)
    {
        width = columns;
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t column = threadIdx.x % 32 + 32 * i;
            values[i] = live && column < width ? load(view, at + column) : 0.0f;
        }
        take_sums(sums, parts, step, live ? count : 0, width);
    }
    __device__ __forceinline__ void finish(const View &grad, size_t to, float factor, float back) const
    {
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t column = threadIdx.x % 32 + 32 * i;
            if (column < width) store(grad, to + column, factor * (sums[i] - back * values[i]));
        }
    }
};

} // namespace sma_parts

KERNEL_FUNCTION(sma_backward_parts, simt)
{
    static_assert(TILE0_sma_backward_parts_simt == warps, "a warp a token");
    const View grad_q = VIEW(sma_backward_parts, grad_q), grad_e = VIEW(sma_backward_parts, grad_e), grad_c = VIEW(sma_backward_parts, grad_c);
    const float *of_q = FLOATS(sma_backward_parts, of_q), *of_e = FLOATS(sma_backward_parts, of_e), *of_c = FLOATS(sma_backward_parts, of_c);
    const uint32_t lane = threadIdx.x % 32;
    const bool adds = args.flags & IS_ADD;
    const size_t rows = args.flags & HAS_CU ? args.T : args.B * args.L;
    FOR_TILES(tile) {
        const uint32_t item = tile * warps + threadIdx.x / 32, group = item % args.G, t = item / args.G % args.L, b = item / args.G / args.L;
        if (b >= args.B) continue;
        const Sequence piece = sequence_of(INTS(sma_backward_parts, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (t >= piece.span) continue;
        const bool live = t < piece.count;
        const size_t row = size_t(piece.row) + t, part_row = row * args.G + group;
        sma_parts::Row q, e;
        q.take(VIEW(sma_backward_parts, q), args.q_at + row * args.q_row + group * args.N, of_q + part_row * args.N, rows * args.G * args.N,
               args.parts, args.N, live);
        e.take(VIEW(sma_backward_parts, e), args.e_at + row * args.e_row + group * args.P, of_e + part_row * args.P, rows * args.G * args.P,
               args.parts, args.P, live);
        const float2 along_q = q.shares(), along_e = e.shares();
        const float mean_n = 1.0f / float(args.N), mean_p = 1.0f / float(args.P);
        const float norm_q = 1.0f / sqrtf(warp_sum(along_q.x) * mean_n + args.eps), norm_e = 1.0f / sqrtf(warp_sum(along_e.x) * mean_p + args.eps);
        const float factor = norm_q * (1.0f / sqrtf(float(args.N))) * norm_e;
        q.finish(grad_q, args.grad_q_at + row * args.grad_q_row + group * args.N, factor, norm_q * norm_q * mean_n * warp_sum(along_q.y));
        e.finish(grad_e, args.grad_e_at + row * args.grad_e_row + group * args.P, factor, norm_e * norm_e * mean_p * warp_sum(along_e.y));
        const size_t to = args.grad_c_at + row * args.grad_c_row + group * args.N;
        if (adds && !live) continue;
        float sums[sma_parts::COUNT];
        sma_parts::take_sums(sums, of_c + part_row * args.N, rows * args.G * args.N, live ? args.parts : 0, args.N);
#pragma unroll
        for (uint32_t i = 0; i < sma_parts::COUNT; i++) {
            const uint32_t n = lane + 32 * i;
            if (n < args.N) store(grad_c, to + n, adds ? load(grad_c, to + n) + sums[i] : sums[i]);
        }
    }
}
