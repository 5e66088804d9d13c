#version 460
#extension GL_GOOGLE_include_directive : require
// sma_backward_parts: see args.h. A workgroup takes T0 (b, t, g), TEAM neighbouring lanes each, which take its columns.
// Shared memory: 16 LANES bytes. Guards: eps > 0; rows past the count are not read, and become 0 but for those of grad_c with IS_ADD.
#include "lib/dart.glsl"
#include "table/sma_backward_parts.glsl"
READS(q) READS(e) READS_AS(float, floats, of_q) READS_AS(float, floats, of_e) READS_AS(float, floats, of_c) READS(seq)
WRITES(grad_q) WRITES(grad_e) READS_WRITES(grad_c)
#define PACKS
#include "lib/seq.glsl"

#define TEAM (LANES / T0)
shared vec4 along[LANES]; // squares of q and of e, then their products with what their parts add up to

// Column n or p of the row (token, group) of those parts, `step` elements apart.
float sum_q(uint at, uint step)
{
    float total = 0.0;
    for (uint part = 0u; part < args.parts; part++) total += floats_of_q[part * step + at];
    return total;
}
float sum_e(uint at, uint step)
{
    float total = 0.0;
    for (uint part = 0u; part < args.parts; part++) total += floats_of_e[part * step + at];
    return total;
}
float sum_c(uint at, uint step)
{
    float total = 0.0;
    for (uint part = 0u; part < args.parts; part++) total += floats_of_c[part * step + at];
    return total;
}

void main()
{
    uint own = LANE % TEAM;
    bool adds = has(args.flags, IS_ADD);
    uint rows = (has(args.flags, HAS_CU) ? args.T : args.B * args.L) * args.G;
    vec2 size = vec2(float(args.N), float(args.P));
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint item = tile * T0 + LANE / TEAM;
        uint group = item % args.G;
        uint t = item / args.G % args.L;
        uint b = item / args.G / args.L;
        Sequence piece = Sequence(0u, 0u, 0u, 0u);
        if (b < args.B) piece = sequence_of(b);
        bool written = t < piece.span;
        bool live = t < piece.count;
        uint row = piece.row + t;
        uint line = row * args.G + group;
        uint q_at = args.q_at + row * args.q_row + group * args.N;
        uint e_at = args.e_at + row * args.e_row + group * args.P;
        vec4 sums = vec4(0.0);
        for (uint n = own; n < args.N && live; n += TEAM) {
            float value = load_q(q_at + n);
            sums.x += value * value;
            sums.z += value * sum_q(line * args.N + n, rows * args.N);
        }
        for (uint p = own; p < args.P && live; p += TEAM) {
            float value = load_e(e_at + p);
            sums.y += value * value;
            sums.w += value * sum_e(line * args.P + p, rows * args.P);
        }
        barrier();
        along[LANE] = sums;
        barrier();
        sums = vec4(0.0);
        for (uint i = 0u; i < TEAM; i++) sums += along[LANE - own + i];
        vec2 inverse = 1.0 / sqrt(sums.xy / size + args.eps);
        vec2 back = sums.zw / size * inverse * inverse;
        float factor = inverse.x * (1.0 / sqrt(size.x)) * inverse.y;
        for (uint n = own; n < args.N && written; n += TEAM) {
            float value = live ? factor * (sum_q(line * args.N + n, rows * args.N) - back.x * load_q(q_at + n)) : 0.0;
            store_grad_q(args.grad_q_at + row * args.grad_q_row + group * args.N + n, value);
        }
        for (uint p = own; p < args.P && written; p += TEAM) {
            float value = live ? factor * (sum_e(line * args.P + p, rows * args.P) - back.y * load_e(e_at + p)) : 0.0;
            store_grad_e(args.grad_e_at + row * args.grad_e_row + group * args.P + p, value);
        }
        for (uint n = own; n < args.N && (adds ? live : written); n += TEAM) {
            uint to = args.grad_c_at + row * args.grad_c_row + group * args.N + n;
            float value = live ? sum_c(line * args.N + n, rows * args.N) : 0.0;
            store_grad_c(to, adds ? load_grad_c(to) + value : value);
        }
    }
}
