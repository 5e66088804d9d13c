#version 460
#extension GL_GOOGLE_include_directive : require
// h = SiLU(a) u. a, u, h rows x width, width a multiple of 16. A workgroup takes T0 consecutive elements, counted row by row, in words of 16
// bytes. No shared memory.
#include "lib/dart.glsl"
#include "table/swiglu.glsl"
READS(a) READS(u) WRITES(h)
#include "lib/eight.glsl"
READS_EIGHT(a) READS_EIGHT(u) WRITES_EIGHT(h)

void main()
{
    uint eights = args.width / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * (T0 / 8u), args.rows * eights);
        for (uint k = tile * (T0 / 8u) + LANE; k < end; k += LANES) {
            uint t = k / eights;
            uint i = (k - t * eights) * 8u;
            Eight a = load_eight_a(args.a_at + t * args.a_row + i);
            Eight u = load_eight_u(args.u_at + t * args.u_row + i);
            store_eight_h(args.h_at + t * args.h_row + i,
                          Eight(silu_four(DTYPE_OF(h), a.low) * u.low, silu_four(DTYPE_OF(h), a.high) * u.high));
        }
    }
}
