#version 460
#extension GL_GOOGLE_include_directive : require
// Of a row with a label: parts = {share (lse - logit of the target), 1 if the target is the lowest index of the largest logit, else 0};
// HAS_GRADIENT: logits = share (exp(logits - lse) - onehot). Without a label both become 0.
//
// logits rows x width, f32, width at most 32 LANES and a multiple of 16; targets rows; share 1; parts rows x 2. A workgroup takes a row and
// keeps it in registers, 32 logits a lane: a row is read once, in words of 16 bytes, and each exponential is computed once. Shared memory:
// 4 LANES bytes (lane_values).
// Guards: lse - logit is a difference from the largest logit plus a logarithm of at least 1. A row with a logit that is not finite gives
// NaN, found by its bits, whatever the device makes of NaN in arithmetic.
#include "lib/dart.glsl"
#include "table/cross_entropy.glsl"
READS_WRITES(logits) READS_WRITES_AS(uvec4, quads, logits) READS(targets) READS(share) WRITES(parts)
#include "lib/log.glsl"

const uint KEPT = 8u; // words of a lane

void main()
{
    float share = load_share(args.share_at);
    bool gradient = has(args.flags, HAS_GRADIENT);
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        int target = load_int_targets(args.targets_at + tile);
        uint row = args.logits_at + tile * args.width;
        uint to = args.parts_at + 2u * tile;
        if (target < 0 || uint(target) >= args.width) {
            for (uint i = LANE; i < args.width / 4u && gradient; i += LANES) quads_logits[row / 4u + i] = uvec4(0u);
            if (LANE == 0u) {
                store_parts(to, 0.0);
                store_parts(to + 1u, 0.0);
            }
            continue;
        }
        float own = load_logits(row + uint(target));
        vec4 kept[KEPT];
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            uint i = LANE + k * LANES;
            kept[k] = vec4(LOWEST);
            if (4u * i < args.width) kept[k] = uintBitsToFloat(quads_logits[row / 4u + i]);
        }
        float top = LOWEST;
        float trouble = 0.0; // 1: the target is not the choice; 2: a logit is not finite
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            [[unroll]] for (uint c = 0u; c < 4u; c++) {
                uint i = 4u * (LANE + k * LANES) + c;
                float logit = kept[k][c];
                if ((floatBitsToUint(logit) & 0x7f800000u) == 0x7f800000u) trouble = 2.0;
                if (i < args.width && (logit > own || (logit == own && i < uint(target)))) trouble = max(trouble, 1.0);
                top = max(top, logit);
            }
        }
        trouble = workgroup_max(trouble); // its barriers also keep the target's logit until every lane has read it
        float highest = workgroup_max(top);
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            if (4u * (LANE + k * LANES) < args.width) {
                vec4 v = kept[k] - highest;
                kept[k] = vec4(exp_neg(v.x), exp_neg(v.y), exp_neg(v.z), exp_neg(v.w));
                sum += kept[k];
            }
        }
        float total = workgroup_sum((sum.x + sum.y) + (sum.z + sum.w));
        float broken = uintBitsToFloat(0x7fc00000u);
        if (LANE == 0u) {
            store_parts(to, trouble > 1.0 ? broken : share * ((highest - own) + log_above_one(total)));
            store_parts(to + 1u, trouble > 0.0 ? 0.0 : 1.0);
        }
        if (!gradient) continue;
        float factor = share / total;
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            uint i = LANE + k * LANES;
            if (4u * i < args.width) {
                vec4 grad = kept[k] * factor;
                if (uint(target) / 4u == i) {
                    [[unroll]] for (uint c = 0u; c < 4u; c++) {
                        if (uint(target) % 4u == c) grad[c] -= share;
                    }
                }
                quads_logits[row / 4u + i] = floatBitsToUint(trouble > 1.0 ? vec4(broken) : grad);
            }
        }
    }
}
