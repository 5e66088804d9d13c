/* What a run left against what it should have left. */
#include "conform_data.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    float *scales = conform_row_of_floats(scale);
    for (uint64_t r = 0; r < tensor->rows; r++) {
        float *row = values + r * tensor->width;
        conform_read_row(tensor, r, row);
        conform_read_row(scale, r, scales);
        for (uint64_t i = 0; i < tensor->width; i++) {
            const uint64_t at = conform_place(tensor, r, i), scale_at = conform_place(scale, r, i / part);
            const bool absent = isnan(row[i]) && untouched(tensor, at) && untouched(scale, scale_at);
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
    enum { PART = 512 };
    float values[PART];
    char stored[PART * sizeof(float)];
    const uint64_t count = tensor->rows * tensor->width;
    double error2 = 0, size2 = 0;
    for (uint64_t first = 0; first < count; first += PART) {
        const size_t part = count - first < PART ? (size_t)(count - first) : PART;
        for (size_t i = 0; i < part; i++) values[i] = (float)expected[first + i];
        dart_from_f32(tensor->t.dtype, stored, values, part);
        dart_to_f32(tensor->t.dtype, values, stored, part);
        for (size_t i = 0; i < part; i++) {
            const double exact = expected[first + i], to = limits->rounded != NULL ? limits->rounded[first + i] : (double)values[i];
            if (!isfinite(exact)) continue;
            const double size = size_of(limits, expected, first + i);
            if (isfinite(to)) error2 += (to - exact) * (to - exact);
            size2 += size * size;
        }
    }
    return sqrt(error2) / fmax(sqrt(size2), DBL_MIN);
}

/* The relative L2 distance that is allowed, where one rounding of what is expected errs by once, and an element by at most most. */
static double l2_allowed(const conform_tensor *tensor, const double *expected, const conform_limits *limits, double rounding, double once,
                         double most)
{
    if (rounding == 0) return limits->bound + limits->operands;
    /* Of few elements, one rounding may err by less than it does of many: 0.4 of the largest. Operands and memories were rounded to as many bits
     * before: each such rounding errs in L2 by as much as the last one, and as they are independent, squares add. Twice that is allowed. */
    const double several = sqrt(1 + limits->operands / rounding) * fmax(once, 0.4 * rounding), allowed = limits->bound + 2 * several;
    if (limits->operands == 0) return allowed;
    /* What operands leave in n elements is close to normal. The length of n such errors exceeds its root mean square, sqrt(n), by more than t with a
     * probability of at most exp(-t^2 / 2), which is 8e-7 for t = 5.3: more than twice the root mean square where n < 29. Elements that add up
     * nothing do not err, and do not count; of elements that share a factor, and its error, a row counts once. */
    uint64_t n = 0;
    for (uint64_t r = 0; r < tensor->rows; r++) {
        uint64_t of_row = 0;
        for (uint64_t i = r * tensor->width; i < (r + 1) * tensor->width; i++) of_row += isfinite(expected[i]) && size_of(limits, expected, i) > 0;
        n += limits->shared ? of_row > 0 : of_row;
    }
    return fmax(allowed, fmin(limits->bound + (1 + 5.3 / sqrt(fmax(1, (double)n))) * several, most));
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
    const double tolerance = limits->bound + limits->operands + (exact && once == 0 ? 0 : rounding);
    const double l2_tolerance = exact ? once : l2_allowed(tensor, expected, limits, rounding, once, tolerance);
    result->tolerance = l2_tolerance;
    double error2 = 0, size2 = 0, error_max = 0, size_max = 0;
    uint64_t written_rows = 0;
    const double slack = floor_ * sqrt((double)tensor->width);
    result->values_count = tensor->rows * tensor->width;
    result->values = malloc((size_t)result->values_count * sizeof *result->values);
    if (result->values == NULL) abort();
    float *row = conform_row_of_floats(tensor);
    for (uint64_t r = 0; r < tensor->rows; r++) {
        conform_read_row(tensor, r, row);
        for (uint64_t i = 0; i < tensor->width; i++) result->values[r * tensor->width + i] = row[i];
    }
    free(row);
    if (d->dump != NULL) conform_dump_result(d->dump, name, tensor, result->values, expected);
    double *rows = conform_filled(2 * tensor->rows, 0); /* squares of a row's error and of its size */
    for (uint64_t r = 0; r < tensor->rows; r++) {
        double row_error2 = 0, row_size2 = 0;
        bool written = false;
        for (uint64_t i = 0; i < tensor->width; i++) {
            const double want = expected[r * tensor->width + i];
            const double got = result->values[r * tensor->width + i];
            if (isnan(want)) {
                if (!untouched(tensor, conform_place(tensor, r, i)) && !result->broken) {
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
        error2 += rows[2 * r] = row_error2;
        size2 += rows[2 * r + 1] = row_size2;
        written_rows += written;
    }
    const double typical = written_rows > 0 ? sqrt(size2 / (double)written_rows) : 0;
    for (uint64_t r = 0; r < tensor->rows; r++) {
        const double size = fmax(sqrt(rows[2 * r + 1]), typical);
        const double relative = fmax(0, sqrt(rows[2 * r]) - slack) / fmax(size, DBL_MIN);
        if (relative > result->row) {
            result->row = relative;
            result->worst_row = r;
        }
    }
    free(rows);
    result->size = sqrt(size2);
    const double total_slack = result->slack = floor_ * sqrt((double)(written_rows * tensor->width));
    result->l2 = fmax(0, sqrt(error2) - total_slack) / fmax(sqrt(size2), DBL_MIN);
    result->linf = fmax(0, error_max - floor_) / fmax(size_max, DBL_MIN);
    if (error2 == 0) result->l2 = result->linf = result->row = 0;
    const double worst = fmax(result->linf, result->row / 4);
    result->share = worst == 0 ? 0 : tolerance > 0 ? worst / tolerance : INFINITY;
    if (result->l2 > 0) result->share = fmax(result->share, l2_tolerance > 0 ? result->l2 / l2_tolerance : INFINITY);
}

void conform_compare_lse(conform_data *d, const conform_tensor *lse, const double *expected, double bound)
{
    const uint64_t count = lse->rows * lse->width;
    double *ones = conform_filled(count, 1);
    conform_compare_within(d, "lse", lse, expected, &(conform_limits){.bound = bound, .terms = ones});
    free(ones);
}

void conform_compare_ints(conform_data *d, const char *name, const conform_tensor *tensor, const int32_t *expected)
{
    if (d->status != DART_OK || d->plan || tensor == NULL) return;
    conform_result *result = add_result(d, name);
    result->digest = tensor->digest;
    if (d->dump != NULL) conform_dump_ints(d->dump, name, tensor, expected);
    for (uint64_t i = 0; i < tensor->rows * tensor->width; i++) {
        int32_t got;
        memcpy(&got, (const char *)tensor->initial + conform_place(tensor, i / tensor->width, i % tensor->width) * sizeof got, sizeof got);
        if (got == expected[i] || result->broken) continue;
        result->broken = true;
        result->worst_row = i / tensor->width;
        show_element(result, i, got, expected[i]);
        snprintf(result->note, sizeof result->note, "row %llu is %d, expected %d", (unsigned long long)(i / tensor->width), got, expected[i]);
    }
}
