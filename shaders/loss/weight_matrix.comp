#version 460
#extension GL_GOOGLE_include_directive : require
// cross_entropy_weight on cooperative matrices: partial[k][v] = share sum_t (exp(z_tv - lse_t) - [v = target_t]) x_t over the rows t of part k, with
// the logits z = weight x^T made again.
// x rows x width, weight vocabulary x width in the matrices' element type; targets, lse rows; partial parts x vocabulary x width, f32.
// One workgroup takes T0 rows of weight, ROWS a subgroup, and BLOCK rows of x of one part at a time. Slopes are rounded to the element type times
// 2^SHIFT, so that f16 holds those below 2^-14 with all digits: it falls away with share at the end. With -DCUTS they are raised by CUT and cut off.
// Shared memory: head.glsl, and 8 BLOCK bytes.
// Guards: rows of x without a label are read as 0, and their slopes are 0, as lse is infinite.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "table/cross_entropy_weight.glsl"
READS_AS(uvec4, quads, x) READS_AS(uvec4, quads, weight) READS(targets) READS(share) READS(lse) WRITES_AS(vec4, quads, partial)
#include "loss/head.glsl"

const float SHIFT = 12.0;
const float SHIFTED = 4096.0; // 2^SHIFT

shared vec4 limit[BLOCK / 4u]; // log2 e lse - SHIFT - LOG2_CUT
shared vec4 aim[BLOCK / 4u];   // target less the workgroup's first v, where that is among its T0 rows; else -1

void main()
{
    uint lane = gl_SubgroupInvocationID;
    uint part = gl_SubgroupID * PART;
    uint width_quads = args.width / 8u;
    uint v_blocks = (args.vocabulary + T0 - 1u) / T0;
    float share = load_share(args.share_at) / SHIFTED;
    fill_table();
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint k = tile / v_blocks;
        uint v_first = tile % v_blocks * T0;
        uint v_last = min(v_first + T0, args.vocabulary) - 1u;
        uint offset = gl_SubgroupID * ROWS; // of the subgroup's first row
        uint t_first = k * args.part;
        uint t_end = min(t_first + args.part, args.rows);
        barrier();
        MatrixA left[R * DEPTH_TILES];
        LOAD_LEFT(left, quads_weight, args.weight_at / 8u, width_quads, v_first + offset, v_last, width_quads)
        MatrixSum sums[R * WIDTH_TILES];
        [[unroll]] for (uint n = 0u; n < R * WIDTH_TILES; n++) sums[n] = MatrixSum(0.0);

        uvec4 next[FETCH];
        float next_limit = 0.0;
        float next_aim = -1.0;
#define FETCH_BLOCK(s) \
        [[unroll]] for (uint n = 0u; n < FETCH; n++) { \
            uint i = min(LANE + n * LANES, QUADS - 1u); \
            uint quad = i % WIDTH_QUADS; \
            uint t = min((s) + i / WIDTH_QUADS, t_end - 1u); \
            int target = load_int_targets(args.targets_at + t); \
            uvec4 words = quads_x[args.x_at / 8u + t * (args.x_row / 8u) + min(quad, width_quads - 1u)]; \
            bool counts = quad < width_quads && target >= 0 && uint(target) < args.vocabulary; \
            next[n] = counts && (s) + i / WIDTH_QUADS < t_end ? words : uvec4(0u); \
        } \
        if (LANE < BLOCK) { \
            uint t = (s) + LANE; \
            float lse = load_lse(args.lse_at + min(t, t_end - 1u)); \
            int at = load_int_targets(args.targets_at + min(t, t_end - 1u)) - int(v_first); \
            next_limit = t < t_end ? lse * LOG2_E - (SHIFT + LOG2_CUT) : uintBitsToFloat(0x7f800000u); \
            next_aim = t < t_end && at >= 0 && at <= int(v_last - v_first) ? float(at) : -1.0; \
        }
        FETCH_BLOCK(t_first)
        for (uint s = t_first; s < t_end; s += BLOCK) {
            barrier();
            [[unroll]] for (uint n = 0u; n < FETCH; n++) {
                uint i = min(LANE + n * LANES, QUADS - 1u);
                block[i / WIDTH_QUADS * PITCH + i % WIDTH_QUADS] = next[n];
            }
            if (LANE < BLOCK) {
                limit[LANE / 4u][LANE % 4u] = next_limit;
                aim[LANE / 4u][LANE % 4u] = next_aim;
            }
            barrier();
            if (s + BLOCK < t_end) { FETCH_BLOCK(s + BLOCK) }

            MatrixSum slopes[R * BLOCK_TILES];
            MULTIPLY_BLOCK(slopes, left)
            bool near = false; // some target of the block is among the subgroup's rows
            for (uint i = lane; i < BLOCK; i += SUBGROUP_SIZE) {
                float at = aim[i / 4u][i % 4u];
                near = near || (at >= float(offset) && at < float(offset + ROWS));
            }
            bool any = subgroupOr(near ? 1u : 0u) != 0u;
            [[unroll]] for (uint j = 0u; j < BLOCK_TILES; j++) {
                MatrixSum limits;
                LOAD_COLUMNS(limits, limit, j * MATRIX_N);
                [[unroll]] for (uint r = 0u; r < R; r++) {
                    [[unroll]] for (uint i = 0u; i < ELEMENTS; i++)
                        slopes[r * BLOCK_TILES + j][i] = exp2(slopes[r * BLOCK_TILES + j][i] * LOG2_E - limits[i]);
                }
                if (any) {
                    MatrixSum row;
                    MatrixSum at;
                    coopMatLoad(row, table, MATRIX_N * MATRIX_M / 4u, 0u, COLUMN_MAJOR);
                    LOAD_COLUMNS(at, aim, j * MATRIX_N);
                    [[unroll]] for (uint r = 0u; r < R; r++) {
                        [[unroll]] for (uint i = 0u; i < ELEMENTS; i++)
                            slopes[r * BLOCK_TILES + j][i] -= at[i] == row[i] + float(offset + r * MATRIX_M) ? SHIFTED * CUT : 0.0;
                    }
                }
                [[unroll]] for (uint r = 0u; r < R; r++) {
                    [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) slopes[r * BLOCK_TILES + j][i] = rounded(slopes[r * BLOCK_TILES + j][i]);
                }
            }
            ADD_BLOCK(sums, slopes)
        }

        [[unroll]] for (uint r = 0u; r < R; r++) {
            [[unroll]] for (uint d = 0u; d < WIDTH_TILES; d++) {
                subgroup_sync();
                coopMatStore(sums[r * WIDTH_TILES + d] * share, scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
                subgroup_sync();
                [[unroll]] for (uint round = 0u; round < RESULT_STORES; round++) {
                    uint i = lane + round * SUBGROUP_SIZE;
                    uint v = v_first + offset + r * MATRIX_M + i / (MATRIX_N / 8u);
                    uint column = d * MATRIX_N + i % (MATRIX_N / 8u) * 8u;
                    if (i < MATRIX_M * MATRIX_N / 8u && v <= v_last && column < args.width) {
                        uint to = ((k * args.vocabulary + v) * args.width + column) / 4u;
                        quads_partial[to] = scratch[part / 4u + 2u * i];
                        quads_partial[to + 1u] = scratch[part / 4u + 2u * i + 1u];
                    }
                }
            }
        }
    }
}
