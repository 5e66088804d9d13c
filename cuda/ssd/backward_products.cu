// ssd_backward_products: cb[t, s] = c_t . b_s in the tiles on and below the diagonal of a chunk.
// ssd_backward_read: read[n, p] = sum_t exp(cum_t) c_t[n] up_y_t[p]. A block makes 64 x 64 outputs (see product.cuh).
#include "backward.cuh"

KERNEL_FUNCTION(ssd_backward_products, simt)
{
    constexpr uint32_t T = TILE0_ssd_backward_products_simt;
    static_assert(T == Panels<4>::side, "tile of the product");
    __shared__ Panels<4> panels;
    const View b = VIEW(ssd_backward_products, b), c = VIEW(ssd_backward_products, c);
    float *cb = FLOATS(ssd_backward_products, cb);
    const uint32_t side = ceil_div(args.C, T), pairs = side * (side + 1) / 2;
    FOR_TILES(tile) {
        const uint2 pair = pair_of(tile % pairs);
        const uint32_t t0 = pair.x * T, s0 = pair.y * T, g = tile / pairs % args.G;
        const Place at = place_of(args, INTS(ssd_backward_products, seq) + args.seq_at, tile / pairs / args.G);
        if (t0 >= at.size) continue;
        const Lines left = {c, args.c_at + (at.token + t0) * args.c_row + g * args.N, args.c_row, at.size - t0, args.N,
                            multiples_of_4(args.c_at, args.c_row, args.N)};
        const Lines right = {b, args.b_at + (at.token + s0) * args.b_row + g * args.N, args.b_row, at.size - s0, args.N,
                             multiples_of_4(args.b_at, args.b_row, args.N)};
        float acc[4][4];
        product_clear(acc);
        product(left, right, args.N, panels, acc);
        float *to = cb + (at.slot * args.G + g) * args.C * args.C;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t t = t0 + output_line(threadIdx.x / 16, i);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t s = s0 + output_line(threadIdx.x % 16, k);
                if (t < at.size && s < at.size) to[size_t(t) * args.C + s] = acc[i][k];
            }
        }
    }
}

KERNEL_FUNCTION(ssd_backward_read, simt)
{
    constexpr uint32_t T = TILE0_ssd_backward_read_simt;
    static_assert(T == Panels<4>::side && TILE1_ssd_backward_read_simt == T, "tile of the product");
    __shared__ Panels<4> panels;
    const View c = VIEW(ssd_backward_read, c), up_y = VIEW(ssd_backward_read, up_y);
    float *read = FLOATS(ssd_backward_read, read);
    const uint32_t n_blocks = ceil_div(args.N, T), p_blocks = ceil_div(args.P, T);
    FOR_TILES(tile) {
        const uint32_t n0 = tile % n_blocks * T, p0 = tile / n_blocks % p_blocks * T, rest = tile / n_blocks / p_blocks;
        const uint32_t h = rest % args.H, g = h / (args.H / args.G);
        const Place at = place_of(args, INTS(ssd_backward_read, seq) + args.seq_at, rest / args.H);
        if (at.size == 0) continue;
        const ReadColumns left = {{c, args.c_at + at.token * args.c_row + g * args.N + n0, args.c_row, args.N - n0, at.size,
                                   multiples_of_4(args.c_at, args.c_row, args.N)},
                                  cum_of(args, FLOATS(ssd_backward_read, cum), at, h)};
        const Columns right = {up_y, args.up_y_at + at.token * args.up_y_row + h * args.P + p0, args.up_y_row, args.P - p0, at.size,
                               multiples_of_4(args.up_y_at, args.up_y_row, args.P)};
        float acc[4][4];
        product_clear(acc);
        product(left, right, at.size, panels, acc);
        float *to = read + (at.slot * args.H + h) * args.N * args.P;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t n = n0 + output_line(threadIdx.x / 16, i);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t p = p0 + output_line(threadIdx.x % 16, k);
                if (n < args.N && p < args.P) to[size_t(n) * args.P + p] = acc[i][k];
            }
        }
    }
}
