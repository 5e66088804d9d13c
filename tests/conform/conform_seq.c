/* What cases of sequences share. */
#include "conform_seq.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void conform_seq_make(conform_data *d, conform_seq *seq)
{
    const conform_case *c = d->c;
    seq->pos = calloc(c->B, sizeof *seq->pos);
    seq->count = calloc(c->B, sizeof *seq->count);
    seq->pairs = calloc(2 * (size_t)c->B, sizeof *seq->pairs);
    if (seq->pos == NULL || seq->count == NULL || seq->pairs == NULL) abort();
    for (uint32_t b = 0; b < c->B; b++) {
        const bool ragged = conform_has(d, CASE_SEQ);
        seq->pos[b] = ragged && b > 0 ? (int32_t)(c->S * ((b + 1) / 2) + c->S - 2 + b) : 0;
        seq->count[b] = (int32_t)(ragged ? c->L - (b * 3) % c->L : c->L);
        if (ragged && c->B > 2 && b == c->B - 1) seq->count[b] = 0;
        seq->pairs[2 * b] = seq->pos[b];
        seq->pairs[2 * b + 1] = seq->count[b] > 0 ? seq->count[b] : -1 - (int32_t)b; /* counts as 0 */
    }
}

void conform_seq_free(conform_seq *seq)
{
    free(seq->pos);
    free(seq->count);
    free(seq->pairs);
}

static double below_zero(conform_data *d, uint64_t i)
{
    (void)i;
    return conform_uniform(d, -2, -0.01);
}

void conform_open_make(conform_data *d, const conform_seq *seq, conform_tensor **open, conform_tensor **decay)
{
    const conform_case *c = d->c;
    const uint64_t state = (uint64_t)c->H * c->N * c->P;
    *open = conform_input(d, DART_F32, c->B, state, false, conform_unit);
    *decay = conform_input(d, DART_F32, c->B, c->H, false, below_zero);
    for (uint32_t b = 0; b < c->B; b++) {
        if ((uint32_t)seq->pos[b] % c->S != 0) continue;
        memset((*open)->values + b * state, 0, (size_t)state * sizeof(double));
        memset((*decay)->values + b * c->H, 0, c->H * sizeof(double));
    }
    conform_set(d, *open, (*open)->values);
    conform_set(d, *decay, (*decay)->values);
}

void conform_runs_make(conform_data *d, const conform_seq *seq, conform_runs *runs)
{
    const conform_case *c = d->c;
    uint32_t first = UINT32_MAX, end = 0;
    for (uint32_t b = 0; b < c->B; b++) {
        const uint32_t position = (uint32_t)seq->pos[b], after = position + (uint32_t)seq->count[b];
        if (position / c->S < first) first = position / c->S;
        if (after / c->S > end) end = after / c->S;
    }
    runs->count = (c->flags & CASE_RUNS) != 0 ? 2 : 1;
    for (uint32_t i = 0; i < runs->count; i++) {
        const uint32_t from = first + i, M = i + 1 < runs->count ? 1 : end > from ? end - from : 1;
        runs->rows[i] = conform_output(d, c->dtype, (uint64_t)c->B * M, (uint64_t)c->H * c->N * c->P, false);
        runs->scales[i] = conform_output(d, DART_F32, (uint64_t)c->B * M, (uint64_t)c->H * c->N, false);
        runs->runs[i] = (dart_memories){.first = from, .M = M, .dh = runs->rows[i]->t, .scale = runs->scales[i]->t};
    }
}

void conform_compare_matrices(conform_data *d, const char *name, const conform_tensor *of, const conform_tensor *scale, const double *expected,
                              conform_limits limits)
{
    if (of == NULL || d->status != DART_OK) return;
    if (scale == NULL) {
        conform_compare_within(d, name, of, expected, &limits);
        return;
    }
    const uint64_t rows = scale->rows * scale->width, P = of->width / scale->width;
    double *roots = conform_filled(rows, 0), largest = 0;
    char scale_name[24];
    for (uint64_t i = 0; i < rows; i++) {
        for (uint64_t p = 0; p < P; p++) roots[i] += expected[i * P + p] * expected[i * P + p];
        roots[i] = sqrt(roots[i] / (double)P + 1e-5);
        if (roots[i] > largest) largest = roots[i];
    }
    snprintf(scale_name, sizeof scale_name, "%s_scale", name);
    conform_compare_within(d, scale_name, scale, roots, &limits);
    double *rounded = conform_filled(rows * P, 0);
    for (uint64_t i = 0; i < rows * P; i++)
        rounded[i] = isnan(expected[i]) ? NAN : conform_rounded(of->t.dtype, expected[i] / roots[i / P]) * roots[i / P];
    limits.rounded = rounded;
    limits.rounded_to = of->t.dtype;
    limits.floor = largest * conform_floor(of->t.dtype);
    conform_compare_within(d, name, conform_scaled(d, of, scale), expected, &limits);
    free(rounded);
    free(roots);
}

void conform_compare_runs(conform_data *d, const conform_seq *seq, const conform_runs *runs, uint32_t M, const double *dh, conform_limits limits)
{
    const conform_case *c = d->c;
    const uint64_t state = (uint64_t)c->H * c->N * c->P;
    for (uint32_t i = 0; i < runs->count; i++) {
        const dart_memories *run = &runs->runs[i];
        double *expected = conform_filled((uint64_t)c->B * run->M * state, NAN);
        for (uint32_t b = 0; b < c->B; b++) {
            const uint32_t position = (uint32_t)seq->pos[b], after = position + (uint32_t)seq->count[b];
            for (uint32_t m = run->first; m < run->first + run->M; m++) {
                if (m < position / c->S || m >= after / c->S) continue;
                const double *from = dh + ((uint64_t)b * M + m - position / c->S) * state;
                memcpy(expected + ((uint64_t)b * run->M + m - run->first) * state, from, state * sizeof *from);
            }
        }
        conform_compare_matrices(d, i == 0 ? "run 0" : "run 1", runs->rows[i], runs->scales[i], expected, limits);
        free(expected);
    }
}

void conform_packing_make(conform_data *d, conform_packing *packing)
{
    const conform_case *c = d->c;
    packing->cu = calloc((size_t)c->B + 1, sizeof *packing->cu);
    if (packing->cu == NULL) abort();
    for (uint32_t b = 0; b < c->B; b++) {
        const double any = conform_uniform(d, 0, c->L + 1);
        enum { KINDS = 8 };
        const uint32_t lengths[KINDS] = {0, 1, c->S - 1, c->S, c->S + 1, 2 * c->S, (uint32_t)any, (uint32_t)any};
        uint32_t length = lengths[(size_t)conform_uniform(d, 0, KINDS)];
        if (b == c->B / 2 || length > c->L) length = c->L;
        packing->cu[b + 1] = packing->cu[b] + (int32_t)length;
    }
    packing->T = (uint32_t)packing->cu[c->B] + (uint32_t)conform_uniform(d, 0, 4);
}
