// y[t, i] = value.
//
// y rows x width. A workgroup writes T0 consecutive elements, counted row by row. No shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/fill.glsl"
WRITES(y)

void main()
{
    uint total = args.rows * args.width;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint begin = tile * T0;
        uint end = min(begin + T0, total);
        for (uint i = begin + LANE; i < end; i += LANES) {
            uint t = i / args.width;
            store_y(args.y_at + t * args.y_row + (i - t * args.width), args.value);
        }
    }
}
