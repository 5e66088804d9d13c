#version 460
#extension GL_GOOGLE_include_directive : require
// y[t, o] = sum_i x[t, i] weight[o, i], added to what y holds with IS_ADD.
//
// x rows x inputs, weight outputs x inputs, y rows x outputs.
// A workgroup makes T0 = 2 LANES outputs x T1 = ROWS rows. A lane owns two outputs of every row: it reads its
// own weights from memory, eight at a time, and x from a slab in shared memory at addresses that all lanes share, so
// that a weight is used ROWS times and a slab element is one broadcast. Shared memory: 4 T1 SLAB bytes.
// Rows that do not start at 16-byte borders are read an element at a time.
// Guards: edge outputs read the last row of weight and are dropped; rows past the end count as 0.
#include "lib/dart.glsl"
#include "linear.glsl"
const uint OUTPUTS = 2u; // of a lane
const uint SLAB = 64u;   // inputs
shared vec4 slab[ROWS * SLAB / 4u];

void main()
{
    uint blocks = (args.outputs + OUTPUTS * LANES - 1u) / (OUTPUTS * LANES);
    bool by_eight = eights();
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first_output = tile % blocks * (OUTPUTS * LANES) + LANE;
        uint first_row = tile / blocks * ROWS;
        uint weight_at[OUTPUTS];
        float sum[OUTPUTS][ROWS];
        [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
            weight_at[o] = args.weight_at + min(first_output + o * LANES, args.outputs - 1u) * args.inputs;
            [[unroll]] for (uint r = 0u; r < ROWS; r++) sum[o][r] = 0.0;
        }
        for (uint begin = 0u; begin < args.inputs; begin += SLAB) {
            barrier();
            uint width = min(SLAB, args.inputs - begin);
            if (by_eight) {
                for (uint e = LANE; e < ROWS * SLAB / 8u; e += LANES) {
                    uint row = first_row + e / (SLAB / 8u);
                    uint i = e % (SLAB / 8u) * 8u;
                    Eight v = Eight(vec4(0.0), vec4(0.0));
                    if (row < args.rows && i < width) v = load_eight_x(args.x_at + row * args.x_row + begin + i);
                    slab[2u * e] = v.low;
                    slab[2u * e + 1u] = v.high;
                }
                barrier();
                for (uint i = 0u; i < width; i += 8u) {
                    Eight w[OUTPUTS];
                    [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) w[o] = load_eight_weight(weight_at[o] + begin + i);
                    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                        vec4 low = slab[(r * SLAB + i) / 4u];
                        vec4 high = slab[(r * SLAB + i) / 4u + 1u];
                        [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
                            sum[o][r] = add_four(add_four(sum[o][r], low, w[o].low), high, w[o].high);
                        }
                    }
                }
            } else {
                for (uint e = LANE; e < ROWS * SLAB; e += LANES) {
                    uint row = first_row + e / SLAB;
                    uint i = e % SLAB;
                    float v = row < args.rows && i < width ? load_x(args.x_at + row * args.x_row + begin + i) : 0.0;
                    slab[e / 4u][e % 4u] = v;
                }
                barrier();
                for (uint i = 0u; i < width; i++) {
                    float w[OUTPUTS];
                    [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) w[o] = load_weight(weight_at[o] + begin + i);
                    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                        float v = slab[(r * SLAB + i) / 4u][i % 4u];
                        [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) sum[o][r] += v * w[o];
                    }
                }
            }
        }
        [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
            uint column = first_output + o * LANES;
            if (column < args.outputs) {
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    if (first_row + r < args.rows) put(first_row + r, column, sum[o][r]);
                }
            }
        }
    }
}
