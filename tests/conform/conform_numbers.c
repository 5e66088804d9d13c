#include "conform_numbers.h"

#include "base/platform.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Kept: so many, made in blocks. Few cases have more, whose rest they work out themselves. */
enum { BLOCK = 1024, BLOCKS = 4096 };

struct conform_numbers {
    uint64_t seed;
    base_mutex lock; /* of a block that is being made */
    atomic_bool made[BLOCKS];
    double *normal;
};

/* splitmix64 */
static uint64_t bits_at(uint64_t seed, uint64_t at)
{
    uint64_t z = seed + (at + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

double conform_uniform_at(uint64_t seed, uint64_t at) { return (double)(bits_at(seed, at) >> 11) * 0x1p-53; }

static double work_out(uint64_t seed, uint64_t at)
{
    const double u = 1.0 - conform_uniform_at(seed, at), v = conform_uniform_at(seed, at + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

conform_numbers *conform_numbers_create(uint64_t seed)
{
    conform_numbers *numbers = calloc(1, sizeof *numbers);
    if (numbers == NULL || base_mutex_init(&numbers->lock) != DART_OK) abort();
    numbers->seed = seed;
    numbers->normal = malloc((size_t)BLOCK * BLOCKS * sizeof *numbers->normal);
    if (numbers->normal == NULL) abort();
    for (uint32_t i = 0; i < BLOCKS; i++) atomic_init(&numbers->made[i], false);
    return numbers;
}

void conform_numbers_destroy(conform_numbers **numbers)
{
    if (*numbers == NULL) return;
    base_mutex_destroy(&(*numbers)->lock);
    free((*numbers)->normal);
    free(*numbers);
    *numbers = NULL;
}

static void make(conform_numbers *numbers, uint64_t block)
{
    base_lock(&numbers->lock);
    if (!atomic_load_explicit(&numbers->made[block], memory_order_relaxed)) {
        for (uint64_t i = block * BLOCK; i < (block + 1) * BLOCK; i++) numbers->normal[i] = work_out(numbers->seed, i);
        atomic_store_explicit(&numbers->made[block], true, memory_order_release);
    }
    base_unlock(&numbers->lock);
}

double conform_normal_at(uint64_t seed, uint64_t at, conform_numbers *kept)
{
    const uint64_t block = at / BLOCK;
    if (kept == NULL || block >= BLOCKS) return work_out(seed, at);
    if (!atomic_load_explicit(&kept->made[block], memory_order_acquire)) make(kept, block);
    return kept->normal[at];
}
