#version 460
#extension GL_GOOGLE_include_directive : require
// linear for up to four rows, or few outputs (linear_base.comp has the formula): a workgroup makes T0 outputs of T1 = 4 rows. Teams of 4 LANES / T0
// lanes own four outputs each, split the inputs, read each weight once and add their parts up (eight outputs a lane take 116
// registers, of which a GCN SIMD holds two waves). Shared memory: 16 (4 LANES + T0) bytes.
// Rows that do not start at 16-byte borders are read an element at a time.
// Guards: edge outputs read the last row of weight and are dropped.
#include "lib/dart.glsl"
#include "linear.glsl"
const uint OUTPUTS = 4u; // of a lane
const uint ROWS = 4u;    // T1
shared float parts[ROWS * (OUTPUTS * gl_WorkGroupSize.x + T0)];

void main()
{
    uint blocks = (args.outputs + T0 - 1u) / T0;
    bool by_eight = eights();
    uint team = LANES * OUTPUTS / T0; // lanes that share outputs
    uint member = LANE % team;
    uint own_output = LANE / team * OUTPUTS;
    uint stride = team + 1u; // so that the lanes that add up read different banks
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first_output = tile % blocks * T0;
        uint first_row = tile / blocks * ROWS;
        uint rows = min(ROWS, args.rows - first_row);
        uint weight_at[OUTPUTS];
        float sum[ROWS][OUTPUTS];
        [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
            weight_at[o] = args.weight_at + min(first_output + own_output + o, args.outputs - 1u) * args.inputs;
            [[unroll]] for (uint r = 0u; r < ROWS; r++) sum[r][o] = 0.0;
        }
        uint x_at = args.x_at + first_row * args.x_row;
        if (by_eight) {
            for (uint i = 8u * member; i < args.inputs; i += 8u * team) {
                Eight w[OUTPUTS];
                [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) w[o] = load_eight_weight(weight_at[o] + i);
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    if (r < rows) {
                        Eight v = load_eight_x(x_at + r * args.x_row + i);
                        [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
                            sum[r][o] = add_four(add_four(sum[r][o], v.low, w[o].low), v.high, w[o].high);
                        }
                    }
                }
            }
        } else {
            for (uint i = member; i < args.inputs; i += team) {
                float w[OUTPUTS];
                [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) w[o] = load_weight(weight_at[o] + i);
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    if (r < rows) {
                        float v = load_x(x_at + r * args.x_row + i);
                        [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) sum[r][o] += v * w[o];
                    }
                }
            }
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            if (r < rows) {
                [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
                    parts[(r * T0 + own_output + o) * stride + member] = sum[r][o];
                }
            }
        }
        barrier();
        for (uint e = LANE; e < rows * T0; e += LANES) {
            float total = 0.0;
            for (uint part = 0u; part < team; part++) total += parts[e * stride + part];
            uint column = first_output + e % T0;
            if (column < args.outputs) put(first_row + e / T0, column, total);
        }
        barrier();
    }
}
