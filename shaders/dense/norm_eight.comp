#version 460
#extension GL_GOOGLE_include_directive : require
// y_t = x_s / sqrt(mean(x_s^2) + eps) * weight, s = rows_t or t. A row whose rows_t is negative is left as it is.
//
// x any x width, weight width, rows rows, y rows x width. A workgroup makes one row.
// Rows are read and written in words of 16 bytes; a lane keeps what it read of its first KEPT words in registers.
// Shared memory: 4 LANES bytes. Guards: eps > 0; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/norm.glsl"
READS(x) READS(weight) READS(rows) WRITES(y)

#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(weight) WRITES_EIGHT(y)

const uint KEPT = 4096u / (8u * gl_WorkGroupSize.x);

void write_eight(uint to, uint i, Eight v, float scale)
{
    Eight w = load_eight_weight(args.weight_at + i);
    store_eight_y(to + i, Eight(v.low * scale * w.low, v.high * scale * w.high));
}

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint source = has(args.flags, HAS_ROWS) ? uint(load_int_rows(args.rows_at + tile)) : tile;
        if (has(args.flags, HAS_ROWS) && int(source) < 0) continue; // the same in every lane
        uint from = args.x_at + source * args.x_row;
        uint to = args.y_at + tile * args.y_row;
        uint rest = 8u * (LANE + KEPT * LANES); // what a lane reads twice
        Eight kept[KEPT];
        precise float squares = 0.0;
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            uint i = 8u * (LANE + k * LANES);
            kept[k] = Eight(vec4(0.0), vec4(0.0));
            if (i < args.width) kept[k] = load_eight_x(from + i);
            squares += dot(kept[k].low, kept[k].low) + dot(kept[k].high, kept[k].high);
        }
        for (uint i = rest; i < args.width; i += 8u * LANES) {
            Eight v = load_eight_x(from + i);
            squares += dot(v.low, v.low) + dot(v.high, v.high);
        }
        float scale = 1.0 / sqrt(workgroup_sum(squares) / float(args.width) + args.eps);
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            uint i = 8u * (LANE + k * LANES);
            if (i < args.width) write_eight(to, i, kept[k], scale);
        }
        for (uint i = rest; i < args.width; i += 8u * LANES) write_eight(to, i, load_eight_x(from + i), scale);
    }
}
