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

#define PLACE(layer, place) table[((layer) & 1u) * PLACES + (place)]

uvec4 own[2u * STATE_ROWS]; // of a state h and open; of memories PAIR x ROWS words
float factors[PAIR * ROWS];
float a_log, step_bias, skip, before; // of a scan's head

#include "layers_posts.glsl"
#include "layers_products.glsl"
#include "layers_memories.glsl"
#include "layers_scan.glsl"

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
