// y_t = sum_{s <= t} cb[t, s] exp(cum_t - cum_s) step_s x_s + exp(cum_t) c_t hin + d x_t within a chunk.
// A block computes T1 tokens x T0 columns of one (sequence, chunk, head) as two products into the same sums: over the
// earlier tokens of the chunk, then over N.
#include "product.cuh"

// cb[t, s] exp(cum_t - cum_s) step_s; above the diagonal cb is 0 and the clamp keeps the exponential finite.
struct DecayedProducts {
    static constexpr bool by_line = true;
    struct Fetched { uint4 raw; float4 weight; };
    Lines cb;
    const float *cum, *own; // of the first token of the chunk and of the token that this thread stages
    __device__ __forceinline__ float weight(uint32_t s) const
    {
        if (s >= cb.K) return 0.0f;
        const float *at = cum + size_t(s) * CUM_STRIDE;
        return exp_below(cum_between(own, at)) * at[2];
    }
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t s) const
    {
        Fetched fetched = {cb.fetch(line, s), make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
        if (line < cb.lines) fetched.weight = make_float4(weight(s), weight(s + 1), weight(s + 2), weight(s + 3));
        return fetched;
    }
    __device__ __forceinline__ float4 value(const Fetched &f) const
    {
        const float4 v = unpack4(f.raw, DTYPE_F32);
        return make_float4(f.weight.x * v.x, f.weight.y * v.y, f.weight.z * v.z, f.weight.w * v.w);
    }
};

KERNEL_FUNCTION(ssd_output, simt)
{
    constexpr uint32_t T = TILE0_ssd_output_simt;
    static_assert(T == Panels<4>::side && T == TILE1_ssd_output_simt, "tile of the product");
    __shared__ Panels<4> panels;
    const View x = VIEW(ssd_output, x), c = VIEW(ssd_output, c), d = VIEW(ssd_output, d), y = VIEW(ssd_output, y);
    const View cb = VIEW(ssd_output, cb), hin = VIEW(ssd_output, hin);
    const uint32_t p_blocks = ceil_div(args.P, T), t_blocks = ceil_div(args.C, T);
    FOR_TILES(tile) {
        const uint32_t p0 = tile % p_blocks * T, t0 = tile / p_blocks % t_blocks * T, rest = tile / p_blocks / t_blocks;
        const uint32_t h = rest % args.H, j = rest / args.H % args.M, b = rest / args.H / args.M,
                       g = h / (args.H / args.G);
        const Chunk chunk = chunk_of(piece_of(INTS(ssd_output, seq) + args.seq_at, args.flags, args.L, b), args.S, j);
        const uint32_t length = chunk.length();
        if (t0 >= length) continue;
        const uint32_t lines = min(length - t0, T), earlier = t0 + lines;
        const size_t token = size_t(b) * args.L + chunk.begin;
        const float *cum = FLOATS(ssd_output, cum) + ((size_t(b) * args.H + h) * args.L + chunk.begin) * CUM_STRIDE;
        const float *own = cum + size_t(t0 + min(staged_line<4>(), lines - 1)) * CUM_STRIDE;
        const size_t cb_at = (((size_t(b) * args.M + j) * args.G + g) * args.C + t0) * args.C;
        const size_t hin_at = ((size_t(b) * args.M + j) * args.H + h) * args.N * args.P + p0;
        const size_t x_at = args.x_at + token * args.x_row + h * args.P + p0;

        float acc[4][4];
        product_clear(acc);
        product(DecayedProducts{{cb, cb_at, args.C, lines, earlier, multiples_of_4(args.C, 0)}, cum, own},
                Columns{x, x_at, args.x_row, args.P - p0, earlier, multiples_of_4(args.x_at, args.x_row, args.P)},
                earlier, panels, acc);
        product(ScaledLines{{c, args.c_at + (token + t0) * args.c_row + g * args.N, args.c_row, lines, args.N,
                             multiples_of_4(args.c_at, args.c_row, args.N)}, exp_below(own[0] + own[1])},
                Columns{hin, hin_at, args.P, args.P - p0, args.N, multiples_of_4(args.P, 0)}, args.N, panels, acc);

        const float skip = args.flags & HAS_D ? load(d, args.d_at + size_t(h)) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t t = output_line(threadIdx.x / 16, i);
            if (t >= lines) continue;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t p = output_line(threadIdx.x % 16, k);
                if (p0 + p >= args.P) continue;
                float sum = acc[i][k];
                if (args.flags & HAS_D) sum = fmaf(skip, load(x, x_at + (t0 + t) * size_t(args.x_row) + p), sum);
                store(y, args.y_at + (token + t0 + t) * args.y_row + h * args.P + p0 + p, sum);
            }
        }
    }
}
