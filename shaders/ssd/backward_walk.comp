#version 460
#extension GL_GOOGLE_include_directive : require
// The backward pass of the scan, all of it: see args.h.
// x, up_y, grad_x B L H P; dt, grad_dt B L H; b, c, grad_b, grad_c B L G N; a_log, dt_bias, d H; up_dh, hin B M H N P; of_a_log, of_bias, of_d B H.
// A workgroup of 128 lanes takes one (b, g). Forwards it computes the state that enters each chunk and stores it in hin; each lane later reads what
// it wrote itself. Backwards it keeps lambda, the gradient of the state at a chunk's end, in registers: 16 elements of a head a lane. Inside a chunk
// all sums are taken directly, of both heads of the group side by side (walk.glsl).
// Shared memory: 31,744 bytes.
// Guards: exponents are clamped to <= 0; differences of cumulative log-decays are those of two-float sums; no sum is the difference of two others;
// tokens past the chunk, rows past N, columns past P and heads past the group count as 0, and nothing of them is read or written.
#include "lib/dart.glsl"
#include "table/ssd_backward_walk.glsl"
READS(dt) READS(a_log) READS(dt_bias) READS(d) READS(seq) WRITES(grad_dt)
// Bindings after the 16th have no dtype.
WRITES_AS(float, plain, of_a_log) WRITES_AS(float, plain, of_bias) WRITES_AS(float, plain, of_d)
#define PACKS
#include "lib/seq.glsl"
#include "ssd.glsl"
#ifdef TILES
#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(b) READS_EIGHT(c) READS_EIGHT(up_y) READS_AS(vec4, quads, up_dh) READS_WRITES_AS(vec4, quads, hin)
READS_AS(uvec2, olds, grad_c) READS_AS(uvec4, old_quads, grad_c)
#else
READS(x) READS(b) READS(c) READS(up_y) READS(up_dh) READS_WRITES(hin)
#endif
#include "walk.glsl"
#include "backward_walk.glsl"

void main()
{
    uint in_group = args.H / args.G;
    uint quads = (args.P + 3u) / 4u;
    uint place = OWN_TEAM * SIDE + OWN % SIDE; // of token OWN, in what the team has for each token
    uint i = OWN / 8u;                         // of a square a lane makes the lines i and i + 8 ...
    uint j = OWN % 8u;                         // ... at the columns j and j + 8
    uint p_own = 4u * OWN_QUAD;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint g = tile % args.G;
        uint b = tile / args.G;
        Sequence sequence = sequence_of(b);
        uint chunks = (sequence.count + args.S - 1u) / args.S;
        uint slots = slot_of(sequence, b, args.M, args.S);
        uint h_first = g * in_group;
        bool both = in_group > 1u;
        bool there = OWN_TEAM == 0u || both;
        uint h = there ? h_first + OWN_TEAM : h_first;
        Head head = head_of(h);
        // Forwards: the entering states, in `lambda`.
        vec4 lambda[4];
        [[unroll]] for (uint a = 0u; a < 4u; a++) lambda[a] = vec4(0.0);
        for (uint chunk = 0u; chunk < chunks; chunk++) {
            uint row = sequence.row + chunk * args.S;
            uint size = min(args.S, sequence.count - chunk * args.S);
            uint matrix = ((slots + chunk) * args.H + h) * args.N;
            [[unroll]] for (uint a = 0u; a < 4u; a++) {
                uint n = 4u * OWN_ROW + a;
                if (there && n < args.N) store_state_hin(0u, matrix + n, p_own, lambda[a]);
            }
            if (chunk + 1u == chunks) break;
            barrier();
            STAGE_SQUARE(b, bs, row, g, size)
            STAGE_PANEL(x, early, row, h_first, both, size)
            if (OWN < SIDE) steps[place] = there && OWN < size ? step_of(raw_of(row + OWN, h, head)) : 0.0;
            barrier();
            if (OWN < SIDE) {
                put_cums(head);
                reads[place] = keeps[place] * steps[place];
            }
            barrier();
            float factor = exp_neg(total_of(OWN_TEAM));
            [[unroll]] for (uint a = 0u; a < 4u; a++) lambda[a] *= factor;
            ADD_OUTER(lambda, bs, reads, early, size)
        }
        // Backwards.
        vec3 totals = vec3(0.0); // of token OWN and those at its place in other chunks: for a_log and dt_bias; of the lane: for d
        [[unroll]] for (uint a = 0u; a < 4u; a++) lambda[a] = vec4(0.0);
        for (uint chunk = chunks; chunk-- > 0u;) {
            uint row = sequence.row + chunk * args.S;
            uint size = min(args.S, sequence.count - chunk * args.S);
            vec4 line_sum = vec4(0.0); // team 0: of grad_b; team 1: of grad_c; token OWN / 4, columns 4 (OWN % 4) to 4 (OWN % 4) + 3
            uint matrix = ((slots + chunk) * args.H + h) * args.N;
            bool token = OWN < SIDE && OWN < size && there;
            float raw = token ? raw_of(row + OWN, h, head) : 0.0;
            barrier();
            STAGE_SQUARE(b, bs, row, g, size)
            STAGE_SQUARE(c, cs, row, g, size)
            STAGE_PANEL(x, early, row, h_first, both, size)
            STAGE_PANEL(up_y, ups, row, h_first, both, size)
            if (OWN < SIDE) steps[place] = token ? step_of(raw) : 0.0;
            float carried = 0.0;
            vec4 over[4]; // up_dh
            [[unroll]] for (uint a = 0u; a < 4u; a++) {
                uint n = 4u * OWN_ROW + a;
                vec4 entering = there && n < args.N ? load_state_hin(0u, matrix + n, p_own) : vec4(0.0);
                carried += dot(entering, lambda[a]);
                states[(OWN_TEAM * SIDE + n) * PITCH + OWN_QUAD] = entering;
                over[a] = has(args.flags, HAS_DH) && there && n < args.N ? load_state_up_dh(args.up_dh_at, matrix + n, p_own) : vec4(0.0);
            }
            parts[LANE] = carried;
            barrier();

            if (OWN < SIDE) {
                put_cums(head);
                reads[place] = exp_neg(cums[place].x);
                uint from = OWN_TEAM * TEAM + 4u * OWN;
                sums[place] = (parts[from] + parts[from + 1u]) + (parts[from + 2u] + parts[from + 3u]);
            }
            // Of line i + 8 a and column j + 8 c, element 2 a + c: up_y_t . x_s, hin up_y_t, c_t . b_s; later G x_s.
            vec4 of_xy = vec4(0.0);
            vec4 of_read = vec4(0.0);
            vec4 of_cb = vec4(0.0);
            vec4 of_write = vec4(0.0);
            uint line = (OWN_TEAM * SIDE + i) * PITCH;
            uint column = (OWN_TEAM * SIDE + j) * PITCH;
            for (uint q = 0u; q < quads; q++) {
                vec4 up_a = ups[line + q];
                vec4 up_b = ups[line + 8u * PITCH + q];
                vec4 x_a = early[column + q];
                vec4 x_b = early[column + 8u * PITCH + q];
                of_xy += vec4(dot(up_a, x_a), dot(up_a, x_b), dot(up_b, x_a), dot(up_b, x_b));
                x_a = states[column + q];
                x_b = states[column + 8u * PITCH + q];
                of_read += vec4(dot(up_a, x_a), dot(up_a, x_b), dot(up_b, x_a), dot(up_b, x_b));
            }
            for (uint q = 0u; q < SIDE / 4u; q++) {
                vec4 c_a = cs[i * LINE + q];
                vec4 c_b = cs[(i + 8u) * LINE + q];
                vec4 b_a = bs[j * LINE + q];
                vec4 b_b = bs[(j + 8u) * LINE + q];
                of_cb += vec4(dot(c_a, b_a), dot(c_a, b_b), dot(c_b, b_a), dot(c_b, b_b));
            }
            barrier();
            [[unroll]] for (uint a = 0u; a < 4u; a++)
                states[(OWN_TEAM * SIDE + 4u * OWN_ROW + a) * PITCH + OWN_QUAD] = lambda[a] + over[a];
            barrier();
            for (uint q = 0u; q < quads; q++) { // lines are tokens s
                vec4 x_a = early[line + q];
                vec4 x_b = early[line + 8u * PITCH + q];
                vec4 g_a = states[column + q];
                vec4 g_b = states[column + 8u * PITCH + q];
                of_write += vec4(dot(x_a, g_a), dot(x_a, g_b), dot(x_b, g_a), dot(x_b, g_b));
            }
            vec4 v[4]; // of tokens OWN_ROW + 4 a
            [[unroll]] for (uint a = 0u; a < 4u; a++) v[a] = vec4(0.0);
            ADD_INNER(v, bs, 0u, states, args.N)
            [[unroll]] for (uint a = 0u; a < 4u; a++) v[a] *= keeps[OWN_TEAM * SIDE + OWN_ROW + 4u * a];
            if (i == j) totals.z += of_xy.x + of_xy.w;
            barrier();
            [[unroll]] for (uint k = 0u; k < 4u; k++) {
                uint t = i + k / 2u * 8u;
                uint s = j + k % 2u * 8u;
                float decay = s <= t ? exp_neg(cum_between(cums[OWN_TEAM * SIDE + s], cums[OWN_TEAM * SIDE + t])) : 0.0;
                float weight = of_cb[k] * decay;
                early[square_of(OF_WEIGHT, OWN_TEAM) + s * LINE + t / 4u][t % 4u] = weight;
                early[square_of(OF_U, OWN_TEAM) + t * LINE + s / 4u][s % 4u] = decay * steps[OWN_TEAM * SIDE + s] * of_xy[k];
                early[square_of(OF_READ, OWN_TEAM) + t * LINE + s / 4u][s % 4u] = of_read[k];
                early[square_of(OF_WRITE, OWN_TEAM) + t * LINE + s / 4u][s % 4u] = of_write[k];
                put_z(z_at(0u, OWN_TEAM, t, s), weight * of_xy[k]);
            }
            barrier();

            float along = 0.0; // x_s . v_s
            if (OWN < SIDE) {
                float inter = 0.0;
                float write = 0.0;
                for (uint q = 0u; q < SIDE / 4u; q++) {
                    inter += dot(cs[OWN * LINE + q], early[square_of(OF_READ, OWN_TEAM) + OWN * LINE + q]);
                    write += dot(bs[OWN * LINE + q], early[square_of(OF_WRITE, OWN_TEAM) + OWN * LINE + q]);
                }
                float before = 0.0;
                for (uint k = 0u; k < SIDE; k++) {
                    put_z(z_at(1u, OWN_TEAM, OWN, k), before);
                    before += steps[OWN_TEAM * SIDE + k] * z_of(z_at(0u, OWN_TEAM, OWN, k));
                    along += z_of(z_at(0u, OWN_TEAM, k, OWN));
                }
                along += keeps[place] * write;
                inters[place] = reads[place] * inter;
                writes[place] = keeps[place] * steps[place] * write;
            }
            ADD_INNER(v, early, square_of(OF_WEIGHT, OWN_TEAM), ups, size)
            float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
            [[unroll]] for (uint a = 0u; a < 4u; a++) {
                uint s = OWN_ROW + 4u * a;
                if (there && s < size && p_own < args.P)
                    store_four_grad_x(args.grad_x_at + (row + s) * args.grad_x_row + h * args.P + p_own, args.P - p_own,
                                      steps[OWN_TEAM * SIDE + s] * v[a] + skip * ups[(OWN_TEAM * SIDE + s) * PITCH + OWN_QUAD]);
            }
            float factor = exp_neg(total_of(OWN_TEAM));
            [[unroll]] for (uint a = 0u; a < 4u; a++) lambda[a] *= factor;
            ADD_OUTER(lambda, cs, reads, ups, size)
            uint own = OWN / 4u;
            uint quad = OWN % 4u;
            for (uint k = 0u; k < size; k++) {
                uint t = OWN_TEAM == 0u ? k : own;
                uint s = OWN_TEAM == 0u ? own : k;
                uint at = t * LINE + s / 4u;
                float u = early[square_of(OF_U, 0u) + at][s % 4u] + early[square_of(OF_U, 1u) + at][s % 4u];
                line_sum += u * (OWN_TEAM == 0u ? cs[k * LINE + quad] : bs[k * LINE + quad]);
            }
            [[unroll]] for (uint k = 0u; k < TEAMS; k++) {
                uint of = k * SIDE + own;
                line_sum += (OWN_TEAM == 0u ? keeps[of] * steps[of] : reads[of]) *
                            early[square_of(OWN_TEAM == 0u ? OF_WRITE : OF_READ, k) + own * LINE + quad];
            }
            barrier();
            if (token) {
                float grad_a = 0.0;
                float later = 0.0;
                float before = 0.0;
                float carry = 0.0;
                for (uint k = 0u; k < SIDE; k++) {
                    uint of = OWN_TEAM * SIDE + k;
                    grad_a += k >= OWN ? z_of(z_at(1u, OWN_TEAM, k, OWN)) : 0.0;
                    later += k >= OWN ? inters[of] : 0.0;
                    before += k < OWN ? writes[of] : 0.0;
                    carry += sums[of];
                }
                grad_a += later + before + factor * carry;
                float grad = along + head.a * grad_a;
                if (!has(args.flags, IS_STEP)) {
                    float soft = softplus(raw);
                    float e = exp_neg(-abs(raw));
                    grad = soft >= args.dt_min && soft <= args.dt_max ? grad * ((raw >= 0.0 ? 1.0 : e) / (1.0 + e)) : 0.0;
                }
                store_grad_dt(args.grad_dt_at + (row + OWN) * args.grad_dt_row + h, grad);
                totals.x += head.a * steps[place] * grad_a;
                totals.y += grad;
            }
            uint n = 4u * quad;
            if (own < size && n < args.N) {
                if (OWN_TEAM == 0u) {
                    store_four_grad_b(args.grad_b_at + (row + own) * args.grad_b_row + g * args.N + n, args.N - n, line_sum);
                } else {
                    uint to = args.grad_c_at + (row + own) * args.grad_c_row + g * args.N + n;
                    if (has(args.flags, IS_ADD)) line_sum += load_four_grad_c(to, args.N - n);
                    store_four_grad_c(to, args.N - n, line_sum);
                }
            }
        }
        float of_a_log = team_sum(totals.x);
        float of_bias = team_sum(totals.y);
        float of_d = team_sum(totals.z);
        if (OWN == 0u && there) {
            plain_of_a_log[b * args.H + h] = of_a_log;
            plain_of_bias[b * args.H + h] = of_bias;
            plain_of_d[b * args.H + h] = of_d;
        }
    }
}
