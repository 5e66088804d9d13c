#version 460
#extension GL_GOOGLE_include_directive : require
// Loss, choice and slopes of rows of logits; formulas: loss/args.h, guards: cross_entropy.glsl. Each lane carries the largest of its logits and
// the sum of exponentials below it; a second pass writes the slopes. Shared memory: 4 LANES bytes (lane_values).
#include "lib/dart.glsl"
#include "table/cross_entropy.glsl"
#include "cross_entropy.glsl"

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
        float sum = 0.0;
        Judgement judgement = Judgement(uvec4(0u), uvec4(0u));
        for (uint i = 4u * LANE; i < args.width; i += 4u * LANES) {
            vec4 v = logits_at(row, i);
            judge(judgement, v, i, target, own);
            float next = max(top, largest(v));
            sum = sum * exp_neg(top - next) + sum_of(exps(with_target(v, i, target, LOWEST), next));
            top = next;
        }
        float trouble = workgroup_max(trouble_of(judgement)); // its barriers also keep the target's logit until every lane has read it
        float highest = workgroup_max(top);
        float rest = workgroup_sum(sum * exp_neg(top - highest));
        float total = rest + exp_neg(own - highest);
        if (LANE == 0u) put_parts(to, share, trouble, highest, own, total);
        if (!has(args.flags, HAS_GRADIENT)) continue;
        float factor = trouble > 1.0 ? broken() : share / total;
        float of_target = trouble > 1.0 ? broken() : -factor * rest;
        for (uint i = 4u * LANE; i < args.width; i += 4u * LANES) {
            vec4 v = exps(logits_at(row, i), highest);
            put_slopes(slopes, i, v, factor, target, of_target);
        }
    }
}
