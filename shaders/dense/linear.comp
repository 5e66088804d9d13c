// y[t, o] = sum_i x[t, i] weight[o, i], added to what y holds with IS_ADD.
//
// x rows x inputs, weight outputs x inputs, y rows x outputs.
// Many rows: a workgroup makes T0 = 2 LANES outputs x T1 = 32 rows. A lane owns two outputs of every row: it reads its
// own weights from memory, eight at a time, and x from a slab in shared memory at addresses that all lanes share, so
// that a weight is used 32 times and a slab element is one broadcast. Shared memory: 4 T1 SLAB bytes.
// FEW, up to four rows: a workgroup makes T0 outputs of T1 = 4 rows. Teams of 4 LANES / T0 lanes own four outputs each, split
// the inputs, read each weight once and add their parts up (eight outputs a lane take 116 registers, of which a GCN SIMD holds
// two waves). Shared memory: 16 (4 LANES + T0) bytes.
// Rows that do not start at 16-byte borders are read an element at a time.
// Matrix rows: lib/linear_matrix.glsl. With -DWIDE: lib/linear_wide.glsl.
// Guards: edge outputs read the last row of weight and are dropped; rows past the end count as 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/linear.glsl"
READS(x) READS(weight) READS_WRITES(y)

#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(weight)

bool eights()
{
    return args.inputs % 8u == 0u && aligned_x(args.x_at, args.x_row) && aligned_weight(args.weight_at, args.inputs);
}

// sum + a . b, one product after the other.
float add_products(float sum, vec4 a, vec4 b)
{
    sum += a.x * b.x;
    sum += a.y * b.y;
    sum += a.z * b.z;
    sum += a.w * b.w;
    return sum;
}

void put(uint row, uint column, float value)
{
    uint at = args.y_at + row * args.y_row + column;
    store_y(at, has(args.flags, IS_ADD) ? load_y(at) + value : value);
}

#if defined(MATRIX_F16) || defined(MATRIX_BF16)
#include "linear_matrix.glsl"
#elif defined(WIDE)
#include "linear_wide.glsl"
#elif defined(FEW)
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
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
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
                            sum[r][o] = add_products(add_products(sum[r][o], v.low, w[o].low), v.high, w[o].high);
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

#else
const uint OUTPUTS = 2u; // of a lane
const uint ROWS = 32u;   // T1
const uint SLAB = 64u;   // inputs
shared vec4 slab[ROWS * SLAB / 4u];

void main()
{
    uint blocks = (args.outputs + OUTPUTS * LANES - 1u) / (OUTPUTS * LANES);
    bool by_eight = eights();
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
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
                            sum[o][r] = add_products(add_products(sum[o][r], low, w[o].low), high, w[o].high);
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
#endif
