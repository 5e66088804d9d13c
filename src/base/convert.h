/* Conversions between storage types and f32, one element at a time. To 16 bits they round to nearest even; NaN stays NaN. */
#ifndef DART_CONVERT_H
#define DART_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t base_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float base_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float base_from_bf16(uint16_t h) { return base_float_of((uint32_t)h << 16); }

static inline uint16_t base_to_bf16(float value)
{
    uint32_t u = base_bits_of(value);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* Multiplying by 2^112 corrects the exponent's bias and normalises subnormal numbers; both are exact. */
static inline float base_from_f16(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fffu);
    uint32_t finite = base_bits_of(base_float_of(magnitude << 13) * 0x1p112f);
    uint32_t special = 0x7f800000u | (magnitude << 13);
    return base_float_of((magnitude >= 0x7c00u ? special : finite) | (uint32_t)(h & 0x8000u) << 16);
}

static inline uint16_t base_to_f16(float value)
{
    uint32_t u = base_bits_of(value);
    uint32_t a = u & 0x7fffffffu;
    uint32_t half;
    if (a > 0x7f800000u) half = 0x7e00u | ((a >> 13) & 0x3ffu);
    else if (a >= 0x47800000u) half = 0x7c00u;
    else if (a < 0x38800000u) half = base_bits_of(base_float_of(a) + 0.5f) - 0x3f000000u; /* adding 0.5 rounds to multiples of 2^-24 */
    else half = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    return (uint16_t)(half | (u >> 16 & 0x8000u));
}

static inline int32_t base_to_i32(float value)
{
    if (value >= 2147483648.0f) return INT32_MAX;
    if (value <= -2147483648.0f) return INT32_MIN;
    return value == value ? (int32_t)value : 0;
}

#endif
