#version 460
#extension GL_GOOGLE_include_directive : require
// r = sum_i exp(top_i - T) acc_i / sum_i exp(top_i - T) den_i with T = max top_i, over the partials of each (b, h) and,
// when merging, over what r and lse hold; lse = T + log of the denominator.
// partial B H splits P+2; r B H P; lse B H. One workgroup takes one (b, h), a lane the columns LANE, LANE + LANES ...
// Shared memory: none. Guards: differences from the maximum are clamped to <= 0; partials without memories
// (den = 0) and an lse of -infinity count as nothing.
#include "lib/dart.glsl"
PUSH(SmaMergeArgs)
READS(0, partial)
READS(1, seq)
READS_WRITES(2, r)
READS_WRITES(3, lse)
#include "lib/seq.glsl"
#include "lib/sma.glsl"

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
        bool any = held > LOWEST;
        float top = held;
        for (uint i = 0u; i < args.splits; i++) {
            if (load_partial(from + i * stride + 1u) > 0.0) {
                top = any ? max(top, load_partial(from + i * stride)) : load_partial(from + i * stride);
                any = true;
            }
        }
        float old = held > LOWEST ? exp_neg(held - top) : 0.0;
        float den = old;
        for (uint i = 0u; i < args.splits; i++) {
            float part = load_partial(from + i * stride + 1u);
            if (part > 0.0) den += part * exp_neg(load_partial(from + i * stride) - top);
        }
        // Every lane has read lse before one of them writes it.
        barrier();
        for (uint p = LANE; p < args.P; p += LANES) {
            uint at = args.r_at + b * args.r_row + h * args.P + p;
            float sum = old > 0.0 ? old * load_r(at) : 0.0;
            for (uint i = 0u; i < args.splits; i++) {
                if (load_partial(from + i * stride + 1u) > 0.0)
                    sum += load_partial(from + i * stride + 2u + p) * exp_neg(load_partial(from + i * stride) - top);
            }
            store_r(at, any ? sum / den : 0.0);
        }
        float result = any ? top + log_above_one(den) : uintBitsToFloat(0xff800000u);
        if (LANE == 0u) store_lse(args.lse_at + tile, result);
    }
}
