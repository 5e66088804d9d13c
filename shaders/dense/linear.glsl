// What all families of linear share: its bindings, and what becomes of a sum.
// With -DFROM they are linear_from's, which adds to `from` in place of y; with -DQUANTISED linear_quantised's.
#ifdef FROM
#include "table/linear_from.glsl"
READS(x) READS(weight) READS(from) WRITES(y)
#define load_before load_from
#define BEFORE_AT(row, column) (args.from_at + (row) * args.from_row + (column))
#else
#ifdef QUANTISED
#include "table/linear_quantised.glsl"
READS(x) READS_WRITES(y)
#else
#include "table/linear.glsl"
READS(x) READS(weight) READS_WRITES(y)
#endif
#define load_before load_y
#define BEFORE_AT(row, column) (args.y_at + (row) * args.y_row + (column))
#endif

#include "lib/eight.glsl"
READS_EIGHT(x)
#ifdef QUANTISED
#include "quantised.glsl"
#else
READS_EIGHT(weight)

bool eights()
{
    return args.inputs % 8u == 0u && aligned_x(args.x_at, args.x_row) && aligned_weight(args.weight_at, args.inputs);
}
#endif

void put(uint row, uint column, float value)
{
    uint at = args.y_at + row * args.y_row + column;
    store_y(at, has(args.flags, IS_ADD) ? load_before(BEFORE_AT(row, column)) + value : value);
}
