// ids[t] = the lowest index of the largest logit of row t, from its parts; a row without numbers gives 0.
//
// part rows blocks 2 (argmax_part), ids rows. A workgroup looks at one row. Shared memory: 4 LANES bytes.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/argmax.glsl"
READS(part) WRITES(ids)
#include "order.glsl"

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint best = 0u;
        uint where = 0u;
        for (uint i = LANE; i < args.blocks; i += LANES) {
            uint order = words_part[2u * (tile * args.blocks + i)];
            if (order > best) {
                best = order;
                where = words_part[2u * (tile * args.blocks + i) + 1u];
            }
        }
        uint top = workgroup_max_uint(best);
        uint lowest = ~workgroup_max_uint(best == top ? ~where : 0u);
        if (LANE == 0u) words_ids[args.ids_at + tile] = top == 0u ? 0u : lowest;
    }
}
