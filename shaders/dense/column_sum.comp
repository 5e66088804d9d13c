#version 460
#extension GL_GOOGLE_include_directive : require
// y[g, i] = the sum over the rows s of part g of x[s, i]; added to what y holds with IS_ADD.
//
// x rows x width, f32, packed; y parts x width in lines of `line` elements; a part has `share` rows of x. A workgroup makes T0 columns of a
// part, T0 <= LANES: a team has a lane for each column and reads a row at once. A lane adds up every TEAMS-th row in order, AHEAD of them under
// way at once, then the teams are added in pairs. Shared memory: 4 LANES bytes.
#include "lib/dart.glsl"
#include "table/column_sum.glsl"
READS(x) READS_WRITES(y)

const uint AHEAD = 16u;
shared float sums[LANES];

void main()
{
    uint blocks = (args.width + T0 - 1u) / T0;
    uint columns = min(T0, args.width);
    uint teams = LANES / columns;
    uint team = LANE / columns; // lanes of no team have `teams` here
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint part = tile / blocks;
        uint i = (tile - part * blocks) * T0 + LANE % columns;
        uint end = team < teams && i < args.width ? min((part + 1u) * args.share, args.rows) : 0u;
        float sum = 0.0;
        for (uint s = part * args.share + team; s < end; s += AHEAD * teams) {
            float some[AHEAD];
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) some[k] = load_x(min(s + k * teams, end - 1u) * args.width + i);
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) sum += s + k * teams < end ? some[k] : 0.0;
        }
        barrier();
        sums[LANE] = sum;
        for (uint left = teams; left > 1u; left = (left + 1u) / 2u) {
            uint apart = (left + 1u) / 2u;
            barrier();
            if (team + apart < left) sums[LANE] += sums[LANE + apart * columns];
        }
        if (team == 0u && i < args.width) {
            uint to = part * args.width + i;
            uint at = args.y_at + to / args.line * args.y_row + to % args.line;
            store_y(at, has(args.flags, IS_ADD) ? load_y(at) + sums[LANE] : sums[LANE]);
        }
    }
}
