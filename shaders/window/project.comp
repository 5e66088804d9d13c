#version 460
#extension GL_GOOGLE_include_directive : require
// A product behind RMSNorm whose outputs go on through the convolution into the window, see WindowProjectArgs: tile by tile as
// dense/matrix_product.glsl says with NORMED and ENDS. What the convolution of a lane's channels reads is asked for before the product.
//
// x B inputs, f32; weight outputs inputs, bf16; y B outputs; conv B C; taps C 4, bias C, a_log, dt_bias H, f32; tail B 3 C; rows B WINDOW kept; steps
// B WINDOW H 2. y, conv, tail and rows of 16 bits.
// Shared memory: as matrix_product.glsl. Guards: exp only of numbers <= 0.
#include "lib/dart.glsl"
#include "table/window_project.glsl"
READS(x) READS(norm) READS(weight) WRITES(y) READS(seq) READS(a_log) READS(dt_bias) WRITES(steps)
#include "lib/seq.glsl"
#include "slot.glsl"
#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(norm) READS_EIGHT(weight)
READS_AS(vec4, quads, taps) READS_AS(vec4, quads, bias) READS_WRITES_AS(uvec2, pairs, tail) WRITES_AS(uvec2, pairs, conv)
WRITES_AS(uvec2, pairs, rows)

const uint TAPS = 4u;

// What four channels of a sequence go on from.
struct Ends {
    vec4 taps[TAPS]; // a channel each
    vec4 bias;
    uvec2 kept[TAPS - 1u];
    uint position, count;
};

bool is_channel(uint column) { return column >= args.first && column - args.first < args.C; }

// Every lane, those without channels what the first ones have: branches would put the loads in a row.
Ends fetch_ends(uint row, uint column)
{
    Ends ends;
    uint b = min(row, args.rows - 1u);
    uint channel = is_channel(column) ? column - args.first : 0u;
    [[unroll]] for (uint j = 0u; j < 4u; j++) ends.taps[j] = quads_taps[args.taps_at / TAPS + channel + j];
    ends.bias = vec4(0.0);
    if (has(args.flags, HAS_BIAS)) ends.bias = quads_bias[(args.bias_at + channel) / 4u];
    [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) ends.kept[k] = pairs_tail[(args.tail_at + (b * (TAPS - 1u) + k) * args.C + channel) / 4u];
    ends.position = seq_position(b);
    ends.count = seq_count(b, 1u);
    return ends;
}

void convolve(uint b, uint channel, vec4 last, Ends ends)
{
    vec4 kept[TAPS - 1u];
    vec4 sum = ends.bias;
    [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) kept[k] = four_16bit(DTYPE_OF(tail), ends.kept[k]);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        sum[j] += ends.taps[j][TAPS - 1u] * last[j];
        [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) sum[j] += ends.taps[j][k] * kept[k][j];
    }
    uint at = (args.tail_at + b * (TAPS - 1u) * args.C + channel) / 4u;
    [[unroll]] for (uint k = 0u; k + 2u < TAPS; k++) pairs_tail[at + k * (args.C / 4u)] = ends.kept[k + 1u];
    pairs_tail[at + (TAPS - 2u) * (args.C / 4u)] = as_16bit(DTYPE_OF(tail), last);
    uvec2 result = as_16bit(DTYPE_OF(conv), silu_four(DTYPE_OF(conv), sum)); // rows may be absent
    if (channel < args.kept) pairs_rows[(args.rows_at + (b * WINDOW + window_slot(ends.position)) * args.kept + channel) / 4u] = result;
    else pairs_conv[(args.conv_at + b * args.conv_row + channel) / 4u] = result;
}

void weigh(uint b, uint h, float raw, uint position)
{
    if (has(args.flags, HAS_STEPS)) raw += load_dt_bias(args.dt_bias_at + h);
    float step_size = min(max(softplus(raw), args.dt_min), args.dt_max);
    float a_log = load_a_log(args.a_log_at + h);
    float a = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
    uint at = 2u * ((b * WINDOW + window_slot(position)) * args.H + h);
    store_steps(at, a * step_size);
    store_steps(at + 1u, step_size);
}

void finish(uint b, uint column, vec4 v, Ends ends);

#define NORMED
#define ENDS
#include "dense/matrix_product.glsl"

void finish(uint b, uint column, vec4 v, Ends ends)
{
    if (ends.count == 0u) return;
    if (is_channel(column)) {
        convolve(b, column - args.first, v, ends);
    } else if (column >= args.first + args.C && column - args.first - args.C < args.H) {
        [[unroll]] for (uint j = 0u; j < 4u; j++) weigh(b, column - args.first - args.C + j, v[j], ends.position);
    } else {
        store_four_y(args.y_at + b * args.y_row + column, v);
    }
}

void main() { multiply_tiles(); }
