/* Random numbers of a seed and an index, the same on every machine. */
#ifndef DARTLM_DRAWS_H
#define DARTLM_DRAWS_H

#include "base/base.h"

typedef struct draws {
    uint64_t key, count;
} draws;

static inline draws draws_of(uint64_t seed, uint64_t index) { return (draws){.key = base_mix(seed ^ base_mix(index))}; }

static inline uint64_t draws_bits(draws *d) { return base_mix(d->key + d->count++ * UINT64_C(0x9E3779B97F4A7C15)); }

/* From 0 to below n. The bias of taking the high part of a product is below n / 2^32. */
static inline uint32_t draws_below(draws *d, uint32_t n) { return (uint32_t)((draws_bits(d) >> 32) * n >> 32); }

#endif
