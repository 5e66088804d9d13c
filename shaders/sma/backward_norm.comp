#version 460
#extension GL_GOOGLE_include_directive : require
// grad_q = i o - q i^3 mean(o q), i = 1 / rms(q), o = of_q / sqrt(N); grad_e alike with o = of_e.
// q, of_q, grad_q B L G N; e, of_e, grad_e B L G P. A workgroup takes T0 (row, group)s, TEAM neighbouring lanes each.
// Shared memory: 16 LANES bytes. Guards: eps > 0; rows past the count are not read and become 0.
#include "lib/dart.glsl"
#include "table/sma_backward_norm.glsl"
READS(q) READS(e) READS(of_q) READS(of_e) READS(seq) WRITES(grad_q) WRITES(grad_e)
#include "lib/seq.glsl"

#define TEAM (LANES / T0)
shared vec4 parts[LANES]; // squares of q and of e, then their products with o

void main()
{
    float root = inversesqrt(float(args.N));
    uint own = LANE % TEAM;
    // With HAS_CU one sequence of T rows, of which those beyond the last document belong to none.
    uint rows = has(args.flags, HAS_CU) ? min(uint(max(load_int_seq(args.seq_at + args.B), 0)), args.L) : args.B * args.L;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint item = tile * T0 + LANE / TEAM;
        uint group = item % args.G;
        uint row = item / args.G;
        bool written = row < rows;
        bool live = written && row % args.L < seq_count(row / args.L, args.L);
        uint q_at = args.q_at + row * args.q_row + group * args.N;
        uint e_at = args.e_at + row * args.e_row + group * args.P;
        vec4 sums = vec4(0.0);
        for (uint n = own; n < args.N && live; n += TEAM) {
            float value = load_q(q_at + n);
            sums.x += value * value;
            sums.z += value * root * load_of_q(item * args.N + n);
        }
        for (uint p = own; p < args.P && live; p += TEAM) {
            float value = load_e(e_at + p);
            sums.y += value * value;
            sums.w += value * load_of_e(item * args.P + p);
        }
        barrier();
        parts[LANE] = sums;
        barrier();
        sums = vec4(0.0);
        for (uint i = 0u; i < TEAM; i++) sums += parts[LANE - own + i];
        vec2 size = vec2(float(args.N), float(args.P));
        vec2 inverse = inversesqrt(sums.xy / size + args.eps);
        vec2 back = sums.zw / size * inverse * inverse * inverse;
        for (uint n = own; n < args.N && written; n += TEAM)
            store_grad_q(args.grad_q_at + row * args.grad_q_row + group * args.N + n,
                         live ? inverse.x * root * load_of_q(item * args.N + n) - back.x * load_q(q_at + n) : 0.0);
        for (uint p = own; p < args.P && written; p += TEAM)
            store_grad_e(args.grad_e_at + row * args.grad_e_row + group * args.P + p,
                         live ? inverse.y * load_of_e(item * args.P + p) - back.y * load_e(e_at + p) : 0.0);
    }
}
