// One token of each sequence: [x|b|c] through the convolution, x and b also into the token's slot of the window, and its
// log-decay and step beside them. A block works on T0 of the channels and heads of a sequence, a thread on one.
#include "lib/dart.cuh"

KERNEL_FUNCTION(window_append, simt)
{
    constexpr uint32_t T0 = TILE0_window_append_simt, taps = 7;
    static_assert(T0 <= block_size, "a thread per channel");
    const View x = VIEW(window_append, x), dt = VIEW(window_append, dt), weight = VIEW(window_append, weight),
        bias = VIEW(window_append, bias);
    const View tail = VIEW(window_append, tail), a_log = VIEW(window_append, a_log), dt_bias = VIEW(window_append, dt_bias);
    const View y = VIEW(window_append, y), rows = VIEW(window_append, rows);
    float *steps = FLOATS(window_append, steps);
    const uint32_t blocks = ceil_div(args.C + args.H, T0), keep = args.K - 1;
    FOR_TILES(tile) {
        const uint32_t item = tile % blocks * T0 + threadIdx.x, b = tile / blocks;
        const Piece piece = piece_of(INTS(window_append, seq) + args.seq_at, args.flags, 1, b);
        if (threadIdx.x >= T0 || item >= args.C + args.H || piece.count == 0) continue;
        const size_t slot = size_t(b) * WINDOW + piece.position % args.S % WINDOW;
        if (item >= args.C) {
            const uint32_t h = item - args.C;
            float v = load(dt, args.dt_at + size_t(b) * args.dt_row + h);
            if (args.flags & HAS_STEPS) v += load(dt_bias, args.dt_bias_at + size_t(h));
            const float step = fminf(fmaxf(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))), args.dt_min), args.dt_max);
            steps[2 * (slot * args.H + h)] = -expf(load(a_log, args.a_log_at + size_t(h))) * step;
            steps[2 * (slot * args.H + h) + 1] = step;
            continue;
        }
        const size_t w_at = args.weight_at + size_t(item) * args.K, old = args.tail_at + size_t(b) * keep * args.C + item;
        const float now = load(x, args.x_at + size_t(b) * args.x_row + item);
        float in[taps]; // the inputs before the current one
#pragma unroll
        for (uint32_t k = 0; k < taps; k++) in[k] = k < keep ? load(tail, old + size_t(k) * args.C) : 0.0f;
        float sum = args.flags & HAS_BIAS ? load(bias, args.bias_at + size_t(item)) : 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < taps; k++) {
            if (k < keep) sum = fmaf(load(weight, w_at + k), in[k], sum);
        }
        const float result = silu(fmaf(load(weight, w_at + keep), now, sum));
#pragma unroll
        for (uint32_t k = 1; k < taps; k++) {
            if (k < keep) store(tail, old + size_t(k - 1) * args.C, in[k]);
        }
        store(tail, old + size_t(keep - 1) * args.C, now);
        store(y, args.y_at + size_t(b) * args.y_row + item, result);
        if (item < args.kept) store(rows, args.rows_at + slot * args.kept + item, result);
    }
}
