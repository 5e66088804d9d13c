// What all families of linear share: its bindings, and what becomes of a sum.
#include "table/linear.glsl"
READS(x) READS(weight) READS_WRITES(y)

#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(weight)

bool eights()
{
    return args.inputs % 8u == 0u && aligned_x(args.x_at, args.x_row) && aligned_weight(args.weight_at, args.inputs);
}

void put(uint row, uint column, float value)
{
    uint at = args.y_at + row * args.y_row + column;
    store_y(at, has(args.flags, IS_ADD) ? load_y(at) + value : value);
}
