// ids[t] = the lowest index of the largest logit of row t; NaN never wins, a row without numbers gives 0.
//
// logits rows x width, ids rows. A workgroup looks at one row. Shared memory: 4 LANES bytes.
// Guards: logits are compared as order-preserving integers, so that infinities and NaN need no care of the device.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
PUSH(ArgmaxArgs)
READS(0, logits)
WRITES(1, ids)
#include "lib/order.glsl"

void main()
{
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint from = args.logits_at + tile * args.logits_row;
        uint best = 0u;
        uint where = 0u;
        for (uint i = LANE; i < args.width; i += LANES) {
            uint order = order_of(load_logits(from + i));
            if (order > best) {
                best = order;
                where = i;
            }
        }
        uint top = workgroup_max_uint(best);
        // The lowest index is the largest complement.
        uint lowest = ~workgroup_max_uint(best == top ? ~where : 0u);
        if (LANE == 0u) words_ids[args.ids_at + tile] = top == 0u ? 0u : lowest;
    }
}
