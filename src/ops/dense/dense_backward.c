/* Backward passes of the ops on rows. Formulas and tiles: shaders/dense/args.h. */
#include "dartlm/ops_backward.h"
#include "dense.h"

#include <stdlib.h>

/* ---- Norms ---- */

dart_status dart_rms_norm_backward(dart_stream *stream, const dart_rms_norm_backward_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, W = args->W;
    if (op_begin(&call, stream, "dart_rms_norm_backward") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && W > 0, "T %u, W %u: both must be above 0", T, W);
    OP_REQUIRE(&call, args->eps > 0, "eps %g must be above 0", (double)args->eps);
    const bool gather = op_has(&args->rows), from = op_has(&args->from);
    OP_REQUIRE(&call, from == op_has(&args->from_rows), "from and from_rows come together");
    OP_REQUIRE(&call, from ? args->F > 0 && args->F <= INT32_MAX : args->F == 0, "F %u: must be 1 to 2^31 - 1 with from, and 0 without", args->F);
    OP_REQUIRE(&call, !gather || (!from && !op_has(&args->copy)), "rows exclude from and copy");
    OP_REQUIRE(&call, !args->add || !from, "add and from exclude each other");
    const struct { op_operand x, weight, rows, up_y, grad_x, from, from_rows, copy, grad_weight; } o = {
        .x = {"x", args->x, OP_FLOAT | OP_VIEW, gather ? 1 : T, W},
        .weight = {"weight", args->weight, OP_FLOAT, 1, W},
        .rows = {"rows", args->rows, OP_I32 | OP_OPTIONAL, 1, T},
        .up_y = {"up_y", args->up_y, OP_FLOAT | OP_VIEW, T, W},
        .grad_x = {"grad_x", args->grad_x, OP_FLOAT | OP_VIEW, gather ? 1 : T, W},
        .from = {"from", args->from, OP_FLOAT | OP_VIEW | OP_OPTIONAL, args->F, W},
        .from_rows = {"from_rows", args->from_rows, OP_I32 | OP_OPTIONAL, 1, T},
        .copy = {"copy", args->copy, OP_FLOAT | OP_VIEW | OP_OPTIONAL, T, W},
        .grad_weight = {"grad_weight", args->grad_weight, OP_F32, 1, W}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    op_operand x = o.x, grad_x = o.grad_x;
    if (gather) {
        x.width = dense_rest(&o.x);
        grad_x.width = dense_rest(&o.grad_x);
    }
    struct NormBackwardArgs k = {.flags = (gather ? HAS_ROWS : 0) | (args->add ? IS_ADD : 0) | (from ? HAS_FROM : 0) |
                                          (op_has(&args->copy) ? WRITES_COPY : 0), .rows = T, .width = W, .x_row = op_row(&o.x),
                                 .grad_x_row = op_row(&o.grad_x), .eps = args->eps};
    const bool eights = W % 16 == 0 && op_fits_rows(&o.x) && op_fits_rows(&o.up_y) && op_fits_rows(&o.grad_x) && op_fits_rows(&o.from) &&
                        op_fits_rows(&o.copy) && args->weight.offset % 8 == 0;
    op_kernel(&call, KERNEL_norm_backward, T, dense_row_traits(eights, W));
    const uint64_t tiles = base_ceil_div(T, call.T0);
    const op_operand partial = op_scratch(&call, DART_F32, tiles, W);
    OP_LAUNCH(&call, &k, tiles, OP_AT(norm_backward, x, &x, k), OP_AT(norm_backward, weight, &o.weight, k),
              OP_AT(norm_backward, rows, &o.rows, k), OP_ROWS(norm_backward, up_y, &o.up_y, k), OP_AT(norm_backward, grad_x, &grad_x, k),
              OP_ROWS(norm_backward, from, &o.from, k), OP_AT(norm_backward, from_rows, &o.from_rows, k),
              OP_ROWS(norm_backward, copy, &o.copy, k), OP_WHOLE(norm_backward, partial, &partial));
    dense_sum(&call, &partial, &o.grad_weight, true);
    return op_end(&call);
}

dart_status dart_gated_norm_backward(dart_stream *stream, const dart_gated_norm_backward_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, I = args->I;
    if (op_begin(&call, stream, "dart_gated_norm_backward") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && I > 0, "T %u, I %u: both must be above 0", T, I);
    OP_REQUIRE(&call, args->eps > 0, "eps %g must be above 0", (double)args->eps);
    const bool sma = op_has(&args->r);
    OP_REQUIRE(&call, op_has(&args->gate) == sma && op_has(&args->grad_r) == sma && op_has(&args->grad_gate) == sma,
               "r, gate, grad_r and grad_gate come together");
    const int optional = sma ? 0 : OP_OPTIONAL;
    const struct { op_operand y, r, gate, z, weight, up_out, grad_y, grad_r, grad_gate, grad_z, grad_weight; } o = {
        .y = {"y", args->y, OP_FLOAT | OP_VIEW, T, I},
        .r = {"r", args->r, OP_FLOAT | OP_VIEW | optional, T, I},
        .gate = {"gate", args->gate, OP_FLOAT | OP_VIEW | optional, T, 1},
        .z = {"z", args->z, OP_FLOAT | OP_VIEW, T, I},
        .weight = {"weight", args->weight, OP_FLOAT, 1, I},
        .up_out = {"up_out", args->up_out, OP_FLOAT | OP_VIEW, T, I},
        .grad_y = {"grad_y", args->grad_y, OP_FLOAT | OP_VIEW, T, I},
        .grad_r = {"grad_r", args->grad_r, OP_FLOAT | OP_VIEW | optional, T, I},
        .grad_gate = {"grad_gate", args->grad_gate, OP_FLOAT | OP_VIEW | optional, T, 1},
        .grad_z = {"grad_z", args->grad_z, OP_FLOAT | OP_VIEW, T, I},
        .grad_weight = {"grad_weight", args->grad_weight, OP_F32, 1, I}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct GatedNormBackwardArgs k = {.flags = sma ? HAS_SMA : 0, .rows = T, .width = I, .eps = args->eps};
    const bool eights = I % 16 == 0 && op_fits_rows(&o.y) && op_fits_rows(&o.r) && op_fits_rows(&o.z) && op_fits_rows(&o.up_out) &&
                        op_fits_rows(&o.grad_y) && op_fits_rows(&o.grad_r) && op_fits_rows(&o.grad_z) && args->weight.offset % 8 == 0;
    op_kernel(&call, KERNEL_gated_norm_backward, T, dense_row_traits(eights, I));
    const uint64_t tiles = base_ceil_div(T, call.T0);
    const op_operand partial = op_scratch(&call, DART_F32, tiles, I);
    OP_LAUNCH(&call, &k, tiles, OP_ROWS(gated_norm_backward, y, &o.y, k), OP_ROWS(gated_norm_backward, r, &o.r, k),
              OP_ROWS(gated_norm_backward, gate, &o.gate, k), OP_ROWS(gated_norm_backward, z, &o.z, k),
              OP_AT(gated_norm_backward, weight, &o.weight, k), OP_ROWS(gated_norm_backward, up_out, &o.up_out, k),
              OP_ROWS(gated_norm_backward, grad_y, &o.grad_y, k), OP_ROWS(gated_norm_backward, grad_r, &o.grad_r, k),
              OP_ROWS(gated_norm_backward, grad_gate, &o.grad_gate, k), OP_ROWS(gated_norm_backward, grad_z, &o.grad_z, k),
              OP_WHOLE(gated_norm_backward, partial, &partial));
    dense_sum(&call, &partial, &o.grad_weight, true);
    return op_end(&call);
}

/* ---- Linear ---- */

/* Elements of a sum that one tile adds up: few enough that there are at least 1,024 tiles of 64 x 64, at least 256, and a multiple of 64 so
 * that parts begin at whole slabs of the rows for matrices. Depends on shapes only, so that the order of the sum does not depend on the
 * device. */
static uint32_t share_of(uint32_t length, uint32_t lines, uint32_t columns)
{
    const uint64_t tiles = base_ceil_div(lines, 64) * base_ceil_div(columns, 64), parts = base_ceil_div(1024, tiles);
    const uint64_t share = base_round_up(base_ceil_div(length, parts), 64);
    return share >= length ? length : share < 256 ? 256 : (uint32_t)share;
}

static bool may_round(const op_operand *up_y, const op_operand *right) { return up_y->of.dtype == DART_F32 && right->of.dtype == DART_BF16; }

/* right: weight or x. Rows for matrices round an up_y of f32, such as the gradient of the residual stream or of logits, to the bf16 of the other
 * operand; f16 might not hold it. Where both sides of weight are long, arithmetic takes longer than memory, and larger tiles or a
 * library pay, once `tiles` of 64 x 64 fill the device: see dense_linear_traits. A library may round twice what it adds to 16 bits.
 * Short rows: in tiles of 64 x 64 the gradient of weight takes 58 us in place of 100 with 128 inputs and 64 outputs, and 129 in place of 160 with 64
 * and 352; so does that of x with 64 inputs, 122 us in place of 134 (262,144 rows of bf16, H100 through Vulkan, November 2026). */
static uint32_t backward_traits(const op_call *call, const op_operand *up_y, const op_operand *right, const op_operand *result, bool adds,
                                uint64_t tiles)
{
    const bool rounds = may_round(up_y, right);
    const bool many = up_y->width >= 256 && right->width >= 256 && tiles >= 8 * (uint64_t)op_wave(call);
    uint32_t traits = rounds ? FITS_BF16 : op_fits_16bit(&up_y->of, &right->of);
    if (right->width % 16 == 0 && op_fits_rows(up_y) && op_fits_rows(right) && (up_y->rows > 1 || up_y->width >= 8)) traits |= FITS_TILES;
    if (right->width <= DENSE_SHORT_INPUTS) traits |= FITS_DENSE_SHORT_INPUTS;
    if (right->width <= 64) traits |= FITS_DENSE_INPUTS64;
    if (many) traits |= FITS_DENSE_MANY_SUMS;
    if (many && !rounds && (!adds || result->of.dtype == DART_F32)) traits |= FITS_DENSE_LIBRARY;
    return traits;
}

/* The part of a sum over `length` elements that a tile of the picked row adds up, where lines x columns sums are made.
 * For rows with large tiles, of which a device holds few, the number of parts decides how full its last round is: 768 x 768 sums of 32,768 elements
 * in share_of's 8 parts are 288 tiles of 128 x 128, where an H100 holds 264. They take as many parts as cost least on a device that holds ABREAST
 * tiles: rounds of tiles, each as long as a part, and for each tile its sums, which go through memory and take about as long as SUMS_COST elements
 * of a part (f32, written and read at 2.5 TB/s, against products at 250 TFLOP/s). Depends on shapes only, too. */
#define ABREAST 256
#define SUMS_COST 2
#define MOST_PARTS 16
static uint32_t part_of(const op_call *call, uint32_t share, uint32_t length, uint32_t lines, uint32_t columns)
{
    if (ROW_IS_LIBRARY(call->row)) return length;
    if ((call->row->fits & FITS_DENSE_MANY_SUMS) == 0) return share; /* not large */
    const uint64_t tiles = base_ceil_div(lines, call->T1) * base_ceil_div(columns, call->T0);
    uint64_t best = UINT64_MAX;
    uint32_t part = length;
    for (uint32_t parts = 1; parts <= MOST_PARTS; parts++) {
        const uint64_t each = base_round_up(base_ceil_div(length, parts), 64);
        const uint64_t cost = base_ceil_div(tiles * parts, ABREAST) * each + SUMS_COST * tiles * parts;
        const uint64_t bytes = sizeof(float) * parts * lines * columns;
        if (cost >= best || (parts > 1 && (each < 256 || bytes > op_binding_limit(call)))) continue;
        best = cost;
        part = each < length ? (uint32_t)each : length;
    }
    return part;
}

/* Tiles of 64 x 64 of the parts of a sum over `length` elements that makes lines x columns. */
static uint64_t tiles_of(uint32_t length, uint32_t lines, uint32_t columns)
{
    return base_ceil_div(lines, 64) * base_ceil_div(columns, 64) * base_ceil_div(length, share_of(length, lines, columns));
}

/* Whether a library would take the product if up_y, which rows for matrices round, were rounded before. Libraries do not round. */
static bool library_waits(op_call *call, kernel_id id, const op_operand *up_y, const op_operand *right, const op_operand *result, bool adds,
                          uint64_t tiles)
{
    op_operand up = *up_y;
    if (!op_has(&result->of) || !may_round(up_y, right)) return false;
    up.of.dtype = DART_BF16;
    op_kernel(call, id, (uint32_t)up.rows, backward_traits(call, &up, right, result, adds, tiles));
    return ROW_IS_LIBRARY(call->row);
}

/* up_y as bf16, in scratch. */
static op_operand rounded(op_call *call, const op_operand *up_y)
{
    const uint32_t rows = (uint32_t)up_y->rows, width = (uint32_t)up_y->width;
    const op_operand lines = op_scratch(call, DART_BF16, rows, base_round_up(width, 8)), up = dense_columns(&lines, 0, rows, 0, width);
    struct ConvertArgs k = {.rows = rows, .width = width};
    op_kernel(call, KERNEL_convert, rows, width % 16 == 0 && op_fits_rows(up_y) && op_fits_rows(&up) ? FITS_TILES : 0);
    OP_LAUNCH(call, &k, base_ceil_div((uint64_t)rows * width, call->T0), OP_ROWS(convert, x, up_y, k), OP_ROWS(convert, y, &up, k));
    return up;
}

/* A weight above the binding limit is taken in slices of outputs, whose products add up, long rows in slices of
 * rows. */
void dense_linear_backward_x(op_call *call, const op_operand *up_y, const op_operand *weight, const op_operand *grad_x, bool add)
{
    const uint32_t T = (uint32_t)up_y->rows, OUT = (uint32_t)weight->rows, IN = (uint32_t)weight->width;
    const uint32_t outputs_step = dense_rows_that_fit(call, weight);
    const uint32_t up_fit = dense_rows_that_fit(call, up_y), grad_fit = dense_rows_that_fit(call, grad_x);
    const uint32_t rows_step = up_fit < grad_fit ? up_fit : grad_fit;
    for (uint32_t t = 0; t < T && op_status(call) == DART_OK; t += rows_step) {
        for (uint32_t out = 0; out < OUT && op_status(call) == DART_OK; out += outputs_step) {
            const uint32_t rows = T - t < rows_step ? T - t : rows_step, outputs = OUT - out < outputs_step ? OUT - out : outputs_step;
            const op_operand w = dense_slice(weight, out, outputs), grad = dense_slice(grad_x, t, rows);
            const op_operand up = dense_columns(up_y, t, rows, out, outputs);
            const bool adds = add || out > 0;
            const uint32_t cut = share_of(outputs, IN, rows);
            op_kernel(call, KERNEL_linear_backward_x, rows, backward_traits(call, &up, &w, &grad, adds, tiles_of(outputs, IN, rows)));
            const uint32_t share = part_of(call, cut, outputs, rows, IN), parts = (uint32_t)base_ceil_div(outputs, share);
            op_operand partial = grad;
            if (parts > 1) partial = op_scratch(call, DART_F32, (uint64_t)parts * rows, IN);
            struct LinearBackwardXArgs k = {.flags = parts == 1 && adds ? IS_ADD : 0, .rows = rows, .share = share, .inputs = IN, .outputs = outputs};
            OP_LAUNCH(call, &k, base_ceil_div(IN, call->T0) * base_ceil_div(rows, call->T1) * parts, OP_ROWS(linear_backward_x, up_y, &up, k),
                      OP_AT(linear_backward_x, weight, &w, k), OP_ROWS(linear_backward_x, grad_x, &partial, k));
            if (parts == 1) continue;
            const op_operand sums = {.name = partial.name, .of = partial.of, .rows = parts, .width = (uint64_t)rows * IN};
            dense_sum(call, &sums, &grad, adds);
        }
    }
}

void dense_linear_backward_weight(op_call *call, const op_operand *up_y, const op_operand *x, const op_operand *grad_weight)
{
    const uint32_t T = (uint32_t)x->rows, IN = (uint32_t)x->width, OUT = (uint32_t)up_y->width;
    const uint32_t step = dense_rows_that_fit(call, grad_weight);
    for (uint32_t out = 0; out < OUT && op_status(call) == DART_OK; out += step) {
        const uint32_t outputs = OUT - out < step ? OUT - out : step;
        const op_operand up = dense_columns(up_y, 0, T, out, outputs), grad = dense_slice(grad_weight, out, outputs);
        const uint32_t cut = share_of(T, IN, outputs);
        op_kernel(call, KERNEL_linear_backward_weight, T, backward_traits(call, &up, x, &grad, true, tiles_of(T, IN, outputs)));
        const uint32_t share = part_of(call, cut, T, outputs, IN), parts = (uint32_t)base_ceil_div(T, share);
        op_operand partial = grad;
        if (parts > 1) partial = op_scratch(call, DART_F32, parts, (uint64_t)outputs * IN);
        struct LinearBackwardWeightArgs k = {.flags = parts == 1 ? IS_ADD : 0, .rows = T, .share = share, .inputs = IN, .outputs = outputs};
        OP_LAUNCH(call, &k, base_ceil_div(IN, call->T0) * base_ceil_div(outputs, call->T1) * parts,
                  OP_ROWS(linear_backward_weight, up_y, &up, k), OP_ROWS(linear_backward_weight, x, x, k),
                  OP_AT(linear_backward_weight, grad_weight, &partial, k));
        if (parts > 1) dense_sum(call, &partial, &grad, true);
    }
}

dart_status dart_linear_backward(dart_stream *stream, const dart_linear_backward_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, IN = args->IN, OUT = args->OUT;
    if (op_begin(&call, stream, "dart_linear_backward") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && IN > 0 && OUT > 0, "T %u, IN %u, OUT %u: all must be above 0", T, IN, OUT);
    OP_REQUIRE(&call, op_has(&args->grad_x) || op_has(&args->grad_weight), "neither grad_x nor grad_weight is there");
    OP_REQUIRE(&call, op_has(&args->weight) || !op_has(&args->grad_x), "grad_x needs weight");
    OP_REQUIRE(&call, op_has(&args->x) || !op_has(&args->grad_weight), "grad_weight needs x");
    const struct { op_operand x, weight, up_y, grad_x, grad_weight; } o = {
        .x = {"x", args->x, OP_FLOAT | OP_VIEW | OP_OPTIONAL, T, IN},
        .weight = {"weight", args->weight, OP_FLOAT | OP_OPTIONAL, OUT, IN},
        .up_y = {"up_y", args->up_y, OP_FLOAT | OP_VIEW, T, OUT},
        .grad_x = {"grad_x", args->grad_x, OP_FLOAT | OP_VIEW | OP_OPTIONAL, T, IN},
        .grad_weight = {"grad_weight", args->grad_weight, OP_F32 | OP_OPTIONAL, OUT, IN}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    const bool waits = library_waits(&call, KERNEL_linear_backward_x, &o.up_y, &o.weight, &o.grad_x, args->add, tiles_of(OUT, IN, T)) ||
                       library_waits(&call, KERNEL_linear_backward_weight, &o.up_y, &o.x, &o.grad_weight, true, tiles_of(T, IN, OUT));
    const bool all = (!op_has(&args->grad_x) || args->weight.dtype == DART_BF16) && (!op_has(&args->grad_weight) || args->x.dtype == DART_BF16);
    const op_operand up = waits && all ? rounded(&call, &o.up_y) : o.up_y;
    if (op_has(&args->grad_x)) dense_linear_backward_x(&call, &up, &o.weight, &o.grad_x, args->add);
    if (op_has(&args->grad_weight)) dense_linear_backward_weight(&call, &up, &o.x, &o.grad_weight);
    return op_end(&call);
}

/* ---- Embedding ---- */

uint64_t dart_embed_plan_elements(uint32_t T, uint32_t V)
{
    const uint64_t whole = T / EMBED_PIECE, last = T < V ? T : V;
    return 2 + (uint64_t)T + 4 * (whole + last) + 3 * whole;
}

/* Tokens of many ids go to places far apart, each of which the processor is told of so many tokens before: 0.75 ms for 262,144 tokens of 8,192 ids
 * in place of 1.35. */
enum { PLAN_AHEAD = 16 };

/* A counting sort of the tokens by id, which keeps their order, then the runs of equal ids cut into pieces. */
dart_status dart_embed_plan(const int32_t *ids, uint32_t T, uint32_t V, int32_t *plan)
{
    if (ids == NULL || plan == NULL || T == 0 || V == 0 || T > INT32_MAX || V > INT32_MAX) return DART_INVALID_ARGUMENT;
    uint32_t *begins = calloc((size_t)V + 1, sizeof *begins);
    if (begins == NULL) return DART_OUT_OF_MEMORY;
    for (uint32_t t = 0; t < T; t++)
        if ((uint32_t)ids[t] < V) begins[ids[t] + 1]++;
    for (uint32_t id = 0; id < V; id++) begins[id + 1] += begins[id];
    int32_t *order = plan + 2, *piece = order + T, *run = piece + 4 * ((uint64_t)T / EMBED_PIECE + (T < V ? T : V));
    int32_t pieces = 0, runs = 0, slots = 0;
    for (uint32_t id = 0; id < V; id++) {
        const uint32_t begin = begins[id], end = begins[id + 1];
        const bool split = end - begin > EMBED_PIECE;
        if (split) {
            *run++ = (int32_t)id;
            *run++ = slots;
            *run++ = (int32_t)base_ceil_div(end - begin, EMBED_PIECE);
            runs++;
        }
        for (uint32_t at = begin; at < end; at += EMBED_PIECE, pieces++) {
            *piece++ = (int32_t)id;
            *piece++ = (int32_t)at;
            *piece++ = (int32_t)(end - at < EMBED_PIECE ? end : at + EMBED_PIECE);
            *piece++ = split ? slots++ : -1;
        }
    }
    for (uint32_t t = 0; t < T; t++) {
        const uint32_t id = (uint32_t)ids[t], soon = t + PLAN_AHEAD < T ? (uint32_t)ids[t + PLAN_AHEAD] : V;
        if (soon < V) base_prefetch(&order[begins[soon]]);
        if (id < V) order[begins[id]++] = (int32_t)t;
    }
    plan[0] = pieces;
    plan[1] = runs;
    free(begins);
    return DART_OK;
}

dart_status dart_embed_backward(dart_stream *stream, const dart_embed_backward_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, V = args->V, W = args->W;
    if (op_begin(&call, stream, "dart_embed_backward") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && V > 0 && W > 0 && V <= INT32_MAX && T <= INT32_MAX, "T %u, V %u, W %u: all must be above 0, T and V below 2^31",
               T, V, W);
    const struct { op_operand plan, up_y, grad_weight; } o = {
        .plan = {"plan", args->plan, OP_I32, 1, dart_embed_plan_elements(T, V)},
        .up_y = {"up_y", args->up_y, OP_FLOAT | OP_VIEW, T, W},
        .grad_weight = {"grad_weight", args->grad_weight, OP_F32, V, W}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    const uint32_t whole = T / EMBED_PIECE, pieces = whole + (T < V ? T : V);
    /* A run that is cut has a piece of EMBED_PIECE tokens and at most one shorter one behind its last such piece. */
    const op_operand partial = op_scratch(&call, DART_F32, whole > 0 ? 2 * (uint64_t)whole : 1, W);
    struct EmbedBackwardArgs k = {.rows = T, .width = W, .vocabulary = V};
    const uint32_t traits = W % 16 == 0 && op_fits_rows(&o.up_y) && args->grad_weight.offset % 8 == 0 ? FITS_TILES : 0;
    op_kernel(&call, KERNEL_embed_backward, T, traits);
    OP_LAUNCH(&call, &k, base_ceil_div(W, call.T0) * pieces, OP_AT(embed_backward, plan, &o.plan, k), OP_ROWS(embed_backward, up_y, &o.up_y, k),
              OP_AT(embed_backward, grad_weight, &o.grad_weight, k), OP_WHOLE(embed_backward, partial, &partial));
    struct EmbedBackwardSumArgs sum = {.rows = T, .width = W, .vocabulary = V};
    op_kernel(&call, KERNEL_embed_backward_sum, T, traits);
    OP_LAUNCH(&call, &sum, base_ceil_div(W, call.T0) * whole, OP_AT(embed_backward_sum, plan, &o.plan, sum),
              OP_WHOLE(embed_backward_sum, partial, &partial), OP_AT(embed_backward_sum, grad_weight, &o.grad_weight, sum));
    return op_end(&call);
}
