/* State-memory attention, raw memories and stored ones. */
#include "conform_data.h"
#include "conform_packed.h"
#include "conform_seq.h"

#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct sma_case {
    conform_seq seq;
    uint32_t M; /* memories that the last token of the longest sequence sees */
    uint64_t rows, memory;
    float eps;
    conform_tensor *q, *e, *c, *seqs, *dh, *r, *lse, *qn, *en;
    double largest; /* |logit| */
    double *want_r, *want_lse, *want_qn, *want_en, *rho, *logit;
} sma_case;

/* Memories of a case: unit normal, scaled, zeroed, or turned towards the (common) query so that the logits of memories 0 and 1
 * are about 50 and -50: a row with a share f of itself along sign(q_n) e gives key f P and logit f sqrt(N) P. */
static void shape_memories(conform_data *d, sma_case *k)
{
    const conform_case *c = d->c;
    double *dh = k->dh->values;
    const double size = conform_has(d, CASE_TINY) ? 1e-6 : conform_has(d, CASE_HUGE) ? 1e4 : 1;
    const double share = 50 / (sqrt((double)c->N) * c->P);
    for (uint64_t i = 0; i < k->dh->rows * k->memory; i++) {
        const uint64_t m = i / k->memory % k->M, p = i % c->P, n = i / c->P % c->N, h = i / c->P / c->N % c->H, g = h / (c->H / c->G);
        double v = fmax(-5, fmin(5, dh[i])) * size;
        if (conform_has(d, CASE_ZERO) && m == 1) v = 0;
        if (conform_has(d, CASE_FAR) && m < 2) {
            const double e = k->e->values[g * c->P + p], q = k->q->values[g * c->N + n];
            v = 0.05 * v + (m == 0 ? 1 : -1) * share * (q > 0 ? 1 : -1) * e + sqrt(fmax(0, 1 - share * share)) * (dh[i] > 0 ? 1 : -1) * 0.05;
        }
        dh[i] = v;
    }
    conform_set(d, k->dh, dh);
}

static void make(conform_data *d, sma_case *k)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    conform_seq_make(d, &k->seq);
    k->eps = 1e-5f;
    k->rows = (uint64_t)c->B * c->L;
    k->memory = (uint64_t)c->H * c->N * c->P;
    for (uint32_t b = 0; b < c->B; b++) {
        const uint32_t seen = k->seq.count[b] > 0 ? (uint32_t)(k->seq.pos[b] + k->seq.count[b] - 1) / c->S : 0;
        if (seen > k->M) k->M = seen;
    }
    k->q = conform_input(d, act, k->rows, (uint64_t)c->G * c->N, true, conform_unit);
    k->e = conform_input(d, act, k->rows, (uint64_t)c->G * c->P, true, conform_unit);
    k->c = conform_input(d, act, k->rows, (uint64_t)c->G * c->N, true, conform_unit);
    if (conform_has(d, CASE_FAR)) {
        for (uint64_t i = 0; i < k->rows; i++) {
            memcpy(k->q->values + i * k->q->width, k->q->values, k->q->width * sizeof *k->q->values);
            memcpy(k->e->values + i * k->e->width, k->e->values, k->e->width * sizeof *k->e->values);
        }
        conform_set(d, k->q, k->q->values);
        conform_set(d, k->e, k->e->values);
    }
    if (conform_has(d, CASE_SEQ)) k->seqs = conform_ints(d, c->B, 2, k->seq.pairs);
    if (k->M > 0) {
        k->dh = conform_input(d, conform_has(d, CASE_STORED) ? DART_F32 : c->dtype, (uint64_t)c->B * k->M, k->memory, false, conform_unit);
        shape_memories(d, k);
    }
    k->r = conform_output(d, act, k->rows, (uint64_t)c->H * c->P, true);
    k->lse = conform_output(d, DART_F32, k->rows, c->H, false);
    k->qn = conform_output(d, DART_F32, k->rows, (uint64_t)c->G * c->N, false);
    k->en = conform_output(d, DART_F32, k->rows, (uint64_t)c->G * c->P, false);
    k->want_r = conform_filled(k->rows * c->H * c->P, NAN);
    k->want_lse = conform_filled(k->rows * c->H, NAN);
    k->want_qn = conform_filled(k->rows * c->G * c->N, NAN);
    k->want_en = conform_filled(k->rows * c->G * c->P, NAN);
    k->rho = conform_filled((uint64_t)c->B * k->M * c->H * c->N, NAN);
    k->logit = conform_filled(k->rows * c->H * k->M, -INFINITY);
    if (!d->plan)
        oracle_sma(&(oracle_sma_args){.B = c->B, .L = c->L, .H = c->H, .G = c->G, .P = c->P, .N = c->N, .S = c->S, .M = k->M, .eps = k->eps,
                                      .q = k->q->values, .e = k->e->values, .c = k->c->values, .dh = k->dh != NULL ? k->dh->values : k->want_r,
                                      .pos = k->seq.pos, .count = k->seq.count, .r = k->want_r, .lse = k->want_lse, .qn = k->want_qn,
                                      .en = k->want_en, .rho = k->rho, .logit = k->logit});
    for (uint64_t i = 0; i < k->rows * k->q->width; i++) k->want_qn[i] /= sqrt((double)c->N); /* the stage carries it */
    for (uint64_t i = 0; i < k->rows * c->H * k->M; i++)
        if (isfinite(k->logit[i])) k->largest = fmax(k->largest, fabs(k->logit[i]));
}

/* Runs of stored memories: where they are kept, and what they hold once sma_append has run. */
typedef struct stored {
    uint32_t first, M;
    conform_tensor *dh, *scale;
} stored;

void conform_attend_stored(const conform_case *c, uint32_t h, const stored_run *runs, uint32_t count, uint64_t limit, const double *qn,
                           const double *en, const double *read, double *r, double *lse)
{
    const uint64_t memory = (uint64_t)c->N * c->P;
    double *logit = conform_filled(limit, 0), top = -INFINITY, sum = 0;
    for (uint32_t p = 0; p < c->P; p++) r[p] = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t run = 0; run < count; run++) {
            for (uint64_t m = 0; m < runs[run].M && runs[run].first + m < limit; m++) {
                const double *dh = runs[run].dh + (m * c->H + h) * memory, *scale = runs[run].scale + (m * c->H + h) * c->N;
                double *of = &logit[runs[run].first + m];
                const double weight = pass == 1 ? exp(*of - top) / sum : 0;
                for (uint32_t n = 0; n < c->N; n++) {
                    double key = 0;
                    for (uint32_t p = 0; p < c->P && pass == 0; p++) key += dh[n * c->P + p] * en[p];
                    if (pass == 0) *of += key * qn[n];
                    for (uint32_t p = 0; p < c->P && pass == 1; p++) r[p] += weight * read[n] * scale[n] * dh[n * c->P + p];
                }
                if (pass == 0) top = fmax(top, *of);
            }
        }
        for (uint64_t m = 0; m < limit && pass == 0; m++) sum += exp(logit[m] - top);
    }
    *lse = sum > 0 ? top + log(sum) : -INFINITY;
    free(logit);
}

/* What storing in 16 bits loses belongs to the memories, not to the attention. */
static void attend_stored(const conform_data *d, sma_case *k, const stored *runs, uint32_t count)
{
    const conform_case *c = d->c;
    for (uint64_t i = 0; i < k->rows * c->H; i++) {
        const uint64_t row = i / c->H, b = row / c->L, t = row % c->L;
        const uint32_t h = (uint32_t)(i % c->H), g = h / (c->H / c->G);
        stored_run of[2];
        if ((int64_t)t >= k->seq.count[b]) continue;
        for (uint32_t run = 0; run < count; run++) {
            const uint64_t first = b * runs[run].M * c->H * c->N;
            of[run] = (stored_run){.first = runs[run].first, .M = runs[run].M};
            if (of[run].M == 0) continue;
            of[run].dh = runs[run].dh->values + first * c->P;
            of[run].scale = runs[run].scale->values + first;
        }
        const double *qn = k->want_qn + (row * c->G + g) * c->N, *en = k->want_en + (row * c->G + g) * c->P;
        conform_attend_stored(c, h, of, count, ((uint64_t)k->seq.pos[b] + t) / c->S, qn, en, k->c->values + (row * c->G + g) * c->N,
                              k->want_r + i * c->P, &k->want_lse[i]);
    }
}

/* Appends all memories in two runs as if one piece had made them, and checks what was stored. */
static void append(conform_data *d, sma_case *k, stored *runs)
{
    const conform_case *c = d->c;
    int32_t *whole = calloc(2 * (size_t)c->B, sizeof *whole);
    if (whole == NULL) abort();
    const uint32_t L = k->M * c->S;
    for (uint32_t b = 0; b < c->B; b++) whole[2 * b + 1] = (int32_t)L;
    conform_tensor *seq = conform_ints(d, c->B, 2, whole);
    free(whole);
    runs[0] = (stored){.first = 0, .M = (k->M + 1) / 2};
    runs[1] = (stored){.first = (k->M + 1) / 2, .M = k->M - (k->M + 1) / 2};
    const bool grown = dart_ssd_chunks(L, c->S, true) > k->M;
    conform_tensor *from = k->dh;
    if (grown) { /* a piece given with seq has room for one more chunk, which stays empty here */
        from = conform_output(d, DART_F32, (uint64_t)c->B * dart_ssd_chunks(L, c->S, true), k->memory, false);
        double *values = conform_filled(from->rows * k->memory, 0);
        for (uint32_t b = 0; b < c->B; b++)
            memcpy(values + (uint64_t)b * (k->M + 1) * k->memory, k->dh->values + (uint64_t)b * k->M * k->memory,
                   (size_t)(k->M * k->memory) * sizeof *values);
        conform_set(d, from, values);
        free(values);
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (runs[i].M == 0) continue;
        runs[i].dh = conform_output(d, c->dtype, (uint64_t)c->B * runs[i].M, k->memory, false);
        runs[i].scale = conform_output(d, DART_F32, (uint64_t)c->B * runs[i].M, (uint64_t)c->H * c->N, false);
        dart_sma_append(d->stream, &(dart_sma_append_args){.B = c->B, .L = L, .H = c->H, .N = c->N, .P = c->P, .S = c->S, .eps = k->eps,
                                                           .dh = from->t, .seq = seq->t,
                                                           .to = {.first = runs[i].first, .M = runs[i].M, .dh = runs[i].dh->t,
                                                                  .scale = runs[i].scale->t}});
    }
    const bool ran = conform_execute(d);
    for (uint32_t i = 0; i < 2 && ran; i++) {
        if (runs[i].M == 0) continue;
        double *rows = conform_filled(runs[i].dh->rows * k->memory, 0), *scale = conform_filled(runs[i].scale->rows * runs[i].scale->width, 0);
        for (uint64_t s = 0; s < runs[i].scale->rows * runs[i].scale->width; s++) {
            const uint64_t b = s / runs[i].scale->width / runs[i].M, m = runs[i].first + s / runs[i].scale->width % runs[i].M;
            const uint64_t at = (b * k->M + m) * c->H * c->N + s % runs[i].scale->width;
            scale[s] = 1 / k->rho[at];
            for (uint32_t p = 0; p < c->P; p++) rows[s * c->P + p] = k->dh->values[at * c->P + p] * k->rho[at];
        }
        conform_compare(d, i == 0 ? "stored" : "stored2", runs[i].dh, rows, conform_tolerance(BOUND_SMA_STORE, 1), conform_floor(c->dtype));
        conform_compare(d, i == 0 ? "scale" : "scale2", runs[i].scale, scale, conform_tolerance(BOUND_SMA_STORE, 1), 0);
        for (uint64_t s = 0; s < runs[i].dh->rows * k->memory; s++) {
            float value;
            dart_to_f32(c->dtype, &value, (const char *)runs[i].dh->initial + (runs[i].dh->t.offset + s) * dart_dtype_size(c->dtype), 1);
            runs[i].dh->values[s] = value;
        }
        for (uint64_t s = 0; s < runs[i].scale->rows * runs[i].scale->width; s++)
            runs[i].scale->values[s] = ((const float *)runs[i].scale->initial)[runs[i].scale->t.offset + s];
        free(rows);
        free(scale);
    }
    if (d->status == DART_OK) d->status = dart_stream_begin(d->stream);
}

/* What is rounded to 16 bits before r is. Rows of tiles multiply c factor with the memories: sma[sm90_] rounds the factor, then the
 * product, to the type of the memories, sma[tensor_] the product alone, sma[few_] the product, in bf16 with its weight; through Vulkan both
 * are f16. Each launch but the first reads the r that the one before has stored. */
double conform_roundings_of_r(const conform_data *d, uint32_t launches)
{
    static const struct { const char *row; int roundings; bool f16; } rows[] = {
        {"sma[sm90_", 2, false}, {"sma[tensor_", 1, false}, {"sma[few_", 1, false}, {"sma[matrix]", 2, true},
        {"sma[matrix_small]", 2, true}, {"sma[matrix2_small]", 2, true},
        {"sma[registers]", 2, true}};
    double sum = (launches > 1 ? launches - 1 : 0) * conform_rounding(conform_activation(d->c));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (conform_ran(d, rows[i].row)) sum += rows[i].roundings * conform_rounding(rows[i].f16 ? DART_F16 : d->c->dtype);
    return sum;
}

void conform_sma(conform_data *d)
{
    if (conform_has(d, CASE_PACKED)) {
        conform_packed_sma(d);
        return;
    }
    const conform_case *c = d->c;
    sma_case k = {0};
    make(d, &k);
    while (conform_next(d)) {
        stored runs[2] = {{0}, {0}};
        dart_memories memories[2];
        uint32_t count = 0;
        if (conform_has(d, CASE_STORED) && k.M > 0) {
            append(d, &k, runs);
            if (d->status == DART_OK && !d->plan) attend_stored(d, &k, runs, 2);
            for (uint32_t i = 2; i-- > 0;) /* the later run first: order must not matter */
                if (runs[i].M > 0)
                    memories[count++] = (dart_memories){.first = runs[i].first, .M = runs[i].M, .dh = runs[i].dh->t, .scale = runs[i].scale->t};
        } else if (k.M > 0) {
            memories[count++] = (dart_memories){.M = k.M, .dh = k.dh->t};
        }
        dart_sma(d->stream, &(dart_sma_args){.B = c->B, .L = c->L, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = c->S,
                                             .plan = conform_has(d, CASE_STEP) ? DART_PLAN_STEP : DART_PLAN_CHUNKED, .eps = k.eps, .q = k.q->t,
                                             .e = k.e->t, .c = k.c->t, .seq = conform_view(k.seqs), .memories = memories, .memories_count = count,
                                             .r = k.r->t, .lse = k.lse->t, .qn = k.qn->t, .en = k.en->t});
        if (!conform_execute(d)) continue;
        /* An absolute error of a logit is a relative one of its weight: the bound grows with the largest logit. */
        const dart_dtype act = conform_activation(c);
        const double bound = conform_tolerance(BOUND_SMA, c->N + c->P) * (1 + k.largest);
        conform_compare(d, "qn", k.qn, k.want_qn, conform_tolerance(BOUND_NORM, 1), 0);
        conform_compare(d, "en", k.en, k.want_en, conform_tolerance(BOUND_NORM, 1), 0);
        conform_compare_lse(d, k.lse, k.want_lse, bound);
        conform_compare_within(d, "r", k.r, k.want_r,
                               &(conform_limits){.bound = bound, .operands = conform_roundings_of_r(d, count), .floor = conform_floor(act)});
    }
    conform_seq_free(&k.seq);
    double *all[] = {k.want_r, k.want_lse, k.want_qn, k.want_en, k.rho, k.logit};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}
