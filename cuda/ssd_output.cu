// y_t = sum_{s <= t} (c_t . b_s) exp(cum_t - cum_s) step_s x_s + exp(cum_t) c_t hin + d x_t within a chunk.
// A block computes T1 tokens of T0 heads of a group, 64 columns at a time: the products c . b of 64 earlier tokens go
// through shared memory and serve all heads, into the sums of the product over N.
// Shared memory: that of a product and 17 KiB.
#include "product.cuh"

constexpr uint32_t products_row = Panels<4>::side + 4;

// (c_t . b_s) exp(cum_t - cum_s) step_s of one slab of s; the products above the diagonal are 0, and the clamp keeps the
// exponential finite.
struct DecayedProducts {
    static constexpr bool by_line = true;
    struct Fetched { float4 products, weight; };
    const float *products; // in shared memory, a line per t
    const float *cum, *own; // of the first token of the slab and of the token that this thread stages
    uint32_t lines, K;
    __device__ __forceinline__ float weight(uint32_t s) const
    {
        if (s >= K) return 0.0f;
        const float *at = cum + size_t(s) * CUM_STRIDE;
        return exp_below(cum_between(own, at)) * at[2];
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
        const Chunk chunk = chunk_of(piece_of(INTS(ssd_output, seq) + args.seq_at, args.flags, args.L, b), args.S, j);
        const uint32_t length = chunk.length();
        if (t0 >= length) continue;
        const uint32_t lines = min(length - t0, T), earlier = t0 + lines;
        const uint32_t staged = t0 + min(staged_line<4>(), lines - 1);
        const size_t token = size_t(b) * args.L + chunk.begin;
        const Lines reads = {c, args.c_at + (token + t0) * args.c_row + g * args.N, args.c_row, lines, args.N,
                             multiples_of_4(args.c_at, args.c_row, args.N)};
        for (uint32_t p0 = 0; p0 < args.P; p0 += T) {
            float acc[heads][4][4];
#pragma unroll
            for (uint32_t i = 0; i < heads; i++) {
                product_clear(acc[i]);
                if (i >= there) continue;
                const float *own = FLOATS(ssd_output, cum) +
                                   ((size_t(b) * args.H + h0 + i) * args.L + chunk.begin + staged) * CUM_STRIDE;
                const size_t row = ((size_t(b) * args.M + j) * args.H + h0 + i) * args.N;
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
                    const float *cum = FLOATS(ssd_output, cum) + ((size_t(b) * args.H + h0 + i) * args.L + chunk.begin) * CUM_STRIDE;
                    product(DecayedProducts{products, cum + size_t(s0) * CUM_STRIDE, cum + size_t(staged) * CUM_STRIDE, lines, sources},
                            Columns{x, args.x_at + (token + s0) * args.x_row + (h0 + i) * args.P + p0, args.x_row, args.P - p0,
                                    sources, multiples_of_4(args.x_at, args.x_row, args.P)},
                            sources, panels, acc[i]);
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
