#version 460
#extension GL_GOOGLE_include_directive : require
// grad_weight[part, o, i] = the sum over the rows t of the part of up_y[t, o] x[t, i], added to what is there with IS_ADD, on cooperative
// matrices.
//
// up_y rows x outputs, x rows x inputs, grad_weight parts x outputs x inputs, f32. A workgroup makes T1 outputs x T0 inputs of a part. Shared
// memory and guards: linear_backward_matrix.glsl. Inputs are a multiple of 16.
#include "lib/dart.glsl"
#include "table/linear_backward_weight.glsl"
READS(up_y) READS_AS(uvec4, quads, x) READS_WRITES(grad_weight)
#include "lib/eight.glsl"
READS_EIGHT(up_y)
READS_WRITES_AS(uvec4, quads, grad_weight)

uvec4 right_word(uint line, uint column) { return quads_x[(args.x_at + line * args.x_row + column) / 8u]; }

uint part_output; // of grad_weight: that of output 0 of the part

void put_four(uint line, uint column, vec4 value)
{
    uint at = args.grad_weight_at + (part_output + line) * args.inputs + column;
    bool adds = has(args.flags, IS_ADD);
    if (args.grad_weight_at % 4u != 0u) {
        for (uint i = 0u; i < 4u; i++) store_grad_weight(at + i, adds ? load_grad_weight(at + i) + value[i] : value[i]);
    } else {
        if (adds) value += uintBitsToFloat(quads_grad_weight[at / 4u]);
        quads_grad_weight[at / 4u] = floatBitsToUint(value);
    }
}
#define SUM_ROWS
#include "linear_backward_matrix.glsl"

void main()
{
    uint i_blocks = (args.inputs + T0 - 1u) / T0;
    uint o_blocks = (args.outputs + T1 - 1u) / T1;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint part = tile / i_blocks / o_blocks;
        uint first_output = tile / i_blocks % o_blocks * T1;
        part_output = part * args.outputs;
        multiply_tile(Extent(uvec2(part * args.share, min((part + 1u) * args.share, args.rows)), uvec2(first_output, args.outputs),
                             tile % i_blocks * T0), first_output, args.outputs);
    }
}
