#version 460
#extension GL_GOOGLE_include_directive : require
// partial[tile] = the sum of the squares of SQUARES elements of x; infinity where one of them, or the sum, is not finite.
//
// x count, partial tiles, f32. A workgroup adds up a tile: a lane every LANES-th element, then the lanes in pairs. Shared memory:
// 4 LANES bytes (lane_values). Guards: what is not finite is found by its bits.
#include "lib/dart.glsl"
#include "table/square_sum.glsl"
READS(x) WRITES(partial)

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint begin = tile * SQUARES;
        uint end = min(begin + SQUARES, args.count);
        float sum = 0.0;
        float broken = 0.0;
        for (uint i = begin + LANE; i < end; i += LANES) {
            float value = load_x(args.x_at + i);
            if ((floatBitsToUint(value) & 0x7f800000u) == 0x7f800000u) broken = 1.0;
            sum += value * value;
        }
        broken = workgroup_max(broken);
        float total = workgroup_sum(sum);
        if (LANE == 0u) store_partial(args.partial_at + tile, broken > 0.0 ? uintBitsToFloat(0x7f800000u) : total);
    }
}
