// y[b,t,ch] = SiLU(bias[ch] + sum_k weight[ch,k] in[t-K+1+k]); before the piece stands the tail, or zero.
// A block covers T0 channels x T1 tokens; a thread slides over half of the tokens of a channel with the last 8 inputs
// in registers.
#include "lib/dart.cuh"

KERNEL_FUNCTION(conv, simt)
{
    constexpr uint32_t T0 = TILE0_conv_simt, T1 = TILE1_conv_simt, parts = block_size / T0, run = T1 / parts, taps = 8;
    static_assert(parts * T0 == block_size && run * parts == T1, "a thread per channel and part");
    const View x = VIEW(conv, x), weight = VIEW(conv, weight), bias = VIEW(conv, bias), tail = VIEW(conv, tail),
               y = VIEW(conv, y);
    const uint32_t blocks = ceil_div(args.C, T0), token_blocks = ceil_div(args.L, T1), K = args.K;
    FOR_TILES(tile) {
        const uint32_t ch = tile % blocks * T0 + threadIdx.x % T0, b = tile / blocks / token_blocks;
        const uint32_t first = tile / blocks % token_blocks * T1 + threadIdx.x / T0 * run;
        const Sequence piece = sequence_of(INTS(conv, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (ch >= args.C || first >= piece.count) continue;
        const size_t column = args.x_at + size_t(piece.row) * args.x_row + ch;

        float w[taps], in[taps]; // the kernel stands in the last K places, the current token in the last one
        const float start = args.flags & HAS_BIAS ? load(bias, args.bias_at + size_t(ch)) : 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < taps; k++) {
            const uint32_t back = taps - 1 - k; // tokens before the current one
            w[k] = back < K ? load(weight, args.weight_at + size_t(ch) * K + (K - 1 - back)) : 0.0f;
            in[k] = 0.0f;
            if (back == 0 || back >= K) continue;
            if (first >= back) {
                in[k] = load(x, column + size_t(first - back) * args.x_row);
            } else if (args.flags & HAS_TAIL) {
                in[k] = load(tail, args.tail_at + (size_t(b) * (K - 1) + (K - 1 + first - back)) * args.C + ch);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < run; i++) {
            const uint32_t t = first + i;
            if (t >= piece.count) break;
            in[taps - 1] = load(x, column + size_t(t) * args.x_row);
            float sum = start;
#pragma unroll
            for (uint32_t k = 0; k < taps; k++) sum = fmaf(w[k], in[k], sum);
            store(y, args.y_at + (size_t(piece.row) + t) * args.y_row + ch, silu(sum));
#pragma unroll
            for (uint32_t k = 0; k + 1 < taps; k++) in[k] = in[k + 1];
        }
    }
}
