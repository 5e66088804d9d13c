#version 460
#extension GL_GOOGLE_include_directive : require
// y_i = x_i cos - x_(i + R/2) sin, y_(i + R/2) = x_(i + R/2) cos + x_i sin of the angle position r^i, i < R/2, of each head, whose other elements
// stay as they are; backwards with IS_INVERSE,
// where rows past the count become 0.
//
// x, y B L H D. A workgroup takes T0 tokens; a lane takes pairs (token, i) and turns them in all heads. y may be x: a lane reads and writes
// elements of its own. No shared memory.
#include "lib/dart.glsl"
#include "table/rope.glsl"
READS(x) READS(seq) WRITES(y)
#define PACKS
#include "lib/seq.glsl"

#include "rope.glsl"

void main()
{
    uint half_size = args.R / 2u;
    uint parts = half_size + args.D - args.R; // of a head: pairs, then elements that stay
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        for (uint e = LANE; e < T0 * parts; e += LANES) {
            uint row = tile * T0 + e / parts;
            uint i = e % parts;
            bool packed = has(args.flags, HAS_CU);
            if (row >= (packed ? args.T : args.B * args.L)) continue;
            uint b = packed ? sequence_with(row) : row / args.L;
            Sequence sequence = sequence_of(b);
            uint t = row - sequence.row;
            bool counts = t < sequence.count;
            if (!counts && (packed || !has(args.flags, IS_INVERSE))) continue;
            if (i >= half_size) {
                uint at = i + half_size;
                for (uint h = 0u; h < args.H; h++)
                    store_y(args.y_at + row * args.y_row + h * args.D + at,
                            counts ? load_x(args.x_at + row * args.x_row + h * args.D + at) : 0.0);
                continue;
            }
            vec2 by = turn_at(rate_of(i), sequence.position + t);
            for (uint h = 0u; h < args.H; h++) {
                uint from = args.x_at + row * args.x_row + h * args.D + i;
                uint to = args.y_at + row * args.y_row + h * args.D + i;
                float first = counts ? load_x(from) : 0.0;
                float second = counts ? load_x(from + half_size) : 0.0;
                store_y(to, first * by.y - second * by.x);
                store_y(to + half_size, second * by.y + first * by.x);
            }
        }
    }
}
