/* Parts of operands, and sums over rows. */
#include "dense.h"

uint32_t dense_rows_that_fit(const op_call *call, const op_operand *operand)
{
    const uint64_t fit = op_binding_limit(call) / ((uint64_t)op_row(operand) * dart_dtype_size(operand->of.dtype));
    return fit == 0 ? 1 : fit < operand->rows ? (uint32_t)fit : (uint32_t)operand->rows;
}

op_operand dense_slice(const op_operand *operand, uint32_t first, uint32_t rows)
{
    op_operand slice = *operand;
    slice.of.offset += (uint64_t)first * op_row(operand);
    slice.rows = rows;
    return slice;
}

op_operand dense_columns(const op_operand *operand, uint32_t first, uint32_t rows, uint32_t column, uint32_t width)
{
    op_operand slice = dense_slice(operand, first, rows);
    slice.of.offset += column;
    slice.of.row = op_row(operand);
    slice.width = width;
    return slice;
}

uint64_t dense_rest(const op_operand *operand)
{
    return operand->of.buffer->bytes / dart_dtype_size(operand->of.dtype) - operand->of.offset;
}

/* Rows that one tile adds up, where T1 elements are not more. */
enum { SHARE = 64 };

/* One launch: all rows into y, if it is given and a tile can add up so many; true. Else *from becomes the sums of parts of the rows. */
static bool sum_once(op_call *call, op_operand *from, const op_operand *y, bool add)
{
    const uint32_t rows = (uint32_t)from->rows, width = (uint32_t)from->width;
    op_kernel(call, KERNEL_column_sum, rows, width % 16 == 0 ? FITS_TILES : 0);
    const uint32_t few = call->T1 / width, share = few > SHARE ? few : SHARE;
    const bool last = y != NULL && rows <= 2 * share;
    const op_operand to = last ? *y : op_scratch(call, DART_F32, base_ceil_div(rows, share), width);
    struct ColumnSumArgs k = {.flags = last && add ? IS_ADD : 0, .rows = rows, .share = last ? rows : share, .width = width,
                              .line = (uint32_t)to.width};
    OP_LAUNCH(call, &k, base_ceil_div(width, call->T0) * base_ceil_div(rows, k.share), OP_WHOLE(column_sum, x, from),
              OP_ROWS(column_sum, y, &to, k));
    *from = to;
    return last;
}

op_operand dense_sum_parts(op_call *call, const op_operand *x)
{
    op_operand parts = *x;
    sum_once(call, &parts, NULL, false);
    return parts;
}

void dense_sum(op_call *call, const op_operand *partial, const op_operand *y, bool add)
{
    op_operand from = *partial;
    while (op_status(call) == DART_OK && !sum_once(call, &from, y, add)) continue;
}
