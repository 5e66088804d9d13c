#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// ssd_backward_gain, the walk over chunks, backwards: lambda = up_h; for j from the last chunk: carry_j = exp(tot_j) <lambda, hin_j> row by row,
// gain_j = lambda + up_dh_j, rounded, lambda = exp(tot_j) lambda + read_j. At the end grad_h = lambda.
// decay B M+1 H; read, up_dh B M H N P, f32; hin, gain B M H N P, 16-bit; hin_scale, carry B M H N; up_h, grad_h B H N P.
// A workgroup takes T0 rows n of a (b, h); eight lanes have a row of at most 64 columns, eight each. What AHEAD chunks need is on its way at
// once.
// f16: rows of gain are divided by a unit, gain_scale B M H N.
// Shared memory: none. Guards: exponents are clamped to <= 0; empty chunks are neither read nor written.
#include "lib/dart.glsl"
#include "table/ssd_backward_gain.glsl"
READS(decay) READS(seq) WRITES(carry) READS_AS(vec4, quads, read) READS_AS(uvec4, quads, hin) READS_AS(vec4, quads, up_dh) READS(up_h)
READS(hin_scale) WRITES_AS(uvec4, quads, gain) WRITES(grad_h)
#ifndef MATRIX_BF16
WRITES(gain_scale)
#endif
#define PACKS
#include "lib/seq.glsl"
#include "lib/matrix.glsl"
#include "matrix.glsl"
#include "backward_matrix.glsl"

const uint TEAM = 8u;               // lanes of a row
const uint OWN = T0 * TEAM / LANES; // rows of a lane
const uint AHEAD = 4u / OWN > 0u ? 4u / OWN : 1u;

void main()
{
    uint row_blocks = (args.N + T0 - 1u) / T0;
    uint p = LANE % TEAM * 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % row_blocks * T0 + LANE / TEAM;
        uint head = tile / row_blocks; // b H + h
        uint b = head / args.H;
        uint h = head % args.H;
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        uint used = count == 0u ? 0u : min((sequence.position % args.S + count + args.S - 1u) / args.S, args.M);
        uint slots = slot_of(sequence, b, args.M, args.S);
        vec4 low[OWN];
        vec4 high[OWN];
        bool there[OWN];
        [[unroll]] for (uint i = 0u; i < OWN; i++) {
            uint n = n_first + i * (LANES / TEAM);
            there[i] = n < args.N && p < args.P;
            low[i] = vec4(0.0);
            high[i] = vec4(0.0);
            if (there[i] && has(args.flags, HAS_UP_H)) {
                uint from = args.up_h_at + (head * args.N + n) * args.P + p;
                [[unroll]] for (uint e = 0u; e < 4u; e++) {
                    low[i][e] = load_up_h(from + e);
                    high[i][e] = load_up_h(from + 4u + e);
                }
            }
        }
        for (uint end = used; end > 0u; end -= min(end, AHEAD)) {
            vec4 reads[2u * AHEAD * OWN];
            vec4 ups[2u * AHEAD * OWN];
            uvec4 enters[AHEAD * OWN];
            float keeps[AHEAD];
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
                uint j = end - 1u - min(k, end - 1u);
                keeps[k] = load_decay((slots + b + j + 1u) * args.H + h);
                [[unroll]] for (uint i = 0u; i < OWN; i++) {
                    uint n = n_first + i * (LANES / TEAM);
                    uint from = ((slots + j) * args.H + h) * args.N * args.P + n * args.P + p;
                    uint to = k * OWN + i;
                    reads[2u * to] = there[i] ? quads_read[from / 4u] : vec4(0.0);
                    reads[2u * to + 1u] = there[i] ? quads_read[from / 4u + 1u] : vec4(0.0);
                    enters[to] = there[i] ? quads_hin[(args.hin_at + from) / 8u] : uvec4(0u);
                    bool up = there[i] && has(args.flags, HAS_DH);
                    ups[2u * to] = up ? quads_up_dh[(args.up_dh_at + from) / 4u] : vec4(0.0);
                    ups[2u * to + 1u] = up ? quads_up_dh[(args.up_dh_at + from) / 4u + 1u] : vec4(0.0);
                }
            }
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
                if (k < end) {
                    uint j = end - 1u - k;
                    float keep = exp_neg(keeps[k]);
                    [[unroll]] for (uint i = 0u; i < OWN; i++) {
                        uint n = n_first + i * (LANES / TEAM);
                        uint at = k * OWN + i;
                        float along = dot(low[i], vec4(unpack_elements(enters[at].x), unpack_elements(enters[at].y))) +
                                      dot(high[i], vec4(unpack_elements(enters[at].z), unpack_elements(enters[at].w)));
                        [[unroll]] for (uint apart = 1u; apart < TEAM; apart *= 2u) along += subgroupShuffleXor(along, apart);
                        uint row = ((slots + j) * args.H + h) * args.N + n;
                        if (there[i] && p == 0u) {
                            if (has(args.flags, HAS_HIN_SCALE)) along *= load_hin_scale(args.hin_scale_at + row);
                            store_carry(row, keep * along);
                        }
                        vec4 gain_low = low[i] + ups[2u * at];
                        vec4 gain_high = high[i] + ups[2u * at + 1u];
#ifndef MATRIX_BF16
                        vec4 larger = max(abs(gain_low), abs(gain_high));
                        float largest = max(max(larger.x, larger.y), max(larger.z, larger.w));
                        [[unroll]] for (uint apart = 1u; apart < TEAM; apart *= 2u) largest = max(largest, subgroupShuffleXor(largest, apart));
                        float unit = unit_of(largest);
                        if (there[i] && p == 0u) store_gain_scale(row, unit);
                        gain_low /= unit;
                        gain_high /= unit;
#endif
                        if (there[i]) quads_gain[(row * args.P + p) / 8u] = pack_eight(gain_low, gain_high);
                        low[i] = keep * low[i] + reads[2u * at];
                        high[i] = keep * high[i] + reads[2u * at + 1u];
                    }
                }
            }
        }
        if (has(args.flags, HAS_H)) {
            [[unroll]] for (uint i = 0u; i < OWN; i++) {
                uint to = args.grad_h_at + (head * args.N + n_first + i * (LANES / TEAM)) * args.P + p;
                if (there[i]) {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        store_grad_h(to + e, low[i][e]);
                        store_grad_h(to + 4u + e, high[i][e]);
                    }
                }
            }
        }
    }
}
