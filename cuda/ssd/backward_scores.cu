// u_ts = exp(cum_t - cum_s) step_s (up_y_t . x_s) for s <= t, grad_cb = the sum of u over the heads of a group, z = u cb; the shares of a
// pair of tiles in the sums of z, see args.h. A block makes 32 x 32 tokens of a (chunk, group), head after head, a thread 2 x 2 of them:
// rows r and r + 16, columns c and c + 16. Shared memory: 4 32 33 + 8 16 34 bytes and sums.
#include "backward.cuh"

KERNEL_FUNCTION(ssd_backward_scores, simt)
{
    constexpr uint32_t T = SCORE_SIDE, depth = 16;
    static_assert(T == 32 && block_size == 256 && TILE0_ssd_backward_scores_simt == T, "2 x 2 outputs a thread");
    __shared__ float ups[depth][T + 2], xs[depth][T + 2], z[T][T + 1], totals[2][T];
    const View x = VIEW(ssd_backward_scores, x), up_y = VIEW(ssd_backward_scores, up_y);
    const float *cb = FLOATS(ssd_backward_scores, cb);
    float *grad_cb = FLOATS(ssd_backward_scores, grad_cb), *sums = FLOATS(ssd_backward_scores, sums);
    const uint32_t side = ceil_div(args.C, T), pairs = side * (side + 1) / 2, in_group = args.H / args.G;
    const uint32_t row = threadIdx.x / 16, column = threadIdx.x % 16;
    FOR_TILES(tile) {
        const uint2 pair = pair_of(tile % pairs);
        const uint32_t t0 = pair.x * T, s0 = pair.y * T, g = tile / pairs % args.G;
        const Place at = place_of(args, INTS(ssd_backward_scores, seq) + args.seq_at, tile / pairs / args.G);
        if (t0 >= at.size) continue;
        const size_t square = (at.slot * args.G + g) * args.C * args.C;
        float weights[2][2], grads[2][2] = {};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t t = t0 + row + i / 2 * 16, s = s0 + column + i % 2 * 16;
            weights[i / 2][i % 2] = s <= t && t < at.size ? cb[square + size_t(t) * args.C + s] : 0.0f;
        }
        for (uint32_t h = g * in_group; h < (g + 1) * in_group; h++) {
            const float *cum = cum_of(args, FLOATS(ssd_backward_scores, cum), at, h);
            float acc[2][2] = {};
            for (uint32_t p0 = 0; p0 < args.P; p0 += depth) {
                __syncthreads();
                for (uint32_t e = threadIdx.x; e < T * depth; e += block_size) {
                    const uint32_t line = e / depth, p = p0 + e % depth;
                    ups[e % depth][line] = t0 + line < at.size && p < args.P
                                               ? load(up_y, args.up_y_at + (at.token + t0 + line) * args.up_y_row + h * args.P + p) : 0.0f;
                    xs[e % depth][line] = s0 + line < at.size && p < args.P
                                              ? load(x, args.x_at + (at.token + s0 + line) * args.x_row + h * args.P + p) : 0.0f;
                }
                __syncthreads();
#pragma unroll
                for (uint32_t k = 0; k < depth; k++) {
                    const float a0 = ups[k][row], a1 = ups[k][row + 16], b0 = xs[k][column], b1 = xs[k][column + 16];
                    acc[0][0] = fmaf(a0, b0, acc[0][0]);
                    acc[0][1] = fmaf(a0, b1, acc[0][1]);
                    acc[1][0] = fmaf(a1, b0, acc[1][0]);
                    acc[1][1] = fmaf(a1, b1, acc[1][1]);
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t t = t0 + row + i / 2 * 16, s = s0 + column + i % 2 * 16;
                float u = 0.0f;
                if (s <= t && t < at.size) {
                    const float *from = cum + size_t(s) * CUM_STRIDE;
                    u = exp_below(cum_between(cum + size_t(t) * CUM_STRIDE, from)) * from[2] * acc[i / 2][i % 2];
                }
                grads[i / 2][i % 2] += u;
                z[t - t0][s - s0] = u * weights[i / 2][i % 2];
            }
            __syncthreads();
            float *to = sums + ((at.slot * args.H + h) * pairs + tile % pairs) * 64;
            const uint32_t own = threadIdx.x % T;
            if (t0 == s0) {
                if (threadIdx.x < T) { // row own: sums of the columns before each
                    float before = 0.0f;
                    for (uint32_t k = 0; k < T; k++) {
                        const float value = z[own][k];
                        z[own][k] = before;
                        before += value;
                    }
                }
                __syncthreads();
                if (threadIdx.x < T) {
                    float sum = 0.0f;
                    for (uint32_t r = own; r < T; r++) sum += z[r][own];
                    to[own] = sum;
                }
            } else {
                if (threadIdx.x < 2 * T) {
                    float sum = 0.0f;
                    for (uint32_t k = 0; k < T; k++) sum += threadIdx.x < T ? z[own][k] : z[k][own];
                    totals[threadIdx.x / T][own] = sum;
                }
                __syncthreads();
                if (threadIdx.x < 2 * T) {
                    float sum = 0.0f;
                    if (threadIdx.x < T) {
                        for (uint32_t r = T; r-- > own;) sum += totals[0][r];
                    } else {
                        for (uint32_t c = 0; c < own; c++) sum += totals[1][c];
                    }
                    to[threadIdx.x] = sum;
                }
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t t = t0 + row + i / 2 * 16, s = s0 + column + i % 2 * 16;
            if (t < at.size && s < at.size) grad_cb[square + size_t(t) * args.C + s] = grads[i / 2][i % 2];
        }
    }
}
