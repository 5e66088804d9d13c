#version 460
#extension GL_GOOGLE_include_directive : require
// g and slope of sma_backward_scores and the sums of sma_backward_sums on cooperative matrices: see args.h. c, w and up_r have the matrices'
// element type; memories are normalised; N is 16 T1, 16 or 32; P is a multiple of 16, at most 64.
// qn, of_q B L G N; en, of_e B L G P; c, grad_c B L G N; r, up_r B L H P; lse B L H; g, slope B L H M; w B M H N P, factor B M H N.
// A workgroup takes T0 tokens of a (b, group), a subgroup OWN of them, head after head; lines.glsl says how memories lie. A subgroup multiplies one
// memory or two at a time: with Z = w en^T and U = w up_r^T, rows (m, n) x tokens,
//   logit = sum_n qn Z;  v . up_r = sum_n c scale U;  of_q += slope Z;  grad_c += g scale U;  of_e += (slope qn) w.
// slope qn is rounded to the element type; en is the sum of two elements, since an error of a logit is one of its weight; all else is f32. The sums
// over n go through shared memory, where a lane adds up those of a (memory, token); slope and g come back as matrices whose rows are alike.
// Shared memory: that of lines.glsl + SUBGROUPS OWN (8 TOGETHER + 12) bytes, 30,720 with T0 64 and T1 1.
// With -DAHEAD the next memories, of this head or of the next one, are fetched while those before are multiplied.
// Guards: exponents are clamped to <= 0; memories that no token of the tile sees count as 0; tokens past the count are not read and count as 0; g
// and slope of what a token does not see are not written and count as 0.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "lib/eight.glsl"
#include "table/sma_backward_tokens.glsl"
READS_AS(vec4, fours, qn) READS_AS(vec4, fours, en) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, dh) READS(factor) READS(seq)
READS_EIGHT(r) READS(lse) READS_AS(uvec4, quads, up_r) WRITES(g) WRITES(slope) WRITES_AS(vec4, fours, of_q) WRITES_AS(vec4, fours, of_e)
READS_WRITES(grad_c)
#define PACKS
#include "lib/seq.glsl"
#include "sma/backward.glsl"
#include "sma/lines.glsl"
#include "sma/backward_pair.glsl"

shared float dots[SUBGROUPS * OWN];     // r . up_r
shared float sums_log[SUBGROUPS * OWN]; // lse
shared uint sees[SUBGROUPS * OWN];      // memories, from the first on

uvec4 pack_eight(vec4 low, vec4 high)
{
    return uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w), pack_elements(high.x, high.y), pack_elements(high.z, high.w));
}

// en^T and what its rounding leaves, of the first `live` tokens from `row` on; the others are 0.
void take_verifier(uint lane, uint operands_at, uint row, uint live, uint group)
{
    uint width = args.P / 8u;
    [[unroll]] for (uint rest = 0u; rest < 2u; rest++) {
        for (uint i = lane; i < OWN * width; i += SUBGROUP_SIZE) {
            uint t = i / width;
            uint at = ((row + t) * args.G + group) * args.P / 4u + i % width * 2u;
            uint to = operands_at + t * PITCH + i % width;
            vec4 low = t < live ? fours_en[at] : vec4(0.0);
            vec4 high = t < live ? fours_en[at + 1u] : vec4(0.0);
            if (rest == 1u) { // from memory: compilers take a number converted there and back for the number itself
                uvec4 words = operands[to];
                low -= vec4(unpack_elements(words.x), unpack_elements(words.y));
                high -= vec4(unpack_elements(words.z), unpack_elements(words.w));
            }
            operands[to] = pack_eight(low, high);
        }
        subgroup_sync();
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
            [[unroll]] for (uint k = 0u; k < DEPTH_TILES; k++) {
                if (k * MATRIX_K >= args.P) continue;
                uint at = operands_at + j * MATRIX_N * PITCH + k * MATRIX_K / 8u;
                if (rest == 0u) coopMatLoad(verifier[k][j], operands, at, PITCH, COLUMN_MAJOR);
                else coopMatLoad(verifier_rest[k][j], operands, at, PITCH, COLUMN_MAJOR);
            }
        }
        subgroup_sync();
    }
}

void main()
{
    uint s = gl_SubgroupID;
    uint lane = gl_SubgroupInvocationID;
    uint part = s * PARTS;
    uint operands_at = s * OPERANDS;
    uint weight_at = s * 2u * TOGETHER * OWN;
    uint tiles = (args.L + T0 - 1u) / T0;
    uint in_group = args.H / args.G;
    uint width = args.P / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile % tiles * T0;
        uint group = tile / tiles % args.G;
        uint b = tile / tiles / args.G;
        Sequence sequence = sequence_of(b);
        if (first >= sequence.span) continue;
        uint count = sequence.count;
        uint position = sequence.position;
        uint slots = slot_of(sequence, b, args.M, args.S);
        uint seen = first < count ? seen_by(position, min(first + T0, count) - 1u) : 0u;
        uint own_first = first + s * OWN;
        uint row = sequence.row + own_first;
        uint live = own_first < count ? min(count - own_first, OWN) : 0u;
        uint own_seen = live > 0u ? seen_by(position, own_first + live - 1u) : 0u;
        subgroup_sync();
        for (uint t = lane; t < OWN; t += SUBGROUP_SIZE) sees[s * OWN + t] = t < live ? seen_by(position, own_first + t) : 0u;
        for (uint i = lane; i < OWN * STATE / 4u; i += SUBGROUP_SIZE) {
            uint t = i / (STATE / 4u);
            uint q = i % (STATE / 4u);
            parts[part + t * PART_PITCH + q] = t < live ? fours_qn[((row + t) * args.G + group) * STATE / 4u + q] : vec4(0.0);
        }
        subgroup_sync();
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
            [[unroll]] for (uint i = 0u; i < STATE_TILES; i++) coopMatLoad(query[i][j], parts, part_at(part, i, j), PART_PITCH, COLUMN_MAJOR);
        }
        take_verifier(lane, operands_at, row, live, group);
        subgroup_sync();
        for (uint i = lane; i < OWN * STATE / 8u; i += SUBGROUP_SIZE) {
            uint t = i / (STATE / 8u);
            uint q = i % (STATE / 8u);
            uvec4 words = t < live ? quads_c[(args.c_at + (row + t) * args.c_row + group * STATE) / 8u + q] : uvec4(0u);
            put_part(part, t, q, words);
        }
        subgroup_sync();
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
            [[unroll]] for (uint i = 0u; i < STATE_TILES; i++) {
                coopMatLoad(read[i][j], parts, part_at(part, i, j), PART_PITCH, COLUMN_MAJOR);
                sum_q[i][j] = MatrixSum(0.0);
                sum_c[i][j] = MatrixSum(0.0);
            }
        }
        [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
            [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) sums[i][j] = MatrixSum(0.0);
        }

#ifdef AHEAD
        fetch_lines(slots, group * in_group, 0u, seen);
#endif
        for (uint h = group * in_group; h < (group + 1u) * in_group && seen > 0u; h++) {
            subgroup_sync();
            for (uint i = lane; i < OWN * width; i += SUBGROUP_SIZE) {
                uint t = i / width;
                uint q = i % width;
                uvec4 words = uvec4(0u);
                float along = 0.0;
                if (t < live) {
                    words = quads_up_r[(args.up_r_at + (row + t) * args.up_r_row + h * args.P) / 8u + q];
                    Eight of_r = load_eight_r(args.r_at + (row + t) * args.r_row + h * args.P + 8u * q);
                    along = dot(of_r.low, vec4(unpack_elements(words.x), unpack_elements(words.y))) +
                            dot(of_r.high, vec4(unpack_elements(words.z), unpack_elements(words.w)));
                }
                operands[operands_at + t * PITCH + q] = words;
                parts[part + 2u * t + q / 4u][q % 4u] = along;
            }
            subgroup_sync();
            [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
                [[unroll]] for (uint k = 0u; k < DEPTH_TILES; k++)
                    if (k * MATRIX_K < args.P)
                        coopMatLoad(incoming[k][j], operands, operands_at + j * MATRIX_N * PITCH + k * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
            }
            for (uint t = lane; t < OWN; t += SUBGROUP_SIZE) {
                float sum = 0.0;
                for (uint q = 0u; q < width; q++) sum += parts[part + 2u * t + q / 4u][q % 4u];
                dots[s * OWN + t] = sum;
                sums_log[s * OWN + t] = sees[s * OWN + t] > 0u ? load_lse(args.lse_at + (row + t) * args.H + h) : 0.0;
            }
            for (uint m_first = 0u; m_first < seen; m_first += LINES / STATE) {
                barrier();
#ifdef AHEAD
                put_fetched_lines();
                barrier();
                bool more = m_first + LINES / STATE < seen; // of this head; else the next head's, which is the same once more at the end
                fetch_lines(slots, more ? h : min(h + 1u, (group + 1u) * in_group - 1u), more ? m_first + LINES / STATE : 0u, seen);
#else
                put_lines(slots, h, m_first, seen);
                barrier();
#endif
                for (uint line = 0u; line < LINES && m_first + line / STATE < own_seen; line += LINES_ONCE) {
                    multiply_pair(line);
                    put_products(part, false);
                    subgroup_sync();
                    float logit[ITEMS];
                    [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
                        uint item = lane + x * SUBGROUP_SIZE;
                        logit[x] = item < TOGETHER * OWN ? part_sum(part, item) : 0.0;
                    }
                    subgroup_sync();
                    put_products(part, true);
                    subgroup_sync();
                    [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
                        uint item = lane + x * SUBGROUP_SIZE;
                        if (item >= TOGETHER * OWN) continue;
                        uint put = item / OWN;
                        uint t = item % OWN;
                        uint m = m_first + line / STATE + put;
                        uint own = sees[s * OWN + t];
                        float weight = 0.0;
                        float slope = 0.0;
                        if (m < own) {
                            uint to = ((row + t) * args.H + h) * args.M + m;
                            weight = exp_neg(logit[x] - sums_log[s * OWN + t]);
                            slope = own == 1u ? 0.0 : weight * (part_sum(part, item) - dots[s * OWN + t]);
                            store_g(to, weight);
                            store_slope(to, slope);
                        }
                        weights[weight_at + 2u * put * OWN + t] = slope;
                        weights[weight_at + (2u * put + 1u) * OWN + t] = weight;
                        uint at = ((row + min(t, max(live, 1u) - 1u)) * args.G + group) * STATE / 4u;
                        [[unroll]] for (uint q = 0u; q < STATE / 8u; q++)
                            operands[operands_at + t * BY_PITCH + put * STATE / 8u + q] =
                                pack_eight(slope * fours_qn[at + 2u * q], slope * fours_qn[at + 2u * q + 1u]);
                    }
                    subgroup_sync();
                    add_pair(weight_at, operands_at, line);
                }
            }
        }

        uint rows = own_first < sequence.span ? min(sequence.span - own_first, OWN) : 0u; // that are written
        bool adds = has(args.flags, IS_ADD);
        subgroup_sync();
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
            [[unroll]] for (uint i = 0u; i < STATE_TILES; i++)
                coopMatStore(sum_q[i][j], parts, part_at(part, i, j), PART_PITCH, COLUMN_MAJOR);
        }
        subgroup_sync();
        for (uint i = lane; i < rows * (STATE / 4u); i += SUBGROUP_SIZE) {
            uint t = i / (STATE / 4u);
            uint q = i % (STATE / 4u);
            fours_of_q[((row + t) * args.G + group) * STATE / 4u + q] = parts[part + t * PART_PITCH + q];
        }
        subgroup_sync();
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
            [[unroll]] for (uint i = 0u; i < STATE_TILES; i++)
                coopMatStore(sum_c[i][j], parts, part_at(part, i, j), PART_PITCH, COLUMN_MAJOR);
        }
        subgroup_sync();
        for (uint i = lane; i < (adds ? live : rows) * STATE; i += SUBGROUP_SIZE) {
            uint t = i / STATE;
            uint n = i % STATE;
            uint to = args.grad_c_at + (row + t) * args.grad_c_row + group * STATE + n;
            float of_c = parts[part + t * PART_PITCH + n / 4u][n % 4u];
            store_grad_c(to, adds ? load_grad_c(to) + of_c : of_c);
        }
        for (uint p = 0u; p < args.P; p += WIDTH / 2u) {
            subgroup_sync();
            put_columns(part, p);
            subgroup_sync();
            uint fours = min(args.P - p, WIDTH / 2u) / 4u;
            for (uint i = lane; i < rows * fours; i += SUBGROUP_SIZE) {
                uint t = i / fours;
                fours_of_e[(((row + t) * args.G + group) * args.P + p) / 4u + i % fours] = parts[part + t * OUT_PITCH + i % fours];
            }
        }
    }
}
