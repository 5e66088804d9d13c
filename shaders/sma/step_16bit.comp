#version 460
#extension GL_GOOGLE_include_directive : require
// sma for one token, over the memories of one split, and then r and lse of the split of a (b, h) that is done last: what
// step_base.comp computes, for memories of 16 bits of N = 128, P = 64 as one_token.glsl reads them. With -DCUMULATIVE see last.glsl, with -DWHOLE
// one_token.glsl; one split alone then stores r and lse without partials and tickets.
// Shared memory: that of one_token.glsl and of merge.glsl.
#include "lib/dart.glsl"
#include "table/sma_step.glsl"
READS(q) READS(e) READS(c) READS(dh) READS(factor) READS(seq) READS_WRITES_COHERENT(float, floats, partial)
READS_WRITES(r) READS_WRITES(lse)
#include "lib/seq.glsl"
#include "lib/quads.glsl"
#include "lib/log.glsl"
#include "merge.glsl"
#include "last.glsl"
uint e_row() { return args.e_row; }

#ifdef WHOLE
bool alone() { return args.splits == 1u; }
#else
bool alone() { return false; }
#endif

float held; // lse so far, of one split alone
void begin(uint head)
{
    held = alone() && has(args.flags, IS_MERGE) ? load_lse(args.lse_at + head) : LOWEST;
    if (!(held > -3e38)) held = LOWEST;
}

// How a split alone is merged with what r and lse hold, as merge.glsl does it.
struct Joined { float top, gain, old, den; };
Joined join(float top, float den)
{
    float higher = den > 0.0 ? max(top, held) : held;
    float gain = den > 0.0 ? exp_neg(top - higher) : 0.0;
    float old = held > LOWEST ? exp_neg(held - higher) : 0.0;
    return Joined(higher, gain, old, (gain > 0.0 ? gain * den : 0.0) + old);
}
void store_end(uint split, uint head, float top, float den)
{
    if (alone()) {
        Joined all = join(top, den);
        store_lse(args.lse_at + head, all.den > 0.0 ? all.top + log_above_one(all.den) : uintBitsToFloat(0xff800000u));
        return;
    }
    uint to = (head * args.splits + split) * (args.P + 2u);
    floats_partial[to] = top;
    floats_partial[to + 1u] = den;
}
void store_sum(uint split, uint head, uint p, float sum, float top, float den)
{
    if (alone()) {
        Joined all = join(top, den);
        uint at = args.r_at + head / args.H * args.r_row + head % args.H * args.P + p;
        float total = all.gain > 0.0 ? all.gain * sum : 0.0;
        if (all.old > 0.0) total += all.old * load_r(at);
        store_r(at, all.den > 0.0 ? total / all.den : 0.0);
        return;
    }
    floats_partial[(head * args.splits + split) * (args.P + 2u) + 2u + p] = sum;
}
void finish(uint head)
{
    if (!alone()) merge_when_last(head);
}
#include "one_token.glsl"

void main() { attend(); }
