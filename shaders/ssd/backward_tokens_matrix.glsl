// Bindings, shared memory and pieces of backward_tokens_matrix.comp, which includes this after lib/dart.glsl.
#ifdef READS_STATE
#include "table/ssd_backward_c.glsl"
READS(cum) READS(grad_cb) READS(seq) READS(hin_scale) READS_WRITES(token) READS_AS(uvec4, quads, b) READS_AS(uvec4, quads, c)
READS_AS(uvec4, quads, up_y) READS_AS(uvec4, quads, hin) READS_AS(vec4, quads, grad_cb) READS_WRITES_AS(uvec4, quads, grad_c)
#define ROWS_AT(row) quads_up_y[(args.up_y_at + (row) * args.up_y_row) / 8u + rows_word]
#define OTHER_AT(row) quads_b[(args.b_at + (row) * args.b_row) / 8u + other_word]
#define STATE_AT(at) quads_hin[args.hin_at / 8u + (at)]
#define RESULT_AT(row) ((args.grad_c_at + (row) * args.grad_c_row) / 8u)
#define RESULT quads_grad_c
#define LOAD_SQUARE LOAD_LINES
#define HAS_SCALES has(args.flags, HAS_HIN_SCALE)
#define LOAD_SCALE(row) load_hin_scale(args.hin_scale_at + (row))
#else
#include "table/ssd_backward_b.glsl"
READS(cum) READS(grad_cb) READS(seq) READS_AS(uvec4, quads, x) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, lambda)
READS_AS(vec4, quads, grad_cb) WRITES_AS(uvec4, quads, grad_b)
#define ROWS_AT(row) quads_x[(args.x_at + (row) * args.x_row) / 8u + rows_word]
#define OTHER_AT(row) quads_c[(args.c_at + (row) * args.c_row) / 8u + other_word]
#define STATE_AT(at) quads_lambda[at]
#define RESULT_AT(row) ((args.grad_b_at + (row) * args.grad_b_row) / 8u)
#define RESULT quads_grad_b
#define LOAD_SQUARE LOAD_LINES_TURNED
#ifdef MATRIX_BF16
#define HAS_SCALES false
#define LOAD_SCALE(row) 1.0
#else
READS(gain_scale)
#define HAS_SCALES true
#define LOAD_SCALE(row) load_gain_scale(row)
#endif
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
const uint COLUMNS = MAX_N / COLUMN_GROUPS;
const uint TN = COLUMNS / MATRIX_N;
const uint OTHER_WORDS = MAX_N / 8u;
const uint OTHER_PITCH = OTHER_WORDS + 1u;
const uint OTHER_UNITS = SIDE * OTHER_WORDS / LANES;
const uint STATE_UNITS = MAX_N * WORDS / LANES;
const uint PART_TILES = PART / MATRIX_N;
shared uvec4 stage[3u * PANEL]; // left and right operands; a part of sums for each subgroup
shared float factors[SIDE];
shared float scales[MAX_N]; // of the state's rows
#ifndef MATRIX_BF16
shared float tops[SUBGROUPS]; // of grad_cb, the largest among a subgroup's words
#endif
#ifdef READS_STATE
shared float alongs[2u * COLUMN_GROUPS * SIDE]; // of a head and the next one
#endif

#define ROW_OF(i) ((LANE + (i) * LANES) / WORDS)
#define WORD_OF(i) ((LANE + (i) * LANES) % WORDS)
#define PLACE_OF(i) (ROW_OF(i) * PITCH + WORD_OF(i))
#define EACH_TILE(i, n) [[unroll]] for (uint i = 0u; i < TM; i++) [[unroll]] for (uint n = 0u; n < TN; n++)

// Four elements of grad_cb from column s on, of a row that begins at `row`. Past the C columns there are none: others stand in.
vec4 four_of_square(uint row, uint s)
{
    if (args.C % 4u == 0u) return quads_grad_cb[(row + min(s, args.C - 4u)) / 4u];
    vec4 four;
    [[unroll]] for (uint e = 0u; e < 4u; e++) four[e] = load_grad_cb(row + min(s + e, args.C - 1u));
    return four;
}

#ifdef MATRIX2
float sum_of(const in float a, const in float b) { return a + b; }
#endif

// A lane's words of 8 columns of a part: row and word.
#define ITEM_ROW(i) ((gl_SubgroupInvocationID + (i) * SUBGROUP_SIZE) / 4u)
#define ITEM_WORD(i) (gl_SubgroupInvocationID % 4u)
#ifdef READS_STATE
uvec4 c_word(Place at, uint g, uint t, uint n)
{
    return n < args.N ? quads_c[(args.c_at + (at.token + min(t, at.size - 1u)) * args.c_row + g * args.N + n) / 8u] : uvec4(0u);
}
#define PUT_ALONG(head) \
    for (uint t = LANE; t < SIDE; t += LANES) { \
        uint from = (head) % 2u * COLUMN_GROUPS * SIDE + t; \
        if (first + t < at.size) \
            store_token(((at.token + first + t) * args.H + first_head + (head)) * 4u + 3u, alongs[from] + alongs[SIDE + from]); \
    }
#endif

// The part `half_of` (of two) of sums, of 32 columns.
#define PUT_PART(sums, half_of) \
    [[unroll]] for (uint i = 0u; i < TM; i++) { \
        [[unroll]] for (uint n = 0u; n < PART_TILES; n++) \
            coopMatStore(sums[i * TN + (half_of) * PART_TILES + n], stage, part + i * MATRIX_M * PART_PITCH + n * MATRIX_N / 4u, PART_PITCH, \
                         ROW_MAJOR); \
    }

// What main() fetches: grad_cb, whose rows lie as they do in memory, tokens t, and rows of b or c; and what a head multiplies.
#ifdef READS_STATE
#define OTHER_BEGIN 0u
#define OTHER_END (first + 1u)
#define SQUARE_ROW(block) first
#define SQUARE_COLUMN(block) (block)
#else
#define OTHER_BEGIN first
#define OTHER_END at.size
#define SQUARE_ROW(block) (block)
#define SQUARE_COLUMN(block) first
#endif
#define FETCH_OTHERS(block) \
{ \
    [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
        uint row = square + min(SQUARE_ROW(block) + ROW_OF(i), at.size - 1u) * args.C; \
        fours[2u * i] = four_of_square(row, SQUARE_COLUMN(block) + WORD_OF(i) * 8u); \
        fours[2u * i + 1u] = four_of_square(row, SQUARE_COLUMN(block) + WORD_OF(i) * 8u + 4u); \
    } \
    for (uint k = 1u; k < args.squares; k++) { \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
            uint row = square + k * args.B * args.M * args.G * args.C * args.C + min(SQUARE_ROW(block) + ROW_OF(i), at.size - 1u) * args.C; \
            fours[2u * i] += four_of_square(row, SQUARE_COLUMN(block) + WORD_OF(i) * 8u); \
            fours[2u * i + 1u] += four_of_square(row, SQUARE_COLUMN(block) + WORD_OF(i) * 8u + 4u); \
        } \
    } \
    [[unroll]] for (uint i = 0u; i < OTHER_UNITS; i++) { \
        uint e = LANE + i * LANES; \
        uint row = (block) + e / OTHER_WORDS; \
        uint other_word = g * args.N / 8u + e % OTHER_WORDS; \
        right_words[i] = row < at.size && e % OTHER_WORDS < args.N / 8u ? OTHER_AT(at.token + row) : uvec4(0u); \
    } \
}
#define FETCH_HEAD(head) \
{ \
    uint h = first_head + (head); \
    uint state = (at.slot * args.H + h) * args.N * args.P / 8u; \
    [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
        uint token = first + ROW_OF(i); \
        uint rows_word = h * args.P / 8u + WORD_OF(i); \
        left_words[i] = token < at.size && WORD_OF(i) < args.P / 8u ? ROWS_AT(at.token + token) : uvec4(0u); \
    } \
    [[unroll]] for (uint i = 0u; i < STATE_UNITS; i++) \
        right_words[i] = ROW_OF(i) < args.N && WORD_OF(i) < args.P / 8u ? \
                             STATE_AT(state + ROW_OF(i) * (args.P / 8u) + WORD_OF(i)) : uvec4(0u); \
}

// f16: grad_cb, and the sum until the heads come, are divided by a power of two, their unit, which grows from slab to slab.
#ifdef MATRIX_BF16
#define PUT_TOP
#define GROW_UNIT
#define DROP_UNIT
#define OVER_UNIT(value) (value)
#else
#define OVER_UNIT(value) ((value) / unit)
#define PUT_TOP \
    { \
        vec4 top = vec4(0.0); \
        [[unroll]] for (uint i = 0u; i < 2u * UNITS; i++) top = max(top, abs(fours[i])); \
        float largest = subgroupMax(max(max(top.x, top.y), max(top.z, top.w))); \
        if (subgroupElect()) tops[gl_SubgroupID] = largest; \
    }
float unit_of_tops()
{
    float largest = 0.0;
    for (uint i = 0u; i < SUBGROUPS; i++) largest = max(largest, tops[i]);
    return unit_of(largest);
}
#define GROW_UNIT \
    { \
        float before = unit; \
        unit = max(unit, unit_of_tops()); \
        EACH_TILE(i, n) total[i * TN + n] = total[i * TN + n] * (before / unit); \
    }
#define DROP_UNIT EACH_TILE(i, n) total[i * TN + n] = total[i * TN + n] * unit;
#endif
