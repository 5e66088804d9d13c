#version 460
#extension GL_GOOGLE_include_directive : require
// Loss, choice and slopes of rows of logits; formulas: loss/args.h, guards: cross_entropy.glsl. For a width of at most 32 LANES: a workgroup keeps
// its row in registers, 32 logits a lane, so that it is read once and each exponential is computed once. Shared memory: 4 LANES bytes
// (lane_values).
#include "lib/dart.glsl"
#include "table/cross_entropy.glsl"
#include "cross_entropy.glsl"

const uint KEPT = 8u; // words of a lane

void main()
{
    float share = load_share(args.share_at);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint target = uint(load_int_targets(args.targets_at + tile));
        uint row = args.logits_at + tile * args.logits_row;
        uint slopes = args.slopes_at + tile * args.slopes_row;
        uint to = args.parts_at + 2u * tile;
        if (target >= args.width) {
            put_nothing(to, slopes);
            continue;
        }
        float own = load_logits(row + target);
        float top = own;
        Judgement judgement = Judgement(uvec4(0u), uvec4(0u));
        vec4 kept[KEPT];
        [[unroll]] for (uint k = 0u; k < KEPT; k++) kept[k] = logits_at(row, 4u * (LANE + k * LANES));
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            uint i = 4u * (LANE + k * LANES);
            judge(judgement, kept[k], i, target, own);
            top = max(top, largest(kept[k]));
            kept[k] = with_target(kept[k], i, target, LOWEST);
        }
        float trouble = workgroup_max(trouble_of(judgement)); // its barriers also keep the target's logit until every lane has read it
        float highest = workgroup_max(top);
        float sum = 0.0;
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            kept[k] = exps(kept[k], highest);
            sum += sum_of(kept[k]);
        }
        float rest = workgroup_sum(sum);
        float total = rest + exp_neg(own - highest);
        if (LANE == 0u) put_parts(to, share, trouble, highest, own, total);
        if (!has(args.flags, HAS_GRADIENT)) continue;
        float factor = trouble > 1.0 ? broken() : share / total;
        float of_target = trouble > 1.0 ? broken() : -factor * rest;
        [[unroll]] for (uint k = 0u; k < KEPT; k++) {
            uint i = 4u * (LANE + k * LANES);
            if (i < args.width) put_slopes(slopes, i, kept[k], factor, target, of_target);
        }
    }
}
