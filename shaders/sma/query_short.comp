#version 460
#extension GL_GOOGLE_include_directive : require
// qn and en as query_base.comp computes them without HAS_UNIT, for short rows in whole 16-byte words: N + P is at most 8 TEAM.
// A workgroup takes T0 (token, group)s, TEAM neighbouring lanes each: 16 with rows of T0 = LANES / 16. A lane has eight elements of q or of e.
// Shared memory: 4 LANES bytes. Guards: eps > 0; tokens past the count are skipped.
#include "lib/dart.glsl"
#include "table/sma_query.glsl"
READS(q) READS(e) READS(seq) WRITES(qn) WRITES(en)
#include "lib/seq.glsl"
#include "lib/eight.glsl"
READS_EIGHT(q) READS_EIGHT(e) WRITES_EIGHT(qn) WRITES_EIGHT(en)

const uint TEAM = 16u;
shared float parts[LANES]; // squares

void main()
{
    uint own = LANE % TEAM;
    uint wide = args.N / 8u;
    uint all = wide + args.P / 8u;
    bool of_q = own < wide;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint item = tile * T0 + LANE / TEAM;
        uint row = item / args.G;
        uint g = item % args.G;
        bool live = own < all && row < args.B * args.L && row % args.L < seq_count(row / args.L, args.L);
        Eight value = Eight(vec4(0.0), vec4(0.0));
        if (live) {
            if (of_q) value = load_eight_q(args.q_at + row * args.q_row + g * args.N + 8u * own);
            else value = load_eight_e(args.e_at + row * args.e_row + g * args.P + 8u * (own - wide));
        }
        barrier();
        parts[LANE] = dot(value.low, value.low) + dot(value.high, value.high);
        barrier();
        float sum = 0.0;
        for (uint i = of_q ? 0u : wide; i < (of_q ? wide : all); i++) sum += parts[LANE - own + i];
        float factor = inversesqrt(sum / float(of_q ? args.N : args.P) + args.eps);
        if (of_q) factor *= inversesqrt(float(args.N));
        value = Eight(value.low * factor, value.high * factor);
        if (!live) continue;
        if (of_q) store_eight_qn(item * args.N + 8u * own, value);
        else store_eight_en(item * args.P + 8u * (own - wide), value);
    }
}
