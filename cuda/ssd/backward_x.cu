// v_s = keep_s b_s (lambda + up_dh) + sum_(t >= s) cb_ts exp(cum_t - cum_s) up_y_t, grad_x = step v + d up_y; and of each token x . v, the part of
// it that went into the memory, and up_y . x. A block makes 64 tokens of a (chunk, head), 64 columns at a time (see product.cuh).
#include "backward.cuh"

KERNEL_FUNCTION(ssd_backward_x, simt)
{
    constexpr uint32_t T = TILE0_ssd_backward_x_simt;
    static_assert(T == Panels<4>::side, "tile of the product");
    __shared__ Panels<4> panels;
    const View x = VIEW(ssd_backward_x, x), b = VIEW(ssd_backward_x, b), up_y = VIEW(ssd_backward_x, up_y), d = VIEW(ssd_backward_x, d);
    const View grad_x = VIEW(ssd_backward_x, grad_x);
    const float *cb = FLOATS(ssd_backward_x, cb), *lambda = FLOATS(ssd_backward_x, lambda);
    const float *up_dh = args.flags & HAS_DH ? FLOATS(ssd_backward_x, up_dh) + args.up_dh_at : nullptr;
    float *token = FLOATS(ssd_backward_x, token);
    const uint32_t tiles = ceil_div(args.C, T);
    FOR_TILES(tile) {
        const uint32_t s0 = tile % tiles * T, h = tile / tiles % args.H, g = h / (args.H / args.G);
        const Place at = place_of(args, INTS(ssd_backward_x, seq) + args.seq_at, tile / tiles / args.H);
        if (s0 >= at.size) continue;
        const uint32_t lines = min(at.size - s0, T), staged = s0 + min(staged_line<4>(), lines - 1);
        const float *cum = cum_of(args, FLOATS(ssd_backward_x, cum), at, h);
        const float *end = cum + size_t(at.size - 1) * CUM_STRIDE;
        const size_t matrix = (at.slot * args.H + h) * args.N * args.P;
        const float skip = args.flags & HAS_D ? load(d, args.d_at + size_t(h)) : 0.0f;
        const ScaledLines keys = {{b, args.b_at + (at.token + s0) * args.b_row + g * args.N, args.b_row, lines, args.N,
                                   multiples_of_4(args.b_at, args.b_row, args.N)},
                                  exp_below(cum_between(end, cum + size_t(staged) * CUM_STRIDE))};
        const SquareColumns weights = {cb + (at.slot * args.G + g) * args.C * args.C, cum, args.C, s0, s0, at.size};
        float written[4] = {}, along[4] = {}, skipped[4] = {};
        for (uint32_t p0 = 0; p0 < args.P; p0 += T) {
            const Gains<false> gains = {lambda + matrix + p0, up_dh != nullptr ? up_dh + matrix + p0 : nullptr, args.P, args.P - p0, args.N,
                                        multiples_of_4(args.P, 0)};
            const Columns ups = {up_y, args.up_y_at + (at.token + s0) * args.up_y_row + h * args.P + p0, args.up_y_row, args.P - p0, at.size - s0,
                                 multiples_of_4(args.up_y_at, args.up_y_row, args.P)};
            float acc[4][4], values[4][4];
            product_clear(acc);
            product(keys, gains, args.N, panels, acc);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t s = s0 + output_line(threadIdx.x / 16, i);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint32_t p = p0 + output_line(threadIdx.x % 16, k);
                    values[i][k] = s < at.size && p < args.P ? load(x, args.x_at + (at.token + s) * args.x_row + h * args.P + p) : 0.0f;
                    written[i] = fmaf(acc[i][k], values[i][k], written[i]);
                }
            }
            product(weights, ups, at.size - s0, panels, acc);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t s = s0 + output_line(threadIdx.x / 16, i);
                const float step = cum[size_t(min(s, at.size - 1)) * CUM_STRIDE + 2];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint32_t p = p0 + output_line(threadIdx.x % 16, k);
                    if (s >= at.size || p >= args.P) continue;
                    const float up = load(up_y, args.up_y_at + (at.token + s) * args.up_y_row + h * args.P + p);
                    along[i] = fmaf(acc[i][k], values[i][k], along[i]);
                    skipped[i] = fmaf(up, values[i][k], skipped[i]);
                    store(grad_x, args.grad_x_at + (at.token + s) * args.grad_x_row + h * args.P + p, fmaf(step, acc[i][k], skip * up));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t s = s0 + output_line(threadIdx.x / 16, i);
            const float one = line_sum(along[i]), two = line_sum(written[i]), three = line_sum(skipped[i]);
            if (s >= at.size || threadIdx.x % 16 != 0) continue;
            float *to = token + ((at.token + s) * args.H + h) * 4;
            to[0] = one;
            to[1] = two * cum[size_t(s) * CUM_STRIDE + 2];
            to[2] = three;
        }
    }
}
