/* Where a checkpoint has the numbers of a parameter, quantised or not. */
#include "base/quantised.h"
#include "config.h"

#include <stdio.h>

#define MAX_WIDTH (UINT64_C(1) << 20) /* of a quantised row: loading takes whole rows of that many numbers at most */

bool model_role_is_matrix(model_role role)
{
    switch (role) {
    case MODEL_EMBEDDING:
    case MODEL_HEAD:
    case MODEL_IN_PROJ:
    case MODEL_OUT_PROJ:
    case MODEL_SMA_PROJ:
    case MODEL_Q_PROJ:
    case MODEL_K_PROJ:
    case MODEL_V_PROJ:
    case MODEL_GATE_PROJ:
    case MODEL_UP_PROJ:
    case MODEL_DOWN_PROJ: return true;
    default: return false;
    }
}

const safetensors_tensor *model_weights_find(const safetensors *file, const model_parameter *parameter)
{
    const safetensors_tensor *t = safetensors_find(file, parameter->name);
    /* The original Mamba-2 code's name. */
    if (t == NULL && parameter->role == MODEL_EMBEDDING) t = safetensors_find(file, "backbone.embedding.weight");
    return t;
}

static const safetensors_tensor *beside(const safetensors *file, const safetensors_tensor *tensor, const char *suffix)
{
    char name[128];
    const int length = snprintf(name, sizeof name, "%s%s", tensor->name, suffix);
    return length > 0 && (size_t)length < sizeof name ? safetensors_find(file, name) : NULL;
}

model_source model_source_find(const safetensors *file, const model_parameter *parameter)
{
    model_source source = {.tensor = model_weights_find(file, parameter)};
    const safetensors_tensor *t = source.tensor;
    if (t == NULL) return source;
    safetensors_dtype_to_dart(t->dtype, &source.dtype);
    source.rest_dtype = source.dtype;
    if (!model_role_is_matrix(parameter->role) || (t->dtype != SAFETENSORS_I8 && t->dtype != SAFETENSORS_U8)) return source;
    source.dtype = t->dtype == SAFETENSORS_I8 ? DART_Q8 : DART_Q4;
    source.width = parameter->shape[1];
    source.rows = (parameter->shape[0] - parameter->rest) * parameter->parts;
    source.scales = beside(file, t, ".scale");
    if (source.dtype == DART_Q4) source.minima = beside(file, t, ".minimum");
    if (parameter->rest > 0) source.rest = beside(file, t, ".rest");
    source.rest_dtype = DART_BF16;
    if (source.rest != NULL) safetensors_dtype_to_dart(source.rest->dtype, &source.rest_dtype);
    return source;
}

void model_source_rows(const model_source *source, uint64_t row, size_t count, uint8_t *to)
{
    const size_t width = (size_t)source->width, numbers = quantised_numbers(source->dtype, width), scales = quantised_scales(width);
    const size_t bytes = dart_quantised_row(source->dtype, (uint32_t)width);
    const uint8_t *n = source->tensor->data, *s = source->scales->data, *m = source->minima != NULL ? source->minima->data : NULL;
    for (size_t r = (size_t)row; r < (size_t)row + count; r++, to += bytes) {
        memset(to + numbers, 0, bytes - numbers);
        memcpy(to, n + r * numbers, numbers);
        memcpy(to + numbers, s + r * scales, scales);
        if (m != NULL) memcpy(to + numbers + scales, m + r * scales, scales);
    }
}

static void row_to_f32(const model_source *source, size_t row, float *to)
{
    const size_t width = (size_t)source->width, numbers = quantised_numbers(source->dtype, width), scales = quantised_scales(width);
    const uint8_t *m = source->minima != NULL ? (const uint8_t *)source->minima->data + row * scales : NULL;
    quantised_blocks(source->dtype, (const uint8_t *)source->tensor->data + row * numbers, (const uint8_t *)source->scales->data + row * scales, m,
                     width / QUANTISED_BLOCK, to);
}

void model_source_to_f32(const model_source *source, uint64_t place, size_t count, float *to)
{
    if (!model_source_is_quantised(source)) {
        safetensors_to_f32(source->tensor, place, count, to);
        return;
    }
    const uint64_t quantised = source->rows * source->width;
    while (count > 0) {
        if (place >= quantised) {
            safetensors_to_f32(source->rest, place - quantised, count, to);
            return;
        }
        row_to_f32(source, (size_t)(place / source->width), to);
        place += source->width;
        to += source->width;
        count -= (size_t)source->width;
    }
}

dart_dtype model_quantised_dtype(const model_parameter *parameter, dart_dtype wanted)
{
    const uint64_t width = parameter->shape[1];
    if (!model_role_is_matrix(parameter->role) || width % QUANTISED_BLOCK != 0 || width > MAX_WIDTH) return DART_F32;
    return parameter->role == MODEL_EMBEDDING || parameter->role == MODEL_HEAD ? DART_Q8 : wanted;
}
