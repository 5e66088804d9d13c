#version 460
#extension GL_GOOGLE_include_directive : require
// y_i = x_i cos - x_(i + R/2) sin, y_(i + R/2) = x_(i + R/2) cos + x_i sin of the angle position r^i, i < R/2, of each head, whose other elements
// stay as they are; backwards with IS_INVERSE,
// where rows past the count become 0.
//
// x, y B L H D. A workgroup takes T0 tokens; a lane takes pairs (token, i) and turns them in all heads. y may be x: a lane reads and writes
// elements of its own. No shared memory. Guards: angles are fractions of a turn in whole numbers, so that large positions lose nothing.
#include "lib/dart.glsl"
#include "table/rope.glsl"
READS(x) READS(seq) WRITES(y)
#define PACKS
#include "lib/seq.glsl"

// The product of two fractions of 64 bits, high word first.
uvec2 fraction(uvec2 a, uvec2 b)
{
    uvec2 whole, first, second;
    uint carry;
    umulExtended(a.x, b.x, whole.x, whole.y);
    umulExtended(a.x, b.y, first.x, first.y);
    umulExtended(a.y, b.x, second.x, second.y);
    whole.y = uaddCarry(whole.y, first.x, carry);
    whole.x += carry;
    whole.y = uaddCarry(whole.y, second.x, carry);
    whole.x += carry;
    return whole;
}
uvec2 rate_of(uint i)
{
    uvec2 rate = uvec2(TURN_HIGH, TURN_LOW);
    if ((i & 1u) != 0u) rate = fraction(rate, uvec2(args.r0_high, args.r0_low));
    if ((i & 2u) != 0u) rate = fraction(rate, uvec2(args.r1_high, args.r1_low));
    if ((i & 4u) != 0u) rate = fraction(rate, uvec2(args.r2_high, args.r2_low));
    if ((i & 8u) != 0u) rate = fraction(rate, uvec2(args.r3_high, args.r3_low));
    if ((i & 16u) != 0u) rate = fraction(rate, uvec2(args.r4_high, args.r4_low));
    if ((i & 32u) != 0u) rate = fraction(rate, uvec2(args.r5_high, args.r5_low));
    if ((i & 64u) != 0u) rate = fraction(rate, uvec2(args.r6_high, args.r6_low));
    return rate;
}
// Sine and cosine of a fraction of a turn, of 32 bits: the rest within an eighth of a turn of a quarter, by polynomials.
vec2 sine(uint turns)
{
    uint quarter = (turns + (1u << 29)) >> 30;
    precise float x = float(int(turns - (quarter << 30))) * 1.4629180792671596e-9; // 2 pi / 2^32
    precise float z = x * x;
    precise float odd = x + x * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4));
    precise float even = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5));
    bool turned = (quarter & 1u) != 0u;
    float s = turned ? even : odd;
    float c = turned ? odd : even;
    return vec2((quarter & 2u) != 0u ? -s : s, ((quarter + 1u) & 2u) != 0u ? -c : c);
}

void main()
{
    uint half_size = args.R / 2u;
    uint parts = half_size + args.D - args.R; // of a head: pairs, then elements that stay
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
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
            uvec2 rate = rate_of(i);
            uint position = sequence.position + t;
            uint upper, lower;
            umulExtended(position, rate.y, upper, lower);
            vec2 by = sine(position * rate.x + upper);
            if (has(args.flags, IS_INVERSE)) by.x = -by.x;
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
