// seq[2 b] += seq[2 b + 1]: position += count.
//
// seq B x 2. A workgroup advances T0 sequences. No shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
PUSH(AdvanceArgs)
READS_WRITES(0, seq)

void main()
{
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min(tile * T0 + T0, args.B);
        for (uint b = tile * T0 + LANE; b < end; b += LANES) {
            uint at = args.seq_at + 2u * b;
            words_seq[at] += words_seq[at + 1u];
        }
    }
}
