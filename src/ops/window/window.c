/* Steps of many sequences, whose newest tokens wait in windows. */
#include "runtime/stream.h"

#include <float.h>

enum { MAX_TAPS = 8 };

typedef struct window_plan {
    op_call call;
    const dart_window_args *a;
    uint32_t flags;
    uint32_t I, queries, C, kept; /* widths: H P, G N, [x|b|c], [x|b] */
    uint64_t state;               /* H N P */
} window_plan;

uint32_t dart_window_tokens(void) { return WINDOW; }

static dart_status check(window_plan *p)
{
    op_call *call = &p->call;
    const dart_window_args *a = p->a;
    OP_REQUIRE(call, a->B > 0 && a->H > 0 && a->G > 0 && a->S > 0, "B %u, H %u, G %u, S %u: all must be above 0", a->B, a->H,
        a->G, a->S);
    OP_REQUIRE(call, a->H % a->G == 0, "H %u is not a multiple of G %u", a->H, a->G);
    OP_REQUIRE(call, a->N > 0 && a->N <= MAX_STATE && a->P > 0 && a->P <= MAX_STATE && a->N % 8 == 0 && a->P % 8 == 0,
               "N %u, P %u must be multiples of 8 up to %d", a->N, a->P, MAX_STATE);
    OP_REQUIRE(call, a->K >= 2 && a->K <= MAX_TAPS, "K %u must be 2 to %d", a->K, MAX_TAPS);
    OP_REQUIRE(call, a->S <= 1u << 30, "S %u must be at most 2^30", a->S);
    OP_REQUIRE(call, (uint64_t)a->H * a->P <= UINT32_MAX / 8, "H %u x P %u is too wide", a->H, a->P);
    OP_REQUIRE(call, a->eps > 0, "eps %g must be above 0", (double)a->eps);
    OP_REQUIRE(call, a->dt_min >= 0 && a->dt_max >= 0 && (a->dt_max == 0 || a->dt_max >= a->dt_min), "step limits %g to %g",
               (double)a->dt_min, (double)a->dt_max);
    OP_REQUIRE(call, a->mode <= DART_WINDOW_CLOSE, "mode %d is unknown", (int)a->mode);
    OP_REQUIRE(call, op_has(&a->open) == op_has(&a->open_decay), "open and open_decay come together");
    OP_REQUIRE(call, a->closing_count == 0 || (a->closing != NULL && op_has(&a->open)),
        "closing needs a list of runs and open");
    p->I = a->H * a->P;
    p->queries = a->G * a->N;
    p->C = p->I + 2 * p->queries;
    p->kept = p->I + p->queries;
    p->state = (uint64_t)a->H * a->N * a->P;
    const uint64_t B = a->B, slots = B * WINDOW;
    op_check(call, "x", &a->x, OP_FLOAT | OP_VIEW, B, p->C);
    op_check(call, "dt", &a->dt, OP_FLOAT | OP_VIEW, B, a->H);
    op_check(call, "conv_weight", &a->conv_weight, OP_FLOAT, p->C, a->K);
    op_check(call, "conv_bias", &a->conv_bias, OP_FLOAT | OP_OPTIONAL, 1, p->C);
    op_check(call, "tail", &a->tail, OP_FLOAT, B * (a->K - 1), p->C);
    op_check(call, "a_log", &a->a_log, OP_FLOAT, 1, a->H);
    op_check(call, "dt_bias", &a->dt_bias, OP_FLOAT | OP_OPTIONAL, 1, a->H);
    op_check(call, "d", &a->d, OP_FLOAT | OP_OPTIONAL, 1, a->H);
    op_check(call, "seq", &a->seq, OP_I32, B, 2);
    op_check(call, "conv", &a->conv, OP_FLOAT | OP_VIEW, B, p->C);
    op_check(call, "y", &a->y, OP_FLOAT | OP_VIEW, B, p->I);
    op_check(call, "h", &a->h, OP_F32 | OP_ALIGNED, B, p->state);
    op_check(call, "open", &a->open, OP_F32 | OP_OPTIONAL | OP_ALIGNED, B, p->state);
    op_check(call, "open_decay", &a->open_decay, OP_F32 | OP_OPTIONAL | OP_ALIGNED, B, a->H);
    op_check(call, "rows", &a->rows, OP_FLOAT | OP_ALIGNED, slots, p->kept);
    op_check(call, "steps", &a->steps, OP_F32 | OP_ALIGNED, slots, 2 * (uint64_t)a->H);
    op_check(call, "hin", &a->hin, (op_has(&a->hin_scale) ? OP_FLOAT : OP_F32) | OP_ALIGNED, B, p->state);
    op_check(call, "hin_scale", &a->hin_scale, OP_F32 | OP_OPTIONAL, B, (uint64_t)a->H * a->N);
    for (uint32_t i = 0; i < a->closing_count; i++) {
        const dart_memories *run = &a->closing[i];
        OP_REQUIRE(call, run->M > 0 && run->dh.offset % 8 == 0,
                   "run %u has no memories, or does not start at a multiple of 8 elements", i);
        op_check(call, "closing.dh", &run->dh, OP_FLOAT, B * run->M, p->state);
        op_check(call, "closing.scale", &run->scale, OP_F32, B * run->M, (uint64_t)a->H * a->N);
    }
    p->flags = HAS_SEQ | (op_has(&a->hin_scale) ? HAS_HIN_SCALE : 0) | (op_has(&a->open) ? HAS_OPEN : 0);
    return op_status(call);
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
    const uint64_t slots = (uint64_t)a->B * WINDOW;
    const uint32_t flags = p.flags | (op_has(&a->conv_bias) ? HAS_BIAS : 0) | (op_has(&a->dt_bias) ? HAS_STEPS : 0);
    struct WindowAppendArgs k = {.flags = flags, .B = a->B, .H = a->H, .C = p.C, .K = a->K, .S = a->S, .kept = p.kept,
                                 .x_row = op_row(&a->x, p.C), .dt_row = op_row(&a->dt, a->H), .y_row = op_row(&a->conv, p.C),
                                     .dt_min = a->dt_min,
                                 .dt_max = a->dt_max == 0 || a->dt_max > FLT_MAX ? FLT_MAX : a->dt_max};
    op_kernel(call, KERNEL_window_append, a->B, 0);
    k.x_at = op_bind_rows(call, BINDING_window_append_x, &a->x, a->B, p.C);
    k.dt_at = op_bind_rows(call, BINDING_window_append_dt, &a->dt, a->B, a->H);
    k.weight_at = op_bind(call, BINDING_window_append_weight, &a->conv_weight, (uint64_t)p.C * a->K);
    k.bias_at = op_bind(call, BINDING_window_append_bias, &a->conv_bias, p.C);
    k.tail_at = op_bind(call, BINDING_window_append_tail, &a->tail, (uint64_t)a->B * (a->K - 1) * p.C);
    k.seq_at = op_bind(call, BINDING_window_append_seq, &a->seq, 2 * (uint64_t)a->B);
    k.a_log_at = op_bind(call, BINDING_window_append_a_log, &a->a_log, a->H);
    k.dt_bias_at = op_bind(call, BINDING_window_append_dt_bias, &a->dt_bias, a->H);
    k.y_at = op_bind_rows(call, BINDING_window_append_y, &a->conv, a->B, p.C);
    k.rows_at = op_bind(call, BINDING_window_append_rows, &a->rows, slots * p.kept);
    op_bind(call, BINDING_window_append_steps, &a->steps, slots * 2 * a->H);
    op_launch(call, &k, base_ceil_div((uint64_t)p.C + a->H, call->row->T0) * a->B);
    return op_end(call);
}

dart_status dart_window_output(dart_stream *stream, const dart_window_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    window_plan p;
    if (begin(&p, stream, args, "dart_window_output") != DART_OK) return op_status(&p.call);
    op_call *call = &p.call;
    const dart_window_args *a = args;
    const uint64_t slots = (uint64_t)a->B * WINDOW;
    dart_tensor c = a->conv;
    c.offset += p.kept;
    c.row = op_row(&a->conv, p.C);
    struct WindowOutputArgs k = {.flags = p.flags | (op_has(&a->d) ? HAS_D : 0), .B = a->B, .H = a->H, .G = a->G, .N = a->N,
        .P = a->P, .S = a->S,
                                 .c_row = op_row(&c, p.C), .y_row = op_row(&a->y, p.I)};
    op_kernel(call, KERNEL_window_output, a->B, a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0);
    k.rows_at = op_bind(call, BINDING_window_output_rows, &a->rows, slots * p.kept);
    op_bind(call, BINDING_window_output_steps, &a->steps, slots * 2 * a->H);
    k.c_at = op_bind_rows(call, BINDING_window_output_c, &c, a->B, p.queries);
    k.hin_at = op_bind(call, BINDING_window_output_hin, &a->hin, a->B * p.state);
    k.hin_scale_at = op_bind(call, BINDING_window_output_hin_scale, &a->hin_scale, (uint64_t)a->B * a->H * a->N);
    k.d_at = op_bind(call, BINDING_window_output_d, &a->d, a->H);
    k.seq_at = op_bind(call, BINDING_window_output_seq, &a->seq, 2 * (uint64_t)a->B);
    k.y_at = op_bind_rows(call, BINDING_window_output_y, &a->y, a->B, p.I);
    op_launch(call, &k, base_ceil_div(a->H / a->G, call->row->T0) * a->G * a->B);
    return op_end(call);
}

/* run NULL: nothing closes. */
static void fold(window_plan *p, const dart_memories *run, uint32_t flags)
{
    op_call *call = &p->call;
    const dart_window_args *a = p->a;
    const uint64_t slots = (uint64_t)a->B * WINDOW, heads = (uint64_t)a->B * a->H,
        memories = run != NULL ? (uint64_t)a->B * run->M : 0;
    struct WindowFoldArgs k = {.flags = p->flags | flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
        .eps = a->eps};
    op_kernel(call, KERNEL_window_fold, a->B, 0);
    k.rows_at = op_bind(call, BINDING_window_fold_rows, &a->rows, slots * p->kept);
    op_bind(call, BINDING_window_fold_steps, &a->steps, slots * 2 * a->H);
    k.seq_at = op_bind(call, BINDING_window_fold_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_window_fold_h, &a->h, a->B * p->state);
    op_bind(call, BINDING_window_fold_open, &a->open, a->B * p->state);
    op_bind(call, BINDING_window_fold_open_decay, &a->open_decay, heads);
    k.hin_at = op_bind(call, BINDING_window_fold_hin, &a->hin, a->B * p->state);
    k.hin_scale_at = op_bind(call, BINDING_window_fold_hin_scale, &a->hin_scale, heads * a->N);
    if (run != NULL) {
        k.first = run->first;
        k.count = k.capacity = run->M;
        k.to_at = op_bind(call, BINDING_window_fold_to, &run->dh, memories * p->state);
        k.scale_at = op_bind(call, BINDING_window_fold_scale, &run->scale, memories * a->H * a->N);
    }
    op_launch(call, &k, base_ceil_div(a->H, call->row->T0) * a->B);
}

dart_status dart_window_fold(dart_stream *stream, const dart_window_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    window_plan p;
    if (begin(&p, stream, args, "dart_window_fold") != DART_OK) return op_status(&p.call);
    if (args->mode != DART_WINDOW_STEP) {
        fold(&p, NULL, IS_EVERY | (args->mode == DART_WINDOW_OPEN ? IS_FRESH : 0));
        return op_end(&p.call);
    }
    OP_REQUIRE(&p.call, args->closing_count > 0 || !op_has(&args->open),
        "steps with open need runs for the memories of chunks that close");
    fold(&p, args->closing_count > 0 ? &args->closing[0] : NULL, 0);
    for (uint32_t i = 1; i < args->closing_count; i++) fold(&p, &args->closing[i], IS_LATER);
    return op_end(&p.call);
}
