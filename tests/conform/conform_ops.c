/* Dense ops, convolution, choice of tokens. */
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
    dart_embed(d->stream, &(dart_embed_args){.T = T, .V = V, .W = W, .ids = i->t, .weight = weight->t, .y = y->t});
    conform_execute(d);
    conform_compare(d, "y", y, want, 0, 0);
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
    dart_rms_norm(d->stream, &(dart_rms_norm_args){.T = T, .W = W, .eps = eps, .x = x->t, .weight = weight->t, .rows = conform_view(rows),
                                                   .y = y->t});
    conform_execute(d);
    conform_compare(d, "y", y, want, conform_tolerance(BOUND_NORM, 1), conform_floor(act));
    free(order);
    free(source);
    free(want);
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
    oracle_gated_norm(&(oracle_gated_norm_args){.rows = T, .I = I, .y = y->values, .r = sma ? r->values : NULL, .gate = sma ? gate->values : NULL,
                                                .z = z->values, .weight = weight->values, .eps = eps, .out = want});
    dart_gated_norm(d->stream, &(dart_gated_norm_args){.T = T, .I = I, .eps = eps, .y = y->t, .r = conform_view(r), .gate = conform_view(gate),
                                                       .z = z->t, .weight = weight->t, .out = out->t});
    conform_execute(d);
    conform_compare(d, "out", out, want, conform_tolerance(BOUND_NORM, 1), conform_floor(act));
    free(want);
}

static void linear(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, IN = c->N, OUT = c->P;
    const dart_dtype act = conform_activation(c);
    conform_tensor *x = conform_input(d, act, T, IN, true, conform_unit), *weight = conform_input(d, c->dtype, OUT, IN, false, conform_unit);
    conform_tensor *y = conform_has(d, CASE_ADD) ? conform_input(d, act, T, OUT, true, conform_unit) : conform_output(d, act, T, OUT, true);
    double *want = doubles((uint64_t)T * OUT);
    oracle_linear(want, x->values, weight->values, conform_has(d, CASE_ADD) ? y->values : NULL, T, IN, OUT);
    dart_linear(d->stream, &(dart_linear_args){.T = T, .IN = IN, .OUT = OUT, .add = conform_has(d, CASE_ADD), .x = x->t, .weight = weight->t,
                                               .y = y->t});
    conform_execute(d);
    conform_compare(d, "y", y, want, conform_tolerance(BOUND_DOT, IN), conform_floor(act));
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
    oracle_linear(want, u, weight->values, NULL, T, IN, OUT);
    dart_norm_linear(d->stream, &(dart_norm_linear_args){.T = T, .IN = IN, .OUT = OUT, .eps = eps, .x = x->t, .norm = norm_->t, .weight = weight->t,
                                                         .y = y->t});
    conform_execute(d);
    /* Rows of tiles round x norm to the type of the weight before they multiply it. */
    conform_compare_within(d, "y", y, want, &(conform_limits){.bound = conform_tolerance(BOUND_NORM, 1) + conform_tolerance(BOUND_DOT, IN),
                                                              .operands = conform_ran(d, "mixer_project[matrix_") ? conform_rounding(c->dtype) : 0,
                                                              .floor = conform_floor(act)});
    free(u);
    free(want);
}

static void convert_fill(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, W = c->P;
    conform_tensor *x = conform_input(d, DART_F32, T, W, true, conform_unit), *y = conform_output(d, c->dtype, T, W, true);
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
    dart_convert(d->stream, &(dart_convert_args){.T = T, .W = W, .x = x->t, .y = y->t});
    dart_convert(d->stream, &(dart_convert_args){.T = T, .W = W, .x = y->t, .y = back->t});
    dart_fill(d->stream, &(dart_fill_args){.T = T, .W = W, .value = -1.5f, .y = filled->t});
    conform_execute(d);
    conform_compare(d, "y", y, want, 0, 0);
    conform_compare(d, "back", back, want, 0, 0);
    conform_compare(d, "filled", filled, value, 0, 0);
    free(want);
    free(value);
}

void conform_dense(conform_data *d)
{
    if (is(d, "embed")) embed(d);
    else if (is(d, "norm")) norm(d);
    else if (is(d, "gated_norm")) gated_norm(d);
    else if (is(d, "linear")) linear(d);
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
    dart_conv(d->stream, &args);
    if (args.keep_tail) dart_conv_tail(d->stream, &args);
    conform_execute(d);
    conform_compare(d, "y", y, want, conform_tolerance(BOUND_CONV, K), conform_floor(act));
    conform_compare(d, "tail", t, want_tail, 0, 0);
    free(want);
    free(want_tail);
    free(seq);
    free(counts);
}

static double logit(conform_data *d, uint64_t i)
{
    (void)i;
    return 3 * conform_normal(d);
}

/* argmax and sample on T rows of V logits, with ties, NaN and settings that differ from row to row; then advance, which some
 * sequences do not take part in and which ends others. */
void conform_choice(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, V = c->P, k = c->N;
    /* Not above 0: as argmax. */
    static const float temperatures[] = {0.75f, 1.25f, 0, NAN, 0.75f, 3, -1, 20};
    conform_tensor *logits = conform_input(d, c->dtype, T, V, true, logit);
    double *values = logits->values;
    if (V > 4)
        for (uint32_t t = 0; t < T; t += 2) {
            values[(size_t)t * V + V - 1] = values[(size_t)t * V + V / 2] = 12.5;
            values[(size_t)t * V] = NAN;
        }
    /* Two fifths of the row equal the largest: more than are kept, even of the part that a lane or a thread looks at. */
    for (uint32_t t = 1; t < T; t += 2)
        for (uint32_t i = 0; i < V; i++) values[(size_t)t * V + i] = fmin(values[(size_t)t * V + i], 0.5);
    for (uint32_t i = 0; i < V && T > 8; i++) values[8 * (size_t)V + i] = NAN;
    conform_set(d, logits, values);
    const uint64_t size = dart_dtype_size(c->dtype), row = logits->t.row != 0 ? logits->t.row : V;
    for (uint64_t i = 0; i < (uint64_t)T * V; i++) {
        const float value = (float)values[i];
        const uint64_t at = logits->t.offset + i / V * row + i % V;
        if (isnan(value)) dart_from_f32(c->dtype, (char *)logits->initial + at * size, &value, 1); /* which conform_set passes over */
    }
    enum { SLOTS = 5, SETTINGS = 4, STOPS = 5 };
    int32_t *best = calloc(T, sizeof *best), *drawn = calloc(T, sizeof *drawn), *seq = calloc(T, 2 * sizeof *seq),
             *after = calloc(T, 2 * sizeof *after);
    int32_t *settings = calloc((size_t)T * SETTINGS, sizeof *settings), *stops = calloc((size_t)T * STOPS, sizeof *stops);
    int32_t *live = calloc(T, sizeof *live), *kept = calloc(T, sizeof *kept);
    bool *near = calloc(T, sizeof *near);
    int32_t *logged = calloc((size_t)T * SLOTS, sizeof *logged);
    if (logged == NULL || best == NULL || drawn == NULL || seq == NULL || after == NULL || near == NULL || settings == NULL || stops == NULL ||
        live == NULL || kept == NULL)
        abort();
    for (uint32_t t = 0; t < T; t++) {
        const float temperature = temperatures[t % 8];
        const uint64_t seed = UINT64_C(0x123456789abcdef0) + UINT64_C(0x1000000010001) * t;
        memcpy(&settings[SETTINGS * t], &temperature, sizeof temperature);
        settings[SETTINGS * t + 1] = (int32_t)k;
        settings[SETTINGS * t + 2] = (int32_t)(uint32_t)seed;
        settings[SETTINGS * t + 3] = (int32_t)(seed >> 32);
        seq[2 * t] = (int32_t)(100 + 17 * t);
        seq[2 * t + 1] = t % 5 == 4 ? 0 : (int32_t)(1 + t % 2);
        after[2 * t] = seq[2 * t] + seq[2 * t + 1];
        after[2 * t + 1] = seq[2 * t + 1];
        best[t] = (int32_t)oracle_argmax(values + (size_t)t * V, V);
        const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, counter[4] = {(uint32_t)after[2 * t], t, 0, 0};
        uint32_t words[4];
        oracle_philox4x32_10(counter, key, words);
        const double u = words[0] * 0x1p-32;
        double low, high;
        drawn[t] = (int32_t)oracle_sample(values + (size_t)t * V, V, k, temperature > 0 ? (double)temperature : 0, u, &low, &high);
        /* f32 sums over V terms cannot tell draws this close to a border apart */
        const double margin = 0x1p-24 * (8 + sqrt((double)V));
        near[t] = temperature > 0 && (u - low < margin || high - u < margin);
    }
    /* Ended by an id, by the position, by neither though both are set, by nothing. */
    for (uint32_t t = 0; t < T; t++) {
        int32_t *stop = &stops[STOPS * t];
        for (uint32_t i = 0; i < STOPS - 1; i++)
            stop[i] = t % 4 == 0 && i == STOPS - 2 - t / 4 % (STOPS - 1) ? best[t] : t % 4 == 2 ? best[t] + 1 : -1;
        stop[STOPS - 1] = t % 4 == 1 ? after[2 * t] : t % 4 == 2 ? after[2 * t] + 1 : 0;
        live[t] = (int32_t)t;
    }
    conform_tensor *ids = conform_output(d, DART_I32, T, 1, false), *sampled = conform_output(d, DART_I32, T, 1, false);
    conform_tensor *held = conform_output(d, DART_I32, T, 1, false), *alive = conform_ints(d, T, 1, live);
    conform_tensor *set = conform_ints(d, T, SETTINGS, settings), *stop_ = conform_ints(d, T, STOPS, stops);
    conform_tensor *s = conform_ints(d, T, 2, seq);
    for (uint32_t i = 0; i < T * SLOTS; i++) logged[i] = 1000 + (int32_t)i;
    conform_tensor *log_ = conform_ints(d, T, SLOTS, logged);
    for (uint32_t t = 0; t < T; t++) {
        if (seq[2 * t + 1] == 0) continue;
        logged[t * SLOTS + (uint32_t)after[2 * t] % SLOTS] = best[t];
        if (t % 4 > 1) continue;
        after[2 * t + 1] = 0;
        live[t] = -1;
    }
    dart_argmax(d->stream, &(dart_argmax_args){.T = T, .V = V, .logits = logits->t, .ids = ids->t});
    dart_sample(d->stream, &(dart_sample_args){.T = T, .V = V, .logits = logits->t, .settings = set->t, .seq = s->t, .ids = sampled->t});
    dart_sample(d->stream, &(dart_sample_args){.T = T, .V = V, .keep_ended = true, .logits = logits->t, .settings = set->t, .seq = s->t,
                                               .ids = held->t});
    dart_advance(d->stream, &(dart_advance_args){.B = T, .slots = SLOTS, .seq = s->t, .ids = ids->t, .log = log_->t, .stops = stop_->t,
                                                 .live = alive->t});
    conform_execute(d);
    if (d->status == DART_OK)
        for (uint32_t t = 0; t < T; t++)
            if (near[t]) memcpy(&drawn[t], (const char *)sampled->initial + (sampled->t.offset + t) * 4, 4);
    for (uint32_t t = 0; t < T; t++) kept[t] = seq[2 * t + 1] == 0 ? -1 : drawn[t]; /* -1: the bits of an output before the op */
    conform_compare_ints(d, "argmax", ids, best);
    conform_compare_ints(d, "sample", sampled, drawn);
    conform_compare_ints(d, "sample_kept", held, kept);
    conform_compare_ints(d, "seq", s, after);
    conform_compare_ints(d, "log", log_, logged);
    conform_compare_ints(d, "live", alive, live);
    free(logged);
    free(settings);
    free(stops);
    free(live);
    free(kept);
    free(best);
    free(drawn);
    free(seq);
    free(after);
    free(near);
}
