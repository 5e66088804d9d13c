#version 460
#extension GL_GOOGLE_include_directive : require
// The scan on cooperative matrices, in one launch for sequences that start without a state: see args.h. x, b and c have the matrices' element type;
// N is 16, P a multiple of 16, at most 64, chunks have at most 16 tokens, a group one head or two.
// x, y B L H P; dt B L H; b, c B L G N; a_log, dt_bias, d H; memory B M H N P, raw f32, or with scale B M H N in any float type.
// A workgroup of two subgroups takes one (b, g), a subgroup a head (walk_matrix.glsl), with the state in registers. Of a chunk:
//   weight = c b^T E step + d on the diagonal, (t, s);  y = exp(cum) c state + weight x;  memory = (keep step b)^T x;
//   state = exp(tot) state + memory.
// With QUIET only memory and state of the first `quiet` chunks; other rows take them as any others.
// The subgroups share no memory.
// Shared memory: 25,088 bytes.
// Guards: exponents are clamped to <= 0; differences of cumulative log-decays are those of two-float sums; tokens past the chunk, columns past P
// and heads past the group count as 0; others are read in their place, and nothing of them is written.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "lib/eight.glsl"
#include "table/ssd_piece.glsl"
READS(dt) READS(a_log) READS(dt_bias) READS(d) WRITES(scale) READS_AS(uvec4, quads, x) READS_AS(uvec4, quads, b) READS_AS(uvec4, quads, c)
WRITES_EIGHT(y) WRITES_EIGHT(memory)
#include "ssd.glsl"
#include "ssd/head.glsl"
#define PANELS 2u // the second one is for operands
#define KINDS 8u
#include "walk_matrix.glsl"
const uint OF_SCALE = 7u; // of rows n

// Block k of memory, the state with it, and the squares of its rows.
#define ADD_MEMORY(k, by) { \
        ADD_SPLIT(memory, k, high, low, by, unit) \
        EACH_TILE(n) { \
            uint at = (k) * TILES + n; \
            state[at] = state[at] * factor + memory[at]; \
            squares[n] += memory[at] * memory[at]; \
        } \
    }
// The memory of a chunk goes out, from matrix row `matrix` on.
#define PUT_MEMORY(matrix) { \
        if (has(args.flags, HAS_SCALE)) { \
            STORE_SUM(squares, parts, part_at, QUADS) \
            subgroup_sync(); \
            for (uint n = lane; n < SIDE; n += SUBGROUP_SIZE) { \
                vec4 sum = vec4(0.0); \
                [[unroll]] for (uint q = 0u; q < SIDE / 4u; q++) sum += parts[part_at + n * QUADS + q]; \
                float scale = sqrt((sum.x + sum.y + sum.z + sum.w) / float(args.P) + args.eps); \
                TOKEN(OF_SCALE, own, n) = scale; \
                if (there) store_scale(args.scale_at + matrix + n, scale); \
            } \
            subgroup_sync(); \
            LOAD_OF_ROWS(squares, TOKENS_AT(OF_SCALE, own)) \
        } else { \
            EACH_TILE(n) squares[n] = MatrixSum(1.0); \
        } \
        [[unroll]] for (uint k = 0u; k < BLOCKS; k++) { \
            if (k * SIDE < args.P) { \
                MatrixSum block[TILES]; \
                EACH_TILE(n) block[n] = memory[k * TILES + n] / squares[n]; \
                STORE_SUM(block, parts, part_at, QUADS) \
                subgroup_sync(); \
                for (uint i = lane; i < SIDE * SIDE / 8u; i += SUBGROUP_SIZE) { \
                    uint from = part_at + i / 2u * QUADS + i % 2u * 2u; \
                    if (there) \
                        store_eight_memory(args.memory_at + (matrix + i / 2u) * args.P + k * SIDE + i % 2u * 8u, \
                                           Eight(parts[from], parts[from + 1u])); \
                } \
                subgroup_sync(); \
            } \
        } \
    }

void main()
{
    uint lane = gl_SubgroupInvocationID;
    uint own = gl_SubgroupID;
    uint x_at = own * PANELS * PANEL;
    uint operand_at = x_at + PANEL;
    uint b_at = own * 2u * SQUARE;
    uint c_at = b_at + SQUARE;
    uint gain_at = own * 2u * PANEL;
    uint part_at = own * FLOATS;
    uint in_group = args.H / args.G;
    bool there = own < in_group;
    uint chunks = (args.L + args.S - 1u) / args.S;
    find_places(lane, part_at, true);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint g = tile % args.G;
        uint b = tile / args.G;
        uint h = g * in_group + (there ? own : 0u);
        Head head = head_of(h);
        float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
        MatrixSum state[BLOCKS * TILES];
        [[unroll]] for (uint n = 0u; n < BLOCKS * TILES; n++) state[n] = MatrixSum(0.0);
        uvec4 next_x[WORDS];
        uvec4 next_b[KEY_WORDS];
        uvec4 next_c[KEY_WORDS];
        float next_raw[TOKEN_WORDS];
#define FETCH_CHUNK(chunk) { \
            uint row = b * args.L + (chunk) * args.S; \
            uint size = min(args.S, args.L - (chunk) * args.S); \
            FETCH_PANEL(next_x, x, row, size) \
            FETCH_KEYS(next_b, b, row, size) \
            FETCH_KEYS(next_c, c, row, size) \
            FETCH_STEPS(next_raw, row, size) \
        }
#ifdef QUIET
#define QUIET_CHUNKS args.quiet
#define FETCH_QUIET(chunk) { \
            uint row = b * args.L + (chunk) * args.S; \
            uint size = min(args.S, args.L - (chunk) * args.S); \
            FETCH_PANEL(next_x, x, row, size) \
            FETCH_KEYS(next_b, b, row, size) \
            FETCH_STEPS(next_raw, row, size) \
        }
        if (args.quiet > 0u) FETCH_QUIET(0u)
        for (uint chunk = 0u; chunk < args.quiet; chunk++) {
            uint size = min(args.S, args.L - chunk * args.S);
            uint matrix = ((b * args.M + chunk) * args.H + h) * SIDE;
            subgroup_sync();
            PUT_PANEL(next_x, x_at, size)
            PUT_KEYS(next_b, b_at, size)
            PUT_STEPS(next_raw, size)
            subgroup_sync();
            if (chunk + 1u < args.quiet) FETCH_QUIET(chunk + 1u)
            put_decays(own, lane, head);
            subgroup_sync();
            float unit;
            PUT_SCALED(b_at, OF_WRITTEN, unit, panels, operand_at)
            subgroup_sync();
            float factor = exp_neg(TOKEN(OF_HIGH, own, SIDE - 1u));
            MatrixA high[LEFT_TILES];
            MatrixA low[LEFT_TILES];
            LOAD_LEFT_TURNED(high, panels, operand_at, LINE)
            LOAD_LEFT_TURNED(low, panels, operand_at + SQUARE, LINE)
            MatrixSum memory[BLOCKS * TILES];
            MatrixSum squares[TILES];
            EACH_TILE(n) squares[n] = MatrixSum(0.0);
            [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
                EACH_TILE(n) memory[k * TILES + n] = MatrixSum(0.0);
                if (k * SIDE < args.P) {
                    MatrixB by[RIGHT_TILES];
                    LOAD_RIGHT(by, panels, x_at + 2u * k, PITCH)
                    ADD_MEMORY(k, by)
                }
            }
            if (has(args.flags, HAS_DH)) PUT_MEMORY(matrix)
        }
#else
#define QUIET_CHUNKS 0u
#endif
        if (QUIET_CHUNKS < chunks) FETCH_CHUNK(QUIET_CHUNKS)
        for (uint chunk = QUIET_CHUNKS; chunk < chunks; chunk++) {
            uint row = b * args.L + chunk * args.S;
            uint size = min(args.S, args.L - chunk * args.S);
            uint matrix = ((b * args.M + chunk) * args.H + h) * SIDE;
            subgroup_sync();
            PUT_PANEL(next_x, x_at, size)
            PUT_KEYS(next_b, b_at, size)
            PUT_KEYS(next_c, c_at, size)
            PUT_STEPS(next_raw, size)
            subgroup_sync();
            if (chunk + 1u < chunks) FETCH_CHUNK(chunk + 1u)
            put_decays(own, lane, head);
            MatrixA high[LEFT_TILES];
            MatrixA low[LEFT_TILES];
            float units[BLOCKS];
            [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
                if (k * SIDE < args.P) {
                    MatrixSum block[TILES];
                    EACH_TILE(n) block[n] = state[k * TILES + n];
                    TO_LEFT(block, high, low, units[k], gains, gain_at + 2u * k, PITCH, PANEL)
                    KEEP_LEFT(high, low, gains, gain_at + 2u * k, PITCH, PANEL)
                }
            }
            subgroup_sync();

            float unit;
            PUT_SCALED(b_at, OF_WRITTEN, unit, panels, operand_at)
            float factor = exp_neg(TOKEN(OF_HIGH, own, SIDE - 1u));
            MatrixA of_c[LEFT_TILES];
            MatrixSum weight[TILES];
            {
                MatrixSum cum_s[TILES];
                MatrixSum cum_t[TILES];
                MatrixSum low_s[TILES];
                MatrixSum low_t[TILES];
                MatrixSum step[TILES];
                MatrixB by[RIGHT_TILES];
                LOAD_LEFT(of_c, keys, c_at, LINE)
                LOAD_RIGHT_TURNED(by, keys, b_at, LINE)
                EACH_TILE(n) weight[n] = MatrixSum(0.0);
                ADD_PRODUCT(weight, 0u, of_c, by)
                LOAD_OF_ROWS(cum_t, TOKENS_AT(OF_HIGH, own))
                LOAD_OF_ROWS(low_t, TOKENS_AT(OF_LOW, own))
                LOAD_OF_COLUMNS(cum_s, TOKENS_AT(OF_HIGH, own))
                LOAD_OF_COLUMNS(low_s, TOKENS_AT(OF_LOW, own))
                LOAD_OF_COLUMNS(step, TOKENS_AT(OF_STEP, own))
                EACH_ELEMENT(n, e) {
                    float decay = (places[n] & 1u << e) != 0u ? exp_neg(cum_between(vec2(cum_s[n][e], low_s[n][e]), vec2(cum_t[n][e], low_t[n][e])))
                                                              : 0.0;
                    weight[n][e] = weight[n][e] * decay * step[n][e] + ((places[n] & 65536u << e) != 0u ? skip : 0.0);
                }
            }
            subgroup_sync();
            LOAD_LEFT_TURNED(high, panels, operand_at, LINE)
            LOAD_LEFT_TURNED(low, panels, operand_at + SQUARE, LINE)
            MatrixA high_weight[LEFT_TILES];
            MatrixA low_weight[LEFT_TILES];
            float unit_weight;
            TO_LEFT(weight, high_weight, low_weight, unit_weight, panels, operand_at, LINE, SQUARE)
            LOAD_OF_ROWS(weight, TOKENS_AT(OF_READ, own))
            MatrixSum memory[BLOCKS * TILES];
            MatrixSum squares[TILES];
            EACH_TILE(n) squares[n] = MatrixSum(0.0);
            [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
                EACH_TILE(n) memory[k * TILES + n] = MatrixSum(0.0);
                if (k * SIDE < args.P) {
                    MatrixB by[RIGHT_TILES];
                    MatrixSum block[TILES];
                    EACH_TILE(n) block[n] = MatrixSum(0.0);
                    LOAD_RIGHT(by, gains, gain_at + PANEL + 2u * k, PITCH)
                    ADD_PRODUCT(block, 0u, of_c, by)
                    LOAD_RIGHT(by, gains, gain_at + 2u * k, PITCH)
                    ADD_PRODUCT(block, 0u, of_c, by)
                    EACH_TILE(n) block[n] *= weight[n];
#ifndef MATRIX_BF16
                    EACH_TILE(n) block[n] *= units[k];
#endif
                    LOAD_RIGHT(by, panels, x_at + 2u * k, PITCH)
                    ADD_SPLIT(block, 0u, high_weight, low_weight, by, unit_weight)
                    STORE_SUM(block, parts, part_at, QUADS)
                    ADD_MEMORY(k, by)
                    subgroup_sync();
                    for (uint i = lane; i < SIDE * SIDE / 8u; i += SUBGROUP_SIZE) {
                        uint from = part_at + i / 2u * QUADS + i % 2u * 2u;
                        if (there && i / 2u < size)
                            store_eight_y(args.y_at + (row + i / 2u) * args.y_row + h * args.P + k * SIDE + i % 2u * 8u,
                                          Eight(parts[from], parts[from + 1u]));
                    }
                    subgroup_sync();
                }
            }
            if (has(args.flags, HAS_DH)) PUT_MEMORY(matrix)
        }
    }
}
