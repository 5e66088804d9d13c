#version 460
#extension GL_GOOGLE_include_directive : require
// cross_entropy_x on cooperative matrices: an attention of the rows x_t over the rows of weight, which are keys and values at once, without the
// target's, which has no part in the product but is added at the end in f32: grad_x_t = share (sum_{v != target} p_v weight_v - q weight_target).
// x rows x width, weight vocabulary x width in the matrices' element type, at least two rows; targets, lse rows; parts rows x 2; grad_x rows x width.
// One workgroup takes T0 rows, ROWS a subgroup, and BLOCK rows of weight at a time. A component of one accumulator belongs to the same row as
// that component of any other: maxima and sums along a row run component by component, and across the lanes only
//   - at the end, and
//   - when some logit exceeds the reference of its row by more than SLACK (powers of 2): then the reference becomes the row's maximum and the sums
//     so far are scaled. Terms are at most 2^SLACK, and the reference itself once had term 1.
// With -DCUTS terms are raised by CUT before the conversion of matrices cuts them off, and their sum is divided by it.
// The reference leaves the target out, so that terms beside a target that is nearly certain keep their digits in f16.
// Shared memory: head.glsl, and 8 SUBGROUPS MATRIX_M bytes.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "table/cross_entropy_x.glsl"
READS_AS(uvec4, quads, x) READS_AS(uvec4, quads, weight) READS(targets) READS(share) WRITES(parts) WRITES(lse) WRITES_AS(uvec4, quads, grad_x)
#include "loss/head.glsl"
#include "lib/log.glsl"

const float SLACK = 8.0;

shared float rest[SUBGROUPS * MATRIX_M]; // of a tile of rows: share q
shared int aim[SUBGROUPS * MATRIX_M];    // ... and target, or -1

// Eight columns of grad_x from element `at` on.
void store_eight(uint at, vec4 low, vec4 high)
{
    uint type = DTYPE_OF(grad_x);
    if (type == TYPE_F32) {
        quads_grad_x[at / 4u] = floatBitsToUint(low);
        quads_grad_x[at / 4u + 1u] = floatBitsToUint(high);
    } else {
        quads_grad_x[at / 8u] = uvec4(bits_16bit(type, low.x) | bits_16bit(type, low.y) << 16,
                                      bits_16bit(type, low.z) | bits_16bit(type, low.w) << 16,
                                      bits_16bit(type, high.x) | bits_16bit(type, high.y) << 16,
                                      bits_16bit(type, high.z) | bits_16bit(type, high.w) << 16);
    }
}

void main()
{
    uint lane = gl_SubgroupInvocationID;
    uint part = gl_SubgroupID * PART;
    uint width_quads = args.width / 8u;
    float share = load_share(args.share_at);
    fill_table();
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_last = min(tile * T0 + T0, args.rows) - 1u;
        uint own = tile * T0 + gl_SubgroupID * ROWS; // the subgroup's first row
        barrier();
        MatrixA left[R * DEPTH_TILES];
        LOAD_LEFT(left, quads_x, args.x_at / 8u, args.x_row / 8u, own, t_last, width_quads)
        int target[R]; // of row lane % MATRIX_M; -1: no label
        MatrixSum sums[R * WIDTH_TILES];
        MatrixSum den[R];    // terms but the target's
        MatrixSum top[R];    // references, times log2 e
        MatrixSum best[R];   // largest logit but the target's
        MatrixSum before[R]; // ... of the columns before the target's
        MatrixSum mine[R];   // the target's
        [[unroll]] for (uint r = 0u; r < R; r++) {
            uint t = own + r * MATRIX_M + lane % MATRIX_M;
            target[r] = t <= t_last ? load_int_targets(args.targets_at + t) : -1;
            if (target[r] < 0 || uint(target[r]) >= args.vocabulary) target[r] = -1;
            [[unroll]] for (uint d = 0u; d < WIDTH_TILES; d++) sums[r * WIDTH_TILES + d] = MatrixSum(0.0);
            den[r] = MatrixSum(0.0);
            top[r] = MatrixSum(LOWEST);
            best[r] = MatrixSum(LOWEST);
            before[r] = MatrixSum(LOWEST);
            mine[r] = MatrixSum(0.0);
        }

        uvec4 next[FETCH];
#define FETCH_BLOCK(s) \
        [[unroll]] for (uint n = 0u; n < FETCH; n++) { \
            uint i = min(LANE + n * LANES, QUADS - 1u); \
            uint quad = i % WIDTH_QUADS; \
            uint row = min((s) + i / WIDTH_QUADS, args.vocabulary - 1u); \
            uvec4 words = quads_weight[args.weight_at / 8u + row * width_quads + min(quad, width_quads - 1u)]; \
            next[n] = quad < width_quads ? words : uvec4(0u); \
        }
        FETCH_BLOCK(0u)
        for (uint s = 0u; s < args.vocabulary; s += BLOCK) {
            barrier();
            [[unroll]] for (uint n = 0u; n < FETCH; n++) {
                uint i = min(LANE + n * LANES, QUADS - 1u);
                block[i / WIDTH_QUADS * PITCH + i % WIDTH_QUADS] = next[n];
            }
            barrier();
            if (s + BLOCK < args.vocabulary) { FETCH_BLOCK(s + BLOCK) }

            MatrixSum logits[R * BLOCK_TILES];
            MULTIPLY_BLOCK(logits, left)
            bool near = false; // some row's target is in the block
            [[unroll]] for (uint r = 0u; r < R; r++) near = near || (target[r] >= int(s) && target[r] < int(s + BLOCK));
            if (subgroupOr(near ? 1u : 0u) != 0u || s + BLOCK > args.vocabulary) {
                MatrixSum column;
                coopMatLoad(column, table, 0u, MATRIX_N / 4u, ROW_MAJOR);
                [[unroll]] for (uint r = 0u; r < R; r++) {
                    bool here = target[r] >= int(s) && target[r] < int(s + BLOCK);
                    if (lane < MATRIX_M) scratch[(part + lane) / 4u][lane % 4u] = here ? float(target[r] - int(s)) : -1.0;
                    subgroup_sync();
                    MatrixSum where;
                    LOAD_ROWS(where, part);
                    subgroup_sync();
                    [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                        float most = best[r][i];
                        [[unroll]] for (uint j = 0u; j < BLOCK_TILES; j++) {
                            uint n = r * BLOCK_TILES + j;
                            float at = column[i] + float(j * MATRIX_N);
                            bool hit = at == where[i];
                            mine[r][i] = hit ? logits[n][i] : mine[r][i];
                            most = at < where[i] ? max(most, logits[n][i]) : most;
                            logits[n][i] = hit || s + uint(at) >= args.vocabulary ? LOWEST : logits[n][i];
                        }
                        before[r][i] = where[i] >= 0.0 ? most : before[r][i];
                    }
                }
            }

            // Of a row with a NaN all results are NaN, whatever max makes of it, and those of other rows do not depend on it.
            bool beyond = false; // the reference, by more than SLACK
            [[unroll]] for (uint r = 0u; r < R; r++) {
                [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                    float most = best[r][i];
                    [[unroll]] for (uint j = 0u; j < BLOCK_TILES; j++) most = max(most, logits[r * BLOCK_TILES + j][i]);
                    best[r][i] = most;
                    beyond = beyond || most * LOG2_E > top[r][i] + SLACK;
                }
            }
            if (subgroupOr(beyond ? 1u : 0u) != 0u) {
                [[unroll]] for (uint r = 0u; r < R; r++) {
                    coopMatStore(best[r], scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
                    subgroup_sync();
                    float most = LOWEST;
                    [[unroll]] for (uint i = 0u; i < MATRIX_N / 4u; i++) {
                        vec4 quad = scratch[(part + lane % MATRIX_M * MATRIX_N) / 4u + i];
                        most = max(most, max(max(quad.x, quad.y), max(quad.z, quad.w)));
                    }
                    subgroup_sync();
                    if (lane < MATRIX_M) scratch[(part + lane) / 4u][lane % 4u] = most;
                    subgroup_sync();
                    MatrixSum now;
                    LOAD_ROWS(now, part);
                    subgroup_sync();
                    MatrixSum keep;
                    [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                        // Each row by itself, so that its neighbours change no bit of it.
                        float old = top[r][i];
                        float new = now[i] * LOG2_E > old + SLACK ? now[i] * LOG2_E : old;
                        keep[i] = exp2(old - new);
                        top[r][i] = new;
                    }
                    den[r] = den[r] * keep;
                    [[unroll]] for (uint d = 0u; d < WIDTH_TILES; d++) sums[r * WIDTH_TILES + d] = sums[r * WIDTH_TILES + d] * keep;
                }
            }
            [[unroll]] for (uint r = 0u; r < R; r++) {
                [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                    float sum = den[r][i];
                    float reference = top[r][i] - LOG2_CUT;
                    [[unroll]] for (uint j = 0u; j < BLOCK_TILES; j++) {
                        float term = exp2(logits[r * BLOCK_TILES + j][i] * LOG2_E - reference);
                        sum += term;
                        logits[r * BLOCK_TILES + j][i] = rounded(term);
                    }
                    den[r][i] = sum;
                }
            }
            ADD_BLOCK(sums, logits)
        }

        [[unroll]] for (uint r = 0u; r < R; r++) {
            uint row = (part + lane % MATRIX_M * MATRIX_N) / 4u; // the words of a lane's row
            subgroup_sync();
            coopMatStore(best[r], scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
            subgroup_sync();
            float largest = LOWEST;
            [[unroll]] for (uint i = 0u; i < MATRIX_N / 4u; i++) {
                vec4 quad = scratch[row + i];
                largest = max(largest, max(max(quad.x, quad.y), max(quad.z, quad.w)));
            }
            subgroup_sync();
            coopMatStore(before[r], scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
            subgroup_sync();
            float earlier = LOWEST;
            [[unroll]] for (uint i = 0u; i < MATRIX_N / 4u; i++) {
                vec4 quad = scratch[row + i];
                earlier = max(earlier, max(max(quad.x, quad.y), max(quad.z, quad.w)));
            }
            subgroup_sync();
            coopMatStore(top[r], scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
            subgroup_sync();
            float reference = scratch[row].x;
            subgroup_sync();
            coopMatStore(mine[r], scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
            subgroup_sync();
            float logit = 0.0; // the target's; the other columns hold 0
            [[unroll]] for (uint i = 0u; i < MATRIX_N / 4u; i++) {
                vec4 quad = scratch[row + i];
                logit += (quad.x + quad.y) + (quad.z + quad.w);
            }
            subgroup_sync();
            coopMatStore(den[r], scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
            subgroup_sync();
            float others = 0.0;
            [[unroll]] for (uint i = 0u; i < MATRIX_N / 4u; i++) {
                vec4 quad = scratch[row + i];
                others += (quad.x + quad.y) + (quad.z + quad.w);
            }
            subgroup_sync();
            bool right = logit >= largest && logit > earlier; // the lowest index of the largest
            logit *= LOG2_E;
            float highest = max(reference, logit);
            float fall = exp2(reference - highest);
            others *= fall * (1.0 / CUT);
            float total = others + exp2(logit - highest); // at least 1, but for a rounding
            bool labelled = target[r] >= 0;
            if (lane < MATRIX_M) {
                uint t = own + r * MATRIX_M + lane;
                bool broken = (floatBitsToUint(total) & 0x7f800000u) == 0x7f800000u;
                float above = broken ? uintBitsToFloat(0x7fc00000u) : log_above_one(total);
                if (t <= t_last) {
                    store_parts(args.parts_at + 2u * t, labelled ? share * ((highest - logit) * LN_2 + above) : 0.0);
                    store_parts(args.parts_at + 2u * t + 1u, labelled && right && !broken ? 1.0 : 0.0);
                    store_lse(args.lse_at + t, labelled ? highest * LN_2 + above : uintBitsToFloat(0x7f800000u));
                }
                rest[gl_SubgroupID * MATRIX_M + lane] = share * others / total;
                aim[gl_SubgroupID * MATRIX_M + lane] = target[r];
                scratch[(part + lane) / 4u][lane % 4u] = share * fall / total;
            }
            if (!has(args.flags, HAS_GRADIENT)) continue;
            subgroup_sync();
            MatrixSum factor;
            LOAD_ROWS(factor, part);
            subgroup_sync();
            [[unroll]] for (uint d = 0u; d < WIDTH_TILES; d++) {
                coopMatStore(sums[r * WIDTH_TILES + d] * factor, scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
                subgroup_sync();
                [[unroll]] for (uint round = 0u; round < RESULT_STORES; round++) {
                    uint i = lane + round * SUBGROUP_SIZE;
                    uint line = i / (MATRIX_N / 8u);
                    uint t = own + r * MATRIX_M + line;
                    uint column = d * MATRIX_N + i % (MATRIX_N / 8u) * 8u;
                    if (i < MATRIX_M * MATRIX_N / 8u && t <= t_last && column < args.width) {
                        int v = aim[gl_SubgroupID * MATRIX_M + line];
                        float q = rest[gl_SubgroupID * MATRIX_M + line];
                        uvec4 words = quads_weight[args.weight_at / 8u + uint(max(v, 0)) * width_quads + column / 8u];
                        vec4 low = scratch[part / 4u + 2u * i] - q * vec4(unpack_elements(words.x), unpack_elements(words.y));
                        vec4 high = scratch[part / 4u + 2u * i + 1u] - q * vec4(unpack_elements(words.z), unpack_elements(words.w));
                        store_eight(args.grad_x_at + t * args.grad_x_row + column, v < 0 ? vec4(0.0) : low, v < 0 ? vec4(0.0) : high);
                    }
                }
                subgroup_sync();
            }
        }
    }
}
