/* Rotary positions and SwiGLU, forward and backward, by the definition; GELU. */
#include "conform_backward.h"

#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *array(uint64_t count, size_t size)
{
    void *made = calloc((size_t)(count > 0 ? count : 1), size);
    if (made == NULL) abort();
    return made;
}

/* Of tokens, for comparison with an output of all rows; NaN for the others. */
static double *spread(const double *values, const backward_rows *rows, uint64_t width, double other)
{
    double *all = array(rows->rows * width, sizeof *all);
    for (uint64_t i = 0; i < rows->rows * width; i++) all[i] = other;
    for (size_t k = 0; k < rows->tokens; k++) memcpy(all + rows->row_of[k] * width, values + k * width, width * sizeof *all);
    return all;
}

static void rope(conform_data *d)
{
    const conform_case *c = d->c;
    const uint64_t width = (uint64_t)c->H * c->P;
    const uint32_t R = c->N > 1 ? c->N : c->P;
    const dart_dtype act = conform_activation(c);
    const bool inverse = conform_has(d, CASE_ADD);
    const float base = 10000.0f;
    backward_rows rows;
    backward_rows_make(d, &rows);
    if (conform_has(d, CASE_FAR))
        for (uint32_t b = 0; b < c->B; b++) rows.seq[2 * b] = (1 << 20) - 3 + (int32_t)(977 * b);
    conform_tensor *x = conform_input(d, act, rows.rows, width, true, conform_unit), *y = x;
    conform_tensor *seq = backward_seq(d, &rows);
    if (!inverse) y = conform_output(d, act, rows.rows, width, true);
    double *positions = array(rows.tokens, sizeof *positions), *in = backward_gather(x, &rows), *terms = array(rows.tokens * width, sizeof *terms);
    for (size_t k = 0; k < rows.tokens; k++) {
        size_t b = 0;
        while (rows.begin[b + 1] <= k) b++;
        positions[k] = (double)(k - rows.begin[b]) + (seq != NULL ? (double)rows.seq[2 * b] : 0);
    }
    tape *t = tape_create();
    tape_vector from = tape_input(t, inverse ? NULL : in, rows.tokens * width);
    const tape_vector to = definition_rope(t, from, positions, rows.tokens, c->H, c->P, R, (double)base);
    if (inverse) { /* the gradient with respect to x, x as that of y */
        tape_push(t, to, in);
        tape_reverse(t);
    }
    const double *made = inverse ? tape_gradient(t, from) : tape_values(t, to);
    double *want = spread(made, &rows, width, inverse ? 0 : NAN);
    for (uint64_t i = 0, of = 0; inverse && rows.packing.T > 0 && i < rows.rows; i++) { /* in place: what belongs to no document stays */
        const bool live = of < rows.tokens && rows.row_of[of] == i;
        if (live) of++;
        else memcpy(want + i * width, x->values + i * width, width * sizeof *want);
    }
    for (size_t i = 0; i < rows.tokens * width; i++) {
        const size_t half = R / 2, other = i % c->P < half ? i + half : i - half;
        terms[i] = i % c->P < R ? hypot(in[i], in[other]) : fabs(in[i]);
    }
    double *sizes = spread(terms, &rows, width, 0);
    while (conform_next(d)) {
        dart_rope(d->stream, &(dart_rope_args){.B = c->B, .L = c->L, .T = rows.packing.T, .cu = rows.cu, .H = c->H, .D = c->P,
                                               .R = c->N > 1 ? R : 0, .inverse = inverse,
                                               .base = base, .x = x->t,
                                               .seq = conform_view(seq), .y = y->t});
        if (!conform_execute(d)) continue;
        conform_compare_within(d, inverse ? "grad" : "y", y, want,
                               &(conform_limits){.bound = conform_tolerance(BOUND_DOT, 2), .terms = sizes, .floor = conform_floor(act)});
    }
    tape_destroy(&t);
    backward_rows_free(&rows);
    free(positions);
    free(in);
    free(terms);
    free(want);
    free(sizes);
}

/* Both tails, too. */
static double spread_out(conform_data *d, uint64_t i) { return 3 * conform_unit(d, i); }

static void gelu(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, I = c->P;
    const dart_dtype act = conform_activation(c);
    const bool by_tanh = conform_has(d, CASE_ADD);
    conform_tensor *a = conform_input(d, act, T, I, true, spread_out), *h = conform_output(d, act, T, I, true);
    double *want = array((uint64_t)T * I, sizeof *want), *sizes = array((uint64_t)T * I, sizeof *sizes);
    oracle_gelu(want, a->values, (size_t)T * I, by_tanh);
    for (size_t i = 0; i < (size_t)T * I; i++) sizes[i] = fabs(a->values[i]);
    while (conform_next(d)) {
        dart_gelu(d->stream, &(dart_gelu_args){.T = T, .I = I, .by_tanh = by_tanh, .a = a->t, .h = h->t});
        if (!conform_execute(d)) continue;
        /* h is a times a number from 0 to 1, whose error is one of f32. */
        conform_compare_within(d, "h", h, want, &(conform_limits){.bound = conform_tolerance(BOUND_NORM, 1), .terms = sizes,
                                                                  .floor = conform_floor(act)});
    }
    free(want);
    free(sizes);
}

static void swiglu(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, I = c->P;
    const dart_dtype act = conform_activation(c);
    conform_tensor *a = conform_input(d, c->dtype, T, I, true, conform_unit), *u = conform_input(d, act, T, I, true, conform_unit);
    conform_tensor *up = conform_input(d, act, T, I, true, conform_unit), *h = conform_output(d, act, T, I, true);
    conform_tensor *grad_a = conform_output(d, act, T, I, true), *grad_u = conform_output(d, c->dtype, T, I, true);
    tape *t = tape_create();
    const tape_vector va = backward_whole(t, a), vu = backward_whole(t, u), vh = definition_swiglu(t, va, vu);
    tape_push(t, vh, up->values);
    if (!d->plan) tape_reverse(t);
    while (conform_next(d)) {
        dart_swiglu(d->stream, &(dart_swiglu_args){.T = T, .I = I, .a = a->t, .u = u->t, .h = h->t});
        dart_swiglu_backward(d->stream, &(dart_swiglu_backward_args){.T = T, .I = I, .a = a->t, .u = u->t, .up_h = up->t, .grad_a = grad_a->t,
                                                                     .grad_u = grad_u->t});
        if (!conform_execute(d)) continue;
        const conform_limits limits = {.bound = conform_tolerance(BOUND_NORM, 1)};
        conform_compare(d, "h", h, tape_values(t, vh), limits.bound, conform_floor(act));
        backward_compare(d, "grad_a", grad_a, t, va, NULL, limits);
        backward_compare(d, "grad_u", grad_u, t, vu, NULL, limits);
    }
    tape_destroy(&t);
}

void conform_mlp(conform_data *d)
{
    if (strcmp(d->c->op, "rope") == 0) rope(d);
    else if (strcmp(d->c->op, "gelu") == 0) gelu(d);
    else swiglu(d);
}
