#version 460
#extension GL_GOOGLE_include_directive : require
// y_t = x_s / sqrt(mean(x_s^2) + eps) * weight, s = rows_t or t. A row whose rows_t is negative is left as it is.
//
// x any x width, weight width, rows rows, y rows x width; width at most 256, a multiple of 16. A workgroup makes T0 rows, a team of lanes a
// row (lib/team.glsl), so that x is read once, in words of 16 bytes.
// Shared memory: 8 LANES bytes. Guards: eps > 0; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/norm.glsl"
READS(x) READS(weight) READS(rows) WRITES(y)
#include "lib/eight.glsl"
#include "lib/team.glsl"
READS_EIGHT(x) READS_EIGHT(weight) WRITES_EIGHT(y)

shared float parts[2u * LANES]; // of two steps in turn: a barrier a step is then enough

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
            uint source = row;
            bool there = inside && row < end;
            if (there && has(args.flags, HAS_ROWS)) {
                source = uint(load_int_rows(args.rows_at + row));
                there = int(source) >= 0;
            }
            Eight v = Eight(vec4(0.0), vec4(0.0));
            if (there) v = load_eight_x(args.x_at + source * args.x_row + i);
            precise float squares = dot(v.low, v.low) + dot(v.high, v.high);
            parts[turn * LANES + LANE] = squares;
            barrier();
            squares = 0.0;
            for (uint k = 0u; k < team; k++) squares += parts[turn * LANES + LANE - member + k];
            turn = 1u - turn;
            float scale = 1.0 / sqrt(squares / float(args.width) + args.eps);
            if (there) store_eight_y(args.y_at + row * args.y_row + i, Eight(v.low * scale * weight.low, v.high * scale * weight.high));
        }
    }
}
