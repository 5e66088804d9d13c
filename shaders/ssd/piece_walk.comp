#version 460
#extension GL_GOOGLE_include_directive : require
// The scan in one launch for sequences that start without a state: see args.h.
// x, y B L H P; dt B L H; b, c B L G N; a_log, dt_bias, d H; memory B M H N P, raw f32, or with scale B M H N in any float type.
// A workgroup of 128 lanes takes one (b, g) and walks over its chunks with the state in registers: 16 elements of a head a lane, both heads
// of the group side by side (walk.glsl).
// Shared memory: 23,168 bytes.
// Guards: exponents are clamped to <= 0; differences of cumulative log-decays are those of two-float sums; tokens past the chunk, rows past N,
// columns past P and heads past the group count as 0, and nothing of them is read or written.
#include "lib/dart.glsl"
#include "table/ssd_piece.glsl"
READS(dt) READS(a_log) READS(dt_bias) READS(d) WRITES(scale)
#include "ssd.glsl"
#ifdef TILES
#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(b) READS_EIGHT(c)
#else
READS(x) READS(b) READS(c)
#endif
#include "walk.glsl"
WRITES_FOUR(y) WRITES_FOUR(memory)

shared vec4 xs[PANEL];
shared vec4 states[PANEL];            // that enter the chunk; then the squares of the rows of memories, in parts
shared vec4 weights[TEAMS * SQUARE];  // cb_ts E_ts step_s, with lines t
shared vec4 bs[SQUARE];
shared vec4 cs[SQUARE];
shared float written[TEAMS * SIDE];   // keep_s step_s

void main()
{
    uint in_group = args.H / args.G;
    uint place = OWN_TEAM * SIDE + OWN % SIDE; // of token OWN, in what the team has for each token
    uint i = OWN / 8u;                         // of cb a lane makes the lines i and i + 8 ...
    uint j = OWN % 8u;                         // ... at the columns j and j + 8
    uint p_own = 4u * OWN_QUAD;
    uint chunks = (args.L + args.S - 1u) / args.S;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint g = tile % args.G;
        uint b = tile / args.G;
        uint h_first = g * in_group;
        bool both = in_group > 1u;
        bool there = OWN_TEAM == 0u || both;
        uint h = there ? h_first + OWN_TEAM : h_first;
        Head head = head_of(h);
        vec4 held[4];
        [[unroll]] for (uint a = 0u; a < 4u; a++) held[a] = vec4(0.0);
        for (uint chunk = 0u; chunk < chunks; chunk++) {
            uint row = b * args.L + chunk * args.S;
            uint size = min(args.S, args.L - chunk * args.S);
            barrier();
            STAGE_SQUARE(b, bs, row, g, size)
            STAGE_SQUARE(c, cs, row, g, size)
            STAGE_PANEL(x, xs, row, h_first, both, size)
            if (OWN < SIDE) steps[place] = there && OWN < size ? step_of(raw_of(row + OWN, h, head)) : 0.0;
            [[unroll]] for (uint a = 0u; a < 4u; a++)
                states[(OWN_TEAM * SIDE + 4u * OWN_ROW + a) * PITCH + OWN_QUAD] = held[a];
            barrier();

            if (OWN < SIDE) {
                put_cums(head);
                written[place] = keeps[place] * steps[place];
            }
            vec4 of_cb = vec4(0.0); // of line i + 8 a and column j + 8 c, element 2 a + c
            for (uint q = 0u; q < SIDE / 4u; q++) {
                vec4 c_a = cs[i * LINE + q];
                vec4 c_b = cs[(i + 8u) * LINE + q];
                vec4 b_a = bs[j * LINE + q];
                vec4 b_b = bs[(j + 8u) * LINE + q];
                of_cb += vec4(dot(c_a, b_a), dot(c_a, b_b), dot(c_b, b_a), dot(c_b, b_b));
            }
            vec4 sum[4]; // of y, tokens OWN_ROW + 4 a
            [[unroll]] for (uint a = 0u; a < 4u; a++) sum[a] = vec4(0.0);
            ADD_INNER(sum, cs, 0u, states, args.N)
            barrier();
            [[unroll]] for (uint k = 0u; k < 4u; k++) {
                uint t = i + k / 2u * 8u;
                uint s = j + k % 2u * 8u;
                float decay = s <= t ? exp_neg(cum_between(cums[OWN_TEAM * SIDE + s], cums[OWN_TEAM * SIDE + t])) : 0.0;
                weights[OWN_TEAM * SQUARE + t * LINE + s / 4u][s % 4u] = of_cb[k] * decay * steps[OWN_TEAM * SIDE + s];
            }
            vec4 memory[4]; // rows 4 OWN_ROW + a
            [[unroll]] for (uint a = 0u; a < 4u; a++) memory[a] = vec4(0.0);
            ADD_OUTER(memory, bs, written, xs, size)
            float factor = exp_neg(total_of(OWN_TEAM));
            [[unroll]] for (uint a = 0u; a < 4u; a++) held[a] = held[a] * factor + memory[a];
            if (has(args.flags, HAS_SCALE)) {
                [[unroll]] for (uint a = 0u; a < 4u; a++)
                    states[(OWN_TEAM * SIDE + 4u * OWN_ROW + a) * PITCH + OWN_QUAD / 4u][OWN_QUAD % 4u] = dot(memory[a], memory[a]);
            }
            barrier();

            float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
            [[unroll]] for (uint a = 0u; a < 4u; a++) sum[a] *= exp_neg(cums[OWN_TEAM * SIDE + OWN_ROW + 4u * a].x);
            ADD_INNER(sum, weights, OWN_TEAM * SQUARE, xs, size)
            [[unroll]] for (uint a = 0u; a < 4u; a++) {
                uint t = OWN_ROW + 4u * a;
                if (there && t < size && p_own < args.P)
                    store_four_y(args.y_at + (row + t) * args.y_row + h * args.P + p_own, args.P - p_own,
                                 sum[a] + skip * xs[(OWN_TEAM * SIDE + t) * PITCH + OWN_QUAD]);
            }
            [[unroll]] for (uint a = 0u; a < 4u; a++) {
                uint n = 4u * OWN_ROW + a;
                uint to = ((b * args.M + chunk) * args.H + h) * args.N + n;
                bool stored = has(args.flags, HAS_DH) && there && n < args.N;
                float scale = 1.0;
                if (stored && has(args.flags, HAS_SCALE)) {
                    uint from = (OWN_TEAM * SIDE + n) * PITCH;
                    vec4 squares = (states[from] + states[from + 1u]) + (states[from + 2u] + states[from + 3u]);
                    scale = sqrt((squares.x + squares.y + squares.z + squares.w) / float(args.P) + args.eps);
                    if (OWN_QUAD == 0u) store_scale(args.scale_at + to, scale);
                }
                if (stored && p_own < args.P)
                    store_four_memory(args.memory_at + to * args.P + p_own, args.P - p_own, memory[a] / scale);
            }
        }
    }
}
