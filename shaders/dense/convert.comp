// y[t, i] = x[t, i] in the storage type of y, rounded to nearest even; NaN stays NaN. Tokens past the count of their
// sequence are left alone. With HAS_ROWS y[to, i] = x[from, i] for the pairs {from, to} = seq[2 t], seq[2 t + 1], but for negative ones;
// with HAS_FROM y[t, i] = x[seq[t], i], or 0 where seq[t] is negative.
//
// x, y rows x width. A workgroup converts T0 consecutive elements, counted row by row. No shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/convert.glsl"
READS(x) WRITES(y) READS(seq)
#include "lib/seq.glsl"
#include "dense/row_pair.glsl"

void main()
{
    uint total = args.rows * args.width;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint begin = tile * T0;
        uint end = min(begin + T0, total);
        for (uint i = begin + LANE; i < end; i += LANES) {
            uint t = i / args.width;
            uint column = i - t * args.width;
            if (has(args.flags, HAS_SEQ) && t % args.L >= seq_count(t / args.L, args.L)) continue;
            ivec2 pair = row_pair(t);
            if (pair.y < 0) continue;
            float value = pair.x < 0 ? 0.0 : load_x(args.x_at + uint(pair.x) * args.x_row + column);
            store_y(args.y_at + uint(pair.y) * args.y_row + column, value);
        }
    }
}
