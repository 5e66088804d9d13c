#version 460
#extension GL_GOOGLE_include_directive : require
// y[t, i] = weight[ids_t - first, i] for first <= ids_t < first + count.
//
// ids rows, weight count x width, y rows x width, width a multiple of 16. A workgroup copies T0 rows, in words of 16 bytes. No shared memory.
// Guards: an id outside the vocabulary gives a row of NaN, written by the launch with first == 0.
#include "lib/dart.glsl"
#include "table/embed.glsl"
READS(ids) READS(weight) WRITES(y)
#include "lib/eight.glsl"
READS_EIGHT(weight) WRITES_EIGHT(y)

void main()
{
    uint eights = args.width / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint begin = tile * T0;
        uint count = min(T0, args.rows - begin) * eights;
        for (uint k = LANE; k < count; k += LANES) {
            uint row = begin + k / eights;
            uint i = k % eights * 8u;
            uint id = uint(load_int_ids(args.ids_at + row)); // negative ids become large ones
            uint to = args.y_at + row * args.y_row + i;
            vec4 broken = vec4(uintBitsToFloat(0x7fc00000u));
            if (id >= args.vocabulary) {
                if (args.first == 0u) store_eight_y(to, Eight(broken, broken));
            } else if (id >= args.first && id - args.first < args.count) {
                store_eight_y(to, load_eight_weight(args.weight_at + (id - args.first) * args.width + i));
            }
        }
    }
}
