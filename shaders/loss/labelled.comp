#version 460
#extension GL_GOOGLE_include_directive : require
// y_t = x_t where row t has a label, else 0. x rows x width, targets rows, y rows x width. A workgroup copies a row. No shared memory.
// Guards: rows without a label are not read.
#include "lib/dart.glsl"
#include "table/labelled.glsl"
READS(x) READS(targets) WRITES(y)

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        int target = load_int_targets(args.targets_at + tile);
        bool has_label = target >= 0 && uint(target) < args.vocabulary;
        for (uint i = LANE; i < args.width; i += LANES)
            store_y(args.y_at + tile * args.width + i, has_label ? load_x(args.x_at + tile * args.x_row + i) : 0.0);
    }
}
