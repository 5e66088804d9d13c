#version 460
#extension GL_GOOGLE_include_directive : require
// grad_x[part, t, i] = the sum over the outputs o of the part of up_y[t, o] weight[o, i], added to what grad_x holds with IS_ADD.
//
// up_y rows x outputs, weight outputs x inputs, grad_x parts x rows x inputs. A workgroup of 128 lanes makes T1 rows x T0 inputs of a part, 64 both
// (lib/tile.glsl). Shared memory: 4,352 bytes. Guards: what lies past an edge counts as 0.
#include "lib/dart.glsl"
#include "table/linear_backward_x.glsl"
READS(up_y) READS(weight) READS_WRITES(grad_x)
const uint ROWS = 16u;
const uint LINES = 64u;
const uint COLUMNS = 64u;
#include "lib/tile.glsl"

void main()
{
    uint blocks = (args.inputs + COLUMNS - 1u) / COLUMNS;
    uint t_blocks = (args.rows + LINES - 1u) / LINES;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint i_first = tile % blocks * COLUMNS;
        uint t_first = tile / blocks % t_blocks * LINES;
        uint part = tile / blocks / t_blocks;
        uint end = min((part + 1u) * args.share, args.outputs);
        clear_sums();
        for (uint o_first = part * args.share; o_first < end; o_first += DEPTH) {
            barrier();
            for (uint e = LANE; e < LINES * DEPTH; e += LANES) {
                uint t = t_first + e / DEPTH;
                uint o = o_first + e % DEPTH;
                put_a(e / DEPTH, e % DEPTH, t < args.rows && o < end ? load_up_y(args.up_y_at + t * args.up_y_row + o) : 0.0);
            }
            for (uint e = LANE; e < COLUMNS * DEPTH; e += LANES) {
                uint i = i_first + e % COLUMNS;
                uint o = o_first + e / COLUMNS;
                put_b(e % COLUMNS, e / COLUMNS, i < args.inputs && o < end ? load_weight(args.weight_at + o * args.inputs + i) : 0.0);
            }
            barrier();
            multiply();
        }
        for (uint k = 0u; k < OWN_LINES; k++) {
            barrier();
            put_strip(k);
            barrier();
            for (uint e = LANE; e < STRIP; e += LANES) {
                uint t = t_first + strip_line(k, e / COLUMNS);
                uint i = i_first + e % COLUMNS;
                if (t < args.rows && i < args.inputs) {
                    float value = strip_at(e / COLUMNS, e % COLUMNS);
                    uint at = args.grad_x_at + (part * args.rows + t) * args.grad_x_row + i;
                    store_grad_x(at, has(args.flags, IS_ADD) ? load_grad_x(at) + value : value);
                }
            }
        }
    }
}
