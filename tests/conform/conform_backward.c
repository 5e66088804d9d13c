#include "conform_backward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *array(uint64_t count, size_t size)
{
    void *made = calloc((size_t)(count > 0 ? count : 1), size);
    if (made == NULL) abort();
    return made;
}

tape_vector backward_whole(tape *t, const conform_tensor *tensor)
{
    return tape_input(t, tensor->values, (size_t)(tensor->rows * tensor->width));
}

static void compare(conform_data *d, const char *name, const conform_tensor *tensor, const double *want, const double *terms, conform_limits limits)
{
    limits.terms = terms;
    limits.floor = conform_floor(tensor->t.dtype);
    conform_compare_within(d, name, tensor, want, &limits);
}

void backward_compare(conform_data *d, const char *name, const conform_tensor *tensor, const tape *t, tape_vector v, const double *before,
                      conform_limits limits)
{
    const uint64_t count = tensor->rows * tensor->width;
    double *want = array(count, sizeof *want), *terms = array(count, sizeof *terms);
    for (uint64_t i = 0; i < count; i++) {
        const double held = before != NULL ? before[i] : 0;
        want[i] = held + tape_gradient(t, v)[i];
        terms[i] = sqrt(held * held + tape_squares(t, v)[i]);
    }
    compare(d, name, tensor, want, terms, limits);
    free(want);
    free(terms);
}

bool backward_rounds(const conform_data *d, const char *kernel)
{
    static const char *const families[] = {"matrix", "matrix2", "tensor"};
    bool rounds = false;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        char row[64];
        snprintf(row, sizeof row, "%s[%s_", kernel, families[i]);
        rounds = rounds || conform_ran(d, row);
    }
    return rounds;
}

/* ---- Sequences ---- */

void backward_rows_make(conform_data *d, backward_rows *of)
{
    const conform_case *c = d->c;
    *of = (backward_rows){.rows = (uint64_t)c->B * c->L};
    if (conform_has(d, CASE_PACKED)) {
        conform_packing_make(d, &of->packing);
        of->rows = of->packing.T;
        of->cu = conform_ints(d, 1, (uint64_t)c->B + 1, of->packing.cu)->t;
    }
    of->begin = array((uint64_t)c->B + 1, sizeof *of->begin);
    of->seq = array(2 * (uint64_t)c->B, sizeof *of->seq);
    of->row_of = array(of->rows, sizeof *of->row_of);
    for (uint32_t b = 0; b < c->B; b++) {
        uint32_t count = c->L;
        if (conform_has(d, CASE_SEQ)) count = c->B > 2 && b + 1 == c->B ? 0 : (uint32_t)((uint64_t)c->L * (c->B - b) / c->B);
        if (of->packing.T > 0) count = (uint32_t)(of->packing.cu[b + 1] - of->packing.cu[b]);
        of->seq[2 * b] = (int32_t)(b * c->S);
        of->seq[2 * b + 1] = (int32_t)count;
        for (uint32_t t = 0; t < count; t++) of->row_of[of->tokens++] = (of->packing.T > 0 ? (uint64_t)of->packing.cu[b] : (uint64_t)b * c->L) + t;
        of->begin[b + 1] = of->tokens;
    }
    of->documents = (definition_documents){.count = c->B, .begin = of->begin};
}

void backward_rows_free(backward_rows *of)
{
    free(of->begin);
    free(of->seq);
    free(of->row_of);
    free(of->packing.cu);
}

conform_tensor *backward_seq(conform_data *d, const backward_rows *rows)
{
    return conform_has(d, CASE_SEQ) ? conform_ints(d, d->c->B, 2, rows->seq) : NULL;
}

uint64_t backward_slots(const backward_rows *rows, size_t S, size_t M)
{
    const uint32_t T = rows->packing.T, B = (uint32_t)rows->documents.count;
    return T > 0 ? dart_packed_chunks(T, (uint32_t)S, B) : B * M;
}

uint64_t backward_slot(const backward_rows *rows, size_t b, size_t j, size_t S, size_t M)
{
    return (rows->packing.T > 0 ? conform_slot(&rows->packing, (uint32_t)b, (uint32_t)S) : b * M) + j;
}

double *backward_gather(const conform_tensor *tensor, const backward_rows *rows)
{
    const size_t width = (size_t)tensor->width;
    double *values = array(rows->tokens * width, sizeof *values);
    for (size_t i = 0; i < rows->tokens; i++) memcpy(values + i * width, tensor->values + rows->row_of[i] * width, width * sizeof *values);
    return values;
}

tape_vector backward_input(tape *t, const conform_tensor *tensor, const backward_rows *rows)
{
    double *values = backward_gather(tensor, rows);
    const tape_vector v = tape_input(t, values, rows->tokens * (size_t)tensor->width);
    free(values);
    return v;
}

double *backward_chunks(const conform_tensor *tensor, const backward_rows *rows, size_t S, size_t M)
{
    const size_t width = (size_t)tensor->width;
    double *values = array(definition_chunks(&rows->documents, S) * width, sizeof *values);
    for (size_t b = 0, made = 0; b < rows->documents.count; b++)
        for (size_t t = rows->begin[b], j = 0; t < rows->begin[b + 1]; t += S, j++)
            memcpy(values + made++ * width, tensor->values + backward_slot(rows, b, j, S, M) * width, width * sizeof *values);
    return values;
}

void backward_compare_rows(conform_data *d, const char *name, const conform_tensor *tensor, const backward_rows *rows, const tape *t, tape_vector v,
                           const double *before, conform_limits limits)
{
    const uint64_t count = tensor->rows * tensor->width, width = tensor->width;
    double *want = array(count, sizeof *want), *terms = array(count, sizeof *terms);
    for (uint64_t i = 0; i < count && before != NULL; i++) {
        want[i] = before[i];
        terms[i] = before[i] * before[i];
    }
    for (uint64_t i = 0; i < count && before == NULL && rows->packing.T > 0; i++) want[i] = NAN; /* until a token has the row */
    for (size_t k = 0; k < rows->tokens && before == NULL; k++) memset(want + rows->row_of[k] * width, 0, width * sizeof *want);
    for (size_t k = 0; k < rows->tokens; k++)
        for (uint64_t i = 0; i < width; i++) {
            want[rows->row_of[k] * width + i] += tape_gradient(t, v)[k * width + i];
            terms[rows->row_of[k] * width + i] += tape_squares(t, v)[k * width + i];
        }
    for (uint64_t i = 0; i < count; i++) terms[i] = sqrt(terms[i]);
    compare(d, name, tensor, want, terms, limits);
    free(want);
    free(terms);
}

void backward_compare_chunks(conform_data *d, const char *name, const conform_tensor *tensor, const backward_rows *rows, size_t S, size_t M,
                             const tape *t, tape_vector v, conform_limits limits)
{
    const size_t count = (size_t)(tensor->rows * tensor->width), width = (size_t)tensor->width;
    double *want = array(count, sizeof *want), *terms = array(count, sizeof *terms);
    for (size_t i = 0; i < count && rows->packing.T > 0; i++) want[i] = NAN;
    for (size_t b = 0, made = 0; b < rows->documents.count; b++)
        for (size_t at = rows->begin[b], j = 0; at < rows->begin[b + 1]; at += S, j++, made++)
            for (size_t i = 0; i < width; i++) {
                const uint64_t to = backward_slot(rows, b, j, S, M) * width + i;
                want[to] = tape_gradient(t, v)[made * width + i];
                terms[to] = sqrt(tape_squares(t, v)[made * width + i]);
            }
    compare(d, name, tensor, want, terms, limits);
    free(want);
    free(terms);
}
