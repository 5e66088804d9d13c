#version 460
#extension GL_GOOGLE_include_directive : require
// h = SiLU(a) u. a, u, h rows x width. A workgroup takes T0 consecutive elements, counted row by row. No shared memory.
#include "lib/dart.glsl"
#include "table/swiglu.glsl"
READS(a) READS(u) WRITES(h)

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        for (uint e = LANE; e < T0; e += LANES) {
            uint element = tile * T0 + e;
            uint row = element / args.width;
            uint column = element % args.width;
            if (row >= args.rows) continue;
            store_h(args.h_at + row * args.h_row + column, silu(load_a(args.a_at + row * args.a_row + column)) *
                                                               load_u(args.u_at + row * args.u_row + column));
        }
    }
}
