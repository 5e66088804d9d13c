#version 460
#extension GL_GOOGLE_include_directive : require
// grad_a = up_h u SiLU'(a), grad_u = up_h SiLU(a). All rows x width. A workgroup takes T0 consecutive elements, counted row by row.
// No shared memory.
#include "lib/dart.glsl"
#include "table/swiglu_backward.glsl"
READS(a) READS(u) READS(up_h) WRITES(grad_a) WRITES(grad_u)
#include "lib/slope.glsl"

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        for (uint e = LANE; e < T0; e += LANES) {
            uint element = tile * T0 + e;
            uint row = element / args.width;
            uint column = element % args.width;
            if (row >= args.rows) continue;
            Slope at = silu_slope(load_a(args.a_at + row * args.a_row + column));
            float up = load_up_h(args.up_h_at + row * args.up_h_row + column);
            float u = load_u(args.u_at + row * args.u_row + column);
            store_grad_a(args.grad_a_at + row * args.grad_a_row + column, up * u * at.slope);
            store_grad_u(args.grad_u_at + row * args.grad_u_row + column, up * at.value);
        }
    }
}
