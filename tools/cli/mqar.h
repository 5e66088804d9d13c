/* Multi-query associative recall: sequences of pairs of keys and values, then the keys again, among filler; the model is to say the value at
 * each of them. Source: Arora et al. 2023, with random filler as in Mamba-2. */
#ifndef DARTLM_MQAR_H
#define DARTLM_MQAR_H

#include <stdint.h>

enum { MQAR_PAIRS = 4096 }; /* the most */

/* Tokens 1 to V/2 - 1 are keys, V/2 to V - 1 values. Positions 0 to 2 R - 1 hold R pairs; of the slots 2 R, 2 R + 2, ... below L - 1, R hold the
 * keys again, in another order; all other positions hold any of the V tokens. */
typedef struct mqar_task {
    uint32_t L, R, V;
    uint64_t seed; /* example i of a seed is the same on every machine */
} mqar_task;

/* NULL, or what is wrong with the sizes. */
const char *mqar_complaint(const mqar_task *task);
/* ids L; targets L: the value at a queried key, else -1. used: V bytes of scratch, zero before and after. */
void mqar_example(const mqar_task *task, uint64_t index, int32_t *ids, int32_t *targets, uint8_t *used);

#endif
