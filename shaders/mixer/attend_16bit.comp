#version 460
#extension GL_GOOGLE_include_directive : require
// State-memory attention of one token over the memories of one split: what attend_base.comp computes, for memories of 16 bits of
// N = 128, P = 64 as sma/one_token.glsl reads them. Shared memory: that of sma/one_token.glsl.
#include "lib/dart.glsl"
#include "table/mixer_attend.glsl"
READS(q) READS(e) READS(c) READS(dh) READS(factor) READS(seq) WRITES(partial)
#include "lib/seq.glsl"
#include "lib/quads.glsl"
uint e_row() { return args.q_row; }
uint partial_of(uint split, uint head) { return args.partial_at + (split * args.B * args.H + head) * (args.P + 4u); }
void begin(uint head) {}
void store_end(uint split, uint head, float top, float den)
{
    store_partial(partial_of(split, head) + args.P, top);
    store_partial(partial_of(split, head) + args.P + 1u, den);
}
void store_sum(uint split, uint head, uint p, float sum, float top, float den) { store_partial(partial_of(split, head) + p, sum); }
void finish(uint head) {}
#include "sma/one_token.glsl"

void main() { attend(); }
