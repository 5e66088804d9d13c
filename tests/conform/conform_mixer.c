/* The step of a mixer: every stage of it against the oracle's, put together. */
#include "conform_seq.h"
#include "conform_weights.h"

#include "oracle.h"

#include "ops/mixer/mixer.h"
#include "ops/window/window.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { K = 4, RUNS = 2 };

static double around_one(conform_data *d, uint64_t i)
{
    (void)i;
    return conform_uniform(d, 0.5, 2);
}
/* So that the logits, of size sqrt(P) or so, stay of one. */
static double small(conform_data *d, uint64_t i)
{
    (void)i;
    return conform_normal(d) / sqrt((double)d->c->L);
}

/* A matrix, plain or quantised, and its last rows where they lie apart. */
typedef struct matrix {
    dart_tensor t, rest;
    double *values; /* all rows */
} matrix;

typedef struct mixer_case {
    conform_seq seq;
    matrix in_proj, out_proj, sma_proj;
    uint32_t B, W, I, R, Q, C, D, GN, GP, M; /* channels of both convolutions; memories a sequence has room for */
    uint64_t state;
    bool sma;
    bool windows; /* by mixer_windows or window_project where the device has one of them, else behind the tokens of the window */
    bool layers;  /* by mixer_layers where the device has it, with parameters in f32 as models keep them */
    float eps;
    conform_tensor *x, *seqs, *norm, *taps, *bias, *dt_bias, *a_log, *skip, *mixer_norm;
    conform_tensor *sma_taps, *sma_bias, *tail, *sma_tail, *h, *open, *open_decay, *proj, *queries, *y;
    conform_tensor *dh[RUNS], *scale[RUNS];
    struct { conform_tensor *rows, *tokens, *steps, *hin, *scale, *after, *unused; } window; /* tokens: what steps are before */
    struct { conform_tensor *proj, *conv, *queries, *sma_conv, *y, *r; } work; /* of a step through windows in several launches */
    double *from_h, *from_open, *from_decay; /* h, open and open_decay with the tokens of the window, if there is one */
    uint32_t first[RUNS + 1];
    double largest; /* |logit| */
    double cancelled; /* |terms of y| / |y| of a row, at most */
    double *u, *want_x, *want_proj, *want_queries, *want_tail, *want_sma_tail, *want_y, *terms, *want_h, *want_open, *want_decay, *r, *gate;
    double *want_dh[RUNS], *want_scale[RUNS];
} mixer_case;

static dart_tensor make_rows(conform_data *d, uint32_t rows, uint32_t width, double *values)
{
    const conform_tensor *plain = conform_input(d, d->c->dtype, rows, width, false, small);
    memcpy(values, plain->values, (size_t)rows * width * sizeof *values);
    return plain->t;
}

/* rows x width. In cases of mixer_quantised they are quantised, q4 with CASE_ADD, else q8, but for the last `rest`, which lie apart; in cases of
 * mixer these lie apart with CASE_ADD. */
static matrix make_matrix(conform_data *d, uint32_t rows, uint32_t width, uint32_t rest)
{
    matrix m = {.values = conform_filled((uint64_t)rows * width, 0)};
    const bool quantised = strcmp(d->c->op, "mixer_quantised") == 0, add = conform_has(d, CASE_ADD);
    const uint32_t first = quantised || add ? rows - rest : rows;
    if (first < rows) m.rest = make_rows(d, rows - first, width, m.values + (size_t)first * width);
    if (quantised) {
        const conform_quantised q = conform_quantised_make(d, first, width, add, 1 / sqrt((double)d->c->L));
        memcpy(m.values, q.values, (size_t)first * width * sizeof *m.values);
        free(q.values);
        m.t = q.t;
    } else {
        m.t = make_rows(d, first, width, m.values);
    }
    return m;
}

static double decay_or_step(conform_data *d, uint64_t i) { return i % 2 == 0 ? conform_uniform(d, -1, -0.01) : conform_uniform(d, 0.01, 0.5); }

static uint32_t slot_of(const conform_data *d, const mixer_case *k, uint32_t b) { return (uint32_t)k->seq.pos[b] % d->c->S % dart_window_tokens(); }

/* Places in a window of all kinds: the first and the last, behind which windows fold, those of chunks that close. Of chunks larger than draws make
 * sequences have the first one only, so that none sees a memory. */
static void place_in_windows(conform_data *d, mixer_case *k)
{
    const int32_t S = (int32_t)d->c->S, slots = (int32_t)dart_window_tokens(), chunks = S > 300 ? 1 : 4;
    for (uint32_t b = 0; b < k->B; b++) {
        const int32_t any = (int32_t)conform_uniform(d, 0, S), full = (any / slots * slots + slots - 1) % S;
        const int32_t at[] = {any, S - 1, any, full, any, 0};
        k->seq.pos[b] = k->seq.pairs[2 * b] = (int32_t)b % chunks * S + at[b % 6];
    }
}

/* Tokens in the slots before the own one of each sequence. */
static void make_windows(conform_data *d, mixer_case *k)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const uint64_t slots = dart_window_tokens(), all = k->B * slots, width = 2 * (uint64_t)c->H;
    int32_t *after = malloc(2 * sizeof *after * k->B);
    if (after == NULL) abort();
    k->window.rows = conform_input(d, act, all, k->I + k->GN, false, conform_unit);
    k->window.tokens = conform_input(d, DART_F32, all, width, false, decay_or_step);
    k->window.steps = conform_output(d, DART_F32, all, width, false);
    k->window.hin = conform_output(d, act, k->B, k->state, false);
    if (act != DART_F32) k->window.scale = conform_output(d, DART_F32, k->B, (uint64_t)c->H * c->N, false);
    k->window.unused = conform_input(d, act, k->B, k->C, false, conform_unit);
    k->work.proj = conform_output(d, act, k->B, k->R, false);
    k->work.conv = conform_output(d, act, k->B, k->C, false);
    k->work.y = conform_output(d, act, k->B, k->I, false);
    if (k->sma) k->work.queries = conform_output(d, act, k->B, k->Q, false);
    if (k->sma) k->work.sma_conv = conform_output(d, act, k->B, k->D, false);
    if (k->sma) k->work.r = conform_output(d, DART_F32, k->B, k->I, false);
    for (uint32_t b = 0; b < k->B; b++) {
        double *from = k->window.tokens->values + (b * slots + slot_of(d, k, b)) * width;
        memset(from, 0, (size_t)((slots - slot_of(d, k, b)) * width) * sizeof *from);
        after[2 * b] = k->seq.pos[b] + (k->seq.count[b] > 0);
        after[2 * b + 1] = 1;
    }
    conform_set(d, k->window.tokens, k->window.tokens->values);
    k->window.after = conform_ints(d, k->B, 2, after);
    free(after);
}

/* What the states are with the tokens of the windows. */
static void add_windows(const conform_data *d, mixer_case *k)
{
    const conform_case *c = d->c;
    const uint32_t slots = dart_window_tokens(), N = c->N, P = c->P;
    const uint64_t kept = k->I + k->GN;
    double *to_all = k->sma ? k->from_open : k->from_h;
    for (uint32_t b = 0; b < k->B && k->windows; b++)
        for (uint32_t h = 0; h < c->H; h++) {
            double *to = to_all + b * k->state + (uint64_t)h * N * P;
            for (uint32_t t = 0; t < slot_of(d, k, b); t++) {
                const double *pair = k->window.tokens->values + ((uint64_t)(b * slots + t) * c->H + h) * 2;
                const double *row = k->window.rows->values + (b * slots + t) * kept, *key = row + k->I + h / (c->H / c->G) * N;
                for (uint32_t i = 0; i < N * P; i++) to[i] = exp(pair[0]) * to[i] + pair[1] * key[i / P] * row[h * P + i % P];
                if (k->sma) k->from_decay[b * c->H + h] += pair[0];
            }
        }
}

static double *copy_of(const conform_tensor *tensor)
{
    double *values = conform_filled(tensor->rows * tensor->width, 0);
    memcpy(values, tensor->values, (size_t)(tensor->rows * tensor->width) * sizeof *values);
    return values;
}

static void make(conform_data *d, mixer_case *k)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const uint32_t B = k->B = c->B, W = k->W = c->L;
    k->windows = strcmp(c->op, "mixer_windows") == 0;
    k->layers = k->windows || strcmp(c->op, "mixer_layers") == 0;
    const dart_dtype own = k->layers ? DART_F32 : c->dtype;
    conform_case one = *c;
    one.L = 1;
    d->c = &one;
    conform_seq_make(d, &k->seq);
    d->c = c;
    /* The last token of its fifth chunk, where S is small enough for four memories: rows for one sequence see some. */
    if (B == 1 && conform_has(d, CASE_SEQ) && c->S < 256) k->seq.pos[0] = k->seq.pairs[0] = (int32_t)(5 * c->S - 1);
    if (k->windows) place_in_windows(d, k);
    k->sma = conform_has(d, CASE_OPEN);
    k->eps = 1e-5f;
    k->I = c->H * c->P;
    k->GN = c->G * c->N;
    k->GP = c->G * c->P;
    k->C = k->I + 2 * k->GN;
    k->D = k->GN + k->GP;
    k->R = k->I + k->C + c->H;
    k->Q = (k->D + 8) / 8 * 8;
    k->state = (uint64_t)c->H * c->N * c->P;
    k->x = conform_input(d, DART_F32, B, W, true, conform_unit);
    if (conform_has(d, CASE_SEQ)) k->seqs = conform_ints(d, B, 2, k->seq.pairs);
    k->norm = conform_input(d, own, 1, W, false, around_one);
    k->in_proj = make_matrix(d, k->R, W, c->H);
    k->taps = conform_input(d, own, k->C, K, false, conform_unit);
    if (conform_has(d, CASE_PARAMS)) k->bias = conform_input(d, own, 1, k->C, false, conform_unit);
    k->dt_bias = conform_input(d, own, 1, c->H, false, conform_bias);
    k->a_log = conform_input(d, own, 1, c->H, false, conform_a_log);
    k->skip = conform_input(d, own, 1, c->H, false, conform_unit);
    k->mixer_norm = conform_input(d, own, 1, k->I, false, around_one);
    k->out_proj = make_matrix(d, W, k->I, 0);
    k->tail = conform_input(d, act, (uint64_t)B * (K - 1), k->C, false, conform_unit);
    k->h = conform_input(d, DART_F32, B, k->state, false, conform_unit);
    if (!k->layers) k->proj = conform_output(d, DART_F32, B, k->R, false);
    if (!k->layers) k->y = conform_output(d, DART_F32, B, k->I, false);
    if (k->windows) make_windows(d, k);
    if (!k->sma) return;
    k->sma_proj = make_matrix(d, k->Q, W, k->Q - k->D);
    k->sma_taps = conform_input(d, own, k->D, K, false, conform_unit);
    if (conform_has(d, CASE_PARAMS)) k->sma_bias = conform_input(d, own, 1, k->D, false, conform_unit);
    k->sma_tail = conform_input(d, act, (uint64_t)B * (K - 1), k->D, false, conform_unit);
    conform_open_make(d, &k->seq, &k->open, &k->open_decay);
    for (uint32_t b = 0; b < B; b++)
        if ((uint32_t)k->seq.pos[b] / c->S + 1 > k->M) k->M = (uint32_t)k->seq.pos[b] / c->S + 1;
    if (!k->layers) k->queries = conform_output(d, DART_F32, B, k->Q, false);
    k->first[1] = (k->M + 1) / 2;
    k->first[2] = k->M;
    for (uint32_t i = 0; i < RUNS && k->first[i] < k->first[i + 1]; i++) {
        const uint64_t memories = (uint64_t)B * (k->first[i + 1] - k->first[i]);
        k->dh[i] = conform_input(d, c->dtype, memories, k->state, false, conform_unit);
        k->scale[i] = conform_input(d, DART_F32, memories, (uint64_t)c->H * c->N, false, around_one);
    }
}

/* One convolution of all rows: columns first .. first + C - 1 of `rows` in place. */
static void convolve(const mixer_case *k, double *rows, uint64_t width, uint64_t first, uint32_t C, const conform_tensor *taps,
                     const conform_tensor *bias, const conform_tensor *tail, double *want_tail)
{
    double *in = conform_filled((uint64_t)k->B * C, 0);
    for (uint32_t b = 0; b < k->B; b++) memcpy(in + (size_t)b * C, rows + b * width + first, C * sizeof *in);
    double *out = conform_filled((uint64_t)k->B * C, 0);
    oracle_conv(&(oracle_conv_args){.B = k->B, .L = 1, .C = C, .K = K, .x = in, .weight = taps->values, .bias = bias != NULL ? bias->values : NULL,
                                    .tail_in = tail->values, .count = k->seq.count, .out = out, .tail_out = want_tail});
    for (uint32_t b = 0; b < k->B; b++) memcpy(rows + b * width + first, out + (size_t)b * C, C * sizeof *out);
    free(out);
    free(in);
}

static double *columns(const double *rows, uint64_t count, uint64_t width, uint64_t first, uint64_t part)
{
    double *out = conform_filled(count * part, 0);
    for (uint64_t b = 0; b < count; b++) memcpy(out + b * part, rows + b * width + first, (size_t)part * sizeof *out);
    return out;
}

/* r of (b, h): the definition on the stored form, key dh and value scale dh. */
static void attend(const conform_data *d, mixer_case *k, uint32_t b, uint32_t h)
{
    const conform_case *c = d->c;
    const uint32_t g = h / (c->H / c->G), N = c->N, P = c->P, seen = (uint32_t)k->seq.pos[b] / c->S;
    const double *q = k->want_queries + (uint64_t)b * k->Q + g * N, *e = k->want_queries + (uint64_t)b * k->Q + k->GN + g * P;
    const double *read = k->want_proj + (uint64_t)b * k->R + 2 * k->I + k->GN + g * N;
    double *r = k->r + (uint64_t)b * k->I + h * P, q_mean = k->eps, e_mean = k->eps, top = -INFINITY, sum = 0;
    for (uint32_t n = 0; n < N; n++) q_mean += q[n] * q[n] / N;
    for (uint32_t p = 0; p < P; p++) e_mean += e[p] * e[p] / P;
    double *logits = conform_filled(seen, 0);
    for (int pass = 0; pass < 3; pass++) {
        for (uint32_t m = 0; m < seen; m++) {
            const uint32_t i = m >= k->first[1], M = k->first[i + 1] - k->first[i];
            const uint64_t at = ((uint64_t)b * M + (m - k->first[i])) * c->H + h;
            const double *dh = k->dh[i]->values + at * N * P, *scale = k->scale[i]->values + at * N;
            for (uint32_t n = 0; n < N && pass == 0; n++)
                for (uint32_t p = 0; p < P; p++) logits[m] += q[n] * dh[n * P + p] * e[p] / sqrt(q_mean * e_mean * N);
            if (pass == 0) top = fmax(top, logits[m]);
            if (pass == 0) k->largest = fmax(k->largest, fabs(logits[m]));
            if (pass == 1) sum += exp(logits[m] - top);
            for (uint32_t n = 0; n < N && pass == 2; n++)
                for (uint32_t p = 0; p < P; p++) r[p] += exp(logits[m] - top) / sum * read[n] * scale[n] * dh[n * P + p];
        }
    }
    free(logits);
}

/* What a chunk that closes leaves in its run. */
static void append(const conform_data *d, mixer_case *k, uint32_t b, const double *memory)
{
    const conform_case *c = d->c;
    const uint32_t m = (uint32_t)k->seq.pos[b] / c->S, i = m >= k->first[1], M = k->first[i + 1] - k->first[i];
    const uint64_t rows = (uint64_t)c->H * c->N, at = ((uint64_t)b * M + (m - k->first[i])) * rows;
    for (uint64_t n = 0; n < rows; n++) {
        double mean = k->eps;
        for (uint32_t p = 0; p < c->P; p++) mean += memory[n * c->P + p] * memory[n * c->P + p] / c->P;
        k->want_scale[i][at + n] = sqrt(mean);
        for (uint32_t p = 0; p < c->P; p++) k->want_dh[i][(at + n) * c->P + p] = memory[n * c->P + p] / sqrt(mean);
    }
}

/* y = sum over n of C_n h_np, and D x_p: what f32 rounds are these terms, so y errs relative to the root of the sum of their squares, which is about
 * |y| where their signs are random, and more where large ones cancel. The norm after it divides by the size of y's row: k->cancelled is by how much
 * the terms of a row exceed it, at most. h: the state after the token. */
static void size_of_terms(const conform_case *c, mixer_case *k, const double *x, const double *read, const double *h)
{
    k->cancelled = 1;
    for (uint32_t b = 0; b < k->B; b++) {
        double terms2 = 0, y2 = 0;
        for (uint32_t i = 0; i < k->I; i++) {
            const uint32_t head = i / c->P, g = head / (c->H / c->G), p = i % c->P;
            const double straight = k->skip->values[head] * x[(uint64_t)b * k->I + i], y = k->want_y[(uint64_t)b * k->I + i];
            double sum = straight * straight;
            for (uint32_t n = 0; n < c->N; n++) {
                const double term = read[(uint64_t)b * k->GN + g * c->N + n] * h[b * k->state + (head * c->N + n) * c->P + p];
                sum += term * term;
            }
            k->terms[(uint64_t)b * k->I + i] = sqrt(sum);
            terms2 += sum;
            y2 += y * y;
        }
        if (k->seq.count[b] != 0) k->cancelled = fmax(k->cancelled, sqrt(terms2 / y2));
    }
}

static void expect(const conform_data *d, mixer_case *k)
{
    const conform_case *c = d->c;
    const uint32_t B = k->B, W = k->W;
    k->u = conform_filled((uint64_t)B * (W > k->I ? W : k->I), 0);
    k->want_x = conform_filled((uint64_t)B * W, 0);
    k->want_proj = conform_filled((uint64_t)B * k->R, 0);
    k->want_y = conform_filled((uint64_t)B * k->I, NAN);
    k->terms = conform_filled((uint64_t)B * k->I, 0);
    k->want_tail = conform_filled((uint64_t)B * (K - 1) * k->C, 0);
    k->want_h = conform_filled(B * k->state, 0);
    k->r = conform_filled((uint64_t)B * k->I, 0);
    k->gate = conform_filled(B, 0);
    k->from_h = copy_of(k->h);
    k->from_open = k->sma ? copy_of(k->open) : NULL;
    k->from_decay = k->sma ? copy_of(k->open_decay) : NULL;
    add_windows(d, k);
    oracle_rms_norm(k->u, k->x->values, k->norm->values, B, W, k->eps);
    oracle_linear(k->want_proj, k->u, k->in_proj.values, NULL, B, W, k->R);
    convolve(k, k->want_proj, k->R, k->I, k->C, k->taps, k->bias, k->tail, k->want_tail);
    if (k->sma) {
        k->want_queries = conform_filled((uint64_t)B * k->Q, 0);
        k->want_sma_tail = conform_filled((uint64_t)B * (K - 1) * k->D, 0);
        k->want_open = conform_filled(B * k->state, 0);
        k->want_decay = conform_filled((uint64_t)B * c->H, 0);
        oracle_linear(k->want_queries, k->u, k->sma_proj.values, NULL, B, W, k->Q);
        convolve(k, k->want_queries, k->Q, 0, k->D, k->sma_taps, k->sma_bias, k->sma_tail, k->want_sma_tail);
        for (uint32_t b = 0; b < B; b++) k->gate[b] = k->want_queries[(uint64_t)b * k->Q + k->D];
        for (uint32_t b = 0; b < B; b++)
            for (uint32_t h = 0; h < c->H; h++) attend(d, k, b, h);
    }
    double *x = columns(k->want_proj, B, k->R, k->I, k->I), *b_ = columns(k->want_proj, B, k->R, 2 * k->I, k->GN);
    double *c_ = columns(k->want_proj, B, k->R, 2 * k->I + k->GN, k->GN), *dt = columns(k->want_proj, B, k->R, k->I + k->C, c->H);
    double *memory = conform_filled(B * k->state, 0), *h = conform_filled(B * k->state, 0);
    double *z = columns(k->want_proj, B, k->R, 0, k->I), *now = conform_filled((uint64_t)B * k->I, 0);
    oracle_ssd(&(oracle_ssd_args){.B = B, .L = 1, .H = c->H, .G = c->G, .P = c->P, .N = c->N, .S = c->S, .M = 1, .x = x, .dt = dt,
                                  .a_log = k->a_log->values, .b = b_, .c = c_, .dt_bias = k->dt_bias->values, .d = k->skip->values,
                                  .dt_min = 0.001, .dt_max = 0, .pos = k->seq.pos, .count = k->seq.count, .h_in = k->from_h,
                                  .dh_open_in = k->from_open, .log_open_in = k->from_decay,
                                  .y = k->want_y, .dh = memory, .h_border_out = k->sma ? k->want_h : NULL,
                                  .h_out = h, .dh_open_out = k->want_open, .log_open_out = k->want_decay});
    if (!k->sma) memcpy(k->want_h, h, B * k->state * sizeof *h);
    size_of_terms(c, k, x, c_, h);
    oracle_gated_norm(&(oracle_gated_norm_args){.rows = B, .I = k->I, .y = k->want_y, .r = k->sma ? k->r : NULL, .gate = k->sma ? k->gate : NULL,
                                                .z = z, .weight = k->mixer_norm->values, .eps = k->eps, .out = now});
    oracle_linear(k->want_x, now, k->out_proj.values, k->x->values, B, k->I, W);
    for (uint32_t i = 0; i < RUNS && k->dh[i] != NULL; i++) {
        k->want_dh[i] = columns(k->dh[i]->values, k->dh[i]->rows, k->state, 0, k->state);
        k->want_scale[i] = columns(k->scale[i]->values, k->scale[i]->rows, k->scale[i]->width, 0, k->scale[i]->width);
    }
    for (uint32_t b = 0; b < B; b++) {
        if (k->seq.count[b] == 0) {
            memcpy(k->want_x + (uint64_t)b * W, k->x->values + (uint64_t)b * W, W * sizeof(double));
            for (uint32_t i = 0; i < k->R; i++) k->want_proj[(uint64_t)b * k->R + i] = NAN;
            for (uint32_t i = 0; i < k->Q && k->sma; i++) k->want_queries[(uint64_t)b * k->Q + i] = NAN;
            memcpy(k->want_h + b * k->state, k->from_h + b * k->state, (size_t)k->state * sizeof(double));
            if (!k->sma) continue;
            memcpy(k->want_open + b * k->state, k->from_open + b * k->state, (size_t)k->state * sizeof(double));
            memcpy(k->want_decay + b * c->H, k->from_decay + b * c->H, c->H * sizeof(double));
        } else if (k->sma && ((uint32_t)k->seq.pos[b] + 1) % c->S == 0) {
            append(d, k, b, memory + b * k->state);
        }
    }
    double *all[] = {x, b_, c_, dt, memory, h, z, now};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* Memories in their stored form, unit rows with their RMS s, judged row by row. The scan errs relative to the root of the mean of s^2 over the rows
 * of a memory, `typical`: b, x and their products err relative to all channels of a token, of which a row where they cancel is a small part. Divided
 * by s, that error of a row is typical / s times what it is relative to a row of that RMS. So a row counts with s / typical of itself where that is
 * below 1, and is a row like any other then, against the same bound: in its largest element, and in L2. Other rows count as they are. */
static void compare_unit_rows(conform_data *d, const char *name, const conform_tensor *stored, const double *want, const double *want_scale,
                              uint32_t P, double bound)
{
    if (d->status != DART_OK || d->plan || stored == NULL) return;
    const uint64_t units = stored->width / P, rows = stored->rows * units;
    float *factors = malloc((size_t)rows * sizeof *factors);
    double *part = conform_filled(rows * P, 0), *rounded = conform_filled(rows * P, 0);
    if (factors == NULL) abort();
    for (uint64_t m = 0; m < stored->rows; m++) {
        double sum = 0;
        for (uint64_t n = 0; n < units; n++) sum += want_scale[m * units + n] * want_scale[m * units + n];
        const double typical = sqrt(sum / (double)units);
        for (uint64_t n = 0; n < units; n++) factors[m * units + n] = (float)fmin(1, want_scale[m * units + n] / typical);
    }
    for (uint64_t i = 0; i < rows * P; i++) {
        part[i] = want[i] * (double)factors[i / P];
        rounded[i] = conform_rounded(stored->t.dtype, want[i]) * (double)factors[i / P];
    }
    conform_tensor *judged = conform_scaled(d, stored, &(conform_tensor){.t = {.dtype = DART_F32}, .rows = stored->rows, .width = units,
                                                                         .initial = factors});
    judged->rows = rows;
    judged->width = P;
    conform_limits limits = {.bound = bound, .floor = conform_floor(stored->t.dtype)};
    if (stored->t.dtype != DART_F32) {
        limits.rounded = rounded;
        limits.rounded_to = stored->t.dtype;
    }
    conform_compare_within(d, name, judged, part, &limits);
    free(factors);
    free(part);
    free(rounded);
}

static dart_tensor columns_of(const conform_tensor *rows, uint64_t first)
{
    dart_tensor part = rows->t;
    part.offset += first;
    part.row = rows->width;
    return part;
}

static window_project_args inner_projection(const conform_data *d, const mixer_case *k, const dart_mixer_step_args *a)
{
    return (window_project_args){
        .B = k->B, .W = k->W, .outputs = k->R, .first = k->I, .C = k->C, .K = K, .H = d->c->H, .S = d->c->S, .kept = k->I + k->GN, .eps = k->eps,
        .dt_min = a->dt_min, .x = a->x, .norm = a->norm, .weight = a->in_proj, .y = k->work.proj->t, .conv = k->work.conv->t,
        .conv_weight = a->conv_weight, .conv_bias = a->conv_bias, .tail = a->tail, .seq = a->seq, .a_log = a->a_log, .dt_bias = a->dt_bias,
        .rows = k->window.rows->t, .steps = k->window.steps->t};
}

/* The step through windows in several launches, as the model has them. */
static void step_through_windows(conform_data *d, const mixer_case *k, const dart_mixer_step_args *a, dart_window_args w)
{
    const conform_case *c = d->c;
    const window_project_args inner = inner_projection(d, k, a);
    window_project(d->stream, &inner);
    if (k->sma) window_project(d->stream, &(window_project_args){
        .B = k->B, .W = k->W, .outputs = k->Q, .C = k->D, .K = K, .S = c->S, .eps = k->eps, .x = a->x, .norm = a->norm, .weight = a->sma_proj,
        .y = k->work.queries->t, .conv = k->work.sma_conv->t, .conv_weight = a->sma_conv_weight, .conv_bias = a->sma_conv_bias, .tail = a->sma_tail,
        .seq = a->seq});
    w.conv = k->work.conv->t;
    w.y = k->work.y->t;
    w.d = a->d;
    const window_back_args back = {.B = k->B, .I = k->I, .W = k->W, .eps = k->eps, .x = w.y, .norm = a->mixer_norm, .weight = a->out_proj, .y = a->x,
                                   .seq = a->seq};
    const dart_tensor z = columns_of(k->work.proj, 0);
    if (a->memories_count == 0 && window_gated_fits(d->device, &w) && window_back_fits(d->device, &back)) {
        window_gated(d->stream, &w, z);
        window_back(d->stream, &back);
        dart_window_fold(d->stream, &w);
        return;
    }
    dart_window_output(d->stream, &w);
    dart_gated_norm_args norm = {.T = k->B, .I = k->I, .eps = k->eps, .y = w.y, .z = z, .weight = a->mixer_norm, .out = w.y};
    if (k->sma) {
        dart_sma(d->stream, &(dart_sma_args){
            .B = k->B, .L = 1, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = c->S, .eps = k->eps, .q = columns_of(k->work.sma_conv, 0),
            .e = columns_of(k->work.sma_conv, k->GN), .c = columns_of(k->work.conv, k->I + k->GN), .seq = a->seq, .memories = a->memories,
            .memories_count = a->memories_count, .r = k->work.r->t});
        norm.r = k->work.r->t;
        norm.gate = columns_of(k->work.queries, k->D);
    }
    dart_gated_norm(d->stream, &norm);
    for (uint32_t b = 0; b < k->B; b++) { /* rows of sequences without a token are nobody's */
        dart_linear_args out = {.T = 1, .IN = k->I, .OUT = k->W, .add = true, .x = columns_of(k->work.y, b * (uint64_t)k->I),
                                .weight = a->out_proj, .y = columns_of(k->x, b * (k->x->t.row != 0 ? k->x->t.row : k->W))};
        if (k->seq.count[b] != 0) dart_linear(d->stream, &out);
    }
    dart_window_fold(d->stream, &w);
}

/* Opens the windows, puts their tokens there, takes the step and closes them; where the step does not fit, it is taken behind them. */
static void run_windows(conform_data *d, const mixer_case *k, const dart_mixer_step_args *args)
{
    const conform_case *c = d->c;
    const mixer_window window = {.rows = k->window.rows->t, .steps = k->window.steps->t, .hin = k->window.hin->t,
                                 .hin_scale = conform_view(k->window.scale)};
    dart_tensor unused = k->window.unused->t;
    unused.row = k->C;
    dart_window_args w = {.B = k->B, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .K = K, .S = c->S, .mode = DART_WINDOW_OPEN, .eps = k->eps,
                          .x = unused, .dt = unused, .conv_weight = k->taps->t, .tail = k->tail->t, .a_log = k->a_log->t, .seq = k->seqs->t,
                          .conv = unused, .y = unused, .h = k->h->t, .open = conform_view(k->open), .open_decay = conform_view(k->open_decay),
                          .rows = window.rows, .steps = window.steps, .hin = window.hin, .hin_scale = window.hin_scale};
    dart_window_fold(d->stream, &w);
    dart_convert(d->stream, &(dart_convert_args){.T = (uint32_t)k->window.tokens->rows, .W = 2 * c->H, .x = k->window.tokens->t, .y = window.steps});
    const bool whole = mixer_windows_fit(d->stream, args, &window, 1);
    const window_project_args inner = inner_projection(d, k, args);
    const bool unfolded = !whole && mixer_window_layers_fit(d->stream, args, &window, 1);
    const bool launches = !whole && !unfolded && window_project_fits(d->device, &inner);
    const bool steps = whole || unfolded || launches;
    dart_window_args step = w;
    step.mode = DART_WINDOW_STEP;
    step.closing = args->closing;
    step.closing_count = args->closing_count;
    if (whole) mixer_windows(d->stream, args, &window, 1);
    if (unfolded) {
        mixer_window_layers(d->stream, args, &window, 1);
        dart_window_fold(d->stream, &step);
    }
    if (launches) step_through_windows(d, k, args, step);
    if (steps) w.seq = k->window.after->t;
    w.mode = DART_WINDOW_CLOSE;
    dart_window_fold(d->stream, &w);
    if (!steps) dart_mixer_step(d->stream, args);
}

void conform_mixer(conform_data *d)
{
    const conform_case *c = d->c;
    mixer_case k = {0};
    make(d, &k);
    if (!d->plan) expect(d, &k);
    dart_memories runs[RUNS];
    uint32_t count = 0;
    bool sees = !k.windows;
    for (uint32_t b = 0; b < k.B; b++) sees = sees || (uint32_t)k.seq.pos[b] >= c->S;
    for (uint32_t i = RUNS; i-- > 0;) /* the later run first: order must not matter */
        if (k.dh[i] != NULL)
            runs[count++] = (dart_memories){.first = k.first[i], .M = k.first[i + 1] - k.first[i], .dh = k.dh[i]->t, .scale = k.scale[i]->t};
    while (conform_next(d)) {
        const dart_mixer_step_args args = {
            .B = k.B, .W = k.W, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .K = K, .S = c->S, .eps = k.eps, .sma_eps = k.eps, .dt_min = 0.001f,
            .x = k.x->t, .seq = conform_view(k.seqs), .norm = k.norm->t, .in_proj = k.in_proj.t, .in_proj_rest = k.in_proj.rest,
            .conv_weight = k.taps->t, .conv_bias = conform_view(k.bias), .dt_bias = k.dt_bias->t, .a_log = k.a_log->t, .d = k.skip->t,
            .mixer_norm = k.mixer_norm->t, .out_proj = k.out_proj.t, .sma_proj = k.sma_proj.t, .sma_proj_rest = k.sma_proj.rest,
            .sma_conv_weight = conform_view(k.sma_taps),
            .sma_conv_bias = conform_view(k.sma_bias), .tail = k.tail->t, .sma_tail = conform_view(k.sma_tail), .h = k.h->t,
            .open = conform_view(k.open), .open_decay = conform_view(k.open_decay), .memories = runs, .closing = runs,
            .memories_count = sees ? count : 0, .closing_count = count, .proj = conform_view(k.proj), .queries = conform_view(k.queries),
            .y = conform_view(k.y)};
        if (k.windows) run_windows(d, &k, &args);
        else if (k.layers && mixer_layers_fit(d->stream, &args, 1)) mixer_layers(d->stream, &args, 1);
        else dart_mixer_step(d->stream, &args);
        if (!conform_execute(d)) continue;
        /* Errors of the stages before come on top: the norm's and the product's, the convolution's, then the scan's and the
         * attention's, whose logits turn relative errors into absolute ones. */
        const dart_dtype act = conform_activation(c);
        const double project = conform_tolerance(BOUND_NORM, 1) + conform_tolerance(BOUND_DOT, k.W);
        const double channels = project + conform_tolerance(BOUND_CONV, K);
        const double scan = 2 * channels + conform_tolerance(BOUND_SCAN, c->N);
        const double attention = (2 * channels + conform_tolerance(BOUND_SMA, c->N + c->P)) * (1 + k.largest);
        const double out = scan * k.cancelled + attention + conform_tolerance(BOUND_NORM, 1) + conform_tolerance(BOUND_DOT, k.I);
        /* mixer_windows and mixer_window_layers round what in_proj multiplies, so that all channels err, then x and b, the state before the window,
         * and what out_proj multiplies. Of y x, b and c err, of the memories q, e and c, of the output z as well. In several launches c, q, e, z, y
         * and r are rounded besides, as they are stored in between. */
        const bool stores = conform_ran(d, "window_project[");
        const bool rounds = stores || conform_ran(d, "mixer_windows[") || conform_ran(d, "mixer_window_layers[");
        const double once = rounds ? conform_rounding(act) : 0, more = stores ? once : 0;
        const double of_scan = 6 * once + more, of_out = of_scan * k.cancelled + 3 * (once + more) * (1 + k.largest) + 2 * once + 3 * more;
        conform_compare(d, "proj", k.proj, k.want_proj, channels, 0);
        conform_compare(d, "queries", k.queries, k.want_queries, channels, 0);
        conform_compare_within(d, "tail", k.tail, k.want_tail, &(conform_limits){.bound = project, .operands = once, .floor = conform_floor(act)});
        conform_compare_within(d, "sma_tail", k.sma_tail, k.want_sma_tail,
                               &(conform_limits){.bound = project, .operands = once, .floor = conform_floor(act)});
        conform_compare_within(d, "y", k.y, k.want_y, &(conform_limits){.bound = scan, .terms = k.terms});
conform_compare_within(d, "h", k.h, k.want_h, &(conform_limits){.bound = scan, .operands = of_scan});
        conform_compare_within(d, "open", k.open, k.want_open, &(conform_limits){.bound = scan, .operands = of_scan});
        conform_compare(d, "open_decay", k.open_decay, k.want_decay, channels + conform_tolerance(BOUND_DECAY, 0) + once, 0);
        conform_compare_within(d, "x", k.x, k.want_x, &(conform_limits){.bound = out, .operands = of_out});
        for (uint32_t i = 0; i < RUNS; i++) {
            compare_unit_rows(d, i == 0 ? "stored" : "stored2", k.dh[i], k.want_dh[i], k.want_scale[i], c->P,
                              scan + conform_tolerance(BOUND_SMA_STORE, 1) + of_scan);
            conform_compare(d, i == 0 ? "scale" : "scale2", k.scale[i], k.want_scale[i],
                            scan + conform_tolerance(BOUND_SMA_STORE, 1) + of_scan, 0);
        }
    }
    conform_seq_free(&k.seq);
    double *all[] = {k.u, k.want_x, k.want_proj, k.want_queries, k.want_tail, k.want_sma_tail, k.want_y, k.terms, k.want_h, k.want_open, k.want_decay,
                     k.r, k.gate, k.want_dh[0], k.want_dh[1], k.want_scale[0], k.want_scale[1], k.from_h, k.from_open, k.from_decay,
                     k.in_proj.values, k.out_proj.values,
                     k.sma_proj.values};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}
