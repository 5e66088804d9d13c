#version 460
#extension GL_GOOGLE_include_directive : require
// attention on cooperative matrices: o_t = sum_s w_s v_s, w = softmax over the tokens s that t sees of scale q_t . k_s.
// q, o B L H D; k, v B C G D, all but o of the matrices' element type; lse B L H. D is a multiple of 16 and at most HEAD.
// One workgroup takes T0 tokens of one (b, h), R tiles of MATRIX_M rows a subgroup, and KEYS tokens of the cache at a time, whose
// keys and values go through shared memory while the next ones are fetched into registers. Everything else stays in
// matrices of the subgroup: a component of one accumulator belongs to the same row as that component of any other, so
// maxima and sums along a row run over the tiles first, component by component, and across the lanes only when needed:
//   - sums of the weights, at the end;
//   - maxima, when some score exceeds the reference of its row by more than SLACK (powers of 2): then the reference becomes the
//     row's maximum and the sums so far are scaled. Weights are at most 2^SLACK, and the reference itself once had weight 1.
// Weights become the left operand of the second product by conversion with -DMATRIX2, else through shared memory.
// T0 is a multiple of SUBGROUPS MATRIX_M, MATRIX_K one of MATRIX_N (equal with -DMATRIX2), SUBGROUP_SIZE >= MATRIX_M.
// Shared memory: 32 KEYS (HEAD / 8 + 1) + 4 SUBGROUPS MATRIX_M MATRIX_K (half as much again without -DMATRIX2) + 4 MATRIX_M
// (MATRIX_N + 1) + 4 bytes.
// Guards: masked scores are LOWEST before exp2; in blocks with masked tokens values that are not finite are taken out of the
// product, which would spread them as 0 x NaN, and added to the rows that see them.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "table/attention.glsl"
READS_AS(uvec4, quads, q) READS_AS(uvec4, quads, k) READS_AS(uvec4, quads, v) READS(seq) WRITES(o)
WRITES_AS(uvec4, quads, o) WRITES(lse)
#include "lib/seq.glsl"
#include "lib/log.glsl"
#include "attention/matrix.glsl"

void main()
{
    uint lane = gl_SubgroupInvocationID;
    uint part = gl_SubgroupID * PART;
    uint t_blocks = (args.L + T0 - 1u) / T0;
    float scale = args.scale * LOG2_E;
    uint head_quads = DEPTH / 8u;
    for (uint i = LANE; i < (MATRIX_N + 1u) * MATRIX_M / 4u; i += LANES)
        table[i] = vec4(i * 4u % (i < MATRIX_N * MATRIX_M / 4u ? MATRIX_N : MATRIX_M)) + vec4(0.0, 1.0, 2.0, 3.0);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = (t_blocks - 1u - tile % t_blocks) * T0; // the longest first
        uint head = tile / t_blocks;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        uint count = seq_count(b, args.L);
        if (t_first >= count) continue;
        uint t_last = min(t_first + T0, count) - 1u;
        uint first_place = seq_position(b) + t_first;            // of the workgroup's first row
        uint own = t_first + gl_SubgroupID * ROWS;               // the subgroup's first row
        uint place = first_place + gl_SubgroupID * ROWS;
        uint seen = min(first_place + (t_last - t_first) + 1u, args.first + args.C);
        if (seen <= args.first) continue;
        uint cached = b * args.C - args.first; // cached + s: the cache's row of token s; wraps below 0, and the sum back
        uint k_quad = (args.k_at + g * DEPTH) / 8u;
        uint v_quad = (args.v_at + g * DEPTH) / 8u;
        uint k_row = args.k_row / 8u;
        uint v_row = args.v_row / 8u;

        barrier();
        if (LANE == 0u) wild = 0u;
        MatrixA queries[R * DEPTH_TILES]; // tile by tile through the place of the keys
        [[unroll]] for (uint r = 0u; r < R; r++) {
            [[unroll]] for (uint d = 0u; d < DEPTH_TILES; d++) {
                [[unroll]] for (uint round = 0u; round < QUERY_FETCH; round++) {
                    uint i = min(lane + round * SUBGROUP_SIZE, QUERY_WORDS - 1u);
                    uint row = b * args.L + min(own + r * MATRIX_M + i / (MATRIX_K / 8u), t_last);
                    uint quad = d * MATRIX_K / 8u + i % (MATRIX_K / 8u);
                    uvec4 words = quads_q[(args.q_at + row * args.q_row + h * DEPTH) / 8u + min(quad, head_quads - 1u)];
                    keys[gl_SubgroupID * QUERY_WORDS + i] = quad < head_quads ? words : uvec4(0u); // further on keys count as 0
                }
                subgroup_sync();
                coopMatLoad(queries[r * DEPTH_TILES + d], keys, gl_SubgroupID * QUERY_WORDS, MATRIX_K / 8u, ROW_MAJOR);
                subgroup_sync();
            }
        }
        MatrixSum sums[R * HEAD_TILES];
        MatrixSum den[R];
        MatrixSum top[R];
        [[unroll]] for (uint r = 0u; r < R; r++) {
            [[unroll]] for (uint d = 0u; d < HEAD_TILES; d++) sums[r * HEAD_TILES + d] = MatrixSum(0.0);
            den[r] = MatrixSum(0.0);
            top[r] = MatrixSum(LOWEST);
        }

        uvec4 next_keys[FETCH];
        uvec4 next_values[FETCH];
#define FETCH_BLOCK(s) \
        [[unroll]] for (uint n = 0u; n < FETCH; n++) { \
            uint i = min(LANE + n * LANES, QUADS - 1u); \
            uint key = (s) + i / (HEAD / 8u); \
            uint quad = min(i % (HEAD / 8u), head_quads - 1u); \
            uint row = cached + min(key, seen - 1u); \
            next_keys[n] = quads_k[k_quad + row * k_row + quad]; \
            next_values[n] = key < seen ? quads_v[v_quad + row * v_row + quad] : uvec4(0u); \
        }
        FETCH_BLOCK(args.first)
        for (uint s = args.first; s < seen; s += KEYS) {
            bool all_whole = s + KEYS <= min(first_place + 1u, seen); // for every row of the workgroup
            barrier();
            if (!all_whole) {
                uvec4 any = uvec4(0u);
                [[unroll]] for (uint n = 0u; n < FETCH; n++) {
                    uvec4 masks = wild_16bit(next_values[n]);
                    next_values[n] &= ~masks;
                    any |= masks;
                }
                if (any != uvec4(0u)) atomicOr(wild, 1u);
            }
            [[unroll]] for (uint n = 0u; n < FETCH; n++) {
                uint i = min(LANE + n * LANES, QUADS - 1u);
                uint at = i / (HEAD / 8u) * PITCH + i % (HEAD / 8u);
                keys[at] = next_keys[n];
                values[at] = next_values[n];
            }
            barrier();
            if (s + KEYS < seen) { FETCH_BLOCK(s + KEYS) }

            if (s < place + ROWS) { // some row of the subgroup sees something
                MatrixSum scores[R * KEY_TILES];
                [[unroll]] for (uint j = 0u; j < KEY_TILES; j++) {
                    [[unroll]] for (uint r = 0u; r < R; r++) scores[r * KEY_TILES + j] = MatrixSum(0.0);
                    [[unroll]] for (uint d = 0u; d < DEPTH_TILES; d++) {
                        MatrixB key;
                        coopMatLoad(key, keys, j * MATRIX_N * PITCH + d * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
                        [[unroll]] for (uint r = 0u; r < R; r++)
                            scores[r * KEY_TILES + j] = coopMatMulAdd(queries[r * DEPTH_TILES + d], key, scores[r * KEY_TILES + j]);
                    }
                }
                bool whole = s + KEYS <= min(place + 1u, seen);
                [[unroll]] for (uint n = 0u; n < R * KEY_TILES; n++) scores[n] = scores[n] * scale;
                if (!whole) {
                    MatrixSum row;
                    MatrixSum column;
                    coopMatLoad(row, table, MATRIX_N * MATRIX_M / 4u, 0u, COLUMN_MAJOR);
                    coopMatLoad(column, table, 0u, MATRIX_N / 4u, ROW_MAJOR);
                    [[unroll]] for (uint n = 0u; n < R * KEY_TILES; n++) {
                        float first = float(int(s + n % KEY_TILES * MATRIX_N) - int(place + n / KEY_TILES * MATRIX_M));
                        float end = float(int(s + n % KEY_TILES * MATRIX_N) + 1 - int(seen));
                        [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                            float beyond = max(column[i] - row[i] + first, column[i] + end);
                            scores[n][i] = beyond > 0.0 ? LOWEST : scores[n][i];
                        }
                    }
                }

                MatrixSum highest[R];
                float excess = LOWEST; // over the reference
                [[unroll]] for (uint r = 0u; r < R; r++) {
                    [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                        float most = scores[r * KEY_TILES][i];
                        [[unroll]] for (uint j = 1u; j < KEY_TILES; j++) most = max(most, scores[r * KEY_TILES + j][i]);
                        highest[r][i] = most;
                        excess = max(excess, most - top[r][i]);
                    }
                }
                if (subgroupOr(excess > SLACK ? 1u : 0u) != 0u) {
                    [[unroll]] for (uint r = 0u; r < R; r++) {
                        coopMatStore(highest[r], scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
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
                            // Each row by itself, so that what its neighbours see changes no bit of it.
                            float before = top[r][i];
                            float after = now[i] > before + SLACK ? now[i] : before;
                            keep[i] = exp2(before - after);
                            top[r][i] = after;
                        }
                        den[r] = den[r] * keep;
                        [[unroll]] for (uint d = 0u; d < HEAD_TILES; d++)
                            sums[r * HEAD_TILES + d] = sums[r * HEAD_TILES + d] * keep;
                    }
                }
                [[unroll]] for (uint r = 0u; r < R; r++) {
                    [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                        float sum = den[r][i];
                        float reference = top[r][i];
                        [[unroll]] for (uint j = 0u; j < KEY_TILES; j++) {
                            float weight = exp2(scores[r * KEY_TILES + j][i] - reference);
                            sum += weight;
                            scores[r * KEY_TILES + j][i] = rounded(weight);
                        }
                        den[r][i] = sum;
                    }
                }

                [[unroll]] for (uint j = 0u; j < WEIGHT_TILES; j++) {
                    MatrixA weights[R];
                    [[unroll]] for (uint r = 0u; r < R; r++) {
#ifdef MATRIX2
                        weights[r] = MatrixA(scores[r * KEY_TILES + j]);
#else
                        [[unroll]] for (uint n = 0u; n < MATRIX_K / MATRIX_N; n++)
                            coopMatStore(scores[r * KEY_TILES + j * (MATRIX_K / MATRIX_N) + n], scratch,
                                         (part + n * MATRIX_N) / 4u, MATRIX_K / 4u, ROW_MAJOR);
                        subgroup_sync();
                        for (uint i = lane; i < PART / 8u; i += SUBGROUP_SIZE) {
                            vec4 low = scratch[part / 4u + 2u * i];
                            vec4 high = scratch[part / 4u + 2u * i + 1u];
                            packed[part / 8u + i] = uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w),
                                                          pack_elements(high.x, high.y), pack_elements(high.z, high.w));
                        }
                        subgroup_sync();
                        coopMatLoad(weights[r], packed, part / 8u, MATRIX_K / 8u, ROW_MAJOR);
#endif
                    }
                    [[unroll]] for (uint d = 0u; d < HEAD_TILES; d++) {
                        MatrixB value;
                        coopMatLoad(value, values, j * MATRIX_K * PITCH + d * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                        [[unroll]] for (uint r = 0u; r < R; r++)
                            sums[r * HEAD_TILES + d] = coopMatMulAdd(weights[r], value, sums[r * HEAD_TILES + d]);
                    }
                }
            }
        }

        [[unroll]] for (uint r = 0u; r < R; r++) {
            uint t = own + r * MATRIX_M + lane; // a lane's row
            coopMatStore(top[r], scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
            subgroup_sync();
            float highest_row = lane < MATRIX_M ? scratch[(part + lane * MATRIX_N) / 4u].x : 0.0;
            subgroup_sync();
            coopMatStore(den[r], scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
            subgroup_sync();
            float total = 0.0;
            if (lane < MATRIX_M) {
                for (uint i = 0u; i < MATRIX_N / 4u; i++) {
                    vec4 quad = scratch[(part + lane * MATRIX_N) / 4u + i];
                    total += (quad.x + quad.y) + (quad.z + quad.w);
                }
                if (t <= t_last) store_lse(args.lse_at + (b * args.L + t) * args.H + h, highest_row * LN_2 + log_above_one(total));
            }
            subgroup_sync();
            if (lane < MATRIX_M) scratch[(part + lane) / 4u][lane % 4u] = 1.0 / total;
            subgroup_sync();
            MatrixSum share;
            LOAD_ROWS(share, part);
            subgroup_sync();
            [[unroll]] for (uint d = 0u; d < HEAD_TILES; d++) {
                coopMatStore(sums[r * HEAD_TILES + d] * share, scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR);
                subgroup_sync();
                [[unroll]] for (uint round = 0u; round < RESULT_STORES; round++) {
                    uint i = lane + round * SUBGROUP_SIZE;
                    uint row = own + r * MATRIX_M + i / (MATRIX_N / 8u);
                    uint column = d * MATRIX_N + i % (MATRIX_N / 8u) * 8u;
                    if (i < MATRIX_M * MATRIX_N / 8u && row <= t_last && column < DEPTH)
                        store_eight(args.o_at + (b * args.L + row) * args.o_row + h * DEPTH + column,
                                    scratch[part / 4u + 2u * i], scratch[part / 4u + 2u * i + 1u]);
                }
                subgroup_sync();
            }
        }
        if (wild != 0u) {
            // Blocks in which values that are not finite were replaced by 0: those values are added for the tokens that see them.
            memoryBarrierBuffer();
            barrier();
            uint from = args.first + (max(min(first_place + 1u, seen), args.first) - args.first) / KEYS * KEYS;
            for (uint i = LANE; i < (t_last - t_first + 1u) * DEPTH; i += LANES) {
                uint row = i / DEPTH;
                uint column = i % DEPTH;
                float sum = 0.0;
                for (uint key = from; key < min(first_place + row + 1u, seen); key++) {
                    uvec4 words = quads_v[v_quad + (cached + key) * v_row + column / 8u];
                    words &= wild_16bit(words);
                    sum += unpack_elements(words[column / 2u % 4u])[column % 2u];
                }
                if (sum != 0.0) store_o(args.o_at + (b * args.L + t_first + row) * args.o_row + h * DEPTH + column, sum);
            }
        }
    }
}
