// The memories of layers.comp: those that a token sees, their sums by workgroup and head, and the merge of a head's sums.

// Memories that a token behind so many chunks sees of a run.
uint seen_of(uint run, uint chunks) { return chunks > runs[run].x ? min(chunks - runs[run].x, runs[run].y) : 0u; }
// The memory with number j of those that are seen: its run, and its place there.
uvec2 memory_of(uint j, uint chunks)
{
    uint run = 0u;
    [[dont_unroll]] for (; run + 1u < args.runs && j >= seen_of(run, chunks); run++) j -= seen_of(run, chunks);
    return uvec2(run, j);
}
// The workgroup that has number k of all memories of all heads.
uint sharer_of(uint k) { return ((k + 1u) * sharers - 1u) / (H * seen); }
// One lane of each workgroup works out what the workgroup attends to.
void share_out(uint attends, uint position)
{
    seen = 0u;
    for (uint run = 0u; run < args.runs; run++) seen += seen_of(run, position / args.S);
    uint all = H * seen;
    uint workgroup = gl_WorkGroupID.x;
    sharers = min(attends, all);
    share_begin = workgroup < sharers ? all * workgroup / sharers : 0u;
    share_end = workgroup < sharers ? all * (workgroup + 1u) / sharers : 0u;
    share_first = share_begin < share_end ? workgroup - sharer_of(share_begin / seen * seen) : 0u;
}
// Memories from number k on of those of this workgroup. A lane finds out where one of them lies.
void fetch_memories(uint layer, uint k, uint position)
{
    if (k >= share_end) return;
    uint number = min(k + lane % SLOTS, share_end - 1u);
    uint head = number / seen;
    uvec2 which = memory_of(number - head * seen, position / args.S);
    uint at = which.y * H + head;
    uvec2 memory_at = unpackUint2x32(packUint2x32(PLACE(layer, PLACE_RUNS + 2u * which.x)) + uint64_t(at) * (N * P * 2u));
    uvec2 scale_at = unpackUint2x32(packUint2x32(PLACE(layer, PLACE_RUNS + 2u * which.x + 1u)) + uint64_t(at) * (N * 4u));
    [[unroll]] for (uint m = 0u; m < SLOTS; m++) {
        uint64_t memory = packUint2x32(subgroupShuffle(memory_at, m)) + uint64_t(LANE * 16u);
        if (k + m >= share_end) continue;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) own[m * ROWS + r] = Quads(memory + uint64_t(r * SIZE * 16u)).v[0];
    }
    [[unroll]] for (uint i = 0u; i < FACTORS; i++) {
        uint row = min(i * SIZE + LANE, SLOTS * N - 1u);
        factors[i] = Floats(packUint2x32(subgroupShuffle(scale_at, row / N)) + uint64_t(row % N * 4u)).v[0];
    }
}
// Posts the sums of this workgroup's memories of a head.
void post_share(uint head, float top, float den, Eight sum)
{
    uint column = LANE % 8u;
    barrier(); // found is free
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
        uint line = SUBGROUP_SIZE >= 8u ? subgroup : LANE / 8u;
        if (SUBGROUP_SIZE < 8u || lane < 8u) {
            found[line * (P / 4u) + 2u * column] = sum.low;
            found[line * (P / 4u) + 2u * column + 1u] = sum.high;
        }
    }
    barrier();
    uint share = head == share_begin / seen ? share_first : 0u;
    uint to = PARTIAL_AT + (head * (args.splits + 1u) + share) * PARTIAL;
    if (LANE < P) {
        float total = 0.0;
        [[unroll]] for (uint i = 0u; i < LINES; i++) total += found[i * (P / 4u) + LANE / 4u][LANE % 4u];
        post(to + LANE, total);
    }
    if (LANE == P) post(to + P, top);
    if (LANE == P + 1u) post(to + P + 1u, den);
}
// The memories of this workgroup, the first SLOTS of them fetched already.
void attend(uint layer, uint position)
{
    uint column = LANE % 8u;
    uint row = LANE / 8u;
    float square = LANE < QUERIES ? taken[LANE] * taken[LANE] : 0.0;
    vec4 e_low = vec4(taken[N + 8u * column], taken[N + 8u * column + 1u], taken[N + 8u * column + 2u], taken[N + 8u * column + 3u]);
    vec4 e_high = vec4(taken[N + 8u * column + 4u], taken[N + 8u * column + 5u], taken[N + 8u * column + 6u], taken[N + 8u * column + 7u]);
    float top = LOWEST;
    float den = 0.0;
    Eight sum = Eight(vec4(0.0), vec4(0.0));
    [[dont_unroll]] for (uint k = share_begin; k < share_end; k += SLOTS) {
        if (k != share_begin) barrier(); // scales are read
        [[unroll]] for (uint i = 0u; i < FACTORS; i++) {
            if (SLOTS * N % SIZE == 0u || i * SIZE + LANE < SLOTS * N) scales[i * SIZE + LANE] = factors[i];
        }
        vec4 logits = vec4(0.0), others = vec4(0.0, 0.0, LANE < N ? square : 0.0, LANE < N ? 0.0 : square); // and squares of q and e
        [[unroll]] for (uint m = 0u; m < SLOTS; m++) {
            float logit = 0.0;
            if (k + m < share_end) {
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    uvec4 words = own[m * ROWS + r];
                    float product = dot(e_low, four_16bit(DTYPE_OF(dh), words.xy)) + dot(e_high, four_16bit(DTYPE_OF(dh), words.zw));
                    logit += taken[row + r * SIZE / 8u] * product;
                }
            }
            if (m < 4u) logits[m % 4u] = logit;
            else others[m % 4u] = logit;
        }
        bool is_last = IS_WIDE && !IS_ALONE && k + SLOTS >= share_end;
        if (is_last) fetch_output_first(layer, rows_of.z);
        add_eight_over_all(logits, others);
        if (is_last) fetch_output_second(layer, rows_of.z);
        float scale = inversesqrt(others.z / float(N) + args.sma_eps) * inversesqrt(others.w / float(P) + args.sma_eps) * inversesqrt(float(N));
        uint end = min(k + SLOTS, share_end);
        [[dont_unroll]] for (uint from = k, next; from < end; from = next) { // head by head
            uint head = from / seen;
            next = min(end, (head + 1u) * seen);
            float now = top;
            [[unroll]] for (uint m = 0u; m < SLOTS; m++) {
                if (k + m >= from && k + m < next) now = max(now, scale * (m < 4u ? logits[m % 4u] : others[m % 4u]));
            }
            float keep = exp_neg(top - now);
            den *= keep;
            sum.low *= keep;
            sum.high *= keep;
            [[unroll]] for (uint m = 0u; m < SLOTS; m++) {
                if (k + m >= from && k + m < next) {
                    float gain = exp_neg(scale * (m < 4u ? logits[m % 4u] : others[m % 4u]) - now);
                    den += gain;
                    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                        float weight = gain * taken[QUERIES + row + r * SIZE / 8u] * scales[m * N + row + r * SIZE / 8u];
                        uvec4 words = own[m * ROWS + r];
                        sum.low += weight * four_16bit(DTYPE_OF(dh), words.xy);
                        sum.high += weight * four_16bit(DTYPE_OF(dh), words.zw);
                    }
                }
            }
            top = now;
            if (next != share_end && next != (head + 1u) * seen) continue; // the head goes on in the next round
            post_share(head, top, den, sum);
            top = LOWEST;
            den = 0.0;
            sum = Eight(vec4(0.0), vec4(0.0));
        }
        fetch_memories(layer, k + SLOTS, position);
        if (is_last) fetch_output_rest(layer, rows_of.z);
    }
}

// r of column LANE of a head, in the first P lanes.
float merged(uint head)
{
    uint parts = seen == 0u ? 0u : sharer_of((head + 1u) * seen - 1u) - sharer_of(head * seen) + 1u;
    uint count = parts * PARTIAL;
    uint from = PARTIAL_AT + head * (args.splits + 1u) * PARTIAL;
    if (LANE < count) {
        bool has_other = LANE + SIZE < count;
        vec2 values = take(from + LANE, has_other ? from + LANE + SIZE : from + LANE);
        shares[LANE] = values.x;
        if (has_other) shares[LANE + SIZE] = values.y;
    }
    barrier();
    float top = LOWEST;
    float sum = 0.0;
    float den = 0.0;
    if (LANE < P) {
        for (uint k = 0u; k < parts; k++) {
            if (shares[k * PARTIAL + P + 1u] > 0.0) top = max(top, shares[k * PARTIAL + P]);
        }
        for (uint k = 0u; k < parts; k++) {
            if (shares[k * PARTIAL + P + 1u] > 0.0) {
                float gain = exp_neg(shares[k * PARTIAL + P] - top);
                sum += gain * shares[k * PARTIAL + LANE];
                den += gain * shares[k * PARTIAL + P + 1u];
            }
        }
    }
    return den > 0.0 ? sum / den : 0.0;
}
