#version 460
#extension GL_GOOGLE_include_directive : require
// The walk over chunks, backwards: lambda = up_h; for j from the last chunk: carry_j = exp(tot_j) <lambda, hin_j> row by row,
// read_j is replaced by lambda, lambda = exp(tot_j) lambda + read_j. At the end grad_h = lambda.
// decay B M+1 H; read, hin B M H N P; hin_scale B M H N; carry B M H N; up_h, grad_h B H N P.
// One workgroup walks four rows n of one (b, h), a lane every LANES-th column of all four. T0 is 4; LANES is at least MAX_STATE / 4.
// With -DP64 for P up to 64. Shared memory: 16 LANES bytes. Guards: exponents are clamped to <= 0; empty chunks are neither read nor written.
#include "lib/dart.glsl"
#include "table/ssd_backward_state.glsl"
READS(decay) READS_WRITES(read) READS(hin) READS(hin_scale) READS(up_h) READS(seq) WRITES(grad_h) WRITES(carry)
#define PACKS
#include "lib/seq.glsl"
#include "lib/quads.glsl"

#ifdef P64
const uint BLOCKS = 1u;
#else
const uint BLOCKS = MAX_STATE / LANES;
#endif

void main()
{
    uint row_blocks = (args.N + T0 - 1u) / T0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % row_blocks * T0;
        uint head = tile / row_blocks; // b H + h
        uint b = head / args.H;
        uint h = head % args.H;
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        uint used = count == 0u ? 0u : min((sequence.position % args.S + count + args.S - 1u) / args.S, args.M);
        uint slots = slot_of(sequence, b, args.M, args.S);
        uint rows = min(T0, args.N - n_first);
        uint own = (head * args.N + n_first) * args.P;
        vec4 state[BLOCKS];
        [[unroll]] for (uint i = 0u; i < BLOCKS; i++) {
            uint p = min(i * LANES + LANE, args.P - 1u);
            state[i] = vec4(0.0);
            if (i * LANES < args.P && has(args.flags, HAS_UP_H)) {
                [[unroll]] for (uint r = 0u; r < 4u; r++) state[i][r] = load_up_h(args.up_h_at + own + min(r, rows - 1u) * args.P + p);
            }
        }
        for (uint j = used; j-- > 0u;) {
            uint row = ((slots + j) * args.H + h) * args.N + n_first;
            float keep = exp_neg(load_decay((slots + b + j + 1u) * args.H + h));
            vec4 scales = vec4(1.0);
            [[unroll]] for (uint r = 0u; r < 4u; r++)
                if (has(args.flags, HAS_HIN_SCALE)) scales[r] = load_hin_scale(args.hin_scale_at + row + min(r, rows - 1u));
            vec4 along = vec4(0.0);
            [[unroll]] for (uint i = 0u; i < BLOCKS; i++) {
                uint p = i * LANES + LANE;
                if (p < args.P) {
                    vec4 gained;
                    vec4 held;
                    [[unroll]] for (uint r = 0u; r < 4u; r++) {
                        uint at = (row + min(r, rows - 1u)) * args.P + p;
                        gained[r] = load_read(at);
                        held[r] = load_hin(args.hin_at + at);
                    }
                    along += state[i] * held;
                    [[unroll]] for (uint r = 0u; r < 4u; r++)
                        if (r < rows) store_read((row + r) * args.P + p, state[i][r]);
                    state[i] = keep * state[i] + gained;
                }
            }
            barrier();
            vec4 carried = workgroup_sum4(along) * scales * keep;
            if (LANE < rows) store_carry(row + LANE, carried[LANE]);
        }
        [[unroll]] for (uint i = 0u; i < BLOCKS; i++) {
            uint p = i * LANES + LANE;
            if (p < args.P && has(args.flags, HAS_H)) {
                [[unroll]] for (uint r = 0u; r < 4u; r++)
                    if (r < rows) store_grad_h(args.grad_h_at + own + r * args.P + p, state[i][r]);
            }
        }
    }
}
