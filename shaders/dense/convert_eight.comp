#version 460
#extension GL_GOOGLE_include_directive : require
// y[t, i] = x[t, i] in the storage type of y, rounded to nearest even; NaN stays NaN. Tokens past the count of their
// sequence are left alone. HAS_ROWS and HAS_FROM as in convert.comp.
//
// x, y rows x width, width a multiple of 16. A workgroup converts T0 consecutive elements, counted row by row, in words of 16 bytes. No
// shared memory.
#include "lib/dart.glsl"
#include "table/convert.glsl"
READS(x) WRITES(y) READS(seq)
#include "lib/seq.glsl"
#include "dense/row_pair.glsl"
#include "lib/eight.glsl"
READS_EIGHT(x) WRITES_EIGHT(y)

void main()
{
    uint eights = args.width / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * (T0 / 8u), args.rows * eights);
        for (uint k = tile * (T0 / 8u) + LANE; k < end; k += LANES) {
            uint t = k / eights;
            uint i = (k - t * eights) * 8u;
            ivec2 pair = row_pair(t);
            if (pair.y < 0 || (has(args.flags, HAS_SEQ) && t % args.L >= seq_count(t / args.L, args.L))) continue;
            Eight value = Eight(vec4(0.0), vec4(0.0));
            if (pair.x >= 0) value = load_eight_x(args.x_at + uint(pair.x) * args.x_row + i);
            store_eight_y(args.y_at + uint(pair.y) * args.y_row + i, value);
        }
    }
}
