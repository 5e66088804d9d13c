#version 460
#extension GL_GOOGLE_include_directive : require
// y_t = bias, or y_t += bias with IS_ADD. bias width, y rows x width. A workgroup takes T0 consecutive elements, counted row by row.
// No shared memory.
#include "lib/dart.glsl"
#include "table/bias.glsl"
READS(bias) READS_WRITES(y)

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        for (uint e = LANE; e < T0; e += LANES) {
            uint element = tile * T0 + e;
            uint row = element / args.width;
            uint column = element % args.width;
            if (row >= args.rows) continue;
            uint at = args.y_at + row * args.y_row + column;
            float value = load_bias(args.bias_at + column);
            store_y(at, has(args.flags, IS_ADD) ? load_y(at) + value : value);
        }
    }
}
