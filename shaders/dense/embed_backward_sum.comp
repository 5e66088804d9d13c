#version 460
#extension GL_GOOGLE_include_directive : require
// grad_weight of an id += the sum of its slots of partial, in order.
//
// plan: see dart_embed_plan; partial slots x width, grad_weight vocabulary x width, f32. A workgroup makes T0 columns of an id, a lane
// each. No shared memory.
#include "lib/dart.glsl"
#include "table/embed_backward_sum.glsl"
READS(plan) READS(partial) READS_WRITES(grad_weight)

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
        for (uint i = tile % blocks * T0 + LANE; i < min((tile % blocks + 1u) * T0, args.width); i += LANES) {
            float sum = 0.0;
            for (uint k = begin; k < end; k++) sum += load_partial(k * args.width + i);
            uint at = args.grad_weight_at + id * args.width + i;
            store_grad_weight(at, load_grad_weight(at) + sum);
        }
    }
}
