#version 460
#extension GL_GOOGLE_include_directive : require
// grad_v_s = sum_t w_ts up_o_t, grad_k_s = scale sum_t u_ts q_t over the heads of the group, one after the other, and the tokens t >= s:
// w_ts = exp(scale q_t . k_s - lse_t), u_ts = w_ts (up_o_t . v_s - dot_t), 0 for t = 0.
//
// q, up_o B L H D; k, v, grad_k, grad_v B L G D; lse, dot B L H. A workgroup of 128 lanes makes T0 tokens s x T1 columns, BLOCK and SLAB, and
// takes BLOCK tokens t at a time (backward.glsl): two products of depth D for weights and slopes, then two of depth BLOCK with up_o and q.
// Shared memory: 7,168 bytes. Guards: exponents are clamped to <= 0; tokens past the count are not read, and their gradients become 0.
#include "lib/dart.glsl"
#include "table/attention_backward_k.glsl"
READS(q) READS(k) READS(v) READS(up_o) READS(lse) READS(dot) READS(seq) WRITES(grad_k) WRITES(grad_v)
#define PACKS
#include "lib/seq.glsl"
#include "attention/backward.glsl"

void main()
{
    uint t_blocks = (args.L + BLOCK - 1u) / BLOCK;
    uint slabs = (args.D + SLAB - 1u) / SLAB;
    uint heads = args.H / args.G;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint s_first = tile % t_blocks * BLOCK;
        uint column = tile / t_blocks % slabs * SLAB;
        uint g = tile / t_blocks / slabs % args.G;
        uint b = tile / t_blocks / slabs / args.G;
        Sequence sequence = sequence_of(b);
        if (s_first >= sequence.span) continue;
        uint count = sequence.count;
        uint token = sequence.row;
        uint columns = min(SLAB, args.D - column);
        vec4 sums_k[2u * PARTS];
        vec4 sums_v[2u * PARTS];
        [[unroll]] for (uint i = 0u; i < 2u * PARTS; i++) {
            sums_k[i] = vec4(0.0);
            sums_v[i] = vec4(0.0);
        }
        for (uint h = g * heads; h < (g + 1u) * heads; h++) {
            for (uint t_first = s_first; t_first < count; t_first += BLOCK) {
                // Barriers lie between the last reads of these and here, and between here and the next.
                for (uint i = LANE; i < BLOCK; i += LANES) {
                    uint at = (token + min(t_first + i, count - 1u)) * args.H + h;
                    lses[i] = load_lse(args.lse_at + at);
                    dots[i] = load_dot(at);
                }
                vec4 products[2];
                [[unroll]] for (uint r = 0u; r < 2u; r++) products[r] = vec4(0.0);
                for (uint d = 0u; d < args.D; d += DEPTH) {
                    barrier();
                    for (uint e = LANE; e < BLOCK * DEPTH; e += LANES) {
                        uint i = e / DEPTH;
                        uint n = d + e % DEPTH;
                        uint t = t_first + i;
                        uint s = s_first + i;
                        put_pair(0u, i, e % DEPTH,
                                 t < count && n < args.D ? load_q(args.q_at + (token + t) * args.q_row + h * args.D + n) : 0.0);
                        put_pair(1u, i, e % DEPTH,
                                 s < count && n < args.D ? load_k(args.k_at + (token + s) * args.k_row + g * args.D + n) : 0.0);
                    }
                    barrier();
                    multiply_pair(products);
                }
                // Out of the registers before the next product.
                [[unroll]] for (uint r = 0u; r < 2u; r++) {
                    uint line = LANE / 8u * 2u + r;
                    uint t = t_first + line;
                    vec4 weight = vec4(0.0);
                    [[unroll]] for (uint c = 0u; c < 4u; c++) {
                        uint s = s_first + LANE % 8u * 4u + c;
                        if (s <= t && t < count) weight[c] = exp_neg(args.scale * products[r][c] - lses[line]);
                    }
                    weights[own_place(r)] = weight;
                    products[r] = vec4(0.0);
                }
                for (uint d = 0u; d < args.D; d += DEPTH) {
                    barrier();
                    for (uint e = LANE; e < BLOCK * DEPTH; e += LANES) {
                        uint i = e / DEPTH;
                        uint n = d + e % DEPTH;
                        uint t = t_first + i;
                        uint s = s_first + i;
                        put_pair(0u, i, e % DEPTH,
                                 t < count && n < args.D ? load_up_o(args.up_o_at + (token + t) * args.up_o_row + h * args.D + n) : 0.0);
                        put_pair(1u, i, e % DEPTH,
                                 s < count && n < args.D ? load_v(args.v_at + (token + s) * args.v_row + g * args.D + n) : 0.0);
                    }
                    barrier();
                    multiply_pair(products);
                }
                // weights first serve the sums of v; the slopes wait in the registers.
                [[unroll]] for (uint r = 0u; r < 2u; r++) {
                    uint line = LANE / 8u * 2u + r;
                    products[r] = t_first + line == 0u ? vec4(0.0) : weights[own_place(r)] * (products[r] - dots[line]);
                }
                for (uint from = 0u; from < BLOCK; from += DEPTH) {
                    barrier();
                    for (uint e = LANE; e < DEPTH * SLAB; e += LANES) {
                        uint t = t_first + from + e / SLAB;
                        uint n = e % SLAB;
                        put_row(e / SLAB, n, t < count && n < columns ?
                                                 load_up_o(args.up_o_at + (token + t) * args.up_o_row + h * args.D + column + n) : 0.0);
                    }
                    barrier();
                    multiply_weights(from, sums_v);
                }
                barrier();
                [[unroll]] for (uint r = 0u; r < 2u; r++) weights[own_place(r)] = products[r];
                for (uint from = 0u; from < BLOCK; from += DEPTH) {
                    barrier();
                    for (uint e = LANE; e < DEPTH * SLAB; e += LANES) {
                        uint t = t_first + from + e / SLAB;
                        uint n = e % SLAB;
                        put_row(e / SLAB, n, t < count && n < columns ?
                                                 load_q(args.q_at + (token + t) * args.q_row + h * args.D + column + n) : 0.0);
                    }
                    barrier();
                    multiply_weights(from, sums_k);
                }
            }
        }
        for (uint part = 0u; part < 2u * PARTS; part++) { // through shared memory, so that the stores are written once
            bool of_v = part >= PARTS;
            barrier();
            if (of_v) put_part(part - PARTS, sums_v);
            else put_part(part, sums_k);
            barrier();
            for (uint e = LANE; e < 32u * BLOCK; e += LANES) {
                uint s = s_first + e / 32u;
                uint n = 32u * (part % PARTS) + e % 32u;
                float value = weights[e / 32u * PITCH + e % 32u / 4u][e % 4u];
                if (s >= sequence.span || n >= columns) continue;
                uint to = g * args.D + column + n;
                if (of_v) store_grad_v(args.grad_v_at + (token + s) * args.grad_v_row + to, value);
                else store_grad_k(args.grad_k_at + (token + s) * args.grad_k_row + to, args.scale * value);
            }
        }
        barrier();
    }
}
