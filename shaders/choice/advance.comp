// seq[2 b] += seq[2 b + 1]: position += count; with HAS_ROWS log[b slots + position mod slots] = ids[b] as well.
//
// seq B x 2, ids B, log B slots. A workgroup advances T0 sequences. No shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
PUSH(AdvanceArgs)
READS_WRITES(0, seq)
READS(1, ids)
WRITES(2, log)

void main()
{
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min(tile * T0 + T0, args.B);
        for (uint b = tile * T0 + LANE; b < end; b += LANES) {
            uint at = args.seq_at + 2u * b;
            uint position = words_seq[at] + words_seq[at + 1u];
            words_seq[at] = position;
            if (has(args.flags, HAS_ROWS)) words_log[args.log_at + b * args.slots + position % args.slots] = words_ids[args.ids_at + b];
        }
    }
}
