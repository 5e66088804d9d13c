#version 460
#extension GL_GOOGLE_include_directive : require
// Of a row with a label: parts = {share (lse - logit of the target), 1 if the target is the lowest index of the largest logit, else 0};
// HAS_GRADIENT: logits = share (exp(logits - lse) - onehot). Without a label both become 0.
//
// logits rows x width, f32; targets rows; share 1; parts rows x 2. A workgroup takes a row: each lane carries the largest logit of every
// LANES-th column and the sum of exponentials below it; a second pass replaces the logits. Shared memory: 4 LANES bytes (lane_values).
// Guards: lse - logit is a difference from the largest logit plus a logarithm of at least 1. A row with a logit that is not finite gives
// NaN, found by its bits, whatever the device makes of NaN in arithmetic.
#include "lib/dart.glsl"
#include "table/cross_entropy.glsl"
READS_WRITES(logits) READS(targets) READS(share) WRITES(parts)
#include "lib/log.glsl"

void main()
{
    float share = load_share(args.share_at);
    bool gradient = has(args.flags, HAS_GRADIENT);
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        int target = load_int_targets(args.targets_at + tile);
        uint row = args.logits_at + tile * args.width;
        uint to = args.parts_at + 2u * tile;
        if (target < 0 || uint(target) >= args.width) {
            for (uint i = LANE; i < args.width && gradient; i += LANES) store_logits(row + i, 0.0);
            if (LANE == 0u) {
                store_parts(to, 0.0);
                store_parts(to + 1u, 0.0);
            }
            continue;
        }
        float own = load_logits(row + uint(target));
        float top = LOWEST;
        float sum = 0.0;
        float trouble = 0.0; // 1: the target is not the choice; 2: a logit is not finite
        for (uint i = LANE; i < args.width; i += LANES) {
            float logit = load_logits(row + i);
            if ((floatBitsToUint(logit) & 0x7f800000u) == 0x7f800000u) trouble = 2.0;
            if (logit > own || (logit == own && i < uint(target))) trouble = max(trouble, 1.0);
            float next = max(top, logit);
            sum = sum * exp_neg(top - next) + exp_neg(logit - next);
            top = next;
        }
        trouble = workgroup_max(trouble); // its barriers also keep the target's logit until every lane has read it
        float highest = workgroup_max(top);
        float total = workgroup_sum(sum * exp_neg(top - highest));
        float broken = uintBitsToFloat(0x7fc00000u);
        if (LANE == 0u) {
            store_parts(to, trouble > 1.0 ? broken : share * ((highest - own) + log_above_one(total)));
            store_parts(to + 1u, trouble > 0.0 ? 0.0 : 1.0);
        }
        if (!gradient) continue;
        float factor = share / total;
        for (uint i = LANE; i < args.width; i += LANES) {
            float grad = exp_neg(load_logits(row + i) - highest) * factor;
            if (i == uint(target)) grad -= share;
            store_logits(row + i, trouble > 1.0 ? broken : grad);
        }
    }
}
