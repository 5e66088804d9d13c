#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
// The steps of several layers for many sequences in one launch, see MixerWindowsArgs, without memories and folds. A layer is three stages, each of
// which waits for the one before: both products with their convolutions, which also fill the window, 64 outputs of up to 32 sequences a workgroup;
// the heads, up to twelve of one sequence; the product behind the norm, 32 outputs of up to 16 sequences. What a stage reads of weights, states and
// windows is asked for before it waits, as far as registers go. Stages pass numbers on through memory, and each workgroup posts the tag of the layer
// when all that it has to say is there. A place is written again no earlier than a layer later, when all that read it have passed on what they made
// of it. The inputs of a product are shared out to the subgroups, whose sums pass through shared memory at the end.
// Arrays of registers that are filled in one branch and used in another are set to 0 between layers: what may be read later keeps its registers, and
// none are to spare.
// Shared memory: 44,900 bytes with subgroups of 32 lanes. Needs: subgroups of 8 to 32 lanes, SUBGROUPS 8, matrices that divide 16 rows, 64 outputs
// and 32 inputs; what a workgroup has written is the device's once an invocation of it releases it (DART_CAP_CUMULATIVE). Guards: eps > 0; exp only
// of numbers <= 0; slots without a token weigh 0, and what lies there is finite (window/args.h).
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_atomic_int64 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "lib/dart.glsl"
#include "table/mixer_window_layers.glsl"
READS_WRITES(x) READS(seq) WRITES(stuck)
#include "lib/seq.glsl"
#include "window/slot.glsl"
#include "lib/eight.glsl"
#include "lib/matrix.glsl"
READS_AS(uvec2, pairs, places)
READS_WRITES_AS(uint64_t, posts, posts)
// What stages pass on: inputs of the products in 16 bits, the rest in f32.
READS_WRITES_COHERENT(uvec4, quads, work)
READS_WRITES_COHERENT(uint, words, work)
READS_WRITES_COHERENT(float, floats, work)
READS_WRITES_COHERENT(uint16_t, halves, work)

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Fours { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Twos { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
// Of the window this step's token, which other workgroups read.
layout(buffer_reference, std430, buffer_reference_align = 16) buffer NewQuads { coherent uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer NewPairs { coherent uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer NewTwos { coherent vec2 v[]; };

const uint N = 128u;
const uint P = 64u;
const uint W = T0;
const uint H = T1;
const uint I = H * P;
const uint CHANNELS = I + 2u * N;  // of the convolution of [x|b|c]
const uint KEPT = I + N;           // of a row of the window
const uint R = I + CHANNELS + H;   // rows of in_proj
const uint QUERIES = N + P;        // channels of [q|e], then the gate
const uint TAPS = 4u;
const uint SIZE = SUBGROUPS * SUBGROUP_SIZE;
const uint PATIENCE = SUBGROUP_SIZE < 32u ? 100u * MIXER_PATIENCE : MIXER_PATIENCE; // workgroups of a processor take turns on its cores
const uint PARTS = 8u;             // of a row's inputs: one a subgroup
const uint PIECE = 32u;            // inputs that go through shared memory at a time
const uint ROWS_IN = 32u;          // a tile of both products
const uint OUTPUTS_IN = 64u;
const uint ROWS_OUT = 16u;         // a tile of the product behind the norm
const uint OUTPUTS_OUT = 32u;
const uint MOST_HEADS = WINDOWS_MOST_HEADS;
const uint ROUND = 4u;             // heads whose sums pass through shared memory at a time
const uint ROUNDS = MOST_HEADS / ROUND;

// Stages, and where their posts lie.
const uint PROJECTED = 0u;
const uint GATED = 1u;
const uint DONE = 2u;
const uint POSTS_AT = 8u;

// Where the parts of work lie, in f32 words.
const uint INPUT_PARTS = W / 16u; // sums of squares of a row of the stream
#define INPUTS_AT 0u                                     // x norm, B W of 16 bits
#define GATED_AT (INPUTS_AT + args.B * W / 2u)           // what the heads make, times norm, B I of 16 bits
#define INPUT_SQUARES_AT (GATED_AT + args.B * I / 2u)    // B INPUT_PARTS
#define Z_AT (INPUT_SQUARES_AT + args.B * INPUT_PARTS)   // B I
#define C_AT (Z_AT + args.B * I)                         // B N
#define GATED_SQUARES_AT (C_AT + args.B * N)             // B share

const uint PITCH = PIECE / 8u + 1u; // words of 16 bytes: eight rows begin in different banks
const uint TEAM = (ROWS_IN + OUTPUTS_IN / 2u) * PITCH; // of a subgroup
shared uvec4 slabs[PARTS * TEAM];
shared float row_parts[SIZE];
shared float c_now[N];
shared float scores[2u * WINDOW]; // two halves each
shared float decays[SUBGROUP_SIZE >= WINDOW ? 1u : MOST_HEADS * WINDOW], weights_of[MOST_HEADS * WINDOW], keeps[MOST_HEADS];
shared uvec2 table[2u * WINDOW_PLACES]; // of this layer and of the next
shared uint gave_up;

uint lane, subgroup, tag;
uint newest;                       // slot of this step's token of the workgroup's sequence
uint slots[ROWS_IN * OUTPUTS_IN / 4u / SIZE]; // of the rows of which a lane finishes outputs, or NONE
const uint NONE = 0xffffffffu;
uint group_begin, group_rows, member, group_first; // sequences of the group; the workgroup in it; the group's first workgroup

#define PLACE(layer, place) table[((layer) & 1u) * WINDOW_PLACES + (place)]

// ---- Posts ----

// All that this workgroup has written is there for the others.
void arrive(uint stage)
{
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
    if (LANE != 0u) return;
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease | gl_SemanticsMakeAvailable);
    atomicStore(posts_posts[POSTS_AT + stage * gl_NumWorkGroups.x + group_first + member], uint64_t(tag) << 32, gl_ScopeDevice,
                gl_StorageSemanticsNone, gl_SemanticsRelaxed);
}
// Waits for members from .. from + count - 1. Of one that never came all lanes learn together.
void await(uint stage, uint from, uint count)
{
    for (uint i = LANE; i < count; i += SIZE) {
        uint missing = 1u;
        [[dont_unroll]] for (uint tries = 0u; missing != 0u && tries < PATIENCE; tries++)
            missing = uint(atomicLoad(posts_posts[POSTS_AT + stage * gl_NumWorkGroups.x + group_first + from + i], gl_ScopeDevice,
                                      gl_StorageSemanticsNone, gl_SemanticsRelaxed) >> 32) ^ tag;
        if (missing != 0u) gave_up = 1u;
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
}

// The sequence of row i of the group, the last one for those behind it.
uint sequence(uint i) { return group_begin + min(i, group_rows - 1u); }

#include "windows_heads.glsl"
#include "windows_products.glsl"

void main()
{
    lane = gl_SubgroupInvocationID;
    subgroup = gl_SubgroupID;
    uint workgroups = gl_NumWorkGroups.x / args.groups; // of a group
    uint group = min(gl_WorkGroupID.x / workgroups, args.groups - 1u);
    group_first = group * workgroups;
    member = gl_WorkGroupID.x - group_first;
    group_begin = group * args.members;
    group_rows = min(args.members, args.B - group_begin);
    uint projectors = (outputs_of_project() + OUTPUTS_IN - 1u) / OUTPUTS_IN;
    uint row_tiles = (group_rows + ROWS_OUT - 1u) / ROWS_OUT, column_tiles = W / OUTPUTS_OUT;
    bool projects = member < projectors, has_heads = member < group_rows * args.share, ends = member < row_tiles * column_tiles;
    if (LANE == 0u) gave_up = 0u;
    if (LANE < WINDOW_PLACES) PLACE(0u, LANE) = pairs_places[RUN_PAIRS + LANE];
    uint begun = uint(posts_posts[0]) + 1u; // a word that nobody has written has tag 0
    tag = begun;
    barrier();
    uint b = sequence(member / args.share);
    uint first_head = member % args.share * args.heads, heads = min(args.heads, H - min(first_head, H));
    uint first_row = member / column_tiles * ROWS_OUT, first_column = member % column_tiles * OUTPUTS_OUT;
    newest = window_slot(seq_position(b));
    [[unroll]] for (uint i = 0u; i < ROWS_IN * OUTPUTS_IN / 4u / SIZE; i++) {
        uint row = sequence((LANE + i * SIZE) / (OUTPUTS_IN / 4u));
        slots[i] = seq_count(row, 1u) != 0u ? window_slot(seq_position(row)) : NONE;
    }
    if (ends) begin_stream(first_row, first_column);
    if (ends) arrive(DONE);
    [[dont_unroll]] for (uint layer = 0u; layer < args.layers; layer++) {
        bool goes_on = layer + 1u < args.layers;
        uvec2 next_place = LANE < WINDOW_PLACES && goes_on ? pairs_places[RUN_PAIRS + (layer + 1u) * WINDOW_PLACES + LANE] : uvec2(0u);
        if (has_heads) fetch_slots(layer, b, first_head, heads);
        if (projects) {
            fetch_in(layer);
            weigh_slots();
            settle_in();
            await(DONE, 0u, row_tiles * column_tiles);
            if (gave_up != 0u) break;
            project(layer, b, first_head, heads);
            arrive(PROJECTED);
        } else if (has_heads) {
            weigh_slots();
            fetch_states_first(layer, b, first_head, heads);
        }
        forget_matrices();
        if (has_heads) {
            barrier(); // slabs are read
            fetch_heads(layer, b, first_head, heads);
            await(PROJECTED, 0u, projectors);
            if (gave_up != 0u) break;
            run_heads(layer, b, first_head, heads);
            arrive(GATED);
        }
        forget_heads();
        if (LANE < WINDOW_PLACES) PLACE(layer + 1u, LANE) = next_place;
        if (ends) {
            fetch_out(layer, first_column);
            settle_out();
            await(GATED, first_row * args.share, min(ROWS_OUT, group_rows - first_row) * args.share);
            if (gave_up != 0u) break;
            tag = begun + layer + 1u;
            output_stream(layer, first_row, first_column, goes_on);
            arrive(DONE);
        }
        tag = begun + layer + 1u;
        forget_matrices();
        barrier();
    }
    if (gave_up == 0u && ends) end_stream(first_row, first_column);
    if (gave_up == 0u && gl_WorkGroupID.x == 0u) {
        // The last tag may be written once all workgroups have read the one before, those of the other group, too.
        for (uint g = 0u; g < args.groups; g++) {
            group_first = g * workgroups;
            uint rows = min(args.members, args.B - g * args.members);
            await(DONE, 0u, (rows + ROWS_OUT - 1u) / ROWS_OUT * column_tiles);
        }
        if (gave_up == 0u && LANE == 0u) posts_posts[0] = uint64_t(begun + args.layers);
    }
    if (LANE == 0u && gave_up != 0u) store_stuck(0u, 1.0);
}
