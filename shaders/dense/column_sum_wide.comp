#version 460
#extension GL_GOOGLE_include_directive : require
// y[g, i] = the sum over the rows s of part g of x[s, i]; added to what y holds with IS_ADD.
//
// x rows x width, f32, packed, width a multiple of 16; y parts x width in lines of `line` elements; a part has `share` rows of x. A workgroup
// makes T0 columns of a part: T0 / 4 lanes read a row, four columns each, TEAMS rows at once. A lane adds up every TEAMS-th row in order,
// then the lanes of a column are added in order. Shared memory: 16 LANES bytes.
#include "lib/dart.glsl"
#include "table/column_sum.glsl"
READS_AS(vec4, fours, x) READS_WRITES(y)

const uint QUADS = T0 / 4u;
const uint TEAMS = LANES / QUADS;
const uint AHEAD = 4u;
shared vec4 sums[LANES];

void main()
{
    uint blocks = (args.width + T0 - 1u) / T0;
    uint row_quads = args.width / 4u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint part = tile / blocks;
        uint first = (tile - part * blocks) * T0;
        uint end = min((part + 1u) * args.share, args.rows);
        uint quad = first / 4u + LANE % QUADS;
        vec4 sum = vec4(0.0);
        uint s = part * args.share + LANE / QUADS;
        if (quad < row_quads) {
            for (; s + (AHEAD - 1u) * TEAMS < end; s += AHEAD * TEAMS) {
                vec4 some[AHEAD]; // all of them under way at once
                [[unroll]] for (uint k = 0u; k < AHEAD; k++) some[k] = fours_x[(s + k * TEAMS) * row_quads + quad];
                [[unroll]] for (uint k = 0u; k < AHEAD; k++) sum += some[k];
            }
            for (; s < end; s += TEAMS) sum += fours_x[s * row_quads + quad];
        }
        barrier();
        sums[LANE] = sum;
        barrier();
        for (uint i = LANE; i < T0 && first + i < args.width; i += LANES) {
            float total = 0.0;
            for (uint k = 0u; k < TEAMS; k++) total += sums[k * QUADS + i / 4u][i % 4u];
            uint to = part * args.width + first + i;
            uint at = args.y_at + to / args.line * args.y_row + to % args.line;
            store_y(at, has(args.flags, IS_ADD) ? load_y(at) + total : total);
        }
    }
}
