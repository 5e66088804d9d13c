#include "conform_data.h"

#include <float.h>
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

static uint64_t place(const conform_tensor *tensor, uint64_t row, uint64_t i)
{
    return tensor->t.offset + row * (tensor->t.row != 0 ? tensor->t.row : tensor->width) + i;
}

/* Row r of what the tensor's buffer holds. */
static void read_row(const conform_tensor *tensor, uint64_t r, float *values)
{
    dart_to_f32(tensor->t.dtype, values, (const char *)tensor->initial + place(tensor, r, 0) * dart_dtype_size(tensor->t.dtype),
                (size_t)tensor->width);
}

static float *row_of_floats(const conform_tensor *tensor)
{
    float *row = malloc((size_t)(tensor->width > 0 ? tensor->width : 1) * sizeof *row);
    if (row == NULL) abort();
    return row;
}

void conform_set(conform_data *d, conform_tensor *tensor, const double *values)
{
    const uint64_t width = tensor->width;
    const size_t size = dart_dtype_size(tensor->t.dtype);
    float *row = row_of_floats(tensor);
    (void)d;
    for (uint64_t r = 0; r < tensor->rows; r++) {
        char *to = (char *)tensor->initial + place(tensor, r, 0) * size;
        for (uint64_t i = 0; i < width; i++) row[i] = (float)values[r * width + i];
        for (uint64_t i = 0, end; i < width; i = end + 1) { /* from one NaN to the next */
            for (end = i; end < width && !isnan(row[end]); end++) {}
            dart_from_f32(tensor->t.dtype, to + i * size, row + i, (size_t)(end - i));
        }
        read_row(tensor, r, row);
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
        memcpy((char *)tensor->initial + place(tensor, 0, i) * 4, &values[i], 4);
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
        const uint64_t to = r < tensor->rows ? place(tensor, r, 0) : tensor->total, at = first_change(after, tensor->initial, from, to, size);
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

/* ---- Comparing ---- */

/* In units of 2^-24, rounding f32 once. A sum of k products of random sign, added one after another, errs by about
 * 0.4 sqrt(k) units of its own size (each partial sum of size sqrt(i) adds a rounding of its own); 2 sqrt(k) is five
 * times that, for fewer, larger roundings in other orders. Constants count the elementary functions on the way, 2 to 4
 * units each. Scans add what a relative error of 4 units in the step does through exp: x exp(-x) <= 0.37 of it. */
double conform_tolerance(conform_bound bound, uint64_t terms)
{
    static const double units_of[] = {[BOUND_DOT] = 4, [BOUND_NORM] = 16, [BOUND_CONV] = 16, [BOUND_DECAY] = 16,
                                      [BOUND_SCAN] = 24, [BOUND_SMA] = 24, [BOUND_SMA_STORE] = 16};
    const double spread = bound == BOUND_DECAY ? 0 : 2 * sqrt((double)terms);
    return (units_of[bound] + spread) * 0x1p-24;
}

double conform_rounding(dart_dtype stored) { return stored == DART_F16 ? 0x1p-11 : stored == DART_BF16 ? 0x1p-8 : 0; }

/* The first number keeps 8 digits (f16: 11) and is cut off, which leaves less than 2^-7 (2^-10) of the operand; rounding the rest to as many digits
 * errs by at most 2^-9 (2^-12) of that. */
double conform_split_rounding(dart_dtype stored) { return stored == DART_F16 ? 0x1p-22 : stored == DART_BF16 ? 0x1p-16 : 0; }

double conform_rounded(dart_dtype stored, double value)
{
    float from = (float)value, back;
    char bytes[4];
    dart_from_f32(stored, bytes, &from, 1);
    dart_to_f32(stored, &back, bytes, 1);
    return back;
}

double conform_floor(dart_dtype stored) { return stored == DART_F16 ? 0x1p-25 : 0; }

static bool untouched(const conform_tensor *tensor, uint64_t at)
{
    const size_t size = dart_dtype_size(tensor->t.dtype);
    const unsigned char *bytes = (const unsigned char *)tensor->initial + at * size;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != 0xff) return false;
    return true;
}

conform_tensor *conform_scaled(conform_data *d, const conform_tensor *tensor, const conform_tensor *scale)
{
    if (d->status != DART_OK) return NULL;
    conform_tensor *made = calloc(1, sizeof *made);
    const uint64_t count = tensor->rows * tensor->width, part = tensor->width / scale->width;
    float *values = malloc((size_t)count * sizeof *values);
    if (made == NULL || values == NULL || d->tensors_count == MAX_TENSORS) abort();
    *made = (conform_tensor){
        .t = {.dtype = DART_F32}, .rows = tensor->rows, .width = tensor->width, .total = count, .initial = values, .digest = tensor->digest};
    float *scales = row_of_floats(scale);
    for (uint64_t r = 0; r < tensor->rows; r++) {
        float *row = values + r * tensor->width;
        read_row(tensor, r, row);
        read_row(scale, r, scales);
        for (uint64_t i = 0; i < tensor->width; i++) {
            const bool absent = isnan(row[i]) && untouched(tensor, place(tensor, r, i)) && untouched(scale, place(scale, r, i / part));
            row[i] = (float)((double)row[i] * scales[i / part]);
            if (absent) memset(&row[i], 0xff, sizeof row[i]);
        }
    }
    free(scales);
    d->tensors[d->tensors_count++] = made;
    return made;
}

/* The element that a failure shows. */
static void show_element(conform_result *result, uint64_t element, double got, double want)
{
    result->element = element;
    result->got = got;
    result->want = want;
}

static conform_result *add_result(conform_data *d, const char *name)
{
    if (d->outcome->results_count == CONFORM_MAX_RESULTS) abort();
    conform_result *result = &d->outcome->results[d->outcome->results_count++];
    memset(result, 0, sizeof *result);
    snprintf(result->tensor, sizeof result->tensor, "%s", name);
    return result;
}

/* What an element's error is measured against. */
static double size_of(const conform_limits *limits, const double *expected, uint64_t i)
{
    return limits->terms != NULL ? fmax(fabs(expected[i]), limits->terms[i]) : fabs(expected[i]);
}

/* Relative L2 distance of the expected values from themselves rounded once. */
static double one_rounding(const conform_tensor *tensor, const double *expected, const conform_limits *limits)
{
    double error2 = 0, size2 = 0;
    for (uint64_t i = 0; i < tensor->rows * tensor->width; i++) {
        if (!isfinite(expected[i])) continue;
        const double to = limits->rounded != NULL ? limits->rounded[i] : conform_rounded(tensor->t.dtype, expected[i]),
                     size = size_of(limits, expected, i);
        if (isfinite(to)) error2 += (to - expected[i]) * (to - expected[i]);
        size2 += size * size;
    }
    return sqrt(error2) / fmax(sqrt(size2), DBL_MIN);
}

void conform_compare(conform_data *d, const char *name, const conform_tensor *tensor, const double *expected, double bound, double floor_)
{
    conform_compare_within(d, name, tensor, expected, &(conform_limits){.bound = bound, .floor = floor_});
}

void conform_compare_within(conform_data *d, const char *name, const conform_tensor *tensor, const double *expected, const conform_limits *limits)
{
    if (d->status != DART_OK || d->plan || tensor == NULL) return;
    conform_result *result = add_result(d, name);
    result->digest = tensor->digest;
    const dart_dtype stored = limits->rounded != NULL ? limits->rounded_to : tensor->t.dtype;
    const double rounding = conform_rounding(stored), floor_ = limits->floor;
    const double once = rounding > 0 ? one_rounding(tensor, expected, limits) : 0;
    const bool exact = limits->bound + limits->operands == 0;
    /* Of few elements, one rounding may err by less than it does of many: 0.4 of the largest. Operands and memories were rounded to
     * as many bits before: each such rounding errs in L2 by as much as the last one, and as they are independent, squares add. */
    const double roundings = rounding > 0 ? 1 + limits->operands / rounding : 0;
    const double l2_tolerance = exact          ? once
                                : rounding > 0 ? limits->bound + 2 * sqrt(roundings) * fmax(once, 0.4 * rounding)
                                               : limits->bound + limits->operands;
    const double tolerance = limits->bound + limits->operands + (exact && once == 0 ? 0 : rounding);
    result->tolerance = l2_tolerance;
    double error2 = 0, size2 = 0, error_max = 0, size_max = 0;
    uint64_t written_rows = 0;
    const double slack = floor_ * sqrt((double)tensor->width);
    result->values_count = tensor->rows * tensor->width;
    result->values = malloc((size_t)result->values_count * sizeof *result->values);
    if (result->values == NULL) abort();
    float *row = row_of_floats(tensor);
    for (uint64_t r = 0; r < tensor->rows; r++) {
        read_row(tensor, r, row);
        for (uint64_t i = 0; i < tensor->width; i++) result->values[r * tensor->width + i] = row[i];
    }
    free(row);
    if (d->dump != NULL) conform_dump_result(d->dump, name, tensor, result->values, expected);
    for (int pass = 0; pass < 2; pass++) {
        const double typical = pass == 1 && written_rows > 0 ? sqrt(size2 / (double)written_rows) : 0;
        for (uint64_t r = 0; r < tensor->rows; r++) {
            double row_error2 = 0, row_size2 = 0;
            bool written = false;
            for (uint64_t i = 0; i < tensor->width; i++) {
                const double want = expected[r * tensor->width + i];
                const double got = result->values[r * tensor->width + i];
                if (isnan(want)) {
                    if (!untouched(tensor, place(tensor, r, i)) && !result->broken) {
                        result->broken = true;
                        show_element(result, r * tensor->width + i, got, want);
                        snprintf(result->note, sizeof result->note, "row %llu element %llu should not be written", (unsigned long long)r,
                                 (unsigned long long)i);
                    }
                    continue;
                }
                written = true;
                if (isinf(want) ? got != want : !isfinite(got)) {
                    if (!result->broken) {
                        show_element(result, r * tensor->width + i, got, want);
                        snprintf(result->note, sizeof result->note, "row %llu element %llu is %g, expected %g", (unsigned long long)r,
                                 (unsigned long long)i, got, want);
                    }
                    result->broken = true;
                    continue;
                }
                if (isinf(want)) continue;
                const double error = fabs(got - want), size = size_of(limits, expected, r * tensor->width + i);
                row_error2 += error * error;
                row_size2 += size * size;
                if (error > error_max) {
                    error_max = error;
                    if (!result->broken) show_element(result, r * tensor->width + i, got, want);
                }
                if (size > size_max) size_max = size;
            }
            if (pass == 0) {
                error2 += row_error2;
                size2 += row_size2;
                written_rows += written;
                continue;
            }
            const double size = fmax(sqrt(row_size2), typical);
            const double relative = fmax(0, sqrt(row_error2) - slack) / fmax(size, DBL_MIN);
            if (relative > result->row) {
                result->row = relative;
                result->worst_row = r;
            }
        }
    }
    result->size = sqrt(size2);
    const double total_slack = result->slack = floor_ * sqrt((double)(written_rows * tensor->width));
    result->l2 = fmax(0, sqrt(error2) - total_slack) / fmax(sqrt(size2), DBL_MIN);
    result->linf = fmax(0, error_max - floor_) / fmax(size_max, DBL_MIN);
    if (error2 == 0) result->l2 = result->linf = result->row = 0;
    const double worst = fmax(result->linf, result->row / 4);
    result->share = worst == 0 ? 0 : tolerance > 0 ? worst / tolerance : INFINITY;
    if (result->l2 > 0) result->share = fmax(result->share, l2_tolerance > 0 ? result->l2 / l2_tolerance : INFINITY);
}

void conform_compare_ints(conform_data *d, const char *name, const conform_tensor *tensor, const int32_t *expected)
{
    if (d->status != DART_OK || d->plan || tensor == NULL) return;
    conform_result *result = add_result(d, name);
    result->digest = tensor->digest;
    if (d->dump != NULL) conform_dump_ints(d->dump, name, tensor, expected);
    for (uint64_t i = 0; i < tensor->rows * tensor->width; i++) {
        int32_t got;
        memcpy(&got, (const char *)tensor->initial + place(tensor, i / tensor->width, i % tensor->width) * sizeof got, sizeof got);
        if (got == expected[i] || result->broken) continue;
        result->broken = true;
        result->worst_row = i / tensor->width;
        show_element(result, i, got, expected[i]);
        snprintf(result->note, sizeof result->note, "row %llu is %d, expected %d", (unsigned long long)(i / tensor->width), got, expected[i]);
    }
}
