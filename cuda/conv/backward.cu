// With pre = bias + the convolution of x, up_pre = up_y SiLU'(pre): grad_x_s = sum_k weight_k up_pre_(s+K-1-k), and sums over the tokens t of the
// tile, in order: of_weight = sum_t up_pre_t x_(t-K+1+k), of_bias = sum_t up_pre_t. A block covers T0 channels x T1 tokens: a thread walks the
// tokens of a channel, and K - 1 more, with the last 8 of x and up_pre in registers.
#include "lib/dart.cuh"
#include "lib/slope.cuh"

KERNEL_FUNCTION(conv_backward, simt)
{
    constexpr uint32_t T0 = TILE0_conv_backward_simt, T1 = TILE1_conv_backward_simt, taps = 8;
    static_assert(T0 == block_size, "a thread a channel");
    const View x = VIEW(conv_backward, x), weight = VIEW(conv_backward, weight), bias = VIEW(conv_backward, bias);
    const View up_y = VIEW(conv_backward, up_y), grad_x = VIEW(conv_backward, grad_x);
    float *of_weight = FLOATS(conv_backward, of_weight), *of_bias = FLOATS(conv_backward, of_bias);
    const uint32_t blocks = ceil_div(args.C, T0), token_blocks = ceil_div(args.L, T1), K = args.K;
    FOR_TILES(tile) {
        const uint32_t ch = tile % blocks * T0 + threadIdx.x, place = tile / blocks, b = place / token_blocks;
        const Sequence piece = sequence_of(INTS(conv_backward, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const uint32_t begin = place % token_blocks * T1, end = min(begin + T1, piece.span);
        if (ch >= args.C || begin >= end) continue;
        const size_t row = piece.row;
        const uint32_t slot = piece.slot(token_blocks, T1) + place % token_blocks;
        float w[taps], back_w[taps], in[taps], up[taps], sums[taps], bias_sum = 0.0f;
        const float start = args.flags & HAS_BIAS ? load(bias, args.bias_at + size_t(ch)) : 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < taps; k++) {
            const uint32_t back = taps - 1 - k; // tokens before the current one
            w[k] = back < K ? load(weight, args.weight_at + size_t(ch) * K + (K - 1 - back)) : 0.0f;
            back_w[k] = k < K ? load(weight, args.weight_at + size_t(ch) * K + k) : 0.0f; // goes with up_pre of k tokens before
            const bool there = back + 1 < K && begin >= back + 1 && begin - back - 1 < piece.count; // one token before its place
            in[k] = there ? load(x, args.x_at + (row + begin - back - 1) * args.x_row + ch) : 0.0f;
            up[k] = sums[k] = 0.0f;
        }
        for (uint32_t t = begin; t < end + K - 1; t++) {
#pragma unroll
            for (uint32_t k = 0; k + 1 < taps; k++) {
                in[k] = in[k + 1];
                up[k] = up[k + 1];
            }
            in[taps - 1] = up[taps - 1] = 0.0f;
            if (t < piece.count) {
                in[taps - 1] = load(x, args.x_at + (row + t) * args.x_row + ch);
                float pre = start;
#pragma unroll
                for (uint32_t k = 0; k < taps; k++) pre = fmaf(w[k], in[k], pre);
                up[taps - 1] = load(up_y, args.up_y_at + (row + t) * args.up_y_row + ch) * silu_slope(pre).slope;
            }
            if (t < end) {
#pragma unroll
                for (uint32_t k = 0; k < taps; k++) sums[k] = fmaf(up[taps - 1], in[k], sums[k]);
                bias_sum += up[taps - 1];
            }
            if (t + 1 < begin + K) continue;
            float grad = 0.0f;
#pragma unroll
            for (uint32_t k = 0; k < taps; k++) grad = fmaf(back_w[k], up[taps - 1 - k], grad);
            store(grad_x, args.grad_x_at + (row + t + 1 - K) * args.grad_x_row + ch, grad);
        }
#pragma unroll
        for (uint32_t k = 0; k < taps; k++)
            if (k + K >= taps) of_weight[(size_t(slot) * args.C + ch) * K + (k + K - taps)] = sums[k];
        if (args.flags & HAS_BIAS) of_bias[size_t(slot) * args.C + ch] = bias_sum;
    }
}
