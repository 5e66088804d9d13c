#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
// The steps of several layers in one launch, see MixerLayersArgs. A layer is four stages: both products with their convolutions; the memories of a
// split; the scan of a head, which merges its splits; the product behind the norm. What a stage reads of weights, states and memories is asked for
// before its inputs are waited for, as far as registers go. Numbers go from workgroup to workgroup in words of 64 bits, each with the tag of its
// layer, so that a reader needs no barrier: it looks until the tag is there. A word is written again no earlier than a layer later, when all that
// read it have passed on what they made of it.
// Lanes of a subgroup share a row of weights; eight lanes share a row of a memory, sixteen one of a state.
// Shared memory: 4 max(W, H P) + 7,200 bytes, with subgroups of 32 lanes. Guards: eps > 0; exp only of numbers <= 0.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_atomic_int64 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "lib/dart.glsl"
#include "table/mixer_layers.glsl"
READS_WRITES(x) READS(seq) WRITES(stuck)
#include "lib/seq.glsl"
#include "lib/eight.glsl"
READS_AS(uvec2, pairs, places)
READS_WRITES_AS(uint64_t, posts, posts)
layout(constant_id = 7) const uint SUBGROUP_SIZE = 32;

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Fours { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };

const uint N = 128u;
const uint P = 64u;
const uint W = T0;
const uint H = T1;
const uint I = H * P;
const uint CHANNELS = I + 2u * N;      // of the convolution of [x|b|c]
const uint R = I + CHANNELS + H;       // rows of in_proj
const uint QUERIES = N + P;            // channels of [q|e], then the gate
const uint TAPS = 4u;
const uint WIDE = I > W ? I : W;
const uint SIZE = 256u;                // lanes of a workgroup
const uint SUBGROUPS = SIZE / SUBGROUP_SIZE;
const uint CHUNKS_X = W / (8u * SUBGROUP_SIZE); // of eight elements a lane
const uint CHUNKS_Y = I / (8u * SUBGROUP_SIZE);
const uint BATCH = 8u;                 // outputs of a subgroup at a time: lane k finishes the k-th
const uint QUADS = 12u;                // chunks of weights that are fetched ahead, of a product
const uint AHEAD = CHUNKS_X > QUADS ? 0u : CHUNKS_X * BATCH <= QUADS ? BATCH : QUADS / CHUNKS_X; // outputs of the first batch
const uint AHEAD_Y = CHUNKS_Y < QUADS ? CHUNKS_Y : QUADS; // chunks of the first output
const uint PAIR = 2u;                  // memories that are looked at together
const uint ROWS = N * P / 8u / SIZE;   // of each of them in a lane
const uint STATE_ROWS = N * P / 4u / SIZE;

// Where posts lie.
const uint X_AT = 8u;
const uint PROJ_AT = X_AT + W;
const uint Y_AT = PROJ_AT + R + QUERIES + 1u;
const uint PARTIAL_AT = Y_AT + I;
const uint PARTIAL = P + 2u;
const uint STEP = 2u * P + 2u * N; // of a scan in taken: where the step lies; the gate is next

shared vec4 low[WIDE / 8u], high[WIDE / 8u]; // an input row: of each eight elements the first and the last four
shared float taken[2u * SIZE];
shared float sums[SUBGROUPS];
shared vec4 sums4[SUBGROUPS];
const uint FOUND_ROWS = SUBGROUP_SIZE >= 32u ? SUBGROUPS : SIZE / 16u; // of a scan
const uint LINES = SUBGROUP_SIZE >= 8u ? SUBGROUPS : SIZE / 8u;         // of memories
shared vec4 found[(LINES > FOUND_ROWS ? LINES : FOUND_ROWS) * P / 4u];
shared float parts[uint(MIXER_MOST_SPLITS) * PARTIAL];
shared uvec2 table[2u * PLACES]; // of this layer and of the next
shared uvec2 runs[RUN_PAIRS];  // first and M
shared uint gave_up;

uint lane, subgroup, tag;

// The sum over the subgroup, all of whose lanes are here: a compiler that cannot know so makes more of subgroupAdd.
float add_lanes(float value)
{
    [[unroll]] for (uint apart = SUBGROUP_SIZE / 2u; apart > 0u; apart /= 2u) value += subgroupShuffleXor(value, apart);
    return value;
}

// ---- Posts ----

void post(uint at, float value)
{
    uint64_t word = (uint64_t(tag) << 32) | uint64_t(floatBitsToUint(value));
    atomicStore(posts_posts[at], word, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
}
uint64_t look(uint at) { return atomicLoad(posts_posts[at], gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed); }
// 0 where the word is there.
uint is_missing(uint64_t word) { return uint(word >> 32) ^ tag; }
float number(uint64_t word) { return uintBitsToFloat(uint(word & 0xffffffffUL)); }
// Of a word that never came the other lanes learn at the next barrier.
void give_up() { gave_up = 1u; }
// The words at two places, which may be one.
vec2 take(uint at, uint other)
{
    uint64_t word;
    uint64_t next;
    uint missing = 1u;
    [[dont_unroll]] for (uint tries = 0u; missing != 0u && tries < MIXER_PATIENCE; tries++) {
        word = look(at);
        next = look(other);
        missing = is_missing(word) | is_missing(next);
    }
    if (missing != 0u) give_up();
    return vec2(number(word), number(next));
}

// ---- Weights, states and memories ----

#define PLACE(layer, place) table[((layer) & 1u) * PLACES + (place)]

uvec4 project_words[QUADS];
uvec4 output_words[QUADS];
uvec4 own[2u * STATE_ROWS]; // of a state h and open; of memories PAIR x ROWS words
float factors[PAIR * ROWS];
float a_log, step_bias, skip, before; // of a scan's head

uint outputs_of_project() { return has(args.flags, HAS_OPEN) ? R + QUERIES + 1u : R; }
// Words of output o, from `chunk` on.
uvec4 project_word(uint layer, uint o, uint chunk)
{
    bool inner = o < R;
    Quads rows = Quads(inner ? PLACE(layer, PLACE_IN_PROJ) : PLACE(layer, PLACE_SMA_PROJ));
    return rows.v[(inner ? o : o - R) * (W / 8u) + chunk * SUBGROUP_SIZE + lane];
}
uvec4 output_word(uint layer, uint o, uint chunk)
{
    return Quads(PLACE(layer, PLACE_OUT_PROJ)).v[o * (I / 8u) + chunk * SUBGROUP_SIZE + lane];
}
// What project() and add_output() ask for before their inputs are there.
void fetch_project(uint layer, uint first)
{
    uint step = SUBGROUPS * gl_NumWorkGroups.x;
    [[unroll]] for (uint i = 0u; i < AHEAD * CHUNKS_X; i++)
        project_words[i] = project_word(layer, min(first + i / CHUNKS_X * step, outputs_of_project() - 1u), i % CHUNKS_X);
}
void fetch_output(uint layer, uint first)
{
    if (first < W) {
        [[unroll]] for (uint i = 0u; i < AHEAD_Y; i++) output_words[i] = output_word(layer, first, i);
    }
}

// Memories that the token sees, of all runs.
uint seen_of(uint run, uint position)
{
    uint seen = position / args.S;
    return seen > runs[run].x ? min(seen - runs[run].x, runs[run].y) : 0u;
}
// The memory with number j of those that are seen: its run, and its place there.
uvec2 memory_of(uint j, uint position)
{
    uint run = 0u;
    while (run + 1u < args.runs && j >= seen_of(run, position)) {
        j -= seen_of(run, position);
        run++;
    }
    return uvec2(run, j);
}
// Memories j, j + 1 of those below `end`.
void fetch_pair(uint layer, uint head, uint j, uint end, uint position)
{
    if (j >= end) return;
    [[unroll]] for (uint m = 0u; m < PAIR; m++) {
        uvec2 which = memory_of(min(j + m, end - 1u), position);
        Quads memories = Quads(PLACE(layer, PLACE_RUNS + 2u * which.x));
        Floats scales = Floats(PLACE(layer, PLACE_RUNS + 2u * which.x + 1u));
        uint at = which.y * H + head;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            own[m * ROWS + r] = memories.v[at * (N * P / 8u) + r * SIZE + LANE];
            factors[m * ROWS + r] = scales.v[at * N + r * SIZE / 8u + LANE / 8u];
        }
    }
}
void fetch_state(uint layer, uint head)
{
    Fours h = Fours(PLACE(layer, PLACE_H));
    [[unroll]] for (uint r = 0u; r < STATE_ROWS; r++) own[r] = floatBitsToUint(h.v[(head * STATE_ROWS + r) * SIZE + LANE]);
    a_log = Floats(PLACE(layer, PLACE_A_LOG)).v[head];
    step_bias = Floats(PLACE(layer, PLACE_DT_BIAS)).v[head];
    skip = Floats(PLACE(layer, PLACE_D)).v[head];
    before = 0.0;
    if (has(args.flags, HAS_OPEN)) {
        before = Floats(PLACE(layer, PLACE_OPEN_DECAY)).v[head];
        Fours open = Fours(PLACE(layer, PLACE_OPEN));
        [[unroll]] for (uint r = 0u; r < STATE_ROWS; r++) own[STATE_ROWS + r] = floatBitsToUint(open.v[(head * STATE_ROWS + r) * SIZE + LANE]);
    }
}

// ---- Rows of inputs ----

void put(uint i, float value)
{
    if (i % 8u < 4u) low[i / 8u][i % 4u] = value;
    else high[i / 8u][i % 4u] = value;
}
// The sum of `value` over the workgroup.
float sum_over_all(float value)
{
    value = add_lanes(value);
    if (lane == 0u) sums[subgroup] = value;
    barrier();
    float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < SUBGROUPS; i += SUBGROUP_SIZE) sum += i + lane < SUBGROUPS ? sums[i + lane] : 0.0;
    return add_lanes(sum);
}
// Four sums over the workgroup. Lanes may still read those of the call before.
vec4 sum_of_four(vec4 value)
{
    [[unroll]] for (uint apart = SUBGROUP_SIZE / 2u; apart > 0u; apart /= 2u) value += subgroupShuffleXor(value, apart);
    barrier();
    if (lane == 0u) sums4[subgroup] = value;
    barrier();
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < SUBGROUPS; i += SUBGROUP_SIZE) {
        if (i + lane < SUBGROUPS) sum += sums4[i + lane];
    }
    const uint MOST = SUBGROUPS < SUBGROUP_SIZE ? SUBGROUPS : SUBGROUP_SIZE;
    [[unroll]] for (uint apart = MOST / 2u; apart > 0u; apart /= 2u) sum += subgroupShuffleXor(sum, apart);
    return subgroupShuffle(sum, 0u);
}
// Waits for the row that is posted at `at`. low and high become the row times its norm; returns the sum of its squares.
#define TAKES_ROW(name, COUNT) \
    float name(uint at, Floats norm) \
    { \
        const uint TAKES = (COUNT + SIZE - 1u) / SIZE; \
        float norms[TAKES]; \
        uint64_t words[TAKES]; \
        float squares = 0.0; \
        [[unroll]] for (uint k = 0u; k < TAKES; k++) norms[k] = norm.v[min(LANE + k * SIZE, COUNT - 1u)]; \
        uint missing = 1u; \
        [[dont_unroll]] for (uint tries = 0u; missing != 0u && tries < MIXER_PATIENCE; tries++) { \
            missing = 0u; \
            [[unroll]] for (uint k = 0u; k < TAKES; k++) { \
                if (COUNT % SIZE == 0u || LANE + k * SIZE < COUNT) words[k] = look(at + LANE + k * SIZE); \
                else words[k] = uint64_t(tag) << 32; \
            } \
            [[unroll]] for (uint k = 0u; k < TAKES; k++) missing |= is_missing(words[k]); \
        } \
        if (missing != 0u) give_up(); \
        [[unroll]] for (uint k = 0u; k < TAKES; k++) { \
            if (COUNT % SIZE == 0u || LANE + k * SIZE < COUNT) { \
                put(LANE + k * SIZE, number(words[k]) * norms[k]); \
                squares += number(words[k]) * number(words[k]); \
            } \
        } \
        return sum_over_all(squares); \
    }
TAKES_ROW(take_x, W)
TAKES_ROW(take_y, I)

float add_words(float sum, uvec4 words, uint chunk)
{
    uint at = chunk * SUBGROUP_SIZE + lane;
    sum = add_four(sum, four_16bit(DTYPE_OF(weight), words.xy), low[at]);
    return add_four(sum, four_16bit(DTYPE_OF(weight), words.zw), high[at]);
}

// ---- The convolution of an output ----

float kept[TAPS - 1u], taps[TAPS], bias;
uvec2 tail_place;
uint tail_row, channel;
bool is_channel;

float load_kept(uint i)
{
    if (DTYPE_OF(tail) == TYPE_F32) return Floats(tail_place).v[i];
    return element_of(DTYPE_OF(tail), uint(Halves(tail_place).v[i]), 0u);
}
void store_kept(uint i, float value)
{
    if (DTYPE_OF(tail) == TYPE_F32) Floats(tail_place).v[i] = value;
    else Halves(tail_place).v[i] = uint16_t(bits_16bit(DTYPE_OF(tail), value));
}
void fetch_channel(uint layer, uint o)
{
    bool inner = o < R;
    is_channel = inner ? o >= I && o - I < CHANNELS : o - R < QUERIES;
    channel = is_channel ? (inner ? o - I : o - R) : 0u;
    tail_row = inner ? CHANNELS : QUERIES;
    tail_place = inner ? PLACE(layer, PLACE_TAIL) : PLACE(layer, PLACE_SMA_TAIL);
    Floats taps_of = Floats(inner ? PLACE(layer, PLACE_TAPS) : PLACE(layer, PLACE_SMA_TAPS));
    uvec2 bias_place = inner ? PLACE(layer, PLACE_BIAS) : PLACE(layer, PLACE_SMA_BIAS);
    [[unroll]] for (uint k = 0u; k < TAPS; k++) taps[k] = taps_of.v[channel * TAPS + k];
    [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) kept[k] = load_kept(k * tail_row + channel);
    bias = 0.0;
    if (any(notEqual(bias_place, uvec2(0u)))) bias = Floats(bias_place).v[channel];
}
float convolve(float value)
{
    float sum = bias;
    [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) sum += taps[k] * kept[k];
    [[unroll]] for (uint k = 0u; k + 2u < TAPS; k++) store_kept(k * tail_row + channel, kept[k + 1u]);
    store_kept((TAPS - 2u) * tail_row + channel, value);
    return silu(sum + taps[TAPS - 1u] * value);
}

// ---- Stages ----

// Outputs first, first + step, ... of both products.
void project(uint layer, uint first, uint step, float squares)
{
    uint outputs = outputs_of_project();
    float scale = inversesqrt(squares / float(W) + args.eps);
    [[dont_unroll]] for (uint batch = first; batch < outputs; batch += BATCH * step) {
        uint mine = batch + min(lane, BATCH - 1u) * step;
        float totals[BATCH];
        [[unroll]] for (uint k = 0u; k < BATCH; k++) totals[k] = 0.0;
        if (batch == first) {
            [[unroll]] for (uint i = 0u; i < AHEAD * CHUNKS_X; i++)
                totals[i / CHUNKS_X] = add_words(totals[i / CHUNKS_X], project_words[i], i % CHUNKS_X);
        } else {
            fetch_channel(layer, min(mine, outputs - 1u));
        }
        float value = 0.0;
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            float total = add_lanes(totals[k]);
            if (batch == first && lane == k) value = total;
        }
        [[dont_unroll]] for (uint k = batch == first ? AHEAD : 0u; k < BATCH && batch + k * step < outputs; k += 2u) {
            uvec4 words[2u * CHUNKS_X];
            [[unroll]] for (uint i = 0u; i < 2u * CHUNKS_X; i++)
                words[i] = project_word(layer, min(batch + (k + i / CHUNKS_X) * step, outputs - 1u), i % CHUNKS_X);
            vec2 pair = vec2(0.0);
            [[unroll]] for (uint i = 0u; i < 2u * CHUNKS_X; i++) pair[i / CHUNKS_X] = add_words(pair[i / CHUNKS_X], words[i], i % CHUNKS_X);
            pair = vec2(add_lanes(pair.x), add_lanes(pair.y));
            if (lane == k) value = pair.x;
            if (lane == k + 1u) value = pair.y;
        }
        if (lane < BATCH && mine < outputs) {
            value *= scale;
            float result = is_channel ? convolve(value) : value;
            post(PROJ_AT + mine, result);
        }
    }
}

// What the memories of a split and what the scan of a head read of the products. In taken, for memories: q, e, c; for a scan: z, x, b, c, the step,
// the gate.
void gather(bool is_scan, uint head)
{
    uint one, other;
    if (is_scan) {
        one = LANE < P ? head * P + LANE : LANE < 2u * P ? I + head * P + LANE - P : 2u * I + LANE - 2u * P;
        other = LANE + SIZE < STEP ? 2u * I + LANE + SIZE - 2u * P : LANE + SIZE == STEP ? I + CHANNELS + head :
                LANE + SIZE == STEP + 1u && has(args.flags, HAS_OPEN) ? R + QUERIES : one;
    } else {
        one = LANE < QUERIES ? R + LANE : 2u * I + N + LANE - QUERIES;
        other = LANE + SIZE < QUERIES + N ? 2u * I + N + LANE + SIZE - QUERIES : one;
    }
    barrier(); // taken and found are free
    vec2 values = take(PROJ_AT + one, PROJ_AT + other);
    taken[LANE] = values.x;
    taken[LANE + SIZE] = values.y;
    barrier();
}

// The memories j .. end - 1 of those that head `head` sees, the first two of them fetched already.
void attend(uint layer, uint head, uint split, uint j, uint end, uint position)
{
    uint column = LANE % 8u;
    uint row = LANE / 8u;
    float square = LANE < QUERIES ? taken[LANE] * taken[LANE] : 0.0;
    vec4 e_low = vec4(taken[N + 8u * column], taken[N + 8u * column + 1u], taken[N + 8u * column + 2u], taken[N + 8u * column + 3u]);
    vec4 e_high = vec4(taken[N + 8u * column + 4u], taken[N + 8u * column + 5u], taken[N + 8u * column + 6u], taken[N + 8u * column + 7u]);
    float top = LOWEST;
    float den = 0.0;
    Eight sum = Eight(vec4(0.0), vec4(0.0));
    [[dont_unroll]] for (uint from = j; from < end; from += PAIR) {
        vec4 found_sums = vec4(0.0, 0.0, LANE < N ? square : 0.0, LANE < N ? 0.0 : square); // logits of two memories, squares of q and e
        [[unroll]] for (uint m = 0u; m < PAIR; m++) {
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                uvec4 words = own[m * ROWS + r];
                float product = dot(e_low, four_16bit(DTYPE_OF(dh), words.xy)) + dot(e_high, four_16bit(DTYPE_OF(dh), words.zw));
                found_sums[m] += taken[row + r * SIZE / 8u] * product;
            }
        }
        found_sums = sum_of_four(found_sums);
        float scale = inversesqrt(found_sums.z / float(N) + args.sma_eps) * inversesqrt(found_sums.w / float(P) + args.sma_eps) *
                      inversesqrt(float(N));
        float now = top;
        float keys[PAIR];
        [[unroll]] for (uint m = 0u; m < PAIR; m++) {
            keys[m] = scale * found_sums[m];
            if (from + m < end) now = max(now, keys[m]);
        }
        float keep = exp_neg(top - now);
        den *= keep;
        sum.low *= keep;
        sum.high *= keep;
        [[unroll]] for (uint m = 0u; m < PAIR; m++) {
            float gain = from + m < end ? exp_neg(keys[m] - now) : 0.0;
            den += gain;
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                float weight = gain * taken[QUERIES + row + r * SIZE / 8u] * factors[m * ROWS + r];
                uvec4 words = own[m * ROWS + r];
                sum.low += weight * four_16bit(DTYPE_OF(dh), words.xy);
                sum.high += weight * four_16bit(DTYPE_OF(dh), words.zw);
            }
        }
        top = now;
        fetch_pair(layer, head, from + PAIR, end, position);
    }
    // Lanes of the same columns add up by halves: first each keeps four of eight columns, then two of four.
    if (SUBGROUP_SIZE >= 32u) {
        bool upper = (lane & 8u) != 0u, right = (lane & 16u) != 0u;
        vec4 four = (upper ? sum.high : sum.low) + subgroupShuffleXor(upper ? sum.low : sum.high, 8u);
        vec2 two = (right ? four.zw : four.xy) + subgroupShuffleXor(right ? four.xy : four.zw, 16u);
        uint at = subgroup * (P / 4u) + 2u * column + (upper ? 1u : 0u);
        if (right) found[at].zw = two;
        else found[at].xy = two;
    } else {
        if (SUBGROUP_SIZE >= 16u) {
            sum.low += subgroupShuffleXor(sum.low, 8u);
            sum.high += subgroupShuffleXor(sum.high, 8u);
        }
        uint line = SUBGROUP_SIZE >= 8u ? subgroup : row;
        if (SUBGROUP_SIZE < 8u || lane < 8u) {
            found[line * (P / 4u) + 2u * column] = sum.low;
            found[line * (P / 4u) + 2u * column + 1u] = sum.high;
        }
    }
    barrier();
    uint to = PARTIAL_AT + (head * args.splits + split) * PARTIAL;
    if (LANE < P) {
        float total = 0.0;
        [[unroll]] for (uint i = 0u; i < LINES; i++) total += found[i * (P / 4u) + LANE / 4u][LANE % 4u];
        post(to + LANE, total);
    }
    if (LANE == P) post(to + P, top);
    if (LANE == P + 1u) post(to + P + 1u, den);
}

// r of column LANE of a head, in the first P lanes.
float merged(uint head)
{
    uint count = args.splits * PARTIAL;
    uint from = PARTIAL_AT + head * count;
    if (LANE < count) {
        bool has_other = LANE + SIZE < count;
        vec2 values = take(from + LANE, has_other ? from + LANE + SIZE : from + LANE);
        parts[LANE] = values.x;
        if (has_other) parts[LANE + SIZE] = values.y;
    }
    barrier();
    float top = LOWEST;
    float sum = 0.0;
    float den = 0.0;
    if (LANE < P) {
        for (uint k = 0u; k < args.splits; k++) {
            if (parts[k * PARTIAL + P + 1u] > 0.0) top = max(top, parts[k * PARTIAL + P]);
        }
        for (uint k = 0u; k < args.splits; k++) {
            if (parts[k * PARTIAL + P + 1u] > 0.0) {
                float gain = exp_neg(parts[k * PARTIAL + P] - top);
                sum += gain * parts[k * PARTIAL + LANE];
                den += gain * parts[k * PARTIAL + P + 1u];
            }
        }
    }
    return den > 0.0 ? sum / den : 0.0;
}

// Of the chunk that closes: the memory of a head goes to its run. Lanes hold rows n = LANE / 16 + SIZE / 16 r.
void append(uint layer, uint head, uint position)
{
    uint m = position / args.S;
    for (uint c = 0u; c < args.closing; c++) {
        uvec2 run = runs[MIXER_RUNS + c];
        if (m < run.x || m - run.x >= run.y) continue;
        uint at = ((m - run.x) * H + head) * N;
        [[unroll]] for (uint r = 0u; r < STATE_ROWS; r++) {
            vec4 open = uintBitsToFloat(own[STATE_ROWS + r]);
            barrier(); // found is free
            found[LANE / 4u][LANE % 4u] = dot(open, open);
            barrier();
            float squares = 0.0;
            for (uint i = 0u; i < 4u; i++) squares += dot(found[LANE / 16u * 4u + i], vec4(1.0));
            float size = sqrt(squares / float(P) + args.sma_eps);
            uint n = LANE / 16u + SIZE / 16u * r;
            if (LANE % 16u == 0u) Floats(PLACE(layer, PLACE_CLOSING + 2u * c + 1u)).v[at + n] = size;
            Halves to = Halves(PLACE(layer, PLACE_CLOSING + 2u * c));
            [[unroll]] for (uint i = 0u; i < 4u; i++)
                to.v[(at + n) * P + LANE % 16u * 4u + i] = uint16_t(bits_16bit(DTYPE_OF(dh), open[i] / size));
        }
    }
    barrier(); // found is free
}

void scan(uint layer, uint head, uint position)
{
    bool has_open = has(args.flags, HAS_OPEN);
    bool closes = has_open && (position + 1u) % args.S == 0u;
    float step_size = softplus(taken[STEP] + step_bias);
    step_size = min(max(step_size, args.dt_min), args.dt_max);
    float decay = (a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log)) * step_size;
    float total = before + decay;
    float keep_open = exp_neg(decay);
    float keep_h = exp_neg(total);
    uint word = LANE % 16u;
    uint row = LANE / 16u;
    vec4 x = vec4(taken[P + 4u * word], taken[P + 4u * word + 1u], taken[P + 4u * word + 2u], taken[P + 4u * word + 3u]);
    vec4 write = step_size * x;
    vec4 sum = vec4(0.0);
    Fours to_open = Fours(PLACE(layer, PLACE_OPEN)), to_h = Fours(PLACE(layer, PLACE_H));
    [[unroll]] for (uint r = 0u; r < STATE_ROWS; r++) {
        vec4 open = taken[2u * P + row + SIZE / 16u * r] * write;
        if (has_open) open += keep_open * uintBitsToFloat(own[STATE_ROWS + r]);
        vec4 state = keep_h * uintBitsToFloat(own[r]) + open;
        sum += taken[2u * P + N + row + SIZE / 16u * r] * state;
        uint at = (head * STATE_ROWS + r) * SIZE + LANE;
        if (has_open) to_open.v[at] = closes ? vec4(0.0) : open;
        if (closes || !has_open) to_h.v[at] = state;
        own[STATE_ROWS + r] = floatBitsToUint(open);
    }
    if (closes) append(layer, head, position);
    if (SUBGROUP_SIZE >= 32u) sum += subgroupShuffleXor(sum, 16u);
    if (SUBGROUP_SIZE < 32u || lane < 16u) found[(SUBGROUP_SIZE >= 32u ? subgroup : row) * 16u + word] = sum;
    barrier();
    if (has_open && LANE == 0u) Floats(PLACE(layer, PLACE_OPEN_DECAY)).v[head] = closes ? 0.0 : total; // all lanes have read it
    float y = 0.0;
    if (LANE < P) {
        y = skip * taken[P + LANE];
        [[unroll]] for (uint i = 0u; i < FOUND_ROWS; i++) y += found[i * 16u + LANE / 4u][LANE % 4u];
    }
    if (has_open && args.runs > 0u) y += silu(taken[STEP + 1u]) * merged(head);
    if (LANE < P) post(Y_AT + head * P + LANE, y * silu(taken[LANE]));
}

// Outputs first, first + step, ... of the product behind the norm, added to the stream; `stream` is the first of them as it was.
float add_output(uint layer, uint first, uint step, float squares, float stream)
{
    bool is_last = layer + 1u == args.layers;
    float scale = inversesqrt(squares / float(I) + args.eps);
    [[dont_unroll]] for (uint o = first; o < W; o += step) {
        float sum = 0.0;
        uint c = 0u;
        if (o == first) {
            [[unroll]] for (; c < AHEAD_Y; c++) sum = add_words(sum, output_words[c], c);
        }
        [[dont_unroll]] for (; c < CHUNKS_Y; c += QUADS / 2u) {
            uvec4 words[QUADS / 2u];
            [[unroll]] for (uint i = 0u; i < QUADS / 2u; i++) words[i] = output_word(layer, o, min(c + i, CHUNKS_Y - 1u));
            [[unroll]] for (uint i = 0u; i < QUADS / 2u; i++) {
                if (c + i < CHUNKS_Y) sum = add_words(sum, words[i], c + i);
            }
        }
        float value = scale * add_lanes(sum);
        if (o == first) stream = value += stream;
        else if (lane == 0u) value += load_x(args.x_at + o);
        if (lane == 0u) {
            post(X_AT + o, value);
            if (is_last || o != first) store_x(args.x_at + o, value);
        }
    }
    return stream;
}

void main()
{
    lane = gl_SubgroupInvocationID;
    subgroup = gl_SubgroupID;
    uint position = seq_position(0u);
    if (seq_count(0u, 1u) == 0u) return;
    bool has_open = has(args.flags, HAS_OPEN);
    uint workgroup = gl_WorkGroupID.x;
    uint workgroups = gl_NumWorkGroups.x;
    uint first = subgroup * workgroups + workgroup; // of outputs
    uint step = SUBGROUPS * workgroups;
    // Heads' splits, then their scans, are shared out in turn; what comes first is fetched ahead.
    uint attends = has_open && args.runs > 0u ? H * args.splits : 0u;
    uint items = attends + H;
    uint begun = uint(posts_posts[0]) + 1u; // a word that nobody has written has tag 0
    float stream = first < W ? load_x(args.x_at + first) : 0.0;
    if (LANE == 0u) gave_up = 0u;
    if (LANE < PLACES) PLACE(0u, LANE) = pairs_places[RUN_PAIRS + LANE];
    if (LANE < RUN_PAIRS) runs[LANE] = pairs_places[LANE];
    tag = begun; // of the stream before the first layer
    for (uint o = first; o < W && lane == 0u; o += step) post(X_AT + o, load_x(args.x_at + o));
    barrier();
    uint seen = 0u;
    for (uint run = 0u; run < args.runs; run++) seen += seen_of(run, position);
    uint share = args.splits > 0u ? (seen + args.splits - 1u) / args.splits : 0u;
    uint own_head = workgroup < attends ? workgroup / args.splits : workgroup - attends;
    uint own_from = workgroup < attends ? workgroup % args.splits * share : 0u;
    fetch_project(0u, first);
    for (uint layer = 0u;; layer++) {
        bool goes_on = layer < args.layers;
        float squares = 0.0;
        if (layer > 0u) squares = take_y(Y_AT, Floats(PLACE(layer - 1u, PLACE_MIXER_NORM)));
        if (gave_up != 0u) break;
        if (layer > 0u) stream = add_output(layer - 1u, first, step, squares, stream);
        if (!goes_on) break;
        uvec2 next_place = LANE < PLACES && layer + 1u < args.layers ? pairs_places[RUN_PAIRS + (layer + 1u) * PLACES + LANE] : uvec2(0u);
        fetch_channel(layer, min(first + min(lane, BATCH - 1u) * step, outputs_of_project() - 1u));
        if (workgroup >= attends) {
            if (workgroup < items) fetch_state(layer, own_head);
        } else fetch_pair(layer, own_head, own_from, min(own_from + share, seen), position);
        barrier(); // the row is read
        squares = take_x(X_AT, Floats(PLACE(layer, PLACE_NORM)));
        if (gave_up != 0u) break;
        tag = begun + layer + 1u;
        project(layer, first, step, squares);
        fetch_output(layer, first);
        if (LANE < PLACES) PLACE(layer + 1u, LANE) = next_place;
        [[dont_unroll]] for (uint item = workgroup; item < items; item += workgroups) {
            bool is_scan = item >= attends;
            uint head = is_scan ? item - attends : item / args.splits;
            uint from = is_scan ? 0u : item % args.splits * share;
            uint end = min(from + share, seen);
            gather(is_scan, head);
            if (gave_up != 0u) break;
            if (item != workgroup) {
                if (is_scan) fetch_state(layer, head);
                else fetch_pair(layer, head, from, end, position);
            }
            if (is_scan) scan(layer, head, position);
            else attend(layer, head, item % args.splits, from, end, position);
        }
        barrier();
        if (layer + 1u < args.layers) fetch_project(layer + 1u, first);
    }
    if (LANE == 0u && gave_up != 0u) store_stuck(0u, 1.0);
    else if (LANE == 0u && workgroup == 0u) posts_posts[0] = uint64_t(begun + args.layers);
}
