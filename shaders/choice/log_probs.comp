// log_z[t] = log sum_v exp(logit_tv) of row t; target[t] = logit of targets[t] - log_z[t]; top_ids, top [t k ..] = the ids and log-probabilities
// of the k largest logits, from the largest down, ties by lower index.
//
// logits rows x width, targets rows, log_z rows, target rows, top_ids and top rows x k. A workgroup works on a row. Every lane looks at the
// indices LANE + n LANES and keeps the best of them that has not been given out; after each round only the lane that won looks again.
// Shared memory: 8 LANES bytes at most. Guards: logits are ranked as integers (order.glsl), NaN counts as -inf and -inf adds nothing; exp of
// numbers <= 0 only; a row without a number above -inf has LOWEST throughout.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/log_probs.glsl"
READS(logits) READS(targets) WRITES(log_z) WRITES(target) WRITES(top_ids) WRITES(top)
#include "order.glsl"
#include "lib/log.glsl"

const uint NEGATIVE_INFINITY = 0x007fffffu; // its order

float probability(uint order, float log_z)
{
    if (order <= NEGATIVE_INFINITY) return LOWEST;
    return max(of_order(order) - log_z, LOWEST);
}

// The best of this lane's logits that rank behind (order, index): a lower order, or the same and a higher index.
uint best_behind(uint from, uint order, uint index, out uint where)
{
    uint best = 0u;
    where = 0u;
    for (uint i = LANE; i < args.width; i += LANES) {
        uint other = order_of(load_logits(from + i));
        bool behind = other < order || other == order && i > index;
        if (behind && other > best) {
            best = other;
            where = i;
        }
    }
    return best;
}

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint from = args.logits_at + tile * args.logits_row;
        uint where;
        uint best = best_behind(from, ~0u, 0u, where);
        uint top = workgroup_max_uint(best);
        float log_z = LOWEST;
        float sum = 0.0;
        float largest = of_order(top);
        bool empty = top <= NEGATIVE_INFINITY; // the same in every lane
        for (uint i = LANE; i < args.width && !empty; i += LANES) {
            float logit = load_logits(from + i);
            uint order = order_of(logit);
            sum += order == top ? 1.0 : order <= NEGATIVE_INFINITY ? 0.0 : exp_neg(logit - largest);
        }
        sum = workgroup_sum(sum);
        if (!empty) log_z = largest + log_above_one(max(sum, 1.0));
        if (LANE == 0u) {
            store_log_z(args.log_z_at + tile, log_z);
            if (has(args.flags, HAS_TARGETS)) {
                uint id = uint(load_int_targets(args.targets_at + tile));
                float target = id < args.width ? probability(order_of(load_logits(from + min(id, args.width - 1u))), log_z) : 0.0;
                store_target(args.target_at + tile, target);
            }
        }
        for (uint n = 0u; n < args.k; n++) {
            uint order = n == 0u ? top : workgroup_max_uint(best);
            uint index = ~workgroup_max_uint(best == order ? ~where : 0u);
            if (LANE == 0u) {
                words_top_ids[args.top_ids_at + tile * args.k + n] = order == 0u ? ~0u : index;
                store_top(args.top_at + tile * args.k + n, probability(order, log_z));
            }
            if (order != 0u && best == order && where == index) best = best_behind(from, order, index, where);
        }
    }
}
