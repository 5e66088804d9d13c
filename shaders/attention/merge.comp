#version 460
#extension GL_GOOGLE_include_directive : require
// The results of one block of keys into those of the blocks before it, in place, for tokens that stand in it or behind it:
// m = max(lse, x_lse), o = (exp(lse - m) o + exp(x_lse - m) x) / (exp(lse - m) + exp(x_lse - m)), lse = m + log of the denominator.
// o, x B L H D; lse, x_lse B L H, f32. One workgroup takes T0 <= LANES heads of tokens, one after the other (b L + t) H + h.
// Shared memory: 8 T0 bytes. Guards: differences from the maximum are <= 0.
#include "lib/dart.glsl"
#include "table/attention_merge.glsl"
READS(x) READS(x_lse) READS(seq) READS_WRITES(o) READS_WRITES(lse)
#include "lib/seq.glsl"
#include "lib/log.glsl"

shared float keeps[T0]; // of o
shared float gains[T0]; // of x; 0: nothing changes

void main()
{
    uint heads = args.B * args.L * args.H;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile * T0;
        barrier();
        if (LANE < T0) {
            uint head = min(first + LANE, heads - 1u);
            uint b = head / args.H / args.L;
            uint t = head / args.H % args.L;
            keeps[LANE] = 1.0;
            gains[LANE] = 0.0;
            if (first + LANE < heads && t < seq_count(b, args.L) && seq_position(b) + t >= args.first) {
                float before = load_lse(args.lse_at + head);
                float here = load_x_lse(head);
                float top = max(before, here);
                float keep = exp_neg(before - top);
                float gain = exp_neg(here - top);
                keeps[LANE] = keep / (keep + gain);
                gains[LANE] = gain / (keep + gain);
                store_lse(args.lse_at + head, top + log_above_one(keep + gain));
            }
        }
        barrier();
        for (uint i = LANE; i < T0 * args.D; i += LANES) {
            uint own = i / args.D;
            uint head = first + own;
            uint column = i % args.D;
            if (gains[own] == 0.0) continue;
            uint at = args.o_at + head / args.H * args.o_row + head % args.H * args.D + column;
            store_o(at, keeps[own] * load_o(at) + gains[own] * load_x(head * args.D + column));
        }
    }
}
