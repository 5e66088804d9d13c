#include "conform_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64 /* elements before and after every tensor; keeps 64-element alignment */

double conform_uniform(conform_data *d, double low, double high) { return low + (high - low) * conform_uniform_at(d->seed, d->drawn++); }

double conform_normal(conform_data *d)
{
    d->drawn += 2;
    return conform_normal_at(d->seed, d->drawn - 2, d->numbers);
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

void conform_fail(conform_data *d, dart_status status, const char *text)
{
    if (d->status != DART_OK) return;
    d->status = status;
    snprintf(d->text, sizeof d->text, "%s", text);
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
    const uint64_t offset = GUARD + (odd ? 5 : moved ? (d->c->flags & CASE_EIGHT ? 8 : 1) : pitched ? 8 : 0);
    tensor->rows = rows;
    tensor->width = width;
    tensor->t.dtype = dtype;
    tensor->t.offset = offset;
    tensor->t.row = odd || apart || pitched ? row : 0;
    tensor->total = offset + rows * row + GUARD;
    const size_t bytes = (size_t)tensor->total * dart_dtype_size(dtype);
    tensor->initial = d->plan ? calloc(1, bytes) : malloc(bytes);
    tensor->values = calloc((size_t)(rows * width), sizeof *tensor->values);
    if (tensor->initial == NULL || tensor->values == NULL) abort();
    if (!d->plan) memset(tensor->initial, 0xff, bytes);
    if (d->status == DART_OK) {
        const dart_status status = dart_buffer_create(d->device, bytes, &tensor->t.buffer);
        char text[256];
        dart_device_error(d->device, text, sizeof text);
        if (status != DART_OK) conform_fail(d, status, text);
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
    if (d->plan) return;
    tensor->held = false;
    float *row = conform_row_of_floats(tensor);
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

void conform_disregard(conform_tensor *tensor, uint64_t first, uint64_t count)
{
    const size_t size = dart_dtype_size(tensor->t.dtype);
    for (uint64_t r = first; r < first + count; r++)
        memset((char *)tensor->initial + conform_place(tensor, r, 0) * size, 0xff, (size_t)tensor->width * size);
}

uint32_t conform_quiet(conform_data *d)
{
    const conform_case *c = d->c;
    if (!conform_has(d, CASE_QUIET)) return 0;
    return c->S < c->L ? c->S + (uint32_t)conform_uniform(d, 0, (double)(c->L - c->S) + 1) : c->L;
}

conform_tensor *conform_input(conform_data *d, dart_dtype dtype, uint64_t rows, uint64_t width, bool view, conform_generator make)
{
    conform_tensor *tensor = add(d, dtype, rows, width, view);
    for (uint64_t i = 0; i < rows * width && !d->plan; i++) tensor->values[i] = make(d, i);
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

void conform_forget(conform_data *d, uint32_t kept)
{
    while (d->tensors_count > kept) {
        conform_tensor *tensor = d->tensors[--d->tensors_count];
        dart_buffer_destroy(&tensor->t.buffer);
        free(tensor->initial);
        free(tensor->values);
        free(tensor);
    }
}
