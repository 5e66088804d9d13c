// x_t += weight u_t, u = RMSNorm(v) norm, v_i = (y_i + SiLU(gate) r_i) SiLU(z_i); r merges the partials of
// mixer_attend, see args.h.
//
// y, z rows x inputs; partial splits rows inputs / P (P+4); gate rows; norm inputs; weight outputs x inputs;
// x rows x outputs. A workgroup makes T0 outputs of T1 rows; a lane makes v for the inputs that it multiplies.
// Shared memory: at most 36 (LANES + 5) bytes, 9 LANES + 144 with subgroups.
// Guards: eps > 0; exp only of numbers <= 0; partials without memories (den = 0) count as nothing.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#ifdef QUANTISED
#include "table/mixer_output_quantised.glsl"
#else
#include "table/mixer_output.glsl"
READS(weight)
#endif
READS(y) READS(partial) READS(gate) READS(z) READS(norm) READS(seq) READS_WRITES(x)
#include "lib/seq.glsl"
#include "mixer.glsl"
READS_EIGHT(y) READS_EIGHT(z) READS_EIGHT(norm)
#ifdef QUANTISED
#include "weights_quantised.glsl"
#define WEIGHTS TYPE_F32 // as exact as f32
#else
READS_EIGHT(weight)
#include "weights.glsl"
#define WEIGHTS DTYPE_OF(weight)
#endif
READS_AS(vec4, fours, partial)

#ifndef AHEAD
#define AHEAD 4u // splits that are fetched together
#endif

// v_i .. v_{i+7}, all of one head. The splits are merged as they come, their tops beside their sums.
Eight gated_eight(uint row, uint i, float gate)
{
    Eight v = load_eight_y(args.y_at + row * args.y_row + i);
    Eight z = load_eight_z(args.z_at + row * args.z_row + i);
    if (has(args.flags, HAS_SMA)) {
        uint heads = args.inputs / args.P;
        uint pitch = args.rows * heads * (args.P + 4u) / 4u;
        uint at = (row * heads + i / args.P) * (args.P + 4u) / 4u;
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
            }
            float now = top;
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
                if (first + k >= args.splits) ends[k].y = 0.0;
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
        float scale = den > 0.0 ? gate / den : 0.0;
        v.low += scale * sum.low;
        v.high += scale * sum.high;
    }
    v.low *= silu_four(WEIGHTS, z.low); // as exact as the weights deserve
    v.high *= silu_four(WEIGHTS, z.high);
    return v;
}
// The same for one element, where eight do not fit.
float gated(uint row, uint i, float gate)
{
    float v = load_y(args.y_at + row * args.y_row + i);
    if (has(args.flags, HAS_SMA)) {
        uint heads = args.inputs / args.P;
        uint pitch = args.rows * heads * (args.P + 4u);
        uint at = (row * heads + i / args.P) * (args.P + 4u);
        float top = LOWEST;
        float den = 0.0;
        float sum = 0.0;
        for (uint from = at; from < at + args.splits * pitch; from += pitch) {
            float part = load_partial(from + args.P + 1u);
            if (part > 0.0) {
                float now = max(top, load_partial(from + args.P));
                float scale = exp_neg(load_partial(from + args.P) - now);
                den = den * exp_neg(top - now) + scale * part;
                sum = sum * exp_neg(top - now) + scale * load_partial(from + i % args.P);
                top = now;
            }
        }
        if (den > 0.0) v += gate * sum / den;
    }
    return v * silu(load_z(args.z_at + row * args.z_row + i));
}

void multiply(uint first_output, uint row)
{
    float gate = has(args.flags, HAS_SMA) ? silu(load_gate(args.gate_at + row * args.gate_row)) : 0.0;
    if (args.inputs % 8u == 0u && args.P % 8u == 0u && aligned_y(args.y_at, args.y_row) && aligned_z(args.z_at, args.z_row) &&
        aligned_norm(args.norm_at, 0u) && weights_fit()) {
        for (uint i = 8u * MEMBER; i < args.inputs; i += 8u * TEAM) {
            Eight v = gated_eight(row, i, gate);
            sums[OUTPUTS] = add_four(add_four(sums[OUTPUTS], v.low, v.low), v.high, v.high);
            Eight scale = load_eight_norm(args.norm_at + i);
            v.low *= scale.low;
            v.high *= scale.high;
            add_products(first_output, i, v);
        }
    } else {
        for (uint i = MEMBER; i < args.inputs; i += TEAM) {
            float v = gated(row, i, gate);
            sums[OUTPUTS] += v * v;
            add_product(first_output, i, v * load_norm(args.norm_at + i));
        }
    }
}

void main()
{
    uint blocks = (args.outputs + OUTPUTS - 1u) / OUTPUTS;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first_output = tile % blocks * OUTPUTS;
        uint first_row = tile / blocks * ROWS;
        uint rows = min(ROWS, args.rows - first_row);
        uint r = LANE / OUTPUTS;
        uint row = first_row + min(r, rows - 1u);
        uint o = first_output + LANE % OUTPUTS;
        uint count = seq_count(row, 1u);
        uint at = args.x_at + row * args.x_row + min(o, args.outputs - 1u);
        float before = load_x(at);
        clear_sums();
        if (OWN_ROW < rows) multiply(first_output, first_row + OWN_ROW);
        add_up(rows);
        if (r < rows && o < args.outputs && count != 0u) {
            float scale = 1.0 / sqrt(totals[r * SUMS + OUTPUTS] / float(args.inputs) + args.eps);
            store_x(at, before + totals[r * SUMS + LANE % OUTPUTS] * scale);
        }
        barrier();
    }
}
