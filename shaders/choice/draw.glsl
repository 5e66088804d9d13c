// The draw where no logit is left out by its order. The range that holds the draw is cut into blocks, whose sums say which of them the running sum
// passes in, until a lane has AHEAD logits of it at most. Include after kept.glsl, whose masses nothing else needs by then, in a shader that defines
// row_least besides.

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
    for (uint first = from; first < end; first += AHEAD * LANES) {
        float raw[AHEAD];
        [[unroll]] for (uint j = 0u; j < AHEAD; j++) raw[j] = load_logits(row_from + min(first + j * LANES + LANE, row_width - 1u));
        [[unroll]] for (uint j = 0u; j < AHEAD; j++) {
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

// The block, of those whose sums `mass` has, in which the running sum passes the target, else the last one with weight; `before` becomes the running
// sum at its begin. All lanes have read the sums on return.
uint pick_block(float target, inout float before, out bool passed)
{
    uint picked = 0u;
    float running = before;
    passed = false;
    for (uint k = 0u; k < DIGITS; k++) {
        float sum = mass[k];
        if (!passed && sum > 0.0) {
            before = running;
            picked = k;
            running += sum;
            passed = running > target;
        }
    }
    barrier();
    return picked;
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
    bool passed;
    do {
        uint each = ((end - begin + DIGITS - 1u) / DIGITS + LANES - 1u) / LANES * LANES;
        for (uint k = 0u; k < DIGITS; k++) {
            uint from = min(begin + k * each, end);
            masses[k * LANES + LANE] = sum_of_range(from, min(from + each, end), last);
        }
        add_up_masses();
        for (uint k = 0u; k < DIGITS && whole; k++) target += u * mass[k];
        uint picked = pick_block(target, before, passed);
        if (whole && !passed) {
            last = workgroup_max_uint(last);
            return max(last, 1u) - 1u;
        }
        whole = false;
        begin += picked * each;
        end = min(begin + each, end);
    } while (end - begin > AHEAD * LANES);
    float raw[AHEAD];
    [[unroll]] for (uint j = 0u; j < AHEAD; j++) raw[j] = load_logits(row_from + min(begin + j * LANES + LANE, row_width - 1u));
    [[unroll]] for (uint j = 0u; j < DIGITS; j++) {
        uint i = begin + j * LANES + LANE;
        masses[j * LANES + LANE] = j < AHEAD && i < end ? max(kept_weight(i, raw[j % AHEAD]), 0.0) : 0.0;
    }
    add_up_masses();
    uint first = pick_block(target, before, passed) * LANES;
    if (LANE < DIGITS) { // neighbours this time
        float sum = 0.0;
        for (uint i = 0u; i < SHARES; i++) sum += masses[first + LANE * SHARES + i];
        mass[LANE] = sum;
    }
    barrier();
    first += pick_block(target, before, passed) * SHARES;
    uint id = begin + first;
    bool found = false;
    for (uint i = first; i < first + SHARES; i++) {
        float weight = masses[i];
        if (!found && weight > 0.0) {
            id = begin + i;
            before += weight;
            found = before > target;
        }
    }
    barrier();
    return id;
}
