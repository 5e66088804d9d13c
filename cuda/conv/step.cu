// conv and conv_tail for L = 1 in one. A block works on T0 channels of a sequence, a thread on one.
#include "lib/dart.cuh"

KERNEL_FUNCTION(conv_step, simt)
{
    constexpr uint32_t T0 = TILE0_conv_step_simt, taps = 7;
    static_assert(T0 <= block_size, "a thread per channel");
    const View x = VIEW(conv_step, x), weight = VIEW(conv_step, weight), bias = VIEW(conv_step, bias);
    const View tail = VIEW(conv_step, tail), y = VIEW(conv_step, y);
    const uint32_t blocks = ceil_div(args.C, T0), keep = args.K - 1;
    FOR_TILES(tile) {
        const uint32_t ch = tile % blocks * T0 + threadIdx.x, b = tile / blocks;
        const uint32_t count = piece_of(INTS(conv_step, seq) + args.seq_at, args.flags, 1, b).count;
        if (threadIdx.x >= T0 || ch >= args.C || count == 0) continue;
        const size_t w_at = args.weight_at + size_t(ch) * args.K, old = args.tail_at + size_t(b) * keep * args.C + ch;
        const float now = load(x, args.x_at + size_t(b) * args.x_row + ch);
        float in[taps]; // the inputs before the current one
#pragma unroll
        for (uint32_t k = 0; k < taps; k++) {
            in[k] = k < keep && args.flags & HAS_TAIL ? load(tail, old + size_t(k) * args.C) : 0.0f;
        }
        float sum = args.flags & HAS_BIAS ? load(bias, args.bias_at + size_t(ch)) : 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < taps; k++) {
            if (k < keep) sum = fmaf(load(weight, w_at + k), in[k], sum);
        }
        sum = fmaf(load(weight, w_at + keep), now, sum);
        if (args.flags & HAS_TAIL) {
#pragma unroll
            for (uint32_t k = 1; k < taps; k++) {
                if (k < keep) store(tail, old + size_t(k - 1) * args.C, in[k]);
            }
            store(tail, old + size_t(keep - 1) * args.C, now);
        }
        store(y, args.y_at + size_t(b) * args.y_row + ch, silu(sum));
    }
}
