// tail = the last K - 1 of (tail, in): row j becomes in[count + j - (K - 1)], or the old row count + j while that index
// is negative.
//
// x B L C, tail B K-1 C, 2 <= K <= 8. A workgroup updates T0 consecutive channels of one sequence; a lane reads all
// of its channel before it writes. No shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/conv_tail.glsl"
READS(x) READS_WRITES(tail) READS(seq)
#include "lib/seq.glsl"

const uint MAX_ROWS = 7u;

void main()
{
    uint blocks = (args.C + T0 - 1u) / T0;
    uint rows = args.K - 1u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint b = tile / blocks;
        uint begin = (tile - b * blocks) * T0;
        uint end = min(begin + T0, args.C);
        uint count = seq_count(b, args.L);
        if (count == 0u) continue;
        for (uint channel = begin + LANE; channel < end; channel += LANES) {
            uint at = args.tail_at + b * rows * args.C + channel;
            float kept[MAX_ROWS];
            [[unroll]] for (uint j = 0u; j < MAX_ROWS; j++) {
                kept[j] = 0.0;
                if (j >= rows) continue;
                uint from = count + j;
                if (from < rows) kept[j] = load_tail(at + from * args.C);
                else kept[j] = load_x(args.x_at + (b * args.L + from - rows) * args.x_row + channel);
            }
            [[unroll]] for (uint j = 0u; j < MAX_ROWS; j++) {
                if (j < rows) store_tail(at + j * args.C, kept[j]);
            }
        }
    }
}
