#version 460
#extension GL_GOOGLE_include_directive : require
// grad_q = i o - q i^3 mean(o q), i = 1 / rms(q), o = of_q / sqrt(N); grad_e alike with o = of_e.
// q, of_q, grad_q B L G N; e, of_e, grad_e B L G P. A workgroup takes one (row, group). Shared memory: 4 LANES bytes.
// Guards: eps > 0; rows past the count become 0.
#include "lib/dart.glsl"
#include "table/sma_backward_norm.glsl"
READS(q) READS(e) READS(of_q) READS(of_e) READS(seq) WRITES(grad_q) WRITES(grad_e)
#include "lib/seq.glsl"

void main()
{
    float root = inversesqrt(float(args.N));
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint group = tile % args.G;
        uint row = tile / args.G;
        if (has(args.flags, HAS_CU) && row >= uint(max(load_int_seq(args.seq_at + args.B), 0))) continue;
        bool live = row % args.L < seq_count(row / args.L, args.L);
        uint q_at = args.q_at + row * args.q_row + group * args.N;
        uint e_at = args.e_at + row * args.e_row + group * args.P;
        vec2 squares = vec2(0.0); // of q and of e
        vec2 along = vec2(0.0);
        for (uint n = LANE; n < args.N && live; n += LANES) {
            float value = load_q(q_at + n);
            squares.x += value * value;
            along.x += value * root * load_of_q(tile * args.N + n);
        }
        for (uint p = LANE; p < args.P && live; p += LANES) {
            float value = load_e(e_at + p);
            squares.y += value * value;
            along.y += value * load_of_e(tile * args.P + p);
        }
        vec2 size = vec2(float(args.N), float(args.P));
        vec2 inverse = inversesqrt(vec2(workgroup_sum(squares.x), workgroup_sum(squares.y)) / size + args.eps);
        vec2 back = vec2(workgroup_sum(along.x), workgroup_sum(along.y)) / size * inverse * inverse * inverse;
        for (uint n = LANE; n < args.N; n += LANES)
            store_grad_q(args.grad_q_at + row * args.grad_q_row + group * args.N + n,
                         live ? inverse.x * root * load_of_q(tile * args.N + n) - back.x * load_q(q_at + n) : 0.0);
        for (uint p = LANE; p < args.P; p += LANES)
            store_grad_e(args.grad_e_at + row * args.grad_e_row + group * args.P + p,
                         live ? inverse.y * load_of_e(tile * args.P + p) - back.y * load_e(e_at + p) : 0.0);
    }
}
