/* Ops on rows: fill, convert, embed, norms, linear. */
#include "runtime/stream.h"

dart_status dart_fill(dart_stream *stream, const dart_fill_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    if (op_begin(&call, stream, "dart_fill") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, args->T > 0 && args->W > 0, "T %u, W %u: both must be above 0", args->T, args->W);
    op_check(&call, "y", &args->y, OP_FLOAT | OP_I32 | OP_VIEW, args->T, args->W);
    struct FillArgs k = {.rows = args->T, .width = args->W, .y_row = op_row(&args->y, args->W), .value = args->value};
    op_kernel(&call, KERNEL_fill, args->T, 0);
    k.y_at = op_bind_rows(&call, BINDING_fill_y, &args->y, args->T, args->W);
    op_launch(&call, &k, base_ceil_div((uint64_t)args->T * args->W, call.row->T0));
    return op_end(&call);
}

dart_status dart_convert(dart_stream *stream, const dart_convert_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    if (op_begin(&call, stream, "dart_convert") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, args->T > 0 && args->W > 0, "T %u, W %u: both must be above 0", args->T, args->W);
    op_check(&call, "x", &args->x, OP_FLOAT | OP_VIEW, args->T, args->W);
    op_check(&call, "y", &args->y, OP_FLOAT | OP_VIEW, args->T, args->W);
    struct ConvertArgs k = {.rows = args->T, .width = args->W, .x_row = op_row(&args->x, args->W), .y_row = op_row(&args->y, args->W)};
    op_kernel(&call, KERNEL_convert, args->T, 0);
    k.x_at = op_bind_rows(&call, BINDING_convert_x, &args->x, args->T, args->W);
    k.y_at = op_bind_rows(&call, BINDING_convert_y, &args->y, args->T, args->W);
    op_launch(&call, &k, base_ceil_div((uint64_t)args->T * args->W, call.row->T0));
    return op_end(&call);
}

/* Rows of a table that one binding can hold. */
static uint32_t rows_that_fit(const op_call *call, uint32_t rows, uint64_t row_bytes)
{
    const uint64_t fit = op_binding_limit(call) / row_bytes;
    return fit == 0 ? 1 : fit < rows ? (uint32_t)fit : rows;
}

dart_status dart_embed(dart_stream *stream, const dart_embed_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, V = args->V, W = args->W;
    if (op_begin(&call, stream, "dart_embed") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && V > 0 && W > 0 && V <= INT32_MAX, "T %u, V %u, W %u: all must be above 0, V below 2^31", T, V, W);
    op_check(&call, "ids", &args->ids, OP_I32, 1, T);
    op_check(&call, "weight", &args->weight, OP_FLOAT, V, W);
    op_check(&call, "y", &args->y, OP_FLOAT | OP_VIEW, T, W);
    if (op_status(&call) != DART_OK) return op_status(&call);
    const uint32_t slice = rows_that_fit(&call, V, (uint64_t)W * dart_dtype_size(args->weight.dtype));
    for (uint32_t first = 0; first < V && op_status(&call) == DART_OK; first += slice) {
        const uint32_t count = V - first < slice ? V - first : slice;
        dart_tensor weight = args->weight;
        weight.offset += (uint64_t)first * W;
        struct EmbedArgs k = {.rows = T, .width = W, .vocabulary = V, .first = first, .count = count, .y_row = op_row(&args->y, W)};
        const bool eights = W % 16 == 0 && op_fits_rows(&weight, W) && op_fits_rows(&args->y, W);
        op_kernel(&call, KERNEL_embed, T, eights ? FITS_TILES : 0);
        k.ids_at = op_bind(&call, BINDING_embed_ids, &args->ids, T);
        k.weight_at = op_bind(&call, BINDING_embed_weight, &weight, (uint64_t)count * W);
        k.y_at = op_bind_rows(&call, BINDING_embed_y, &args->y, T, W);
        op_launch(&call, &k, T);
    }
    return op_end(&call);
}

dart_status dart_rms_norm(dart_stream *stream, const dart_rms_norm_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, W = args->W;
    if (op_begin(&call, stream, "dart_rms_norm") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && W > 0, "T %u, W %u: both must be above 0", T, W);
    OP_REQUIRE(&call, args->eps > 0, "eps %g must be above 0", (double)args->eps);
    const bool gather = op_has(&args->rows);
    op_check(&call, "x", &args->x, OP_FLOAT | OP_VIEW, gather ? 1 : T, W);
    op_check(&call, "weight", &args->weight, OP_FLOAT, 1, W);
    op_check(&call, "rows", &args->rows, OP_I32 | OP_OPTIONAL, 1, T);
    op_check(&call, "y", &args->y, OP_FLOAT | OP_VIEW, T, W);
    if (op_status(&call) != DART_OK) return op_status(&call);
    struct NormArgs k = {.flags = gather ? HAS_ROWS : 0, .rows = T, .width = W, .x_row = op_row(&args->x, W),
                         .y_row = op_row(&args->y, W), .eps = args->eps};
    const bool eights = W % 16 == 0 && op_fits_rows(&args->x, W) && op_fits_rows(&args->y, W) && args->weight.offset % 8 == 0;
    op_kernel(&call, KERNEL_norm, T, eights ? FITS_TILES : 0);
    /* Gathered rows may lie anywhere from the start of x to the end of its buffer. */
    if (gather)
        k.x_at = op_bind(&call, BINDING_norm_x, &args->x,
                         args->x.buffer->bytes / dart_dtype_size(args->x.dtype) - args->x.offset);
    else
        k.x_at = op_bind_rows(&call, BINDING_norm_x, &args->x, T, W);
    k.weight_at = op_bind(&call, BINDING_norm_weight, &args->weight, W);
    k.rows_at = op_bind(&call, BINDING_norm_rows, &args->rows, T);
    k.y_at = op_bind_rows(&call, BINDING_norm_y, &args->y, T, W);
    op_launch(&call, &k, T);
    return op_end(&call);
}

dart_status dart_gated_norm(dart_stream *stream, const dart_gated_norm_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, I = args->I;
    if (op_begin(&call, stream, "dart_gated_norm") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && I > 0, "T %u, I %u: both must be above 0", T, I);
    OP_REQUIRE(&call, args->eps > 0, "eps %g must be above 0", (double)args->eps);
    OP_REQUIRE(&call, op_has(&args->r) == op_has(&args->gate), "r and gate come together");
    op_check(&call, "y", &args->y, OP_FLOAT | OP_VIEW, T, I);
    op_check(&call, "r", &args->r, OP_FLOAT | OP_VIEW | OP_OPTIONAL, T, I);
    op_check(&call, "gate", &args->gate, OP_FLOAT | OP_VIEW | OP_OPTIONAL, T, 1);
    op_check(&call, "z", &args->z, OP_FLOAT | OP_VIEW, T, I);
    op_check(&call, "weight", &args->weight, OP_FLOAT, 1, I);
    op_check(&call, "out", &args->out, OP_FLOAT | OP_VIEW, T, I);
    if (op_status(&call) != DART_OK) return op_status(&call);
    struct GatedNormArgs k = {.flags = op_has(&args->r) ? HAS_SMA : 0, .rows = T, .width = I,
                              .y_row = op_row(&args->y, I), .r_row = op_row(&args->r, I), .gate_row = op_row(&args->gate, 1),
                              .z_row = op_row(&args->z, I), .out_row = op_row(&args->out, I), .eps = args->eps};
    const bool eights = I % 16 == 0 && op_fits_rows(&args->y, I) && op_fits_rows(&args->r, I) && op_fits_rows(&args->z, I) &&
                        op_fits_rows(&args->out, I) && args->weight.offset % 8 == 0;
    op_kernel(&call, KERNEL_gated_norm, T, eights ? FITS_TILES : 0);
    k.y_at = op_bind_rows(&call, BINDING_gated_norm_y, &args->y, T, I);
    k.r_at = op_bind_rows(&call, BINDING_gated_norm_r, &args->r, T, I);
    k.gate_at = op_bind_rows(&call, BINDING_gated_norm_gate, &args->gate, T, 1);
    k.z_at = op_bind_rows(&call, BINDING_gated_norm_z, &args->z, T, I);
    k.weight_at = op_bind(&call, BINDING_gated_norm_weight, &args->weight, I);
    k.out_at = op_bind_rows(&call, BINDING_gated_norm_out, &args->out, T, I);
    op_launch(&call, &k, T);
    return op_end(&call);
}

/* Bounds as measured on an H200, November 2026: from 256 tiles of 64 x 64 on they were faster than ones that split the
 * inputs, from about 1536 on tiles of 128 x 128 were faster than they. */
static uint32_t linear_facts(const dart_tensor *x, const dart_tensor *weight, uint32_t rows, uint32_t IN, uint32_t outputs)
{
    const uint64_t tiles = base_ceil_div(rows, 64) * base_ceil_div(outputs, 64);
    uint32_t traits = op_fits_half(x, weight);
    if (IN % 16 == 0 && op_fits_rows(x, IN) && op_fits_rows(weight, IN)) traits |= FITS_TILES;
    if (tiles < 32 && IN >= 512) traits |= FITS_FEWEST_TILES;
    return traits | (tiles < 256 ? FITS_FEW_TILES : tiles >= 1536 ? FITS_MANY_TILES : 0);
}

dart_status dart_linear(dart_stream *stream, const dart_linear_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, IN = args->IN, OUT = args->OUT;
    if (op_begin(&call, stream, "dart_linear") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && IN > 0 && OUT > 0, "T %u, IN %u, OUT %u: all must be above 0", T, IN, OUT);
    op_check(&call, "x", &args->x, OP_FLOAT | OP_VIEW, T, IN);
    op_check(&call, "weight", &args->weight, OP_FLOAT, OUT, IN);
    op_check(&call, "y", &args->y, OP_FLOAT | OP_VIEW, T, OUT);
    if (op_status(&call) != DART_OK) return op_status(&call);
    /* A table above the binding limit is taken in slices of outputs, long inputs in slices of rows. */
    const uint32_t x_row = op_row(&args->x, IN), y_row = op_row(&args->y, OUT);
    const uint32_t outputs_step = rows_that_fit(&call, OUT, (uint64_t)IN * dart_dtype_size(args->weight.dtype));
    const uint32_t x_fit = rows_that_fit(&call, T, (uint64_t)x_row * dart_dtype_size(args->x.dtype));
    const uint32_t y_fit = rows_that_fit(&call, T, (uint64_t)y_row * dart_dtype_size(args->y.dtype));
    const uint32_t rows_step = x_fit < y_fit ? x_fit : y_fit;
    for (uint32_t t = 0; t < T && op_status(&call) == DART_OK; t += rows_step) {
        for (uint32_t o = 0; o < OUT && op_status(&call) == DART_OK; o += outputs_step) {
            const uint32_t rows = T - t < rows_step ? T - t : rows_step;
            const uint32_t outputs = OUT - o < outputs_step ? OUT - o : outputs_step;
            dart_tensor x = args->x, weight = args->weight, y = args->y;
            x.offset += (uint64_t)t * x_row;
            weight.offset += (uint64_t)o * IN;
            y.offset += (uint64_t)t * y_row + o;
            y.row = y_row;
            struct LinearArgs k = {.flags = args->add ? IS_ADD : 0, .rows = rows, .inputs = IN, .outputs = outputs,
                                   .x_row = x_row, .y_row = y_row};
            op_kernel(&call, KERNEL_linear, rows, linear_facts(&x, &weight, rows, IN, outputs));
            k.x_at = op_bind_rows(&call, BINDING_linear_x, &x, rows, IN);
            k.weight_at = op_bind(&call, BINDING_linear_weight, &weight, (uint64_t)outputs * IN);
            k.y_at = op_bind_rows(&call, BINDING_linear_y, &y, rows, outputs);
            op_launch(&call, &k, base_ceil_div(outputs, call.row->T0) * base_ceil_div(rows, call.row->T1));
        }
    }
    return op_end(&call);
}
