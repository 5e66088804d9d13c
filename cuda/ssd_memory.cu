// memory[n, p] = sum_t exp(cum[last] - cum[t]) step_t b_t[n] x_t[p] over a chunk.
// A block computes T0 rows x T1 columns of one (sequence, chunk, head) as a product over its tokens.
#include "product.cuh"

// b_t[n] exp(cum[last] - cum[t]) step_t
struct DecayedColumns {
    static constexpr bool by_line = false;
    struct Fetched { uint4 raw; float weight; };
    Columns b;
    const float *cum; // of the first token of the chunk
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t t) const
    {
        Fetched fetched = {b.fetch(line, t), 0.0f};
        if (t < b.K) {
            const float *at = cum + size_t(t) * CUM_STRIDE;
            fetched.weight = exp_below(cum_between(cum + size_t(b.K - 1) * CUM_STRIDE, at)) * at[2];
        }
        return fetched;
    }
    __device__ __forceinline__ float4 value(const Fetched &fetched) const
    {
        const float4 v = unpack4(fetched.raw, b.view.dtype);
        const float w = fetched.weight;
        return make_float4(w * v.x, w * v.y, w * v.z, w * v.w);
    }
};

KERNEL_FUNCTION(ssd_memory, simt)
{
    constexpr uint32_t T = TILE0_ssd_memory_simt;
    static_assert(T == Panels<4>::side && T == TILE1_ssd_memory_simt, "tile of the product");
    __shared__ Panels<4> panels;
    const View x = VIEW(ssd_memory, x), b_view = VIEW(ssd_memory, b);
    float *memory = FLOATS(ssd_memory, memory);
    const uint32_t p_blocks = ceil_div(args.P, T), n_blocks = ceil_div(args.N, T);
    FOR_TILES(tile) {
        const uint32_t p0 = tile % p_blocks * T, n0 = tile / p_blocks % n_blocks * T, rest = tile / p_blocks / n_blocks;
        const uint32_t h = rest % args.H, j = rest / args.H % args.M, b = rest / args.H / args.M,
                       g = h / (args.H / args.G);
        const Chunk chunk = chunk_of(piece_of(INTS(ssd_memory, seq) + args.seq_at, args.flags, args.L, b), args.S, j);
        const uint32_t length = chunk.length();
        const size_t token = size_t(b) * args.L + chunk.begin;
        const DecayedColumns rows = {
            {b_view, args.b_at + token * args.b_row + g * args.N + n0, args.b_row, args.N - n0, length,
             multiples_of_4(args.b_at, args.b_row, args.N)},
            FLOATS(ssd_memory, cum) + ((size_t(b) * args.H + h) * args.L + chunk.begin) * CUM_STRIDE};
        const Columns columns = {x, args.x_at + token * args.x_row + h * args.P + p0, args.x_row, args.P - p0, length,
                                 multiples_of_4(args.x_at, args.x_row, args.P)};
        float acc[4][4];
        product_clear(acc);
        product(rows, columns, length, panels, acc);
        const size_t to = ((size_t(b) * args.M + j) * args.H + h) * args.N * args.P;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t n = n0 + output_line(threadIdx.x / 16, i);
            if (n >= args.N) continue;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t p = p0 + output_line(threadIdx.x % 16, k);
                if (p < args.P) memory[to + size_t(n) * args.P + p] = acc[i][k];
            }
        }
    }
}
