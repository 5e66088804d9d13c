/* Dense ops, convolution. */
#include "conform_data.h"
#include "conform_packed.h"

#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is(const conform_data *d, const char *op) { return strcmp(d->c->op, op) == 0; }
static double *doubles(uint64_t count)
{
    double *memory = calloc((size_t)count, sizeof *memory);
    if (memory == NULL) abort();
    return memory;
}

/* ids i32, one below and one beyond the table */
static void embed(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, V = c->H, W = c->P;
    int32_t *ids = malloc(T * sizeof *ids);
    if (ids == NULL) abort();
    for (uint32_t t = 0; t < T; t++) ids[t] = (int32_t)conform_uniform(d, 0, V);
    conform_tensor *i = conform_ints(d, T, 1, ids);
    conform_tensor *weight = conform_input(d, c->dtype, V, W, false, conform_unit);
    conform_tensor *y = conform_output(d, conform_activation(c), T, W, true);
    double *want = doubles((uint64_t)T * W);
    oracle_embed(want, weight->values, ids, T, V, W);
    while (conform_next(d)) {
        dart_embed(d->stream, &(dart_embed_args){.T = T, .V = V, .W = W, .ids = i->t, .weight = weight->t, .y = y->t});
        if (!conform_execute(d)) continue;
        conform_compare(d, "y", y, want, 0, 0);
    }
    free(want);
    free(ids);
}

static void norm(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, W = c->P, from = T + 3;
    const dart_dtype act = conform_activation(c);
    const float eps = 1e-5f;
    conform_tensor *x = conform_input(d, act, conform_has(d, CASE_ADD) ? from : T, W, true, conform_unit);
    conform_tensor *weight = conform_input(d, c->dtype, 1, W, false, conform_unit), *rows = NULL;
    conform_tensor *y = conform_output(d, act, T, W, true);
    double *source = doubles((uint64_t)T * W), *want = doubles((uint64_t)T * W);
    int32_t *order = malloc(T * sizeof *order);
    if (order == NULL) abort();
    for (uint32_t t = 0; t < T; t++) {
        order[t] = conform_has(d, CASE_ADD) ? (int32_t)((t * 7u + 2u) % from) : (int32_t)t;
        memcpy(source + (size_t)t * W, x->values + (size_t)order[t] * W, W * sizeof *source);
        if (t == 1 && conform_has(d, CASE_ADD)) order[t] = -1; /* no row: y stays as it is */
    }
    if (conform_has(d, CASE_ADD)) rows = conform_ints(d, T, 1, order);
    oracle_rms_norm(want, source, weight->values, T, W, eps);
    for (uint64_t i = W; T > 1 && i < 2 * (uint64_t)W && order[1] < 0; i++) want[i] = NAN;
    while (conform_next(d)) {
        dart_rms_norm(d->stream, &(dart_rms_norm_args){.T = T, .W = W, .eps = eps, .x = x->t, .weight = weight->t, .rows = conform_view(rows),
                                                       .y = y->t});
        if (!conform_execute(d)) continue;
        conform_compare(d, "y", y, want, conform_tolerance(BOUND_NORM, 1), conform_floor(act));
    }
    free(order);
    free(source);
    free(want);
}

/* Rows whose mean is not 0. */
static double raised(conform_data *d, uint64_t i) { return conform_unit(d, i) + 2; }

/* What a row of y adds up: y = w x / s - w mean / s + bias with s^2 = variance + eps. f32 rounds x - mean by what x and the mean are, however little
 * is left of them, and s by as much of itself. The mean of one element is that element. */
static void layer_norm_terms(double *terms, const double *x, const double *weight, const double *bias, uint32_t W, double eps)
{
    double mean = 0, variance = 0;
    for (uint32_t i = 0; i < W; i++) mean += x[i] / W;
    for (uint32_t i = 0; i < W; i++) variance += (x[i] - mean) * (x[i] - mean) / W;
    const double by = W > 1 ? 1 / sqrt(variance + eps) : 0;
    for (uint32_t i = 0; i < W; i++) terms[i] = hypot(by * weight[i] * hypot(x[i], mean), bias[i]);
}

static void layer_norm(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, W = c->P, from = T + 3;
    const dart_dtype act = conform_activation(c);
    const bool gather = conform_has(d, CASE_ADD);
    const float eps = 1e-5f;
    conform_tensor *x = conform_input(d, act, gather ? from : T, W, true, raised);
    conform_tensor *weight = conform_input(d, c->dtype, 1, W, false, conform_unit), *bias = conform_input(d, c->dtype, 1, W, false, conform_unit);
    conform_tensor *rows = NULL, *y = conform_output(d, act, T, W, true);
    double *source = doubles((uint64_t)T * W), *want = doubles((uint64_t)T * W), *terms = doubles((uint64_t)T * W);
    int32_t *order = malloc(T * sizeof *order);
    if (order == NULL) abort();
    for (uint32_t t = 0; t < T; t++) {
        order[t] = gather ? (int32_t)((t * 7u + 2u) % from) : (int32_t)t;
        memcpy(source + (size_t)t * W, x->values + (size_t)order[t] * W, W * sizeof *source);
        if (t == 1 && gather) order[t] = -1; /* no row: y stays as it is */
    }
    if (gather) rows = conform_ints(d, T, 1, order);
    oracle_layer_norm(want, source, weight->values, bias->values, T, W, eps);
    for (uint32_t t = 0; t < T; t++) layer_norm_terms(terms + (size_t)t * W, source + (size_t)t * W, weight->values, bias->values, W, (double)eps);
    for (uint64_t i = W; T > 1 && i < 2 * (uint64_t)W && order[1] < 0; i++) want[i] = NAN;
    while (conform_next(d)) {
        dart_layer_norm(d->stream, &(dart_layer_norm_args){.T = T, .W = W, .eps = eps, .x = x->t, .weight = weight->t, .bias = bias->t,
                                                           .rows = conform_view(rows), .y = y->t});
        if (!conform_execute(d)) continue;
        conform_compare_within(d, "y", y, want,
                               &(conform_limits){.bound = conform_tolerance(BOUND_NORM, 1), .floor = conform_floor(act), .terms = terms});
    }
    free(order);
    free(source);
    free(want);
    free(terms);
}

static void linear_bias(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, IN = c->N, OUT = c->P;
    const dart_dtype act = conform_activation(c);
    const bool add = conform_has(d, CASE_ADD);
    conform_tensor *x = conform_input(d, act, T, IN, true, conform_unit), *weight = conform_input(d, c->dtype, OUT, IN, false, conform_unit);
    conform_tensor *bias = conform_input(d, DART_F32, 1, OUT, false, conform_unit);
    conform_tensor *y = add ? conform_input(d, act, T, OUT, true, conform_unit) : conform_output(d, act, T, OUT, true);
    double *want = doubles((uint64_t)T * OUT);
    for (uint64_t i = 0; i < (uint64_t)T * OUT; i++) want[i] = bias->values[i % OUT] + (add ? y->values[i] : 0);
    if (!d->plan) oracle_linear(want, x->values, weight->values, want, T, IN, OUT);
    while (conform_next(d)) {
        dart_linear(d->stream, &(dart_linear_args){.T = T, .IN = IN, .OUT = OUT, .add = add, .x = x->t, .weight = weight->t, .bias = bias->t,
                                                   .y = y->t});
        if (!conform_execute(d)) continue;
        /* y holds the bias, or its sum with what was there, before the product is added: one rounding more. */
        conform_compare_within(d, "y", y, want, &(conform_limits){.bound = conform_tolerance(BOUND_DOT, IN + 1),
                                                                  .operands = act == DART_F32 ? 0 : conform_rounding(act),
                                                                  .floor = conform_floor(act)});
    }
    free(want);
}

/* v = (y + gate r) silu(z) is what f32 rounds as its two terms, which may cancel: an element of the result errs relative to the root of the sum of
 * their squares, and by what the norm, whose sum of squares errs alike, adds to all elements of the row. Both are about the element itself where
 * the row is long, and more where all elements of a short one cancel. */
static double *gated_terms(const oracle_gated_norm_args *a)
{
    double *terms = doubles(a->rows * a->I);
    for (uint64_t t = 0; t < a->rows; t++) {
        const double gate = a->r != NULL ? a->gate[t] / (1 + exp(-a->gate[t])) : 0;
        double v2 = a->eps * (double)a->I, terms2 = 0;
        for (uint64_t i = t * a->I; i < (t + 1) * a->I; i++) {
            const double by = a->z[i] / (1 + exp(-a->z[i])), other = a->r != NULL ? gate * a->r[i] : 0;
            terms[i] = hypot(a->y[i], other) * by;
            terms2 += terms[i] * terms[i];
            v2 += (a->y[i] + other) * by * (a->y[i] + other) * by;
        }
        for (uint64_t i = t * a->I; i < (t + 1) * a->I; i++)
            terms[i] = hypot(terms[i] * a->weight[i % a->I] * sqrt((double)a->I / v2), a->out[i] * sqrt(terms2 / v2));
    }
    return terms;
}

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
    conform_tensor *weight = conform_input(d, c->dtype, 1, I, false, conform_unit);
    conform_tensor *out = conform_output(d, act, T, I, true);
    double *want = doubles((uint64_t)T * I);
    const oracle_gated_norm_args args = {.rows = T, .I = I, .y = y->values, .r = sma ? r->values : NULL, .gate = sma ? gate->values : NULL,
                                         .z = z->values, .weight = weight->values, .eps = (double)eps, .out = want};
    oracle_gated_norm(&args);
    double *terms = sma ? gated_terms(&args) : NULL;
    while (conform_next(d)) {
        dart_gated_norm(d->stream, &(dart_gated_norm_args){.T = T, .I = I, .eps = eps, .y = y->t, .r = conform_view(r), .gate = conform_view(gate),
                                                           .z = z->t, .weight = weight->t, .out = out->t});
        if (!conform_execute(d)) continue;
        conform_compare_within(d, "out", out, want, &(conform_limits){.bound = conform_tolerance(BOUND_NORM, 1), .floor = conform_floor(act),
                                                                      .terms = terms});
    }
    free(terms);
    free(want);
}

/* linear_from: what ADD adds to lies apart from y. */
static void linear(conform_data *d)
{
    const conform_case *c = d->c;
    const bool apart = is(d, "linear_from"), add = !apart && conform_has(d, CASE_ADD);
    const uint32_t T = c->L, IN = c->N, OUT = c->P;
    const dart_dtype act = conform_activation(c), stored = conform_has(d, CASE_STORED) ? DART_F32 : act;
    conform_tensor *x = conform_input(d, act, T, IN, true, conform_unit), *weight = conform_input(d, c->dtype, OUT, IN, false, conform_unit);
    conform_tensor *from = apart ? conform_input(d, stored, T, OUT, true, conform_unit) : NULL;
    conform_tensor *y = add ? conform_input(d, stored, T, OUT, true, conform_unit) : conform_output(d, stored, T, OUT, true);
    double *want = doubles((uint64_t)T * OUT);
    if (!d->plan) oracle_linear(want, x->values, weight->values, apart ? from->values : add ? y->values : NULL, T, IN, OUT);
    while (conform_next(d)) {
        dart_linear(d->stream, &(dart_linear_args){.T = T, .IN = IN, .OUT = OUT, .add = add, .x = x->t, .weight = weight->t,
                                                   .y = y->t, .from = apart ? from->t : (dart_tensor){0}});
        if (!conform_execute(d)) continue;
        conform_compare(d, "y", y, want, conform_tolerance(BOUND_DOT, IN), conform_floor(act));
    }
    free(want);
}

static void norm_linear(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, IN = c->N, OUT = c->P;
    const dart_dtype act = conform_activation(c);
    const float eps = 1e-5f;
    const dart_dtype stream = conform_has(d, CASE_ADD) ? DART_F32 : act; /* what others add to */
    conform_tensor *x = conform_input(d, stream, T, IN, true, conform_unit), *norm_ = conform_input(d, c->dtype, 1, IN, false, conform_unit);
    conform_tensor *weight = conform_input(d, c->dtype, OUT, IN, false, conform_unit), *y = conform_output(d, act, T, OUT, true);
    double *u = doubles((uint64_t)T * IN), *want = doubles((uint64_t)T * OUT);
    oracle_rms_norm(u, x->values, norm_->values, T, IN, eps);
    if (!d->plan) oracle_linear(want, u, weight->values, NULL, T, IN, OUT);
    while (conform_next(d)) {
        dart_norm_linear(d->stream, &(dart_norm_linear_args){.T = T, .IN = IN, .OUT = OUT, .eps = eps, .x = x->t, .norm = norm_->t,
                                                             .weight = weight->t, .y = y->t});
        if (!conform_execute(d)) continue;
        /* Rows of tiles round x norm to the type of the weight before they multiply it. */
        conform_compare_within(d, "y", y, want,
                               &(conform_limits){.bound = conform_tolerance(BOUND_NORM, 1) + conform_tolerance(BOUND_DOT, IN),
                                                 .operands = conform_ran(d, "mixer_project[matrix_") ? conform_rounding(c->dtype) : 0,
                                                 .floor = conform_floor(act)});
    }
    free(u);
    free(want);
}

static void convert_fill(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, W = c->P;
    conform_tensor *x = conform_input(d, DART_F32, T, W, true, conform_unit), *y = conform_output(d, c->dtype, T, W, true);
    const bool pairs = conform_has(d, CASE_SEQ);
    const uint32_t Y = T + 3;
    conform_tensor *moved = pairs ? conform_output(d, c->dtype, Y, W, true) : NULL, *picked = pairs ? conform_output(d, c->dtype, Y, W, true) : NULL;
    conform_tensor *back = conform_output(d, DART_F32, T, W, true), *filled = conform_output(d, c->dtype, T, W, true);
    double *want = doubles((uint64_t)T * W), *value = doubles((uint64_t)T * W);
    for (uint64_t i = 0; i < (uint64_t)T * W; i++) {
        const float exact = (float)x->values[i];
        float stored;
        unsigned char bytes[4];
        dart_from_f32(c->dtype, bytes, &exact, 1);
        dart_to_f32(c->dtype, &stored, bytes, 1);
        want[i] = stored;
        value[i] = -1.5;
    }
    int32_t *list = calloc(2 * (size_t)T, sizeof *list), *rows = calloc(Y, sizeof *rows);
    double *want_moved = doubles((uint64_t)Y * W), *want_picked = doubles((uint64_t)Y * W);
    if (list == NULL || rows == NULL) abort();
    for (uint64_t i = 0; i < (uint64_t)Y * W; i++) want_moved[i] = NAN; /* rows that no pair names stay */
    for (uint32_t t = 0; t < T && pairs; t++) { /* from any rows, some of them several times, to places apart; Y is no multiple of 7 */
        list[2 * t] = t % 5 == 3 ? -1 : (int32_t)conform_uniform(d, 0, T);
        list[2 * t + 1] = t % 7 == 5 ? -4 : (int32_t)((7 * t + 2) % Y);
        if (list[2 * t] >= 0 && list[2 * t + 1] >= 0)
            memcpy(&want_moved[(uint64_t)list[2 * t + 1] * W], &want[(uint64_t)list[2 * t] * W], W * sizeof *want);
    }
    for (uint32_t t = 0; t < Y && pairs; t++) { /* any rows, or zeros */
        rows[t] = t % 4 == 1 ? -2 : (int32_t)conform_uniform(d, 0, T);
        for (uint64_t i = 0; i < W; i++) want_picked[(uint64_t)t * W + i] = rows[t] < 0 ? 0 : want[(uint64_t)rows[t] * W + i];
    }
    const conform_tensor *moves = pairs ? conform_ints(d, T, 2, list) : NULL, *from = pairs ? conform_ints(d, 1, Y, rows) : NULL;
    while (conform_next(d)) {
        dart_convert(d->stream, &(dart_convert_args){.T = T, .W = W, .x = x->t, .y = y->t});
        dart_convert(d->stream, &(dart_convert_args){.T = T, .W = W, .x = y->t, .y = back->t});
        dart_fill(d->stream, &(dart_fill_args){.T = T, .W = W, .value = -1.5f, .y = filled->t});
        if (pairs) dart_convert(d->stream, &(dart_convert_args){.T = T, .W = W, .X = T, .Y = Y, .x = x->t, .y = moved->t, .pairs = moves->t});
        if (pairs) dart_convert(d->stream, &(dart_convert_args){.T = Y, .W = W, .X = T, .x = x->t, .y = picked->t, .from = from->t});
        if (!conform_execute(d)) continue;
        conform_compare(d, "moved", moved, want_moved, 0, 0);
        conform_compare(d, "picked", picked, want_picked, 0, 0);
        conform_compare(d, "y", y, want, 0, 0);
        conform_compare(d, "back", back, want, 0, 0);
        conform_compare(d, "filled", filled, value, 0, 0);
    }
    free(want_picked);
    free(want_moved);
    free(rows);
    free(list);
    free(want);
    free(value);
}

void conform_dense(conform_data *d)
{
    if (is(d, "embed")) embed(d);
    else if (is(d, "norm")) norm(d);
    else if (is(d, "layer_norm")) layer_norm(d);
    else if (is(d, "linear_bias")) linear_bias(d);
    else if (is(d, "gated_norm")) gated_norm(d);
    else if (is(d, "linear") || is(d, "linear_from")) linear(d);
    else if (is(d, "norm_linear")) norm_linear(d);
    else convert_fill(d);
}

/* Channels H P; ragged counts 0..L with SEQ. */
void conform_conv(conform_data *d)
{
    if (conform_has(d, CASE_PACKED)) {
        conform_packed_conv(d);
        return;
    }
    const conform_case *c = d->c;
    const uint32_t B = c->B, L = c->L, C = c->P, K = c->N;
    const dart_dtype act = conform_activation(c);
    const bool tail = !conform_has(d, CASE_H) || conform_has(d, CASE_SEQ);
    const uint64_t rows = (uint64_t)B * L;
    int32_t *seq = calloc(2 * (size_t)B, sizeof *seq), *counts = calloc(B, sizeof *counts);
    if (seq == NULL || counts == NULL) abort();
    for (uint32_t b = 0; b < B; b++) {
        counts[b] = conform_has(d, CASE_SEQ) ? (int32_t)((L * b + B - 1) / B) : (int32_t)L;
        seq[2 * b] = 3;
        seq[2 * b + 1] = counts[b] > 0 ? counts[b] : -2; /* counts as 0 */
    }
    conform_tensor *x = conform_input(d, act, rows, C, true, conform_unit), *weight = conform_input(d, c->dtype, C, K, false, conform_unit);
    conform_tensor *bias = conform_has(d, CASE_PARAMS) ? conform_input(d, c->dtype, 1, C, false, conform_unit) : NULL;
    conform_tensor *t = tail ? conform_input(d, act, (uint64_t)B * (K - 1), C, false, conform_unit) : NULL;
    conform_tensor *s = conform_has(d, CASE_SEQ) ? conform_ints(d, B, 2, seq) : NULL;
    conform_tensor *y = conform_output(d, act, rows, C, true);
    double *want = doubles(rows * C), *want_tail = doubles((uint64_t)B * (K - 1) * C);
    for (uint64_t i = 0; i < rows * C; i++) want[i] = NAN;
    oracle_conv(&(oracle_conv_args){.B = B, .L = L, .C = C, .K = K, .x = x->values, .weight = weight->values,
                                    .bias = bias != NULL ? bias->values : NULL, .tail_in = tail ? t->values : NULL, .count = counts,
                                    .out = want, .tail_out = want_tail});
    /* Views take the two launches apart. */
    const dart_conv_args args = {.B = B, .L = L, .C = C, .K = K, .keep_tail = tail && conform_has(d, CASE_VIEW), .x = x->t, .weight = weight->t,
                                 .bias = conform_view(bias), .tail = conform_view(t), .seq = conform_view(s), .y = y->t};
    while (conform_next(d)) {
        dart_conv(d->stream, &args);
        if (args.keep_tail) dart_conv_tail(d->stream, &args);
        if (!conform_execute(d)) continue;
        conform_compare(d, "y", y, want, conform_tolerance(BOUND_CONV, K), conform_floor(act));
        conform_compare(d, "tail", t, want_tail, 0, 0);
    }
    free(want);
    free(want_tail);
    free(seq);
    free(counts);
}
