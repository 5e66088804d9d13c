#version 460
#extension GL_GOOGLE_include_directive : require
// rope of whole heads (R = D, a multiple of 16; formula: rope.comp) in words of eight elements. x, y B L H D. A workgroup takes T0 tokens; a lane
// takes eight pairs of a token and turns them in all heads, two of which are on the way at a time. y may be x: a lane reads and writes elements of
// its own. Rates of the pairs are made once a workgroup. Shared memory: 1 KiB.
#include "lib/dart.glsl"
#include "table/rope.glsl"
READS(x) READS(seq) WRITES(y)
#define PACKS
#include "lib/seq.glsl"
#include "lib/eight.glsl"
READS_EIGHT(x) WRITES_EIGHT(y)
#include "rope.glsl"

const uint MOST_PAIRS = 128u; // of a head

void turn(vec4 s, vec4 c, inout vec4 first, inout vec4 second)
{
    vec4 before = first;
    first = before * c - second * s;
    second = second * c + before * s;
}

shared uvec2 rates[MOST_PAIRS];

void main()
{
    uint half_size = args.D / 2u;
    for (uint i = LANE; i < half_size; i += LANES) rates[i] = rate_of(i);
    barrier();
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
                vec2 by = turn_at(rates[i + k], sequence.position + t);
                s[k / 4u][k % 4u] = by.x;
                c[k / 4u][k % 4u] = by.y;
            }
            for (uint h = 0u; h < args.H; h += 2u) {
                uint from = args.x_at + row * args.x_row + h * args.D + i;
                uint to = args.y_at + row * args.y_row + h * args.D + i;
                uint heads = counts ? min(2u, args.H - h) : 0u; // to read
                const Words nothing = Words(uvec4(0u), uvec4(0u));
                Words first[2] = Words[2](nothing, nothing);
                Words second[2] = first;
                [[unroll]] for (uint k = 0u; k < 2u; k++) {
                    if (k >= heads) continue;
                    first[k] = load_words_x(from + k * args.D);
                    second[k] = load_words_x(from + k * args.D + half_size);
                }
                [[unroll]] for (uint k = 0u; k < 2u; k++) {
                    if (h + k >= args.H) continue;
                    Eight one = eight_of(DTYPE_OF(x), first[k]);
                    Eight other = eight_of(DTYPE_OF(x), second[k]);
                    turn(s[0], c[0], one.low, other.low);
                    turn(s[1], c[1], one.high, other.high);
                    store_eight_y(to + k * args.D, one);
                    store_eight_y(to + k * args.D + half_size, other);
                }
            }
        }
    }
}
