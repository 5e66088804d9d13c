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
READS_EIGHT(weight) READS_AS(uvec2, pairs, weight) WRITES_EIGHT(y)

// Elements of weight from `at` on, as many as y has in 16 bytes, to y: neighbouring lanes write neighbouring words.
void copy_word(uint to, uint at)
{
    if (is_16bit(DTYPE_OF(y))) store_eight_y(to, load_eight_weight(at));
    else if (is_16bit(DTYPE_OF(weight))) quads_y[to / 4u] = floatBitsToUint(four_16bit(DTYPE_OF(weight), pairs_weight[at / 4u]));
    else quads_y[to / 4u] = quads_weight[at / 4u];
}

void main()
{
    uint word = is_16bit(DTYPE_OF(y)) ? 8u : 4u; // elements of 16 bytes
    uint words = args.width / word;
    uvec4 broken = uvec4(0x7fc00000u);
    if (is_16bit(DTYPE_OF(y))) broken = as_16bit(DTYPE_OF(y), uintBitsToFloat(broken)).xyxy;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint begin = tile * T0;
        uint count = min(T0, args.rows - begin) * words;
        for (uint k = LANE; k < count; k += LANES) {
            uint row = begin + k / words;
            uint i = k % words * word;
            uint id = uint(load_int_ids(args.ids_at + row)); // negative ids become large ones
            uint to = args.y_at + row * args.y_row + i;
            if (id >= args.vocabulary) {
                if (args.first == 0u) quads_y[to / word] = broken;
            } else if (id >= args.first && id - args.first < args.count) {
                copy_word(to, args.weight_at + (id - args.first) * args.width + i);
            }
        }
    }
}
