// memory[n, p] = sum_t exp(cum[last] - cum[t]) step_t b_t[n] x_t[p] over a chunk, for the first one plus what is open; raw,
// or rows divided by their scales. An open last chunk goes to tail as well.
// A block computes T0 rows of one (sequence, chunk, head), 64 columns at a time, as a product over its tokens. Normalised
// rows that are wider are computed twice, the first time for their squares.
#include "lib/product.cuh"
#include "memory.cuh"

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
    static_assert(T == Panels<4>::side && TILE1_ssd_memory_simt == 1, "tile of the product, of one head");
    __shared__ Panels<4> panels;
    const View x = VIEW(ssd_memory, x), b_view = VIEW(ssd_memory, b), memory = VIEW(ssd_memory, memory);
    const float *open = FLOATS(ssd_memory, open);
    float *scale = FLOATS(ssd_memory, scale), *tail = FLOATS(ssd_memory, tail);
    const bool scaled = args.flags & HAS_SCALE, has_open = args.flags & HAS_OPEN;
    const uint32_t p_blocks = ceil_div(args.P, T), n_blocks = ceil_div(args.N, T), again = scaled && p_blocks > 1 ? p_blocks : 0;
    FOR_TILES(tile) {
        const uint32_t n0 = tile % n_blocks * T, rest = tile / n_blocks;
        const uint32_t h = rest % args.H, j = rest / args.H % args.M, b = rest / args.H / args.M,
                       g = h / (args.H / args.G);
        const Sequence piece = sequence_of(INTS(ssd_memory, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const Chunk chunk = chunk_of(piece, args.S, j);
        const uint32_t length = chunk.length();
        if (length == 0) continue;
        const size_t token = size_t(piece.row) + chunk.begin, own = (size_t(b) * args.H + h) * args.N;
        const bool stored = memory_stored(args, piece, j);
        const size_t row = memory_row(args, piece, j, h);
        const float still = has_open && j == 0 ? exp_below(FLOATS(ssd_memory, decay)[(size_t(piece.slot(args.M, args.S)) + b + 1) * args.H + h])
                                               : 0.0f;
        const DecayedColumns rows = {
            {b_view, args.b_at + token * args.b_row + g * args.N + n0, args.b_row, args.N - n0, length,
             multiples_of_4(args.b_at, args.b_row, args.N)},
            FLOATS(ssd_memory, cum) + (size_t(piece.row) * args.H + size_t(h) * piece.span + chunk.begin) * CUM_STRIDE};
        float squares[4] = {}, roots[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        for (uint32_t round = 0; round < again + p_blocks; round++) {
            const uint32_t p0 = round % p_blocks * T;
            const Columns columns = {x, args.x_at + token * args.x_row + h * args.P + p0, args.x_row, args.P - p0, length,
                                     multiples_of_4(args.x_at, args.x_row, args.P)};
            float acc[4][4];
            product_clear(acc);
            product(rows, columns, length, panels, acc);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t n = n0 + output_line(threadIdx.x / 16, i);
                float square = 0.0f;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint32_t p = p0 + output_line(threadIdx.x % 16, k);
                    if (n >= args.N || p >= args.P) continue;
                    const size_t at = (own + n) * args.P + p;
                    if (has_open && j == 0) acc[i][k] = fmaf(still, open[at], acc[i][k]);
                    if (has_open && !chunk.closes && round < p_blocks) tail[at] = acc[i][k];
                    square = fmaf(acc[i][k], acc[i][k], square);
                }
                // A row lies in 16 neighbouring threads.
                for (int step = 8; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffffu, square, step);
                if (round < p_blocks) squares[i] += square;
                if (!stored || n >= args.N) continue;
                if (scaled && round + 1 == p_blocks) {
                    roots[i] = sqrtf(squares[i] / float(args.P) + args.eps);
                    if (threadIdx.x % 16 == 0) scale[args.scale_at + row + n] = roots[i];
                }
                if (round < again) continue;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint32_t p = p0 + output_line(threadIdx.x % 16, k);
                    if (p < args.P) store(memory, args.memory_at + (row + n) * args.P + p, acc[i][k] / roots[i]);
                }
            }
        }
    }
}
