/* Steps through windows: opened from a state, a token at a time, and closed again. */
#include "conform_data.h"
#include "conform_seq.h"

#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { K = 4 };


typedef struct window_case {
    conform_seq seq;
    uint32_t C, kept, M; /* channels [x|b|c], those kept, chunks of a sequence */
    uint64_t rows, state;
    bool half;
    conform_runs runs;
    conform_tensor *x, *dt, *taps, *bias, *tail, *a_log, *dt_bias, *skip, *seqs, *conv, *y, *h, *open, *open_decay;
    conform_tensor *window, *steps, *hin, *hin_scale;
} window_case;

/* Row t: the pairs of step t; row L: those after the last one. Rows L + 1 and L + 2: the positions of step 1, counts of 1 for every other
 * sequence. */
static conform_tensor *pairs_of(conform_data *d, const window_case *k)
{
    const conform_case *c = d->c;
    int32_t *pairs = malloc(2 * sizeof *pairs * c->B * (c->L + 3));
    if (pairs == NULL) abort();
    for (uint32_t t = 0; t <= c->L; t++)
        for (uint32_t b = 0; b < c->B; b++) {
            const int32_t count = k->seq.count[b], taken = (int32_t)t < count ? (int32_t)t : count;
            pairs[2 * (t * c->B + b)] = k->seq.pos[b] + taken;
            pairs[2 * (t * c->B + b) + 1] = (int32_t)t < count ? 1 : -1 - (int32_t)b; /* counts as 0 */
        }
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t b = 0; b < c->B; b++) {
            int32_t *pair = &pairs[2 * ((c->L + 1 + i) * c->B + b)];
            pair[0] = pairs[2 * (c->B + b)];
            pair[1] = b % 2 == i;
        }
    conform_tensor *made = conform_ints(d, c->L + 3, 2 * (uint64_t)c->B, pairs);
    free(pairs);
    return made;
}

static void make(conform_data *d, window_case *k)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const uint64_t slots = (uint64_t)c->B * dart_window_tokens();
    conform_seq_make(d, &k->seq);
    k->C = c->H * c->P + 2 * c->G * c->N;
    k->kept = c->H * c->P + c->G * c->N;
    k->M = dart_ssd_chunks(c->L, c->S, true);
    k->rows = (uint64_t)c->B * c->L;
    k->state = (uint64_t)c->H * c->N * c->P;
    k->half = act != DART_F32;
    k->x = conform_input(d, act, k->rows, k->C, false, conform_unit);
    k->dt = conform_input(d, act, k->rows, c->H, false, conform_unit);
    k->taps = conform_input(d, c->dtype, k->C, K, false, conform_unit);
    k->tail = conform_input(d, act, (uint64_t)c->B * (K - 1), k->C, false, conform_unit);
    k->a_log = conform_input(d, c->dtype, 1, c->H, false, conform_a_log);
    if (conform_has(d, CASE_PARAMS)) {
        k->bias = conform_input(d, c->dtype, 1, k->C, false, conform_unit);
        k->dt_bias = conform_input(d, c->dtype, 1, c->H, false, conform_bias);
        k->skip = conform_input(d, c->dtype, 1, c->H, false, conform_unit);
    }
    k->seqs = pairs_of(d, k);
    k->conv = conform_output(d, act, k->rows, k->C, false);
    k->y = conform_output(d, act, k->rows, (uint64_t)c->H * c->P, false);
    k->h = conform_input(d, DART_F32, c->B, k->state, false, conform_unit);
    k->window = conform_input(d, act, slots, k->kept, false, conform_unit);
    k->steps = conform_output(d, DART_F32, slots, 2 * (uint64_t)c->H, false);
    k->hin = conform_output(d, act, c->B, k->state, false);
    if (k->half) k->hin_scale = conform_output(d, DART_F32, c->B, (uint64_t)c->H * c->N, false);
    if (!conform_has(d, CASE_OPEN)) return;
    conform_open_make(d, &k->seq, &k->open, &k->open_decay);
    conform_runs_make(d, &k->seq, &k->runs);
}

/* What belongs to step t. */
static dart_tensor step_of(const conform_data *d, const conform_tensor *tensor, uint32_t t)
{
    dart_tensor part = tensor->t;
    part.offset += t * tensor->width;
    part.row = d->c->L * tensor->width;
    return part;
}

/* Sequences leave their windows behind step 0 and come back in two lots. */
static void rejoin(conform_data *d, dart_window_args *a)
{
    const uint32_t L = d->c->L;
    const dart_tensor all = a->seq;
    a->mode = DART_WINDOW_CLOSE;
    dart_window_fold(d->stream, a);
    a->mode = DART_WINDOW_JOIN;
    for (uint32_t i = 0; i < 2; i++) {
        a->seq.offset = all.offset + (uint64_t)(L + i) * 2 * d->c->B;
        dart_window_fold(d->stream, a);
    }
    a->seq = all;
}

static void record(conform_data *d, window_case *k)
{
    const conform_case *c = d->c;
    dart_window_args a = {
        .B = c->B, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .K = K, .S = c->S, .dt_min = 0.001f, .eps = 1e-5f,
            .conv_weight = k->taps->t,
        .conv_bias = conform_view(k->bias), .tail = k->tail->t, .a_log = k->a_log->t, .dt_bias = conform_view(k->dt_bias),
        .d = conform_view(k->skip), .h = k->h->t, .open = conform_view(k->open), .open_decay = conform_view(k->open_decay),
        .rows = k->window->t, .steps = k->steps->t, .hin = k->hin->t, .hin_scale = conform_view(k->hin_scale),
            .closing = k->runs.runs,
        .closing_count = k->runs.count};
    for (uint32_t t = 0; t <= c->L; t++) {
        const uint32_t of = t < c->L ? t : 0; /* the last fold looks at none of them */
        a.x = step_of(d, k->x, of);
        a.dt = step_of(d, k->dt, of);
        a.conv = step_of(d, k->conv, of);
        a.y = step_of(d, k->y, of);
        a.seq = k->seqs->t;
        a.seq.offset += (uint64_t)t * 2 * c->B;
        a.mode = t == 0 ? DART_WINDOW_OPEN : DART_WINDOW_JOIN;
        if (t == c->L) dart_window_fold(d->stream, &a); /* nothing joins: all counts are 0 */
        if (t == c->L) a.mode = DART_WINDOW_CLOSE;
        if (t == 0 || t == c->L) dart_window_fold(d->stream, &a);
        if (t == c->L) break;
        if (t == 1) rejoin(d, &a);
        a.mode = DART_WINDOW_STEP;
        dart_window_append(d->stream, &a);
        dart_window_output(d->stream, &a);
        dart_window_fold(d->stream, &a);
    }
}

/* Columns of what the convolution leaves, as they are stored. */
static double *columns(const double *rows, dart_dtype dtype, uint64_t count, uint64_t width, uint64_t first, uint64_t part)
{
    double *out = conform_filled(count * part, 0);
    for (uint64_t i = 0; i < count; i++)
        for (uint64_t k = 0; k < part; k++) out[i * part + k] = conform_rounded(dtype, rows[i * width + first + k]);
    return out;
}

void conform_window(conform_data *d)
{
    const conform_case *c = d->c;
    window_case k = {0};
    make(d, &k);
    const dart_dtype act = conform_activation(c);
    const uint64_t I = (uint64_t)c->H * c->P, GN = (uint64_t)c->G * c->N;
    double *conv = conform_filled(k.rows * k.C, NAN), *tail = conform_filled((uint64_t)c->B * (K - 1) * k.C, 0), *y = conform_filled(k.rows * I, NAN);
    double *dh = conform_filled((uint64_t)c->B * k.M * k.state, NAN), *h = conform_filled(c->B * k.state, NAN), *open = conform_filled(c->B * k.state,
        NAN);
    double *decay = conform_filled((uint64_t)c->B * c->H, NAN);
    if (!d->plan) oracle_conv(&(oracle_conv_args){.B = c->B, .L = c->L, .C = k.C, .K = K, .x = k.x->values, .weight = k.taps->values,
                                    .bias = k.bias != NULL ? k.bias->values : NULL, .tail_in = k.tail->values,
                                        .count = k.seq.count, .out = conv,
                                    .tail_out = tail});
    double *x = columns(conv, act, k.rows, k.C, 0, I), *b_ = columns(conv, act, k.rows, k.C, I, GN), *c_ = columns(conv, act,
        k.rows, k.C, I + GN, GN);
    if (!d->plan) oracle_ssd(&(oracle_ssd_args){
        .B = c->B, .L = c->L, .H = c->H, .G = c->G, .P = c->P, .N = c->N, .S = c->S, .M = k.M, .x = x, .dt = k.dt->values,
            .a_log = k.a_log->values,
        .b = b_, .c = c_, .dt_bias = k.dt_bias != NULL ? k.dt_bias->values : NULL,
            .d = k.skip != NULL ? k.skip->values : NULL, .dt_min = 0.001f,
        .pos = k.seq.pos, .count = k.seq.count, .h_in = k.h->values, .dh_open_in = k.open != NULL ? k.open->values : NULL,
        .log_open_in = k.open != NULL ? k.open_decay->values : NULL, .y = y, .dh = dh, .h_out = k.open != NULL ? NULL : h,
        .h_border_out = k.open != NULL ? h : NULL, .dh_open_out = open, .log_open_out = decay});
    while (conform_next(d)) {
        record(d, &k);
        if (!conform_execute(d)) continue;
        /* An element of x, b or c next to a border of rounding may have fallen the other way, a whole step, which is twice the largest error
         * of rounding: one token may make up a state, and one element its row. y may show the rounding of hin, too, and its own. */
        const double fallen = 2 * conform_rounding(act);
        conform_limits states = {.bound = conform_tolerance(BOUND_CONV, K) + conform_tolerance(BOUND_SCAN, c->L), .operands = fallen};
        conform_limits outputs = {.bound = conform_tolerance(BOUND_CONV, K) + conform_tolerance(BOUND_SCAN, c->L + c->N),
                                  .operands = fallen + conform_rounding(act), .floor = conform_floor(act)};
        conform_compare(d, "conv", k.conv, conv, conform_tolerance(BOUND_CONV, K), conform_floor(act));
        conform_compare(d, "tail", k.tail, tail, 0, conform_floor(act));
        conform_compare_within(d, "y", k.y, y, &outputs);
        conform_compare_within(d, "h", k.h, h, &states);
        if (k.open != NULL) {
            conform_compare_within(d, "open", k.open, open, &states);
            conform_compare(d, "open_decay", k.open_decay, decay, conform_tolerance(BOUND_DECAY, 0), 0);
            conform_compare_runs(d, &k.seq, &k.runs, k.M, dh, states);
        }
    }
    conform_seq_free(&k.seq);
    double *all[] = {conv, tail, y, dh, h, open, decay, x, b_, c_};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}
