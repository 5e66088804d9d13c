/* Packed documents, forward: the oracle takes each of them as a sequence of its own. */
#include "conform_packed.h"

#include "conform_seq.h"
#include "oracle.h"
#include "shaders/args.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- The convolution: C = P, K = N ---- */

void conform_packed_conv(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t C = c->P, K = c->N;
    const dart_dtype act = conform_activation(c);
    conform_packing p;
    conform_packing_make(d, &p);
    conform_tensor *x = conform_input(d, act, p.T, C, true, conform_unit), *weight = conform_input(d, c->dtype, C, K, false, conform_unit);
    conform_tensor *bias = conform_has(d, CASE_PARAMS) ? conform_input(d, c->dtype, 1, C, false, conform_unit) : NULL;
    conform_tensor *cu = conform_ints(d, 1, (uint64_t)c->B + 1, p.cu), *y = conform_output(d, act, p.T, C, true);
    double *want = conform_filled((uint64_t)p.T * C, NAN);
    for (uint32_t b = 0; b < c->B; b++) {
        const size_t first = (size_t)p.cu[b] * C, length = (size_t)(p.cu[b + 1] - p.cu[b]);
        if (length > 0)
            oracle_conv(&(oracle_conv_args){.B = 1, .L = length, .C = C, .K = K, .x = x->values + first, .weight = weight->values,
                                            .bias = bias != NULL ? bias->values : NULL, .out = want + first});
    }
    while (conform_next(d)) {
        dart_conv(d->stream, &(dart_conv_args){.B = c->B, .L = c->L, .T = p.T, .C = C, .K = K, .x = x->t, .weight = weight->t,
                                               .bias = conform_view(bias), .cu = cu->t, .y = y->t});
        if (!conform_execute(d)) continue;
        conform_compare(d, "y", y, want, conform_tolerance(BOUND_CONV, K), conform_floor(act));
    }
    free(want);
    free(p.cu);
}

/* ---- Softmax attention: D = P ---- */

void conform_packed_attention(conform_data *d)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const uint64_t wide = (uint64_t)c->H * c->P, narrow = (uint64_t)c->G * c->P;
    conform_packing p;
    conform_packing_make(d, &p);
    conform_tensor *q = conform_input(d, act, p.T, wide, true, conform_unit), *k = conform_input(d, act, p.T, narrow, true, conform_unit);
    conform_tensor *v = conform_input(d, act, p.T, narrow, true, conform_unit), *cu = conform_ints(d, 1, (uint64_t)c->B + 1, p.cu);
    conform_tensor *o = conform_output(d, act, p.T, wide, true), *lse = conform_output(d, DART_F32, p.T, c->H, false);
    double *want_o = conform_filled(p.T * wide, NAN), *want_lse = conform_filled((uint64_t)p.T * c->H, NAN), largest = 0;
    for (uint32_t b = 0; b < c->B; b++) {
        const size_t first = (size_t)p.cu[b], length = (size_t)(p.cu[b + 1] - p.cu[b]);
        double own = 0;
        if (length == 0 || d->plan) continue;
        oracle_attention(&(oracle_attention_args){.B = 1, .L = length, .H = c->H, .G = c->G, .D = c->P, .C = length,
                                                  .scale = 1 / sqrt((double)c->P), .q = q->values + first * wide, .k = k->values + first * narrow,
                                                  .v = v->values + first * narrow, .o = want_o + first * wide, .lse = want_lse + first * c->H,
                                                  .largest = &own});
        largest = fmax(largest, own);
    }
    while (conform_next(d)) {
        dart_attention(d->stream, &(dart_attention_args){.B = c->B, .L = c->L, .T = p.T, .H = c->H, .G = c->G, .D = c->P, .C = c->L,
                                                         .plan = DART_PLAN_CHUNKED, .q = q->t, .k = k->t, .v = v->t, .cu = cu->t, .o = o->t,
                                                         .lse = lse->t});
        if (!conform_execute(d)) continue;
        const double bound = conform_tolerance(BOUND_SMA, c->P + c->L) * (1 + largest); /* as in conform_attention */
        conform_compare_lse(d, lse, want_lse, bound);
        conform_compare(d, "o", o, want_o, bound, conform_floor(act));
    }
    free(want_o);
    free(want_lse);
    free(p.cu);
}

/* ---- State-memory attention, over raw memories or, with STORED, over their stored form in the dtype of the case ---- */

/* Rows of unit RMS, and their scales. */
static void store(conform_data *d, conform_tensor *dh, conform_tensor *scale)
{
    const uint32_t P = d->c->P;
    for (uint64_t i = 0; i < scale->rows * scale->width; i++) {
        double *row = dh->values + i * P, mean = 1e-5;
        for (uint32_t p = 0; p < P; p++) mean += row[p] * row[p] / P;
        scale->values[i] = sqrt(mean);
        for (uint32_t p = 0; p < P; p++) row[p] /= sqrt(mean);
    }
    conform_set(d, dh, dh->values);
    conform_set(d, scale, scale->values);
}

void conform_packed_sma(conform_data *d)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const bool stored = conform_has(d, CASE_STORED);
    const uint64_t q_width = (uint64_t)c->G * c->N, e_width = (uint64_t)c->G * c->P, r_width = (uint64_t)c->H * c->P;
    const uint64_t memory = (uint64_t)c->H * c->N * c->P;
    conform_packing p;
    conform_packing_make(d, &p);
    const uint64_t slots = dart_packed_chunks(p.T, c->S, c->B);
    conform_tensor *q = conform_input(d, act, p.T, q_width, true, conform_unit), *e = conform_input(d, act, p.T, e_width, true, conform_unit);
    conform_tensor *read = conform_input(d, act, p.T, q_width, true, conform_unit);
    conform_tensor *dh = conform_input(d, stored ? c->dtype : DART_F32, slots, memory, false, conform_unit), *scale = NULL;
    if (stored) {
        scale = conform_input(d, DART_F32, slots, (uint64_t)c->H * c->N, false, conform_unit);
        store(d, dh, scale);
    }
    conform_tensor *cu = conform_ints(d, 1, (uint64_t)c->B + 1, p.cu);
    conform_tensor *r = conform_output(d, act, p.T, r_width, true), *lse = conform_output(d, DART_F32, p.T, c->H, false);
    double *want_r = conform_filled(p.T * r_width, NAN), *want_lse = conform_filled((uint64_t)p.T * c->H, NAN), largest = 0;
    const uint32_t M = dart_ssd_chunks(c->L, c->S, false);
    double *qn = conform_filled(c->L * q_width, 0), *en = conform_filled(c->L * e_width, 0), *rho = conform_filled((uint64_t)M * c->H * c->N, 0);
    double *logit = conform_filled((uint64_t)c->L * c->H * M, 0);
    for (uint32_t b = 0; b < c->B; b++) {
        const size_t first = (size_t)p.cu[b], length = (size_t)(p.cu[b + 1] - p.cu[b]), own = (length + c->S - 1) / c->S;
        const size_t slot = conform_slot(&p, b, c->S);
        if (length == 0 || d->plan) continue;
        oracle_sma(&(oracle_sma_args){.B = 1, .L = length, .H = c->H, .G = c->G, .P = c->P, .N = c->N, .S = c->S, .M = own, .eps = (double)1e-5f,
                                      .q = q->values + first * q_width, .e = e->values + first * e_width, .c = read->values + first * q_width,
                                      .dh = dh->values + slot * memory, .r = want_r + first * r_width,
                                      .lse = want_lse + first * c->H, .qn = qn, .en = en, .rho = rho, .logit = logit});
        for (size_t i = 0; i < length * c->H * own; i++)
            if (isfinite(logit[i])) largest = fmax(largest, fabs(logit[i]));
        for (uint64_t i = 0; i < length * q_width && stored; i++) qn[i] /= sqrt((double)c->N);
        for (size_t i = 0; i < length * c->H && stored; i++) {
            const size_t t = i / c->H, h = i % c->H, at = t * c->G + h / (c->H / c->G);
            const stored_run run = {.M = own, .dh = dh->values + slot * memory, .scale = scale->values + slot * c->H * c->N};
            conform_attend_stored(c, (uint32_t)h, &run, 1, t / c->S, qn + at * c->N, en + at * c->P,
                                  read->values + first * q_width + at * c->N, want_r + first * r_width + i * c->P, &want_lse[first * c->H + i]);
        }
    }
    while (conform_next(d)) {
        const dart_memories memories = {.M = M, .dh = dh->t, .scale = conform_view(scale)};
        dart_sma(d->stream, &(dart_sma_args){.B = c->B, .L = c->L, .T = p.T, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = c->S,
                                             .plan = DART_PLAN_CHUNKED, .eps = 1e-5f, .q = q->t, .e = e->t, .c = read->t, .cu = cu->t,
                                             .memories = &memories, .memories_count = 1, .r = r->t, .lse = lse->t});
        if (!conform_execute(d)) continue;
        const double bound = conform_tolerance(BOUND_SMA, c->N + c->P) * (1 + largest); /* as in conform_sma */
        conform_compare_lse(d, lse, want_lse, bound);
        conform_compare_within(d, "r", r, want_r,
                               &(conform_limits){.bound = bound, .operands = conform_roundings_of_r(d, 1), .floor = conform_floor(act)});
    }
    double *all[] = {want_r, want_lse, qn, en, rho, logit};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    free(p.cu);
}

/* ---- The scan with its stages ---- */

typedef struct packed_scan {
    conform_packing p;
    uint64_t slots, state;
    conform_tensor *x, *dt, *b, *c, *a_log, *bias, *skip, *h, *cu, *y, *cum, *decay, *dh, *hin;
    /* What the oracle says; NaN where nothing must be written. */
    double *want_y, *want_cum, *want_step, *want_decay, *want_dh, *want_hin, *want_h, *terms;
} packed_scan;

static void make(conform_data *d, packed_scan *k)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const uint64_t x_width = (uint64_t)c->H * c->P, b_width = (uint64_t)c->G * c->N;
    conform_packing_make(d, &k->p);
    k->slots = dart_packed_chunks(k->p.T, c->S, c->B);
    k->state = (uint64_t)c->H * c->N * c->P;
    k->x = conform_input(d, act, k->p.T, x_width, true, conform_unit);
    k->dt = conform_input(d, act, k->p.T, c->H, true, conform_unit);
    k->b = conform_input(d, act, k->p.T, b_width, true, conform_unit);
    k->c = conform_input(d, act, k->p.T, b_width, true, conform_unit);
    k->a_log = conform_input(d, c->dtype, 1, c->H, false, conform_a_log);
    if (conform_has(d, CASE_PARAMS)) {
        k->bias = conform_input(d, c->dtype, 1, c->H, false, conform_bias);
        k->skip = conform_input(d, c->dtype, 1, c->H, false, conform_unit);
    }
    if (conform_has(d, CASE_H)) k->h = conform_input(d, DART_F32, c->B, k->state, false, conform_unit);
    k->cu = conform_ints(d, 1, (uint64_t)c->B + 1, k->p.cu);
    k->y = conform_output(d, act, k->p.T, x_width, true);
    k->cum = conform_output(d, DART_F32, (uint64_t)k->p.T * c->H, CUM_STRIDE, false);
    k->decay = conform_output(d, DART_F32, k->slots + c->B, c->H, false);
    k->dh = conform_output(d, DART_F32, k->slots, k->state, false);
    k->hin = conform_output(d, DART_F32, k->slots, k->state, false);
    k->want_y = conform_filled(k->p.T * x_width, NAN);
    k->terms = conform_filled(k->p.T * x_width, 0);
    k->want_cum = conform_filled((uint64_t)k->p.T * c->H, NAN);
    k->want_step = conform_filled((uint64_t)k->p.T * c->H, NAN);
    k->want_decay = conform_filled((k->slots + c->B) * c->H, NAN);
    k->want_dh = conform_filled(k->slots * k->state, NAN);
    k->want_hin = conform_filled(k->slots * k->state, NAN);
    k->want_h = conform_filled(c->B * k->state, NAN);
}

/* Document b as a sequence of its own. cum and step of a document lie as the op's: for each head as many as it has tokens. */
static void ask_oracle(const conform_data *d, packed_scan *k, uint32_t b)
{
    const conform_case *c = d->c;
    const uint64_t x_width = (uint64_t)c->H * c->P, b_width = (uint64_t)c->G * c->N;
    const size_t first = (size_t)k->p.cu[b], length = (size_t)(k->p.cu[b + 1] - k->p.cu[b]), slot = conform_slot(&k->p, b, c->S);
    double *border = conform_filled(k->state, 0), *open = conform_filled(k->state, 0), *open_decay = conform_filled(c->H, 0);
    oracle_ssd(&(oracle_ssd_args){
        .B = 1, .L = length, .H = c->H, .G = c->G, .P = c->P, .N = c->N, .S = c->S, .x = k->x->values + first * x_width,
        .dt = k->dt->values + first * c->H, .a_log = k->a_log->values, .b = k->b->values + first * b_width, .c = k->c->values + first * b_width,
        .dt_bias = k->bias != NULL ? k->bias->values : NULL, .d = k->skip != NULL ? k->skip->values : NULL,
        .h_in = k->h != NULL ? k->h->values + b * k->state : NULL, .y = k->want_y + first * x_width, .y_terms = k->terms + first * x_width,
        .dh = k->want_dh + slot * k->state, .h_out = k->want_h + b * k->state, .h_border_out = border, .dh_open_out = open,
        .log_open_out = open_decay, .step = k->want_step + first * c->H, .cum = k->want_cum + first * c->H,
        .hin = k->want_hin + slot * k->state});
    for (uint32_t h = 0; h < c->H; h++) {
        double *decay = k->want_decay + (slot + b) * c->H + h;
        decay[0] = 0;
        for (size_t j = 0; j * c->S < length; j++) {
            const size_t end = (j + 1) * c->S < length ? (j + 1) * c->S : length;
            decay[(j + 1) * c->H] = k->want_cum[first * c->H + h * length + end - 1];
        }
    }
    free(border);
    free(open);
    free(open_decay);
}

void conform_packed_ssd(conform_data *d)
{
    const conform_case *c = d->c;
    packed_scan k = {0};
    make(d, &k);
    for (uint32_t b = 0; b < c->B && !d->plan; b++) {
        if (k.p.cu[b + 1] > k.p.cu[b]) ask_oracle(d, &k, b);
        else if (k.h != NULL) memcpy(k.want_h + b * k.state, k.h->values + b * k.state, (size_t)k.state * sizeof *k.want_h);
    }
    while (conform_next(d)) {
        dart_ssd(d->stream, &(dart_ssd_args){.B = c->B, .L = c->L, .T = k.p.T, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = c->S,
                                             .plan = DART_PLAN_CHUNKED, .x = k.x->t, .dt = k.dt->t, .b = k.b->t, .c = k.c->t, .a_log = k.a_log->t,
                                             .dt_bias = conform_view(k.bias), .d = conform_view(k.skip), .cu = k.cu->t, .h = conform_view(k.h),
                                             .y = k.y->t, .dh = k.dh->t, .cum = k.cum->t, .decay = k.decay->t, .hin = k.hin->t});
        if (!conform_execute(d)) continue;
        /* the bounds of conform_ssd; no row of tiles takes packed documents */
        const uint64_t C = c->S < c->L ? c->S : c->L;
        const double decay_bound = conform_tolerance(BOUND_DECAY, 0);
        const conform_limits memories = {.bound = conform_tolerance(BOUND_SCAN, C)};
        float *pairs = (float *)k.cum->initial + k.cum->t.offset;
        for (uint64_t i = 0; i < k.cum->rows; i++) /* two numbers that stand for one */
            if (!isnan(pairs[CUM_STRIDE * i])) pairs[CUM_STRIDE * i] += pairs[CUM_STRIDE * i + 1];
        const conform_tensor sums = conform_column(k.cum, 0), steps = conform_column(k.cum, 2);
        conform_compare(d, "step", &steps, k.want_step, decay_bound, 0);
        conform_compare(d, "cum", &sums, k.want_cum, decay_bound, 0);
        conform_compare(d, "decay", k.decay, k.want_decay, decay_bound, 0);
        conform_compare_within(d, "hin", k.hin, k.want_hin, &memories);
        conform_compare_within(d, "dh", k.dh, k.want_dh, &memories);
        conform_compare_within(d, "h", k.h, k.want_h, &memories);
        const conform_limits outputs = {.bound = conform_tolerance(BOUND_SCAN, C + c->N), .floor = conform_floor(conform_activation(c)),
                                        .terms = k.terms};
        conform_compare_within(d, "y", k.y, k.want_y, &outputs);
    }
    double *all[] = {k.want_y, k.want_cum, k.want_step, k.want_decay, k.want_dh, k.want_hin, k.want_h, k.terms};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    free(k.p.cu);
}
