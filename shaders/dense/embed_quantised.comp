#version 460
#extension GL_GOOGLE_include_directive : require
// y[t, i] = number i of the quantised row ids_t - first of weight, for first <= ids_t < first + count; of row t without HAS_ROWS.
//
// ids rows, y rows x width. A workgroup makes T0 rows, eight numbers a lane. No shared memory.
// Guards: an id outside the vocabulary gives a row of NaN, written by the launch with first == 0.
#include "lib/dart.glsl"
#include "table/embed_quantised.glsl"
READS(ids) WRITES(y)
#include "lib/eight.glsl"
#include "quantised.glsl"
WRITES_EIGHT(y)

void main()
{
    uint eights = args.width / 8u;
    bool aligned = ((args.y_at | args.y_row) & 7u) == 0u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint begin = tile * T0;
        uint count = min(T0, args.rows - begin) * eights;
        for (uint k = LANE; k < count; k += LANES) {
            uint t = begin + k / eights;
            uint i = k % eights * 8u;
            uint to = args.y_at + t * args.y_row + i;
            uint row = t;
            Eight v = Eight(vec4(uintBitsToFloat(0x7fc00000u)), vec4(uintBitsToFloat(0x7fc00000u)));
            bool inside = true;
            if (has(args.flags, HAS_ROWS)) {
                uint id = uint(load_int_ids(args.ids_at + t)); // negative ids become large ones
                row = id - args.first;
                inside = id < args.vocabulary;
                if (inside ? id < args.first || row >= args.count : args.first != 0u) continue;
            }
            if (inside) {
                v = weights_of(block_at(args.weight_at + row * args.weight_row, args.width, i / 32u), i / 8u % 4u);
            }
            if (aligned) {
                store_eight_y(to, v);
            } else {
                [[unroll]] for (uint e = 0u; e < 4u; e++) {
                    store_y(to + e, v.low[e]);
                    store_y(to + 4u + e, v.high[e]);
                }
            }
        }
    }
}
