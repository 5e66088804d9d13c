#version 460
#extension GL_GOOGLE_include_directive : require
// v_o = RMSNorm(x_t) norm . weight_o for one token of each sequence; a channel goes on through the convolution of its
// last inputs and SiLU, a step size into cum and decay, see args.h.
//
// x rows x inputs, weight outputs x inputs, y rows x outputs, taps C K, bias C, tail rows K-1 C, a_log, dt_bias H,
// open_decay rows H, cum rows H 3, then rows 2 H from decay_at on. A workgroup makes T0 outputs of T1 rows.
// The lane that will finish an output fetches what its convolution needs before the product starts; no fetch waits for
// another.
// Shared memory: at most 36 (LANES + 5) bytes, 9 LANES + 144 with subgroups. Guards: eps > 0; edge outputs read the last row of
// weight and are dropped; exp only of numbers <= 0.
#include "lib/dart.glsl"
#ifdef QUANTISED
#include "table/mixer_project_quantised.glsl"
#else
#include "table/mixer_project.glsl"
READS(weight)
#endif
READS(x) READS(norm) WRITES(y) READS(taps) READS(bias) READS_WRITES(tail) READS(seq) READS(a_log)
READS(dt_bias) READS(open_decay) WRITES(cum)
#include "lib/seq.glsl"
#include "mixer.glsl"
READS_EIGHT(x) READS_EIGHT(norm)
#ifdef QUANTISED
#include "weights_quantised.glsl"
#else
READS_EIGHT(weight)
#include "weights.glsl"
#endif

const uint MAX_ROWS = 7u; // of a tail

void multiply(uint first_output, uint row)
{
    uint x_at = args.x_at + row * args.x_row;
    if (args.inputs % 8u == 0u && aligned_x(args.x_at, args.x_row) && aligned_norm(args.norm_at, 0u) &&
        weights_fit()) {
        for (uint i = 8u * MEMBER; i < args.inputs; i += 8u * TEAM) {
            Eight v = load_eight_x(x_at + i);
            sums[OUTPUTS] = add_four(add_four(sums[OUTPUTS], v.low, v.low), v.high, v.high);
            Eight scale = load_eight_norm(args.norm_at + i);
            v.low *= scale.low;
            v.high *= scale.high;
            add_products(first_output, i, v);
        }
    } else {
        for (uint i = MEMBER; i < args.inputs; i += TEAM) {
            float v = load_x(x_at + i);
            sums[OUTPUTS] += v * v;
            add_product(first_output, i, v * load_norm(args.norm_at + i));
        }
    }
}

void main()
{
    uint blocks = (args.outputs + OUTPUTS - 1u) / OUTPUTS;
    uint kept_rows = args.K - 1u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first_output = tile % blocks * OUTPUTS;
        uint first_row = tile / blocks * ROWS;
        uint rows = min(ROWS, args.rows - first_row);
        // One output of one row to finish.
        uint r = LANE / OUTPUTS;
        uint row = first_row + min(r, rows - 1u);
        uint o = first_output + LANE % OUTPUTS;
        uint count = seq_count(row, 1u);
        bool is_channel = o >= args.first && o - args.first < args.C;
        uint channel = is_channel ? o - args.first : 0u;
        uint tail_at = args.tail_at + row * kept_rows * args.C + channel;
        float kept[MAX_ROWS];
        float taps[MAX_ROWS];
        float last_tap = 0.0;
        float bias = 0.0;
        if (args.C != 0u) { // every lane, those without a channel the first one's: branches would put the fetches in a row
            [[unroll]] for (uint k = 0u; k < MAX_ROWS; k++) {
                kept[k] = load_tail(tail_at + min(k, kept_rows - 1u) * args.C);
                taps[k] = load_taps(args.taps_at + channel * args.K + min(k, kept_rows));
            }
            last_tap = load_taps(args.taps_at + channel * args.K + kept_rows);
            if (has(args.flags, HAS_BIAS)) bias = load_bias(args.bias_at + channel);
        }

        clear_sums();
        if (OWN_ROW < rows) multiply(first_output, first_row + OWN_ROW);
        add_up(rows);
        if (r < rows && o < args.outputs && count != 0u) {
            float value = totals[r * SUMS + LANE % OUTPUTS] / sqrt(totals[r * SUMS + OUTPUTS] / float(args.inputs) + args.eps);
            float result = value;
            if (is_channel) {
                float sum = bias;
                [[unroll]] for (uint k = 0u; k < MAX_ROWS; k++) {
                    if (k < kept_rows) sum += taps[k] * kept[k];
                }
                result = silu(sum + last_tap * value);
                [[unroll]] for (uint k = 0u; k < MAX_ROWS; k++) {
                    if (k + 1u < kept_rows) store_tail(tail_at + k * args.C, kept[min(k + 1u, MAX_ROWS - 1u)]);
                    else if (k + 1u == kept_rows) store_tail(tail_at + k * args.C, value);
                }
            } else if (has(args.flags, HAS_STEPS) && o >= args.first + args.C && o - args.first - args.C < args.H) {
                uint h = o - args.first - args.C;
                float step_size = softplus(value + load_dt_bias(args.dt_bias_at + h));
                step_size = min(max(step_size, args.dt_min), args.dt_max);
                float a_log = load_a_log(args.a_log_at + h);
                float a = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
                uint at = CUM_STRIDE * (row * args.H + h);
                store_cum(at, a * step_size);
                words_cum[at + 1u] = 0u; // 0.0; an f32 like all of cum
                store_cum(at + 2u, step_size);
                store_cum(args.decay_at + 2u * row * args.H + h, has(args.flags, HAS_OPEN) ? load_open_decay(row * args.H + h) : 0.0);
                store_cum(args.decay_at + (2u * row + 1u) * args.H + h, a * step_size);
            }
            store_y(args.y_at + row * args.y_row + o, result);
        }
        barrier();
    }
}
