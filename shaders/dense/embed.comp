// y[t, i] = weight[ids_t - first, i] for first <= ids_t < first + count.
//
// ids rows, weight count x width, y rows x width. A workgroup copies one row. No shared memory.
// Guards: an id outside the vocabulary gives a row of NaN, written by the launch with first == 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/embed.glsl"
READS(ids) READS(weight) WRITES(y)

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint id = uint(load_int_ids(args.ids_at + tile)); // negative ids become large ones
        uint to = args.y_at + tile * args.y_row;
        if (id >= args.vocabulary) {
            if (args.first != 0u) continue;
            for (uint i = LANE; i < args.width; i += LANES) store_y(to + i, uintBitsToFloat(0x7fc00000u));
        } else if (id >= args.first && id - args.first < args.count) {
            uint from = args.weight_at + (id - args.first) * args.width;
            for (uint i = LANE; i < args.width; i += LANES) store_y(to + i, load_weight(from + i));
        }
    }
}
