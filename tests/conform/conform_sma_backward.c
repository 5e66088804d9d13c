/* The gradient of state-memory attention, by the tape. */
#include "conform_backward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double any_memory(conform_data *d, uint64_t i)
{
    const conform_case *c = d->c;
    const uint64_t m = i / ((uint64_t)c->H * c->N * c->P) % dart_ssd_chunks(c->L, c->S, conform_has(d, CASE_SEQ));
    const double size = conform_has(d, CASE_TINY) ? 1e-6 : conform_has(d, CASE_HUGE) ? 1e4 : 1;
    const double value = size * conform_normal(d);
    return conform_has(d, CASE_ZERO) && m == 1 ? 0 : value;
}

typedef struct sma_case {
    backward_rows rows;
    uint32_t M;
    conform_tensor *q, *e, *c, *dh, *scale, *seq, *up, *r, *lse, *grad_q, *grad_e, *grad_c, *grad_dh;
    double *raw; /* memories as the definition reads them */
} sma_case;

/* Rows as they are stored, and what they stand for. */
static void normalise(conform_data *d, sma_case *k)
{
    const conform_case *c = d->c;
    const uint64_t rows = backward_slots(&k->rows, c->S, k->M) * c->H * c->N;
    for (uint64_t i = 0; i < rows; i++) {
        double square = 0;
        float scale;
        for (uint32_t p = 0; p < c->P; p++) square += k->raw[i * c->P + p] * k->raw[i * c->P + p];
        scale = (float)sqrt(square / c->P + 1e-5);
        k->scale->values[i] = (double)scale;
        for (uint32_t p = 0; p < c->P; p++) {
            const double stored = conform_rounded(k->dh->t.dtype, k->raw[i * c->P + p] / (double)scale);
            k->dh->values[i * c->P + p] = stored;
            k->raw[i * c->P + p] = stored * (double)scale;
        }
    }
    conform_set(d, k->dh, k->dh->values);
    conform_set(d, k->scale, k->scale->values);
}

static void make(conform_data *d, sma_case *k)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const uint64_t q_width = (uint64_t)c->G * c->N, e_width = (uint64_t)c->G * c->P, r_width = (uint64_t)c->H * c->P;
    backward_rows_make(d, &k->rows);
    for (uint32_t b = 0; b < c->B; b++) k->rows.seq[2 * b] = 0; /* memories of earlier pieces would be needed */
    const uint64_t rows = k->rows.rows;
    k->M = dart_ssd_chunks(c->L, c->S, conform_has(d, CASE_SEQ));
    const uint64_t chunks = backward_slots(&k->rows, c->S, k->M), memory = (uint64_t)c->H * c->N * c->P;
    k->q = conform_input(d, act, rows, q_width, true, conform_unit);
    k->e = conform_input(d, act, rows, e_width, true, conform_unit);
    k->c = conform_input(d, act, rows, q_width, true, conform_unit);
    k->up = conform_input(d, act, rows, r_width, true, conform_unit);
    const bool stored = conform_has(d, CASE_STORED);
    k->dh = conform_input(d, stored ? c->dtype : DART_F32, chunks, memory, false, any_memory);
    k->raw = malloc((chunks * memory + 1) * sizeof *k->raw);
    if (k->raw == NULL) abort();
    memcpy(k->raw, k->dh->values, chunks * memory * sizeof *k->raw);
    if (stored) {
        k->scale = conform_input(d, DART_F32, chunks, (uint64_t)c->H * c->N, false, conform_unit);
        normalise(d, k);
    }
    k->seq = backward_seq(d, &k->rows);
    k->r = conform_input(d, DART_F32, rows, r_width, true, conform_unit); /* the definition's, once it has run */
    k->lse = conform_input(d, DART_F32, rows, c->H, false, conform_unit);
    k->grad_q = conform_output(d, act, rows, q_width, true);
    k->grad_e = conform_output(d, act, rows, e_width, true);
    k->grad_c = conform_has(d, CASE_ADD) ? conform_input(d, act, rows, q_width, true, conform_unit) : conform_output(d, act, rows, q_width, true);
    k->grad_dh = conform_output(d, DART_F32, chunks, memory, false);
}

/* Memories of the chunks that have tokens, document by document. */
static tape_vector memories(tape *t, const conform_data *d, const sma_case *k)
{
    conform_tensor raw = *k->dh;
    raw.values = k->raw;
    double *of_chunks = backward_chunks(&raw, &k->rows, d->c->S, k->M);
    const tape_vector v = tape_input(t, of_chunks, definition_chunks(&k->rows.documents, d->c->S) * d->c->H * d->c->N * d->c->P);
    free(of_chunks);
    return v;
}

/* What the forward pass leaves, of the rows that have tokens. */
static void leave(conform_data *d, conform_tensor *tensor, const backward_rows *rows, const double *values)
{
    for (size_t i = 0; i < rows->tokens; i++)
        memcpy(tensor->values + rows->row_of[i] * tensor->width, values + i * tensor->width, tensor->width * sizeof *values);
    conform_set(d, tensor, tensor->values);
}

/* The largest size of a log sum, 0 where a token sees no memory. */
static double largest(const double *lse, size_t count)
{
    double most = 0;
    for (size_t i = 0; i < count; i++)
        if (isfinite(lse[i])) most = fmax(most, fabs(lse[i]));
    return most;
}

void conform_sma_backward(conform_data *d)
{
    const conform_case *c = d->c;
    sma_case k = {0};
    make(d, &k);
    tape *t = tape_create();
    definition_sma of = {.H = c->H, .G = c->G, .P = c->P, .N = c->N, .S = c->S, .documents = k.rows.documents, .eps = (double)1e-5f,
                         .q = backward_input(t, k.q, &k.rows), .e = backward_input(t, k.e, &k.rows), .c = backward_input(t, k.c, &k.rows),
                         .dh = memories(t, d, &k)};
    definition_run_sma(t, &of);
    double *ups = backward_gather(k.up, &k.rows);
    tape_push(t, of.r, ups);
    if (!d->plan) tape_reverse(t);
    free(ups);
    leave(d, k.r, &k.rows, tape_values(t, of.r));
    leave(d, k.lse, &k.rows, tape_values(t, of.lse));
    while (conform_next(d)) {
        dart_sma_backward(d->stream, &(dart_sma_backward_args){
            .B = c->B, .L = c->L, .T = k.rows.packing.T, .cu = k.rows.cu, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = c->S,
            .add_c = conform_has(d, CASE_ADD), .eps = 1e-5f, .q = k.q->t,
            .e = k.e->t, .c = k.c->t, .seq = conform_view(k.seq), .memories = {.M = k.M, .dh = k.dh->t, .scale = conform_view(k.scale)}, .r = k.r->t,
            .lse = k.lse->t, .up_r = k.up->t, .grad_q = k.grad_q->t, .grad_e = k.grad_e->t, .grad_c = k.grad_c->t, .grad_dh = k.grad_dh->t});
        if (!conform_execute(d)) continue;
        /* An absolute error of a logit is a relative one of its weight, as in softmax attention. */
        const double of_weights = 1 + largest(tape_values(t, of.lse), tape_count(t, of.lse));
        /* The definition normalises the memory that rounded rows and scales stand for; the op takes the rows as they are, each off by one rounding at
         * most, and weights with them. */
        const double rows = conform_has(d, CASE_STORED) ? conform_rounding(c->dtype) * of_weights : 0;
        const uint64_t heads = c->H / c->G, terms = (uint64_t)c->N + c->P + (uint64_t)k.M * heads;
        /* All of a token's row is multiplied by the gradients of its logits. */
        const conform_limits of_tokens = {.bound = conform_tolerance(BOUND_SMA, terms) * of_weights, .operands = rows, .shared = true};
        const conform_limits of_memories = {.bound = conform_tolerance(BOUND_SMA, terms + c->L) * of_weights, .operands = rows};
        backward_compare_rows(d, "grad_q", k.grad_q, &k.rows, t, of.q, NULL, of_tokens);
        backward_compare_rows(d, "grad_e", k.grad_e, &k.rows, t, of.e, NULL, of_tokens);
        backward_compare_rows(d, "grad_c", k.grad_c, &k.rows, t, of.c, conform_has(d, CASE_ADD) ? k.grad_c->values : NULL, of_tokens);
        backward_compare_chunks(d, "grad_dh", k.grad_dh, &k.rows, c->S, k.M, t, of.dh, of_memories);
    }
    free(k.raw);
    tape_destroy(&t);
    backward_rows_free(&k.rows);
}
