#version 460
#extension GL_GOOGLE_include_directive : require
// The backward pass of the scan on cooperative matrices: see args.h. x, b, c and up_y have the matrices' element type; N is 16, P a multiple of 16,
// at most 64, chunks have at most 16 tokens, a group one head or two.
// x, up_y, grad_x B L H P; dt, grad_dt B L H; b, c, grad_b, grad_c B L G N; a_log, dt_bias, d H; up_dh, hin B M H N P; of_a_log, of_bias, of_d B H.
// A workgroup of two subgroups takes one (b, g), a subgroup a head (walk_matrix.glsl). Forwards it computes the state that enters each chunk and
// stores it in hin, component by component, so that each lane later reads what it wrote itself. Backwards it keeps lambda in registers. Of a chunk,
// tokens t and s, rows n, columns p:
//   xy = x up_y^T (s, t);  read = hin up_y^T (n, t);  G = lambda + up_dh;  write = G x^T (n, s);  cb = b c^T (s, t);
//   weight = cb E, z = weight xy, u = E step xy, all (s, t);  lambda = exp(tot) lambda + (exp(cum) c)^T up_y;
//   grad_x = keep step b G + (step weight + d on the diagonal) up_y;
//   grad_b = sum u c + sum keep step write^T, grad_c = sum u^T b + sum exp(cum) read^T, sums over the heads: one subgroup makes grad_b, one grad_c.
// With QUIET a second loop over the first `quiet` chunks, without up_y, leaves out xy, read, cb, weight and u; other rows take them as any others,
// since the loop costs all chunks registers.
// f32 operands are split (walk_matrix.glsl), so that only they err by more than f32 does; sums over n and over pairs for grad_dt are taken by lanes.
// Shared memory: 25,472 bytes.
// Guards: exponents are clamped to <= 0; differences of cumulative log-decays are those of two-float sums; no sum is the difference of two others;
// tokens past the chunk, columns past P and heads past the group count as 0; others are read in their place, and nothing of them is written.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "lib/eight.glsl"
#include "table/ssd_backward_walk.glsl"
READS(dt) READS(a_log) READS(dt_bias) READS(d) READS(seq) WRITES(grad_dt)
READS_AS(uvec4, quads, x) READS_AS(uvec4, quads, b) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, up_y) READS_AS(vec4, quads, up_dh)
READS_WRITES_AS(vec4, quads, hin) READS_WRITES_AS(float, plain, hin) WRITES_EIGHT(grad_x) WRITES_EIGHT(grad_b)
READS_WRITES_AS(uvec4, quads, grad_c)
// Bindings after the 16th have no dtype.
WRITES_AS(float, plain, of_a_log) WRITES_AS(float, plain, of_bias) WRITES_AS(float, plain, of_d)
#define PACKS
#include "lib/seq.glsl"
#include "ssd.glsl"
#include "ssd/head.glsl"
#define PANELS 2u
#define KINDS 11u
#include "walk_matrix.glsl"
#include "backward_walk_matrix.glsl"

#ifdef QUIET
#define QUIET_CHUNKS args.quiet
#else
#define QUIET_CHUNKS 0u
#endif
// The state that enters a chunk, and up_dh: asked for ahead of what needs them.
#define ASK_FOR_STATES(matrix) \
    MatrixSum entering[BLOCKS * TILES]; \
    MatrixSum gained[BLOCKS * TILES]; \
    [[unroll]] for (uint k = 0u; k < BLOCKS; k++) { \
        MatrixSum block[TILES]; \
        EACH_TILE(n) block[n] = MatrixSum(0.0); \
        if (there && k * SIDE < args.P) { LOAD_STATE((matrix) + k * SIDE * SIDE, block) } \
        EACH_TILE(n) { \
            entering[k * TILES + n] = block[n]; \
            block[n] = MatrixSum(0.0); \
        } \
        if (there && has(args.flags, HAS_DH) && k * SIDE < args.P) { \
            LOAD_SUM(block, quads_up_dh, (args.up_dh_at + (matrix)) / 4u + k * SIDE / 4u, args.P / 4u) \
        } \
        EACH_TILE(n) gained[k * TILES + n] = block[n]; \
    }
// Block k of grad_x, from parts.
#define PUT_GRAD_X(k) \
    for (uint i = lane; i < SIDE * SIDE / 8u; i += SUBGROUP_SIZE) { \
        uint from = part_at + i / 2u * QUADS + i % 2u * 2u; \
        if (there && i / 2u < size) \
            put_grad_x(args.grad_x_at + (row + i / 2u) * args.grad_x_row + h * args.P + (k) * SIDE + i % 2u * 8u, parts[from], \
                       parts[from + 1u]); \
    }

void main()
{
    uint lane = gl_SubgroupInvocationID;
    uint own = gl_SubgroupID;
    uint x_at = own * PANELS * PANEL;
    uint y_at = x_at + PANEL;
    uint b_at = own * 2u * SQUARE;
    uint c_at = b_at + SQUARE;
    uint gain_at = own * 2u * PANEL;
    uint part_at = own * FLOATS;
    uint in_group = args.H / args.G;
    bool there = own < in_group;
    find_places(lane, part_at, false);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint g = tile % args.G;
        uint b = tile / args.G;
        Sequence sequence = sequence_of(b);
        uint chunks = (sequence.count + args.S - 1u) / args.S;
        uint slots = slot_of(sequence, b, args.M, args.S);
        uint h = g * in_group + (there ? own : 0u);
        Head head = head_of(h);
        float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
        MatrixSum lambda[BLOCKS * TILES]; // forwards: the entering state
        MatrixA high[LEFT_TILES];
        MatrixA low[LEFT_TILES];
        float unit;
        uvec4 next_x[WORDS];
        uvec4 next_y[WORDS];
        uvec4 next_b[KEY_WORDS];
        uvec4 next_c[KEY_WORDS];
        float next_raw[TOKEN_WORDS];
#define FETCH_STATE(chunk) { \
            uint row = sequence.row + (chunk) * args.S; \
            FETCH_PANEL(next_x, x, row, args.S) \
            FETCH_KEYS(next_b, b, row, args.S) \
            FETCH_STEPS(next_raw, row, args.S) \
        }
        barrier();
        [[unroll]] for (uint n = 0u; n < BLOCKS * TILES; n++) lambda[n] = MatrixSum(0.0);
        if (chunks > 1u) FETCH_STATE(0u)
        for (uint chunk = 0u; chunk < chunks; chunk++) {
            uint matrix = ((slots + chunk) * args.H + h) * SIDE * args.P;
            [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
                MatrixSum block[TILES];
                EACH_TILE(n) block[n] = lambda[k * TILES + n];
                if (there && k * SIDE < args.P) { STORE_STATE(matrix + k * SIDE * SIDE, block) }
            }
            if (chunk + 1u == chunks) break;
            subgroup_sync();
            PUT_PANEL(next_x, x_at, args.S)
            PUT_KEYS(next_b, b_at, args.S)
            PUT_STEPS(next_raw, args.S)
            subgroup_sync();
            if (chunk + 2u < chunks) FETCH_STATE(chunk + 1u)
            put_decays(own, lane, head);
            subgroup_sync();
            PUT_SCALED(b_at, OF_WRITTEN, unit, gains, gain_at)
            subgroup_sync();
            LOAD_LEFT_TURNED(high, gains, gain_at, LINE)
            LOAD_LEFT_TURNED(low, gains, gain_at + SQUARE, LINE)
            float factor = exp_neg(TOKEN(OF_HIGH, own, SIDE - 1u));
            [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
                if (k * SIDE < args.P) {
                    MatrixB x[RIGHT_TILES];
                    LOAD_RIGHT(x, panels, x_at + 2u * k, PITCH)
                    EACH_TILE(n) lambda[k * TILES + n] *= factor;
                    ADD_SPLIT(lambda, k, high, low, x, unit)
                }
            }
        }

        vec3 totals = vec3(0.0); // over the lane's tokens, for a_log and dt_bias, and over its elements xy, for d
#define FETCH_CHUNK(chunk) { \
            uint row = sequence.row + (chunk) * args.S; \
            uint size = min(args.S, sequence.count - (chunk) * args.S); \
            FETCH_PANEL(next_x, x, row, size) \
            FETCH_PANEL(next_y, up_y, row, size) \
            FETCH_KEYS(next_b, b, row, size) \
            FETCH_KEYS(next_c, c, row, size) \
            FETCH_STEPS(next_raw, row, size) \
        }
        [[unroll]] for (uint n = 0u; n < BLOCKS * TILES; n++) lambda[n] = MatrixSum(0.0);
        if (chunks > QUIET_CHUNKS) FETCH_CHUNK(chunks - 1u)
        for (uint chunk = chunks; chunk-- > QUIET_CHUNKS;) {
            uint row = sequence.row + chunk * args.S;
            uint size = min(args.S, sequence.count - chunk * args.S);
            ASK_FOR_STATES(((slots + chunk) * args.H + h) * SIDE * args.P)
            barrier(); // the squares of the chunk before lie where x and up_y go
            PUT_PANEL(next_x, x_at, size)
            PUT_PANEL(next_y, y_at, size)
            PUT_KEYS(next_b, b_at, size)
            PUT_KEYS(next_c, c_at, size)
            PUT_STEPS(next_raw, size)
            subgroup_sync();
            put_decays(own, lane, head);

            float carry = 0.0;
            float units[BLOCKS];
            MatrixSum xy[TILES];
            MatrixSum of_read[TILES];
            MatrixSum of_write[TILES];
            EACH_TILE(n) {
                xy[n] = MatrixSum(0.0);
                of_read[n] = MatrixSum(0.0);
                of_write[n] = MatrixSum(0.0);
            }
            [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
                if (k * SIDE < args.P) {
                    MatrixSum block[TILES];
                    EACH_TILE(n) block[n] = entering[k * TILES + n];
                    EACH_ELEMENT(n, e) carry += block[n][e] * lambda[k * TILES + n][e];
                    MatrixB by[RIGHT_TILES];
                    LOAD_RIGHT_TURNED(by, panels, y_at + 2u * k, PITCH)
                    LOAD_LEFT(high, panels, x_at + 2u * k, PITCH)
                    ADD_PRODUCT(xy, 0u, high, by)
                    TO_LEFT(block, high, low, unit, gains, gain_at + 2u * k, PITCH, PANEL)
                    ADD_SPLIT(of_read, 0u, high, low, by, unit)
                    EACH_TILE(n) block[n] = gained[k * TILES + n] + lambda[k * TILES + n];
                    TO_LEFT(block, high, low, units[k], gains, gain_at + 2u * k, PITCH, PANEL)
                    KEEP_LEFT(high, low, gains, gain_at + 2u * k, PITCH, PANEL)
                    LOAD_RIGHT_TURNED(by, panels, x_at + 2u * k, PITCH)
                    ADD_SPLIT(of_write, 0u, high, low, by, units[k])
                }
            }
            carry = subgroupAdd(carry);
            subgroup_sync();

            PUT_SCALED(c_at, OF_READ, unit, panels, x_at) // x is used up
            float factor = exp_neg(TOKEN(OF_HIGH, own, SIDE - 1u));
            MatrixA of_b[LEFT_TILES];
            MatrixSum weight[TILES];
            MatrixSum of_u[TILES];
            {
                MatrixSum cum_s[TILES];
                MatrixSum cum_t[TILES];
                MatrixSum low_s[TILES];
                MatrixSum low_t[TILES];
                MatrixSum step[TILES];
                MatrixB by[RIGHT_TILES];
                LOAD_LEFT(of_b, keys, b_at, LINE)
                LOAD_RIGHT_TURNED(by, keys, c_at, LINE)
                EACH_TILE(n) weight[n] = MatrixSum(0.0);
                ADD_PRODUCT(weight, 0u, of_b, by)
                LOAD_OF_ROWS(cum_s, TOKENS_AT(OF_HIGH, own))
                LOAD_OF_ROWS(low_s, TOKENS_AT(OF_LOW, own))
                LOAD_OF_COLUMNS(cum_t, TOKENS_AT(OF_HIGH, own))
                LOAD_OF_COLUMNS(low_t, TOKENS_AT(OF_LOW, own))
                LOAD_OF_ROWS(step, TOKENS_AT(OF_STEP, own))
                EACH_ELEMENT(n, e) {
                    float along = xy[n][e];
                    bool same = (places[n] & 65536u << e) != 0u;
                    float decay = (places[n] & 1u << e) != 0u ? exp_neg(cum_between(vec2(cum_s[n][e], low_s[n][e]), vec2(cum_t[n][e], low_t[n][e])))
                                                              : 0.0;
                    float scaled = weight[n][e] * decay;
                    totals.z += same ? along : 0.0;
                    of_u[n][e] = decay * step[n][e] * along;
                    weight[n][e] = step[n][e] * scaled + (same ? skip : 0.0);
                    xy[n][e] = scaled * along;
                }
            }
            STORE_SUM(xy, parts, part_at, QUADS)
            subgroup_sync();
            LOAD_LEFT_TURNED(high, panels, x_at, LINE)
            LOAD_LEFT_TURNED(low, panels, x_at + SQUARE, LINE)
            put_sums_of_pairs(own, lane, part_at);
            subgroup_sync();

            MatrixA high_weight[LEFT_TILES];
            MatrixA low_weight[LEFT_TILES];
            float unit_weight;
            TO_LEFT(weight, high_weight, low_weight, unit_weight, panels, x_at, LINE, SQUARE)
            LOAD_OF_ROWS(weight, TOKENS_AT(OF_WRITTEN, own))
            [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
                if (k * SIDE < args.P) {
                    MatrixB by[RIGHT_TILES];
                    MatrixSum block[TILES];
                    EACH_TILE(n) block[n] = MatrixSum(0.0);
                    LOAD_RIGHT(by, gains, gain_at + PANEL + 2u * k, PITCH)
                    ADD_PRODUCT(block, 0u, of_b, by)
                    LOAD_RIGHT(by, gains, gain_at + 2u * k, PITCH)
                    ADD_PRODUCT(block, 0u, of_b, by)
                    EACH_TILE(n) block[n] *= weight[n];
#ifndef MATRIX_BF16
                    EACH_TILE(n) block[n] *= units[k];
#endif
                    LOAD_RIGHT(by, panels, y_at + 2u * k, PITCH)
                    ADD_SPLIT(block, 0u, high_weight, low_weight, by, unit_weight)
                    STORE_SUM(block, parts, part_at, QUADS)
                    EACH_TILE(n) lambda[k * TILES + n] *= factor;
                    ADD_SPLIT(lambda, k, high, low, by, unit)
                    subgroup_sync();
                    PUT_GRAD_X(k)
                    subgroup_sync();
                }
            }
            STORE_SUM_TURNED(of_write, panels, SQUARE_AT(0u, own), QUADS)
            STORE_SUM_TURNED(of_read, panels, SQUARE_AT(1u, own), QUADS)
            STORE_SUM(of_u, panels, SQUARE_AT(OF_U, own), QUADS)
            if (chunk > QUIET_CHUNKS) FETCH_CHUNK(chunk - 1u)
            barrier();

            // Subgroup 0: grad_b; subgroup 1: grad_c.
            for (uint i = lane; i < 2u * SIDE; i += SUBGROUP_SIZE)
                TOKEN(OF_SUMS + i / SIDE, own, i % SIDE) =
                    dot_row(SQUARE_AT(i / SIDE, own) + i % SIDE * QUADS, b_at + i / SIDE * SQUARE + i % SIDE * LINE);
            if (own == 0u) {
                LOAD_SUM(xy, panels, SQUARE_AT(OF_U, 0u), QUADS)
                LOAD_SUM(of_u, panels, SQUARE_AT(OF_U, 1u), QUADS)
            } else {
                LOAD_SUM_TURNED(xy, panels, SQUARE_AT(OF_U, 0u), QUADS)
                LOAD_SUM_TURNED(of_u, panels, SQUARE_AT(OF_U, 1u), QUADS)
            }
            EACH_TILE(n) {
                of_u[n] += xy[n];
                xy[n] = MatrixSum(0.0);
            }
            TO_LEFT(of_u, high, low, unit, gains, gain_at, LINE, SQUARE)
            {
                MatrixB by[RIGHT_TILES];
                LOAD_RIGHT(by, keys, own == 0u ? c_at : b_at, LINE)
                ADD_SPLIT(xy, 0u, high, low, by, unit)
            }
            STORE_SUM(xy, parts, part_at, QUADS)
            subgroup_sync();
            put_group_grads(own, lane, part_at, row, size, g);
            for (uint t = lane; t < size; t += SUBGROUP_SIZE) {
                float grad_a = token_grad_a(own, t) + factor * carry;
                float along = TOKEN(OF_ALONG, own, t) + TOKEN(OF_KEEP, own, t) * TOKEN(OF_SUMS, own, t);
                float grad = through_step(TOKEN(OF_RAW, own, t), along + head.a * grad_a);
                if (there) store_grad_dt(args.grad_dt_at + (row + t) * args.grad_dt_row + h, grad);
                totals.x += head.a * TOKEN(OF_STEP, own, t) * grad_a;
                totals.y += grad;
            }
        }

#ifdef QUIET
        // Chunks without up_y: no pairs of tokens, and nothing reads the state.
#define FETCH_QUIET(chunk) { \
            uint row = sequence.row + (chunk) * args.S; \
            uint size = min(args.S, sequence.count - (chunk) * args.S); \
            FETCH_PANEL(next_x, x, row, size) \
            FETCH_KEYS(next_b, b, row, size) \
            FETCH_STEPS(next_raw, row, size) \
        }
        if (args.quiet > 0u) FETCH_QUIET(args.quiet - 1u)
        for (uint chunk = args.quiet; chunk-- > 0u;) {
            uint row = sequence.row + chunk * args.S;
            uint size = min(args.S, sequence.count - chunk * args.S);
            ASK_FOR_STATES(((slots + chunk) * args.H + h) * SIDE * args.P)
            barrier(); // the squares of the chunk before lie where x goes
            PUT_PANEL(next_x, x_at, size)
            PUT_KEYS(next_b, b_at, size)
            PUT_STEPS(next_raw, size)
            subgroup_sync();
            if (chunk > 0u) FETCH_QUIET(chunk - 1u)
            put_decays(own, lane, head);

            float carry = 0.0;
            float units[BLOCKS];
            MatrixSum of_write[TILES];
            EACH_TILE(n) of_write[n] = MatrixSum(0.0);
            [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
                if (k * SIDE < args.P) {
                    MatrixSum block[TILES];
                    MatrixB by[RIGHT_TILES];
                    EACH_TILE(n) block[n] = entering[k * TILES + n];
                    EACH_ELEMENT(n, e) carry += block[n][e] * lambda[k * TILES + n][e];
                    EACH_TILE(n) block[n] = gained[k * TILES + n] + lambda[k * TILES + n];
                    TO_LEFT(block, high, low, units[k], gains, gain_at + 2u * k, PITCH, PANEL)
                    KEEP_LEFT(high, low, gains, gain_at + 2u * k, PITCH, PANEL)
                    LOAD_RIGHT_TURNED(by, panels, x_at + 2u * k, PITCH)
                    ADD_SPLIT(of_write, 0u, high, low, by, units[k])
                }
            }
            carry = subgroupAdd(carry);
            subgroup_sync();

            float factor = exp_neg(TOKEN(OF_HIGH, own, SIDE - 1u));
            MatrixA of_b[LEFT_TILES];
            MatrixSum written[TILES];
            LOAD_LEFT(of_b, keys, b_at, LINE)
            LOAD_OF_ROWS(written, TOKENS_AT(OF_WRITTEN, own))
            STORE_SUM_TURNED(of_write, panels, SQUARE_AT(0u, own), QUADS) // x is used up
            [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
                if (k * SIDE < args.P) {
                    MatrixB by[RIGHT_TILES];
                    MatrixSum block[TILES];
                    EACH_TILE(n) block[n] = MatrixSum(0.0);
                    LOAD_RIGHT(by, gains, gain_at + PANEL + 2u * k, PITCH)
                    ADD_PRODUCT(block, 0u, of_b, by)
                    LOAD_RIGHT(by, gains, gain_at + 2u * k, PITCH)
                    ADD_PRODUCT(block, 0u, of_b, by)
                    EACH_TILE(n) block[n] *= written[n];
#ifndef MATRIX_BF16
                    EACH_TILE(n) block[n] *= units[k];
#endif
                    EACH_TILE(n) lambda[k * TILES + n] *= factor;
                    STORE_SUM(block, parts, part_at, QUADS)
                    subgroup_sync();
                    PUT_GRAD_X(k)
                    subgroup_sync();
                }
            }
            barrier();

            for (uint t = lane; t < SIDE; t += SUBGROUP_SIZE) TOKEN(OF_SUMS, own, t) = dot_row(SQUARE_AT(0u, own) + t * QUADS, b_at + t * LINE);
            subgroup_sync();
            put_quiet_grads(own, lane, row, size, g);
            for (uint t = lane; t < size; t += SUBGROUP_SIZE) {
                float grad_a = quiet_grad_a(own, t) + factor * carry;
                float grad = through_step(TOKEN(OF_RAW, own, t), TOKEN(OF_KEEP, own, t) * TOKEN(OF_SUMS, own, t) + head.a * grad_a);
                if (there) store_grad_dt(args.grad_dt_at + (row + t) * args.grad_dt_row + h, grad);
                totals.x += head.a * TOKEN(OF_STEP, own, t) * grad_a;
                totals.y += grad;
            }
        }
#endif
        totals = subgroupAdd(totals);
        if (lane == 0u && there) {
            plain_of_a_log[b * args.H + h] = totals.x;
            plain_of_bias[b * args.H + h] = totals.y;
            plain_of_d[b * args.H + h] = totals.z;
        }
    }
}
