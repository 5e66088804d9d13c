#version 460
#extension GL_GOOGLE_include_directive : require
// Gradients of out = v / sqrt(mean(v^2) + eps) weight, v = w SiLU(z), w = y + SiLU(gate) r; formulas: args.h. With i the inverse root
// and u = up_out weight, a row needs four sums: squares = sum v^2, along = sum u v, and for the gate straight = sum SiLU(z) r u and
// across = sum SiLU(z) r v, since sum grad_y r = i straight - i^3 mean(u v) across.
//
// All tensors rows x width but gate and grad_gate, rows, and weight, width; partial tiles x width, f32; width a multiple of 16, at most 256, with
// WIDE at most 8 LANES. A workgroup takes T0 rows, a team of lanes a row (lib/team.glsl), in words of 16 bytes. A lane adds up its columns of
// every row that its team takes; then the teams are added up in order.
// Shared memory: 64 LANES bytes, with WIDE 32 LANES and those of lib/quads.glsl.
// Guards: eps > 0; SiLU by exp of negative numbers only; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/gated_norm_backward.glsl"
READS(y) READS(r) READS(gate) READS(z) READS(weight) READS(up_out) WRITES(grad_y) WRITES(grad_r) WRITES(grad_gate) WRITES(grad_z)
#include "lib/slope.glsl"
#include "lib/eight.glsl"
#include "lib/slopes.glsl"
#include "lib/team.glsl"
READS_EIGHT(y) READS_EIGHT(r) READS_EIGHT(z) READS_EIGHT(weight) READS_EIGHT(up_out)
WRITES_EIGHT(grad_y) WRITES_EIGHT(grad_r) WRITES_EIGHT(grad_z) WRITES_AS(vec4, fours, partial)

#ifndef WIDE
shared vec4 parts[2u * LANES];   // of two steps in turn: a barrier a step is then enough
#endif
shared vec4 columns[2u * LANES]; // sums of a lane

void main()
{
    const Eight nothing = Eight(vec4(0.0), vec4(0.0));
    uint team = team_of(args.width);
    uint member = LANE % team;
    uint together = LANES / team;
    uint i = 8u * member;
    bool inside = i < args.width;
    bool sma = has(args.flags, HAS_SMA);
    Eight weight = nothing;
    if (inside) weight = load_eight_weight(args.weight_at + i);
    uint turn = 0u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * T0, args.rows);
        Eight sum = nothing;
        for (uint first = tile * T0; first < end; first += together) {
            uint t = first + LANE / team;
            bool there = inside && t < end;
            Eight y = nothing;
            Eight z = nothing;
            Eight up = nothing;
            Eight r = nothing;
            Slope gate = Slope(0.0, 0.0);
            if (there) {
                y = load_eight_y(args.y_at + t * args.y_row + i);
                z = load_eight_z(args.z_at + t * args.z_row + i);
                up = load_eight_up_out(args.up_out_at + t * args.up_out_row + i);
                if (sma) {
                    r = load_eight_r(args.r_at + t * args.r_row + i);
                    gate = silu_slope(load_gate(args.gate_at + t * args.gate_row));
                }
            }
            Slopes low = silu_slopes(DTYPE_OF(grad_z), z.low);
            Slopes high = silu_slopes(DTYPE_OF(grad_z), z.high);
            Eight w = Eight(y.low + gate.value * r.low, y.high + gate.value * r.high);
            Eight v = Eight(w.low * low.value, w.high * high.value);
            Eight u = Eight(up.low * weight.low, up.high * weight.high);
            r = Eight(r.low * low.value, r.high * high.value);
            vec4 total = vec4(dot(v.low, v.low) + dot(v.high, v.high), dot(u.low, v.low) + dot(u.high, v.high),
                              dot(r.low, u.low) + dot(r.high, u.high), dot(r.low, v.low) + dot(r.high, v.high));
#ifdef WIDE
            total = team_sum(total);
#else
            parts[turn * LANES + LANE] = total;
            barrier();
            total = vec4(0.0);
            for (uint k = 0u; k < team; k++) total += parts[turn * LANES + LANE - member + k];
            turn = 1u - turn;
#endif
            float inverse = 1.0 / sqrt(total.x / float(args.width) + args.eps);
            float along = inverse * inverse * inverse * total.y / float(args.width);
            sum.low += up.low * v.low * inverse;
            sum.high += up.high * v.high * inverse;
            Eight grad = Eight(inverse * u.low - along * v.low, inverse * u.high - along * v.high); // of v
            Eight grad_z = Eight(grad.low * w.low * low.slope, grad.high * w.high * high.slope);
            grad = Eight(grad.low * low.value, grad.high * high.value);
            if (there) {
                store_eight_grad_z(args.grad_z_at + t * args.grad_z_row + i, grad_z);
                store_eight_grad_y(args.grad_y_at + t * args.grad_y_row + i, grad);
            }
            if (there && sma) {
                store_eight_grad_r(args.grad_r_at + t * args.grad_r_row + i, Eight(gate.value * grad.low, gate.value * grad.high));
                if (member == 0u)
                    store_grad_gate(args.grad_gate_at + t * args.grad_gate_row, gate.slope * (inverse * total.z - along * total.w));
            }
        }
        columns[2u * LANE] = sum.low;
        columns[2u * LANE + 1u] = sum.high;
        barrier();
        for (uint k = LANE; k < args.width / 4u; k += LANES) {
            vec4 total = columns[k];
            for (uint other = 1u; other < together; other++) total += columns[other * 2u * team + k];
            fours_partial[(tile * args.width) / 4u + k] = total;
        }
        barrier();
    }
}
