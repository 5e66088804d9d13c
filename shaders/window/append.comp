// One token of each sequence: [x|b|c] through the convolution, x and b also into the token's slot of the window, and its
// log-decay and step beside them: step = clamp(softplus(dt + dt_bias), dt_min, dt_max), log-decay = -exp(a_log) step.
//
// x, y B C; weight C K; bias C; tail B K-1 C; dt B H; rows B WINDOW kept; steps B WINDOW H 2. A workgroup makes T0
// consecutive of the C channels and H heads of one sequence. No shared memory. Guards: exp only of numbers <= 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/window_append.glsl"
READS(x) READS(dt) READS(weight) READS(bias) READS_WRITES(tail) READS(seq) READS(a_log) READS(dt_bias) WRITES(y)
WRITES(rows) WRITES(steps)
#include "lib/seq.glsl"
#include "slot.glsl"

const uint AHEAD = 3u; // rows of a tail that are fetched together; K is 4 nearly always

void convolve(uint b, uint slot, uint channel)
{
    uint rows = args.K - 1u;
    uint at = args.tail_at + b * rows * args.C + channel;
    uint weight_at = args.weight_at + channel * args.K;
    float last = load_x(args.x_at + b * args.x_row + channel);
    float sum = has(args.flags, HAS_BIAS) ? load_bias(args.bias_at + channel) : 0.0;
    sum += load_weight(weight_at + rows) * last;
    for (uint first = 0u; first < rows; first += AHEAD) {
        float kept[AHEAD + 1u];
        float taps[AHEAD];
        [[unroll]] for (uint k = 0u; k <= AHEAD; k++) kept[k] = load_tail(at + min(first + k, rows - 1u) * args.C);
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) taps[k] = load_weight(weight_at + min(first + k, rows));
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            if (first + k < rows) {
                sum += taps[k] * kept[k];
                store_tail(at + (first + k) * args.C, first + k + 1u == rows ? last : kept[k + 1u]);
            }
        }
    }
    float result = silu(sum);
    store_y(args.y_at + b * args.y_row + channel, result);
    if (channel < args.kept) store_rows(args.rows_at + (b * WINDOW + slot) * args.kept + channel, result);
}

void weigh(uint b, uint slot, uint h)
{
    float raw = load_dt(args.dt_at + b * args.dt_row + h);
    if (has(args.flags, HAS_STEPS)) raw += load_dt_bias(args.dt_bias_at + h);
    float step_size = min(max(softplus(raw), args.dt_min), args.dt_max);
    float a_log = load_a_log(args.a_log_at + h);
    float a = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
    uint at = 2u * ((b * WINDOW + slot) * args.H + h);
    store_steps(at, a * step_size);
    store_steps(at + 1u, step_size);
}

void main()
{
    uint blocks = (args.C + args.H + T0 - 1u) / T0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint b = tile / blocks;
        uint begin = (tile - b * blocks) * T0;
        uint end = min(begin + T0, args.C + args.H);
        if (seq_count(b, 1u) == 0u) continue;
        uint slot = window_slot(seq_position(b));
        for (uint channel = begin + LANE; channel < min(end, args.C); channel += LANES) convolve(b, slot, channel);
        for (uint item = max(begin, args.C) + LANE; item < end; item += LANES) weigh(b, slot, item - args.C);
    }
}
