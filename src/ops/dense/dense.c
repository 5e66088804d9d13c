/* Ops on rows: fill, convert, norms; the launches of linear. */
#include "dense.h"

static uint32_t fill_traits(const op_operand *y)
{
    return y->of.dtype != DART_I32 && y->width % 16 == 0 && op_fits_rows(y) ? FITS_TILES : 0;
}

void dense_clear(op_call *call, const op_operand *y)
{
    struct FillArgs k = {.rows = (uint32_t)y->rows, .width = (uint32_t)y->width, .value = 0};
    op_kernel(call, KERNEL_fill, k.rows, fill_traits(y));
    OP_LAUNCH(call, &k, base_ceil_div(y->rows * y->width, call->T0), OP_ROWS(fill, y, y, k));
}

void dense_convert(op_call *call, const op_operand *x, const op_operand *y, const op_operand *seq, uint32_t flags, uint32_t L)
{
    struct ConvertArgs k = {.flags = flags & HAS_SEQ, .rows = (uint32_t)y->rows, .L = L, .width = (uint32_t)y->width};
    op_kernel(call, KERNEL_convert, L, 0);
    OP_LAUNCH(call, &k, base_ceil_div(y->rows * y->width, call->T0), OP_ROWS(convert, x, x, k), OP_ROWS(convert, y, y, k),
              OP_AT(convert, seq, seq, k));
}

dart_status dart_fill(dart_stream *stream, const dart_fill_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    if (op_begin(&call, stream, "dart_fill") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, args->T > 0 && args->W > 0, "T %u, W %u: both must be above 0", args->T, args->W);
    const op_operand y = {"y", args->y, OP_FLOAT | OP_I32 | OP_VIEW, args->T, args->W};
    if (!op_check(&call, &y, 1)) return op_status(&call);
    struct FillArgs k = {.rows = args->T, .width = args->W, .value = args->value};
    op_kernel(&call, KERNEL_fill, args->T, fill_traits(&y));
    OP_LAUNCH(&call, &k, base_ceil_div((uint64_t)args->T * args->W, call.T0), OP_ROWS(fill, y, &y, k));
    return op_end(&call);
}

dart_status dart_convert(dart_stream *stream, const dart_convert_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, W = args->W;
    if (op_begin(&call, stream, "dart_convert") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && W > 0, "T %u, W %u: both must be above 0", T, W);
    const bool pairs = op_has(&args->pairs), from = op_has(&args->from);
    OP_REQUIRE(&call, !pairs || !from, "pairs and from exclude each other");
    OP_REQUIRE(&call, pairs || from ? args->X > 0 && args->X <= INT32_MAX : args->X == 0,
               "X %u: must be 1 to 2^31 - 1 with pairs or from, and 0 without", args->X);
    OP_REQUIRE(&call, pairs ? args->Y > 0 && args->Y <= INT32_MAX : args->Y == 0, "Y %u: must be 1 to 2^31 - 1 with pairs, and 0 without", args->Y);
    const struct { op_operand x, y, pairs, from; } o = {
        .x = {"x", args->x, OP_FLOAT | OP_VIEW, pairs || from ? args->X : T, W},
        .y = {"y", args->y, OP_FLOAT | OP_VIEW, pairs ? args->Y : T, W},
        .pairs = {"pairs", args->pairs, OP_I32 | OP_OPTIONAL, T, 2},
        .from = {"from", args->from, OP_I32 | OP_OPTIONAL, 1, T}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct ConvertArgs k = {.flags = pairs ? HAS_ROWS : from ? HAS_FROM : 0, .rows = T, .width = W};
    op_kernel(&call, KERNEL_convert, T, W % 16 == 0 && op_fits_rows(&o.x) && op_fits_rows(&o.y) ? FITS_TILES : 0);
    OP_LAUNCH(&call, &k, base_ceil_div((uint64_t)T * W, call.T0), OP_ROWS(convert, x, &o.x, k), OP_ROWS(convert, y, &o.y, k),
              OP_AT(convert, seq, from ? &o.from : &o.pairs, k));
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
    const struct { op_operand x, weight, rows, y; } o = {
        .x = {"x", args->x, OP_FLOAT | OP_VIEW, gather ? 1 : T, W},
        .weight = {"weight", args->weight, OP_FLOAT, 1, W},
        .rows = {"rows", args->rows, OP_I32 | OP_OPTIONAL, 1, T},
        .y = {"y", args->y, OP_FLOAT | OP_VIEW, T, W}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    op_operand x = o.x;
    /* Gathered rows may lie anywhere from the start of x to the end of its buffer. */
    if (gather) x.width = dense_rest(&o.x);
    struct NormArgs k = {.flags = gather ? HAS_ROWS : 0, .rows = T, .width = W, .x_row = op_row(&o.x), .eps = args->eps};
    const bool eights = W % 16 == 0 && op_fits_rows(&o.x) && op_fits_rows(&o.y) && args->weight.offset % 8 == 0;
    op_kernel(&call, KERNEL_norm, T, dense_row_traits(eights, W));
    OP_LAUNCH(&call, &k, base_ceil_div(T, call.T0), OP_AT(norm, x, &x, k), OP_AT(norm, weight, &o.weight, k), OP_AT(norm, rows, &o.rows, k),
              OP_ROWS(norm, y, &o.y, k));
    return op_end(&call);
}

dart_status dart_layer_norm(dart_stream *stream, const dart_layer_norm_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, W = args->W;
    if (op_begin(&call, stream, "dart_layer_norm") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && W > 0, "T %u, W %u: both must be above 0", T, W);
    OP_REQUIRE(&call, args->eps > 0, "eps %g must be above 0", (double)args->eps);
    const bool gather = op_has(&args->rows);
    const struct { op_operand x, weight, bias, rows, y; } o = {
        .x = {"x", args->x, OP_FLOAT | OP_VIEW, gather ? 1 : T, W},
        .weight = {"weight", args->weight, OP_FLOAT, 1, W},
        .bias = {"bias", args->bias, OP_FLOAT, 1, W},
        .rows = {"rows", args->rows, OP_I32 | OP_OPTIONAL, 1, T},
        .y = {"y", args->y, OP_FLOAT | OP_VIEW, T, W}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    op_operand x = o.x;
    if (gather) x.width = dense_rest(&o.x); /* as in dart_rms_norm */
    struct LayerNormArgs k = {.flags = gather ? HAS_ROWS : 0, .rows = T, .width = W, .x_row = op_row(&o.x), .eps = args->eps};
    op_kernel(&call, KERNEL_layer_norm, T, 0);
    OP_LAUNCH(&call, &k, base_ceil_div(T, call.T0), OP_AT(layer_norm, x, &x, k), OP_AT(layer_norm, weight, &o.weight, k),
              OP_AT(layer_norm, bias, &o.bias, k), OP_AT(layer_norm, rows, &o.rows, k), OP_ROWS(layer_norm, y, &o.y, k));
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
    const struct { op_operand y, r, gate, z, weight, out; } o = {
        .y = {"y", args->y, OP_FLOAT | OP_VIEW, T, I},
        .r = {"r", args->r, OP_FLOAT | OP_VIEW | OP_OPTIONAL, T, I},
        .gate = {"gate", args->gate, OP_FLOAT | OP_VIEW | OP_OPTIONAL, T, 1},
        .z = {"z", args->z, OP_FLOAT | OP_VIEW, T, I},
        .weight = {"weight", args->weight, OP_FLOAT, 1, I},
        .out = {"out", args->out, OP_FLOAT | OP_VIEW, T, I}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct GatedNormArgs k = {.flags = op_has(&args->r) ? HAS_SMA : 0, .rows = T, .width = I, .eps = args->eps};
    const bool eights = I % 16 == 0 && op_fits_rows(&o.y) && op_fits_rows(&o.r) && op_fits_rows(&o.z) && op_fits_rows(&o.out) &&
                        args->weight.offset % 8 == 0;
    op_kernel(&call, KERNEL_gated_norm, T, dense_row_traits(eights, I));
    OP_LAUNCH(&call, &k, base_ceil_div(T, call.T0), OP_ROWS(gated_norm, y, &o.y, k), OP_ROWS(gated_norm, r, &o.r, k),
              OP_ROWS(gated_norm, gate, &o.gate, k),
              OP_ROWS(gated_norm, z, &o.z, k), OP_AT(gated_norm, weight, &o.weight, k), OP_ROWS(gated_norm, out, &o.out, k));
    return op_end(&call);
}

/* Tiles of 64 x 64 that y has, against the multiprocessors (as op_wave rounds them): below a quarter of one each, tiles of 16 x 16 that
 * split the inputs are faster; below two each, tiles of 32 x 32; from twelve each on, tiles of 128 x 128. Measured on an H200. A row of at
 * most SHORT_ROW inputs has passed through a large tile before its loads have paid: 64 outputs of 262,144 rows of 128 took 68 us in tiles of
 * 128 x 128, 43 in tiles of 64 x 64.
 * FITS_DENSE_NARROW: a few outputs of weights that matrices do not take, such as the rows of a quantised one that are f32. Eight tiles of 64 x 64
 * leave a device idle: 24 outputs of 512 rows of 768 took 60 us on an H100 through Vulkan. Sixteen outputs of four rows by lanes that split the
 * inputs are many more tiles: 12 us. */
#define SHORT_ROW 128
/* FITS_DENSE_SHORT_ROWS: weights of so many tiles of 64 x 64 and rows of so many inputs fit the shared memory of a block, and from so many rows on
 * the time is that of reading x and writing y. */
enum { SHORT_WEIGHTS = 6, SHORT_ROWS = 4096 };
uint32_t dense_linear_traits(const op_call *call, const op_operand *x, const op_operand *weight)
{
    const uint64_t wave = op_wave(call);
    const uint64_t tiles = base_ceil_div(x->rows, 64) * base_ceil_div(weight->rows, 64);
    /* Quantised weights become numbers of the type of x. */
    uint32_t traits = op_fits_16bit(&x->of, dense_is_quantised(weight) ? &x->of : &weight->of);
    if (x->width % 16 == 0 && op_fits_rows(x) && op_fits_rows(weight)) traits |= FITS_TILES;
    if (tiles < wave / 4 && x->width >= 512) traits |= FITS_DENSE_FEWEST_TILES;
    if (x->rows >= SHORT_ROWS && x->width <= DENSE_SHORT_INPUTS && base_ceil_div(x->width, 64) * base_ceil_div(weight->rows, 64) <= SHORT_WEIGHTS)
        traits |= FITS_DENSE_SHORT_ROWS;
    if (x->width <= 64) traits |= FITS_DENSE_INPUTS64;
    if (weight->rows <= 64 && tiles <= 64 && x->width >= 256) traits |= FITS_DENSE_NARROW;
    return traits | (tiles < 2 * wave ? FITS_DENSE_FEW_TILES : tiles >= 12 * wave && x->width > SHORT_ROW ? FITS_DENSE_MANY_TILES : 0);
}

void dense_linear(op_call *call, const op_operand *x, const op_operand *weight, const op_operand *y, bool add)
{
    /* A table above the binding limit is taken in slices of outputs, long inputs in slices of rows. */
    const uint32_t T = (uint32_t)x->rows, IN = (uint32_t)x->width, OUT = (uint32_t)weight->rows;
    const uint32_t outputs_step = dense_rows_that_fit(call, weight);
    const uint32_t x_fit = dense_rows_that_fit(call, x);
    const uint32_t y_fit = dense_rows_that_fit(call, y);
    const uint32_t rows_step = x_fit < y_fit ? x_fit : y_fit;
    for (uint32_t t = 0; t < T && op_status(call) == DART_OK; t += rows_step) {
        for (uint32_t out = 0; out < OUT && op_status(call) == DART_OK; out += outputs_step) {
            const uint32_t rows = T - t < rows_step ? T - t : rows_step;
            const uint32_t outputs = OUT - out < outputs_step ? OUT - out : outputs_step;
            const op_operand some = dense_slice(x, t, rows), part = dense_slice(weight, out, outputs);
            const op_operand to = dense_columns(y, t, rows, out, outputs);
            struct LinearArgs k = {.flags = add ? IS_ADD : 0, .rows = rows, .inputs = IN, .outputs = outputs};
            op_kernel(call, KERNEL_linear, rows, dense_linear_traits(call, &some, &part));
            OP_LAUNCH(call, &k, base_ceil_div(outputs, call->T0) * base_ceil_div(rows, call->T1), OP_ROWS(linear, x, &some, k),
                      OP_AT(linear, weight, &part, k), OP_ROWS(linear, y, &to, k));
        }
    }
}

bool dense_linear_from(op_call *call, const op_operand *x, const op_operand *weight, const op_operand *from, const op_operand *y)
{
    const uint32_t T = (uint32_t)x->rows, OUT = (uint32_t)weight->rows, traits = dense_linear_traits(call, x, weight);
    const bool whole = dense_rows_that_fit(call, weight) >= OUT && dense_rows_that_fit(call, x) >= T && dense_rows_that_fit(call, from) >= T &&
                       dense_rows_that_fit(call, y) >= T;
    if (from->of.dtype != y->of.dtype || !whole || !op_prefers(call, KERNEL_linear_from, KERNEL_linear, T, traits)) return false;
    op_kernel(call, KERNEL_linear, T, traits);
    const kernel_row *const linear = call->row;
    op_kernel(call, KERNEL_linear_from, T, traits);
    if (kernel_same_bits(call->row) != linear) return false;
    struct LinearFromArgs k = {.flags = IS_ADD, .rows = T, .inputs = (uint32_t)x->width, .outputs = OUT};
    OP_LAUNCH(call, &k, base_ceil_div(OUT, call->T0) * base_ceil_div(T, call->T1), OP_ROWS(linear_from, x, x, k),
              OP_AT(linear_from, weight, weight, k), OP_ROWS(linear_from, from, from, k), OP_ROWS(linear_from, y, y, k));
    return true;
}
