#version 460
#extension GL_GOOGLE_include_directive : require
// grad_dh = Y + rho (X - u mean_p(X u)) on cooperative matrices, with X = sum slope qn^T en and Y = sum g c^T up_r over the tokens that see the
// memory, u the row as stored and rho = 1 / factor: see args.h. c, dh and up_r have the matrices' element type; memories are normalised; N and P are
// multiples of 16, P at most 64.
// qn, c B L G N; en B L G P; up_r B L H P; g, slope B L H M; dh, grad_dh B M H N P; factor B M H N. A workgroup takes T0 of the rows m N + n of a
// (b, h), a subgroup OWN = 16 of them, which belong to one memory. STEP tokens of en and up_r at a time lie in shared memory, while the next ones are
// fetched into registers. Each subgroup makes its left operands slope qn and g c there, UNIT tokens at a time, with
// -DAHEAD from numbers fetched while the products of the unit before are made. X and Y are f32.
// Shared memory: 32 STEP PITCH + SUBGROUPS (32 UNIT BY_PITCH + 16 OWN PART_PITCH) bytes, 20,480 with T0 64.
// Guards: tokens past the count are not read and count as 0; g and slope of what a token does not see are not read and count as 0.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "table/sma_backward_rows.glsl"
READS_AS(vec4, fours, qn) READS_AS(vec4, fours, en) READS_AS(uvec4, quads, c) READS(g) READS(slope) READS_AS(uvec4, quads, dh) READS(factor)
READS(seq) READS_AS(uvec4, quads, up_r) WRITES_AS(vec4, fours, grad_dh)
#define PACKS
#include "lib/seq.glsl"
#include "sma/backward.glsl"

const uint OWN = T0 / SUBGROUPS;                // rows of a subgroup
const uint WIDTH = 64u;                         // the most columns P
const uint STEP = 32u;
const uint UNIT = 16u;
const uint PITCH = WIDTH / 8u + 1u;             // 16-byte words from one row of en or up_r to the next
const uint BY_PITCH = OWN / 8u + 1u;            // ... from one token of a left operand to the next
const uint PIECE = 16u;                         // columns of X or Y that pass through shared memory at once
const uint PART_PITCH = PIECE / 4u + 1u;
const uint FETCH = (STEP * WIDTH / 8u + LANES - 1u) / LANES;
const uint ITEMS = (2u * UNIT + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE; // eighths of a lane: a token or a row has two
const uint ROW_TILES = OWN / MATRIX_M;
const uint COLUMN_TILES = WIDTH / MATRIX_N;
const uint PIECE_TILES = PIECE / MATRIX_N;
shared uvec4 verifier[STEP * PITCH];            // en
shared uvec4 incoming[STEP * PITCH];            // up_r
shared uvec4 left[SUBGROUPS * 2u * UNIT * BY_PITCH]; // slope qn of the tokens, then g c
shared vec4 parts[SUBGROUPS * OWN * PART_PITCH];

MatrixSum sum_x[ROW_TILES][COLUMN_TILES];
MatrixSum sum_y[ROW_TILES][COLUMN_TILES];
vec4 next_e[2u * FETCH];
uvec4 next_r[FETCH];

uvec4 pack_eight(vec4 low, vec4 high)
{
    return uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w), pack_elements(high.x, high.y), pack_elements(high.z, high.w));
}

// en and up_r of STEP tokens from t_first on, of which `end` - t_first are there, on their way to shared memory.
void fetch(Sequence own, uint t_first, uint h, uint group)
{
    uint width = args.P / 8u;
    [[unroll]] for (uint x = 0u; x < FETCH; x++) {
        uint i = LANE + x * LANES;
        uint t = t_first + i / width;
        bool live = i < STEP * width && t < own.count;
        uint row = own.row + t;
        uint e_at = (row * args.G + group) * args.P / 4u + i % width * 2u;
        next_e[2u * x] = live ? fours_en[e_at] : vec4(0.0);
        next_e[2u * x + 1u] = live ? fours_en[e_at + 1u] : vec4(0.0);
        next_r[x] = live ? quads_up_r[(args.up_r_at + row * args.up_r_row + h * args.P) / 8u + i % width] : uvec4(0u);
    }
}
void put()
{
    uint width = args.P / 8u;
    [[unroll]] for (uint x = 0u; x < FETCH; x++) {
        uint i = LANE + x * LANES;
        if (i >= STEP * width) continue;
        verifier[i / width * PITCH + i % width] = pack_eight(next_e[2u * x], next_e[2u * x + 1u]);
        incoming[i / width * PITCH + i % width] = next_r[x];
    }
}

// What a unit's left operands are made of, a lane's part: of tokens from t_unit on that see memory m, before `own` has ended.
float next_slope[ITEMS];
float next_weight[ITEMS];
vec4 next_q[2u * ITEMS];
uvec4 next_c[ITEMS];
void fetch_unit(Sequence own, uint lane, uint t_unit, uint begin, uint h, uint group, uint m, uint n)
{
    [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
        uint item = lane + x * SUBGROUP_SIZE;
        uint t = t_unit + item / 2u;
        next_slope[x] = 0.0;
        next_weight[x] = 0.0;
        next_q[2u * x] = vec4(0.0);
        next_q[2u * x + 1u] = vec4(0.0);
        next_c[x] = uvec4(0u);
        if (item < 2u * UNIT && t >= begin && t < own.count) {
            uint row = own.row + t;
            uint at = (row * args.H + h) * args.M + m;
            uint q_at = ((row * args.G + group) * args.N + n) / 4u + item % 2u * 2u;
            next_slope[x] = load_slope(at);
            next_weight[x] = load_g(at);
            next_q[2u * x] = fours_qn[q_at];
            next_q[2u * x + 1u] = fours_qn[q_at + 1u];
            next_c[x] = quads_c[(args.c_at + row * args.c_row + group * args.N + n) / 8u + item % 2u];
        }
    }
}

// A piece of X or Y, in its place among the parts.
void put_piece(uint part, uint piece, bool of_y)
{
    subgroup_sync();
    [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) {
        if (j / PIECE_TILES == piece) {
            [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
                uint to = part + i * MATRIX_M * PART_PITCH + j % PIECE_TILES * MATRIX_N / 4u;
                if (of_y) coopMatStore(sum_y[i][j], parts, to, PART_PITCH, ROW_MAJOR);
                else coopMatStore(sum_x[i][j], parts, to, PART_PITCH, ROW_MAJOR);
            }
        }
    }
    subgroup_sync();
}

void main()
{
    uint s = gl_SubgroupID;
    uint lane = gl_SubgroupInvocationID;
    uint left_at = s * 2u * UNIT * BY_PITCH;
    uint part = s * OWN * PART_PITCH;
    uint blocks = (args.M * args.N + T0 - 1u) / T0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile % blocks * T0;
        uint h = tile / blocks % args.H;
        uint b = tile / blocks / args.H;
        uint group = h / (args.H / args.G);
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        // Memories that there is room for: of packed sequences those of their own chunks, for all others M.
        uint room = (has(args.flags, HAS_CU) ? min((count + args.S - 1u) / args.S, args.M) : args.M) * args.N;
        if (first >= room) continue;
        uint own_row = first + s * OWN;
        uint own_m = own_row / args.N;
        uint own_n = own_row % args.N;
        uint own_begin = own_row < room ? min(first_to_see(sequence.position, own_m), count) : count;
        [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
            [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) {
                sum_x[i][j] = MatrixSum(0.0);
                sum_y[i][j] = MatrixSum(0.0);
            }
        }
        uint t_first = first_to_see(sequence.position, first / args.N);
        fetch(sequence, t_first, h, group);
#ifdef AHEAD
        fetch_unit(sequence, lane, t_first, own_begin, h, group, own_m, own_n);
#endif
        for (; t_first < count; t_first += STEP) {
            barrier();
            put();
            barrier();
            if (t_first + STEP < count) fetch(sequence, t_first + STEP, h, group);
            for (uint unit = 0u; unit < STEP; unit += UNIT) {
                uint t_unit = t_first + unit;
                if (t_unit >= count) continue;
                if (t_unit + UNIT <= own_begin) {
#ifdef AHEAD
                    fetch_unit(sequence, lane, t_unit + UNIT, own_begin, h, group, own_m, own_n);
#endif
                    continue;
                }
#ifndef AHEAD
                fetch_unit(sequence, lane, t_unit, own_begin, h, group, own_m, own_n);
#endif
                [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
                    uint item = lane + x * SUBGROUP_SIZE;
                    if (item >= 2u * UNIT) continue;
                    uvec4 words = next_c[x];
                    left[left_at + item / 2u * BY_PITCH + item % 2u] =
                        pack_eight(next_slope[x] * next_q[2u * x], next_slope[x] * next_q[2u * x + 1u]);
                    left[left_at + (UNIT + item / 2u) * BY_PITCH + item % 2u] =
                        pack_eight(next_weight[x] * vec4(unpack_elements(words.x), unpack_elements(words.y)),
                                   next_weight[x] * vec4(unpack_elements(words.z), unpack_elements(words.w)));
                }
#ifdef AHEAD
                fetch_unit(sequence, lane, t_unit + UNIT, own_begin, h, group, own_m, own_n);
#endif
                subgroup_sync();
                [[unroll]] for (uint k = 0u; k < UNIT; k += MATRIX_K) {
                    MatrixA by_x[ROW_TILES];
                    MatrixA by_y[ROW_TILES];
                    [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
                        coopMatLoad(by_x[i], left, left_at + k * BY_PITCH + i * MATRIX_M / 8u, BY_PITCH, COLUMN_MAJOR);
                        coopMatLoad(by_y[i], left, left_at + (UNIT + k) * BY_PITCH + i * MATRIX_M / 8u, BY_PITCH, COLUMN_MAJOR);
                    }
                    [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) {
                        if (j * MATRIX_N < args.P) {
                            MatrixB of;
                            coopMatLoad(of, verifier, (unit + k) * PITCH + j * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                            [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) sum_x[i][j] = coopMatMulAdd(by_x[i], of, sum_x[i][j]);
                            coopMatLoad(of, incoming, (unit + k) * PITCH + j * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                            [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) sum_y[i][j] = coopMatMulAdd(by_y[i], of, sum_y[i][j]);
                        }
                    }
                }
                subgroup_sync();
            }
        }

        // A lane has eight columns of a row of each piece.
        if (own_row >= room) continue;
        bool live = own_begin < count;
        uint row = ((slot_of(sequence, b, args.M, args.S) + own_m) * args.H + h) * args.N + own_n;
        float along[ITEMS];
        [[unroll]] for (uint x = 0u; x < ITEMS; x++) along[x] = 0.0;
        [[unroll]] for (uint piece = 0u; piece < WIDTH / PIECE; piece++) {
            if (piece * PIECE < args.P && live) {
                put_piece(part, piece, false);
                [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
                    uint item = lane + x * SUBGROUP_SIZE;
                    if (item >= 2u * OWN) continue;
                    uint at = part + item / 2u * PART_PITCH + item % 2u * 2u;
                    uvec4 words = quads_dh[(args.dh_at + (row + item / 2u) * args.P + piece * PIECE) / 8u + item % 2u];
                    along[x] += dot(parts[at], vec4(unpack_elements(words.x), unpack_elements(words.y))) +
                                dot(parts[at + 1u], vec4(unpack_elements(words.z), unpack_elements(words.w)));
                }
            }
        }
        subgroup_sync();
        [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
            uint item = lane + x * SUBGROUP_SIZE;
            if (item < 2u * OWN) parts[part + item / 4u][item % 4u] = along[x];
        }
        subgroup_sync();
        float rho[ITEMS];
        [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
            uint item = min(lane + x * SUBGROUP_SIZE, 2u * OWN - 1u);
            vec4 two = parts[part + item / 4u];
            along[x] = (item % 4u < 2u ? two.x + two.y : two.z + two.w) / float(args.P);
            rho[x] = live ? 1.0 / load_factor(args.factor_at + row + item / 2u) : 0.0;
        }
        [[unroll]] for (uint piece = 0u; piece < WIDTH / PIECE; piece++) {
            if (piece * PIECE < args.P) {
                vec4 value[2u * ITEMS];
                put_piece(part, piece, false);
                [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
                    uint item = min(lane + x * SUBGROUP_SIZE, 2u * OWN - 1u);
                    uint at = part + item / 2u * PART_PITCH + item % 2u * 2u;
                    uvec4 words = uvec4(0u);
                    if (live) words = quads_dh[(args.dh_at + (row + item / 2u) * args.P + piece * PIECE) / 8u + item % 2u];
                    value[2u * x] = rho[x] * (parts[at] - along[x] * vec4(unpack_elements(words.x), unpack_elements(words.y)));
                    value[2u * x + 1u] = rho[x] * (parts[at + 1u] - along[x] * vec4(unpack_elements(words.z), unpack_elements(words.w)));
                }
                put_piece(part, piece, true);
                [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
                    uint item = lane + x * SUBGROUP_SIZE;
                    if (item >= 2u * OWN) continue;
                    uint at = part + item / 2u * PART_PITCH + item % 2u * 2u;
                    uint to = (args.grad_dh_at + (row + item / 2u) * args.P + piece * PIECE) / 4u + item % 2u * 2u;
                    fours_grad_dh[to] = value[2u * x] + parts[at];
                    fours_grad_dh[to + 1u] = value[2u * x + 1u] + parts[at + 1u];
                }
            }
        }
    }
}
