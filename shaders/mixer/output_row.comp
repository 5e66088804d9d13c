#version 460
#extension GL_GOOGLE_include_directive : require
// What output.comp computes, of one row with f32 activations and 16-bit weights (FITS_MIXER_ROW16): a workgroup makes T0 = MIXER_OUTPUTS outputs.
// Weights and inputs are asked for before any of them is waited for, with the first AHEAD splits.
// Shared memory: 4 (MIXER_OUTPUTS + 1) (LANES + 1) bytes. Guards as in output.comp; edge outputs read the last row of weight and are dropped.
#include "lib/dart.glsl"
#include "table/mixer_output.glsl"
READS(weight) READS(y) READS(partial) READS(gate) READS(z) READS(norm) READS(seq) READS_WRITES(x)
#include "lib/seq.glsl"
#include "row.glsl"
READS_EIGHT(y) READS_EIGHT(z) READS_EIGHT(norm) READS_EIGHT(weight)
READS_AS(vec4, fours, partial)

#ifndef AHEAD
#define AHEAD 2u // splits that are fetched together
#endif
const uint OUTPUTS = MIXER_OUTPUTS;
const uint SUMS = OUTPUTS + 1u; // the last one is that of the squares
#include "lib/sums.glsl"

// r_i .. r_{i+7}, all of one head. bits: of what else has been asked for; then 0.
Eight merged_eight(uint i, inout uint bits)
{
    uint pitch = args.inputs / args.P * (args.P + 4u) / 4u;
    uint at = i / args.P * (args.P + 4u) / 4u;
    float top = LOWEST;
    float den = 0.0;
    Eight sum = Eight(vec4(0.0), vec4(0.0));
    for (uint first = 0u; first < args.splits; first += AHEAD) {
        vec4 ends[AHEAD];
        Eight sums_of[AHEAD];
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            uint from = at + min(first + k, args.splits - 1u) * pitch;
            ends[k] = fours_partial[from + args.P / 4u];
            sums_of[k] = Eight(fours_partial[from + i % args.P / 4u], fours_partial[from + i % args.P / 4u + 1u]);
            bits |= floatBitsToUint(ends[k].y) | floatBitsToUint(sums_of[k].low.x) | floatBitsToUint(sums_of[k].high.x);
        }
        bits = nothing(bits);
        float now = top;
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            if (first + k + bits >= args.splits) ends[k].y = 0.0;
            if (ends[k].y > 0.0) now = max(now, ends[k].x);
        }
        float keep = exp_neg(top - now);
        den *= keep;
        sum.low *= keep;
        sum.high *= keep;
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            if (ends[k].y > 0.0) {
                float scale = exp_neg(ends[k].x - now);
                den += scale * ends[k].y;
                sum.low += scale * sums_of[k].low;
                sum.high += scale * sums_of[k].high;
            }
        }
        top = now;
    }
    float scale = den > 0.0 ? 1.0 / den : 0.0;
    return Eight(scale * sum.low, scale * sum.high);
}

void main()
{
    bool attends = has(args.flags, HAS_SMA);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first_output = tile * OUTPUTS;
        float sums[SUMS];
        [[unroll]] for (uint k = 0u; k < SUMS; k++) sums[k] = 0.0;
        uint o = first_output + LANE;
        uint count = seq_count(0u, 1u);
        float gate = attends ? load_gate(args.gate_at) : 0.0;
        float before = load_x(args.x_at + min(o, args.outputs - 1u));
        uint asked = count | floatBitsToUint(gate) | floatBitsToUint(before);
        for (uint i = 8u * LANE; i < args.inputs; i += 8u * LANES) {
            Words w[OUTPUTS];
            uint bits = asked;
            [[unroll]] for (uint k = 0u; k < OUTPUTS; k++) {
                w[k] = load_words_weight(args.weight_at + min(first_output + k, args.outputs - 1u) * args.inputs + i);
                bits |= bits_of(w[k]);
            }
            Words norm_words = load_words_norm(args.norm_at + i);
            Words z_words = load_words_z(args.z_at + i);
            Words y_words = load_words_y(args.y_at + i);
            bits |= bits_of(norm_words) | bits_of(z_words) | bits_of(y_words);
            Eight r = Eight(vec4(0.0), vec4(0.0));
            if (attends) r = merged_eight(i, bits);
            float zero = uintBitsToFloat(nothing(bits));
            Eight v = eight_of(DTYPE_OF(y), y_words);
            Eight z = eight_of(DTYPE_OF(z), z_words);
            v.low += zero;
            v.high += zero;
            z.low += zero;
            z.high += zero;
            if (attends) {
                float open = silu(gate + zero);
                v.low += open * r.low;
                v.high += open * r.high;
            }
            v.low *= silu_four(DTYPE_OF(weight), z.low); // as exact as the weights deserve
            v.high *= silu_four(DTYPE_OF(weight), z.high);
            sums[OUTPUTS] = add_eight(sums[OUTPUTS], v, v);
            v = scaled(v, eight_of(DTYPE_OF(norm), norm_words));
            [[unroll]] for (uint k = 0u; k < OUTPUTS; k++) sums[k] = add_eight(sums[k], v, eight_of(DTYPE_OF(weight), w[k]));
        }
        add_up_all(sums);
        if (LANE < OUTPUTS && o < args.outputs && count != 0u)
            store_x(args.x_at + o, before + totals[LANE] * inversesqrt(totals[OUTPUTS] / float(args.inputs) + args.eps));
        barrier();
    }
}
