/* Choice of tokens: argmax, sample, advance; sets of tokens; log-probabilities. */
#include "conform_backward.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double logit(conform_data *d, uint64_t i)
{
    (void)i;
    return 3 * conform_normal(d);
}

/* The token that dart_sample chooses by the settings of a row. *near: f32 sums over V terms cannot tell it from a neighbour. seen: NULL for none. */
static int32_t draw(const double *values, uint32_t V, const int32_t *settings, const int32_t *seen, int32_t position, uint32_t row, bool *near)
{
    float temperature, parts[3];
    memcpy(&temperature, &settings[0], sizeof temperature);
    memcpy(parts, &settings[4], sizeof parts);
    const uint32_t key[2] = {(uint32_t)settings[2], (uint32_t)settings[3]}, counter[4] = {(uint32_t)position, settings[7] < 0 ? 0 : row, 0, 0};
    uint32_t random[4];
    oracle_philox4x32_10(counter, key, random);
    /* A sum of V weights, in whatever order, errs by about sqrt(V) roundings; 8 more for exp and what is made of it. */
    const double u = random[0] * 0x1p-32, margin = 0x1p-24 * (8 + sqrt((double)V));
    double low, high, slack;
    const oracle_sample_args args = {.logits = values, .V = V, .k = (uint32_t)settings[1], .below = (uint32_t)settings[7] & 0x7fffffffu,
                                     .temperature = temperature > 0 ? (double)temperature : 0, .top_p = (double)parts[0], .min_p = (double)parts[1],
                                     .penalty = (double)parts[2], .seen = seen, .u = u, .margin = margin};
    const size_t id = oracle_sample(&args, &low, &high, &slack);
    *near = temperature > 0 && (u - low < margin + slack || high - u < margin + slack);
    return (int32_t)id;
}

/* argmax and sample on T rows of V logits, with ties, NaN and settings that differ from row to row, with S 2 all settings; then advance, which
 * some sequences do not take part in and which ends others. */
void conform_choice(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, V = c->P, k = c->N;
    /* Not above 0: as argmax. */
    static const float top_p[] = {0.9f, 0.5f, 0.3f, 0, 0.99f, 1, 0.2f, 0.7f}, min_p[] = {0, 0.1f, 0, 0.2f, 0.02f, 0.3f, 0, 0};
    static const float penalties[] = {1.3f, 2, 0, 0.5f, 1, 2, 0};
    static const float temperatures[] = {0.75f, 1.25f, 0, NAN, 0.75f, 3, -1, 20};
    conform_tensor *logits = conform_input(d, c->dtype, T, V, true, logit);
    double *values = logits->values;
    if (V > 4)
        for (uint32_t t = 0; t < T; t += 2) {
            values[(size_t)t * V + V - 1] = values[(size_t)t * V + V / 2] = 12.5;
            values[(size_t)t * V] = NAN;
        }
    /* Two fifths of some rows equal the largest: more than are kept, even of the part that a lane or a thread looks at. Rows 7, 15 .. stay as they
     * are: at their temperature each logit that is kept too much or too little shows. */
    for (uint32_t t = 1; t < T; t += 4)
        for (uint32_t i = 0; i < V; i++) values[(size_t)t * V + i] = fmin(values[(size_t)t * V + i], 0.5);
    for (uint32_t i = 0; i < V && T > 8; i++) values[8 * (size_t)V + i] = NAN;
    conform_set(d, logits, values);
    const uint64_t size = dart_dtype_size(c->dtype), row = logits->t.row != 0 ? logits->t.row : V;
    for (uint64_t i = 0; i < (uint64_t)T * V; i++) {
        const float value = (float)values[i];
        const uint64_t at = logits->t.offset + i / V * row + i % V;
        if (isnan(value)) dart_from_f32(c->dtype, (char *)logits->initial + at * size, &value, 1); /* which conform_set passes over */
    }
    enum { SLOTS = 5, SETTINGS = 8, STOPS = 5 };
    const bool full = c->S == 2;
    const uint32_t words = (V + 31) / 32;
    int32_t *best = calloc(T, sizeof *best), *drawn = calloc(T, sizeof *drawn), *seq = calloc(T, 2 * sizeof *seq),
             *after = calloc(T, 2 * sizeof *after);
    int32_t *settings = calloc((size_t)T * SETTINGS, sizeof *settings), *stops = calloc((size_t)T * STOPS, sizeof *stops);
    int32_t *live = calloc(T, sizeof *live), *kept = calloc(T, sizeof *kept);
    int32_t *seen = calloc((size_t)T * words + 1, sizeof *seen), *marked = calloc((size_t)T * words + 1, sizeof *marked);
    int32_t *past = calloc(T, sizeof *past), *again = calloc(T, sizeof *again);
    bool *near = calloc(T, sizeof *near), *near_again = calloc(T, sizeof *near_again);
    int32_t *logged = calloc((size_t)T * SLOTS, sizeof *logged);
    if (logged == NULL || best == NULL || drawn == NULL || seq == NULL || after == NULL || near == NULL || settings == NULL || stops == NULL ||
        live == NULL || kept == NULL || seen == NULL || marked == NULL || past == NULL || again == NULL || near_again == NULL)
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
        past[t] = -1;
        if (full) {
            const float parts[] = {top_p[t % 8], min_p[t % 8], penalties[t % 7]};
            memcpy(&settings[SETTINGS * t + 4], parts, sizeof parts);
            const uint32_t below[] = {V / 2, 0, V - V / 4, V, V / 2 + 1, V + 7};
            settings[SETTINGS * t + 7] = (int32_t)(below[t % 6] | (t % 4 == 1 ? UINT32_C(1) << 31 : 0)); /* the row counts as row 0 */
            if (t % 3 != 1) past[t] = (int32_t)conform_uniform(d, 0, V);
            for (uint32_t i = 0; i < V; i++)
                if (conform_uniform(d, 0, 1) < 0.3) seen[t * words + i / 32] = (int32_t)((uint32_t)seen[t * words + i / 32] | UINT32_C(1) << i % 32);
        }
        for (uint32_t w = 0; w < words; w++) marked[t * words + w] = seen[t * words + w];
        if (past[t] >= 0 && seq[2 * t + 1] != 0) {
            int32_t *word = &marked[t * words + (uint32_t)past[t] / 32];
            *word = (int32_t)((uint32_t)*word | UINT32_C(1) << past[t] % 32);
        }
        drawn[t] = draw(values + (size_t)t * V, V, &settings[SETTINGS * t], full ? &seen[t * words] : NULL, after[2 * t], t, &near[t]);
        again[t] = draw(values + (size_t)t * V, V, &settings[SETTINGS * t], full ? &marked[t * words] : NULL, after[2 * t], t, &near_again[t]);
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
    conform_tensor *held = conform_ints(d, T, 1, past), *set_of = full ? conform_ints(d, T, words, seen) : NULL, *alive = conform_ints(d, T, 1, live);
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
    while (conform_next(d)) {
        dart_argmax(d->stream, &(dart_argmax_args){.T = T, .V = V, .logits = logits->t, .ids = ids->t});
        dart_sample(d->stream, &(dart_sample_args){.T = T, .V = V, .logits = logits->t, .settings = set->t, .seq = s->t, .seen = conform_view(set_of),
                                                   .ids = sampled->t});
        dart_sample(d->stream, &(dart_sample_args){.T = T, .V = V, .keep_ended = true, .mark_ids = full, .logits = logits->t, .settings = set->t,
                                                   .seq = s->t, .seen = conform_view(set_of), .ids = held->t});
        dart_advance(d->stream, &(dart_advance_args){.B = T, .slots = SLOTS, .seq = s->t, .ids = ids->t, .log = log_->t, .stops = stop_->t,
                                                     .live = alive->t});
        if (!conform_execute(d)) continue;
        for (uint32_t t = 0; t < T; t++) {
            if (near[t]) memcpy(&drawn[t], (const char *)sampled->initial + (sampled->t.offset + t) * 4, 4);
            if (near_again[t]) memcpy(&again[t], (const char *)held->initial + (held->t.offset + t) * 4, 4);
        }
        for (uint32_t t = 0; t < T; t++) kept[t] = seq[2 * t + 1] == 0 ? past[t] : again[t];
        conform_compare_ints(d, "argmax", ids, best);
        conform_compare_ints(d, "sample", sampled, drawn);
        conform_compare_ints(d, "sample_kept", held, kept);
        if (full) conform_compare_ints(d, "seen", set_of, marked);
        conform_compare_ints(d, "seq", s, after);
        conform_compare_ints(d, "log", log_, logged);
        conform_compare_ints(d, "live", alive, live);
    }
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
    free(near_again);
    free(seen);
    free(marked);
    free(past);
    free(again);
}

/* Tokens of sequences into sets that have members already. */
void conform_mark_ids(conform_data *d)
{
    const uint32_t V = d->c->P, B = d->c->B, words = (V + 31) / 32;
    backward_rows rows;
    backward_rows_make(d, &rows);
    int32_t *ids = calloc(rows.rows, sizeof *ids), *seen = calloc((size_t)B * words, sizeof *seen);
    if (ids == NULL || seen == NULL) abort();
    for (uint64_t i = 0; i < rows.rows; i++) ids[i] = i % 7 == 5 ? (int32_t)V : i % 11 == 3 ? -1 : (int32_t)conform_uniform(d, 0, V);
    for (uint64_t i = 0; i < (uint64_t)B * words; i++) seen[i] = i % 3 == 0 ? INT32_MIN + 5 : 0;
    conform_tensor *from = conform_ints(d, rows.rows, 1, ids), *set = conform_ints(d, B, words, seen), *seq = backward_seq(d, &rows);
    for (size_t b = 0; b < B; b++)
        for (size_t k = rows.begin[b]; k < rows.begin[b + 1]; k++) {
            const int32_t id = ids[rows.row_of[k]];
            if (id < 0 || id >= (int32_t)V) continue;
            int32_t *word = &seen[b * words + (size_t)id / 32];
            *word = (int32_t)((uint32_t)*word | UINT32_C(1) << id % 32);
        }
    while (conform_next(d)) {
        dart_mark_ids(d->stream, &(dart_mark_ids_args){.B = B, .L = d->c->L, .T = rows.packing.T, .V = V, .ids = from->t, .seq = conform_view(seq),
                                                       .cu = rows.cu, .seen = set->t});
        if (!conform_execute(d)) continue;
        conform_compare_ints(d, "seen", set, seen);
    }
    backward_rows_free(&rows);
    free(ids);
    free(seen);
}

/* Where the least result stands it becomes -infinity, which is compared exactly and apart: errors beside it would vanish in its size. */
static void swap_lowest(const conform_tensor *tensor, double lowest)
{
    float *values = (float *)tensor->initial + tensor->t.offset;
    for (uint64_t i = 0; i < tensor->rows * tensor->width; i++) {
        if (values[i] == (float)lowest) values[i] = -INFINITY;
        else if (values[i] == -INFINITY) values[i] = (float)lowest;
    }
}

/* L rows of P logits with ties, NaN and -infinity, k = N; without targets and the largest ones, too. With CASE_ZERO every row has no number above
 * -infinity. */
void conform_log_probs(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, V = c->P, k = c->N;
    const double lowest = (double)-3.4e38f;
    const bool empty = conform_has(d, CASE_ZERO);
    conform_tensor *logits = conform_input(d, c->dtype, T, V, true, logit);
    const uint64_t size = dart_dtype_size(c->dtype), row = logits->t.row != 0 ? logits->t.row : V;
    double *values = logits->values;
    for (uint64_t i = 0; i < (uint64_t)T * V; i++) {
        const uint64_t t = i / V, v = i % V;
        if (empty) values[i] = (v + t) % 3 == 0 ? NAN : -INFINITY;
        else if (V > 9 && t % 2 == 0 && (v == V - 1 || v == V / 2)) values[i] = 12.5;
        else if (V > 9 && t % 3 == 1 && v % 5 == 2) values[i] = v % 2 == 0 ? NAN : -INFINITY;
        const float value = (float)values[i];
        dart_from_f32(c->dtype, (char *)logits->initial + (logits->t.offset + t * row + v) * size, &value, 1);
    }
    int32_t *targets = calloc(T, sizeof *targets), *ids = calloc((size_t)T * k + 1, sizeof *ids);
    double *log_z = calloc(T, sizeof *log_z), *target = calloc(T, sizeof *target), *top = calloc((size_t)T * k + 1, sizeof *top);
    double *size_z = calloc(T, sizeof *size_z), *size_target = calloc(T, sizeof *size_target);
    double *size_top = calloc((size_t)T * k + 1, sizeof *size_top);
    if (targets == NULL || ids == NULL || log_z == NULL || target == NULL || top == NULL || size_z == NULL || size_target == NULL || size_top == NULL)
        abort();
    for (uint32_t t = 0; t < T; t++) {
        const double *of = values + (size_t)t * V, largest = of[oracle_argmax(of, V)];
        double sum = 0;
        for (uint32_t i = 0; i < V; i++)
            if (of[i] > -INFINITY) sum += exp(of[i] - largest);
        log_z[t] = empty ? lowest : largest + log(sum);
        /* The sum's relative error is absolute in its logarithm; the largest logit and the result are rounded beside it. */
        size_z[t] = empty ? 1 : 1 + fabs(largest) + fabs(log_z[t]);
        uint32_t v = (uint32_t)conform_uniform(d, 0, V);
        while (!empty && !(of[v] > -INFINITY)) v = (v + 1) % V;
        targets[t] = t % 5 == 3 ? -1 : t % 5 == 4 ? (int32_t)V : (int32_t)v;
        target[t] = t % 5 >= 3 ? 0 : empty ? lowest : of[v] - log_z[t];
        size_target[t] = size_z[t] + (empty ? 0 : fabs(of[v]));
        int64_t before = -1;
        for (uint32_t n = 0; n < k; n++) {
            int64_t next = -1;
            for (uint32_t i = 0; i < V; i++) {
                if (isnan(of[i])) continue;
                const bool behind = before < 0 || of[i] < of[before] || (of[i] == of[before] && (int64_t)i > before);
                if (behind && (next < 0 || of[i] > of[next])) next = i;
            }
            ids[t * k + n] = (int32_t)next;
            const bool none = next < 0 || empty || !(of[next] > -INFINITY);
            top[t * k + n] = none ? lowest : of[next] - log_z[t];
            size_top[t * k + n] = size_z[t] + (none ? 0 : fabs(of[next]));
            before = next;
            if (next < 0)
                while (++n < k) {
                    ids[t * k + n] = -1;
                    top[t * k + n] = lowest;
                }
        }
    }
    conform_tensor *labels = conform_ints(d, T, 1, targets), *z = conform_output(d, DART_F32, T, 1, false);
    conform_tensor *got = conform_output(d, DART_F32, T, 1, false), *alone = conform_output(d, DART_F32, T, 1, false), *first = NULL, *best = NULL;
    dart_log_probs_args args = {.T = T, .V = V, .k = k, .logits = logits->t, .targets = labels->t, .log_z = z->t, .target = got->t};
    for (uint32_t i = 0; i < T * k && !empty; i++)
        if (top[i] == lowest) top[i] = -INFINITY;
    if (k > 0) {
        first = conform_output(d, DART_I32, T, k, false);
        best = conform_output(d, DART_F32, T, k, false);
        args.top_ids = first->t;
        args.top = best->t;
    }
    while (conform_next(d)) {
        dart_log_probs(d->stream, &args);
        dart_log_probs(d->stream, &(dart_log_probs_args){.T = T, .V = V, .logits = logits->t, .log_z = alone->t});
        if (!conform_execute(d)) continue;
        const double bound = empty ? 0 : conform_tolerance(BOUND_NORM, V);
        conform_compare_within(d, "log_z", z, log_z, &(conform_limits){.bound = bound, .terms = size_z});
        conform_compare_within(d, "log_z_alone", alone, log_z, &(conform_limits){.bound = bound, .terms = size_z});
        conform_compare_within(d, "target", got, target, &(conform_limits){.bound = bound, .terms = size_target});
        if (k > 0) {
            conform_compare_ints(d, "top_ids", first, ids);
            if (!empty) swap_lowest(best, lowest);
            conform_compare_within(d, "top", best, top, &(conform_limits){.bound = bound, .terms = size_top});
        }
    }
    free(targets);
    free(ids);
    free(log_z);
    free(target);
    free(top);
    free(size_z);
    free(size_target);
    free(size_top);
}
