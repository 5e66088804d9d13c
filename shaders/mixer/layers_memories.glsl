// The memories of layers.comp: those that a token sees, their sums by splits, and the merge of a head's splits.

// Memories that the token sees, of all runs.
uint seen_of(uint run, uint position)
{
    uint seen = position / args.S;
    return seen > runs[run].x ? min(seen - runs[run].x, runs[run].y) : 0u;
}
// The memory with number j of those that are seen: its run, and its place there.
uvec2 memory_of(uint j, uint position)
{
    uint run = 0u;
    while (run + 1u < args.runs && j >= seen_of(run, position)) {
        j -= seen_of(run, position);
        run++;
    }
    return uvec2(run, j);
}
// Memories j, j + 1 of those below `end`.
void fetch_pair(uint layer, uint head, uint j, uint end, uint position)
{
    if (j >= end) return;
    [[unroll]] for (uint m = 0u; m < PAIR; m++) {
        uvec2 which = memory_of(min(j + m, end - 1u), position);
        Quads memories = Quads(PLACE(layer, PLACE_RUNS + 2u * which.x));
        Floats scales = Floats(PLACE(layer, PLACE_RUNS + 2u * which.x + 1u));
        uint at = which.y * H + head;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            own[m * ROWS + r] = memories.v[at * (N * P / 8u) + r * SIZE + LANE];
            factors[m * ROWS + r] = scales.v[at * N + r * SIZE / 8u + LANE / 8u];
        }
    }
}
// The memories j .. end - 1 of those that head `head` sees, the first two of them fetched already.
void attend(uint layer, uint head, uint split, uint j, uint end, uint position)
{
    uint column = LANE % 8u;
    uint row = LANE / 8u;
    float square = LANE < QUERIES ? taken[LANE] * taken[LANE] : 0.0;
    vec4 e_low = vec4(taken[N + 8u * column], taken[N + 8u * column + 1u], taken[N + 8u * column + 2u], taken[N + 8u * column + 3u]);
    vec4 e_high = vec4(taken[N + 8u * column + 4u], taken[N + 8u * column + 5u], taken[N + 8u * column + 6u], taken[N + 8u * column + 7u]);
    float top = LOWEST;
    float den = 0.0;
    Eight sum = Eight(vec4(0.0), vec4(0.0));
    [[dont_unroll]] for (uint from = j; from < end; from += PAIR) {
        vec4 found_sums = vec4(0.0, 0.0, LANE < N ? square : 0.0, LANE < N ? 0.0 : square); // logits of two memories, squares of q and e
        [[unroll]] for (uint m = 0u; m < PAIR; m++) {
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                uvec4 words = own[m * ROWS + r];
                float product = dot(e_low, four_16bit(DTYPE_OF(dh), words.xy)) + dot(e_high, four_16bit(DTYPE_OF(dh), words.zw));
                found_sums[m] += taken[row + r * SIZE / 8u] * product;
            }
        }
        found_sums = sum_of_four(found_sums);
        float scale = inversesqrt(found_sums.z / float(N) + args.sma_eps) * inversesqrt(found_sums.w / float(P) + args.sma_eps) *
                      inversesqrt(float(N));
        float now = top;
        float keys[PAIR];
        [[unroll]] for (uint m = 0u; m < PAIR; m++) {
            keys[m] = scale * found_sums[m];
            if (from + m < end) now = max(now, keys[m]);
        }
        float keep = exp_neg(top - now);
        den *= keep;
        sum.low *= keep;
        sum.high *= keep;
        [[unroll]] for (uint m = 0u; m < PAIR; m++) {
            float gain = from + m < end ? exp_neg(keys[m] - now) : 0.0;
            den += gain;
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                float weight = gain * taken[QUERIES + row + r * SIZE / 8u] * factors[m * ROWS + r];
                uvec4 words = own[m * ROWS + r];
                sum.low += weight * four_16bit(DTYPE_OF(dh), words.xy);
                sum.high += weight * four_16bit(DTYPE_OF(dh), words.zw);
            }
        }
        top = now;
        fetch_pair(layer, head, from + PAIR, end, position);
    }
    // Lanes of the same columns add up by halves: first each keeps four of eight columns, then two of four.
    if (SUBGROUP_SIZE >= 32u) {
        bool upper = (lane & 8u) != 0u, right = (lane & 16u) != 0u;
        vec4 four = (upper ? sum.high : sum.low) + subgroupShuffleXor(upper ? sum.low : sum.high, 8u);
        vec2 two = (right ? four.zw : four.xy) + subgroupShuffleXor(right ? four.xy : four.zw, 16u);
        uint at = subgroup * (P / 4u) + 2u * column + (upper ? 1u : 0u);
        if (right) found[at].zw = two;
        else found[at].xy = two;
    } else {
        if (SUBGROUP_SIZE >= 16u) {
            sum.low += subgroupShuffleXor(sum.low, 8u);
            sum.high += subgroupShuffleXor(sum.high, 8u);
        }
        uint line = SUBGROUP_SIZE >= 8u ? subgroup : row;
        if (SUBGROUP_SIZE < 8u || lane < 8u) {
            found[line * (P / 4u) + 2u * column] = sum.low;
            found[line * (P / 4u) + 2u * column + 1u] = sum.high;
        }
    }
    barrier();
    uint to = PARTIAL_AT + (head * args.splits + split) * PARTIAL;
    if (LANE < P) {
        float total = 0.0;
        [[unroll]] for (uint i = 0u; i < LINES; i++) total += found[i * (P / 4u) + LANE / 4u][LANE % 4u];
        post(to + LANE, total);
    }
    if (LANE == P) post(to + P, top);
    if (LANE == P + 1u) post(to + P + 1u, den);
}

// r of column LANE of a head, in the first P lanes.
float merged(uint head)
{
    uint count = args.splits * PARTIAL;
    uint from = PARTIAL_AT + head * count;
    if (LANE < count) {
        bool has_other = LANE + SIZE < count;
        vec2 values = take(from + LANE, has_other ? from + LANE + SIZE : from + LANE);
        parts[LANE] = values.x;
        if (has_other) parts[LANE + SIZE] = values.y;
    }
    barrier();
    float top = LOWEST;
    float sum = 0.0;
    float den = 0.0;
    if (LANE < P) {
        for (uint k = 0u; k < args.splits; k++) {
            if (parts[k * PARTIAL + P + 1u] > 0.0) top = max(top, parts[k * PARTIAL + P]);
        }
        for (uint k = 0u; k < args.splits; k++) {
            if (parts[k * PARTIAL + P + 1u] > 0.0) {
                float gain = exp_neg(parts[k * PARTIAL + P] - top);
                sum += gain * parts[k * PARTIAL + LANE];
                den += gain * parts[k * PARTIAL + P + 1u];
            }
        }
    }
    return den > 0.0 ? sum / den : 0.0;
}
