// window_fold for N 128 and P 64 on matrices: what the tokens of a window add to a state is a product, b^T (128 x WINDOW) times x with its weights
// (WINDOW x 64), which are split in two numbers of 16 bits, so that they err by less than 2^-15. A subgroup folds a head, sixteen rows at a time:
// their product passes through shared memory, and lanes that have whole rows among themselves add it to the state. Loops over registers hold no
// others: where they did, NVIDIA's compiler kept the registers in memory, and a fold took three times as long.
//
// rows B WINDOW (H P + G N), bf16; steps B WINDOW H 2; h, open, hin B H N P; open_decay B H; hin_scale B H N; to B capacity H N P; scale B capacity
// H N; hin and to of 16 bits.
// Shared memory: 8,704 + SUBGROUPS 4,864 bytes and what folding.glsl has. Needs: subgroups of at least 8 lanes, matrices that divide 16 rows, 64
// columns and WINDOW. Guards: exp only of numbers <= 0; eps > 0; slots without a token count as 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "lib/dart.glsl"
#include "table/window_fold.glsl"
READS(rows) READS_WRITES(steps) READS(seq) READS_WRITES(open_decay) WRITES(hin) WRITES(hin_scale) WRITES(to) WRITES(scale)
#include "lib/seq.glsl"
#include "slot.glsl"
#include "folding.glsl"
#include "lib/eight.glsl"
#include "lib/matrix.glsl"
READS_AS(uvec4, quads, rows) READS_WRITES_AS(vec4, quads, h) READS_WRITES_AS(vec4, quads, open)
WRITES_AS(uvec2, pairs, hin) WRITES_AS(uvec2, pairs, to)

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
const uint TURNS = ROWS / LINES;
const uint WORDS = WINDOW * P / 8u / SUBGROUP_SIZE; // of x in a lane
const uint STEPS = WINDOW / MATRIX_K;
const uint COLUMNS = P / MATRIX_N;
const uint BANDS = ROWS / MATRIX_M;

shared uvec4 keys[WINDOW * B_PITCH];            // b
shared uvec4 passed[SUBGROUPS * OWN];           // of a subgroup x times its weights, then sums
shared float decays[SUBGROUPS * WINDOW], weights_of[SUBGROUPS * WINDOW];

uint lane, subgroup;
uvec4 words[WORDS];
MatrixB x_high[STEPS * COLUMNS], x_low[STEPS * COLUMNS];

// x of the window times its weights, rounded, as matrices; then what rounding has left.
void put_x(bool rest)
{
    subgroup_sync();
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        uint e = lane + i * SUBGROUP_SIZE, slot = e / (P / 8u);
        float weight = weights_of[subgroup * WINDOW + slot];
        vec4 low = weight * four_16bit(TYPE_BF16, words[i].xy), high = weight * four_16bit(TYPE_BF16, words[i].zw);
        uvec4 rounded = uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w), pack_elements(high.x, high.y), pack_elements(high.z, high.w));
        if (rest) {
            low -= four_16bit(TYPE_BF16, rounded.xy);
            high -= four_16bit(TYPE_BF16, rounded.zw);
            rounded = uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w), pack_elements(high.x, high.y), pack_elements(high.z, high.w));
        }
        passed[subgroup * OWN + slot * X_PITCH + e % (P / 8u)] = rounded;
    }
    subgroup_sync();
}

// What decays leave of the slots of head h, times their steps, to weights_of. Returns the sum of all log-decays.
float weigh(uint b, uint h, uint n)
{
    for (uint k = lane; k < WINDOW; k += SUBGROUP_SIZE) {
        uint at = 2u * ((b * WINDOW + k) * args.H + h);
        decays[subgroup * WINDOW + k] = k < n ? load_steps(at) : 0.0;
        weights_of[subgroup * WINDOW + k] = k < n ? load_steps(at + 1u) : 0.0;
        words_steps[at] = 0u; // 0.0; an f32 like all of steps
        words_steps[at + 1u] = 0u;
    }
    subgroup_sync();
    float all = 0.0;
    [[unroll]] for (uint k = 0u; k < WINDOW; k++) all += decays[subgroup * WINDOW + k];
    for (uint own = lane; own < WINDOW; own += SUBGROUP_SIZE) {
        float after = 0.0;
        [[unroll]] for (uint k = 0u; k < WINDOW; k++) after += k > own ? decays[subgroup * WINDOW + k] : 0.0;
        weights_of[subgroup * WINDOW + own] *= exp_neg(after);
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

void fold_head(uint b, uint position, uint h)
{
    bool has_open = has(args.flags, HAS_OPEN), closes = closes_at(position);
    uint n = tokens_at(position), head = b * args.H + h, pitch = args.H * P + args.G * N;
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        uint e = lane + i * SUBGROUP_SIZE;
        words[i] = quads_rows[(args.rows_at + (b * WINDOW + e / (P / 8u)) * pitch + h * P) / 8u + e % (P / 8u)];
        if (e / (P / 8u) >= n) words[i] = uvec4(0u); // whatever lies there
    }
    float total = has_open ? load_open_decay(head) : 0.0;
    float of_window = weigh(b, h, n), keep = exp_neg(of_window);
    total = has_open ? total + of_window : 0.0;
    float keep_h = exp_neg(total);
    if (lane == 0u && has_open) store_open_decay(head, closes ? 0.0 : total); // all lanes have read it
    put_x(false);
    [[unroll]] for (uint i = 0u; i < STEPS * COLUMNS; i++)
        coopMatLoad(x_high[i], passed, subgroup * OWN + i / COLUMNS * MATRIX_K * X_PITCH + i % COLUMNS * (MATRIX_N / 8u), X_PITCH, ROW_MAJOR);
    put_x(true);
    [[unroll]] for (uint i = 0u; i < STEPS * COLUMNS; i++)
        coopMatLoad(x_low[i], passed, subgroup * OWN + i / COLUMNS * MATRIX_K * X_PITCH + i % COLUMNS * (MATRIX_N / 8u), X_PITCH, ROW_MAJOR);
    uint slot = ((b * args.capacity + position / args.S - args.first) * args.H + h) * N;
    [[dont_unroll]] for (uint first = 0u; first < N; first += ROWS) {
        vec4 open[TURNS * QUADS], old[TURNS * QUADS];
        uint from = (head * N + first + lane / ROW_LANES) * (P / 4u) + lane % ROW_LANES;
        [[unroll]] for (uint i = 0u; i < TURNS * QUADS; i++) {
            uint at = from + i / QUADS * LINES * (P / 4u) + i % QUADS * ROW_LANES;
            open[i] = has_open ? quads_open[at] : quads_h[at];
            old[i] = has_open ? quads_h[at] : vec4(0.0);
        }
        MatrixSum sums[BANDS * COLUMNS];
        [[unroll]] for (uint i = 0u; i < BANDS * COLUMNS; i++) sums[i] = MatrixSum(0.0);
        [[unroll]] for (uint k = 0u; k < STEPS; k++) {
            [[unroll]] for (uint band = 0u; band < BANDS; band++) {
                MatrixA a;
                coopMatLoad(a, keys, k * MATRIX_K * B_PITCH + (first + band * MATRIX_M) / 8u, B_PITCH, COLUMN_MAJOR);
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
        vec2 squares[TURNS * QUADS];
        [[unroll]] for (uint i = 0u; i < TURNS * QUADS; i++) {
            open[i] = keep * open[i] + uintBitsToFloat(passed[sums_at + i / QUADS * LINES * SUM_PITCH + i % QUADS * ROW_LANES]);
            old[i] = keep_h * old[i] + open[i]; // without open: what is there
            squares[i] = vec2(dot(old[i], old[i]), dot(open[i], open[i]));
        }
        bool scales = has(args.flags, HAS_HIN_SCALE);
        [[unroll]] for (uint i = 0u; i < TURNS * QUADS; i++) {
            float root = root_of(QUADS == 1u ? squares[i].x : squares[i].x + squares[i ^ 1u].x);
            uint row = first + lane / ROW_LANES + i / QUADS * LINES, at = from + i / QUADS * LINES * (P / 4u) + i % QUADS * ROW_LANES;
            if (scales && lane % ROW_LANES == 0u) store_hin_scale(args.hin_scale_at + head * N + row, root);
            pairs_hin[args.hin_at / 4u + at] = as_16bit(DTYPE_OF(hin), old[i] * (scales ? 1.0 / root : 1.0));
        }
        if (has_open) {
            [[unroll]] for (uint i = 0u; i < TURNS * QUADS; i++)
                quads_open[from + i / QUADS * LINES * (P / 4u) + i % QUADS * ROW_LANES] = closes ? vec4(0.0) : open[i];
        }
        if (closes || !has_open) {
            [[unroll]] for (uint i = 0u; i < TURNS * QUADS; i++) quads_h[from + i / QUADS * LINES * (P / 4u) + i % QUADS * ROW_LANES] = old[i];
        }
        if (closes) {
            [[unroll]] for (uint i = 0u; i < TURNS * QUADS; i++) {
                float root = root_of(QUADS == 1u ? squares[i].y : squares[i].y + squares[i ^ 1u].y);
                uint row = slot + first + lane / ROW_LANES + i / QUADS * LINES;
                if (lane % ROW_LANES == 0u) store_scale(args.scale_at + row, root);
                pairs_to[(args.to_at + row * P) / 4u + lane % ROW_LANES + i % QUADS * ROW_LANES] = as_16bit(DTYPE_OF(to), open[i] / root);
            }
        }
    }
}

void main()
{
    lane = gl_SubgroupInvocationID;
    subgroup = gl_SubgroupID;
    uint heads = args.H / args.G; // of a group
    uint blocks = (heads + SUBGROUPS - 1u) / SUBGROUPS;
    for (uint first = 0u; first < args.B; first += LANES) {
        uint items = list_folding(first) * args.G * blocks;
        for (uint item = WORKGROUP; item < items; item += gl_NumWorkGroups.x) {
            uvec2 own = folding[item / (args.G * blocks)];
            uint g = item / blocks % args.G, h = item % blocks * SUBGROUPS + subgroup;
            uint b_at = (args.rows_at + own.x * WINDOW * (args.H * P + args.G * N) + args.H * P + g * N) / 8u;
            uint pitch = (args.H * P + args.G * N) / 8u, n = tokens_at(own.y);
            for (uint e = LANE; e < WINDOW * N / 8u; e += LANES) {
                uint slot = e / (N / 8u);
                uvec4 word = quads_rows[b_at + slot * pitch + e % (N / 8u)];
                keys[slot * B_PITCH + e % (N / 8u)] = slot < n ? word : uvec4(0u);
            }
            barrier();
            if (h < heads) fold_head(own.x, own.y, g * heads + h);
            barrier(); // all lanes have read keys
        }
        barrier(); // all lanes have read `folding`
    }
}
