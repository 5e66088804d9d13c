#version 460
#extension GL_GOOGLE_include_directive : require
// y_t = x_t where row t has a label, else 0. x rows x width, targets rows, y rows x width, packed; width a multiple of 16. A workgroup copies T0
// rows, in words of 16 bytes. No shared memory. Guards: rows without a label are not read.
#include "lib/dart.glsl"
#include "table/labelled.glsl"
READS(x) READS(targets) WRITES(y)
#include "lib/eight.glsl"
READS_EIGHT(x) WRITES_EIGHT(y)

void main()
{
    uint eights = args.width / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile * T0;
        uint count = min(T0, args.rows - first) * eights;
        for (uint k = LANE; k < count; k += LANES) {
            uint row = first + k / eights;
            uint i = k % eights * 8u;
            int target = load_int_targets(args.targets_at + row);
            Eight v = Eight(vec4(0.0), vec4(0.0));
            if (target >= 0 && uint(target) < args.vocabulary) v = load_eight_x(args.x_at + row * args.x_row + i);
            store_eight_y(args.y_at + row * args.width + i, v);
        }
    }
}
