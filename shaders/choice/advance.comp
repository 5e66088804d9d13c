// seq[2 b] += seq[2 b + 1]: position += count; with HAS_ROWS log[b slots + position mod slots] = ids[b] as well. With
// HAS_STOPS a sequence whose id is one of its end ids, or whose position has reached its last one, gets the count 0
// and live[b] = -1. A sequence with a count of 0 stays as it is.
//
// seq B x 2, ids B, log B slots, stops B x STOP_WORDS, live B. A workgroup advances T0 sequences. No shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/advance.glsl"
READS_WRITES(seq) READS(ids) WRITES(log) READS(stops) WRITES(live)

bool ends(uint b, uint position)
{
    uint at = args.stops_at + STOP_WORDS * b;
    int id = int(words_ids[args.ids_at + b]);
    int last = load_int_stops(at + END_IDS);
    bool ended = last > 0 && position >= uint(last);
    for (uint i = 0u; i < END_IDS; i++) ended = ended || load_int_stops(at + i) == id;
    return ended;
}

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min(tile * T0 + T0, args.B);
        for (uint b = tile * T0 + LANE; b < end; b += LANES) {
            uint at = args.seq_at + 2u * b;
            uint count = words_seq[at + 1u];
            if (count == 0u) continue;
            uint position = words_seq[at] + count;
            words_seq[at] = position;
            if (has(args.flags, HAS_ROWS)) words_log[args.log_at + b * args.slots + position % args.slots] = words_ids[args.ids_at + b];
            if (has(args.flags, HAS_STOPS) && ends(b, position)) {
                words_seq[at + 1u] = 0u;
                words_live[args.live_at + b] = ~0u;
            }
        }
    }
}
