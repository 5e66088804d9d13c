#version 460
#extension GL_GOOGLE_include_directive : require
// h = a (1 + erf(a / sqrt(2))) / 2, or with IS_TANH a (1 + tanh(v)) / 2 (args.h). a, h rows x width. A workgroup takes T0 consecutive elements,
// counted row by row. No shared memory. Guards: only exponents <= 0 are exponentiated.
#include "lib/dart.glsl"
#include "table/gelu.glsl"
READS(a) WRITES(h)

// erfc(z) = 1 - erf(z) for z >= 0, as t exp(p(t) - z^2) with t = 1 / (1 + z / 2): p interpolates log(erfc(z) / t) + z^2 at the 11 Chebyshev points of
// 0.08 <= t <= 1. Error at most 4e-7 of erfc(z) up to z = 9, where z^2 is exact, and everywhere below 1e-7.
float erfc_above(float z)
{
    precise float t = 1.0 / (1.0 + 0.5 * z);
    precise float p = -0.080440548;
    p = p * t + 0.611515458;
    p = p * t - 1.86497319;
    p = p * t + 2.88449399;
    p = p * t - 2.29762143;
    p = p * t + 0.902633947;
    p = p * t - 0.402470432;
    p = p * t + 0.143967531;
    p = p * t + 0.367975991;
    p = p * t + 1.00044228;
    p = p * t - 1.26552358;
    return t * exp_neg(p - z * z); // log(erfc(z) / t), at most 0 but for rounding
}
float gelu(float a)
{
    if (has(args.flags, IS_TANH)) {
        float twice = 1.5957691 * abs(a) * (1.0 + 0.044715 * a * a); // 2 |v|, 2 sqrt(2 / pi) = 1.5957691
        float e = exp_neg(-twice);
        return a * ((a >= 0.0 ? 1.0 : e) / (1.0 + e));
    }
    float half_tail = 0.5 * erfc_above(abs(a) * 0.70710678);
    return a * (a >= 0.0 ? 1.0 - half_tail : half_tail);
}

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        for (uint e = LANE; e < T0; e += LANES) {
            uint element = tile * T0 + e;
            uint row = element / args.width;
            uint column = element % args.width;
            if (row >= args.rows) continue;
            store_h(args.h_at + row * args.h_row + column, gelu(load_a(args.a_at + row * args.a_row + column)));
        }
    }
}
