/* Backward passes of the ops on rows, judged by derivatives that the tape takes of the definition. */
#include "conform_backward.h"

#include <stdlib.h>
#include <string.h>

static void *array(uint64_t count, size_t size)
{
    void *made = calloc((size_t)(count > 0 ? count : 1), size);
    if (made == NULL) abort();
    return made;
}

/* A gradient that is added to: it holds something. */
static conform_tensor *grown(conform_data *d, dart_dtype dtype, uint64_t rows, uint64_t width, bool view)
{
    return conform_input(d, dtype, rows, width, view, conform_unit);
}

/* sum: the most numbers that an element adds up. */
static void compare(conform_data *d, const char *name, const conform_tensor *tensor, const tape *t, tape_vector v, const double *before,
                    uint64_t sum)
{
    backward_compare(d, name, tensor, t, v, before, (conform_limits){.bound = conform_tolerance(BOUND_NORM, sum)});
}

static bool is(const conform_data *d, const char *op) { return strcmp(d->c->op, op) == 0; }

/* Gathered rows with ADD, among them one that takes no part. Without it and T a multiple of 4: added to rows of another tensor, with a copy. */
static void norm(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, W = c->P;
    const bool gather = conform_has(d, CASE_ADD);
    const uint32_t from = gather ? T + 3 : T;
    const dart_dtype act = conform_activation(c);
    const float eps = 1e-5f;
    conform_tensor *x = conform_input(d, act, from, W, true, conform_unit), *weight = conform_input(d, c->dtype, 1, W, false, conform_unit);
    conform_tensor *up = conform_input(d, act, T, W, true, conform_unit);
    conform_tensor *grad_x = gather ? grown(d, act, from, W, true) : conform_output(d, act, T, W, true);
    conform_tensor *grad_weight = grown(d, DART_F32, 1, W, false), *rows = NULL;
    double *ups = array((uint64_t)from * W, sizeof *ups); /* of the rows of x */
    int32_t *order = array(T, sizeof *order);
    for (uint32_t t = 0; t < T; t++) {
        order[t] = gather ? (int32_t)((t + 2) % from) : (int32_t)t;
        if (gather && t == 1) order[t] = -1;
        if (order[t] >= 0) memcpy(ups + (size_t)order[t] * W, up->values + (size_t)t * W, W * sizeof *ups);
    }
    if (gather) rows = conform_ints(d, T, 1, order);
    const bool extra = !gather && T % 4 == 0;
    const uint32_t F = extra ? T / 2 : 0;
    conform_tensor *more = extra ? conform_input(d, act, F, W, true, conform_unit) : NULL;
    conform_tensor *copy = extra ? conform_output(d, c->dtype, T, W, true) : NULL, *more_rows = NULL;
    double *before = array((uint64_t)T * W, sizeof *before);
    for (uint32_t t = 0; t < T && extra; t++) {
        order[t] = t % 3 == 1 ? -7 : (int32_t)((5 * t + 1) % F);
        if (order[t] >= 0) memcpy(before + (size_t)t * W, more->values + (size_t)order[t] * W, W * sizeof *before);
    }
    if (extra) more_rows = conform_ints(d, T, 1, order);
    tape *t = tape_create();
    const tape_vector vx = backward_whole(t, x), vw = backward_whole(t, weight), y = definition_norm(t, vx, vw, (double)eps);
    tape_push(t, y, ups);
    if (!d->plan) tape_reverse(t);
    while (conform_next(d)) {
        dart_rms_norm_backward(d->stream, &(dart_rms_norm_backward_args){.T = T, .W = W, .eps = eps, .add = gather, .x = x->t, .weight = weight->t,
                                                                         .rows = conform_view(rows), .up_y = up->t, .F = F,
                                                                         .from = conform_view(more), .from_rows = conform_view(more_rows),
                                                                         .grad_x = grad_x->t, .copy = conform_view(copy),
                                                                         .grad_weight = grad_weight->t});
        if (!conform_execute(d)) continue;
        compare(d, "grad_x", grad_x, t, vx, gather ? grad_x->values : extra ? before : NULL, W);
        if (extra) compare(d, "copy", copy, t, vx, before, W);
        compare(d, "grad_weight", grad_weight, t, vw, grad_weight->values, T);
    }
    tape_destroy(&t);
    free(before);
    free(order);
    free(ups);
}

/* With r and gate when ADD. */
static void gated_norm(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, I = c->P;
    const dart_dtype act = conform_activation(c);
    const float eps = 1e-5f;
    const bool sma = conform_has(d, CASE_ADD);
    conform_tensor *y = conform_input(d, act, T, I, true, conform_unit), *z = conform_input(d, act, T, I, true, conform_unit);
    conform_tensor *r = sma ? conform_input(d, DART_F32, T, I, true, conform_unit) : NULL;
    conform_tensor *gate = sma ? conform_input(d, act, T, 1, true, conform_unit) : NULL;
    conform_tensor *weight = conform_input(d, c->dtype, 1, I, false, conform_unit), *up = conform_input(d, act, T, I, true, conform_unit);
    conform_tensor *grad_y = conform_output(d, act, T, I, true), *grad_z = conform_output(d, act, T, I, true);
    conform_tensor *grad_r = sma ? conform_output(d, act, T, I, true) : NULL, *grad_gate = sma ? conform_output(d, act, T, 1, true) : NULL;
    conform_tensor *grad_weight = grown(d, DART_F32, 1, I, false);
    tape *t = tape_create();
    const tape_vector vy = backward_whole(t, y), vz = backward_whole(t, z), vw = backward_whole(t, weight);
    tape_vector vr = vy, vg = vy, w = vy;
    if (sma) {
        vr = backward_whole(t, r);
        vg = backward_whole(t, gate);
        w = definition_gated(t, vy, vr, vg);
    }
    const tape_vector out = definition_norm(t, tape_multiply(t, w, tape_apply(t, vz, tape_silu, 0, 0)), vw, (double)eps);
    tape_push(t, out, up->values);
    if (!d->plan) tape_reverse(t);
    while (conform_next(d)) {
        dart_gated_norm_backward(d->stream, &(dart_gated_norm_backward_args){
            .T = T, .I = I, .eps = eps, .y = y->t, .r = conform_view(r), .gate = conform_view(gate), .z = z->t, .weight = weight->t, .up_out = up->t,
            .grad_y = grad_y->t, .grad_r = conform_view(grad_r), .grad_gate = conform_view(grad_gate), .grad_z = grad_z->t,
            .grad_weight = grad_weight->t});
        if (!conform_execute(d)) continue;
        compare(d, "grad_y", grad_y, t, vy, NULL, I);
        compare(d, "grad_z", grad_z, t, vz, NULL, I);
        if (sma) {
            compare(d, "grad_r", grad_r, t, vr, NULL, I);
            compare(d, "grad_gate", grad_gate, t, vg, NULL, I);
        }
        compare(d, "grad_weight", grad_weight, t, vw, grad_weight->values, T);
    }
    tape_destroy(&t);
}

/* With STORED up_y alone is f32, as the gradient of a stream that is kept in f32. */
static void linear(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, IN = c->N, OUT = c->P;
    const dart_dtype act = conform_activation(c);
    const bool adds = conform_has(d, CASE_ADD);
    conform_tensor *x = conform_input(d, act, T, IN, true, conform_unit), *weight = conform_input(d, c->dtype, OUT, IN, false, conform_unit);
    const dart_dtype slopes = conform_has(d, CASE_STORED) ? DART_F32 : act;
    conform_tensor *up = conform_input(d, slopes, T, OUT, true, conform_unit);
    conform_tensor *grad_x = adds ? grown(d, act, T, IN, true) : conform_output(d, act, T, IN, true);
    conform_tensor *grad_weight = grown(d, DART_F32, OUT, IN, false);
    tape *t = tape_create();
    const tape_vector vx = backward_whole(t, x), vw = backward_whole(t, weight), y = definition_linear(t, vx, vw, IN, OUT);
    tape_push(t, y, up->values);
    if (!d->plan) tape_reverse(t);
    while (conform_next(d)) {
        dart_linear_backward(d->stream, &(dart_linear_backward_args){.T = T, .IN = IN, .OUT = OUT, .add = adds, .x = x->t, .weight = weight->t,
                                                                     .up_y = up->t, .grad_x = grad_x->t, .grad_weight = grad_weight->t});
        if (!conform_execute(d)) continue;
        /* Each term of a sum errs by the rounding of its factor: in a row for matrices, or before both products where a library makes one. */
        const double rounding = slopes == DART_F32 ? conform_rounding(c->dtype) : 0;
        const bool before = conform_ran(d, "convert[");
        const double of_x = before || backward_rounds(d, "linear_backward_x") ? rounding : 0;
        const double of_weight = before || backward_rounds(d, "linear_backward_weight") ? rounding : 0;
        backward_compare(d, "grad_x", grad_x, t, vx, adds ? grad_x->values : NULL,
                         (conform_limits){.bound = conform_tolerance(BOUND_NORM, OUT), .operands = of_x});
        backward_compare(d, "grad_weight", grad_weight, t, vw, grad_weight->values,
                         (conform_limits){.bound = conform_tolerance(BOUND_NORM, T), .operands = of_weight});
    }
    tape_destroy(&t);
}

/* Half of the ids are the same one, so that its tokens fill several pieces; one is beyond the table. */
static void embed(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, V = c->H, W = c->P;
    int32_t *ids = array(T, sizeof *ids), *known = array(T, sizeof *known), *plan = array(dart_embed_plan_elements(T, V), sizeof *plan);
    const int32_t often = (int32_t)conform_uniform(d, 0, V);
    for (uint32_t t = 0; t < T; t++) ids[t] = conform_uniform(d, 0, 1) < 0.5 ? often : (int32_t)conform_uniform(d, 0, V);
    ids[T / 2] = (int32_t)V;
    conform_tensor *up = conform_input(d, conform_activation(c), T, W, true, conform_unit), *grad_weight = grown(d, DART_F32, V, W, false);
    if (dart_embed_plan(ids, T, V, plan) != DART_OK) abort();
    conform_tensor *p = conform_ints(d, 1, dart_embed_plan_elements(T, V), plan);
    double *ups = array((uint64_t)T * W, sizeof *ups);
    memcpy(ups, up->values, (size_t)T * W * sizeof *ups);
    memset(ups + (size_t)(T / 2) * W, 0, W * sizeof *ups);
    memcpy(known, ids, T * sizeof *known);
    known[T / 2] = 0;
    tape *t = tape_create();
    const tape_vector table = tape_input(t, NULL, (size_t)V * W), y = definition_embed(t, table, known, T, W);
    tape_push(t, y, ups);
    if (!d->plan) tape_reverse(t);
    while (conform_next(d)) {
        dart_embed_backward(d->stream, &(dart_embed_backward_args){.T = T, .V = V, .W = W, .plan = p->t, .up_y = up->t,
                                                                   .grad_weight = grad_weight->t});
        if (!conform_execute(d)) continue;
        compare(d, "grad_weight", grad_weight, t, table, grad_weight->values, T);
    }
    tape_destroy(&t);
    free(ids);
    free(known);
    free(plan);
    free(ups);
}

void conform_dense_backward(conform_data *d)
{
    if (is(d, "norm_backward")) norm(d);
    else if (is(d, "gated_norm_backward")) gated_norm(d);
    else if (is(d, "linear_backward")) linear(d);
    else embed(d);
}
