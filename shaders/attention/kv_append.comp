// to[b C + position + t - first] = x[b L + t] for the keys and for the values, in the cache's type; outside 0 .. C - 1 nothing.
// k, v B L G D; to_k, to_v B C G D. A workgroup takes T0 consecutive elements. No shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/kv_append.glsl"
READS(k) READS(v) READS(seq) WRITES(to_k) WRITES(to_v)
#include "lib/seq.glsl"

void main()
{
    uint width = args.G * args.D;
    uint total = args.B * args.L * width;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        for (uint i = tile * T0 + LANE; i < min(tile * T0 + T0, total); i += LANES) {
            uint row = i / width;
            uint column = i % width;
            uint b = row / args.L;
            uint t = row % args.L;
            uint place = seq_position(b) + t;
            if (t >= seq_count(b, args.L) || place < args.first || place - args.first >= args.C) continue;
            uint to = b * args.C + place - args.first;
            store_to_k(args.to_k_at + to * args.to_k_row + column, load_k(args.k_at + row * args.k_row + column));
            store_to_v(args.to_v_at + to * args.to_v_row + column, load_v(args.v_at + row * args.v_row + column));
        }
    }
}
