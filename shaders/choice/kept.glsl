// Which logits of a row are kept: those above an order `threshold` (order.glsl), and the first `ties` of those equal to it. Include after
// order.glsl, in a shader that defines `uint row_width`, `float logit_at(uint i)` and `float weight_of(float logit, uint order)`.
// Shared memory: 1096 + 64 LANES bytes.

shared uint counts[256];
shared uint bucket, above; // of the last kept logit: its digit, and how many logits have larger ones

// The smallest order among the keep largest numbers of a row, and how many numbers equal to it are kept. With no more
// numbers than keep it is 1, below all of them.
void find_threshold(uint keep, out uint threshold, out uint ties)
{
    threshold = 0u;
    for (uint shift = 24u;; shift -= 8u) {
        for (uint i = LANE; i < 256u; i += LANES) counts[i] = 0u;
        barrier();
        for (uint i = LANE; i < row_width; i += LANES) {
            uint order = order_of(logit_at(i));
            bool same = shift == 24u || (order ^ threshold) >> (shift + 8u) == 0u;
            if (order != 0u && same) atomicAdd(counts[(order >> shift) & 255u], 1u);
        }
        barrier();
        if (LANE == 0u) {
            uint larger = 0u;
            uint digit = 255u;
            while (digit > 0u && larger + counts[digit] < keep) larger += counts[digit--];
            bucket = larger + counts[digit] < keep ? 256u : digit;
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
shared float masses[DIGITS * gl_WorkGroupSize.x];
shared float mass[DIGITS];

// Of the logits kept so far, keeps those before which, from the largest down, the weights add up to less than top_p of all. The mass at an order
// is the weight of the logits of this order and above: the largest order at which it reaches the target is found four bits at a time.
void cut_by_mass(float top_p, inout uint threshold, inout uint ties)
{
    uint found = 0u;
    float target = 0.0;
    float tied = ties > 0u ? float(ties) * weight_of(of_order(threshold), threshold) : 0.0;
    for (uint shift = 28u;; shift -= 4u) {
        float sums_of[DIGITS];
        [[unroll]] for (uint j = 0u; j < DIGITS; j++) sums_of[j] = 0.0;
        for (uint i = LANE; i < row_width; i += LANES) {
            float logit = logit_at(i);
            uint order = order_of(logit);
            if (order <= threshold || order < found) continue;
            float weight = weight_of(logit, order);
            [[unroll]] for (uint j = 0u; j < DIGITS; j++) sums_of[j] += order >= (found | j << shift) ? weight : 0.0;
        }
        [[unroll]] for (uint j = 0u; j < DIGITS; j++) masses[j * LANES + LANE] = sums_of[j];
        barrier();
        for (uint j = LANE; j < DIGITS; j += LANES) {
            precise float sum = 0.0;
            for (uint i = 0u; i < LANES; i++) sum += masses[j * LANES + i];
            mass[j] = sum + ((found | j << shift) <= threshold ? tied : 0.0);
        }
        barrier();
        if (shift == 28u) target = max(top_p * mass[0], 1.0e-30);
        uint digit = DIGITS - 1u;
        while (digit > 0u && mass[digit] < target) digit--;
        found |= digit << shift;
        barrier();
        if (shift == 0u) break;
    }
    if (found < threshold) return; // rounding: all of them
    float larger = 0.0;
    for (uint i = LANE; i < row_width; i += LANES) {
        float logit = logit_at(i);
        uint order = order_of(logit);
        if (order > found) larger += weight_of(logit, order);
    }
    larger = workgroup_sum(larger);
    float each = max(weight_of(of_order(found), found), 1.0e-38);
    uint keep = uint(clamp(ceil((target - larger) / each), 1.0, 1.0e9));
    ties = found == threshold ? min(ties, keep) : keep;
    threshold = found;
}
