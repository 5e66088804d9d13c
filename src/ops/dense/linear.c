/* embed and linear, the ops on rows whose weights may be quantised. */
#include "dense.h"

dart_status dart_embed(dart_stream *stream, const dart_embed_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, V = args->V, W = args->W;
    if (op_begin(&call, stream, "dart_embed") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && V > 0 && W > 0 && V <= INT32_MAX, "T %u, V %u, W %u: all must be above 0, V below 2^31", T, V, W);
    const struct { op_operand ids, weight, y; } o = {
        .ids = {"ids", args->ids, OP_I32, 1, T},
        .weight = dense_weight(&args->weight, V, W),
        .y = {"y", args->y, OP_FLOAT | OP_VIEW, T, W}};
    if (!dense_check_quantised(&call, &args->weight, W) || !OP_CHECK(&call, o)) return op_status(&call);
    if (dense_is_quantised(&o.weight)) {
        dense_embed_quantised(&call, &o.ids, &o.weight, &o.y);
        return op_end(&call);
    }
    const uint32_t step = dense_rows_that_fit(&call, &o.weight);
    for (uint32_t first = 0; first < V && op_status(&call) == DART_OK; first += step) {
        const uint32_t count = V - first < step ? V - first : step;
        const op_operand weight = dense_slice(&o.weight, first, count);
        struct EmbedArgs k = {.rows = T, .width = W, .vocabulary = V, .first = first, .count = count};
        const bool eights = W % 16 == 0 && op_fits_rows(&weight) && op_fits_rows(&o.y);
        op_kernel(&call, KERNEL_embed, T, eights ? FITS_TILES : 0);
        OP_LAUNCH(&call, &k, base_ceil_div(T, call.T0), OP_AT(embed, ids, &o.ids, k), OP_AT(embed, weight, &weight, k), OP_ROWS(embed, y, &o.y, k));
    }
    return op_end(&call);
}

static void copy(op_call *call, const op_operand *from, const op_operand *to)
{
    const uint32_t T = (uint32_t)from->rows, from_fit = dense_rows_that_fit(call, from), to_fit = dense_rows_that_fit(call, to);
    const uint32_t step = from_fit < to_fit ? from_fit : to_fit;
    for (uint32_t t = 0; t < T && op_status(call) == DART_OK; t += step) {
        const uint32_t rows = T - t < step ? T - t : step;
        const op_operand some = dense_slice(from, t, rows), part = dense_slice(to, t, rows);
        struct ConvertArgs k = {.rows = rows, .width = (uint32_t)from->width};
        op_kernel(call, KERNEL_convert, rows, from->width % 16 == 0 && op_fits_rows(&some) && op_fits_rows(&part) ? FITS_TILES : 0);
        OP_LAUNCH(call, &k, base_ceil_div(some.rows * some.width, call->T0), OP_ROWS(convert, x, &some, k), OP_ROWS(convert, y, &part, k));
    }
}

/* y = bias in every row, or y += bias. Products are added to it by launches of their own, so that each row of linear does with biases. */
static void put_bias(op_call *call, const op_operand *bias, const op_operand *y, bool add)
{
    const uint32_t T = (uint32_t)y->rows, step = dense_rows_that_fit(call, y);
    for (uint32_t t = 0; t < T && op_status(call) == DART_OK; t += step) {
        const op_operand part = dense_slice(y, t, T - t < step ? T - t : step);
        struct BiasArgs k = {.flags = add ? IS_ADD : 0, .rows = (uint32_t)part.rows, .width = (uint32_t)part.width};
        op_kernel(call, KERNEL_bias, k.rows, 0);
        OP_LAUNCH(call, &k, base_ceil_div(part.rows * part.width, call->T0), OP_AT(bias, bias, bias, k), OP_ROWS(bias, y, &part, k));
    }
}

dart_status dart_linear(dart_stream *stream, const dart_linear_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, IN = args->IN, OUT = args->OUT;
    if (op_begin(&call, stream, "dart_linear") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && IN > 0 && OUT > 0, "T %u, IN %u, OUT %u: all must be above 0", T, IN, OUT);
    const bool biased = op_has(&args->bias), apart = op_has(&args->from);
    OP_REQUIRE(&call, !apart || !args->add, "add and from do not come together");
    const struct { op_operand x, weight, bias, y, from; } o = {
        .x = {"x", args->x, OP_FLOAT | OP_VIEW, T, IN},
        .weight = dense_weight(&args->weight, OUT, IN),
        .bias = {"bias", args->bias, OP_FLOAT | OP_OPTIONAL, 1, OUT},
        .y = {"y", args->y, OP_FLOAT | OP_VIEW, T, OUT},
        .from = {"from", args->from, OP_FLOAT | OP_VIEW | OP_OPTIONAL, T, OUT}};
    if (!dense_check_quantised(&call, &args->weight, IN) || !OP_CHECK(&call, o)) return op_status(&call);
    if (apart && !biased && !dense_is_quantised(&o.weight) && dense_linear_from(&call, &o.x, &o.weight, &o.from, &o.y)) return op_end(&call);
    const bool adds = args->add || apart;
    if (apart) copy(&call, &o.from, &o.y);
    if (biased) put_bias(&call, &o.bias, &o.y, adds);
    if (dense_is_quantised(&o.weight)) dense_linear_quantised(&call, &o.x, &o.weight, &o.y, adds || biased);
    else dense_linear(&call, &o.x, &o.weight, &o.y, adds || biased);
    return op_end(&call);
}
