#version 460
#extension GL_GOOGLE_include_directive : require
// y[t, o] = sum_i x[t, i] w[o, i], added to what y holds with IS_ADD; w[o, i] = scale n[o, i] + minimum, row o of weight (quantised.glsl).
//
// A workgroup makes T0 outputs of T1 = 4 rows. Teams of 2 LANES / T0 lanes own two outputs each, split the blocks of the inputs, read each block once
// and add their parts up. A block adds scale (n . x) + minimum (sum x). Shared memory: 16 (2 LANES + T0) bytes.
// Rows of x that do not start at 16-byte borders are read an element at a time.
// Guards: edge outputs read the last row of weight and are dropped.
#include "lib/dart.glsl"
#include "table/linear_quantised.glsl"
READS(x) READS_WRITES(y)
#include "lib/eight.glsl"
#include "quantised.glsl"
READS_EIGHT(x)
const uint OUTPUTS = 2u; // of a lane
const uint ROWS = 4u;    // T1
shared float parts[ROWS * (OUTPUTS * gl_WorkGroupSize.x + T0)];

Eight eight_x(uint at, bool aligned)
{
    if (aligned) return load_eight_x(at);
    return Eight(vec4(load_x(at), load_x(at + 1u), load_x(at + 2u), load_x(at + 3u)),
                 vec4(load_x(at + 4u), load_x(at + 5u), load_x(at + 6u), load_x(at + 7u)));
}

void main()
{
    uint blocks = (args.outputs + T0 - 1u) / T0;
    bool aligned = aligned_x(args.x_at, args.x_row);
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
            weight_at[o] = args.weight_at + min(first_output + own_output + o, args.outputs - 1u) * args.weight_row;
            [[unroll]] for (uint r = 0u; r < ROWS; r++) sum[r][o] = 0.0;
        }
        uint x_at = args.x_at + first_row * args.x_row;
        for (uint b = member; b < args.inputs / 32u; b += team) {
            Block w[OUTPUTS];
            [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) w[o] = block_at(weight_at[o], args.inputs, b);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                if (r < rows) {
                    float products[OUTPUTS];
                    float all_x = 0.0;
                    [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) products[o] = 0.0;
                    [[unroll]] for (uint j = 0u; j < 4u; j++) {
                        Eight v = eight_x(x_at + r * args.x_row + 32u * b + 8u * j, aligned);
                        if (FOUR_BITS) all_x += dot(v.low, vec4(1.0)) + dot(v.high, vec4(1.0));
                        [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
                            Eight n = numbers_of(w[o], j);
                            products[o] += dot(v.low, n.low) + dot(v.high, n.high);
                        }
                    }
                    [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
                        sum[r][o] += w[o].scale * products[o] + (FOUR_BITS ? w[o].minimum * all_x : 0.0);
                    }
                }
            }
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            if (r < rows) {
                [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) parts[(r * T0 + own_output + o) * stride + member] = sum[r][o];
            }
        }
        barrier();
        for (uint e = LANE; e < rows * T0; e += LANES) {
            float total = 0.0;
            for (uint part = 0u; part < team; part++) total += parts[e * stride + part];
            uint column = first_output + e % T0;
            if (column < args.outputs) {
                uint at = args.y_at + (first_row + e / T0) * args.y_row + column;
                store_y(at, has(args.flags, IS_ADD) ? load_y(at) + total : total);
            }
        }
        barrier();
    }
}
