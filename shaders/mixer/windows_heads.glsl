// The heads of windows.comp: of one sequence the state before the window, the tokens of the window, and the gate. Eight lanes share a row of P
// columns.

const uint HEAD_LINES = SIZE / 8u;           // rows of P columns at a time
const uint STATE_WORDS = N / HEAD_LINES;     // of a head in a lane
const uint X_WORDS = WINDOW / HEAD_LINES;
const uint B_LINES = SIZE / 16u;             // rows of N columns at a time
const uint B_WORDS = WINDOW / B_LINES;
const uint SCALES = MOST_HEADS * N / SIZE;   // of a lane
const uint SLOTS = (MOST_HEADS * WINDOW + SIZE - 1u) / SIZE;
const uint OUTPUTS = ROUND * P / SIZE;       // of a lane in a round
const uint AHEAD = 2u * ROUND;               // heads whose states are asked for before the products are there
const uint FOUND = PARTS * ROUND * P / 4u;   // of slabs: sums of a round, a part of each subgroup; behind them the scales

uvec4 own[AHEAD * STATE_WORDS], xs[MOST_HEADS * X_WORDS], bs[B_WORDS];
vec2 steps[SLOTS];
float mixer_norm[ROUNDS * OUTPUTS], gates[ROUNDS * OUTPUTS], skips[SLOTS], scales[SCALES], c_own[STATE_WORDS];

void forget_heads()
{
    [[unroll]] for (uint i = 0u; i < AHEAD * STATE_WORDS; i++) own[i] = uvec4(0u);
    [[unroll]] for (uint i = 0u; i < MOST_HEADS * X_WORDS; i++) xs[i] = uvec4(0u);
    [[unroll]] for (uint i = 0u; i < B_WORDS; i++) bs[i] = uvec4(0u);
}

#define FETCHES_STATES(name, round) \
    void name(uint layer, uint b, uint first_head, uint heads) \
    { \
        uint64_t hin = packUint2x32(PLACE(layer, PLACE_HIN)) + uint64_t(LANE * 16u); \
        [[unroll]] for (uint h = round * ROUND; h < (round + 1u) * ROUND; h++) { \
            uint64_t state = hin + uint64_t((b * H + first_head + min(h, heads - 1u)) * (N * P * 2u)); \
            [[unroll]] for (uint i = 0u; i < STATE_WORDS; i++) \
                own[h % AHEAD * STATE_WORDS + i] = Quads(state + uint64_t(i * SIZE * 16u)).v[0]; \
        } \
    }
FETCHES_STATES(fetch_states_first, 0u)
FETCHES_STATES(fetch_states_second, 1u)
FETCHES_STATES(fetch_states_third, 2u)

uint64_t row_at(uint layer, uint b, uint slot) { return packUint2x32(PLACE(layer, PLACE_ROWS)) + uint64_t((b * WINDOW + slot) * (KEPT * 2u)); }

// Of what earlier steps have left that which is not much: steps of the window's slots, scales of the states, the norm. The newest slot is not there
// yet.
void fetch_slots(uint layer, uint b, uint first_head, uint heads)
{
    uint last = max(newest, 1u) - 1u;
    Floats d = Floats(PLACE(layer, PLACE_D));
    uint64_t steps_at = packUint2x32(PLACE(layer, PLACE_STEPS));
    [[unroll]] for (uint i = 0u; i < SLOTS; i++) {
        uint e = LANE + i * SIZE, head = first_head + min(e / WINDOW, heads - 1u);
        steps[i] = Twos(steps_at + uint64_t(((b * WINDOW + min(e % WINDOW, last)) * H + head) * 8u)).v[0];
        skips[i] = d.v[head];
    }
    Floats hin_scale = Floats(PLACE(layer, PLACE_HIN_SCALE));
    [[unroll]] for (uint i = 0u; i < SCALES; i++) scales[i] = hin_scale.v[(b * H + first_head) * N + min(LANE + i * SIZE, heads * N - 1u)];
    Floats norm = Floats(PLACE(layer, PLACE_MIXER_NORM));
    [[unroll]] for (uint i = 0u; i < ROUNDS * OUTPUTS; i++)
        mixer_norm[i] = norm.v[min(first_head * P + i / OUTPUTS * ROUND * P + LANE + i % OUTPUTS * SIZE, I - 1u)];
}
// What the slots weigh and what the window leaves of the state, but for the newest slot.
void weigh_slots()
{
    [[unroll]] for (uint i = 0u; i < SLOTS; i++) {
        uint e = LANE + i * SIZE, slot = e % WINDOW;
        float from = slot < newest ? steps[i].x : 0.0; // log-decays from this slot on
        float after; // from the next one on
        if (SUBGROUP_SIZE >= WINDOW) {
            [[unroll]] for (uint apart = 1u; apart < WINDOW; apart *= 2u) {
                float more = subgroupShuffle(from, min(lane + apart, SUBGROUP_SIZE - 1u));
                from += slot + apart < WINDOW ? more : 0.0;
            }
            after = subgroupShuffle(from, min(lane + 1u, SUBGROUP_SIZE - 1u));
            if (slot + 1u == WINDOW) after = 0.0;
        } else {
            if (e < MOST_HEADS * WINDOW) decays[e] = from;
            barrier();
            after = 0.0;
            for (uint k = slot + 1u; k < WINDOW; k++) after += decays[min(e - slot + k, MOST_HEADS * WINDOW - 1u)];
            from += after;
            barrier();
        }
        if (e >= MOST_HEADS * WINDOW) continue;
        weights_of[e] = slot < newest ? steps[i].y * exp_neg(after) : 0.0;
        if (slot == 0u) keeps[e / WINDOW] = exp_neg(from);
    }
}

// The rest: states, b and x of the window.
void fetch_heads(uint layer, uint b, uint first_head, uint heads)
{
    uint last = max(newest, 1u) - 1u;
    [[unroll]] for (uint i = 0u; i < B_WORDS; i++)
        bs[i] = Quads(row_at(layer, b, min(LANE / 16u + i * B_LINES, last)) + uint64_t((I + LANE % 16u * 8u) * 2u)).v[0];
    [[unroll]] for (uint i = 0u; i < X_WORDS; i++) {
        uint64_t row = row_at(layer, b, min(LANE / 8u + i * HEAD_LINES, last)) + uint64_t(first_head * (P * 2u) + LANE % 8u * 16u);
        [[unroll]] for (uint h = 0u; h < MOST_HEADS; h++) xs[h * X_WORDS + i] = Quads(row + uint64_t(min(h, heads - 1u) * (P * 2u))).v[0];
    }
    fetch_states_second(layer, b, first_head, heads);
    [[unroll]] for (uint i = 0u; i < SCALES; i++) {
        uint e = LANE + i * SIZE;
        slabs[FOUND + e / 4u][e % 4u] = floatBitsToUint(scales[i]);
    }
}

// Sums of a round's heads over the rows that a lane has, then over the lanes of a subgroup: those of the same columns add up by halves.
#define SUMS_UP(name, round) \
    void name() \
    { \
        [[unroll]] for (uint h = round * ROUND; h < (round + 1u) * ROUND; h++) { \
            vec4 low = vec4(0.0), high = vec4(0.0); \
            [[unroll]] for (uint i = 0u; i < STATE_WORDS; i++) { \
                uint e = h * N + LANE / 8u + i * HEAD_LINES; \
                float weight = c_own[i] * uintBitsToFloat(slabs[FOUND + e / 4u][e % 4u]); \
                low += weight * four_16bit(DTYPE_OF(tail), own[h % AHEAD * STATE_WORDS + i].xy); \
                high += weight * four_16bit(DTYPE_OF(tail), own[h % AHEAD * STATE_WORDS + i].zw); \
            } \
            low *= keeps[h]; \
            high *= keeps[h]; \
            [[unroll]] for (uint i = 0u; i < X_WORDS; i++) { \
                float weight = weights_of[h * WINDOW + LANE / 8u + i * HEAD_LINES]; \
                low += weight * four_16bit(DTYPE_OF(tail), xs[h * X_WORDS + i].xy); \
                high += weight * four_16bit(DTYPE_OF(tail), xs[h * X_WORDS + i].zw); \
            } \
            leave_columns((subgroup * ROUND + h % ROUND) * P, low, high); \
        } \
    }

void leave_columns(uint at, vec4 low, vec4 high)
{
    uint column = lane % 8u * 8u;
    if (SUBGROUP_SIZE < 32u) {
        [[unroll]] for (uint apart = 8u; apart < SUBGROUP_SIZE; apart *= 2u) {
            low += subgroupShuffleXor(low, apart);
            high += subgroupShuffleXor(high, apart);
        }
        if (lane >= 8u) return;
        slabs[(at + column) / 4u] = floatBitsToUint(low);
        slabs[(at + column) / 4u + 1u] = floatBitsToUint(high);
        return;
    }
    bool upper = (lane & 8u) != 0u, right = (lane & 16u) != 0u;
    vec4 four = (upper ? high : low) + subgroupShuffleXor(upper ? low : high, 8u);
    vec2 two = (right ? four.zw : four.xy) + subgroupShuffleXor(right ? four.xy : four.zw, 16u);
    [[unroll]] for (uint apart = 32u; apart < SUBGROUP_SIZE; apart *= 2u) two += subgroupShuffleXor(two, apart);
    if (lane >= 32u) return;
    uint to = (at + column) / 4u + (upper ? 1u : 0u);
    if (right) slabs[to].zw = floatBitsToUint(two);
    else slabs[to].xy = floatBitsToUint(two);
}

// Of a round the gated outputs, times the norm, for the product behind it; returns the sum of squares of this lane's before that.
float gate_outputs(uint round, uint b, uint first_head, uint heads)
{
    float squares = 0.0;
    [[unroll]] for (uint u = 0u; u < OUTPUTS; u++) {
        uint e = LANE + u * SIZE;
        float y = 0.0;
        [[unroll]] for (uint k = 0u; k < PARTS; k++) y += uintBitsToFloat(slabs[k * (ROUND * P / 4u) + e / 4u][e % 4u]);
        if (round * ROUND + e / P >= heads) continue;
        y *= silu(gates[round * OUTPUTS + u]);
        halves_work[GATED_AT * 2u + b * I + (first_head + round * ROUND) * P + e] =
            uint16_t(pack_elements(y * mixer_norm[round * OUTPUTS + u], 0.0));
        squares += y * y;
    }
    return squares;
}

SUMS_UP(sum_up_first, 0u)
SUMS_UP(sum_up_second, 1u)
SUMS_UP(sum_up_third, 2u)

void run_heads(uint layer, uint b, uint first_head, uint heads)
{
    [[unroll]] for (uint i = 0u; i < B_WORDS; i++)
        if (LANE / 16u + i * B_LINES == newest) bs[i] = NewQuads(row_at(layer, b, newest) + uint64_t((I + LANE % 16u * 8u) * 2u)).v[0];
    [[unroll]] for (uint i = 0u; i < X_WORDS; i++) {
        if (LANE / 8u + i * HEAD_LINES != newest) continue;
        uint64_t row = row_at(layer, b, newest) + uint64_t(first_head * (P * 2u) + LANE % 8u * 16u);
        [[unroll]] for (uint h = 0u; h < MOST_HEADS; h++) xs[h * X_WORDS + i] = NewQuads(row + uint64_t(min(h, heads - 1u) * (P * 2u))).v[0];
    }
    uint64_t steps_at = packUint2x32(PLACE(layer, PLACE_STEPS)) + uint64_t((b * WINDOW + newest) * H * 8u);
    [[unroll]] for (uint i = 0u; i < SLOTS; i++)
        steps[i] = NewTwos(steps_at + uint64_t((first_head + min((LANE + i * SIZE) / WINDOW, heads - 1u)) * 8u)).v[0];
    [[unroll]] for (uint i = 0u; i < ROUNDS * OUTPUTS; i++)
        gates[i] = floats_work[Z_AT + b * I + min(first_head * P + i / OUTPUTS * ROUND * P + LANE + i % OUTPUTS * SIZE, I - 1u)];
    for (uint i = LANE; i < N; i += SIZE) c_now[i] = floats_work[C_AT + b * N + i];
    barrier();
    uint from = LANE % 16u * 8u;
    vec4 low = vec4(c_now[from], c_now[from + 1u], c_now[from + 2u], c_now[from + 3u]);
    vec4 high = vec4(c_now[from + 4u], c_now[from + 5u], c_now[from + 6u], c_now[from + 7u]);
    [[unroll]] for (uint i = 0u; i < B_WORDS; i++) {
        float product = dot(low, four_16bit(DTYPE_OF(tail), bs[i].xy)) + dot(high, four_16bit(DTYPE_OF(tail), bs[i].zw));
        [[unroll]] for (uint apart = 1u; apart < 8u; apart *= 2u) product += subgroupShuffleXor(product, apart);
        if (lane % 8u == 0u) scores[2u * (LANE / 16u + i * B_LINES) + LANE / 8u % 2u] = product;
    }
    [[unroll]] for (uint i = 0u; i < STATE_WORDS; i++) c_own[i] = c_now[LANE / 8u + i * HEAD_LINES];
    barrier();
    [[unroll]] for (uint i = 0u; i < SLOTS; i++) {
        uint e = LANE + i * SIZE, slot = e % WINDOW;
        if (e >= MOST_HEADS * WINDOW) continue;
        float keep = exp_neg(steps[i].x), score = scores[2u * slot] + scores[2u * slot + 1u];
        if (slot < newest) weights_of[e] *= keep * score;
        if (slot == newest) weights_of[e] = steps[i].y * score + skips[i];
        if (slot == 0u) keeps[e / WINDOW] *= keep;
    }
    barrier();
    sum_up_first();
    fetch_states_third(layer, b, first_head, heads);
    barrier();
    float squares = gate_outputs(0u, b, first_head, heads);
    barrier(); // sums are read
    if (heads > ROUND) {
        sum_up_second();
        barrier();
        squares += gate_outputs(1u, b, first_head, heads);
        barrier();
    }
    if (heads > 2u * ROUND) {
        sum_up_third();
        barrier();
    }
    if (heads > 2u * ROUND) squares += gate_outputs(2u, b, first_head, heads);
    [[unroll]] for (uint apart = SUBGROUP_SIZE / 2u; apart > 0u; apart /= 2u) squares += subgroupShuffleXor(squares, apart);
    if (lane == 0u) row_parts[subgroup] = squares;
    barrier();
    if (LANE == 0u) {
        float sum = 0.0;
        [[unroll]] for (uint i = 0u; i < PARTS; i++) sum += row_parts[i];
        floats_work[GATED_SQUARES_AT + b * args.share + first_head / args.heads] = sum;
    }
}
