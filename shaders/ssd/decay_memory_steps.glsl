// The first half of decay_memory.comp: the steps of BLOCK heads, their sums, and what tokens weigh in the memory.

// The steps of a block; neighbours are heads, as in dt. First all are read, then each is worked on. With them the rate of the head that
// the subgroup adds up: it would wait for all of x if it was read beside that.
#define FETCH_STEPS(block) \
    [[unroll]] for (uint i = 0u; i < STEPS; i++) { \
        uint head = min((block) + (LANE + i * LANES) % BLOCK, heads - 1u); \
        uint t = min((LANE + i * LANES) / BLOCK, last); \
        steps[i] = load_dt(args.dt_at + (token + t) * args.dt_row + h_first + head); \
        if (!has(args.flags, IS_STEP) && has(args.flags, HAS_BIAS)) steps[i] += load_dt_bias(args.dt_bias_at + h_first + head); \
    } \
    float a_log = load_a_log(args.a_log_at + h_first + min((block) + gl_SubgroupID, heads - 1u)); \
    rate = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
#define PUT_STEPS \
    [[unroll]] for (uint i = 0u; i < STEPS; i++) { \
        uint t = (LANE + i * LANES) / BLOCK; \
        if (BLOCK * MAX_CHUNK % LANES == 0u || t < MAX_CHUNK) weights[weight_at((LANE + i * LANES) % BLOCK, t)] = t < size ? steps[i] : 0.0; \
    } \
    if (!has(args.flags, IS_STEP)) { \
        [[dont_unroll]] for (uint at = LANE; at < BLOCK * min(MAX_CHUNK, size); at += LANES) { \
            uint to = weight_at(at % BLOCK, at / BLOCK); \
            weights[to] = min(max(softplus(weights[to]), args.dt_min), args.dt_max); \
        } \
    }

// One head of a chunk by one subgroup: cum and decay from the steps, which become weights, and rate, -exp(a_log).
void add_up(uint head, uint h, float rate, uint j, uint b, uint first, uint size)
{
    uint lane = gl_SubgroupInvocationID;
    float steps[TOKENS];
    vec2 sums[TOKENS];
    vec2 sum = vec2(0.0);
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) {
        steps[k] = weights[weight_at(head, lane * TOKENS + k)];
        sum = add_pairs(sum, vec2(rate * steps[k], 0.0));
        sums[k] = sum;
    }
    [[unroll]] for (uint lanes = 1u; lanes < SUBGROUP_SIZE; lanes *= 2u) {
        vec2 other = subgroupShuffle(sum, max(lane, lanes) - lanes);
        vec2 both = add_pairs(other, sum);
        sum = lane >= lanes ? both : sum;
    }
    vec2 before = subgroupShuffle(sum, max(lane, 1u) - 1u);
    if (lane == 0u) before = vec2(0.0);
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) sums[k] = add_pairs(before, sums[k]);
    vec2 end = subgroupShuffle(sums[TOKENS - 1u], SUBGROUP_SIZE - 1u);

    float shrink = 1.0;
    float shares[TOKENS];
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) shares[k] = steps[k] * decay_exp(cum_between(sums[k], end));
#ifndef MATRIX_BF16
    float largest = 0.0;
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) largest = max(largest, shares[k]);
    float unit = power_above(subgroupMax(largest));
    shrink = 1.0 / unit;
    if (lane == 0u) units[head] = unit;
#endif
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) weights[weight_at(head, lane * TOKENS + k)] = shares[k] * shrink;

    if (lane == 0u) {
        totals[head] = end.x;
        store_decay((b * (args.M + 1u) + 1u + j) * args.H + h, end.x);
    }

    uint at = (b * args.H + h) * args.L + first;
    [[unroll]] for (uint q = 0u; q < TOKENS / 4u; q++) {
        uint t = lane * TOKENS + q * 4u;
        if (at % 4u == 0u && t + 4u <= size) {
            uint quad = (at + t) / 4u * CUM_STRIDE;
            quads_cum[quad] = vec4(sums[q * 4u], steps[q * 4u], sums[q * 4u + 1u].x);
            quads_cum[quad + 1u] = vec4(sums[q * 4u + 1u].y, steps[q * 4u + 1u], sums[q * 4u + 2u]);
            quads_cum[quad + 2u] = vec4(steps[q * 4u + 2u], sums[q * 4u + 3u], steps[q * 4u + 3u]);
        } else {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                if (t + i < size) {
                    uint one = (at + t + i) * CUM_STRIDE;
                    store_cum(one, sums[q * 4u + i].x);
                    store_cum(one + 1u, sums[q * 4u + i].y);
                    store_cum(one + 2u, steps[q * 4u + i]);
                }
            }
        }
    }
}
