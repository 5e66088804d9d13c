#version 460
#extension GL_GOOGLE_include_directive : require
// attention_backward_k (-DOF_KEYS) and attention_backward_q on cooperative matrices, for heads of a multiple of 16 up to HEAD (64 unless defined)
// and operands of the matrices' element type (args.h). With own rows x, y and passing rows X, Y (k, v and q, up_o for the keys; q, up_o and k, v
// for the queries):
//   w = exp(scale x X^T - lse), u = w (y Y^T - dot);  keys: grad_v = w Y, grad_k = scale u X;  queries: grad_q = scale u X.
// One workgroup takes T0 own tokens of a (b, head or group), R tiles of MATRIX_M rows a subgroup, and BLOCK passing tokens at a time, whose rows go
// through shared memory while the next ones are fetched into registers. Own rows x (with -DHOLDS_Y y, too), w, u and sums stay in matrices of the
// subgroup: a component of an accumulator has the row and column of that component of any other, so that lse, dot, rows and columns are matrices,
// too.
// w and u become left operands by conversion with -DMATRIX2, else through shared memory; each is rounded once, sums are f32.
// T0 is a multiple of SUBGROUPS MATRIX_M, MATRIX_K one of MATRIX_N (equal with -DMATRIX2), SUBGROUP_SIZE >= MATRIX_M.
// Shared memory, with HEAD 64: 296 BLOCK + 144 T0 + 4 SUBGROUPS MATRIX_M MATRIX_K (half as much again without -DMATRIX2) + 4 MATRIX_M
// (MATRIX_N + 1) bytes.
// Guards: exponents are clamped to <= 0; tokens past the count are not read and count as 0, as do columns from D on.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#ifdef OF_KEYS
#include "table/attention_backward_k.glsl"
WRITES(grad_k) WRITES_AS(uvec4, quads, grad_k) WRITES(grad_v) WRITES_AS(uvec4, quads, grad_v)
#else
#include "table/attention_backward_q.glsl"
WRITES(grad_q) WRITES_AS(uvec4, quads, grad_q)
#endif
READS_AS(uvec4, quads, q) READS_AS(uvec4, quads, k) READS_AS(uvec4, quads, v) READS_AS(uvec4, quads, up_o) READS(lse) READS(dot) READS(seq)
#define PACKS
#include "lib/seq.glsl"

#ifndef HEAD
#define HEAD 64u
#endif
const uint BLOCK = 32u;
const uint ROWS = T0 / SUBGROUPS;
const uint R = ROWS / MATRIX_M;
const uint OTHER_TILES = BLOCK / MATRIX_N;
const uint DEPTH_TILES = HEAD / MATRIX_K;
const uint HEAD_TILES = HEAD / MATRIX_N;
const uint WEIGHT_TILES = BLOCK / MATRIX_K;
const uint PITCH = HEAD / 8u + 1u; // 16-byte words a row in shared memory, odd to spread the banks
const uint QUADS = BLOCK * HEAD / 8u;
const uint FETCH = (QUADS + LANES - 1u) / LANES;
const uint PART = MATRIX_M * MATRIX_K; // floats of a subgroup's scratch memory
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // components of an accumulator in a lane
const uint OWN_WORDS = MATRIX_M * MATRIX_K / 8u; // 16-byte words of a tile of own rows
const float LOG2_E = 1.44269504;

shared uvec4 xs[BLOCK * PITCH];
shared uvec4 ys[BLOCK * PITCH];
#ifndef HOLDS_Y
shared uvec4 own_ys[T0 * PITCH]; // in registers they would be too many where a lane holds whole rows of operands (RDNA3)
#endif
// Vectors, because matrices want addresses of whole 16 bytes.
shared vec4 scratch[SUBGROUPS * PART / 4u];
#ifndef MATRIX2
shared uvec4 packed[SUBGROUPS * PART / 8u];
#endif
shared vec4 table[(MATRIX_N + 1u) * MATRIX_M / 4u]; // column of each element, row by row; then the rows
#ifdef OF_KEYS
shared vec4 lses[BLOCK / 4u]; // of the passing tokens, in powers of 2
shared vec4 dots[BLOCK / 4u];
#endif

MatrixSum sums[R * HEAD_TILES];
#ifdef OF_KEYS
MatrixSum sums_v[R * HEAD_TILES];
#endif

uvec4 pack_eight(vec4 low, vec4 high)
{
    return uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w), pack_elements(high.x, high.y), pack_elements(high.z, high.w));
}

#include "lib/rounded.glsl"
#include "attention/backward_matrix.glsl"

void main()
{
    uint lane = gl_SubgroupInvocationID;
    uint part = gl_SubgroupID * PART;
    uint blocks = (args.L + T0 - 1u) / T0;
    uint in_group = args.H / args.G;
    float scale = args.scale * LOG2_E;
    uint head_quads = args.D / 8u;
#ifdef OF_KEYS
    uint heads = args.G;
#else
    uint heads = args.H;
#endif
    for (uint i = LANE; i < (MATRIX_N + 1u) * MATRIX_M / 4u; i += LANES)
        table[i] = vec4(i * 4u % (i < MATRIX_N * MATRIX_M / 4u ? MATRIX_N : MATRIX_M)) + vec4(0.0, 1.0, 2.0, 3.0);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint own_head = tile / blocks % heads;
        Sequence sequence = sequence_of(tile / blocks / heads);
#ifdef OF_KEYS
        uint first = tile % blocks * T0; // of the workgroup's own tokens
        uint begin = first / BLOCK * BLOCK;
        uint end = sequence.count;
        uint h = own_head * in_group;
        uint h_end = h + in_group;
        uint group = own_head;
#else
        uint first = (blocks - 1u - tile % blocks) * T0; // the longest first
        uint begin = 0u;
        uint end = min(first + T0, sequence.count);
        uint h = own_head;
        uint h_end = h + 1u;
        uint group = h / in_group;
#endif
        if (first >= sequence.span) continue;
        if (first >= sequence.count) h = h_end; // nothing but zeros
        uint own_first = first + gl_SubgroupID * ROWS; // of the subgroup

        barrier();
        MatrixA x[R * DEPTH_TILES];
        TAKE_OWN(x, own_x)
#ifdef HOLDS_Y
        MatrixA y[R * DEPTH_TILES];
        TAKE_OWN(y, own_y)
#else
        for (uint i = LANE; i < T0 * HEAD / 8u; i += LANES) {
            uint line = first + i / (HEAD / 8u);
            uint quad = i % (HEAD / 8u);
            bool is = line < sequence.count && quad < head_quads;
            own_ys[i / (HEAD / 8u) * PITCH + quad] = is ? own_y(sequence.row + line, own_head, group, quad) : uvec4(0u);
        }
#endif
#ifndef OF_KEYS
        MatrixSum own_lse[R];
        MatrixSum own_dot[R];
        [[unroll]] for (uint r = 0u; r < R; r++) {
            uint line = own_first + r * MATRIX_M + lane % MATRIX_M;
            uint at = (sequence.row + line) * args.H + h;
            bool is = line < sequence.count && h < h_end;
            if (lane < MATRIX_M) {
                scratch[(part + lane) / 4u][lane % 4u] = is ? load_lse(args.lse_at + at) * LOG2_E : 0.0;
                scratch[(part + MATRIX_M + lane) / 4u][lane % 4u] = is ? load_dot(at) : 0.0;
            }
            subgroup_sync();
            LOAD_ROWS(own_lse[r], part);
            LOAD_ROWS(own_dot[r], part + MATRIX_M);
            subgroup_sync();
        }
#endif
        [[unroll]] for (uint n = 0u; n < R * HEAD_TILES; n++) {
            sums[n] = MatrixSum(0.0);
#ifdef OF_KEYS
            sums_v[n] = MatrixSum(0.0);
#endif
        }

        uvec4 next_x[FETCH];
        uvec4 next_y[FETCH];
#define FETCH_BLOCK(from, head) \
        [[unroll]] for (uint n = 0u; n < FETCH; n++) { \
            uint i = min(LANE + n * LANES, QUADS - 1u); \
            uint token = (from) + i / (HEAD / 8u); \
            uint quad = i % (HEAD / 8u); \
            bool is = token < sequence.count && quad < head_quads; \
            next_x[n] = is ? passing_x(sequence.row + token, head, group, quad) : uvec4(0u); \
            next_y[n] = is ? passing_y(sequence.row + token, head, group, quad) : uvec4(0u); \
        }
        uint at = begin;
        if (h < h_end) { FETCH_BLOCK(at, h) }
        while (h < h_end) {
            barrier();
            [[unroll]] for (uint n = 0u; n < FETCH; n++) {
                uint i = min(LANE + n * LANES, QUADS - 1u);
                xs[i / (HEAD / 8u) * PITCH + i % (HEAD / 8u)] = next_x[n];
                ys[i / (HEAD / 8u) * PITCH + i % (HEAD / 8u)] = next_y[n];
            }
#ifdef OF_KEYS
            for (uint i = LANE; i < BLOCK; i += LANES) {
                bool is = at + i < sequence.count;
                uint place = (sequence.row + at + i) * args.H + h;
                lses[i / 4u][i % 4u] = is ? load_lse(args.lse_at + place) * LOG2_E : 0.0;
                dots[i / 4u][i % 4u] = is ? load_dot(place) : 0.0;
            }
#endif
            barrier();
            uint now = at;
            at += BLOCK;
            if (at >= end) {
                at = begin;
                h++;
            }
            if (h < h_end) { FETCH_BLOCK(at, h) }

#ifdef OF_KEYS
            bool sees = now + BLOCK > own_first;
            bool whole = now >= own_first + ROWS - 1u && now > 0u;
#else
            bool sees = now < own_first + ROWS;
            bool whole = now + BLOCK <= own_first + 1u && own_first > 0u;
#endif
            if (sees) { // some pair of the subgroup
                MatrixSum scores[R * OTHER_TILES]; // then w
                MatrixSum products[R * OTHER_TILES]; // then u
                [[unroll]] for (uint j = 0u; j < OTHER_TILES; j++) {
                    [[unroll]] for (uint r = 0u; r < R; r++) {
                        scores[r * OTHER_TILES + j] = MatrixSum(0.0);
                        products[r * OTHER_TILES + j] = MatrixSum(0.0);
                    }
                    [[unroll]] for (uint d = 0u; d < DEPTH_TILES; d++) {
                        MatrixB right;
                        coopMatLoad(right, xs, j * MATRIX_N * PITCH + d * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
                        [[unroll]] for (uint r = 0u; r < R; r++)
                            scores[r * OTHER_TILES + j] = coopMatMulAdd(x[r * DEPTH_TILES + d], right, scores[r * OTHER_TILES + j]);
                        coopMatLoad(right, ys, j * MATRIX_N * PITCH + d * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
                        [[unroll]] for (uint r = 0u; r < R; r++) {
                            MatrixA left;
#ifdef HOLDS_Y
                            left = y[r * DEPTH_TILES + d];
#else
                            coopMatLoad(left, own_ys, (gl_SubgroupID * ROWS + r * MATRIX_M) * PITCH + d * MATRIX_K / 8u, PITCH, ROW_MAJOR);
#endif
                            products[r * OTHER_TILES + j] = coopMatMulAdd(left, right, products[r * OTHER_TILES + j]);
                        }
                    }
                }
                [[unroll]] for (uint j = 0u; j < OTHER_TILES; j++) {
#ifdef OF_KEYS
                    MatrixSum lse;
                    MatrixSum along;
                    coopMatLoad(lse, lses, j * MATRIX_N / 4u, 0u, ROW_MAJOR);
                    coopMatLoad(along, dots, j * MATRIX_N / 4u, 0u, ROW_MAJOR);
#endif
                    [[unroll]] for (uint r = 0u; r < R; r++) {
                        uint n = r * OTHER_TILES + j;
#ifndef OF_KEYS
                        MatrixSum lse = own_lse[r];
                        MatrixSum along = own_dot[r];
#endif
                        [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                            float weight = exp2(min(scores[n][i] * scale - lse[i], 0.0));
                            scores[n][i] = weight;
                            products[n][i] = weight * (products[n][i] - along[i]);
                        }
                    }
                }
                if (!whole) { // 0 where token s does not precede or equal t; u is 0 for t = 0
                    MatrixSum row;
                    MatrixSum column;
                    coopMatLoad(row, table, MATRIX_N * MATRIX_M / 4u, 0u, COLUMN_MAJOR);
                    coopMatLoad(column, table, 0u, MATRIX_N / 4u, ROW_MAJOR);
                    [[unroll]] for (uint n = 0u; n < R * OTHER_TILES; n++) {
                        float own = float(own_first + n / OTHER_TILES * MATRIX_M);
                        float other = float(now + n % OTHER_TILES * MATRIX_N);
                        [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
#ifdef OF_KEYS
                            float s = own + row[i];
                            float t = other + column[i];
#else
                            float s = other + column[i];
                            float t = own + row[i];
#endif
                            scores[n][i] = s <= t ? scores[n][i] : 0.0;
                            products[n][i] = s <= t && t > 0.0 ? products[n][i] : 0.0;
                        }
                    }
                }
                [[unroll]] for (uint n = 0u; n < R * OTHER_TILES; n++) {
                    [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                        scores[n][i] = rounded(scores[n][i]);
                        products[n][i] = rounded(products[n][i]);
                    }
                }
#ifdef OF_KEYS
                MULTIPLY(sums_v, scores, ys, 0u)
#endif
                MULTIPLY(sums, products, xs, 0u)
            }
        }
        barrier(); // all are done with the passing rows
#ifdef OF_KEYS
        STORE(grad_k, sums, args.scale)
        STORE(grad_v, sums_v, 1.0)
#else
        STORE(grad_q, sums, args.scale)
#endif
    }
}
