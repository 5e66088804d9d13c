#version 460
#extension GL_GOOGLE_include_directive : require
// y[t, i] = value.
//
// y rows x width, not i32, width a multiple of 16. A workgroup writes T0 consecutive elements, counted row by row, in words of 16 bytes. No
// shared memory.
#include "lib/dart.glsl"
#include "table/fill.glsl"
WRITES(y)
#include "lib/eight.glsl"
WRITES_EIGHT(y)

void main()
{
    uint eights = args.width / 8u;
    Eight value = Eight(vec4(args.value), vec4(args.value));
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * (T0 / 8u), args.rows * eights);
        for (uint k = tile * (T0 / 8u) + LANE; k < end; k += LANES) {
            uint t = k / eights;
            store_eight_y(args.y_at + t * args.y_row + (k - t * eights) * 8u, value);
        }
    }
}
