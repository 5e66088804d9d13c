#version 460
#extension GL_GOOGLE_include_directive : require
// sma for one token, over the memories of one split, and then r and lse of the split of a (b, h) that is done last: what
// step_base.comp computes, for memories of 16 bits of N = 128, P = 64 as one_token.glsl reads them. With -DCUMULATIVE see last.glsl.
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
void store_end(uint split, uint head, float top, float den)
{
    uint to = (head * args.splits + split) * (args.P + 2u);
    floats_partial[to] = top;
    floats_partial[to + 1u] = den;
}
void store_sum(uint split, uint head, uint p, float sum)
{
    floats_partial[(head * args.splits + split) * (args.P + 2u) + 2u + p] = sum;
}
void finish(uint head) { merge_when_last(head); }
#include "one_token.glsl"

void main() { attend(); }
