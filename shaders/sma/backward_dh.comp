#version 460
#extension GL_GOOGLE_include_directive : require
// grad_dh += rho (x - u mean_p(x u)), u = key w, rho = 1 / rms of the raw row; 0 where no token sees the memory: see args.h.
// dh, x, grad_dh B M H N P; factor B M H N. A workgroup of 64 lanes takes T0 = 8 rows n, TEAM lanes a row. Shared memory: 256 bytes.
// Guards: memories that no token sees are not read.
#include "lib/dart.glsl"
#include "table/sma_backward_dh.glsl"
READS(dh) READS(factor) READS(seq) READS(x) READS_WRITES(grad_dh)
#define PACKS
#include "lib/seq.glsl"
#include "sma/backward.glsl"

const uint TEAM = 8u;
shared float parts[LANES];

void main()
{
    uint blocks = (args.N + T0 - 1u) / T0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n = tile % blocks * T0 + LANE / TEAM;
        uint head = tile / blocks;
        uint m = head / args.H % args.M;
        uint b = head / args.H / args.M;
        Sequence sequence = sequence_of(b);
        if (has(args.flags, HAS_CU) && m * args.S >= sequence.count) continue; // no chunk: the slot is another sequence's
        bool live = first_to_see(sequence.position, m) < sequence.count;
        uint row = ((slot_of(sequence, b, args.M, args.S) + m) * args.H + head % args.H) * args.N + min(n, args.N - 1u);
        float sum = 0.0;
        for (uint p = LANE % TEAM; p < args.P && live; p += TEAM) sum += load_x(row * args.P + p) * load_dh(args.dh_at + row * args.P + p);
        barrier();
        parts[LANE] = sum;
        barrier();
        float along = 0.0;
        for (uint i = 0u; i < TEAM; i++) along += parts[LANE / TEAM * TEAM + i];
        float factor = live ? load_factor(args.factor_at + row) : 1.0;
        bool raw = has(args.flags, IS_RAW);
        float rho = raw ? factor : 1.0 / factor;
        along *= (raw ? factor * factor : 1.0) / float(args.P);
        for (uint p = LANE % TEAM; p < args.P && n < args.N; p += TEAM) {
            uint at = args.grad_dh_at + row * args.P + p;
            float value = 0.0;
            if (live) value = load_grad_dh(at) + rho * (load_x(row * args.P + p) - along * load_dh(args.dh_at + row * args.P + p));
            store_grad_dh(at, value);
        }
    }
}
