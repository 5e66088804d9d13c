// Rotary positions: which angles there are. Include after table/rope.glsl. Angles are fractions of a turn in whole numbers, so that large positions
// lose nothing.
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

// Sine and cosine of the angle at a position of a pair with that rate, backwards with IS_INVERSE.
vec2 turn_at(uvec2 rate, uint position)
{
    uint upper, lower;
    umulExtended(position, rate.y, upper, lower);
    vec2 by = sine(position * rate.x + upper);
    return has(args.flags, IS_INVERSE) ? vec2(-by.x, by.y) : by;
}
