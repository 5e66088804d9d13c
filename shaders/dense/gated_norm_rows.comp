#version 460
#extension GL_GOOGLE_include_directive : require
// v = (y + SiLU(gate) r) SiLU(z), out = v / sqrt(mean(v^2) + eps) * weight; without HAS_SMA the term in r is absent.
//
// y, r, z, out rows x width; gate rows; weight width; width at most 256, a multiple of 16. A workgroup makes T0 rows, a team of lanes a row
// (lib/team.glsl), in words of 16 bytes. out may be y: a lane reads its elements before it writes them.
// Shared memory: 8 LANES bytes. Guards: eps > 0; SiLU by exp of negative numbers only; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/gated_norm.glsl"
READS(y) READS(r) READS(gate) READS(z) READS(weight) WRITES(out)
#include "lib/eight.glsl"
#include "lib/team.glsl"
READS_EIGHT(y) READS_EIGHT(r) READS_EIGHT(z) READS_EIGHT(weight) WRITES_EIGHT(out)

shared float parts[2u * LANES]; // of two steps in turn: a barrier a step is then enough

Eight gated(uint row, uint i)
{
    Eight v = load_eight_y(args.y_at + row * args.y_row + i);
    Eight z = load_eight_z(args.z_at + row * args.z_row + i);
    if (has(args.flags, HAS_SMA)) {
        Eight r = load_eight_r(args.r_at + row * args.r_row + i);
        float gate = silu(load_gate(args.gate_at + row * args.gate_row));
        v = Eight(v.low + gate * r.low, v.high + gate * r.high);
    }
    return Eight(v.low * silu_four(DTYPE_OF(out), z.low), v.high * silu_four(DTYPE_OF(out), z.high));
}

void main()
{
    uint team = team_of(args.width);
    uint member = LANE % team;
    uint together = LANES / team;
    uint i = 8u * member;
    bool inside = i < args.width;
    Eight weight = Eight(vec4(0.0), vec4(0.0));
    if (inside) weight = load_eight_weight(args.weight_at + i);
    uint turn = 0u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * T0, args.rows);
        for (uint first = tile * T0; first < end; first += together) {
            uint row = first + LANE / team;
            bool there = inside && row < end;
            Eight v = Eight(vec4(0.0), vec4(0.0));
            if (there) v = gated(row, i);
            precise float squares = dot(v.low, v.low) + dot(v.high, v.high);
            parts[turn * LANES + LANE] = squares;
            barrier();
            squares = 0.0;
            for (uint k = 0u; k < team; k++) squares += parts[turn * LANES + LANE - member + k];
            turn = 1u - turn;
            float scale = 1.0 / sqrt(squares / float(args.width) + args.eps);
            if (there) store_eight_out(args.out_at + row * args.out_row + i, Eight(v.low * scale * weight.low, v.high * scale * weight.high));
        }
    }
}
