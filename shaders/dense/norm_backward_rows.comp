#version 460
#extension GL_GOOGLE_include_directive : require
// With n = x i, i = 1 / sqrt(mean(x^2) + eps), v = up_y weight: grad_x = i (v - n mean(v n)) = i v - x i^3 mean(v x), and
// partial[tile] = the sum of up_y n over the tile's rows; rows s = rows_t of x and grad_x, as in norm; from, copy: args.h.
//
// x, grad_x, from any x width; weight width; rows, from_rows rows; up_y, copy rows x width; partial tiles x width, f32; width a multiple of
// 16, at most 256, with WIDE at most 8 LANES. A workgroup takes T0 rows, a team of lanes a row (lib/team.glsl), in words of 16 bytes. A lane
// adds up its columns of every row that its team takes; then the teams are added up in order. grad_x or copy may be up_y.
// Shared memory: 48 LANES bytes, with WIDE 32 LANES and those of lib/quads.glsl. Guards: eps > 0; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/norm_backward.glsl"
READS(x) READS(weight) READS(rows) READS(up_y) READS_WRITES(grad_x) READS(from) READS(from_rows) WRITES(copy)
#include "lib/eight.glsl"
#include "lib/team.glsl"
READS_EIGHT(x) READS_EIGHT(weight) READS_EIGHT(up_y) READS_EIGHT(from) WRITES_EIGHT(grad_x) LOADS_EIGHT(grad_x) WRITES_EIGHT(copy)
WRITES_AS(vec4, fours, partial)

#ifndef WIDE
shared vec2 parts[2u * LANES];   // of two steps in turn: a barrier a step is then enough
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
    Eight weight = nothing;
    if (inside) weight = load_eight_weight(args.weight_at + i);
    uint turn = 0u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * T0, args.rows);
        Eight sum = nothing;
        for (uint first = tile * T0; first < end; first += together) {
            uint row = first + LANE / team;
            uint source = row;
            bool there = inside && row < end;
            if (there && has(args.flags, HAS_ROWS)) {
                source = uint(load_int_rows(args.rows_at + row));
                there = int(source) >= 0;
            }
            uint to = args.grad_x_at + source * args.grad_x_row + i;
            Eight x = nothing;
            Eight up = nothing;
            Eight before = nothing;
            if (there) {
                x = load_eight_x(args.x_at + source * args.x_row + i);
                up = load_eight_up_y(args.up_y_at + row * args.up_y_row + i);
                if (has(args.flags, IS_ADD)) before = load_eight_grad_x(to);
                int of = has(args.flags, HAS_FROM) ? load_int_from_rows(args.from_rows_at + row) : -1;
                if (of >= 0) before = load_eight_from(args.from_at + uint(of) * args.from_row + i);
            }
            Eight v = Eight(up.low * weight.low, up.high * weight.high);
            vec2 total = vec2(dot(x.low, x.low) + dot(x.high, x.high), dot(v.low, x.low) + dot(v.high, x.high));
#ifdef WIDE
            total = team_sum(vec4(total, 0.0, 0.0)).xy;
#else
            parts[turn * LANES + LANE] = total;
            barrier();
            total = vec2(0.0);
            for (uint k = 0u; k < team; k++) total += parts[turn * LANES + LANE - member + k];
            turn = 1u - turn;
#endif
            total /= float(args.width);
            float inverse = 1.0 / sqrt(total.x + args.eps);
            float along = inverse * inverse * inverse * total.y;
            sum.low += up.low * x.low * inverse;
            sum.high += up.high * x.high * inverse;
            Eight grad = Eight(before.low + (inverse * v.low - along * x.low), before.high + (inverse * v.high - along * x.high));
            if (there) store_eight_grad_x(to, grad);
            if (there && has(args.flags, WRITES_COPY)) store_eight_copy(args.copy_at + row * args.copy_row + i, grad);
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
