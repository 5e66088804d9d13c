// r and lse of one (b, h) from its partials {top, den, acc[P]}, and with IS_MERGE from what r and lse hold:
//   r = sum_i exp(top_i - T) acc_i / sum_i exp(top_i - T) den_i, T = max top_i, lse = T + log of the denominator.
// A lane owns the columns LANE, LANE + LANES ...; with fewer columns than lanes several lanes share a column and take its partials in
// turn. A lane's first AT_ONCE partials are loaded before anything else, so that they arrive while the maximum is found.
// Shared memory: 512 + 4 LANES bytes. Guards: differences from the maximum are clamped to <= 0; partials without memories
// (den = 0) and an lse of -infinity count as nothing.
// PARTIAL_AT(head, i): where partial i of a head lies; those of a head follow one another where the includer does not say.
// Include after lib/log.glsl, in a kernel that has args.splits, the floats of partial as they are (READS_AS), r and lse. Call in
// uniform flow.
const uint AT_ONCE = 8u;
const uint ENDS = (MERGE_PARTS + LANES - 1u) / LANES; // of partials, that a lane looks at
shared float gains[MERGE_PARTS];
shared float shares[LANES];

float values[AT_ONCE];

#ifndef PARTIAL_AT
#define PARTIAL_AT(head, i) (((head) * args.splits + (i)) * (args.P + 2u))
#endif
void fetch_partials(uint head, uint i, uint sharers, uint p)
{
    [[unroll]] for (uint k = 0u; k < AT_ONCE; k++)
        values[k] = floats_partial[PARTIAL_AT(head, min(i + k * sharers, args.splits - 1u)) + 2u + min(p, args.P - 1u)];
}

void merge(uint head)
{
    uint b = head / args.H;
    uint h = head % args.H;
    uint columns = min(args.P, LANES);
    uint sharers = LANES / columns;
    uint part = LANE / columns;
    fetch_partials(head, part, sharers, LANE % columns);
    float tops[ENDS];
    float dens[ENDS];
    for (uint k = 0u; k < ENDS; k++) {
        uint i = LANE + k * LANES;
        uint at = PARTIAL_AT(head, min(i, args.splits - 1u));
        tops[k] = floats_partial[at];
        dens[k] = i < args.splits ? floats_partial[at + 1u] : 0.0;
    }
    float held = has(args.flags, IS_MERGE) ? load_lse(args.lse_at + head) : LOWEST;
    if (!(held > -3e38)) held = LOWEST;
    float top = held;
    for (uint k = 0u; k < ENDS; k++)
        if (dens[k] > 0.0) top = max(top, tops[k]);
    top = workgroup_max(top);
    float den = 0.0;
    for (uint k = 0u; k < ENDS; k++) {
        uint i = LANE + k * LANES;
        float gain = dens[k] > 0.0 ? exp_neg(tops[k] - top) : 0.0;
        if (i < MERGE_PARTS) gains[i] = gain;
        if (gain > 0.0) den += gain * dens[k];
    }
    float old = held > LOWEST ? exp_neg(held - top) : 0.0;
    den = workgroup_sum(den) + old; // every lane has read lse by now, and sees gains
    bool any = den > 0.0;
    for (uint first = 0u; first < args.P; first += columns) {
        uint p = first + LANE % columns;
        float sum = 0.0;
        if (part < sharers && p < args.P) {
            for (uint i = part; i < args.splits; i += sharers * AT_ONCE) {
                if (first != 0u || i != part) fetch_partials(head, i, sharers, p);
                [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) {
                    float gain = i + k * sharers < args.splits ? gains[i + k * sharers] : 0.0;
                    if (gain > 0.0) sum += gain * values[k];
                }
            }
        }
        barrier();
        shares[LANE] = sum;
        barrier();
        if (part == 0u && p < args.P) {
            for (uint i = 1u; i < sharers; i++) sum += shares[LANE + i * columns];
            uint at = args.r_at + b * args.r_row + h * args.P + p;
            if (old > 0.0) sum += old * load_r(at);
            store_r(at, any ? sum / den : 0.0);
        }
    }
    float result = any ? top + log_above_one(den) : uintBitsToFloat(0xff800000u);
    if (LANE == 0u) store_lse(args.lse_at + head, result);
}
