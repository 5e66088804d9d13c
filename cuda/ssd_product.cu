// cb[s, t] = c_s . b_t within a chunk for t <= s, 0 elsewhere.
// A block computes T0 x T0 of one (sequence, chunk, group).
#include "product.cuh"

KERNEL_FUNCTION(ssd_product, simt)
{
    constexpr uint32_t T0 = TILE0_ssd_product_simt;
    static_assert(T0 == Panels<4>::side, "tile of the product");
    __shared__ Panels<4> panels;
    const View b_view = VIEW(ssd_product, b), c_view = VIEW(ssd_product, c);
    float *cb = FLOATS(ssd_product, cb);
    const uint32_t blocks = ceil_div(args.C, T0);
    FOR_TILES(tile) {
        const uint32_t t0 = tile % blocks * T0, s0 = tile / blocks % blocks * T0, rest = tile / blocks / blocks;
        const uint32_t g = rest % args.G, j = rest / args.G % args.M, b = rest / args.G / args.M;
        const Chunk chunk = chunk_of(piece_of(INTS(ssd_product, seq) + args.seq_at, args.flags, args.L, b), args.S, j);
        const uint32_t length = chunk.length();
        float acc[4][4];
        product_clear(acc);
        if (t0 < s0 + T0 && s0 < length && t0 < length) {
            const size_t token = size_t(b) * args.L + chunk.begin;
            const Lines rows = {c_view, args.c_at + (token + s0) * args.c_row + g * args.N, args.c_row, length - s0,
                                args.N, multiples_of_4(args.c_at, args.c_row, args.N)};
            const Lines columns = {b_view, args.b_at + (token + t0) * args.b_row + g * args.N, args.b_row, length - t0,
                                   args.N, multiples_of_4(args.b_at, args.b_row, args.N)};
            product(rows, columns, args.N, panels, acc);
        }
        const size_t to = ((size_t(b) * args.M + j) * args.G + g) * args.C * args.C;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t s = s0 + output_line(threadIdx.x / 16, i);
            if (s >= args.C) continue;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t t = t0 + output_line(threadIdx.x % 16, k);
                if (t < args.C) cb[to + size_t(s) * args.C + t] = t <= s ? acc[i][k] : 0.0f;
            }
        }
    }
}
