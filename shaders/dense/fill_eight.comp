#version 460
#extension GL_GOOGLE_include_directive : require
// y[t, i] = value.
//
// y rows x width, not i32, width a multiple of 16. A workgroup writes T0 consecutive elements, counted row by row, in words of 16 bytes,
// neighbouring lanes in neighbouring words. No shared memory.
#include "lib/dart.glsl"
#include "table/fill.glsl"
WRITES(y)
#include "lib/eight.glsl"
WRITES_EIGHT(y)

void main()
{
    uint word = is_16bit(DTYPE_OF(y)) ? 8u : 4u; // elements of 16 bytes
    uint words = args.width / word;
    uvec4 value = floatBitsToUint(vec4(args.value));
    if (is_16bit(DTYPE_OF(y))) value = as_16bit(DTYPE_OF(y), vec4(args.value)).xyxy;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * (T0 / word), args.rows * words);
        for (uint k = tile * (T0 / word) + LANE; k < end; k += LANES) {
            uint t = k / words;
            quads_y[(args.y_at + t * args.y_row) / word + k - t * words] = value;
        }
    }
}
