#include "conform_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64 /* elements before and after every tensor; keeps 64-element alignment */

/* splitmix64 */
static uint64_t next(conform_data *d)
{
    uint64_t z = d->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

double conform_uniform(conform_data *d, double low, double high)
{
    return low + (high - low) * ((double)(next(d) >> 11) * 0x1p-53);
}

double conform_normal(conform_data *d)
{
    const double u = 1.0 - conform_uniform(d, 0, 1), v = conform_uniform(d, 0, 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

double conform_unit(conform_data *d, uint64_t i)
{
    (void)i;
    return conform_normal(d);
}

double conform_a_log(conform_data *d, uint64_t i)
{
    (void)i;
    return conform_uniform(d, 0, log(16));
}

double conform_bias(conform_data *d, uint64_t i)
{
    (void)i;
    return conform_uniform(d, -4, 0);
}

double *conform_filled(uint64_t count, double value)
{
    double *memory = malloc((size_t)(count > 0 ? count : 1) * sizeof *memory);
    if (memory == NULL) abort();
    for (uint64_t i = 0; i < count; i++) memory[i] = value;
    return memory;
}

bool conform_ran(const conform_data *d, const char *row)
{
    const size_t length = strlen(row);
    const char *ran = d->outcome->variants;
    while (ran != NULL && strncmp(ran, row, length) != 0) {
        ran = strchr(ran, ' ');
        if (ran != NULL) ran++;
    }
    return ran != NULL;
}

dart_dtype conform_activation(const conform_case *c) { return (c->flags & CASE_MIXED) != 0 ? DART_F32 : c->dtype; }

conform_tensor conform_column(const conform_tensor *tensor, uint64_t column)
{
    conform_tensor view = *tensor;
    view.width = 1;
    view.t.offset += column;
    view.t.row = tensor->width;
    return view;
}

dart_tensor conform_view(const conform_tensor *tensor)
{
    const dart_tensor absent = {0};
    return tensor != NULL ? tensor->t : absent;
}

static void fail(conform_data *d, dart_status status, const char *text)
{
    if (d->status != DART_OK) return;
    d->status = status;
    snprintf(d->outcome->text, sizeof d->outcome->text, "%s", text);
}

static conform_tensor *add(conform_data *d, dart_dtype dtype, uint64_t rows, uint64_t width, bool view)
{
    conform_tensor *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL || d->tensors_count == MAX_TENSORS) abort();
    d->tensors[d->tensors_count++] = tensor;
    const bool odd = view && (d->c->flags & CASE_VIEW) != 0, moved = d->c->moved == d->tensors_count;
    const bool apart = view && d->c->apart == d->tensors_count;
    const bool pitched = view && (d->c->flags & CASE_PITCHED) != 0;
    const uint64_t row = pitched ? (width + 15) / 8 * 8 : width + (odd ? 3 : apart ? 1 : 0);
    const uint64_t offset = GUARD + (odd ? 5 : moved ? 1 : pitched ? 8 : 0);
    tensor->rows = rows;
    tensor->width = width;
    tensor->t.dtype = dtype;
    tensor->t.offset = offset;
    tensor->t.row = odd || apart || pitched ? row : 0;
    tensor->total = offset + rows * row + GUARD;
    const size_t bytes = (size_t)tensor->total * dart_dtype_size(dtype);
    tensor->initial = malloc(bytes);
    tensor->values = calloc((size_t)(rows * width), sizeof *tensor->values);
    if (tensor->initial == NULL || tensor->values == NULL) abort();
    memset(tensor->initial, 0xff, bytes);
    if (d->status == DART_OK) {
        const dart_status status = dart_buffer_create(d->device, bytes, &tensor->t.buffer);
        char text[256];
        dart_device_error(d->device, text, sizeof text);
        if (status != DART_OK) fail(d, status, text);
    }
    return tensor;
}

uint64_t conform_place(const conform_tensor *tensor, uint64_t row, uint64_t i)
{
    return tensor->t.offset + row * (tensor->t.row != 0 ? tensor->t.row : tensor->width) + i;
}

void conform_read_row(const conform_tensor *tensor, uint64_t r, float *values)
{
    dart_to_f32(tensor->t.dtype, values, (const char *)tensor->initial + conform_place(tensor, r, 0) * dart_dtype_size(tensor->t.dtype),
                (size_t)tensor->width);
}

float *conform_row_of_floats(const conform_tensor *tensor)
{
    float *row = malloc((size_t)(tensor->width > 0 ? tensor->width : 1) * sizeof *row);
    if (row == NULL) abort();
    return row;
}

void conform_set(conform_data *d, conform_tensor *tensor, const double *values)
{
    const uint64_t width = tensor->width;
    const size_t size = dart_dtype_size(tensor->t.dtype);
    float *row = conform_row_of_floats(tensor);
    (void)d;
    for (uint64_t r = 0; r < tensor->rows; r++) {
        char *to = (char *)tensor->initial + conform_place(tensor, r, 0) * size;
        for (uint64_t i = 0; i < width; i++) row[i] = (float)values[r * width + i];
        for (uint64_t i = 0, end; i < width; i = end + 1) { /* from one NaN to the next */
            for (end = i; end < width && !isnan(row[end]); end++) {}
            dart_from_f32(tensor->t.dtype, to + i * size, row + i, (size_t)(end - i));
        }
        conform_read_row(tensor, r, row);
        for (uint64_t i = 0; i < width; i++)
            if (!isnan(values[r * width + i])) tensor->values[r * width + i] = row[i];
    }
    free(row);
}

conform_tensor *conform_input(conform_data *d, dart_dtype dtype, uint64_t rows, uint64_t width, bool view, conform_generator make)
{
    conform_tensor *tensor = add(d, dtype, rows, width, view);
    for (uint64_t i = 0; i < rows * width; i++) tensor->values[i] = make(d, i);
    conform_set(d, tensor, tensor->values);
    return tensor;
}

conform_tensor *conform_output(conform_data *d, dart_dtype dtype, uint64_t rows, uint64_t width, bool view)
{
    return add(d, dtype, rows, width, view);
}

conform_tensor *conform_ints(conform_data *d, uint64_t rows, uint64_t width, const int32_t *values)
{
    conform_tensor *tensor = add(d, DART_I32, rows, width, false);
    for (uint64_t i = 0; i < rows * width; i++) {
        memcpy((char *)tensor->initial + conform_place(tensor, 0, i) * 4, &values[i], 4);
        tensor->values[i] = values[i];
    }
    return tensor;
}

static dart_status restore(conform_data *d)
{
    for (uint32_t i = 0; i < d->tensors_count; i++) {
        const conform_tensor *tensor = d->tensors[i];
        const dart_status status = dart_buffer_write(tensor->t.buffer, 0, tensor->initial, dart_buffer_bytes(tensor->t.buffer));
        if (status != DART_OK) return status;
    }
    return DART_OK;
}

/* Runs the recording once; contents of tensor i after it in results[i]. */
static dart_status run_once(conform_data *d, void **results)
{
    dart_status status = restore(d);
    if (status == DART_OK) status = dart_stream_submit(d->stream);
    if (status == DART_OK) status = dart_stream_wait(d->stream, UINT64_C(600000000000));
    if (status == DART_OK) status = dart_stream_elapsed(d->stream, &d->outcome->ns);
    for (uint32_t i = 0; i < d->tensors_count && status == DART_OK; i++) {
        const conform_tensor *tensor = d->tensors[i];
        const uint64_t bytes = dart_buffer_bytes(tensor->t.buffer);
        results[i] = malloc((size_t)bytes);
        if (results[i] == NULL) abort();
        status = dart_buffer_read(tensor->t.buffer, 0, results[i], bytes);
    }
    return status;
}

/* Of words of 8 bytes: multiplied by an odd number after each, the upper half mixed into the lower one. */
static const uint64_t digest_begin = UINT64_C(0xcbf29ce484222325);

static uint64_t digest(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)bytes + i, size - i < 8 ? size - i : 8);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

/* The first of elements from <= at < to that differs; to: none. */
static uint64_t first_change(const void *a, const void *b, uint64_t from, uint64_t to, size_t size)
{
    if (to <= from || memcmp((const char *)a + from * size, (const char *)b + from * size, (size_t)(to - from) * size) == 0) return to;
    while (memcmp((const char *)a + from * size, (const char *)b + from * size, size) == 0) from++;
    return from;
}

/* What the run wrote outside the tensor's rows: before the first one, after each, and after the last one. */
static void check_guards(conform_data *d, uint32_t number, const void *after)
{
    const conform_tensor *tensor = d->tensors[number];
    const size_t size = dart_dtype_size(tensor->t.dtype);
    for (uint64_t r = 0, from = 0; r <= tensor->rows; r++) {
        const uint64_t to = r < tensor->rows ? conform_place(tensor, r, 0) : tensor->total, at = first_change(after, tensor->initial, from, to, size);
        char text[128];
        if (at < to) {
            snprintf(text, sizeof text, "tensor %u: element %lld outside it was written", number, (long long)at - (long long)tensor->t.offset);
            fail(d, DART_INTERNAL, text);
            return;
        }
        from = to + tensor->width;
    }
}

void conform_execute(conform_data *d)
{
    char text[256];
    if (d->status != DART_OK || d->plan) return;
    void *first[MAX_TENSORS] = {0}, *second[MAX_TENSORS] = {0};
    d->outcome->inputs = digest_begin;
    for (uint32_t i = 0; i < d->tensors_count; i++)
        d->outcome->inputs =
            digest(d->outcome->inputs, d->tensors[i]->initial, (size_t)d->tensors[i]->total * dart_dtype_size(d->tensors[i]->t.dtype));
    dart_status status = run_once(d, first);
    if (status == DART_OK) status = run_once(d, second);
    if (status != DART_OK) {
        dart_stream_error(d->stream, text, sizeof text);
        fail(d, status, text);
    }
    for (uint32_t i = 0; i < d->tensors_count; i++) {
        const conform_tensor *tensor = d->tensors[i];
        const size_t bytes = (size_t)tensor->total * dart_dtype_size(tensor->t.dtype);
        if (status == DART_OK && memcmp(first[i], second[i], bytes) != 0)
            fail(d, DART_INTERNAL, "two runs from the same bits gave different bits");
        if (status == DART_OK) check_guards(d, i, first[i]);
        /* From here on `initial` is what the device left. */
        if (status == DART_OK) {
            free(d->tensors[i]->initial);
            d->tensors[i]->initial = first[i];
            d->tensors[i]->digest = digest(digest_begin, first[i], bytes);
        } else {
            free(first[i]);
        }
        free(second[i]);
    }
}

void conform_destroy(conform_data *d)
{
    for (uint32_t i = 0; i < d->tensors_count; i++) {
        dart_buffer_destroy(&d->tensors[i]->t.buffer);
        free(d->tensors[i]->initial);
        free(d->tensors[i]->values);
        free(d->tensors[i]);
    }
    d->tensors_count = 0;
}
