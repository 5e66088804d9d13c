/* The random numbers of a seed, by their place in its sequence, from which every case takes its own from the first on. */
#ifndef DARTLM_CONFORM_NUMBERS_H
#define DARTLM_CONFORM_NUMBERS_H

#include <stdint.h>

/* Normal numbers that were worked out once are kept for all cases with the seed, and for all threads. */
typedef struct conform_numbers conform_numbers;
conform_numbers *conform_numbers_create(uint64_t seed);
void conform_numbers_destroy(conform_numbers **numbers);

/* 0 <= number < 1. */
double conform_uniform_at(uint64_t seed, uint64_t at);
/* Standard normal, of the uniform numbers `at` and at + 1. kept: of that seed, or NULL. */
double conform_normal_at(uint64_t seed, uint64_t at, conform_numbers *kept);

#endif
