#include "checksum.h"

#include "base.h"

#include <string.h>

/* Eight chains of one multiplication each, so that they run beside one another. Every step is a bijection of its chain, and so is the mixing
 * that joins them. After the idea of xxHash (Collet 2012): lanes of rotations and products. */
enum { LANES = 8 };
#define FACTOR UINT64_C(0x9E3779B97F4A7C15)

static uint64_t word_at(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static inline uint64_t step(uint64_t lane, uint64_t word)
{
    lane = (lane ^ word) * FACTOR;
    return lane << 29 | lane >> 35;
}

uint64_t base_checksum(uint64_t seed, const void *data, uint64_t bytes)
{
    const uint8_t *at = data;
    uint64_t lanes[LANES], left = bytes, last = 0;
    for (uint64_t i = 0; i < LANES; i++) lanes[i] = base_mix(seed + i);
    for (; left >= LANES * 8; left -= LANES * 8, at += LANES * 8)
        for (uint32_t i = 0; i < LANES; i++) lanes[i] = step(lanes[i], word_at(at + 8 * i));
    uint64_t sum = seed ^ bytes;
    for (uint32_t i = 0; i < LANES; i++) sum = base_mix(sum ^ lanes[i]);
    for (; left >= 8; left -= 8, at += 8) sum = base_mix(sum ^ word_at(at));
    if (left > 0) memcpy(&last, at, (size_t)left);
    return base_mix(sum ^ last);
}
