#version 460
#extension GL_GOOGLE_include_directive : require
// The sum of up_y over the tokens of a piece: added to its row of grad_weight, or stored in its slot of partial.
//
// plan: see dart_embed_plan; up_y rows x width; grad_weight vocabulary x width, partial slots x width, f32; width a multiple of 16. A workgroup
// makes T0 columns of a piece: T0 / 4 lanes read a token, four columns each, TEAMS tokens at once. A lane adds up every TEAMS-th token in
// order, then the lanes of a column are added in order. Shared memory: 16 LANES bytes.
#include "lib/dart.glsl"
#include "table/embed_backward.glsl"
READS(plan) READS(up_y)
#include "lib/eight.glsl"
#include "lib/four.glsl"
READS_FOUR(up_y) READS_WRITES_AS(vec4, fours, grad_weight) WRITES_AS(vec4, fours, partial)

const uint QUADS = T0 / 4u;
const uint TEAMS = LANES / QUADS;
const uint AHEAD = 4u;
shared vec4 sums[LANES];

void main()
{
    uint blocks = (args.width + T0 - 1u) / T0;
    uint pieces = uint(load_int_plan(args.plan_at));
    uint order = args.plan_at + 2u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        if (tile / blocks >= pieces) break;
        uint piece = order + args.rows + 4u * (tile / blocks);
        uint id = uint(load_int_plan(piece));
        uint begin = uint(load_int_plan(piece + 1u));
        uint end = uint(load_int_plan(piece + 2u));
        int slot = load_int_plan(piece + 3u);
        uint i = tile % blocks * T0 + LANE % QUADS * 4u;
        vec4 sum = vec4(0.0);
        if (i < args.width) {
            for (uint k = begin + LANE / QUADS; k < end; k += AHEAD * TEAMS) {
                uvec4 words[AHEAD]; // all of them under way at once; the last token stands for those past it
                [[unroll]] for (uint j = 0u; j < AHEAD; j++) {
                    uint token = uint(load_int_plan(order + min(k + j * TEAMS, end - 1u)));
                    words[j] = load_words_up_y(args.up_y_at + token * args.up_y_row + i);
                }
                [[unroll]] for (uint j = 0u; j < AHEAD; j++) {
                    if (k + j * TEAMS < end) sum += four_of(DTYPE_OF(up_y), words[j]);
                }
            }
        }
        barrier();
        sums[LANE] = sum;
        barrier();
        if (LANE < QUADS && i < args.width) {
            for (uint k = 1u; k < TEAMS; k++) sum += sums[k * QUADS + LANE];
            uint at = (args.grad_weight_at + id * args.width + i) / 4u;
            if (slot < 0) fours_grad_weight[at] += sum;
            else fours_partial[(uint(slot) * args.width + i) / 4u] = sum;
        }
    }
}
