/* linear and embed with quantised weights. */
#include "base/quantised.h"
#include "dense.h"

/* Numbers of a slice of unquantised weights: few launches, and scratch memory of at most 64 MiB. */
#define SLICE_NUMBERS (UINT64_C(1) << 24)

op_operand dense_weight(const dart_tensor *weight, uint64_t rows, uint32_t width)
{
    const size_t bytes = dart_quantised_row(weight->dtype, width);
    return (op_operand){"weight", *weight, OP_FLOAT | OP_QUANTISED, rows, bytes != 0 ? bytes : width};
}

bool dense_check_quantised(op_call *call, const dart_tensor *weight, uint32_t width)
{
    const bool quantised = weight->dtype == DART_Q8 || weight->dtype == DART_Q4;
    if (quantised && dart_quantised_row(weight->dtype, width) == 0)
        op_fail(call, DART_INVALID_ARGUMENT, "rows of a %s weight have %u numbers, not a multiple of %u", dart_dtype_name(weight->dtype), width,
                QUANTISED_BLOCK);
    return op_status(call) == DART_OK;
}

/* All rows of weight as numbers of the type of y. */
static void unpack(op_call *call, const op_operand *weight, const op_operand *y)
{
    const op_operand absent = {.kinds = OP_I32};
    struct EmbedQuantisedArgs k = {.rows = (uint32_t)y->rows, .width = (uint32_t)y->width};
    op_kernel(call, KERNEL_embed_quantised, k.rows, 0);
    OP_LAUNCH(call, &k, base_ceil_div(y->rows, call->T0), OP_AT(embed_quantised, ids, &absent, k), OP_ROWS(embed_quantised, weight, weight, k),
              OP_ROWS(embed_quantised, y, y, k));
}

/* Dequantises the weights slice by slice and multiplies those. */
static void multiply_dequantised(op_call *call, const op_operand *x, const op_operand *weight, const op_operand *y, bool add)
{
    const uint32_t IN = (uint32_t)x->width, OUT = (uint32_t)weight->rows;
    const uint64_t fit = base_smaller(SLICE_NUMBERS, op_binding_limit(call) / 4) / IN;
    const uint32_t slice = (uint32_t)base_smaller(fit == 0 ? 1 : fit, base_smaller(OUT, dense_rows_that_fit(call, weight)));
    const op_operand numbers = op_scratch(call, x->of.dtype, slice, IN);
    for (uint32_t first = 0; first < OUT && op_status(call) == DART_OK; first += slice) {
        const uint32_t outputs = OUT - first < slice ? OUT - first : slice;
        const op_operand part = dense_slice(weight, first, outputs), some = dense_slice(&numbers, 0, outputs);
        const op_operand to = dense_columns(y, 0, (uint32_t)y->rows, first, outputs);
        unpack(call, &part, &some);
        dense_linear(call, x, &some, &to, add);
    }
}

void dense_linear_quantised(op_call *call, const op_operand *x, const op_operand *weight, const op_operand *y, bool add)
{
    const uint32_t T = (uint32_t)x->rows, OUT = (uint32_t)weight->rows, traits = dense_linear_traits(call, x, weight);
    if (!op_prefers(call, KERNEL_linear_quantised, KERNEL_linear, T, traits)) {
        multiply_dequantised(call, x, weight, y, add);
        return;
    }
    const uint32_t outputs_step = dense_rows_that_fit(call, weight), x_fit = dense_rows_that_fit(call, x), y_fit = dense_rows_that_fit(call, y);
    const uint32_t rows_step = x_fit < y_fit ? x_fit : y_fit;
    for (uint32_t t = 0; t < T && op_status(call) == DART_OK; t += rows_step) {
        for (uint32_t out = 0; out < OUT && op_status(call) == DART_OK; out += outputs_step) {
            const uint32_t rows = T - t < rows_step ? T - t : rows_step, outputs = OUT - out < outputs_step ? OUT - out : outputs_step;
            const op_operand some = dense_slice(x, t, rows), part = dense_slice(weight, out, outputs);
            const op_operand to = dense_columns(y, t, rows, out, outputs);
            struct LinearQuantisedArgs k = {.flags = add ? IS_ADD : 0, .rows = rows, .inputs = (uint32_t)x->width, .outputs = outputs};
            op_kernel(call, KERNEL_linear_quantised, T, traits);
            OP_LAUNCH(call, &k, base_ceil_div(outputs, call->T0) * base_ceil_div(rows, call->T1), OP_ROWS(linear_quantised, x, &some, k),
                      OP_ROWS(linear_quantised, weight, &part, k), OP_ROWS(linear_quantised, y, &to, k));
        }
    }
}

void dense_embed_quantised(op_call *call, const op_operand *ids, const op_operand *weight, const op_operand *y)
{
    const uint32_t T = (uint32_t)y->rows, V = (uint32_t)weight->rows, step = dense_rows_that_fit(call, weight);
    for (uint32_t first = 0; first < V && op_status(call) == DART_OK; first += step) {
        const uint32_t count = V - first < step ? V - first : step;
        const op_operand part = dense_slice(weight, first, count);
        struct EmbedQuantisedArgs k = {.flags = HAS_ROWS, .rows = T, .width = (uint32_t)y->width, .vocabulary = V, .first = first, .count = count};
        op_kernel(call, KERNEL_embed_quantised, T, 0);
        OP_LAUNCH(call, &k, base_ceil_div(T, call->T0), OP_AT(embed_quantised, ids, ids, k), OP_ROWS(embed_quantised, weight, &part, k),
                  OP_ROWS(embed_quantised, y, y, k));
    }
}
