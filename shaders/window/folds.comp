// window_folds: the windows of several layers, found by address, see args.h, for N 128 and P 64 on matrices. What the tokens of a window add to a
// state is a product, b^T (128 x WINDOW) times x with its weights (WINDOW x 64), which are split in two numbers of 16 bits, so that they err by less
// than 2^-15. A subgroup folds a head, sixteen rows at a time: their product passes through shared memory, and lanes that have whole rows among
// themselves add it to the state, which they have asked for a turn earlier. Loops over registers hold no others: where they did, NVIDIA's compiler
// kept the registers in memory, and a fold took three times as long.
//
// rows B WINDOW (H P + G N), 16 bits; steps B WINDOW H 2; h, open, hin B H N P; open_decay B H; hin_scale B H N; of each run to B count H N P, scale
// B count H N; hin and to of 16 bits.
// Shared memory: 8,704 + SUBGROUPS 4,864 bytes and what folding.glsl has. Needs: subgroups of at least 8 lanes, matrices that divide 16 rows, 64
// columns and WINDOW. Guards: exp only of numbers <= 0; eps > 0; slots without a token count as 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "lib/dart.glsl"
#include "table/window_folds.glsl"
READS(seq)
#include "lib/seq.glsl"
#include "slot.glsl"
READS_AS(uvec2, pairs, places)

const uint NO_RUN = 0xffffffffu;
// The run that has room for memory m.
uint run_of(uint m)
{
    uint run = NO_RUN;
    for (uint i = 0u; i < args.closing; i++)
        if (run == NO_RUN && m - pairs_places[i].x < pairs_places[i].y) run = i; // below the first one the difference is large
    return run;
}
bool takes(uint m) { return run_of(m) != NO_RUN; }
#include "folding.glsl"
#include "lib/matrix.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Fours { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Twos { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };

const uint N = 128u;
const uint P = 64u;
const uint ROWS = 16u;                          // of a state at a time
const uint B_PITCH = N / 8u + 1u;               // words of 16 bytes: rows begin in different banks
const uint X_PITCH = P / 8u + 1u;
const uint SUM_PITCH = P / 4u + 1u;
const uint OWN = WINDOW * X_PITCH > ROWS * SUM_PITCH ? WINDOW * X_PITCH : ROWS * SUM_PITCH; // of a subgroup
const uint ROW_LANES = SUBGROUP_SIZE < 16u ? SUBGROUP_SIZE : 16u; // that share a row of a state
const uint QUADS = P / 4u / ROW_LANES;          // of a row in a lane
const uint LINES = SUBGROUP_SIZE / ROW_LANES;   // rows at a time
const uint OWN_QUADS = ROWS / LINES * QUADS;    // of a lane
const uint WORDS = WINDOW * P / 8u / SUBGROUP_SIZE; // of x in a lane
const uint SLOTS = (WINDOW + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE; // of a window in a lane
const uint STEPS = WINDOW / MATRIX_K;
const uint COLUMNS = P / MATRIX_N;
const uint BANDS = ROWS / MATRIX_M;

shared uvec4 keys[WINDOW * B_PITCH];            // b
shared uvec4 passed[SUBGROUPS * OWN];           // of a subgroup x times its weights, then sums
shared float decays[SUBGROUPS * WINDOW], weights_of[SUBGROUPS * WINDOW];

#define PLACE(layer, place) packUint2x32(pairs_places[FOLD_RUNS + (layer) * FOLD_PLACES + (place)])

// A head of a sequence in a layer.
struct Head {
    uint layer, b, h, n;      // n tokens
    uint64_t number;          // of its first row among those of all sequences
    bool has_open, closes;
};

uint lane, subgroup;
uvec4 words[WORDS];
vec2 steps[SLOTS];
vec4 open[OWN_QUADS], old[OWN_QUADS]; // the chunk that is open, and what is before it; without HAS_OPEN the state, and 0
MatrixB x_high[STEPS * COLUMNS], x_low[STEPS * COLUMNS];

vec4 four_elements(uvec2 pair) { return vec4(unpack_elements(pair.x), unpack_elements(pair.y)); }
uvec2 pair_of_elements(vec4 v) { return uvec2(pack_elements(v.x, v.y), pack_elements(v.z, v.w)); }

uint64_t step_at(Head head, uint slot)
{
    return PLACE(head.layer, FOLD_STEPS) + uint64_t((head.b * WINDOW + slot) * args.H + head.h) * 8ul;
}
// Bytes of a state's row `row`, from the lane's first four numbers on.
uint64_t row_at(Head head, uint row) { return (head.number + row + lane / ROW_LANES) * (P * 4u) + lane % ROW_LANES * 16u; }
// Words of 16 bytes from there to the lane's i-th four numbers.
uint quad(uint i) { return i / QUADS * LINES * (P / 4u) + i % QUADS * ROW_LANES; }

void fetch_rows(Head head, uint row)
{
    uint64_t at = row_at(head, row);
    Fours of_h = Fours(PLACE(head.layer, FOLD_H) + at), first = head.has_open ? Fours(PLACE(head.layer, FOLD_OPEN) + at) : of_h;
    [[unroll]] for (uint i = 0u; i < OWN_QUADS; i++) open[i] = first.v[quad(i)];
    [[unroll]] for (uint i = 0u; i < OWN_QUADS; i++) old[i] = head.has_open ? of_h.v[quad(i)] : vec4(0.0);
}

// x of the window and the steps of its slots, where they hold tokens.
void fetch_tokens(Head head)
{
    uint64_t pitch = uint64_t(args.H * P + args.G * N) * 2ul;
    uint64_t rows = PLACE(head.layer, FOLD_ROWS) + uint64_t(head.b * WINDOW) * pitch + head.h * (P * 2u);
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        uint e = lane + i * SUBGROUP_SIZE, slot = e / (P / 8u);
        words[i] = Quads(rows + slot * pitch + e % (P / 8u) * 16u).v[0];
        if (slot >= head.n) words[i] = uvec4(0u); // whatever lies there
    }
    [[unroll]] for (uint i = 0u; i < SLOTS; i++) {
        uint slot = lane + i * SUBGROUP_SIZE;
        steps[i] = slot < head.n ? Twos(step_at(head, slot)).v[0] : vec2(0.0);
    }
}

// x of the window times its weights, rounded, as matrices; then what rounding has left.
void put_x(bool rest)
{
    subgroup_sync();
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        uint e = lane + i * SUBGROUP_SIZE, slot = e / (P / 8u);
        float weight = weights_of[subgroup * WINDOW + slot];
        vec4 low = weight * four_elements(words[i].xy), high = weight * four_elements(words[i].zw);
        uvec4 rounded = uvec4(pair_of_elements(low), pair_of_elements(high));
        if (rest) rounded = uvec4(pair_of_elements(low - four_elements(rounded.xy)), pair_of_elements(high - four_elements(rounded.zw)));
        passed[subgroup * OWN + slot * X_PITCH + e % (P / 8u)] = rounded;
    }
    subgroup_sync();
}

// What decays leave of the slots, times their steps, to weights_of. Returns the sum of all log-decays.
float weigh(Head head)
{
    [[unroll]] for (uint i = 0u; i < SLOTS; i++) {
        uint slot = lane + i * SUBGROUP_SIZE;
        if (slot >= WINDOW) continue;
        decays[subgroup * WINDOW + slot] = steps[i].x;
        Twos(step_at(head, slot)).v[0] = vec2(0.0);
    }
    subgroup_sync();
    float all = 0.0;
    [[unroll]] for (uint k = 0u; k < WINDOW; k++) all += decays[subgroup * WINDOW + k];
    [[unroll]] for (uint i = 0u; i < SLOTS; i++) {
        uint slot = lane + i * SUBGROUP_SIZE;
        if (slot >= WINDOW) continue;
        float after = 0.0;
        for (uint k = slot + 1u; k < WINDOW; k++) after += decays[subgroup * WINDOW + k];
        weights_of[subgroup * WINDOW + slot] = steps[i].y * exp_neg(after);
    }
    subgroup_sync();
    return all;
}

// The root of the mean of a row's squares, of which each lane that shares the row has some.
float root_of(float squares)
{
    squares += subgroupShuffleXor(squares, 1u);
    squares += subgroupShuffleXor(squares, 2u);
    squares += subgroupShuffleXor(squares, 4u);
    if (ROW_LANES == 16u) squares += subgroupShuffleXor(squares, 8u);
    return sqrt(squares / float(P) + args.eps);
}

// Rows of the state or of the memory, divided by their roots, which go beside them: `values` from row `number` on.
#define STORES_ROUNDED(name, values) \
    void name(uint64_t to, uint64_t scales, uint64_t number) \
    { \
        number += lane / ROW_LANES; \
        float squares[OWN_QUADS]; \
        [[unroll]] for (uint i = 0u; i < OWN_QUADS; i++) squares[i] = dot(values[i], values[i]); \
        Pairs pairs = Pairs(to + number * (P * 2u) + lane % ROW_LANES * 8u); \
        [[unroll]] for (uint i = 0u; i < OWN_QUADS; i++) { \
            float root = root_of(QUADS == 1u ? squares[i] : squares[i] + squares[i ^ 1u]); \
            if (lane % ROW_LANES == 0u && i % QUADS == 0u) Floats(scales + (number + i / QUADS * LINES) * 4ul).v[0] = root; \
            pairs.v[quad(i)] = pair_of_elements(values[i] * (1.0 / root)); \
        } \
    }
STORES_ROUNDED(store_state, old)
STORES_ROUNDED(store_memory, open)

void fold_rows(Head head, uint row, float keep, float keep_h, uint m)
{
    MatrixSum sums[BANDS * COLUMNS];
    [[unroll]] for (uint i = 0u; i < BANDS * COLUMNS; i++) sums[i] = MatrixSum(0.0);
    [[unroll]] for (uint k = 0u; k < STEPS; k++) {
        [[unroll]] for (uint band = 0u; band < BANDS; band++) {
            MatrixA a;
            coopMatLoad(a, keys, k * MATRIX_K * B_PITCH + (row + band * MATRIX_M) / 8u, B_PITCH, COLUMN_MAJOR);
            [[unroll]] for (uint o = 0u; o < COLUMNS; o++) {
                sums[band * COLUMNS + o] = coopMatMulAdd(a, x_low[k * COLUMNS + o], sums[band * COLUMNS + o]);
                sums[band * COLUMNS + o] = coopMatMulAdd(a, x_high[k * COLUMNS + o], sums[band * COLUMNS + o]);
            }
        }
    }
    subgroup_sync();
    [[unroll]] for (uint i = 0u; i < BANDS * COLUMNS; i++)
        coopMatStore(sums[i], passed, subgroup * OWN + i / COLUMNS * MATRIX_M * SUM_PITCH + i % COLUMNS * (MATRIX_N / 4u), SUM_PITCH, ROW_MAJOR);
    subgroup_sync();
    uint sums_at = subgroup * OWN + lane / ROW_LANES * SUM_PITCH + lane % ROW_LANES;
    [[unroll]] for (uint i = 0u; i < OWN_QUADS; i++) {
        open[i] = keep * open[i] + uintBitsToFloat(passed[sums_at + i / QUADS * LINES * SUM_PITCH + i % QUADS * ROW_LANES]);
        old[i] = keep_h * old[i] + open[i]; // without open: what is there
    }
    store_state(PLACE(head.layer, FOLD_HIN), PLACE(head.layer, FOLD_HIN_SCALE), head.number + row);
    uint64_t at = row_at(head, row);
    if (head.has_open) {
        Fours to = Fours(PLACE(head.layer, FOLD_OPEN) + at);
        [[unroll]] for (uint i = 0u; i < OWN_QUADS; i++) to.v[quad(i)] = head.closes ? vec4(0.0) : open[i];
    }
    if (head.closes || !head.has_open) {
        Fours to = Fours(PLACE(head.layer, FOLD_H) + at);
        [[unroll]] for (uint i = 0u; i < OWN_QUADS; i++) to.v[quad(i)] = old[i];
    }
    if (head.closes) {
        uint run = run_of(m);
        uvec2 kept = pairs_places[run]; // the first and how many
        uint64_t number = (uint64_t(head.b * kept.y + (m - kept.x)) * args.H + head.h) * N + row;
        store_memory(PLACE(head.layer, FOLD_CLOSING + 2u * run), PLACE(head.layer, FOLD_CLOSING + 2u * run + 1u), number);
    }
}

void fold_head(Head head, uint m)
{
    float total = 0.0;
    Floats decay = Floats(PLACE(head.layer, FOLD_OPEN_DECAY) + uint64_t(head.b * args.H + head.h) * 4ul);
    if (head.has_open) total = decay.v[0];
    float of_window = weigh(head), keep = exp_neg(of_window);
    total = head.has_open ? total + of_window : 0.0;
    float keep_h = exp_neg(total);
    if (lane == 0u && head.has_open) decay.v[0] = head.closes ? 0.0 : total; // all lanes have read it
    put_x(false);
    [[unroll]] for (uint i = 0u; i < STEPS * COLUMNS; i++)
        coopMatLoad(x_high[i], passed, subgroup * OWN + i / COLUMNS * MATRIX_K * X_PITCH + i % COLUMNS * (MATRIX_N / 8u), X_PITCH, ROW_MAJOR);
    put_x(true);
    [[unroll]] for (uint i = 0u; i < STEPS * COLUMNS; i++)
        coopMatLoad(x_low[i], passed, subgroup * OWN + i / COLUMNS * MATRIX_K * X_PITCH + i % COLUMNS * (MATRIX_N / 8u), X_PITCH, ROW_MAJOR);
    [[dont_unroll]] for (uint row = 0u; row < N; row += ROWS) {
        fold_rows(head, row, keep, keep_h, m);
        if (row + ROWS < N) fetch_rows(head, row + ROWS);
    }
}

void main()
{
    lane = gl_SubgroupInvocationID;
    subgroup = gl_SubgroupID;
    uint heads = args.H / args.G; // of a group
    uint blocks = (heads + SUBGROUPS - 1u) / SUBGROUPS;
    for (uint first = 0u; first < args.B; first += LANES) {
        uint of_layer = list_folding(first) * args.G * blocks;
        for (uint item = WORKGROUP; item < of_layer * args.layers; item += gl_NumWorkGroups.x) {
            uint within = item % of_layer, g = within / blocks % args.G, h = within % blocks * SUBGROUPS + subgroup;
            uvec2 own = folding[within / (args.G * blocks)];
            Head head;
            head.layer = item / of_layer;
            head.b = own.x;
            head.h = g * heads + min(h, heads - 1u);
            head.n = tokens_at(own.y);
            head.number = uint64_t(own.x * args.H + head.h) * N;
            head.has_open = has(args.flags, HAS_OPEN);
            head.closes = closes_at(own.y);
            uint64_t pitch = uint64_t(args.H * P + args.G * N) * 2ul;
            uint64_t b_at = PLACE(head.layer, FOLD_ROWS) + uint64_t(own.x * WINDOW) * pitch + uint64_t((args.H * P + g * N) * 2u);
            for (uint e = LANE; e < WINDOW * N / 8u; e += LANES) {
                uint slot = e / (N / 8u);
                uvec4 word = Quads(b_at + slot * pitch + e % (N / 8u) * 16u).v[0];
                keys[slot * B_PITCH + e % (N / 8u)] = slot < head.n ? word : uvec4(0u);
            }
            fetch_tokens(head);
            fetch_rows(head, 0u);
            barrier();
            if (h < heads) fold_head(head, own.y / args.S);
            barrier(); // all lanes have read keys
        }
        barrier(); // all lanes have read `folding`
    }
}
