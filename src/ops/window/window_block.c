/* Launches of a step through windows that a block of the model makes of several: the product into the window, and the way back. */
#include "ops/arguments.h"
#include "window.h"

enum { TAPS = 4 };

typedef struct project_operands {
    op_operand x, norm, weight, y, conv, conv_weight, conv_bias, tail, seq, a_log, dt_bias, rows, steps;
} project_operands;

static project_operands operands_of(const window_project_args *a)
{
    const uint64_t B = a->B, slots = B * WINDOW;
    return (project_operands){
        .x = {"x", a->x, OP_F32 | OP_VIEW, B, a->W},
        .norm = {"norm", a->norm, OP_FLOAT, 1, a->W},
        .weight = {"weight", a->weight, OP_FLOAT, a->outputs, a->W},
        .y = {"y", a->y, OP_FLOAT | OP_VIEW, B, a->outputs},
        .conv = {"conv", a->conv, OP_FLOAT | OP_VIEW, B, a->C},
        .conv_weight = {"conv_weight", a->conv_weight, OP_FLOAT, a->C, TAPS},
        .conv_bias = {"conv_bias", a->conv_bias, OP_FLOAT | OP_OPTIONAL, 1, a->C},
        .tail = {"tail", a->tail, OP_FLOAT, B * (TAPS - 1), a->C},
        .seq = {"seq", a->seq, OP_I32, B, 2},
        .a_log = {"a_log", a->a_log, OP_FLOAT | OP_OPTIONAL, 1, a->H},
        .dt_bias = {"dt_bias", a->dt_bias, OP_FLOAT | OP_OPTIONAL, 1, a->H},
        .rows = {"rows", a->rows, OP_FLOAT | OP_OPTIONAL, slots, a->kept},
        .steps = {"steps", a->steps, OP_F32 | OP_OPTIONAL | OP_ALIGNED, slots, 2 * (uint64_t)a->H}};
}

/* Rows of words of four elements of `dtype`. */
static bool lies_in_fours(const op_operand *operand, dart_dtype dtype)
{
    return !op_has(&operand->of) || (operand->of.dtype == dtype && (operand->of.offset | op_row(operand)) % 4 == 0);
}

static uint32_t project_traits(const window_project_args *a)
{
    const project_operands o = operands_of(a);
    const dart_dtype act = a->y.dtype;
    const bool sizes = a->W % 16 == 0 && (a->outputs | a->first | a->C | a->H | a->kept) % 4 == 0;
    const bool words = op_fits_rows(&o.x) && a->norm.offset % 8 == 0 && op_fits_rows(&o.weight) && a->weight.dtype == DART_BF16;
    const bool fours = lies_in_fours(&o.y, DART_BF16) && lies_in_fours(&o.conv, act) && lies_in_fours(&o.tail, act) && lies_in_fours(&o.rows, act) &&
                       lies_in_fours(&o.conv_weight, DART_F32) && lies_in_fours(&o.conv_bias, DART_F32);
    return a->K == TAPS && sizes && words && fours ? FITS_WINDOW_PROJECT : 0;
}

bool window_project_fits(const dart_device *device, const window_project_args *args)
{
    return op_row_on(device, KERNEL_window_project, args->B, project_traits(args)) != NULL;
}

dart_status window_project(dart_stream *stream, const window_project_args *args)
{
    op_call call;
    const window_project_args *a = args;
    if (op_begin(&call, stream, "window_project") != DART_OK) return op_status(&call);
    const project_operands o = operands_of(a);
    if (!OP_CHECK(&call, o)) return op_status(&call);
    const uint32_t flags = HAS_SEQ | (op_has(&a->conv_bias) ? HAS_BIAS : 0) | (op_has(&a->dt_bias) ? HAS_STEPS : 0);
    struct WindowProjectArgs k = {.flags = flags, .rows = a->B, .inputs = a->W, .outputs = a->outputs, .first = a->first, .C = a->C, .H = a->H,
                                  .S = a->S, .kept = a->kept, .eps = a->eps, .dt_min = a->dt_min, .dt_max = ops_most_step(a->dt_max)};
    op_kernel(&call, KERNEL_window_project, a->B, project_traits(a));
    OP_LAUNCH(&call, &k, base_ceil_div(a->outputs, call.T0) * base_ceil_div(a->B, call.T1), OP_ROWS(window_project, x, &o.x, k),
              OP_AT(window_project, norm, &o.norm, k), OP_AT(window_project, weight, &o.weight, k), OP_ROWS(window_project, y, &o.y, k),
              OP_ROWS(window_project, conv, &o.conv, k), OP_AT(window_project, taps, &o.conv_weight, k), OP_AT(window_project, bias, &o.conv_bias, k),
              OP_AT(window_project, tail, &o.tail, k), OP_AT(window_project, seq, &o.seq, k), OP_AT(window_project, a_log, &o.a_log, k),
              OP_AT(window_project, dt_bias, &o.dt_bias, k), OP_AT(window_project, rows, &o.rows, k), OP_WHOLE(window_project, steps, &o.steps));
    return op_end(&call);
}

/* ---- The way back ---- */

typedef struct back_operands {
    op_operand x, norm, weight, y, seq;
} back_operands;

static back_operands back_of(const window_back_args *a)
{
    return (back_operands){.x = {"x", a->x, OP_FLOAT | OP_VIEW, a->B, a->I},
                           .norm = {"norm", a->norm, OP_FLOAT, 1, a->I},
                           .weight = {"weight", a->weight, OP_FLOAT, a->W, a->I},
                           .y = {"y", a->y, OP_F32 | OP_VIEW, a->B, a->W},
                           .seq = {"seq", a->seq, OP_I32, a->B, 2}};
}

static uint32_t back_traits(const window_back_args *a)
{
    const back_operands o = back_of(a);
    const bool words = a->I % 16 == 0 && op_fits_rows(&o.x) && a->norm.offset % 8 == 0 && op_fits_rows(&o.weight);
    return words && op_fits_16bit(&a->x, &a->weight) == FITS_BF16 && a->W % 4 == 0 && lies_in_fours(&o.y, DART_F32) ? FITS_WINDOW_BACK : 0;
}

bool window_back_fits(const dart_device *device, const window_back_args *args)
{
    return op_row_on(device, KERNEL_window_back, args->B, back_traits(args)) != NULL;
}

dart_status window_back(dart_stream *stream, const window_back_args *args)
{
    op_call call;
    const window_back_args *a = args;
    if (op_begin(&call, stream, "window_back") != DART_OK) return op_status(&call);
    const back_operands o = back_of(a);
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct WindowBackArgs k = {.rows = a->B, .inputs = a->I, .outputs = a->W, .eps = a->eps};
    op_kernel(&call, KERNEL_window_back, a->B, back_traits(a));
    OP_LAUNCH(&call, &k, base_ceil_div(a->W, call.T0) * base_ceil_div(a->B, call.T1), OP_ROWS(window_back, x, &o.x, k),
              OP_AT(window_back, norm, &o.norm, k), OP_AT(window_back, weight, &o.weight, k), OP_ROWS(window_back, y, &o.y, k),
              OP_AT(window_back, seq, &o.seq, k));
    return op_end(&call);
}
