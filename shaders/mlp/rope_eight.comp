#version 460
#extension GL_GOOGLE_include_directive : require
// rope of whole heads (R = D, a multiple of 16; formula: rope.comp) in words of eight elements. x, y B L H D. A workgroup takes T0 tokens; a lane
// takes eight pairs of a token and turns them in all heads. y may be x: a lane reads and writes elements of its own. No shared memory.
#include "lib/dart.glsl"
#include "table/rope.glsl"
READS(x) READS(seq) WRITES(y)
#define PACKS
#include "lib/seq.glsl"
#include "lib/eight.glsl"
READS_EIGHT(x) WRITES_EIGHT(y)
#include "rope.glsl"

void turn(vec4 s, vec4 c, inout vec4 first, inout vec4 second)
{
    vec4 before = first;
    first = before * c - second * s;
    second = second * c + before * s;
}

void main()
{
    uint half_size = args.D / 2u;
    uint parts = half_size / 8u; // of a head
    bool packed = has(args.flags, HAS_CU);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        for (uint e = LANE; e < T0 * parts; e += LANES) {
            uint row = tile * T0 + e / parts;
            uint i = e % parts * 8u;
            if (row >= (packed ? args.T : args.B * args.L)) continue;
            uint b = packed ? sequence_with(row) : row / args.L;
            Sequence sequence = sequence_of(b);
            uint t = row - sequence.row;
            bool counts = t < sequence.count;
            if (!counts && (packed || !has(args.flags, IS_INVERSE))) continue;
            vec4 s[2];
            vec4 c[2];
            [[unroll]] for (uint k = 0u; k < 8u; k++) {
                vec2 by = turn_of(i + k, sequence.position + t);
                s[k / 4u][k % 4u] = by.x;
                c[k / 4u][k % 4u] = by.y;
            }
            for (uint h = 0u; h < args.H; h++) {
                uint from = args.x_at + row * args.x_row + h * args.D + i;
                uint to = args.y_at + row * args.y_row + h * args.D + i;
                Eight first = Eight(vec4(0.0), vec4(0.0));
                Eight second = first;
                if (counts) {
                    first = load_eight_x(from);
                    second = load_eight_x(from + half_size);
                }
                turn(s[0], c[0], first.low, second.low);
                turn(s[1], c[1], first.high, second.high);
                store_eight_y(to, first);
                store_eight_y(to + half_size, second);
            }
        }
    }
}
