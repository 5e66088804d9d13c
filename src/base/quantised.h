/* Quantised rows, see dart_quantise: where the parts of a row lie, and its numbers one by one. */
#ifndef DART_QUANTISED_H
#define DART_QUANTISED_H

#include "base.h"

#include <string.h>

#define QUANTISED_BLOCK 32u /* numbers that share a scale */

/* Bytes of the small numbers of a row, before its scales; of the scales; of the minima. */
static inline size_t quantised_numbers(dart_dtype dtype, size_t width) { return dtype == DART_Q4 ? width / 2 : width; }
static inline size_t quantised_scales(size_t width) { return width / QUANTISED_BLOCK * 2; }

static inline float quantised_from_bf16(const uint8_t *at)
{
    const uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Numbers of a block of 16 bytes. */
static inline uint32_t quantised_nibble(const uint8_t *block, size_t i)
{
    const size_t byte = i % 8 * 2 + i / 16;
    return i / 8 % 2 == 0 ? block[byte] & 15u : block[byte] >> 4;
}

/* to = the numbers of `blocks` blocks, whose parts begin there. minima: of DART_Q4. */
static inline void quantised_blocks(dart_dtype dtype, const uint8_t *numbers, const uint8_t *scales, const uint8_t *minima, size_t blocks, float *to)
{
    for (size_t b = 0; b < blocks; b++, to += QUANTISED_BLOCK) {
        const float scale = quantised_from_bf16(scales + 2 * b);
        if (dtype == DART_Q4) {
            const float minimum = quantised_from_bf16(minima + 2 * b);
            for (size_t k = 0; k < QUANTISED_BLOCK; k++) to[k] = scale * (float)quantised_nibble(numbers + 16 * b, k) + minimum;
        } else {
            const uint8_t *n = numbers + QUANTISED_BLOCK * b;
            for (size_t k = 0; k < QUANTISED_BLOCK; k++) to[k] = scale * (float)(n[k] < 128 ? (int)n[k] : (int)n[k] - 256);
        }
    }
}

/* to = `count` numbers of a row of `width` from number `first` on, both multiples of a block. */
static inline void quantised_read(dart_dtype dtype, const uint8_t *row, size_t width, size_t first, size_t count, float *to)
{
    const size_t block = first / QUANTISED_BLOCK;
    const uint8_t *scales = row + quantised_numbers(dtype, width) + 2 * block;
    quantised_blocks(dtype, row + quantised_numbers(dtype, first), scales, scales + quantised_scales(width), count / QUANTISED_BLOCK, to);
}

#endif
