// y_t = sum_{s <= t} (c_t . b_s) exp(cum_t - cum_s) step_s x_s + exp(cum_t) c_t hin + d x_t within a chunk.
// A block computes T1 tokens of T0 heads of a group, 64 columns at a time: the products c . b of 64 earlier tokens go
// through shared memory and serve all heads, into the sums of the product over N.
// A number of x that is not finite would come out of the product at earlier tokens of its 64, as 0 times it is none: where
// sums over the own 64 tokens are not finite, they are taken again one by one, which changes no bit of the others.
// Shared memory: that of a product and 17 KiB.
#include "lib/product.cuh"
#include "memory.cuh"

constexpr uint32_t products_row = Panels<4>::side + 4;

// exp(cum_t - cum_s) step_s
__device__ __forceinline__ float decayed_step(const float *to, const float *from)
{
    return exp_below(cum_between(to, from)) * from[2];
}

// (c_t . b_s) exp(cum_t - cum_s) step_s of one slab of s, 0 where t does not see s.
struct DecayedProducts {
    static constexpr bool by_line = true;
    struct Fetched { float4 products, weight; };
    const float *products; // in shared memory, a line per t
    const float *cum, *own; // of the first token of the slab and of the token that this thread stages
    uint32_t lines, seen; // seen: how many of the slab that token sees
    __device__ __forceinline__ float weight(uint32_t s) const
    {
        return s < seen ? decayed_step(own, cum + size_t(s) * CUM_STRIDE) : 0.0f;
    }
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t s) const
    {
        Fetched fetched = {*reinterpret_cast<const float4 *>(products + line * products_row + s), make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
        if (line < lines) fetched.weight = make_float4(weight(s), weight(s + 1), weight(s + 2), weight(s + 3));
        return fetched;
    }
    __device__ __forceinline__ float4 value(const Fetched &f) const
    {
        return make_float4(f.weight.x * f.products.x, f.weight.y * f.products.y, f.weight.z * f.products.z,
                           f.weight.w * f.products.w);
    }
};

// Rows of hin with their scales.
struct ScaledColumns {
    static constexpr bool by_line = false;
    struct Fetched { uint4 raw; float scale; };
    Columns columns;
    const float *scale; // nullptr: raw
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const
    {
        return {columns.fetch(line, k), scale != nullptr && k < columns.K ? scale[k] : 1.0f};
    }
    __device__ __forceinline__ float4 value(const Fetched &f) const
    {
        const float4 v = columns.value(f.raw);
        return make_float4(f.scale * v.x, f.scale * v.y, f.scale * v.z, f.scale * v.w);
    }
};

__device__ __forceinline__ bool all_finite(const float (&acc)[4][4])
{
    float zero = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) zero = fmaf(0.0f, acc[i / 4][i % 4], zero);
    return zero == 0.0f;
}
// What t sees of the own tokens one by one, in the order of the product; cum and columns are of the first of them.
__device__ __forceinline__ void add_seen(float (&acc)[4][4], const float *products, const float *cum, const Columns &columns,
                                         uint32_t lines)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t t = output_line(threadIdx.x / 16, i);
        if (t >= lines) continue;
        for (uint32_t s = 0; s <= t; s++) {
            const float *to = cum + size_t(t) * CUM_STRIDE, *from = cum + size_t(s) * CUM_STRIDE;
            const float weight = decayed_step(to, from) * products[t * products_row + s];
            const float4 x = columns.value(columns.fetch(output_line(threadIdx.x % 16, 0), s));
            acc[i][0] = fmaf(weight, x.x, acc[i][0]);
            acc[i][1] = fmaf(weight, x.y, acc[i][1]);
            acc[i][2] = fmaf(weight, x.z, acc[i][2]);
            acc[i][3] = fmaf(weight, x.w, acc[i][3]);
        }
    }
}

KERNEL_FUNCTION(ssd_output, simt)
{
    constexpr uint32_t T = TILE1_ssd_output_simt, heads = TILE0_ssd_output_simt;
    static_assert(T == Panels<4>::side, "tile of the product");
    __shared__ Panels<4> panels;
    __shared__ alignas(16) float products[T * products_row];
    const View x = VIEW(ssd_output, x), b_view = VIEW(ssd_output, b), c = VIEW(ssd_output, c), d = VIEW(ssd_output, d);
    const View y = VIEW(ssd_output, y), hin = VIEW(ssd_output, hin);
    const uint32_t in_group = args.H / args.G, h_blocks = ceil_div(in_group, heads), t_blocks = ceil_div(args.C, T);
    FOR_TILES(tile) {
        const uint32_t t0 = tile % t_blocks * T, block = tile / t_blocks % h_blocks, rest = tile / t_blocks / h_blocks;
        const uint32_t g = rest % args.G, j = rest / args.G % args.M, b = rest / args.G / args.M;
        const uint32_t h0 = g * in_group + block * heads, there = min(heads, in_group - block * heads);
        const Sequence piece = sequence_of(INTS(ssd_output, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const Chunk chunk = chunk_of(piece, args.S, j);
        const uint32_t length = chunk.length();
        if (t0 >= length) continue;
        const uint32_t lines = min(length - t0, T), earlier = t0 + lines;
        const uint32_t staged = t0 + min(staged_line<4>(), lines - 1);
        const size_t token = size_t(piece.row) + chunk.begin, walk = size_t(piece.row) * args.H + chunk.begin; // of head 0 in cum
        const Lines reads = {c, args.c_at + (token + t0) * args.c_row + g * args.N, args.c_row, lines, args.N,
                             multiples_of_4(args.c_at, args.c_row, args.N)};
        for (uint32_t p0 = 0; p0 < args.P; p0 += T) {
            float acc[heads][4][4];
#pragma unroll
            for (uint32_t i = 0; i < heads; i++) {
                product_clear(acc[i]);
                if (i >= there) continue;
                const float *own = FLOATS(ssd_output, cum) +
                                   (walk + size_t(h0 + i) * piece.span + staged) * CUM_STRIDE;
                const size_t row = ((size_t(piece.slot(args.M, args.S)) + j) * args.H + h0 + i) * args.N;
                const Columns columns = {hin, args.hin_at + row * args.P + p0, args.P, args.P - p0, args.N,
                                         multiples_of_4(args.hin_at, args.P)};
                const float *scale =
                    args.flags & HAS_HIN_SCALE ? FLOATS(ssd_output, hin_scale) + args.hin_scale_at + row : nullptr;
                product(ScaledLines{reads, exp_below(own[0] + own[1])}, ScaledColumns{columns, scale}, args.N, panels, acc[i]);
            }
            for (uint32_t s0 = 0; s0 < earlier; s0 += T) {
                const uint32_t sources = min(earlier - s0, T);
                float found[4][4];
                product_clear(found);
                product(reads, Lines{b_view, args.b_at + (token + s0) * args.b_row + g * args.N, args.b_row, sources, args.N,
                                     multiples_of_4(args.b_at, args.b_row, args.N)}, args.N, panels, found);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t t = output_line(threadIdx.x / 16, i);
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const uint32_t s = output_line(threadIdx.x % 16, k);
                        products[t * products_row + s] = s0 + s <= t0 + t ? found[i][k] : 0.0f;
                    }
                }
#pragma unroll
                for (uint32_t i = 0; i < heads; i++) {
                    if (i >= there) continue;
                    const float *cum =
                        FLOATS(ssd_output, cum) + (walk + size_t(h0 + i) * piece.span) * CUM_STRIDE;
                    const Columns columns = {x, args.x_at + (token + s0) * args.x_row + (h0 + i) * args.P + p0, args.x_row,
                                             args.P - p0, sources, multiples_of_4(args.x_at, args.x_row, args.P)};
                    const float *from = cum + size_t(s0) * CUM_STRIDE;
                    float before[4][4];
#pragma unroll
                    for (int k = 0; k < 16; k++) before[k / 4][k % 4] = acc[i][k / 4][k % 4];
                    product(DecayedProducts{products, from, cum + size_t(staged) * CUM_STRIDE, lines,
                                            min(sources, staged - s0 + 1)}, columns, sources, panels, acc[i]);
                    if (s0 < t0 || !__syncthreads_or(!all_finite(acc[i]))) continue;
                    add_seen(before, products, from, columns, lines);
#pragma unroll
                    for (int k = 0; k < 16; k++) acc[i][k / 4][k % 4] = before[k / 4][k % 4];
                }
            }

#pragma unroll
            for (uint32_t head = 0; head < heads; head++) {
                if (head >= there) continue;
                const uint32_t h = h0 + head;
                const float skip = args.flags & HAS_D ? load(d, args.d_at + size_t(h)) : 0.0f;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t t = output_line(threadIdx.x / 16, i);
                    if (t >= lines) continue;
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const uint32_t p = p0 + output_line(threadIdx.x % 16, k);
                        if (p >= args.P) continue;
                        const size_t at = token + t0 + t, column = h * args.P + p;
                        float sum = acc[head][i][k];
                        if (args.flags & HAS_D) sum = fmaf(skip, load(x, args.x_at + at * args.x_row + column), sum);
                        store(y, args.y_at + at * args.y_row + column, sum);
                    }
                }
            }
        }
    }
}
