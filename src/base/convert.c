#include "convert.h"
#include "dartlm/dartlm.h"

void dart_from_f32(dart_dtype dtype, void *to, const float *from, size_t count)
{
    if (dtype == DART_F32) {
        memmove(to, from, count * sizeof(float));
    } else if (dtype == DART_F16) {
        uint16_t *narrow = to;
        for (size_t i = 0; i < count; i++) narrow[i] = base_to_f16(from[i]);
    } else if (dtype == DART_BF16) {
        uint16_t *narrow = to;
        for (size_t i = 0; i < count; i++) narrow[i] = base_to_bf16(from[i]);
    }
}

void dart_to_f32(dart_dtype dtype, float *to, const void *from, size_t count)
{
    if (dtype == DART_F32) {
        memmove(to, from, count * sizeof(float));
    } else if (dtype == DART_F16) {
        const uint16_t *narrow = from;
        for (size_t i = 0; i < count; i++) to[i] = base_from_f16(narrow[i]);
    } else if (dtype == DART_BF16) {
        const uint16_t *narrow = from;
        for (size_t i = 0; i < count; i++) to[i] = base_from_bf16(narrow[i]);
    }
}
