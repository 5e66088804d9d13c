#version 460
#extension GL_GOOGLE_include_directive : require
// y[g, i] = the sum over the rows s of part g of x[s, i], in order; added to what y holds with IS_ADD.
//
// x rows x width, f32, packed; y parts x width in lines of `line` elements; a part has `share` rows of x. A workgroup makes T0 columns of a
// part, a lane each.
// No shared memory.
#include "lib/dart.glsl"
#include "table/column_sum.glsl"
READS(x) READS_WRITES(y)

void main()
{
    uint blocks = (args.width + T0 - 1u) / T0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint part = tile / blocks;
        uint end = min((part + 1u) * args.share, args.rows);
        for (uint i = tile % blocks * T0 + LANE; i < min((tile % blocks + 1u) * T0, args.width); i += LANES) {
            float sum = 0.0;
            for (uint s = part * args.share; s < end; s++) sum += load_x(s * args.width + i);
            uint to = part * args.width + i;
            uint at = args.y_at + to / args.line * args.y_row + to % args.line;
            store_y(at, has(args.flags, IS_ADD) ? load_y(at) + sum : sum);
        }
    }
}
