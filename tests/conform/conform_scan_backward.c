/* The backward pass of the scan, judged by derivatives that the tape takes of its definition. */
#include "conform_backward.h"

#include "shaders/args.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double any_dt(conform_data *d, uint64_t i)
{
    (void)i;
    if (conform_has(d, CASE_WIDE)) return exp(conform_uniform(d, log(1e-4), log(20)));
    return conform_has(d, CASE_DT) ? conform_uniform(d, 1e-3, 0.5) : conform_normal(d);
}

typedef struct scan_case {
    backward_rows rows;
    uint32_t M, quiet;
    uint64_t chunks, state;
    conform_tensor *x, *dt, *b, *c, *a_log, *bias, *skip, *seqs, *h, *up_y, *up_dh, *up_h, *cum, *decay, *hin;
    conform_tensor *grad_x, *grad_dt, *grad_b, *grad_c, *grad_a_log, *grad_bias, *grad_skip, *grad_h;
} scan_case;

static void silence(conform_data *d, scan_case *k)
{
    const uint64_t count = k->up_y->rows * k->up_y->width;
    double *values = conform_filled(count, NAN);
    k->quiet = conform_quiet(d);
    for (uint64_t i = 0; i < count; i++)
        if (i / k->up_y->width % d->c->L < k->quiet) values[i] = 0;
    conform_set(d, k->up_y, values);
    free(values);
}

static void make(conform_data *d, scan_case *k)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const uint64_t x_width = (uint64_t)c->H * c->P, b_width = (uint64_t)c->G * c->N;
    backward_rows_make(d, &k->rows);
    const uint64_t rows = k->rows.rows;
    k->M = dart_ssd_chunks(c->L, c->S, conform_has(d, CASE_SEQ));
    k->chunks = backward_slots(&k->rows, c->S, k->M);
    k->state = (uint64_t)c->H * c->N * c->P;
    k->x = conform_input(d, act, rows, x_width, true, conform_unit);
    k->dt = conform_input(d, act, rows, c->H, true, any_dt);
    k->b = conform_input(d, act, rows, b_width, true, conform_unit);
    k->c = conform_input(d, act, rows, b_width, true, conform_unit);
    k->a_log = conform_input(d, c->dtype, 1, c->H, false, conform_a_log);
    k->up_y = conform_input(d, act, rows, x_width, true, conform_unit);
    if (!conform_has(d, CASE_BARE)) k->up_dh = conform_input(d, DART_F32, k->chunks, k->state, false, conform_unit);
    k->grad_x = conform_output(d, act, rows, x_width, true);
    k->grad_dt = conform_output(d, act, rows, c->H, true);
    k->grad_b = conform_output(d, act, rows, b_width, true);
    k->grad_c = conform_has(d, CASE_ADD) ? conform_input(d, act, rows, b_width, true, conform_unit) : conform_output(d, act, rows, b_width, true);
    k->grad_a_log = conform_input(d, DART_F32, 1, c->H, false, conform_unit);
    if (conform_has(d, CASE_PARAMS)) {
        k->bias = conform_input(d, c->dtype, 1, c->H, false, conform_bias);
        k->skip = conform_input(d, c->dtype, 1, c->H, false, conform_unit);
        k->grad_bias = conform_input(d, DART_F32, 1, c->H, false, conform_unit);
        k->grad_skip = conform_input(d, DART_F32, 1, c->H, false, conform_unit);
    }
    k->seqs = backward_seq(d, &k->rows);
    if (conform_has(d, CASE_H)) {
        k->h = conform_input(d, DART_F32, c->B, k->state, false, conform_unit);
        k->up_h = conform_input(d, DART_F32, c->B, k->state, false, conform_unit);
        k->grad_h = conform_output(d, DART_F32, c->B, k->state, false);
    }
    if (conform_has(d, CASE_STORED)) {
        k->cum = conform_output(d, DART_F32, rows * c->H, CUM_STRIDE, false);
        k->decay = conform_output(d, DART_F32, k->chunks + c->B, c->H, false);
        k->hin = conform_output(d, DART_F32, k->chunks, k->state, false);
    }
    if (conform_has(d, CASE_QUIET)) silence(d, k);
}

/* The definition of the call on the tape, with what comes in pushed. */
static tape *differentiate(const conform_data *d, const scan_case *k, definition_ssd *of)
{
    const conform_case *c = d->c;
    const bool params = conform_has(d, CASE_PARAMS);
    tape *t = tape_create();
    *of = (definition_ssd){.H = c->H, .G = c->G, .P = c->P, .N = c->N, .S = c->S, .documents = k->rows.documents,
                           .dt_min = conform_has(d, CASE_LIMITS) ? (double)0.05f : 0, .dt_max = conform_has(d, CASE_LIMITS) ? (double)0.4f : 0,
                           .dt_is_step = conform_has(d, CASE_DT), .has_bias = params && !conform_has(d, CASE_DT), .has_d = params,
                           .has_h = k->h != NULL};
    of->x = backward_input(t, k->x, &k->rows);
    of->dt = backward_input(t, k->dt, &k->rows);
    of->b = backward_input(t, k->b, &k->rows);
    of->c = backward_input(t, k->c, &k->rows);
    of->a_log = backward_whole(t, k->a_log);
    if (params) {
        of->dt_bias = backward_whole(t, k->bias);
        of->d = backward_whole(t, k->skip);
    }
    if (k->h != NULL) of->h = backward_whole(t, k->h);
    definition_run_ssd(t, of);
    double *up = backward_gather(k->up_y, &k->rows);
    tape_push(t, of->y, up);
    free(up);
    if (k->up_dh != NULL) {
        double *memories = backward_chunks(k->up_dh, &k->rows, c->S, k->M);
        tape_push(t, of->dh, memories);
        free(memories);
    }
    if (k->up_h != NULL) tape_push(t, of->last_h, k->up_h->values);
    if (!d->plan) tape_reverse(t);
    return t;
}

static void record(conform_data *d, const scan_case *k)
{
    const conform_case *c = d->c;
    const float dt_min = conform_has(d, CASE_LIMITS) ? 0.05f : 0, dt_max = conform_has(d, CASE_LIMITS) ? 0.4f : 0;
    if (k->cum != NULL) {
        conform_tensor *y = conform_output(d, conform_activation(c), k->rows.rows, (uint64_t)c->H * c->P, true), *h = NULL;
        if (k->h != NULL) {
            h = conform_output(d, DART_F32, c->B, k->state, false);
            dart_convert(d->stream, &(dart_convert_args){.T = c->B, .W = (uint32_t)k->state, .x = k->h->t, .y = h->t});
        }
        dart_ssd(d->stream, &(dart_ssd_args){.B = c->B, .L = c->L, .T = k->rows.packing.T, .cu = k->rows.cu, .H = c->H, .G = c->G, .N = c->N,
                                             .P = c->P, .S = c->S,
                                             .plan = DART_PLAN_CHUNKED, .dt_is_step = conform_has(d, CASE_DT), .dt_min = dt_min, .dt_max = dt_max,
                                             .x = k->x->t, .dt = k->dt->t, .b = k->b->t, .c = k->c->t, .a_log = k->a_log->t,
                                             .dt_bias = conform_view(k->bias), .d = conform_view(k->skip), .seq = conform_view(k->seqs),
                                             .h = conform_view(h), .y = y->t, .cum = k->cum->t, .decay = k->decay->t, .hin = k->hin->t});
    }
    dart_ssd_backward(d->stream, &(dart_ssd_backward_args){
        .B = c->B, .L = c->L, .T = k->rows.packing.T, .cu = k->rows.cu, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = c->S,
        .dt_is_step = conform_has(d, CASE_DT),
        .add_c = conform_has(d, CASE_ADD), .dt_min = dt_min, .dt_max = dt_max, .quiet = k->quiet, .x = k->x->t, .dt = k->dt->t,
        .b = k->b->t, .c = k->c->t,
        .a_log = k->a_log->t, .dt_bias = conform_view(k->bias), .d = conform_view(k->skip), .seq = conform_view(k->seqs), .h = conform_view(k->h),
        .cum = conform_view(k->cum), .decay = conform_view(k->decay), .hin = conform_view(k->hin), .up_y = k->up_y->t,
        .up_dh = conform_view(k->up_dh), .up_h = conform_view(k->up_h), .grad_x = k->grad_x->t, .grad_dt = k->grad_dt->t, .grad_b = k->grad_b->t,
        .grad_c = k->grad_c->t, .grad_a_log = k->grad_a_log->t, .grad_dt_bias = conform_view(k->grad_bias), .grad_d = conform_view(k->grad_skip),
        .grad_h = conform_view(k->grad_h)});
}

/* By how much the errors of rounded states, of all chunks, add up to more than if they were independent. One memory's rounding stays in all states
 * behind it. Where a chunk decays by rho, a state's square has 1 / (1 - rho^2) of a memory's, and the state's gradient has likewise of what comes in
 * behind it, so that its products with the errors of one memory are sums of (1 + rho^2) / (1 - rho^2)^2 squares; of M chunks that do not decay M / 2
 * times as many as if they were independent. */
static double persistence(const conform_data *d, const scan_case *k, const tape *t, const definition_ssd *of)
{
    const conform_case *c = d->c;
    double most = 1;
    for (uint32_t h = 0; h < c->H && k->rows.tokens > 0; h++) {
        double sum = 0;
        for (size_t i = 0; i < k->rows.tokens; i++) sum += exp(-exp(k->a_log->values[h]) * tape_values(t, of->step)[i * c->H + h]);
        const double rho = pow(sum / (double)k->rows.tokens, c->S);
        most = fmax(most, fmin(k->M / 2.0, (1 + rho * rho) / fmax(1 - rho * rho, DBL_MIN)));
    }
    return sqrt(most);
}

/* All of a sequence's grad_h is decayed by its first step: exp(-z), which is relatively off by z times what the step is, and may be 0 where it is
 * less than the least normal number. */
static void compare_grad_h(conform_data *d, const scan_case *k, const tape *t, const definition_ssd *of, conform_limits limits)
{
    enum { STEP_UNITS = 4 };
    const conform_case *c = d->c;
    const uint64_t each = (uint64_t)c->N * c->P, count = c->B * k->state;
    double *terms = conform_filled(count, 0);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t b = i / k->state, h = i / each % c->H;
        const size_t first = k->rows.documents.begin[b];
        const bool any = first < k->rows.documents.begin[b + 1];
        const double z = any ? exp(k->a_log->values[h]) * tape_values(t, of->step)[first * c->H + h] : 0, whole = sqrt(tape_squares(t, of->h)[i]);
        terms[i] = whole * (1 + STEP_UNITS * 0x1p-24 * z / limits.bound);
        limits.floor = fmax(limits.floor, 0x1p-126 * whole * exp(z));
    }
    limits.terms = terms;
    conform_compare_within(d, "grad_h", k->grad_h, tape_gradient(t, of->h), &limits);
    free(terms);
}

void conform_ssd_backward(conform_data *d)
{
    const conform_case *c = d->c;
    scan_case k = {0};
    definition_ssd of;
    make(d, &k);
    tape *t = differentiate(d, &k, &of);
    while (conform_next(d)) {
        record(d, &k);
        if (!conform_execute(d)) continue;
        const uint64_t C = c->S < c->L ? c->S : c->L;
        /* The forward pass keeps entering states that are sums of memories rounded to the type of x, b and c. */
        const double entering = conform_has(d, CASE_STORED) ? conform_rounding(c->dtype) : 0;
        /* On matrices: a term has at most two such operands one after another, b keep step and then hin, or c exp(cum) and then lambda. */
        const double split = backward_rounds(d, "ssd_backward_walk") ? 2 * conform_split_rounding(c->dtype) : 0;
        /* Stages of tiles, and the walk for N 64, round once what enters a product: c exp(cum) for lambda; lambda + up_dh, of that; c.b exp(cum_t -
         * cum_s) and the gradient of c.b; b keep step for a memory, which is stored, as is hin, the sum of memories. dt takes lambda times hin. */
        const bool tiles = backward_rounds(d, "ssd_backward_x") || conform_ran(d, "ssd_backward_walk[walk64");
        const double once = tiles ? conform_rounding(c->dtype) : 0;
        const conform_limits of_x = {.bound = conform_tolerance(BOUND_SCAN, C + c->N), .operands = split + 2 * once};
        const conform_limits of_b = {.bound = conform_tolerance(BOUND_SCAN, C + (uint64_t)c->H / c->G * c->P), .operands = split + 2 * once};
        const conform_limits of_c = {.bound = of_b.bound, .operands = entering + split + 3 * once};
        const conform_limits of_dt = {.bound = conform_tolerance(BOUND_SCAN, 2 * C + (uint64_t)c->N * c->P), .operands = entering + split + 4 * once};
        const conform_limits of_d = {.bound = conform_tolerance(BOUND_SCAN, k.rows.rows)};
        /* A rounding errs by 0.42 of the most that it can, in root mean square. What those of the states leave in the one number of a head is close
         * to normal, and five times its root mean square with a probability of 6e-7. */
        const double lasting = 5 * 0.42 * persistence(d, &k, t, &of) * entering;
        const conform_limits of_sums = {.bound = of_dt.bound + of_d.bound, .operands = lasting + split + 4 * once};
        const conform_limits of_h = {.bound = of_x.bound, .operands = split + once};
        backward_compare_rows(d, "grad_x", k.grad_x, &k.rows, t, of.x, NULL, of_x);
        backward_compare_rows(d, "grad_dt", k.grad_dt, &k.rows, t, of.dt, NULL, of_dt);
        backward_compare_rows(d, "grad_b", k.grad_b, &k.rows, t, of.b, NULL, of_b);
        backward_compare_rows(d, "grad_c", k.grad_c, &k.rows, t, of.c, conform_has(d, CASE_ADD) ? k.grad_c->values : NULL, of_c);
        backward_compare(d, "grad_a_log", k.grad_a_log, t, of.a_log, k.grad_a_log->values, of_sums);
        if (k.bias != NULL && of.has_bias) backward_compare(d, "grad_dt_bias", k.grad_bias, t, of.dt_bias, k.grad_bias->values, of_sums);
        if (k.skip != NULL) backward_compare(d, "grad_d", k.grad_skip, t, of.d, k.grad_skip->values, of_d);
        if (k.h != NULL) compare_grad_h(d, &k, t, &of, of_h);
    }
    tape_destroy(&t);
    backward_rows_free(&k.rows);
}
