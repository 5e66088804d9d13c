/* A checksum of 64 bits, fast enough for whole models: against damage and mistakes, not malice. */
#ifndef DART_CHECKSUM_H
#define DART_CHECKSUM_H

#include <stdint.h>

/* Of bytes as they lie in memory, little-endian words; seed: the sum of what came before. Any change within one aligned word of 8 bytes
 * changes the sum for certain, other changes but for 1 in 2^64. */
uint64_t base_checksum(uint64_t seed, const void *data, uint64_t bytes);

#endif
