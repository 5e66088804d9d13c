#version 460
#extension GL_GOOGLE_include_directive : require
// The merge of partials: see lib/sma_merge.glsl. partial B H splits P+2; r B H P; lse B H. One workgroup takes one (b, h).
#include "lib/dart.glsl"
PUSH(SmaMergeArgs)
layout(std430, binding = 0) readonly buffer Block_partial { float partials[]; };
READS(1, seq)
READS_WRITES(2, r)
READS_WRITES(3, lse)
#include "lib/seq.glsl"
#include "lib/log.glsl"
#include "merge.glsl"

void main()
{
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        if (seq_count(tile / args.H, 1u) == 0u) continue;
        barrier();
        merge(tile);
    }
}
