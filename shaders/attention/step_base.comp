#version 460
#extension GL_GOOGLE_include_directive : require
// attention for one token, over the tokens of one split of a block: partial = {top, den, acc[D]}, top = max score,
// den = sum exp(score - top), acc = sum exp(score - top) v.
// q B H D; k, v B C G D; partial B H splits D+2; D <= HEAD, which is MAX_HEAD, or with -DLARGE
// MAX_LARGE_HEAD.
// One workgroup takes one (b, h, split), LANES tokens of the cache at a time: a lane adds up the score of one token,
// then owns a column of the values (and those LANES further on). LANES divides HEAD.
// Shared memory: 4 HEAD + 8 LANES bytes.
// Guards: differences from the running maximum are clamped to <= 0, LOWEST stands for -infinity.
#include "lib/dart.glsl"
#ifdef LARGE
#include "table/attention_step_large.glsl"
#define HEAD MAX_LARGE_HEAD
#else
#include "table/attention_step.glsl"
#define HEAD MAX_HEAD
#endif
READS(q) READS(k) READS(v) READS(seq) WRITES(partial)
#include "lib/seq.glsl"

const uint GROUPS = HEAD / LANES;
shared float query[HEAD];
shared float weights[LANES];

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint split = tile % args.splits;
        uint head = tile / args.splits;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        if (seq_count(b, 1u) == 0u) continue;
        uint position = seq_position(b);
        uint seen = position < args.first ? 0u : min(position - args.first + 1u, args.C);
        uint run = args.splits * STEP_TOKENS;
        run = (seen + run - 1u) / run * STEP_TOKENS;
        uint end = min((split + 1u) * run, seen);

        barrier();
        for (uint d = LANE; d < args.D; d += LANES)
            query[d] = args.scale * load_q(args.q_at + b * args.q_row + h * args.D + d);
        barrier();
        float top = LOWEST;
        float den = 0.0;
        float sums[GROUPS]; // reached by constants only, so that they lie in registers
        [[unroll]] for (uint i = 0u; i < GROUPS; i++) sums[i] = 0.0;
        for (uint s = split * run; s < end; s += LANES) {
            uint row = b * args.C + s;
            uint tokens = min(LANES, end - s);
            uint at = args.k_at + (row + min(LANE, tokens - 1u)) * args.k_row + g * args.D;
            float score = 0.0;
            for (uint d = 0u; d < args.D; d++) score += query[d] * load_k(at + d);
            float new_top = max(top, workgroup_max(score)); // lanes without a token repeat the last one
            float keep = exp_neg(top - new_top);
            float weight = LANE < tokens ? exp_neg(score - new_top) : 0.0;
            top = new_top;
            weights[LANE] = weight;
            den = den * keep + weight;
            barrier();
            for (uint group = 0u; group * LANES < args.D; group++) {
                at = args.v_at + row * args.v_row + g * args.D + min(group * LANES + LANE, args.D - 1u);
                float sum = 0.0;
                [[unroll]] for (uint i = 0u; i < GROUPS; i++) sum = i == group ? sums[i] * keep : sum;
                for (uint i = 0u; i < tokens; i++) sum += weights[i] * load_v(at + i * args.v_row);
                [[unroll]] for (uint i = 0u; i < GROUPS; i++) sums[i] = i == group ? sum : sums[i];
            }
            barrier();
        }
        den = workgroup_sum(den);

        uint to = tile * (args.D + 2u);
        if (LANE == 0u) {
            store_partial(to, top);
            store_partial(to + 1u, den);
        }
        [[unroll]] for (uint group = 0u; group < GROUPS; group++)
            if (group * LANES + LANE < args.D) store_partial(to + 2u + group * LANES + LANE, sums[group]);
    }
}
