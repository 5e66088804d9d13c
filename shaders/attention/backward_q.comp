#version 460
#extension GL_GOOGLE_include_directive : require
// grad_q_t = scale sum_s u_ts k_s over the tokens s <= t: u_ts = exp(scale q_t . k_s - lse_t) (up_o_t . v_s - dot_t), 0 for t = 0.
//
// q, up_o, grad_q B L H D; k, v B L G D; lse, dot B L H. A workgroup of 128 lanes makes T0 tokens t x T1 columns, BLOCK and SLAB, and takes BLOCK
// tokens s at a time (backward.glsl): two products of depth D, whose lines are the tokens s, then one of depth BLOCK with k.
// Shared memory: 7,168 bytes. Guards: exponents are clamped to <= 0; tokens past the count are not read, and their gradients become 0.
#include "lib/dart.glsl"
#include "table/attention_backward_q.glsl"
READS(q) READS(k) READS(v) READS(up_o) READS(lse) READS(dot) READS(seq) WRITES(grad_q)
#define PACKS
#include "lib/seq.glsl"
#include "attention/backward.glsl"

void main()
{
    uint t_blocks = (args.L + BLOCK - 1u) / BLOCK;
    uint slabs = (args.D + SLAB - 1u) / SLAB;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = tile % t_blocks * BLOCK;
        uint column = tile / t_blocks % slabs * SLAB;
        uint h = tile / t_blocks / slabs % args.H;
        uint b = tile / t_blocks / slabs / args.H;
        uint g = h / (args.H / args.G);
        Sequence sequence = sequence_of(b);
        if (t_first >= sequence.span) continue;
        uint count = sequence.count;
        uint token = sequence.row;
        uint columns = min(SLAB, args.D - column);
        uint end = t_first < count ? min(t_first + BLOCK, count) : 0u; // of the tokens that are seen
        vec4 sums[2u * PARTS];
        [[unroll]] for (uint i = 0u; i < 2u * PARTS; i++) sums[i] = vec4(0.0);
        barrier();
        for (uint i = LANE; i < BLOCK && end > 0u; i += LANES) {
            uint at = (token + min(t_first + i, count - 1u)) * args.H + h;
            lses[i] = load_lse(args.lse_at + at);
            dots[i] = load_dot(at);
        }
        for (uint s_first = 0u; s_first < end; s_first += BLOCK) {
            vec4 products[2];
            [[unroll]] for (uint r = 0u; r < 2u; r++) products[r] = vec4(0.0);
            for (uint d = 0u; d < args.D; d += DEPTH) {
                barrier();
                for (uint e = LANE; e < BLOCK * DEPTH; e += LANES) {
                    uint i = e / DEPTH;
                    uint n = d + e % DEPTH;
                    uint t = t_first + i;
                    uint s = s_first + i;
                    put_pair(0u, i, e % DEPTH, s < count && n < args.D ? load_k(args.k_at + (token + s) * args.k_row + g * args.D + n) : 0.0);
                    put_pair(1u, i, e % DEPTH, t < count && n < args.D ? load_q(args.q_at + (token + t) * args.q_row + h * args.D + n) : 0.0);
                }
                barrier();
                multiply_pair(products);
            }
            // Out of the registers before the next product.
            [[unroll]] for (uint r = 0u; r < 2u; r++) {
                uint line = LANE / 8u * 2u + r;
                uint s = s_first + line;
                vec4 weight = vec4(0.0);
                [[unroll]] for (uint c = 0u; c < 4u; c++) {
                    uint own = LANE % 8u * 4u + c;
                    uint t = t_first + own;
                    if (s <= t && t < count && t > 0u) weight[c] = exp_neg(args.scale * products[r][c] - lses[own]);
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
                    put_pair(0u, i, e % DEPTH, s < count && n < args.D ? load_v(args.v_at + (token + s) * args.v_row + g * args.D + n) : 0.0);
                    put_pair(1u, i, e % DEPTH,
                             t < count && n < args.D ? load_up_o(args.up_o_at + (token + t) * args.up_o_row + h * args.D + n) : 0.0);
                }
                barrier();
                multiply_pair(products);
            }
            [[unroll]] for (uint r = 0u; r < 2u; r++) {
                vec4 weight = weights[own_place(r)];
                uint own = LANE % 8u * 4u;
                vec4 slope = weight * (products[r] - vec4(dots[own], dots[own + 1u], dots[own + 2u], dots[own + 3u]));
                weights[own_place(r)] = mix(slope, vec4(0.0), equal(weight, vec4(0.0))); // also where a product with a later token is NaN
            }
            for (uint from = 0u; from < BLOCK; from += DEPTH) {
                barrier();
                for (uint e = LANE; e < DEPTH * SLAB; e += LANES) {
                    uint s = s_first + from + e / SLAB;
                    uint n = e % SLAB;
                    put_row(e / SLAB, n, s < count && n < columns ? load_k(args.k_at + (token + s) * args.k_row + g * args.D + column + n) : 0.0);
                }
                barrier();
                multiply_weights(from, sums);
            }
        }
        for (uint part = 0u; part < PARTS; part++) { // through shared memory, so that the store is written once
            barrier();
            put_part(part, sums);
            barrier();
            for (uint e = LANE; e < 32u * BLOCK; e += LANES) {
                uint t = t_first + e / 32u;
                uint n = 32u * part + e % 32u;
                if (t >= sequence.span || n >= columns) continue;
                store_grad_q(args.grad_q_at + (token + t) * args.grad_q_row + h * args.D + column + n,
                             args.scale * weights[e / 32u * PITCH + e % 32u / 4u][e % 4u]);
            }
        }
    }
}
