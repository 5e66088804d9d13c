#version 460
#extension GL_GOOGLE_include_directive : require
// grad_a = up_h u SiLU'(a), grad_u = up_h SiLU(a). All rows x width, width a multiple of 16. A workgroup takes T0 consecutive elements, counted row
// by row, in words of 16 bytes. No shared memory.
#include "lib/dart.glsl"
#include "table/swiglu_backward.glsl"
READS(a) READS(u) READS(up_h) WRITES(grad_a) WRITES(grad_u)
#include "lib/slope.glsl"
#include "lib/eight.glsl"
#include "lib/slopes.glsl"
READS_EIGHT(a) READS_EIGHT(u) READS_EIGHT(up_h) WRITES_EIGHT(grad_a) WRITES_EIGHT(grad_u)

void main()
{
    uint eights = args.width / 8u;
    uint type = is_16bit(DTYPE_OF(grad_u)) ? DTYPE_OF(grad_a) : TYPE_F32; // f32 unless both have 16 bits
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * (T0 / 8u), args.rows * eights);
        for (uint k = tile * (T0 / 8u) + LANE; k < end; k += LANES) {
            uint t = k / eights;
            uint i = (k - t * eights) * 8u;
            Eight a = load_eight_a(args.a_at + t * args.a_row + i);
            Eight u = load_eight_u(args.u_at + t * args.u_row + i);
            Eight up = load_eight_up_h(args.up_h_at + t * args.up_h_row + i);
            Slopes low = silu_slopes(type, a.low);
            Slopes high = silu_slopes(type, a.high);
            store_eight_grad_a(args.grad_a_at + t * args.grad_a_row + i, Eight(up.low * u.low * low.slope, up.high * u.high * high.slope));
            store_eight_grad_u(args.grad_u_at + t * args.grad_u_row + i, Eight(up.low * low.value, up.high * high.value));
        }
    }
}
