#version 460
#extension GL_GOOGLE_include_directive : require
// v = (y + SiLU(gate) r) SiLU(z), out = v / sqrt(mean(v^2) + eps) * weight; without HAS_SMA the term in r is absent.
//
// y, r, z, out rows x width; gate rows; weight width. A workgroup makes one row. out may be y: a lane reads element i before it writes it.
// Rows are read and written in words of 16 bytes; a lane keeps v of its first KEPT words in registers.
// Shared memory: 4 LANES bytes. Guards: eps > 0; SiLU by exp of negative numbers only; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/gated_norm.glsl"
READS(y) READS(r) READS(gate) READS(z) READS(weight) WRITES(out)

#include "lib/eight.glsl"
READS_EIGHT(y) READS_EIGHT(r) READS_EIGHT(z) READS_EIGHT(weight) WRITES_EIGHT(out)

const uint KEPT = 4096u / (8u * gl_WorkGroupSize.x);

Eight gated_eight(uint row, uint i, float gate)
{
    Eight v = load_eight_y(args.y_at + row * args.y_row + i);
    Eight z = load_eight_z(args.z_at + row * args.z_row + i);
    if (has(args.flags, HAS_SMA)) {
        Eight r = load_eight_r(args.r_at + row * args.r_row + i);
        v = Eight(v.low + gate * r.low, v.high + gate * r.high);
    }
    return Eight(v.low * silu_four(DTYPE_OF(out), z.low), v.high * silu_four(DTYPE_OF(out), z.high));
}

void write_eight(uint row, uint i, Eight v, float scale)
{
    Eight w = load_eight_weight(args.weight_at + i);
    store_eight_out(args.out_at + row * args.out_row + i, Eight(v.low * scale * w.low, v.high * scale * w.high));
}

void main()
{
    for (uint row = FIRST_TILE; row < args.tiles; row += gl_NumWorkGroups.x) {
        float gate = has(args.flags, HAS_SMA) ? silu(load_gate(args.gate_at + row * args.gate_row)) : 0.0;
        uint rest = 8u * (LANE + KEPT * LANES); // what a lane computes twice
        Eight kept[KEPT];
        precise float squares = 0.0;
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            uint i = 8u * (LANE + k * LANES);
            kept[k] = Eight(vec4(0.0), vec4(0.0));
            if (i < args.width) kept[k] = gated_eight(row, i, gate);
            squares += dot(kept[k].low, kept[k].low) + dot(kept[k].high, kept[k].high);
        }
        for (uint i = rest; i < args.width; i += 8u * LANES) {
            Eight v = gated_eight(row, i, gate);
            squares += dot(v.low, v.low) + dot(v.high, v.high);
        }
        float scale = 1.0 / sqrt(workgroup_sum(squares) / float(args.width) + args.eps);
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            uint i = 8u * (LANE + k * LANES);
            if (i < args.width) write_eight(row, i, kept[k], scale);
        }
        for (uint i = rest; i < args.width; i += 8u * LANES) write_eight(row, i, gated_eight(row, i, gate), scale);
    }
}
