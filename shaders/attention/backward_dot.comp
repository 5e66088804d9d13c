#version 460
#extension GL_GOOGLE_include_directive : require
// dot[(b L + t) H + h] = o_t . up_o_t over the columns of head h. o, up_o B L H D; dot B L H, f32. A workgroup takes a row: LANES / TEAM heads
// at a time, TEAM lanes a head. Shared memory: 4 LANES bytes.
#include "lib/dart.glsl"
#include "table/attention_backward_dot.glsl"
READS(o) READS(up_o) READS(seq) WRITES(dot)
#include "lib/seq.glsl"

const uint TEAM = 16u;
shared float parts[gl_WorkGroupSize.x];

void main()
{
    uint member = LANE % TEAM;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        if (tile % args.L >= seq_count(tile / args.L, args.L)) continue;
        for (uint first = 0u; first < args.H; first += LANES / TEAM) {
            uint h = first + LANE / TEAM;
            float sum = 0.0;
            for (uint d = member; d < args.D && h < args.H; d += TEAM)
                sum += load_o(args.o_at + tile * args.o_row + h * args.D + d) * load_up_o(args.up_o_at + tile * args.up_o_row + h * args.D + d);
            barrier();
            parts[LANE] = sum;
            barrier();
            if (member != 0u || h >= args.H) continue;
            float total = 0.0;
            for (uint i = 0u; i < TEAM; i++) total += parts[LANE + i];
            store_dot(tile * args.H + h, total);
        }
    }
}
