// sma_backward_parts: see args.h. A warp takes a (token, group), lanes take its columns.
#include "lib/dart.cuh"

namespace sma_parts {

// A row of `width` columns of q or e, and its parts, which lie `step` floats apart.
struct Row {
    View values;
    size_t at;
    const float *parts;
    size_t step;
    uint32_t width, count;
    __device__ __forceinline__ float sum(uint32_t i) const
    {
        float total = 0.0f;
        for (uint32_t part = 0; part < count; part++) total += parts[part * step + i];
        return total;
    }
    // This lane's share of the sum of squares, and of that of s times the values.
    __device__ __forceinline__ float2 shares() const
    {
        float2 of = make_float2(0.0f, 0.0f);
        for (uint32_t i = threadIdx.x % 32; i < width; i += 32) {
            const float value = load(values, at + i);
            of.x = fmaf(value, value, of.x), of.y = fmaf(value, sum(i), of.y);
        }
        return of;
    }
    __device__ __forceinline__ void finish(const View &grad, size_t to, float factor, float back, bool live) const
    {
        for (uint32_t i = threadIdx.x % 32; i < width; i += 32) store(grad, to + i, live ? factor * (sum(i) - back * load(values, at + i)) : 0.0f);
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
        const sma_parts::Row q = {VIEW(sma_backward_parts, q), args.q_at + row * args.q_row + group * args.N, of_q + part_row * args.N,
                                  rows * args.G * args.N, args.N, args.parts};
        const sma_parts::Row e = {VIEW(sma_backward_parts, e), args.e_at + row * args.e_row + group * args.P, of_e + part_row * args.P,
                                  rows * args.G * args.P, args.P, args.parts};
        float2 along_q = make_float2(0.0f, 0.0f), along_e = along_q;
        if (live) along_q = q.shares(), along_e = e.shares();
        const float mean_n = 1.0f / float(args.N), mean_p = 1.0f / float(args.P);
        const float norm_q = 1.0f / sqrtf(warp_sum(along_q.x) * mean_n + args.eps), norm_e = 1.0f / sqrtf(warp_sum(along_e.x) * mean_p + args.eps);
        const float factor = norm_q * (1.0f / sqrtf(float(args.N))) * norm_e;
        q.finish(grad_q, args.grad_q_at + row * args.grad_q_row + group * args.N, factor, norm_q * norm_q * mean_n * warp_sum(along_q.y), live);
        e.finish(grad_e, args.grad_e_at + row * args.grad_e_row + group * args.P, factor, norm_e * norm_e * mean_p * warp_sum(along_e.y), live);
        const size_t to = args.grad_c_at + row * args.grad_c_row + group * args.N;
        if (adds && !live) continue;
        for (uint32_t n = lane; n < args.N; n += 32) {
            float total = 0.0f;
            for (uint32_t part = 0; part < args.parts && live; part++) total += of_c[(part * rows * args.G + part_row) * args.N + n];
            store(grad_c, to + n, adds ? load(grad_c, to + n) + total : total);
        }
    }
}
