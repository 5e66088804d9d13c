#version 460
#extension GL_GOOGLE_include_directive : require
// partial[tile] = the sum of the squares of T0 elements of x; infinity where one of them, or the sum, is not finite.
//
// x count, partial tiles, f32. A workgroup adds up a tile: a lane every LANES-th element in order, AHEAD of them under way at once, then the
// lanes in pairs. Shared memory: 4 LANES bytes (lane_values). Guards: what is not finite is found by its bits.
#include "lib/dart.glsl"
#include "table/square_sum.glsl"
READS(x) WRITES(partial)

const uint AHEAD = 16u;

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * T0, args.count);
        float sum = 0.0;
        float broken = 0.0;
        for (uint i = tile * T0 + LANE; i < end; i += AHEAD * LANES) {
            float values[AHEAD];
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) values[k] = load_x(args.x_at + min(i + k * LANES, end - 1u));
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
                float value = i + k * LANES < end ? values[k] : 0.0;
                if ((floatBitsToUint(value) & 0x7f800000u) == 0x7f800000u) broken = 1.0;
                sum += value * value;
            }
        }
        broken = workgroup_max(broken);
        float total = workgroup_sum(sum);
        if (LANE == 0u) store_partial(args.partial_at + tile, broken > 0.0 ? uintBitsToFloat(0x7f800000u) : total);
    }
}
