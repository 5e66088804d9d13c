#version 460
#extension GL_GOOGLE_include_directive : require
// What project_base.comp computes, of one row in f32 with 16-bit weights (FITS_MIXER_ROW16): a subgroup makes MIXER_OUTPUTS outputs by itself, so
// that no lane waits for a barrier. Each subgroup adds up the squares of the whole row. All that an output needs is asked for before any of it is
// waited for, CHUNKS times eight inputs a lane at a time; of convolutions with more than four taps the fifth and later are read at the end.
// Shared memory: none. Guards: eps > 0; edge outputs read the last row of weight and are dropped; exp only of numbers <= 0.
#include "lib/dart.glsl"
#include "table/mixer_project.glsl"
READS(x) READS(norm) READS(weight) WRITES(y) READS(taps) READS(bias) READS_WRITES(tail) READS(seq) READS(a_log)
READS(dt_bias) READS(open_decay) WRITES(cum)
#include "lib/seq.glsl"
#include "row.glsl"
READS_EIGHT(x) READS_EIGHT(norm) READS_EIGHT(weight)

#ifndef CHUNKS
#define CHUNKS 3u // of eight inputs a lane, fetched together
#endif
const uint OUTPUTS = MIXER_OUTPUTS;
const uint FEW_ROWS = 3u; // of a tail, fetched early

void main()
{
    uint stride = 8u * gl_SubgroupSize;
    uint kept_rows = args.K - 1u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        for (uint part = OUTPUTS * gl_SubgroupID; part < T0; part += OUTPUTS * gl_NumSubgroups) {
            uint first_output = tile * T0 + part;
            uint member = gl_SubgroupInvocationID % OUTPUTS;
            uint o = min(first_output + member, args.outputs - 1u);
            bool is_channel = o >= args.first && o - args.first < args.C;
            uint channel = is_channel ? o - args.first : 0u;
            float sums[OUTPUTS];
            float squares = 0.0;
            [[unroll]] for (uint k = 0u; k < OUTPUTS; k++) sums[k] = 0.0;
            float kept[FEW_ROWS];
            float taps[FEW_ROWS];
            [[unroll]] for (uint k = 0u; k < FEW_ROWS; k++) kept[k] = taps[k] = 0.0;
            float last_tap = 0.0;
            float bias = 0.0;
            bool is_step = has(args.flags, HAS_STEPS) && o >= args.first + args.C && o - args.first - args.C < args.H;
            uint h = is_step ? o - args.first - args.C : 0u;
            float step_bias = 0.0;
            float a_log = 0.0;
            float open_decay = 0.0;
            uint count = seq_count(0u, 1u);
            uint bits = count;
            if (args.C != 0u) { // every lane, those without a channel the first one's
                [[unroll]] for (uint k = 0u; k < FEW_ROWS; k++) {
                    kept[k] = load_tail(args.tail_at + channel + min(k, kept_rows - 1u) * args.C);
                    taps[k] = load_taps(args.taps_at + channel * args.K + min(k, kept_rows));
                    bits |= floatBitsToUint(kept[k]) | floatBitsToUint(taps[k]);
                }
                last_tap = load_taps(args.taps_at + channel * args.K + kept_rows);
                if (has(args.flags, HAS_BIAS)) bias = load_bias(args.bias_at + channel);
                bits |= floatBitsToUint(last_tap) | floatBitsToUint(bias);
            }
            if (is_step) {
                step_bias = load_dt_bias(args.dt_bias_at + h);
                a_log = load_a_log(args.a_log_at + h);
                if (has(args.flags, HAS_OPEN)) open_decay = load_open_decay(h);
                bits |= floatBitsToUint(step_bias) | floatBitsToUint(a_log) | floatBitsToUint(open_decay);
            }
            for (uint first = 8u * gl_SubgroupInvocationID; first < args.inputs; first += CHUNKS * stride) {
                Words w[CHUNKS * OUTPUTS];
                Words xs[CHUNKS];
                Words norms[CHUNKS];
                [[unroll]] for (uint k = 0u; k < CHUNKS; k++) {
                    uint i = min(first + k * stride, args.inputs - 8u);
                    [[unroll]] for (uint j = 0u; j < OUTPUTS; j++) {
                        w[k * OUTPUTS + j] = load_words_weight(args.weight_at + min(first_output + j, args.outputs - 1u) * args.inputs + i);
                        bits |= bits_of(w[k * OUTPUTS + j]);
                    }
                    xs[k] = load_words_x(args.x_at + i);
                    norms[k] = load_words_norm(args.norm_at + i);
                    bits |= bits_of(xs[k]) | bits_of(norms[k]);
                }
                uint none = nothing(bits);
                [[unroll]] for (uint k = 0u; k < CHUNKS; k++) {
                    Eight v = eight_of(DTYPE_OF(x), xs[k]);
                    if (first + k * stride + none >= args.inputs) v = Eight(vec4(0.0), vec4(0.0));
                    squares = add_eight(squares, v, v);
                    v = scaled(v, eight_of(DTYPE_OF(norm), norms[k]));
                    [[unroll]] for (uint j = 0u; j < OUTPUTS; j++) sums[j] = add_eight(sums[j], v, eight_of(DTYPE_OF(weight), w[k * OUTPUTS + j]));
                }
            }
            squares = subgroupAdd(squares);
            float value = 0.0;
            [[unroll]] for (uint k = 0u; k < OUTPUTS; k++) {
                float sum = subgroupAdd(sums[k]);
                if (member == k) value = sum;
            }
            if (gl_SubgroupInvocationID < OUTPUTS && first_output + member < args.outputs && part + member < T0 && count != 0u) {
                value *= inversesqrt(squares / float(args.inputs) + args.eps);
                float result = value;
                if (is_channel) {
                    float sum = bias;
                    [[unroll]] for (uint k = 0u; k < FEW_ROWS; k++) {
                        if (k < kept_rows) sum += taps[k] * kept[k];
                    }
                    uint tail_at = args.tail_at + channel;
                    for (uint k = FEW_ROWS; k < kept_rows; k++)
                        sum += load_taps(args.taps_at + channel * args.K + k) * load_tail(tail_at + k * args.C);
                    result = silu(sum + last_tap * value);
                    [[unroll]] for (uint k = 0u; k + 1u < FEW_ROWS; k++) {
                        if (k + 1u < kept_rows) store_tail(tail_at + k * args.C, kept[k + 1u]);
                    }
                    for (uint k = FEW_ROWS; k < kept_rows; k++) store_tail(tail_at + (k - 1u) * args.C, load_tail(tail_at + k * args.C));
                    store_tail(tail_at + (kept_rows - 1u) * args.C, value);
                } else if (is_step) {
                    float step_size = softplus(value + step_bias);
                    step_size = min(max(step_size, args.dt_min), args.dt_max);
                    float a = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
                    uint at = CUM_STRIDE * h;
                    store_cum(at, a * step_size);
                    words_cum[at + 1u] = 0u; // 0.0; an f32 like all of cum
                    store_cum(at + 2u, step_size);
                    store_cum(args.decay_at + h, open_decay);
                    store_cum(args.decay_at + args.H + h, a * step_size);
                }
                store_y(args.y_at + o, result);
            }
        }
    }
}
