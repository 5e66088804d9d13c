#version 460
#extension GL_GOOGLE_include_directive : require
// r = sum_i exp(top_i - T) acc_i / sum_i exp(top_i - T) den_i with T = max top_i, over the partials of each (b, h) and,
// when merging, over what r and lse hold; lse = T + log of the denominator.
// partial B H splits P+2; r B H P; lse B H. One workgroup takes one (b, h), a lane the columns LANE, LANE + LANES ...;
// with fewer columns than lanes several lanes share one, each with every so-many-th partial.
// Shared memory: 8 LANES bytes. Guards: differences from the maximum are clamped to <= 0; partials without memories
// (den = 0) and an lse of -infinity count as nothing.
#include "lib/dart.glsl"
PUSH(SmaMergeArgs)
READS(0, partial)
READS(1, seq)
READS_WRITES(2, r)
READS_WRITES(3, lse)
#include "lib/seq.glsl"
#include "lib/sma.glsl"

const uint BATCH = 8u;      // partials in flight
shared float shares[LANES];

void main()
{
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint b = tile / args.H;
        uint h = tile % args.H;
        if (seq_count(b, 1u) == 0u) continue;
        uint stride = args.P + 2u;
        uint from = tile * args.splits * stride;
        float held = has(args.flags, IS_MERGE) ? load_lse(args.lse_at + tile) : LOWEST;
        if (!(held > -3e38)) held = LOWEST;
        float top = held;
        for (uint i = LANE; i < args.splits; i += LANES)
            if (load_partial(from + i * stride + 1u) > 0.0) top = max(top, load_partial(from + i * stride));
        top = workgroup_max(top);
        float den = 0.0;
        for (uint i = LANE; i < args.splits; i += LANES) {
            float part = load_partial(from + i * stride + 1u);
            if (part > 0.0) den += part * exp_neg(load_partial(from + i * stride) - top);
        }
        float old = held > LOWEST ? exp_neg(held - top) : 0.0;
        den = workgroup_sum(den) + old; // every lane has read lse by now
        bool any = den > 0.0;
        uint columns = min(args.P, LANES);
        uint sharers = LANES / columns;
        uint part = LANE / columns;
        for (uint first = 0u; first < args.P; first += columns) {
            uint p = first + LANE % columns;
            float sum = 0.0;
            if (part < sharers && p < args.P) {
                for (uint i = part; i < args.splits; i += sharers * BATCH) {
                    float values[BATCH];
                    float weights[BATCH];
                    [[unroll]] for (uint k = 0u; k < BATCH; k++) {
                        uint at = from + min(i + k * sharers, args.splits - 1u) * stride;
                        values[k] = load_partial(at + 2u + p);
                        weights[k] = i + k * sharers < args.splits && load_partial(at + 1u) > 0.0 ? exp_neg(load_partial(at) - top) : 0.0;
                    }
                    [[unroll]] for (uint k = 0u; k < BATCH; k++) sum += weights[k] * values[k];
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
        if (LANE == 0u) store_lse(args.lse_at + tile, result);
    }
}
