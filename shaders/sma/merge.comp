#version 460
#extension GL_GOOGLE_include_directive : require
// The merge of partials: see merge.glsl. partial: groups of B H group P+2; r B H P; lse B H. One workgroup takes one (b, h).
#include "lib/dart.glsl"
#include "table/sma_merge.glsl"
READS_AS(float, floats, partial) READS(seq) READS_WRITES(r) READS_WRITES(lse)
#include "lib/seq.glsl"
#include "lib/log.glsl"
#define PARTIAL_AT(head, i) ((i) / args.group * args.group_size + ((head) * args.group + (i) % args.group) * (args.P + 2u))
#include "merge.glsl"

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        if (seq_count(tile / args.H, 1u) == 0u) continue;
        barrier();
        merge(tile);
    }
}
