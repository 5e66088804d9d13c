#version 460
#extension GL_GOOGLE_include_directive : require
// grad_weight of an id += the sum of its slots of partial.
//
// plan: see dart_embed_plan; partial slots x width, grad_weight vocabulary x width, f32; width a multiple of 16. A workgroup makes T0 columns of
// an id: T0 / 4 lanes read a slot, four columns each, TEAMS slots at once. A lane adds up every TEAMS-th slot in order, then the lanes of a
// column are added in order. Shared memory: 16 LANES bytes.
#include "lib/dart.glsl"
#include "table/embed_backward_sum.glsl"
READS(plan) READS_AS(vec4, fours, partial) READS_WRITES_AS(vec4, fours, grad_weight)

const uint QUADS = T0 / 4u;
const uint TEAMS = LANES / QUADS;
const uint AHEAD = 4u;
shared vec4 sums[LANES];

void main()
{
    uint blocks = (args.width + T0 - 1u) / T0;
    uint runs = uint(load_int_plan(args.plan_at + 1u));
    uint first = args.plan_at + 2u + args.rows + 4u * (args.rows / EMBED_PIECE + min(args.rows, args.vocabulary));
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        if (tile / blocks >= runs) break;
        uint run = first + 3u * (tile / blocks);
        uint id = uint(load_int_plan(run));
        uint begin = uint(load_int_plan(run + 1u));
        uint end = begin + uint(load_int_plan(run + 2u));
        uint i = tile % blocks * T0 + LANE % QUADS * 4u;
        uint row = args.width / 4u;
        vec4 sum = vec4(0.0);
        if (i < args.width) {
            for (uint k = begin + LANE / QUADS; k < end; k += AHEAD * TEAMS) {
                vec4 some[AHEAD]; // all of them under way at once; the last slot stands for those past it
                [[unroll]] for (uint j = 0u; j < AHEAD; j++) some[j] = fours_partial[min(k + j * TEAMS, end - 1u) * row + i / 4u];
                [[unroll]] for (uint j = 0u; j < AHEAD; j++) {
                    if (k + j * TEAMS < end) sum += some[j];
                }
            }
        }
        barrier();
        sums[LANE] = sum;
        barrier();
        if (LANE < QUADS && i < args.width) {
            for (uint k = 1u; k < TEAMS; k++) sum += sums[k * QUADS + LANE];
            fours_grad_weight[(args.grad_weight_at + id * args.width + i) / 4u] += sum;
        }
    }
}
