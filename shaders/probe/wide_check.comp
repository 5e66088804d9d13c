#version 460
#extension GL_GOOGLE_include_directive : require
// y[i] = last + sum_j a_j[i] w_j + sum_{j > 16} w_j: every argument and every binding of the widest kernel, see args.h.
// A workgroup writes T0 consecutive elements. No shared memory.
#include "lib/dart.glsl"
#include "table/wide_check.glsl"
READS(a00) READS(a01) READS(a02) READS(a03) READS(a04) READS(a05) READS(a06) READS(a07)
READS(a08) READS(a09) READS(a10) READS(a11) READS(a12) READS(a13) READS(a14) READS(a15)
READS_AS(float, floats, a16) WRITES_AS(float, floats, y) // bindings after the 16th are f32 always

#define TERM(a, w) load_##a(args.a##_at + i) * float(args.w)

void main()
{
    uint rest = args.w17 + args.w18 + args.w19 + args.w20 + args.w21 + args.w22 +
                args.w23 + args.w24 + args.w25 + args.w26 + args.w27 + args.w28 + args.w29 + args.w30;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * T0, args.count);
        for (uint i = tile * T0 + LANE; i < end; i += LANES) {
            float sum = args.last + float(rest);
            sum += TERM(a00, w00) + TERM(a01, w01) + TERM(a02, w02) + TERM(a03, w03) + TERM(a04, w04);
            sum += TERM(a05, w05) + TERM(a06, w06) + TERM(a07, w07);
            sum += TERM(a08, w08) + TERM(a09, w09) + TERM(a10, w10) + TERM(a11, w11);
            sum += TERM(a12, w12) + TERM(a13, w13) + TERM(a14, w14) + TERM(a15, w15);
            sum += floats_a16[args.a16_at + i] * float(args.w16);
            floats_y[args.y_at + i] = sum;
        }
    }
}
