#version 460
#extension GL_GOOGLE_include_directive : require
// Gradients of out = v / sqrt(mean(v^2) + eps) weight, v = w SiLU(z), w = y + SiLU(gate) r; formulas: args.h. With i the inverse root
// and u = up_out weight, a row needs four sums: squares = sum v^2, along = sum u v, and for the gate straight = sum SiLU(z) r u and
// across = sum SiLU(z) r v, since sum grad_y r = i straight - i^3 mean(u v) across.
//
// All tensors rows x width but gate and grad_gate, rows, and weight, width; partial tiles x width, f32. A workgroup takes T0 rows: TEAM
// lanes add up a row, then a lane takes a column of all rows. Shared memory: 16 T0 (TEAM + 1) + 12 T0 bytes.
// Guards: eps > 0; SiLU by exp of negative numbers only; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/gated_norm_backward.glsl"
READS(y) READS(r) READS(gate) READS(z) READS(weight) READS(up_out)
WRITES(grad_y) WRITES(grad_r) WRITES(grad_gate) WRITES(grad_z) WRITES(partial)
#include "lib/slope.glsl"

const uint TEAM = 16u;
shared vec4 parts[T0 * (TEAM + 1u)];
shared vec3 factors[T0]; // i, i^3 mean(u v), SiLU(gate)

void main()
{
    uint member = LANE % TEAM;
    bool sma = has(args.flags, HAS_SMA);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile * T0;
        uint count = min(T0, args.rows - first);
        barrier();
        for (uint row = LANE / TEAM; row < count; row += LANES / TEAM) {
            uint t = first + row;
            float gate = sma ? silu(load_gate(args.gate_at + t * args.gate_row)) : 0.0;
            vec4 sum = vec4(0.0);
            for (uint i = member; i < args.width; i += TEAM) {
                float open = silu(load_z(args.z_at + t * args.z_row + i));
                float r = sma ? load_r(args.r_at + t * args.r_row + i) : 0.0;
                float v = (load_y(args.y_at + t * args.y_row + i) + gate * r) * open;
                float u = load_up_out(args.up_out_at + t * args.up_out_row + i) * load_weight(args.weight_at + i);
                sum += vec4(v * v, u * v, open * r * u, open * r * v);
            }
            parts[row * (TEAM + 1u) + member] = sum;
        }
        barrier();
        for (uint row = LANE; row < count; row += LANES) {
            uint t = first + row;
            vec4 sum = vec4(0.0);
            for (uint k = 0u; k < TEAM; k++) sum += parts[row * (TEAM + 1u) + k];
            float inverse = 1.0 / sqrt(sum.x / float(args.width) + args.eps);
            float along = inverse * inverse * inverse * sum.y / float(args.width);
            Slope gate = Slope(0.0, 0.0);
            if (sma) {
                gate = silu_slope(load_gate(args.gate_at + t * args.gate_row));
                store_grad_gate(args.grad_gate_at + t * args.grad_gate_row, gate.slope * (inverse * sum.z - along * sum.w));
            }
            factors[row] = vec3(inverse, along, gate.value);
        }
        barrier();
        for (uint i = LANE; i < args.width; i += LANES) {
            float weight = load_weight(args.weight_at + i);
            float sum = 0.0;
            for (uint row = 0u; row < count; row++) {
                uint t = first + row;
                vec3 factor = factors[row];
                Slope open = silu_slope(load_z(args.z_at + t * args.z_row + i));
                float w = load_y(args.y_at + t * args.y_row + i);
                if (sma) w += factor.z * load_r(args.r_at + t * args.r_row + i);
                float up = load_up_out(args.up_out_at + t * args.up_out_row + i);
                float grad = factor.x * up * weight - factor.y * w * open.value; // of v
                sum += up * w * open.value * factor.x;
                store_grad_y(args.grad_y_at + t * args.grad_y_row + i, grad * open.value);
                store_grad_z(args.grad_z_at + t * args.grad_z_row + i, grad * w * open.slope);
                if (sma) store_grad_r(args.grad_r_at + t * args.grad_r_row + i, factor.z * grad * open.value);
            }
            store_partial(tile * args.width + i, sum);
        }
    }
}
