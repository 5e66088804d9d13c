#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// The matrix rows of ssd_backward_b and, with -DREADS_STATE, ssd_backward_c: SIDE tokens x 128 columns n of a (b, j, g).
//   grad_b_s = sum_(t >= s) grad_cb_ts c_t + the sum over the heads of a group of keep_s step_s G x_s, G = lambda + up_dh in 16 bits;
//   grad_c_t = sum_(s <= t) grad_cb_ts b_s + the sum over the heads of a group of exp(cum_t) hin up_y_t, hin in 16 bits; IS_ADD: added to grad_c,
// and of each token and head exp(cum_t) c_t . hin up_y_t.
// With parts above 1 the sums of a part are left in f32. A subgroup makes 16 tokens x 64 columns. First come the products with grad_cb, which is
// rounded once, SIDE tokens at a time; then for each head those of x or up_y, as they are, with N x P of its state, scaled in f32 when they are
// added to the sum. What comes next is fetched into registers meanwhile.
// x, up_y B L H P; b, c, grad_b, grad_c B L G N; cum B H L 3; grad_cb B M G C C; lambda, hin B M H N P, 16-bit, hin raw or with hin_scale B M H N;
// token B L H 4. T0 is 128 and T1 64, or T0 64; LANES eight subgroups. Shared memory: 27,648 + 256 bytes, with READS_STATE 1,536 more.
// Guards: exponents <= 0; tokens past the chunk are not read and count as 0, and so does grad_cb past the chunk and above the diagonal.
#include "lib/dart.glsl"
#include "backward_tokens_matrix.glsl"

void main()
{
    uint tiles = (args.C + SIDE - 1u) / SIDE;
    uint in_part = args.H / args.G / args.parts; // heads
    uint line = gl_SubgroupID % ROW_GROUPS * OWN_ROWS;
    uint column_group = gl_SubgroupID / ROW_GROUPS;
    uint column = column_group * COLUMNS;
    uint part = gl_SubgroupID * PART_WORDS;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile % tiles * SIDE;
        uint share = tile / tiles % args.parts;
        uint g = tile / tiles / args.parts % args.G;
        uint first_head = (g * args.parts + share) * in_part;
        Place at = place_of(tile / tiles / args.parts / args.G);
        if (first >= at.size) continue;
        uint square = (at.slot * args.G + g) * args.C * args.C;
        MatrixSum total[TM * TN];
        EACH_TILE(i, n) total[i * TN + n] = MatrixSum(0.0);

#if defined(READS_STATE) && defined(MATRIX2)
        MatrixSum c_rows[TM * TN]; // of the subgroup's tokens and columns
        barrier();
        [[unroll]] for (uint half_of = 0u; half_of < COLUMNS / PART; half_of++) {
            subgroup_sync();
            [[unroll]] for (uint i = 0u; i < OWN_ITEMS; i++) {
                uint to = part + ITEM_ROW(i) * PART_PITCH + ITEM_WORD(i) * 2u;
                uvec4 words = c_word(at, g, first + line + ITEM_ROW(i), column + half_of * PART + ITEM_WORD(i) * 8u);
                stage[to] = floatBitsToUint(low_four(words));
                stage[to + 1u] = floatBitsToUint(high_four(words));
            }
            subgroup_sync();
            [[unroll]] for (uint i = 0u; i < TM; i++) {
                [[unroll]] for (uint n = 0u; n < PART_TILES; n++)
                    coopMatLoad(c_rows[i * TN + half_of * PART_TILES + n], stage, part + i * MATRIX_M * PART_PITCH + n * MATRIX_N / 4u, PART_PITCH,
                                ROW_MAJOR);
            }
        }
#endif

        uvec4 left_words[UNITS];
        uvec4 right_words[STATE_UNITS]; // OTHER_UNITS are as many
        vec4 fours[2u * UNITS];
        uint other_begin = OTHER_BEGIN + share * SIDE; // a part has every args.parts-th block
        uint other_end = OTHER_END;
        float unit = exp2(-104.0); // the least of unit_of
        if (other_begin < other_end) FETCH_OTHERS(other_begin)
        else FETCH_HEAD(0u)
        for (uint block = other_begin; block < other_end; block += SIDE * args.parts) {
            [[unroll]] for (uint i = 0u; i < 2u * UNITS; i++) {
                uint t = SQUARE_ROW(block) + ROW_OF(i / 2u);
                uint s = SQUARE_COLUMN(block) + WORD_OF(i / 2u) * 8u + i % 2u * 4u;
                [[unroll]] for (uint e = 0u; e < 4u; e++) fours[i][e] = s + e <= t && t < at.size ? fours[i][e] : 0.0;
            }
            PUT_TOP
            barrier();
            GROW_UNIT
            [[unroll]] for (uint i = 0u; i < UNITS; i++) stage[PLACE_OF(i)] = pack_eight(OVER_UNIT(fours[2u * i]), OVER_UNIT(fours[2u * i + 1u]));
            [[unroll]] for (uint i = 0u; i < OTHER_UNITS; i++) {
                uint e = LANE + i * LANES;
                stage[PANEL + e / OTHER_WORDS * OTHER_PITCH + e % OTHER_WORDS] = right_words[i];
            }
            barrier();
            if (block + SIDE * args.parts < other_end) FETCH_OTHERS(block + SIDE * args.parts)
            else FETCH_HEAD(0u)
            [[unroll]] for (uint k = 0u; k < SIDE; k += MATRIX_K) {
                MatrixA left[TM];
                LOAD_SQUARE(left, stage, 0u, line, k, PITCH)
                [[unroll]] for (uint n = 0u; n < TN; n++) {
                    MatrixB right;
                    coopMatLoad(right, stage, PANEL + k * OTHER_PITCH + (column + n * MATRIX_N) / 8u, OTHER_PITCH, ROW_MAJOR);
                    [[unroll]] for (uint i = 0u; i < TM; i++) total[i * TN + n] = coopMatMulAdd(left[i], right, total[i * TN + n]);
                }
            }
        }
        DROP_UNIT

        for (uint head = 0u; head < in_part; head++) {
            uint h = first_head + head;
            uint cum = cum_of(at, h);
            barrier();
            [[unroll]] for (uint i = 0u; i < UNITS; i++) stage[PLACE_OF(i)] = left_words[i];
            [[unroll]] for (uint i = 0u; i < STATE_UNITS; i++) stage[PANEL + PLACE_OF(i)] = right_words[i];
            for (uint i = LANE; i < SIDE; i += LANES) {
                vec3 own = cum_at(cum + min(first + i, at.size - 1u));
#ifdef READS_STATE
                factors[i] = exp_neg(own.x);
#else
                factors[i] = exp_neg(cum_between(own.xy, cum_at(cum + at.size - 1u).xy)) * own.z;
#endif
            }
            if (HAS_SCALES) {
                for (uint n = LANE; n < MAX_N; n += LANES) scales[n] = n < args.N ? LOAD_SCALE((at.slot * args.H + h) * args.N + n) : 0.0;
            }
            barrier();
#ifdef READS_STATE
            if (head > 0u) PUT_ALONG(head - 1u)
#endif
            if (head + 1u < in_part) FETCH_HEAD(head + 1u)
            MatrixSum sums[TM * TN];
            MatrixSum by[TM];
            [[unroll]] for (uint i = 0u; i < TM; i++) coopMatLoad(by[i], factors, line + i * MATRIX_M, 0u, COLUMN_MAJOR);
#if defined(READS_STATE) && defined(MATRIX2)
            MatrixSum along[TM];
            [[unroll]] for (uint i = 0u; i < TM; i++) along[i] = MatrixSum(0.0);
#endif
            [[unroll]] for (uint half_of = 0u; half_of < COLUMNS / PART; half_of++) { // half of the columns at a time: fewer registers
#define EACH_HALF_TILE(i, n) [[unroll]] for (uint i = 0u; i < TM; i++) \
                [[unroll]] for (uint n = half_of * PART_TILES; n < (half_of + 1u) * PART_TILES; n++)
                EACH_HALF_TILE(i, n) sums[i * TN + n] = MatrixSum(0.0);
                [[unroll]] for (uint k = 0u; k < HEAD; k += MATRIX_K) {
                    MatrixA left[TM];
                    LOAD_LINES(left, stage, 0u, line, k, PITCH)
                    [[unroll]] for (uint n = half_of * PART_TILES; n < (half_of + 1u) * PART_TILES; n++) {
                        MatrixB right;
                        coopMatLoad(right, stage, PANEL + (column + n * MATRIX_N) * PITCH + k / 8u, PITCH, COLUMN_MAJOR);
                        [[unroll]] for (uint i = 0u; i < TM; i++) sums[i * TN + n] = coopMatMulAdd(left[i], right, sums[i * TN + n]);
                    }
                }
                EACH_HALF_TILE(i, n) {
                    sums[i * TN + n] = sums[i * TN + n] * by[i];
                    if (HAS_SCALES) {
                        MatrixSum scale;
                        coopMatLoad(scale, scales, column + n * MATRIX_N, 0u, ROW_MAJOR);
                        sums[i * TN + n] = sums[i * TN + n] * scale;
                    }
#if defined(READS_STATE) && defined(MATRIX2)
                    along[i] += sums[i * TN + n] * c_rows[i * TN + n];
#endif
                    total[i * TN + n] += sums[i * TN + n];
                }
            }
#ifdef READS_STATE
            // The sum over n of c_t[n] times the row, for grad_dt.
            uint alongs_at = (head % 2u * COLUMN_GROUPS + column_group) * SIDE + line;
#ifdef MATRIX2
            [[unroll]] for (uint i = 0u; i < TM; i++) {
                MatrixSum sum;
                coopMatReduceNV(sum, along[i], gl_CooperativeMatrixReduceRowNV, sum_of);
                coopMatStore(sum, alongs, alongs_at + i * MATRIX_M, 0u, COLUMN_MAJOR);
            }
#else
            barrier();
            float along[OWN_ITEMS];
            [[unroll]] for (uint half_of = 0u; half_of < COLUMNS / PART; half_of++) {
                subgroup_sync();
                PUT_PART(sums, half_of)
                subgroup_sync();
                [[unroll]] for (uint i = 0u; i < OWN_ITEMS; i++) {
                    uint from = part + ITEM_ROW(i) * PART_PITCH + ITEM_WORD(i) * 2u;
                    uvec4 words = c_word(at, g, first + line + ITEM_ROW(i), column + half_of * PART + ITEM_WORD(i) * 8u);
                    float some = dot(uintBitsToFloat(stage[from]), low_four(words)) + dot(uintBitsToFloat(stage[from + 1u]), high_four(words));
                    along[i] = half_of == 0u ? some : along[i] + some;
                }
            }
            [[unroll]] for (uint i = 0u; i < OWN_ITEMS; i++) {
                float sum = along[i] + subgroupShuffleXor(along[i], 1u);
                sum += subgroupShuffleXor(sum, 2u);
                if (ITEM_WORD(i) == 0u) alongs[alongs_at + ITEM_ROW(i)] = sum;
            }
#endif
#endif
        }

#ifdef READS_STATE
        barrier();
        PUT_ALONG(in_part - 1u)
#else
        barrier();
#endif
        [[unroll]] for (uint half_of = 0u; half_of < COLUMNS / PART; half_of++) {
            subgroup_sync();
            PUT_PART(total, half_of)
            subgroup_sync();
            [[unroll]] for (uint i = 0u; i < OWN_ITEMS; i++) {
                uint from = part + ITEM_ROW(i) * PART_PITCH + ITEM_WORD(i) * 2u;
                uint t = first + line + ITEM_ROW(i);
                uint n = column + half_of * PART + ITEM_WORD(i) * 8u;
                if (t < at.size && n < args.N) {
                    if (args.parts > 1u) {
                        uint to = 2u * RESULT_AT(share * args.B * args.L + at.token + t) + (g * args.N + n) / 4u;
                        RESULT[to] = stage[from];
                        RESULT[to + 1u] = stage[from + 1u];
                        continue;
                    }
                    uint to = RESULT_AT(at.token + t) + (g * args.N + n) / 8u;
                    vec4 low = uintBitsToFloat(stage[from]);
                    vec4 high = uintBitsToFloat(stage[from + 1u]);
#ifdef READS_STATE
                    if (has(args.flags, IS_ADD)) {
                        low += low_four(RESULT[to]);
                        high += high_four(RESULT[to]);
                    }
#endif
                    RESULT[to] = pack_eight(low, high);
                }
            }
        }
    }
}
