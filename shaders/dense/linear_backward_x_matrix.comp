#version 460
#extension GL_GOOGLE_include_directive : require
// grad_x[part, t, i] = the sum over the outputs o of the part of up_y[t, o] weight[o, i], added to what grad_x holds with IS_ADD, on cooperative
// matrices.
//
// up_y rows x outputs, weight outputs x inputs, grad_x parts x rows x inputs. A workgroup makes T1 rows x T0 inputs of a part. Shared memory and
// guards: linear_backward_matrix.glsl. Inputs are a multiple of 16.
#include "lib/dart.glsl"
#include "table/linear_backward_x.glsl"
READS(up_y) READS_AS(uvec4, quads, weight) READS_WRITES(grad_x)
#include "lib/eight.glsl"
READS_EIGHT(up_y)
READS_WRITES_AS(uvec4, quads, grad_x) READS_WRITES_AS(uvec2, pairs, grad_x)

uvec4 right_word(uint line, uint column) { return quads_weight[(args.weight_at + line * args.inputs + column) / 8u]; }

uint part_row; // of grad_x: that of row 0 of the part

void put_four(uint line, uint column, vec4 value)
{
    uint at = args.grad_x_at + (part_row + line) * args.grad_x_row + column;
    bool adds = has(args.flags, IS_ADD);
    if ((args.grad_x_at | args.grad_x_row) % 4u != 0u) {
        for (uint i = 0u; i < 4u; i++) store_grad_x(at + i, adds ? load_grad_x(at + i) + value[i] : value[i]);
    } else if (DTYPE_OF(grad_x) == TYPE_F32) {
        if (adds) value += uintBitsToFloat(quads_grad_x[at / 4u]);
        quads_grad_x[at / 4u] = floatBitsToUint(value);
    } else {
        if (adds) value += four_16bit(DTYPE_OF(grad_x), pairs_grad_x[at / 4u]);
        pairs_grad_x[at / 4u] = as_16bit(DTYPE_OF(grad_x), value);
    }
}
#include "linear_backward_matrix.glsl"

void main()
{
    uint blocks = (args.inputs + T0 - 1u) / T0;
    uint t_blocks = (args.rows + T1 - 1u) / T1;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint part = tile / blocks / t_blocks;
        uint first_row = tile / blocks % t_blocks * T1;
        part_row = part * args.rows;
        multiply_tile(Extent(uvec2(first_row, args.rows), uvec2(part * args.share, min((part + 1u) * args.share, args.outputs)),
                             tile % blocks * T0), first_row, args.rows);
    }
}
