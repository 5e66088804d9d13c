#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
// The steps of several layers in one launch, see MixerLayersArgs. A layer is four stages: both products with their convolutions; the memories that
// this workgroup has; the scan of a head, which merges what workgroups have of its memories; the product behind the norm. What a stage reads of
// weights, states and memories is asked for before its inputs are there, as far as registers go, and where nothing else that uses memory waits
// behind it: a multiprocessor asks for no more than memory gives, and looks, shared memory and posts stand in the same queue. Numbers go from
// workgroup to workgroup in words of 64 bits, each with the tag of its layer, so that a reader needs no barrier: it looks until the tag is there. A
// word is written again no earlier than a layer later, when all that read it have passed on what they made of it.
// Lanes of a subgroup share a row of weights; eight lanes share a row of a memory, sixteen one of a state.
// Arrays of registers that are filled under a condition are set to 0 before: what may be read later keeps its registers around the loop of layers.
// Shared memory: 4 max(W, H P) + 9,300 bytes, with subgroups of 32 lanes. Guards: eps > 0; exp only of numbers <= 0.
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
const uint H = T1 % LAYERS_WORKGROUPS;
const uint WORKGROUPS = T1 / LAYERS_WORKGROUPS;
const bool IS_ALONE = WORKGROUPS == 1u; // otherwise there are at least 2 H
const uint I = H * P;
const uint CHANNELS = I + 2u * N;      // of the convolution of [x|b|c]
const uint R = I + CHANNELS + H;       // rows of in_proj
const uint QUERIES = N + P;            // channels of [q|e], then the gate
const uint TAPS = 4u;
const uint WIDE = I > W ? I : W;
const uint SIZE = 256u;                // lanes of a workgroup
const uint SUBGROUPS = SIZE / SUBGROUP_SIZE;
const uint PATIENCE = SUBGROUP_SIZE < 32u ? 100u * MIXER_PATIENCE : MIXER_PATIENCE; // workgroups of a processor take turns on its cores
const uint CHUNKS_X = W / (8u * SUBGROUP_SIZE); // of eight elements a lane
const uint CHUNKS_Y = I / (8u * SUBGROUP_SIZE);
// A long row of weights is shared out to subgroups, PARTS to a row, WORDS chunks each; STREAMS rows lie side by side. Of BATCH rows at a time a
// subgroup has UNITS parts, which are fetched ahead as far as registers go.
#define PARTS_OF(chunks) \
    (chunks % 2u != 0u || chunks <= 4u ? 1u : chunks % 4u != 0u || chunks <= 8u ? 2u : chunks % 8u != 0u || chunks <= 16u ? 4u : \
     chunks % 16u != 0u || chunks <= 32u ? 8u : 16u)
#define SMALLER(one, other) ((one) < (other) ? (one) : (other))
#define CEIL_DIV(a, b) (((a) + (b) - 1u) / (b))
const bool IS_WIDE = W > 1024u; // registers do not hold all at once
const uint PARTS_X = PARTS_OF(CHUNKS_X);
const uint PARTS_Y = PARTS_OF(CHUNKS_Y);
const uint WORDS_X = CHUNKS_X / PARTS_X;
const uint WORDS_Y = CHUNKS_Y / PARTS_Y;
const uint STREAMS_X = SUBGROUPS / PARTS_X;
const uint STREAMS_Y = SUBGROUPS / PARTS_Y;
const uint ROWS_X = CEIL_DIV(R + QUERIES + 1u, WORKGROUPS); // of a workgroup, at most
const uint ROWS_Y = CEIL_DIV(W, WORKGROUPS);
const uint QUADS_X = 39u; // chunks that a lane holds
const uint QUADS_Y = 18u;
const uint MOST_X = SMALLER(CEIL_DIV(ROWS_X, STREAMS_X), SUBGROUP_SIZE * PARTS_X); // no more than a lane each finishes
const uint MOST_Y = SMALLER(CEIL_DIV(ROWS_Y, STREAMS_Y), SUBGROUP_SIZE * PARTS_Y);
const uint UNITS_X = WORDS_X >= QUADS_X ? 1u : SMALLER(QUADS_X / WORDS_X, MOST_X);
const uint UNITS_Y = WORDS_Y >= QUADS_Y ? 1u : SMALLER(QUADS_Y / WORDS_Y, MOST_Y);
const uint THIRD_Y = CEIL_DIV(UNITS_Y, 3u);
const uint BATCH_X = UNITS_X * STREAMS_X;
const uint BATCH_Y = UNITS_Y * STREAMS_Y;
const bool IS_ONCE_X = BATCH_X >= ROWS_X; // all rows are one batch
const bool IS_ONCE_Y = BATCH_Y >= ROWS_Y;
// If IS_WIDE, in_proj is asked for in four parts, before and while this workgroup looks for the gated row and for the stream; states and memories
// when half of in_proj is multiplied; out_proj by those that attend in three parts, by those that scan before they look for sums of
// memories.
const uint FIRST_X = IS_WIDE ? SMALLER(4u, UNITS_X) : UNITS_X;
const uint SECOND_X = SMALLER(FIRST_X + 3u, UNITS_X);
const uint THIRD_X = IS_WIDE ? (UNITS_X > SECOND_X + 3u ? UNITS_X - 3u : UNITS_X) : UNITS_X;
const uint BEFORE_OWN_X = IS_WIDE ? (UNITS_X + 1u) / 2u : UNITS_X;
const uint ROWS = N * P / 8u / SIZE;         // of a memory in a lane
const uint STATE_ROWS = N * P / 4u / SIZE;
const uint OWN = IS_WIDE && SUBGROUP_SIZE >= 8u ? 5u * ROWS : 4u * ROWS; // words of a lane
const uint SLOTS = IS_WIDE ? OWN / ROWS : 2u; // memories that are looked at together

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
shared vec4 sums4[2u * SUBGROUPS];
shared float halves[(UNITS_X > UNITS_Y ? UNITS_X : UNITS_Y) * SUBGROUPS]; // sums of parts of rows
const uint FOUND_ROWS = SUBGROUP_SIZE >= 32u ? SUBGROUPS : SIZE / 16u; // of a scan
const uint LINES = SUBGROUP_SIZE >= 8u ? SUBGROUPS : SIZE / 8u;         // of memories
shared vec4 found[(LINES > FOUND_ROWS ? LINES : FOUND_ROWS) * P / 4u];
shared float shares[(uint(MIXER_MOST_SPLITS) + 1u) * PARTIAL]; // of a head
shared uvec2 table[2u * PLACES]; // of this layer and of the next
shared uvec2 runs[RUN_PAIRS];  // first and M
shared uint gave_up;
// What this workgroup does, in shared memory, where no compiler keeps what follows from it in registers: outputs of both products from rows_of.x
// on, before y; of out_proj from z on, before w. Memories of all heads, those of a head side by side, are shared out to the first `sharers`
// workgroups; this one has numbers share_begin .. share_end - 1, and of its first head it is the one with number share_first.
shared uvec4 rows_of;
shared float scales[SLOTS * N];
shared uint seen, sharers, share_begin, share_end, share_first; // seen: memories of a head that the token sees

uint lane, subgroup, tag;

// The sum over the subgroup, all of whose lanes are here: a compiler that cannot know so makes more of subgroupAdd.
float add_lanes(float value)
{
    [[unroll]] for (uint apart = SUBGROUP_SIZE / 2u; apart > 0u; apart /= 2u) value += subgroupShuffleXor(value, apart);
    return value;
}

#define PLACE(layer, place) table[((layer) & 1u) * PLACES + (place)]

uvec4 own[OWN]; // of a state h and open; of memories SLOTS x ROWS words
const uint FACTORS = CEIL_DIV(SLOTS * N, SIZE);
float factors[FACTORS]; // scales of memories
float a_log, step_bias, skip, before; // of a scan's head

#include "layers_posts.glsl"
#include "layers_products.glsl"
#include "layers_memories.glsl"
#include "layers_scan.glsl"

// Of `count` outputs workgroup w makes those from this one on.
uint begin_of(uint count, uint w) { return count * w / WORKGROUPS; }

void fetch_own(uint layer, uint item, uint position)
{
    [[unroll]] for (uint i = 0u; i < OWN; i++) own[i] = uvec4(0u);
    [[unroll]] for (uint i = 0u; i < FACTORS; i++) factors[i] = 0.0;
    if (item == 0u) fetch_memories(layer, share_begin, position);
    else if (item <= H) fetch_state(layer, item - 1u);
}
void forget_project()
{
    [[unroll]] for (uint i = 0u; i < UNITS_X * WORDS_X; i++) project_words[i] = uvec4(0u);
}
void forget_output()
{
    [[unroll]] for (uint i = 0u; i < UNITS_Y * WORDS_Y; i++) output_words[i] = uvec4(0u);
}

void main()
{
    lane = gl_SubgroupInvocationID;
    subgroup = gl_SubgroupID;
    uint position = seq_position(0u);
    if (seq_count(0u, 1u) == 0u) return;
    bool has_open = has(args.flags, HAS_OPEN);
    uint workgroup = gl_WorkGroupID.x;
    uint begin_y = begin_of(W, workgroup), end_y = begin_of(W, workgroup + 1u);
    uint outputs = outputs_of_project();
    if (LANE == 0u) rows_of = uvec4(begin_of(outputs, workgroup), begin_of(outputs, workgroup + 1u), begin_y, end_y);
    // Item 0 is this workgroup's share of memories, item 1 + h the scan of head h.
    uint attends = !has_open || args.runs == 0u ? 0u : IS_ALONE ? 1u : min(H * args.splits, WORKGROUPS - H);
    uint first_item = workgroup < attends ? 0u : 1u + workgroup - attends;
    uint begun = uint(posts_posts[0]) + 1u; // a word that nobody has written has tag 0
    float stream = begin_y + LANE < end_y ? load_x(args.x_at + begin_y + LANE) : 0.0;
    if (LANE == 0u) gave_up = 0u;
    if (LANE < PLACES) PLACE(0u, LANE) = pairs_places[RUN_PAIRS + LANE];
    if (LANE < RUN_PAIRS) runs[LANE] = pairs_places[LANE];
    tag = begun; // of the stream before the first layer
    for (uint o = begin_y + LANE; o < end_y; o += SIZE) post(X_AT + o, load_x(args.x_at + o));
    barrier();
    if (LANE == 0u) share_out(attends, position);
    barrier();
    fetch_project_first(0u, rows_of.x);
    fetch_project_second(0u, rows_of.x);
    for (uint layer = 0u;; layer++) {
        bool goes_on = layer < args.layers;
        float squares = 0.0;
        if (layer > 0u) squares = take_y(Y_AT, Floats(PLACE(layer - 1u, PLACE_MIXER_NORM)), layer);
        if (gave_up != 0u) break;
        if (layer > 0u) stream = add_output(layer - 1u, squares, stream);
        if (!goes_on) break;
        if (SECOND_X < THIRD_X) fetch_project_third(layer, rows_of.x);
        uvec2 next_place = LANE < PLACES && layer + 1u < args.layers ? pairs_places[RUN_PAIRS + (layer + 1u) * PLACES + LANE] : uvec2(0u);
        fetch_channel(layer, min(rows_of.x + LANE, rows_of.y - 1u));
        if (!IS_WIDE) fetch_own(layer, first_item, position);
        barrier(); // the row is read
        squares = take_x(X_AT, Floats(PLACE(layer, PLACE_NORM)), layer);
        if (gave_up != 0u) break;
        tag = begun + layer + 1u;
        [[dont_unroll]] for (uint batch = rows_of.x;; batch += BATCH_X) {
            bool is_last = IS_ONCE_X || batch + BATCH_X >= rows_of.y;
            multiply_x();
            if (IS_WIDE && is_last) fetch_own(layer, first_item, position);
            if (BEFORE_OWN_X < UNITS_X) multiply_x_rest();
            if (!is_last) fetch_project(layer, batch + BATCH_X);
            if (!IS_ONCE_X && batch != rows_of.x) fetch_channel(layer, min(batch + LANE, rows_of.y - 1u));
            barrier();
            post_projected(batch, rows_of.y, squares);
            if (is_last) break;
            barrier(); // halves are read
        }
        if (LANE < PLACES) PLACE(layer + 1u, LANE) = next_place;
        forget_project();
        forget_output();
        [[dont_unroll]] for (uint item = first_item;; item++) {
            if (item <= H) gather(item);
            if (gave_up != 0u) break;
            if (IS_ALONE && item != first_item) fetch_own(layer, item, position);
            if (!IS_WIDE && (!IS_ALONE || item == first_item)) fetch_output(layer, rows_of.z);
            if (item == 0u) attend(layer, position);
            else if (item <= H) scan(layer, item - 1u, position);
            if (!IS_ALONE || item == H) break;
        }
        barrier();
        if (IS_WIDE && (IS_ALONE || first_item > H || (first_item == 0u && share_begin == share_end))) fetch_output(layer, rows_of.z);
        if (layer + 1u < args.layers) fetch_project_first(layer + 1u, rows_of.x);
    }
    if (LANE == 0u && gave_up != 0u) store_stuck(0u, 1.0);
    else if (LANE == 0u && workgroup == 0u) posts_posts[0] = uint64_t(begun + args.layers);
}
