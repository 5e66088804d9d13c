/* Primitives of the kernel loops (loops_*.h): rows in f32, dot products, elementary functions, small matrix products.
 *
 * The loops are compiled twice. With CPU_AVX2 defined, CPU_NAME(kernel) names variant avx2 and the primitives use AVX2 intrinsics;
 * without, it names variant plain and the primitives are portable C. */
#ifndef DART_CPU_VECTOR_H
#define DART_CPU_VECTOR_H

#include "cpu.h"
#include "base/convert.h"

#include <math.h>

#if defined(CPU_AVX2)
#include "cpu_vector_avx2.h"
#define CPU_NAME(kernel) cpu_##kernel##_avx2
#else
#include "cpu_vector_plain.h"
#define CPU_NAME(kernel) cpu_##kernel##_plain
#endif

/* to = `count` elements of `from` from element `index` on, as f32. */
static inline void load_row(float *to, const cpu_tensor *from, size_t index, size_t count)
{
    switch (from->dtype) {
    case DART_F32: memcpy(to, (const float *)from->data + index, count * sizeof(float)); break;
    case DART_F16: load_f16(to, (const uint16_t *)from->data + index, count); break;
    case DART_BF16: load_bf16(to, (const uint16_t *)from->data + index, count); break;
    case DART_I32:
        for (size_t i = 0; i < count; i++) to[i] = (float)((const int32_t *)from->data)[index + i];
        break;
    case DART_Q8: /* never: kernels of their own read quantised rows */
    case DART_Q4: break;
    }
}

static inline void store_row(const cpu_tensor *to, size_t index, const float *from, size_t count)
{
    switch (to->dtype) {
    case DART_F32: memcpy((float *)to->data + index, from, count * sizeof(float)); break;
    case DART_F16: store_f16((uint16_t *)to->data + index, from, count); break;
    case DART_BF16: store_bf16((uint16_t *)to->data + index, from, count); break;
    case DART_I32:
        for (size_t i = 0; i < count; i++) ((int32_t *)to->data)[index + i] = base_to_i32(from[i]);
        break;
    case DART_Q8:
    case DART_Q4: break;
    }
}

static inline void prefetch_row(const cpu_tensor *from, size_t index, size_t count)
{
    const size_t size = from->dtype == DART_F16 || from->dtype == DART_BF16 ? 2 : 4;
    const char *at = (const char *)from->data + index * size;
    for (size_t i = 0; i < count * size; i += CPU_ALIGN) prefetch(at + i);
}

/* A row as f32: a pointer to the row itself when it is f32, else to its conversion in scratch. */
static inline const float *row_of(float *scratch, const cpu_tensor *from, size_t index, size_t count)
{
    if (from->dtype == DART_F32) return (const float *)from->data + index;
    load_row(scratch, from, index, count);
    return scratch;
}

static inline float load_one(const cpu_tensor *from, size_t index)
{
    float value = 0;
    load_row(&value, from, index, 1);
    return value;
}

/* Rows of a matrix as f32: in place when the tensor is f32, else converted into scratch, packed. */
typedef struct matrix {
    const float *at;
    size_t row;
} matrix;
static inline matrix matrix_of(float *scratch, const cpu_tensor *from, size_t index, size_t row, size_t rows,
                               size_t width)
{
    if (from->dtype == DART_F32) return (matrix){(const float *)from->data + index, row};
    if (row == width) load_row(scratch, from, index, rows * width);
    else for (size_t i = 0; i < rows; i++) load_row(scratch + i * width, from, index + i * row, width);
    return (matrix){scratch, width};
}

/* exp(min(x, 0)), for exponents that are mathematically <= 0 but may be rounded to above 0. NaN stays NaN. */
static inline float exp_one(float x) { return expf(x > 0.0f ? 0.0f : x); }

static inline float silu_one(float x)
{
    float e = expf(x > 0.0f ? -x : x);
    return x * ((x > 0.0f ? 1.0f : e) / (1.0f + e));
}

#endif
