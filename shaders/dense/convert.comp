// y[t, i] = x[t, i] in the storage type of y, rounded to nearest even; NaN stays NaN. Tokens past the count of their
// sequence are left alone.
//
// x, y rows x width. A workgroup converts T0 consecutive elements, counted row by row. No shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/convert.glsl"
READS(x) WRITES(y) READS(seq)
#include "lib/seq.glsl"

void main()
{
    uint total = args.rows * args.width;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint begin = tile * T0;
        uint end = min(begin + T0, total);
        for (uint i = begin + LANE; i < end; i += LANES) {
            uint t = i / args.width;
            uint column = i - t * args.width;
            if (has(args.flags, HAS_SEQ) && t % args.L >= seq_count(t / args.L, args.L)) continue;
            store_y(args.y_at + t * args.y_row + column, load_x(args.x_at + t * args.x_row + column));
        }
    }
}
