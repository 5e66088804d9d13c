// Which logits of a row are kept: those above an order `threshold` (order.glsl), and the first `ties` of those equal to it. Include after
// order.glsl, in a shader that defines `uint row_from, row_width`, `float penalised(uint i, float logit)` and
// `float weight_of(float logit, uint order)`. Shared memory: 4,232 + 68 LANES bytes.

// For all logits i of the row, neighbours by neighbours, a lane AHEAD of them at a time, asked for together: `use` of i, `logit` and its `order`.
const uint AHEAD = 8u;
#define FOR_LOGITS(use) \
    for (uint first = LANE; first < row_width; first += AHEAD * LANES) { \
        float raw[AHEAD]; \
        [[unroll]] for (uint j = 0u; j < AHEAD; j++) raw[j] = load_logits(row_from + min(first + j * LANES, row_width - 1u)); \
        [[unroll]] for (uint j = 0u; j < AHEAD; j++) { \
            uint i = first + j * LANES; \
            float logit = i < row_width ? penalised(i, raw[j]) : 0.0; \
            uint order = i < row_width ? order_of(logit) : 0u; \
            use \
        } \
    }

const uint COPIES = 4u; // of a counter, as most logits share a few first digits
const uint TEAMS = 16u; // of digits
shared uint counts[256u * COPIES], team_counts[TEAMS];
shared uint bucket, above; // of the last kept logit: its digit, and how many logits have larger ones

uint count_of(uint digit)
{
    uint count = 0u;
    [[unroll]] for (uint k = 0u; k < COPIES; k++) count += counts[COPIES * digit + k];
    return count;
}

// The smallest order among the keep largest numbers of a row, and how many numbers equal to it are kept. With no more
// numbers than keep it is 1, below all of them.
void find_threshold(uint keep, out uint threshold, out uint ties)
{
    threshold = 0u;
    for (uint shift = 24u;; shift -= 8u) {
        for (uint i = LANE; i < 256u * COPIES; i += LANES) counts[i] = 0u;
        barrier();
        FOR_LOGITS(
            bool same = shift == 24u || (order ^ threshold) >> (shift + 8u) == 0u;
            if (order != 0u && same) atomicAdd(counts[COPIES * ((order >> shift) & 255u) + LANE % COPIES], 1u);
        )
        barrier();
        if (LANE < TEAMS) {
            uint count = 0u;
            for (uint k = 0u; k < 256u / TEAMS; k++) count += count_of(LANE * (256u / TEAMS) + k);
            team_counts[LANE] = count;
        }
        barrier();
        if (LANE == 0u) {
            uint larger = 0u;
            uint team = TEAMS - 1u;
            while (team > 0u && larger + team_counts[team] < keep) larger += team_counts[team--];
            uint digit = team * (256u / TEAMS) + 256u / TEAMS - 1u;
            while (digit > team * (256u / TEAMS) && larger + count_of(digit) < keep) larger += count_of(digit--);
            bucket = larger + count_of(digit) < keep ? 256u : digit;
            above = larger;
        }
        barrier();
        uint digit = bucket;
        uint larger = above;
        barrier();
        if (digit == 256u) { // only in the first round
            threshold = 1u;
            ties = 0u;
            return;
        }
        threshold |= digit << shift;
        keep -= larger;
        if (shift == 0u) break;
    }
    ties = keep;
}

const uint DIGITS = 16u;
const uint SHARES = LANES / DIGITS; // lanes that add up what all lanes have of a digit
shared float masses[DIGITS * gl_WorkGroupSize.x];
shared float sums[gl_WorkGroupSize.x];
shared float mass[DIGITS];

// mass[k] = the sum of masses[k LANES ..], which the lanes have written, in a fixed order. Call in uniform flow; what `mass` was has been read by a
// barrier before.
void add_up_masses()
{
    barrier();
    precise float share = 0.0;
    for (uint i = 0u; i < DIGITS; i++) share += masses[LANE / SHARES * LANES + LANE % SHARES + i * SHARES];
    sums[LANE] = share;
    barrier();
    if (LANE < DIGITS) {
        precise float sum = 0.0;
        for (uint i = 0u; i < SHARES; i++) sum += sums[LANE * SHARES + i];
        mass[LANE] = sum;
    }
    barrier();
}

// Of the logits kept so far, keeps those before which, from the largest down, the weights add up to less than top_p of all. The mass at an order
// is the weight of the logits of this order and above: the largest order at which it reaches the target is found four bits at a time.
void cut_by_mass(float top_p, inout uint threshold, inout uint ties)
{
    uint found = 0u;
    float target = 0.0;
    float tied = ties > 0u ? float(ties) * weight_of(of_order(threshold), threshold) : 0.0;
    for (uint shift = 28u;; shift -= 4u) {
        float sums_of[DIGITS];
        [[unroll]] for (uint k = 0u; k < DIGITS; k++) sums_of[k] = 0.0;
        FOR_LOGITS(
            float weight = order > threshold && order >= found ? weight_of(logit, order) : 0.0;
            [[unroll]] for (uint k = 0u; k < DIGITS; k++) sums_of[k] += order >= (found | k << shift) ? weight : 0.0;
        )
        [[unroll]] for (uint k = 0u; k < DIGITS; k++) masses[k * LANES + LANE] = sums_of[k];
        add_up_masses();
        if (shift == 28u) target = max(top_p * (mass[0] + tied), 1.0e-30);
        uint digit = DIGITS - 1u;
        while (digit > 0u && mass[digit] + ((found | digit << shift) <= threshold ? tied : 0.0) < target) digit--;
        found |= digit << shift;
        barrier();
        if (shift == 0u) break;
    }
    if (found < threshold) return; // rounding: all of them
    float larger = 0.0;
    FOR_LOGITS(if (order > found) larger += weight_of(logit, order);)
    larger = workgroup_sum(larger);
    float each = max(weight_of(of_order(found), found), 1.0e-38);
    uint keep = uint(clamp(ceil((target - larger) / each), 1.0, 1.0e9));
    ties = found == threshold ? min(ties, keep) : keep;
    threshold = found;
}
