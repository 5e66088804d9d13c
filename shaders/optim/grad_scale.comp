#version 460
#extension GL_GOOGLE_include_directive : require
// norm = factor times the root of the sum of the partials; scale = {norm, factor min(1, clip / (norm + 1e-6)), 1, 0}, or {infinity, 0, 0, 0}
// where the sum is not finite. factor is 1 without HAS_FACTOR.
//
// partial count, factor 1, scale 4, f32. One workgroup: lane l adds up the partials l, l + LANES, .. in order, with what each addition lost
// (Neumaier), AHEAD of them under way at once, then the lanes are added in pairs. Shared memory: 4 LANES bytes (lane_values). Guards: what is not
// finite is found by its bits.
#include "lib/dart.glsl"
#include "table/grad_scale.glsl"
READS(partial) READS(factor) WRITES(scale)
#include "lib/neumaier.glsl"

const uint AHEAD = 16u;

void main()
{
    float factor = has(args.flags, HAS_FACTOR) ? load_factor(args.factor_at) : 1.0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        Neumaier sum = Neumaier(0.0, 0.0);
        float broken = 0.0;
        for (uint i = LANE; i < args.count; i += AHEAD * LANES) {
            float terms[AHEAD];
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) terms[k] = load_partial(min(i + k * LANES, args.count - 1u));
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
                if (i + k * LANES >= args.count) continue;
                if ((floatBitsToUint(terms[k]) & 0x7f800000u) == 0x7f800000u) broken = 1.0;
                add_to(sum, terms[k]);
            }
        }
        broken = workgroup_max(broken);
        float total = workgroup_sum(sum.total + sum.lost);
        if (LANE == 0u) {
            bool finite = broken == 0.0 && (floatBitsToUint(total) & 0x7f800000u) != 0x7f800000u;
            float norm = sqrt(total) * factor;
            store_scale(args.scale_at, finite ? norm : uintBitsToFloat(0x7f800000u));
            store_scale(args.scale_at + 1u, finite ? min(1.0, args.clip / (norm + 1e-6)) * factor : 0.0);
            store_scale(args.scale_at + 2u, finite ? 1.0 : 0.0);
            store_scale(args.scale_at + 3u, 0.0);
        }
    }
}
