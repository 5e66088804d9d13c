// The draw where no logit is left out by its order: neighbours read neighbours, a lane DRAW_AHEAD logits at a time. The range that holds the
// draw is cut into blocks, whose sums say which of them the running sum passes in, until it has a logit a lane. Include after kept.glsl, in a
// shader that defines row_from, row_width, row_least, `float penalised(uint i, float logit)` and `float weight_of(float logit, uint order)`.
const uint DRAW_BLOCKS = 8u;
const uint DRAW_AHEAD = 8u;
const uint DRAW_TEAM = LANES / DRAW_BLOCKS; // lanes that add up the sums of a block
// The masses of kept.glsl, which nothing else needs by then: first each lane's share of the blocks, then a sum a lane.
#define DRAW_PART(i) masses[i]
#define DRAW_SUM(i) masses[DRAW_BLOCKS * LANES + (i)]

// Below 0: the index is not kept.
float kept_weight(uint i, float raw)
{
    float logit = penalised(i, raw);
    uint order = order_of(logit);
    float weight = weight_of(logit, order);
    return order == 0u || weight < row_least ? -1.0 : weight;
}

// This lane's share of the weights of indices from..end - 1; `last` becomes one past its last kept index.
float sum_of_range(uint from, uint end, inout uint last)
{
    float sum = 0.0;
    for (uint first = from; first < end; first += DRAW_AHEAD * LANES) {
        float raw[DRAW_AHEAD];
        [[unroll]] for (uint j = 0u; j < DRAW_AHEAD; j++) raw[j] = load_logits(row_from + min(first + j * LANES + LANE, row_width - 1u));
        [[unroll]] for (uint j = 0u; j < DRAW_AHEAD; j++) {
            uint i = first + j * LANES + LANE;
            float weight = i < end ? kept_weight(i, raw[j]) : -1.0;
            if (weight >= 0.0) {
                sum += weight;
                last = i + 1u;
            }
        }
    }
    return sum;
}

// The first kept index whose running sum of weights exceeds u times their total, else the last kept index, 0 where nothing is kept; the same
// in every lane. Where rounding leaves all blocks of a range at or below the target, the last one with weight stands. Call in uniform flow.
uint draw_of_all(float u)
{
    uint begin = 0u;
    uint end = row_width;
    uint last = 0u;
    float before = 0.0;
    float target = 0.0;
    bool whole = true;
    do {
        uint each = ((end - begin + DRAW_BLOCKS - 1u) / DRAW_BLOCKS + LANES - 1u) / LANES * LANES;
        for (uint k = 0u; k < DRAW_BLOCKS; k++) {
            uint from = min(begin + k * each, end);
            DRAW_PART(k * LANES + LANE) = sum_of_range(from, min(from + each, end), last);
        }
        barrier();
        float sum = 0.0;
        for (uint m = 0u; m < DRAW_BLOCKS; m++) sum += DRAW_PART(LANE / DRAW_TEAM * LANES + LANE % DRAW_TEAM + m * DRAW_TEAM);
        DRAW_SUM(LANE) = sum;
        barrier();
        float sums[DRAW_BLOCKS];
        float total = 0.0;
        [[unroll]] for (uint k = 0u; k < DRAW_BLOCKS; k++) {
            sums[k] = 0.0;
            for (uint j = 0u; j < DRAW_TEAM; j++) sums[k] += DRAW_SUM(k * DRAW_TEAM + j);
            total += sums[k];
        }
        if (whole) target = u * total;
        uint picked = DRAW_BLOCKS;
        float running = before;
        bool passed = false;
        [[unroll]] for (uint k = 0u; k < DRAW_BLOCKS; k++) {
            if (!passed && sums[k] > 0.0) {
                before = running;
                picked = k;
                running += sums[k];
                passed = running > target;
            }
        }
        barrier(); // all lanes have read the sums
        if (whole && !passed) {
            last = workgroup_max_uint(last);
            return max(last, 1u) - 1u;
        }
        whole = false;
        begin += picked * each;
        end = min(begin + each, end);
    } while (end - begin > LANES);
    DRAW_SUM(LANE) = begin + LANE < end ? max(kept_weight(begin + LANE, load_logits(row_from + begin + LANE)), 0.0) : 0.0;
    barrier();
    uint id = begin;
    bool found = false;
    for (uint i = 0u; i < LANES; i++) {
        float weight = DRAW_SUM(i);
        if (!found && weight > 0.0) {
            id = begin + i;
            before += weight;
            found = before > target;
        }
    }
    barrier();
    return id;
}
