#version 460
#extension GL_GOOGLE_include_directive : require
// The matrix rows of ssd_backward_scores: u_ts = exp(cum_t - cum_s) step_s (up_y_t . x_s) for s <= t, grad_cb = the sum of u over the heads of a
// group, z = u cb, and the shares of tiles of 32 x 32 in the sums of z, see args.h. up_y and x are multiplied as they are; nothing is rounded to
// 16 bits.
// A workgroup makes SIDE x SIDE tokens of a part of a (b, j, g), head after head; a subgroup 16 rows x 32 columns, whose cb and grad_cb stay in
// registers. The next head's rows are fetched while one is multiplied. Off the diagonal exp(cum_t - cum_s) step_s is a factor of the row times
// one of the column, with e the last token of the columns: exp(cum_t - cum_e) and exp(cum_e - cum_s) step_s. z goes through shared memory to
// lanes that add it up, with MATRIX2 only on the diagonal. There each row of it is first replaced by the sums of the columns before each in its
// tile of 32 x 32.
// x, up_y B L H P; cum B H L 3; cb, grad_cb B M G C C; sums B M H pairs 64. T0 is 64, LANES eight subgroups. Shared memory: 24,832 bytes.
// Guards: exponents <= 0; tokens past the chunk count as 0, and its last one is read in their place (a load under a condition may be waited for);
// so do cb past the chunk and above the diagonal.
#include "lib/dart.glsl"
#include "table/ssd_backward_scores.glsl"
READS(cum) READS(cb) READS(seq) WRITES(grad_cb) WRITES(sums) READS_AS(uvec4, quads, x) READS_AS(uvec4, quads, up_y)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "lib/matrix.glsl"
#include "matrix.glsl"
#include "backward.glsl"
#include "backward_matrix.glsl"

const uint COLUMN_GROUPS = SUBGROUPS / ROW_GROUPS;
const uint COLUMNS = SIDE / COLUMN_GROUPS; // PART
const uint TN = COLUMNS / MATRIX_N;
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // of a sum, in a lane
const uint SQUARE_PITCH = SIDE / 4u + 1u;
const uint TURNS = 2u * SIDE / LANES > 0u ? 2u * SIDE / LANES : 1u; // of the lanes, to take the tokens of rows and columns
const uint LOW = SIDE, FACTOR = 2u * SIDE, STEP = 3u * SIDE;
shared uvec4 stage[2u * PANEL];     // up_y and x; then a part of z for each subgroup
shared float of_rows[3u * SIDE];    // cum_t, and exp(cum_t - cum_e)
shared float of_columns[4u * SIDE]; // cum_s, exp(cum_e - cum_s) step_s, and step_s
shared float numbers[SIDE];
shared float row_sums[2u * COLUMN_GROUPS * SIDE]; // of z over a band of columns; of a head and the next one
shared float column_sums[2u * ROW_GROUPS * SIDE]; // over a band of rows
shared float halves[SUBGROUPS * 2u * OWN_ROWS];   // of a row of a subgroup's part

#define ROW_OF(i) ((LANE + (i) * LANES) / WORDS)
#define WORD_OF(i) ((LANE + (i) * LANES) % WORDS)
#define PLACE_OF(i) (ROW_OF(i) * PITCH + WORD_OF(i))
#define EACH_TILE(i, n) [[unroll]] for (uint i = 0u; i < TM; i++) [[unroll]] for (uint n = 0u; n < TN; n++)

#ifdef MATRIX2
float sum_of(const in float a, const in float b) { return a + b; }
#endif
#include "backward_scores_matrix.glsl"

void main()
{
    uint across = (args.C + SIDE - 1u) / SIDE;
    uint tile_pairs = across * (across + 1u) / 2u;
    uint halves_across = (args.C + SCORE_SIDE - 1u) / SCORE_SIDE;
    uint in_part = args.H / args.G / args.parts; // heads
    uint row_group = gl_SubgroupID % ROW_GROUPS;
    uint column_group = gl_SubgroupID / ROW_GROUPS;
    uint line = row_group * OWN_ROWS;
    uint column = column_group * COLUMNS;
    uint part = gl_SubgroupID * PART_WORDS;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uvec2 pair = pair_of(tile % tile_pairs) * SIDE;
        uint share = tile / tile_pairs % args.parts;
        uint g = tile / tile_pairs / args.parts % args.G;
        uint first_head = (g * args.parts + share) * in_part;
        Place at = place_of(tile / tile_pairs / args.parts / args.G);
        if (pair.x >= at.size) continue;
        bool diagonal = pair.x == pair.y;
        bool crosses = diagonal && column_group == row_group / 2u; // the subgroup's columns are a tile with its rows
        uint square = (at.slot * args.G + g) * args.C * args.C;
        uvec4 next_up[UNITS];
        uvec4 next_x[UNITS];
        vec3 next_cum[TURNS];
        vec2 border;
#define FETCH(head) \
        { \
            uint h = first_head + (head); \
            uint cum = cum_of(at, h); \
            [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
                uint t = min(pair.x + ROW_OF(i), at.size - 1u); \
                uint s = min(pair.y + ROW_OF(i), at.size - 1u); \
                uint word = min(WORD_OF(i), args.P / 8u - 1u); \
                next_up[i] = quads_up_y[(args.up_y_at + (at.token + t) * args.up_y_row + h * args.P) / 8u + word]; \
                next_x[i] = quads_x[(args.x_at + (at.token + s) * args.x_row + h * args.P) / 8u + word]; \
            } \
            [[unroll]] for (uint i = 0u; i < TURNS; i++) { \
                uint own = (LANE + i * LANES) % (2u * SIDE); \
                next_cum[i] = cum_at(cum + min((own < SIDE ? pair.x : pair.y) + own % SIDE, at.size - 1u)); \
            } \
            border = cum_at(cum + min(pair.y + SIDE, at.size) - 1u).xy; \
        }
        FETCH(0u)
        barrier();
        // cb, through the stage.
        for (uint e = LANE; e < SIDE * SIDE / 4u; e += LANES) {
            uint t = pair.x + e / (SIDE / 4u);
            vec4 four = vec4(0.0);
            [[unroll]] for (uint q = 0u; q < 4u; q++) {
                uint s = pair.y + e % (SIDE / 4u) * 4u + q;
                if (s <= t && t < at.size) four[q] = load_cb(square + t * args.C + s);
            }
            stage[e / (SIDE / 4u) * SQUARE_PITCH + e % (SIDE / 4u)] = floatBitsToUint(four);
        }
        for (uint i = LANE; i < SIDE; i += LANES) numbers[i] = float(i);
        barrier();
        MatrixSum weights[TM * TN];
        MatrixSum grads[TM * TN];
        EACH_TILE(i, n) {
            coopMatLoad(weights[i * TN + n], stage, (line + i * MATRIX_M) * SQUARE_PITCH + (column + n * MATRIX_N) / 4u, SQUARE_PITCH, ROW_MAJOR);
            grads[i * TN + n] = MatrixSum(0.0);
        }
        for (uint head = 0u; head <= in_part; head++) {
            bool more = head < in_part;
            barrier();
            if (more) {
                [[unroll]] for (uint i = 0u; i < UNITS; i++) {
                    bool inside = WORD_OF(i) < args.P / 8u;
                    stage[PLACE_OF(i)] = inside && pair.x + ROW_OF(i) < at.size ? next_up[i] : uvec4(0u);
                    stage[PANEL + PLACE_OF(i)] = inside && pair.y + ROW_OF(i) < at.size ? next_x[i] : uvec4(0u);
                }
                [[unroll]] for (uint i = 0u; i < TURNS; i++) {
                    uint own = LANE + i * LANES;
                    uint token = own % SIDE;
                    if (own < SIDE) {
                        of_rows[token] = next_cum[i].x;
                        of_rows[LOW + token] = next_cum[i].y;
                        of_rows[FACTOR + token] = exp_neg(cum_between(border, next_cum[i].xy));
                    } else if (own < 2u * SIDE) {
                        of_columns[token] = next_cum[i].x;
                        of_columns[LOW + token] = next_cum[i].y;
                        of_columns[FACTOR + token] = exp_neg(cum_between(next_cum[i].xy, border)) * next_cum[i].z;
                        of_columns[STEP + token] = next_cum[i].z;
                    }
                }
            }
            barrier();
            if (head > 0u) put_shares(at, pair, first_head + head - 1u, (head - 1u) % 2u, halves_across);
            if (!more) break;
            if (head + 1u < in_part) FETCH(head + 1u)
            MatrixSum sums[TM * TN];
            EACH_TILE(i, n) sums[i * TN + n] = MatrixSum(0.0);
            [[unroll]] for (uint k = 0u; k < HEAD; k += MATRIX_K) {
                MatrixA left[TM];
                LOAD_LINES(left, stage, 0u, line, k, PITCH)
                [[unroll]] for (uint n = 0u; n < TN; n++) {
                    MatrixB right;
                    coopMatLoad(right, stage, PANEL + (column + n * MATRIX_N) * PITCH + k / 8u, PITCH, COLUMN_MAJOR);
                    [[unroll]] for (uint i = 0u; i < TM; i++) sums[i * TN + n] = coopMatMulAdd(left[i], right, sums[i * TN + n]);
                }
            }
            EACH_TILE(i, n) {
                uint r = line + i * MATRIX_M;
                uint c = column + n * MATRIX_N;
                MatrixSum u = sums[i * TN + n];
                MatrixSum of_row;
                MatrixSum of_column;
                if (diagonal) {
                    MatrixSum row_low;
                    MatrixSum column_low;
                    coopMatLoad(of_row, of_rows, r, 0u, COLUMN_MAJOR);
                    coopMatLoad(row_low, of_rows, LOW + r, 0u, COLUMN_MAJOR);
                    coopMatLoad(of_column, of_columns, c, 0u, ROW_MAJOR);
                    coopMatLoad(column_low, of_columns, LOW + c, 0u, ROW_MAJOR);
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++)
                        u[e] *= decay_exp(cum_between(vec2(of_column[e], column_low[e]), vec2(of_row[e], row_low[e])));
                    coopMatLoad(of_column, of_columns, STEP + c, 0u, ROW_MAJOR);
                    u = u * of_column;
                    coopMatLoad(of_row, numbers, r, 0u, COLUMN_MAJOR);
                    coopMatLoad(of_column, numbers, c, 0u, ROW_MAJOR);
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) u[e] = of_column[e] <= of_row[e] ? u[e] : 0.0;
                } else {
                    coopMatLoad(of_row, of_rows, FACTOR + r, 0u, COLUMN_MAJOR);
                    coopMatLoad(of_column, of_columns, FACTOR + c, 0u, ROW_MAJOR);
                    u = u * of_row * of_column;
                }
                grads[i * TN + n] += u;
                sums[i * TN + n] = u * weights[i * TN + n];
            }
            uint turn = head % 2u;
            uint own_rows = (turn * COLUMN_GROUPS + column_group) * SIDE + line;
            uint own_columns = (turn * ROW_GROUPS + row_group) * SIDE + column;
            bool added = false;
#ifdef MATRIX2
            if (!diagonal) { // in registers; the branch is the same for the whole workgroup
                added = true;
                [[unroll]] for (uint i = 0u; i < TM; i++) {
                    MatrixSum sum = sums[i * TN];
                    [[unroll]] for (uint n = 1u; n < TN; n++) sum += sums[i * TN + n];
                    MatrixSum total;
                    coopMatReduceNV(total, sum, gl_CooperativeMatrixReduceRowNV, sum_of);
                    coopMatStore(total, row_sums, own_rows + i * MATRIX_M, 0u, COLUMN_MAJOR);
                }
                [[unroll]] for (uint n = 0u; n < TN; n++) {
                    MatrixSum sum = sums[n];
                    [[unroll]] for (uint i = 1u; i < TM; i++) sum += sums[i * TN + n];
                    MatrixSum total;
                    coopMatReduceNV(total, sum, gl_CooperativeMatrixReduceColumnNV, sum_of);
                    coopMatStore(total, column_sums, own_columns + n * MATRIX_N, 0u, ROW_MAJOR);
                }
            }
#endif
            if (!added) {
                barrier();
                EACH_TILE(i, n)
                    coopMatStore(sums[i * TN + n], stage, part + i * MATRIX_M * PART_PITCH + n * MATRIX_N / 4u, PART_PITCH, ROW_MAJOR);
                subgroup_sync();
                add_up(part, own_rows, own_columns, crosses, row_group % 2u * OWN_ROWS);
            }
        }
        barrier();
        EACH_TILE(i, n)
            coopMatStore(grads[i * TN + n], stage, (line + i * MATRIX_M) * SQUARE_PITCH + (column + n * MATRIX_N) / 4u, SQUARE_PITCH, ROW_MAJOR);
        barrier();
        uint to = square + share * args.B * args.M * args.G * args.C * args.C;
        for (uint e = LANE; e < SIDE * SIDE; e += LANES) {
            uint t = pair.x + e / SIDE;
            uint s = pair.y + e % SIDE;
            if (t < at.size && s < at.size)
                store_grad_cb(to + t * args.C + s, uintBitsToFloat(stage[e / SIDE * SQUARE_PITCH + e % SIDE / 4u][e % 4u]));
        }
    }
}
