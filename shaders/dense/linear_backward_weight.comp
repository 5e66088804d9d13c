#version 460
#extension GL_GOOGLE_include_directive : require
// grad_weight[part, o, i] = the sum over the rows t of the part of up_y[t, o] x[t, i], added to what is there with IS_ADD.
//
// up_y rows x outputs, x rows x inputs, grad_weight parts x outputs x inputs, f32. A workgroup of 128 lanes makes T1 outputs x T0 inputs
// of a part, 64 both (lib/tile.glsl). Shared memory: 4,352 bytes. Guards: what lies past an edge counts as 0.
#include "lib/dart.glsl"
#include "table/linear_backward_weight.glsl"
READS(up_y) READS(x) READS_WRITES(grad_weight)
const uint ROWS = 16u;
const uint LINES = 64u;
const uint COLUMNS = 64u;
#include "lib/tile.glsl"

void main()
{
    uint i_blocks = (args.inputs + COLUMNS - 1u) / COLUMNS;
    uint o_blocks = (args.outputs + LINES - 1u) / LINES;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint i_first = tile % i_blocks * COLUMNS;
        uint o_first = tile / i_blocks % o_blocks * LINES;
        uint part = tile / i_blocks / o_blocks;
        uint begin = part * args.share;
        uint end = min(begin + args.share, args.rows);
        clear_sums();
        for (uint t_first = begin; t_first < end; t_first += DEPTH) {
            barrier();
            for (uint e = LANE; e < LINES * DEPTH; e += LANES) {
                uint o = o_first + e % LINES;
                uint t = t_first + e / LINES;
                put_a(e % LINES, e / LINES, o < args.outputs && t < end ? load_up_y(args.up_y_at + t * args.up_y_row + o) : 0.0);
            }
            for (uint e = LANE; e < COLUMNS * DEPTH; e += LANES) {
                uint i = i_first + e % COLUMNS;
                uint t = t_first + e / COLUMNS;
                put_b(e % COLUMNS, e / COLUMNS, i < args.inputs && t < end ? load_x(args.x_at + t * args.x_row + i) : 0.0);
            }
            barrier();
            multiply();
        }
        for (uint k = 0u; k < OWN_LINES; k++) {
            barrier();
            put_strip(k);
            barrier();
            for (uint e = LANE; e < STRIP; e += LANES) {
                uint o = o_first + strip_line(k, e / COLUMNS);
                uint i = i_first + e % COLUMNS;
                if (o < args.outputs && i < args.inputs) {
                    float value = strip_at(e / COLUMNS, e % COLUMNS);
                    uint at = args.grad_weight_at + (part * args.outputs + o) * args.inputs + i;
                    store_grad_weight(at, has(args.flags, IS_ADD) ? load_grad_weight(at) + value : value);
                }
            }
        }
    }
}
