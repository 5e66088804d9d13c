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

const uint AHEAD = 4u;

void main()
{
    uint words = (args.V + 31u) / 32u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        Sequence own = sequence_of(tile);
        for (uint t = LANE; t < own.count; t += LANES * AHEAD) {
            uint ids[AHEAD]; // all of them under way at once; past the last one, that one again
            [[unroll]] for (uint i = 0u; i < AHEAD; i++) ids[i] = words_ids[args.ids_at + own.row + min(t + i * LANES, own.count - 1u)];
            [[unroll]] for (uint i = 0u; i < AHEAD; i++)
                if (ids[i] < args.V) atomicOr(words_seen[args.seen_at + tile * words + ids[i] / 32u], 1u << (ids[i] % 32u));
        }
    }
}
