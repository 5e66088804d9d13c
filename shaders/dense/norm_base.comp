#version 460
#extension GL_GOOGLE_include_directive : require
// y_t = x_s / sqrt(mean(x_s^2) + eps) * weight, s = rows_t or t. A row whose rows_t is negative is left as it is.
//
// x any x width, weight width, rows rows, y rows x width. A workgroup makes one row.
// Shared memory: 4 LANES bytes. Guards: eps > 0; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/norm.glsl"
READS(x) READS(weight) READS(rows) WRITES(y)

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint source = has(args.flags, HAS_ROWS) ? uint(load_int_rows(args.rows_at + tile)) : tile;
        if (has(args.flags, HAS_ROWS) && int(source) < 0) continue; // the same in every lane
        uint from = args.x_at + source * args.x_row;
        uint to = args.y_at + tile * args.y_row;
        precise float squares = 0.0;
        for (uint i = LANE; i < args.width; i += LANES) {
            float value = load_x(from + i);
            squares += value * value;
        }
        float scale = 1.0 / sqrt(workgroup_sum(squares) / float(args.width) + args.eps);
        for (uint i = LANE; i < args.width; i += LANES) {
            store_y(to + i, load_x(from + i) * scale * load_weight(args.weight_at + i));
        }
    }
}
