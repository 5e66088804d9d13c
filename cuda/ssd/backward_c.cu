// grad_c_t = sum_(s <= t) grad_cb_ts b_s + the sum over the heads of a group of exp(cum_t) hin up_y_t, added to what grad_c holds with IS_ADD; and of
// each token and head exp(cum_t) c_t . hin up_y_t. A block makes 64 tokens of a (chunk, group), 64 columns n at a time (see product.cuh).
#include "backward.cuh"

KERNEL_FUNCTION(ssd_backward_c, simt)
{
    constexpr uint32_t T = TILE0_ssd_backward_c_simt;
    static_assert(T == Panels<4>::side, "tile of the product");
    __shared__ Panels<4> panels;
    const View b = VIEW(ssd_backward_c, b), c = VIEW(ssd_backward_c, c), up_y = VIEW(ssd_backward_c, up_y), hin = VIEW(ssd_backward_c, hin);
    const View grad_c = VIEW(ssd_backward_c, grad_c);
    const float *grad_cb = FLOATS(ssd_backward_c, grad_cb), *hin_scale = FLOATS(ssd_backward_c, hin_scale) + args.hin_scale_at;
    float *token = FLOATS(ssd_backward_c, token);
    const uint32_t tiles = ceil_div(args.C, T), in_group = args.H / args.G;
    FOR_TILES(tile) {
        const uint32_t t0 = tile % tiles * T, g = tile / tiles % args.G;
        const Place at = place_of(args, INTS(ssd_backward_c, seq) + args.seq_at, tile / tiles / args.G);
        if (t0 >= at.size) continue;
        const uint32_t lines = min(at.size - t0, T), seen = t0 + lines, staged = t0 + min(staged_line<4>(), lines - 1);
        for (uint32_t n0 = 0; n0 < args.N; n0 += T) {
            float total[4][4], reads[4][4];
            product_clear(total);
            product(SquareLines{grad_cb + (at.slot * args.G + g) * args.C * args.C, args.C, t0, at.size},
                    Columns{b, args.b_at + at.token * args.b_row + g * args.N + n0, args.b_row, args.N - n0, seen,
                            multiples_of_4(args.b_at, args.b_row, args.N)},
                    seen, panels, total);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t t = t0 + output_line(threadIdx.x / 16, i);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint32_t n = n0 + output_line(threadIdx.x % 16, k);
                    reads[i][k] = t < at.size && n < args.N ? load(c, args.c_at + (at.token + t) * args.c_row + g * args.N + n) : 0.0f;
                }
            }
            for (uint32_t h = g * in_group; h < (g + 1) * in_group; h++) {
                const float *own = cum_of(args, FLOATS(ssd_backward_c, cum), at, h) + size_t(staged) * CUM_STRIDE;
                const size_t row = (at.slot * args.H + h) * args.N + n0;
                const uint32_t column = min(staged_line<4>(), args.N - n0 - 1);
                const ScaledLines ups = {{up_y, args.up_y_at + (at.token + t0) * args.up_y_row + h * args.P, args.up_y_row, lines, args.P,
                                          multiples_of_4(args.up_y_at, args.up_y_row, args.P)},
                                         exp_below(own[0] + own[1])};
                const ScaledLines states = {{hin, args.hin_at + row * args.P, args.P, args.N - n0, args.P, multiples_of_4(args.hin_at, args.P)},
                                            args.flags & HAS_HIN_SCALE ? hin_scale[row + column] : 1.0f};
                float acc[4][4];
                product_clear(acc);
                product(ups, states, args.P, panels, acc);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t t = t0 + output_line(threadIdx.x / 16, i);
                    float along = 0.0f;
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        total[i][k] += acc[i][k];
                        along = fmaf(acc[i][k], reads[i][k], along);
                    }
                    along = line_sum(along);
                    if (t >= at.size || threadIdx.x % 16 != 0) continue;
                    float &to = token[((at.token + t) * args.H + h) * 4 + 3];
                    to = n0 > 0 ? to + along : along;
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t t = t0 + output_line(threadIdx.x / 16, i);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint32_t n = n0 + output_line(threadIdx.x % 16, k);
                    if (t >= at.size || n >= args.N) continue;
                    const size_t to = args.grad_c_at + (at.token + t) * args.grad_c_row + g * args.N + n;
                    store(grad_c, to, args.flags & IS_ADD ? load(grad_c, to) + total[i][k] : total[i][k]);
                }
            }
        }
    }
}
