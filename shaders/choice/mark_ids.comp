// seen[b ceil(V / 32) + id / 32] |= 1 << id mod 32 for every token id of sequence b that is below V.
//
// ids B x L or T, seq B x 2 or cu, seen B x ceil(V / 32). A workgroup marks the tokens of a sequence. No shared memory.
// Guards: ids are compared as unsigned numbers, so that negative ones are passed over.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/mark_ids.glsl"
READS(ids) READS(seq) READS_WRITES(seen)
#define PACKS
#include "lib/seq.glsl"

void main()
{
    uint words = (args.V + 31u) / 32u;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        Sequence own = sequence_of(tile);
        for (uint t = LANE; t < own.count; t += LANES) {
            uint id = words_ids[args.ids_at + own.row + t];
            if (id < args.V) atomicOr(words_seen[args.seen_at + tile * words + id / 32u], 1u << (id % 32u));
        }
    }
}
