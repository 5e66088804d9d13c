#version 460
#extension GL_GOOGLE_include_directive : require
// What backward_norm.comp computes, for short rows in whole 16-byte words: N + P is at most 8 TEAM.
// A workgroup takes T0 (row, group)s, TEAM neighbouring lanes each: 16 with rows of T0 = LANES / 16. A lane has eight elements of q or of e.
// Shared memory: 8 LANES bytes. Guards: eps > 0; rows past the count are not read and become 0.
#include "lib/dart.glsl"
#include "table/sma_backward_norm.glsl"
READS(q) READS(e) READS(of_q) READS(of_e) READS(seq) WRITES(grad_q) WRITES(grad_e)
#include "lib/seq.glsl"
#include "lib/eight.glsl"
READS_EIGHT(q) READS_EIGHT(e) READS_EIGHT(of_q) READS_EIGHT(of_e) WRITES_EIGHT(grad_q) WRITES_EIGHT(grad_e)

const uint TEAM = 16u;
shared vec2 parts[LANES]; // squares, and products with o

void main()
{
    uint own = LANE % TEAM;
    uint wide = args.N / 8u;
    uint all = wide + args.P / 8u;
    bool of_q = own < wide;
    float root = of_q ? inversesqrt(float(args.N)) : 1.0;
    uint rows = has(args.flags, HAS_CU) ? min(uint(max(load_int_seq(args.seq_at + args.B), 0)), args.L) : args.B * args.L; // as backward_norm.comp
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint item = tile * T0 + LANE / TEAM;
        uint group = item % args.G;
        uint row = item / args.G;
        bool written = own < all && row < rows;
        bool live = written && row % args.L < seq_count(row / args.L, args.L);
        Eight value = Eight(vec4(0.0), vec4(0.0));
        Eight o = Eight(vec4(0.0), vec4(0.0));
        if (live) {
            if (of_q) {
                value = load_eight_q(args.q_at + row * args.q_row + group * args.N + 8u * own);
                o = load_eight_of_q(item * args.N + 8u * own);
            } else {
                value = load_eight_e(args.e_at + row * args.e_row + group * args.P + 8u * (own - wide));
                o = load_eight_of_e(item * args.P + 8u * (own - wide));
            }
            o = Eight(root * o.low, root * o.high);
        }
        barrier();
        parts[LANE] = vec2(dot(value.low, value.low) + dot(value.high, value.high), dot(value.low, o.low) + dot(value.high, o.high));
        barrier();
        vec2 sums = vec2(0.0);
        for (uint i = of_q ? 0u : wide; i < (of_q ? wide : all); i++) sums += parts[LANE - own + i];
        float size = float(of_q ? args.N : args.P);
        float inverse = inversesqrt(sums.x / size + args.eps);
        float back = sums.y / size * inverse * inverse * inverse;
        Eight grad = Eight(inverse * o.low - back * value.low, inverse * o.high - back * value.high); // of what is not live all of it is 0
        if (!written) continue;
        if (of_q) store_eight_grad_q(args.grad_q_at + row * args.grad_q_row + group * args.N + 8u * own, grad);
        else store_eight_grad_e(args.grad_e_at + row * args.grad_e_row + group * args.P + 8u * (own - wide), grad);
    }
}
