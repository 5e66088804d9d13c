#version 460
#extension GL_GOOGLE_include_directive : require
// The sum of up_y over the tokens of a piece, in order: added to its row of grad_weight, or stored in its slot of partial.
//
// plan: see dart_embed_plan; up_y rows x width; grad_weight vocabulary x width, partial slots x width, f32. A workgroup makes T0
// columns of a piece, a lane each. No shared memory.
#include "lib/dart.glsl"
#include "table/embed_backward.glsl"
READS(plan) READS(up_y) READS_WRITES(grad_weight) WRITES(partial)

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
        for (uint i = tile % blocks * T0 + LANE; i < min((tile % blocks + 1u) * T0, args.width); i += LANES) {
            float sum = 0.0;
            for (uint k = begin; k < end; k++) sum += load_up_y(args.up_y_at + uint(load_int_plan(order + k)) * args.up_y_row + i);
            uint at = args.grad_weight_at + id * args.width + i;
            if (slot < 0) store_grad_weight(at, load_grad_weight(at) + sum);
            else store_partial(uint(slot) * args.width + i, sum);
        }
    }
}
