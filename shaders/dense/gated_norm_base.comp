#version 460
#extension GL_GOOGLE_include_directive : require
// v = (y + SiLU(gate) r) SiLU(z), out = v / sqrt(mean(v^2) + eps) * weight; without HAS_SMA the term in r is absent.
//
// y, r, z, out rows x width; gate rows; weight width. A workgroup makes one row and computes v twice: keeping it
// would take more shared memory than small devices have. out may be y: a lane reads element i before it writes it.
// Shared memory: 4 LANES bytes. Guards: eps > 0; SiLU by exp of negative numbers only; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/gated_norm.glsl"
READS(y) READS(r) READS(gate) READS(z) READS(weight) WRITES(out)

float gated(uint row, uint i, float gate)
{
    float value = load_y(args.y_at + row * args.y_row + i);
    if (has(args.flags, HAS_SMA)) value += gate * load_r(args.r_at + row * args.r_row + i);
    return value * silu(load_z(args.z_at + row * args.z_row + i));
}

void main()
{
    for (uint row = FIRST_TILE; row < args.tiles; row += gl_NumWorkGroups.x) {
        float gate = has(args.flags, HAS_SMA) ? silu(load_gate(args.gate_at + row * args.gate_row)) : 0.0;
        precise float squares = 0.0;
        for (uint i = LANE; i < args.width; i += LANES) {
            float value = gated(row, i, gate);
            squares += value * value;
        }
        float scale = 1.0 / sqrt(workgroup_sum(squares) / float(args.width) + args.eps);
        for (uint i = LANE; i < args.width; i += LANES) {
            float value = gated(row, i, gate) * scale * load_weight(args.weight_at + i);
            store_out(args.out_at + row * args.out_row + i, value);
        }
    }
}
