#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// The matrix rows of ssd_backward_x: v_s = keep_s b_s G + sum_(t >= s) cb_ts exp(cum_t - cum_s) up_y_t, grad_x = step v + d up_y, with
// G = lambda + up_dh in 16 bits (ssd_backward_gain); and of each token x . v, the part of it that went into the memory, and up_y . x.
// A workgroup makes SIDE tokens of a (b, j, h); a subgroup 16 tokens x 32 columns. First b G, times exp(tot - cum_e) with e the last of the tokens;
// then later tokens t, SIDE at a time from the last on, weighted by cb_ts exp(cum_t - cum_e); then all of it times exp(cum_e - cum_s), and last the
// own tokens with their own decays: no exponent is above 0. Weights are rounded once, on their way into shared memory, where they lie as cb does.
// What the next step multiplies is fetched into registers meanwhile.
// In f16 G counts relative to the largest of its rows' units, and c . b is divided by LIFT.
// x, up_y, grad_x B L H P; b B L G N; cum B H L 3; cb B M G C C; lambda B M H N P, 16-bit, in f16 with gain_scale B M H N; d H; token B L H 4.
// T0 is 64, LANES eight subgroups. Shared memory: 20,736 bytes.
// Guards: tokens past the chunk are not read and count as 0; cb past the chunk or above the diagonal counts as 0.
#include "lib/dart.glsl"
#include "table/ssd_backward_x.glsl"
READS(cum) READS(cb) READS(d) READS(seq) WRITES(token)
READS_AS(uvec4, quads, x) READS_AS(uvec4, quads, b) READS_AS(uvec4, quads, up_y) READS_AS(uvec4, quads, lambda) READS_AS(vec4, quads, cb)
WRITES_AS(uvec4, quads, grad_x)
#ifndef MATRIX_BF16
READS(gain_scale)
#endif
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "lib/matrix.glsl"
#include "matrix.glsl"
#include "backward.glsl"
#include "backward_matrix.glsl"

const uint COLUMN_GROUPS = SUBGROUPS / ROW_GROUPS;
const uint COLUMNS = HEAD / COLUMN_GROUPS;
const uint TN = COLUMNS / MATRIX_N;
shared uvec4 stage[2u * PANEL];  // left and right operands; a part of sums for each subgroup
shared vec4 own_cum[SIDE];       // hi, lo, step
shared float after[SIDE];        // exp(cum_e - cum_s)
shared float totals[6u * SIDE];  // x . v, keep b G . x, up_y . x; of each group of columns

#define MULTIPLY(LOAD, first_depth) \
    [[unroll]] for (uint k = 0u; k < SIDE; k += MATRIX_K) { \
        if (k + MATRIX_K > (first_depth)) { \
            MatrixA left[TM]; \
            LOAD(left, stage, 0u, line, k, PITCH) \
            [[unroll]] for (uint n = 0u; n < TN; n++) { \
                MatrixB right; \
                coopMatLoad(right, stage, PANEL + k * PITCH + (column + n * MATRIX_N) / 8u, PITCH, ROW_MAJOR); \
                [[unroll]] for (uint i = 0u; i < TM; i++) sums[i * TN + n] = coopMatMulAdd(left[i], right, sums[i * TN + n]); \
            } \
        } \
    }
#define PUT_SUMS \
    [[unroll]] for (uint i = 0u; i < TM; i++) { \
        [[unroll]] for (uint n = 0u; n < TN; n++) \
            coopMatStore(sums[i * TN + n], stage, part + i * MATRIX_M * PART_PITCH + n * MATRIX_N / 4u, PART_PITCH, ROW_MAJOR); \
    }
#define ROW_OF(i) ((LANE + (i) * LANES) / WORDS)
#define WORD_OF(i) ((LANE + (i) * LANES) % WORDS)
#define PLACE_OF(i) (ROW_OF(i) * PITCH + WORD_OF(i))

// Four elements of cb from column s on, of a row that begins at `row`. Past the C columns there are none: others stand in.
vec4 four_of_cb(uint row, uint s)
{
    if (args.C % 4u == 0u) return quads_cb[(row + min(s, args.C - 4u)) / 4u];
    vec4 four;
    [[unroll]] for (uint e = 0u; e < 4u; e++) four[e] = load_cb(row + min(s + e, args.C - 1u));
    return four;
}

// The sum over the four lanes that share a row of a part.
float row_sum(float value)
{
    value += subgroupShuffleXor(value, 1u);
    return value + subgroupShuffleXor(value, 2u);
}

void main()
{
    uint tiles = (args.C + SIDE - 1u) / SIDE;
    uint line = gl_SubgroupID % ROW_GROUPS * OWN_ROWS;
    uint column_group = gl_SubgroupID / ROW_GROUPS;
    uint column = column_group * COLUMNS;
    uint part = gl_SubgroupID * PART_WORDS;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile % tiles * SIDE;
        uint h = tile / tiles % args.H;
        uint g = h / (args.H / args.G);
        Place at = place_of(tile / tiles / args.H);
        if (first >= at.size) continue;
        uint cum = cum_of(at, h);
        uint square = (at.slot * args.G + g) * args.C * args.C;
        uint gain_row = (at.slot * args.H + h) * args.N;
        uint gain = gain_row * args.P / 8u;
        uint last = min(first + SIDE, at.size) - 1u;
        uint b_first = (args.b_at + (at.token + first) * args.b_row + g * args.N) / 8u;
        uint up_first = (args.up_y_at + at.token * args.up_y_row + h * args.P) / 8u;
        vec2 border = cum_at(cum + last).xy;
        vec2 total = cum_at(cum + at.size - 1u).xy;
        uvec4 left_words[UNITS];
        uvec4 right_words[UNITS];
        vec4 fours[2u * UNITS];
        vec2 tokens[UNITS];
#define FETCH_STATES(n_first) \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
            uint n = (n_first) + ROW_OF(i); \
            left_words[i] = first + ROW_OF(i) < at.size && (n_first) / 8u + WORD_OF(i) < args.N / 8u ? \
                                quads_b[b_first + ROW_OF(i) * (args.b_row / 8u) + (n_first) / 8u + WORD_OF(i)] : uvec4(0u); \
            right_words[i] = n < args.N && WORD_OF(i) < args.P / 8u ? quads_lambda[gain + n * (args.P / 8u) + WORD_OF(i)] : uvec4(0u); \
        }
#define FETCH_TOKENS(t_first) \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
            uint t = (t_first) + ROW_OF(i); \
            uint row = square + min(t, at.size - 1u) * args.C; \
            fours[2u * i] = four_of_cb(row, first + WORD_OF(i) * 8u); \
            fours[2u * i + 1u] = four_of_cb(row, first + WORD_OF(i) * 8u + 4u); \
            tokens[i] = cum_at(cum + min(t, at.size - 1u)).xy; \
            right_words[i] = t < at.size && WORD_OF(i) < args.P / 8u ? quads_up_y[up_first + t * (args.up_y_row / 8u) + WORD_OF(i)] : uvec4(0u); \
        }
        float unit = 1.0; // of all rows of G
#ifndef MATRIX_BF16
        unit = 0.0;
        for (uint n = gl_SubgroupInvocationID; n < args.N; n += SUBGROUP_SIZE) unit = max(unit, load_gain_scale(gain_row + n));
        unit = subgroupMax(unit);
#endif
        FETCH_STATES(0u)
        barrier();
        for (uint s = LANE; s < SIDE; s += LANES) {
            vec3 own = cum_at(cum + min(first + s, at.size - 1u));
            own_cum[s] = vec4(own, 0.0);
            after[s] = exp_neg(cum_between(own.xy, border));
        }
        // This lane's words of x and the rows that they belong to.
        uvec4 x_words[OWN_ITEMS];
        [[unroll]] for (uint i = 0u; i < OWN_ITEMS; i++) {
            uint item = gl_SubgroupInvocationID + i * SUBGROUP_SIZE;
            uint s = first + line + item / 4u;
            uint p = column + item % 4u * 8u;
            x_words[i] = s < at.size && p < args.P ? quads_x[(args.x_at + (at.token + s) * args.x_row + h * args.P + p) / 8u] : uvec4(0u);
        }
        MatrixSum sums[TM * TN];
        [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = MatrixSum(0.0);
        uint t_first = (at.size - 1u) / SIDE * SIDE; // of the later tokens
        for (uint n_first = 0u; n_first < args.N; n_first += SIDE) {
            if (n_first > 0u) barrier();
            [[unroll]] for (uint i = 0u; i < UNITS; i++) {
                stage[PLACE_OF(i)] = left_words[i];
#ifdef MATRIX_BF16
                stage[PANEL + PLACE_OF(i)] = right_words[i];
#else
                stage[PANEL + PLACE_OF(i)] = scale_eight(right_words[i], load_gain_scale(gain_row + min(n_first + ROW_OF(i), args.N - 1u)) / unit);
#endif
            }
            barrier();
            if (n_first + SIDE < args.N) FETCH_STATES(n_first + SIDE)
            else FETCH_TOKENS(t_first)
            MULTIPLY(LOAD_LINES, 0u)
        }
        barrier();
        float keep = exp_neg(cum_between(border, total)) * (unit / LIFT);
        [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = sums[i] * keep;
        PUT_SUMS
        subgroup_sync();
        [[unroll]] for (uint i = 0u; i < OWN_ITEMS; i++) {
            uint item = gl_SubgroupInvocationID + i * SUBGROUP_SIZE;
            uint from = part + item / 4u * PART_PITCH + item % 4u * 2u;
            float written = row_sum(dot(uintBitsToFloat(stage[from]), low_four(x_words[i])) +
                                    dot(uintBitsToFloat(stage[from + 1u]), high_four(x_words[i])));
            uint s = line + item / 4u;
            if (item % 4u == 0u) totals[(2u + column_group) * SIDE + s] = written * after[s] * LIFT;
        }

        for (bool own = false; !own;) {
            own = t_first == first;
            barrier();
            [[unroll]] for (uint i = 0u; i < UNITS; i++) {
                vec4 low;
                vec4 high;
                uint t = t_first + ROW_OF(i);
                if (own) {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        uint s = WORD_OF(i) * 8u + e;
                        low[e] = first + s <= t && t < at.size ? fours[2u * i][e] * decay_exp(cum_between(own_cum[s].xy, tokens[i])) : 0.0;
                        s += 4u;
                        high[e] = first + s <= t && t < at.size ? fours[2u * i + 1u][e] * decay_exp(cum_between(own_cum[s].xy, tokens[i])) : 0.0;
                    }
                } else {
                    float factor = decay_exp(cum_between(border, tokens[i]));
                    low = t < at.size ? fours[2u * i] * factor : vec4(0.0);
                    high = t < at.size ? fours[2u * i + 1u] * factor : vec4(0.0);
                }
                stage[PLACE_OF(i)] = pack_eight(low / LIFT, high / LIFT);
                stage[PANEL + PLACE_OF(i)] = right_words[i];
            }
            barrier();
            if (own) {
                [[unroll]] for (uint i = 0u; i < TM; i++) {
                    MatrixSum decays;
                    coopMatLoad(decays, after, line + i * MATRIX_M, 0u, COLUMN_MAJOR);
                    [[unroll]] for (uint n = 0u; n < TN; n++) sums[i * TN + n] = sums[i * TN + n] * decays;
                }
                MULTIPLY(LOAD_LINES_TURNED, line + 1u)
            } else {
                t_first -= SIDE;
                FETCH_TOKENS(t_first)
                MULTIPLY(LOAD_LINES_TURNED, 0u)
            }
        }

        float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
        uvec4 up_words[OWN_ITEMS];
        [[unroll]] for (uint i = 0u; i < OWN_ITEMS; i++) {
            uint item = gl_SubgroupInvocationID + i * SUBGROUP_SIZE;
            up_words[i] = stage[PANEL + (line + item / 4u) * PITCH + column / 8u + item % 4u];
        }
        barrier();
        PUT_SUMS
        subgroup_sync();
        [[unroll]] for (uint i = 0u; i < OWN_ITEMS; i++) {
            uint item = gl_SubgroupInvocationID + i * SUBGROUP_SIZE;
            uint from = part + item / 4u * PART_PITCH + item % 4u * 2u;
            uint s = line + item / 4u;
            uint p = column + item % 4u * 8u;
            vec4 low = uintBitsToFloat(stage[from]) * LIFT;
            vec4 high = uintBitsToFloat(stage[from + 1u]) * LIFT;
            vec4 x_low = low_four(x_words[i]);
            vec4 x_high = high_four(x_words[i]);
            vec4 up_low = low_four(up_words[i]);
            vec4 up_high = high_four(up_words[i]);
            float along = row_sum(dot(low, x_low) + dot(high, x_high));
            float skipped = row_sum(dot(up_low, x_low) + dot(up_high, x_high));
            if (item % 4u == 0u) {
                totals[column_group * SIDE + s] = along;
                totals[(4u + column_group) * SIDE + s] = skipped;
            }
            float step_size = own_cum[s].z;
            if (first + s < at.size && p < args.P)
                quads_grad_x[(args.grad_x_at + (at.token + first + s) * args.grad_x_row + h * args.P + p) / 8u] =
                    pack_eight(step_size * low + skip * up_low, step_size * high + skip * up_high);
        }
        barrier();
        for (uint s = LANE; s < SIDE; s += LANES) {
            if (first + s >= at.size) continue;
            uint to = ((at.token + first + s) * args.H + h) * 4u;
            store_token(to, totals[s] + totals[SIDE + s]);
            store_token(to + 1u, (totals[2u * SIDE + s] + totals[3u * SIDE + s]) * own_cum[s].z);
            store_token(to + 2u, totals[4u * SIDE + s] + totals[5u * SIDE + s]);
        }
    }
}
