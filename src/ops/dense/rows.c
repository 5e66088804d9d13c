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

/* Rows that one tile adds up. */
enum { SHARE = 64 };

void dense_sum(op_call *call, const op_operand *partial, const op_operand *y, bool add)
{
    op_operand from = *partial;
    while (op_status(call) == DART_OK) {
        const uint32_t rows = (uint32_t)from.rows, width = (uint32_t)from.width;
        const bool last = rows <= 2 * SHARE;
        const op_operand to = last ? *y : op_scratch(call, DART_F32, base_ceil_div(rows, SHARE), width);
        struct ColumnSumArgs k = {.flags = last && add ? IS_ADD : 0, .rows = rows, .share = last ? rows : SHARE, .width = width,
                                  .line = (uint32_t)to.width};
        op_kernel(call, KERNEL_column_sum, rows, width % 16 == 0 ? FITS_TILES : 0);
        OP_LAUNCH(call, &k, base_ceil_div(width, call->T0) * base_ceil_div(rows, k.share), OP_WHOLE(column_sum, x, &from),
                  OP_ROWS(column_sum, y, &to, k));
        if (last) return;
        from = to;
    }
}
