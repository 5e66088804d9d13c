// grad_b_s = sum_(t >= s) grad_cb_ts c_t + the sum over the heads of a group of keep_s step_s (lambda + up_dh) x_s. A block makes 64 tokens x 64
// columns n of a (chunk, group) (see product.cuh).
#include "backward.cuh"

KERNEL_FUNCTION(ssd_backward_b, simt)
{
    constexpr uint32_t T = TILE0_ssd_backward_b_simt;
    static_assert(T == Panels<4>::side && TILE1_ssd_backward_b_simt == T, "tile of the product");
    __shared__ Panels<4> panels;
    const View x = VIEW(ssd_backward_b, x), c = VIEW(ssd_backward_b, c), grad_b = VIEW(ssd_backward_b, grad_b);
    const float *grad_cb = FLOATS(ssd_backward_b, grad_cb), *lambda = FLOATS(ssd_backward_b, lambda);
    const float *up_dh = args.flags & HAS_DH ? FLOATS(ssd_backward_b, up_dh) + args.up_dh_at : nullptr;
    const uint32_t n_blocks = ceil_div(args.N, T), tiles = ceil_div(args.C, T), in_group = args.H / args.G;
    FOR_TILES(tile) {
        const uint32_t n0 = tile % n_blocks * T, s0 = tile / n_blocks % tiles * T, rest = tile / n_blocks / tiles, g = rest % args.G;
        const Place at = place_of(args, INTS(ssd_backward_b, seq) + args.seq_at, rest / args.G);
        if (s0 >= at.size) continue;
        const uint32_t lines = min(at.size - s0, T), staged = s0 + min(staged_line<4>(), lines - 1);
        float acc[4][4];
        product_clear(acc);
        product(SquareColumns{grad_cb + (at.slot * args.G + g) * args.C * args.C, nullptr, args.C, s0, s0, at.size},
                Columns{c, args.c_at + (at.token + s0) * args.c_row + g * args.N + n0, args.c_row, args.N - n0, at.size - s0,
                        multiples_of_4(args.c_at, args.c_row, args.N)},
                at.size - s0, panels, acc);
        for (uint32_t h = g * in_group; h < (g + 1) * in_group; h++) {
            const float *cum = cum_of(args, FLOATS(ssd_backward_b, cum), at, h), *from = cum + size_t(staged) * CUM_STRIDE;
            const size_t matrix = ((at.slot * args.H + h) * args.N + n0) * args.P;
            const ScaledLines values = {{x, args.x_at + (at.token + s0) * args.x_row + h * args.P, args.x_row, lines, args.P,
                                         multiples_of_4(args.x_at, args.x_row, args.P)},
                                        exp_below(cum_between(cum + size_t(at.size - 1) * CUM_STRIDE, from)) * from[2]};
            product(values, Gains<true>{lambda + matrix, up_dh != nullptr ? up_dh + matrix : nullptr, args.P, args.N - n0, args.P,
                                        multiples_of_4(args.P, 0)},
                    args.P, panels, acc);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t s = s0 + output_line(threadIdx.x / 16, i);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t n = n0 + output_line(threadIdx.x % 16, k);
                if (s < at.size && n < args.N) store(grad_b, args.grad_b_at + (at.token + s) * args.grad_b_row + g * args.N + n, acc[i][k]);
            }
        }
    }
}
