/* Steps of many sequences, whose newest tokens wait in windows. */
#include "ops/arguments.h"
#include "ops/places.h"
#include "window.h"

/* Workgroups of window_folds for each multiprocessor. Of 64 sequences of dart-130m on an H200, which has room for two of them: 92,000 tokens/s,
 * with three 91,400, with eight 91,800; three of six heads 91,200, sixteen of one head 90,500. */
enum { FOLDS_SIDE_BY_SIDE = 4 };

typedef struct window_plan {
    op_call call;
    const dart_window_args *a;
    uint32_t flags;
    uint32_t I, queries, C, kept; /* widths: H P, G N, [x|b|c], [x|b] */
    uint64_t state;               /* H N P */
    struct {
        op_operand x, dt, conv_weight, conv_bias, tail, a_log, dt_bias, d, seq, conv, y, h, open, open_decay, rows, steps, hin, hin_scale;
    } o;
} window_plan;

uint32_t dart_window_tokens(void) { return WINDOW; }

/* A run whose memories are filled when chunks close. */
static ops_run run_of(const window_plan *p, const dart_memories *run)
{
    const dart_window_args *a = p->a;
    return ops_run_of(run, "closing.dh", "closing.scale", (uint64_t)a->B * run->M, a->H, a->N, a->P);
}

static dart_status check(window_plan *p)
{
    op_call *call = &p->call;
    const dart_window_args *a = p->a;
    OP_REQUIRE(call, a->B > 0 && a->H > 0 && a->G > 0 && a->S > 0, "B %u, H %u, G %u, S %u: all must be above 0", a->B, a->H,
        a->G, a->S);
    OP_REQUIRE(call, a->N > 0 && a->N <= MAX_STATE && a->P > 0 && a->P <= MAX_STATE && a->N % 8 == 0 && a->P % 8 == 0,
               "N %u, P %u must be multiples of 8 up to %d", a->N, a->P, MAX_STATE);
    if (ops_check_sizes(call, a->H, a->G, a->N, a->P, a->S) != DART_OK) return op_status(call);
    if (ops_check_taps(call, a->K) != DART_OK) return op_status(call);
    OP_REQUIRE(call, (uint64_t)a->H * a->P <= UINT32_MAX / 8, "H %u x P %u is too wide", a->H, a->P);
    OP_REQUIRE(call, a->eps > 0, "eps %g must be above 0", (double)a->eps);
    if (ops_check_steps(call, a->dt_min, a->dt_max) != DART_OK) return op_status(call);
    OP_REQUIRE(call, a->mode <= DART_WINDOW_JOIN, "mode %d is unknown", (int)a->mode);
    OP_REQUIRE(call, op_has(&a->open) == op_has(&a->open_decay), "open and open_decay come together");
    OP_REQUIRE(call, a->closing_count == 0 || (a->closing != NULL && op_has(&a->open)),
        "closing needs a list of runs and open");
    p->I = a->H * a->P;
    p->queries = a->G * a->N;
    p->C = p->I + 2 * p->queries;
    p->kept = p->I + p->queries;
    p->state = (uint64_t)a->H * a->N * a->P;
    const uint64_t B = a->B, slots = B * WINDOW;
    p->o.x = (op_operand){"x", a->x, OP_FLOAT | OP_VIEW, B, p->C};
    p->o.dt = (op_operand){"dt", a->dt, OP_FLOAT | OP_VIEW, B, a->H};
    p->o.conv_weight = (op_operand){"conv_weight", a->conv_weight, OP_FLOAT, p->C, a->K};
    p->o.conv_bias = (op_operand){"conv_bias", a->conv_bias, OP_FLOAT | OP_OPTIONAL, 1, p->C};
    p->o.tail = (op_operand){"tail", a->tail, OP_FLOAT, B * (a->K - 1), p->C};
    p->o.a_log = (op_operand){"a_log", a->a_log, OP_FLOAT, 1, a->H};
    p->o.dt_bias = (op_operand){"dt_bias", a->dt_bias, OP_FLOAT | OP_OPTIONAL, 1, a->H};
    p->o.d = (op_operand){"d", a->d, OP_FLOAT | OP_OPTIONAL, 1, a->H};
    p->o.seq = (op_operand){"seq", a->seq, OP_I32, B, 2};
    p->o.conv = (op_operand){"conv", a->conv, OP_FLOAT | OP_VIEW, B, p->C};
    p->o.y = (op_operand){"y", a->y, OP_FLOAT | OP_VIEW, B, p->I};
    p->o.h = (op_operand){"h", a->h, OP_F32 | OP_ALIGNED, B, p->state};
    p->o.open = (op_operand){"open", a->open, OP_F32 | OP_OPTIONAL | OP_ALIGNED, B, p->state};
    p->o.open_decay = (op_operand){"open_decay", a->open_decay, OP_F32 | OP_OPTIONAL | OP_ALIGNED, B, a->H};
    p->o.rows = (op_operand){"rows", a->rows, OP_FLOAT | OP_ALIGNED, slots, p->kept};
    p->o.steps = (op_operand){"steps", a->steps, OP_F32 | OP_ALIGNED, slots, 2 * (uint64_t)a->H};
    p->o.hin = (op_operand){"hin", a->hin, (op_has(&a->hin_scale) ? OP_FLOAT : OP_F32) | OP_ALIGNED, B, p->state};
    p->o.hin_scale = (op_operand){"hin_scale", a->hin_scale, OP_F32 | OP_OPTIONAL, B, (uint64_t)a->H * a->N};
    OP_CHECK(call, p->o);
    for (uint32_t i = 0; i < a->closing_count; i++) {
        const dart_memories *run = &a->closing[i];
        OP_REQUIRE(call, run->M > 0 && run->dh.offset % 8 == 0,
                   "run %u has no memories, or does not start at a multiple of 8 elements", i);
        const ops_run o = run_of(p, run);
        OP_CHECK(call, o);
    }
    p->flags = HAS_SEQ | (op_has(&a->hin_scale) ? HAS_HIN_SCALE : 0) | (op_has(&a->open) ? HAS_OPEN : 0);
    return op_status(call);
}

static uint32_t traits_of(const dart_window_args *a, dart_dtype to)
{
    const bool is_16bit = a->rows.dtype != DART_F32 && a->hin.dtype == a->rows.dtype && to != DART_F32;
    const uint32_t types = !is_16bit ? 0 : a->rows.dtype == DART_BF16 ? FITS_16BIT | FITS_BF16 : FITS_16BIT;
    return types | (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0);
}

bool window_pays(const dart_device *device, const dart_window_args *args)
{
    const kernel_row *row = op_row_on(device, KERNEL_window_output, args->B, traits_of(args, args->rows.dtype));
    return row != NULL && !kernel_is_slower(row);
}

static dart_status begin(window_plan *p, dart_stream *stream, const dart_window_args *args, const char *name)
{
    *p = (window_plan){.a = args};
    return op_begin(&p->call, stream, name) == DART_OK ? check(p) : op_status(&p->call);
}

dart_status dart_window_append(dart_stream *stream, const dart_window_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    window_plan p;
    if (begin(&p, stream, args, "dart_window_append") != DART_OK) return op_status(&p.call);
    op_call *call = &p.call;
    const dart_window_args *a = args;
    const uint32_t flags = p.flags | (op_has(&a->conv_bias) ? HAS_BIAS : 0) | (op_has(&a->dt_bias) ? HAS_STEPS : 0);
    struct WindowAppendArgs k = {.flags = flags, .B = a->B, .H = a->H, .C = p.C, .K = a->K, .S = a->S, .kept = p.kept,
                                 .dt_min = a->dt_min, .dt_max = ops_most_step(a->dt_max)};
    op_kernel(call, KERNEL_window_append, a->B, 0);
    OP_LAUNCH(call, &k, base_ceil_div((uint64_t)p.C + a->H, call->T0) * a->B, OP_ROWS(window_append, x, &p.o.x, k),
              OP_ROWS(window_append, dt, &p.o.dt, k), OP_AT(window_append, weight, &p.o.conv_weight, k),
              OP_AT(window_append, bias, &p.o.conv_bias, k), OP_AT(window_append, tail, &p.o.tail, k),
              OP_AT(window_append, seq, &p.o.seq, k), OP_AT(window_append, a_log, &p.o.a_log, k),
              OP_AT(window_append, dt_bias, &p.o.dt_bias, k), OP_ROWS(window_append, y, &p.o.conv, k),
              OP_AT(window_append, rows, &p.o.rows, k), OP_WHOLE(window_append, steps, &p.o.steps));
    return op_end(call);
}

static op_operand reads_of(const window_plan *p)
{
    const dart_window_args *a = p->a;
    return (op_operand){.of = {.buffer = a->conv.buffer, .dtype = a->conv.dtype, .offset = a->conv.offset + p->kept, .row = op_row(&p->o.conv)},
                        .rows = a->B, .width = p->queries};
}

dart_status dart_window_output(dart_stream *stream, const dart_window_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    window_plan p;
    if (begin(&p, stream, args, "dart_window_output") != DART_OK) return op_status(&p.call);
    op_call *call = &p.call;
    const dart_window_args *a = args;
    const op_operand c = reads_of(&p);
    struct WindowOutputArgs k = {.flags = p.flags | (op_has(&a->d) ? HAS_D : 0), .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P,
                                 .S = a->S};
    op_kernel(call, KERNEL_window_output, a->B, traits_of(a, a->rows.dtype));
    OP_LAUNCH(call, &k, base_ceil_div(a->H / a->G, call->T0) * a->G * a->B, OP_AT(window_output, rows, &p.o.rows, k),
              OP_WHOLE(window_output, steps, &p.o.steps), OP_ROWS(window_output, c, &c, k), OP_AT(window_output, hin, &p.o.hin, k),
              OP_AT(window_output, hin_scale, &p.o.hin_scale, k), OP_AT(window_output, d, &p.o.d, k),
              OP_AT(window_output, seq, &p.o.seq, k), OP_ROWS(window_output, y, &p.o.y, k));
    return op_end(call);
}

bool window_gated_fits(const dart_device *device, const dart_window_args *args)
{
    return op_row_on(device, KERNEL_window_gated, args->B, traits_of(args, args->rows.dtype)) != NULL;
}

dart_status window_gated(dart_stream *stream, const dart_window_args *args, dart_tensor z)
{
    window_plan p;
    if (begin(&p, stream, args, "window_gated") != DART_OK) return op_status(&p.call);
    op_call *call = &p.call;
    const dart_window_args *a = args;
    const op_operand c = reads_of(&p), gates = {"z", z, OP_FLOAT | OP_VIEW, a->B, p.I};
    if (!op_check(call, &gates, 1)) return op_status(call);
    struct WindowGatedArgs k = {.flags = p.flags | (op_has(&a->d) ? HAS_D : 0), .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S};
    op_kernel(call, KERNEL_window_gated, a->B, traits_of(a, a->rows.dtype));
    OP_LAUNCH(call, &k, base_ceil_div(a->H / a->G, call->T0) * a->G * a->B, OP_AT(window_gated, rows, &p.o.rows, k),
              OP_WHOLE(window_gated, steps, &p.o.steps), OP_ROWS(window_gated, c, &c, k), OP_AT(window_gated, hin, &p.o.hin, k),
              OP_AT(window_gated, hin_scale, &p.o.hin_scale, k), OP_AT(window_gated, d, &p.o.d, k), OP_AT(window_gated, seq, &p.o.seq, k),
              OP_ROWS(window_gated, z, &gates, k), OP_ROWS(window_gated, y, &p.o.y, k));
    return op_end(call);
}

/* run NULL: nothing closes. */
static void fold(window_plan *p, const dart_memories *run, uint32_t flags)
{
    op_call *call = &p->call;
    const dart_window_args *a = p->a;
    struct WindowFoldArgs k = {.flags = p->flags | flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .eps = a->eps};
    ops_run to = {0};
    if (run != NULL) {
        k.first = run->first;
        k.count = k.capacity = run->M;
        to = run_of(p, run);
    }
    op_kernel(call, KERNEL_window_fold, a->B, traits_of(a, run != NULL ? run->dh.dtype : a->rows.dtype));
    OP_LAUNCH(call, &k, base_ceil_div(a->H, call->T0) * a->B, OP_AT(window_fold, rows, &p->o.rows, k),
              OP_WHOLE(window_fold, steps, &p->o.steps), OP_AT(window_fold, seq, &p->o.seq, k), OP_WHOLE(window_fold, h, &p->o.h),
              OP_WHOLE(window_fold, open, &p->o.open), OP_WHOLE(window_fold, open_decay, &p->o.open_decay),
              OP_AT(window_fold, hin, &p->o.hin, k), OP_AT(window_fold, hin_scale, &p->o.hin_scale, k), OP_AT(window_fold, to, &to.dh, k),
              OP_AT(window_fold, scale, &to.scale, k));
}

static const uint32_t mode_flags[] = {[DART_WINDOW_STEP] = 0, [DART_WINDOW_OPEN] = IS_EVERY | IS_FRESH, [DART_WINDOW_CLOSE] = IS_EVERY,
                                      [DART_WINDOW_JOIN] = IS_FRESH};

/* ---- Folds of several layers in one launch ---- */

static bool is_like(const dart_window_args *a, const dart_window_args *first)
{
    if (a->B != first->B || a->H != first->H || a->G != first->G || a->S != first->S || a->mode != first->mode || a->eps != first->eps) return false;
    if (a->seq.buffer != first->seq.buffer || a->seq.offset != first->seq.offset) return false;
    if (op_has(&a->open) != op_has(&first->open) || a->closing_count != first->closing_count) return false;
    for (uint32_t i = 0; i < a->closing_count; i++)
        if (a->closing[i].first != first->closing[i].first || a->closing[i].M != first->closing[i].M) return false;
    return true;
}

/* The tensors of a layer by their places. */
typedef struct fold_tensors { const dart_tensor *of[FOLD_CLOSING]; } fold_tensors;
static fold_tensors tensors_of(const dart_window_args *a)
{
    return (fold_tensors){.of = {[FOLD_ROWS] = &a->rows, [FOLD_STEPS] = &a->steps, [FOLD_H] = &a->h, [FOLD_OPEN] = &a->open,
                                 [FOLD_OPEN_DECAY] = &a->open_decay, [FOLD_HIN] = &a->hin, [FOLD_HIN_SCALE] = &a->hin_scale}};
}

static bool has_addresses(const op_call *call, const dart_window_args *a)
{
    const fold_tensors tensors = tensors_of(a);
    bool all = true;
    for (uint32_t i = 0; i < FOLD_CLOSING; i++) {
        const op_operand operand = {.of = *tensors.of[i]};
        all = all && (!op_has(tensors.of[i]) || op_address(call, &operand) != 0);
    }
    for (uint32_t i = 0; i < a->closing_count; i++) {
        const op_operand dh = {.of = a->closing[i].dh}, scale = {.of = a->closing[i].scale};
        all = all && op_address(call, &dh) != 0 && op_address(call, &scale) != 0;
    }
    return all;
}

/* What is the same of all of them, 0 where they do not go in one launch. */
static uint32_t folds_traits(const op_call *call, const dart_window_args *layers, uint32_t count)
{
    uint32_t traits = count > 0 && call->stream->device->backend->memory_address != NULL ? UINT32_MAX : 0;
    for (uint32_t i = 0; i < count; i++) {
        const dart_window_args *a = &layers[i];
        const bool goes = op_has(&a->hin_scale) && a->closing_count <= (FOLD_PLACES - FOLD_CLOSING) / 2 && is_like(a, &layers[0]);
        traits &= goes && has_addresses(call, a) ? traits_of(a, a->rows.dtype) : 0;
        for (uint32_t k = 0; k < a->closing_count && traits != 0; k++)
            if (a->closing[k].dh.dtype != a->rows.dtype) traits = 0;
    }
    return traits != 0 && op_prefers(call, KERNEL_window_folds, KERNEL_window_fold, layers[0].B, traits) ? traits : 0;
}

bool window_folds_fit(const dart_stream *stream, const dart_window_args *layers, uint32_t count)
{
    const op_call call = {.stream = (dart_stream *)(uintptr_t)stream};
    return folds_traits(&call, layers, count) != 0;
}

static void put_fold(ops_places *places, uint32_t layer, const dart_window_args *a)
{
    const fold_tensors tensors = tensors_of(a);
    for (uint32_t i = 0; i < FOLD_CLOSING; i++) ops_places_put(places, layer, i, tensors.of[i]);
    ops_places_put_runs(places, layer, FOLD_CLOSING, a->closing, a->closing_count);
    ops_places_fill(places, layer, &a->h, 0);
}

/* p: of the first layer. */
static void fold_together(window_plan *p, const dart_window_args *layers, uint32_t count, uint32_t traits)
{
    op_call *call = &p->call;
    const dart_window_args *a = p->a;
    struct WindowFoldsArgs k = {.flags = p->flags | mode_flags[a->mode], .layers = count, .B = a->B, .H = a->H,
                                .G = a->G, .S = a->S, .closing = a->closing_count, .eps = a->eps};
    ops_places table;
    op_kernel(call, KERNEL_window_folds, a->B, traits);
    if (!ops_places_begin(&table, call, FOLD_RUNS, FOLD_PLACES, count)) return;
    ops_places_sizes(&table, 0, a->closing, a->closing_count);
    for (uint32_t i = 0; i < count; i++) put_fold(&table, i, &layers[i]);
    const op_operand places = ops_places_end(&table);
    const uint64_t most = (uint64_t)count * a->B * a->H, together = FOLDS_SIDE_BY_SIDE * (uint64_t)op_multiprocessors(call);
    OP_LAUNCH(call, &k, base_smaller(most, together), OP_AT(window_folds, seq, &p->o.seq, k), OP_WHOLE(window_folds, places, &places));
}

dart_status window_folds(dart_stream *stream, const dart_window_args *layers, uint32_t count)
{
    window_plan p;
    for (uint32_t i = count; i > 0; i--)
        if (begin(&p, stream, &layers[i - 1], "dart_window_fold") != DART_OK) return op_status(&p.call);
    fold_together(&p, layers, count, folds_traits(&p.call, layers, count));
    return op_end(&p.call);
}

dart_status dart_window_fold(dart_stream *stream, const dart_window_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    window_plan p;
    if (begin(&p, stream, args, "dart_window_fold") != DART_OK) return op_status(&p.call);
    const uint32_t traits = folds_traits(&p.call, args, 1);
    if (traits != 0) {
        fold_together(&p, args, 1, traits);
        return op_end(&p.call);
    }
    const bool closes = args->mode == DART_WINDOW_STEP && args->closing_count > 0;
    fold(&p, closes ? &args->closing[0] : NULL, mode_flags[args->mode]);
    for (uint32_t i = 1; closes && i < args->closing_count; i++) fold(&p, &args->closing[i], IS_LATER);
    return op_end(&p.call);
}
