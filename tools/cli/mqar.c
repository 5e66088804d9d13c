#include "mqar.h"

#include "draws.h"

#include <stddef.h>

const char *mqar_complaint(const mqar_task *task)
{
    if (task->L < 4 || task->L % 2 != 0) return "the length must be even, and at least 4";
    if (task->R < 1 || (uint64_t)task->R * 4 > task->L) return "the pairs must be at least 1, and at most a quarter of the length";
    if (task->R > MQAR_PAIRS) return "the pairs must be at most 4,096";
    if (task->V < 4 || task->V > INT32_MAX) return "the vocabulary must have at least 4 tokens";
    if (task->R > task->V / 2 - 1) return "the vocabulary has fewer keys than pairs";
    return NULL;
}

/* A token of first .. first + count - 1 that `used` does not have yet. */
static int32_t unused(draws *r, uint32_t first, uint32_t count, uint8_t *used)
{
    uint32_t token;
    do token = first + draws_below(r, count);
    while (used[token] != 0);
    used[token] = 1;
    return (int32_t)token;
}

void mqar_example(const mqar_task *task, uint64_t index, int32_t *ids, int32_t *targets, uint8_t *used)
{
    const uint32_t half = task->V / 2, R = task->R, slots = (task->L - 2 * R) / 2;
    draws r = draws_of(task->seed, index);
    for (uint32_t i = 0; i < R; i++) {
        ids[2 * i] = unused(&r, 1, half - 1, used);
        ids[2 * i + 1] = unused(&r, half, task->V - half, used);
    }
    for (uint32_t i = 0; i < 2 * R; i++) used[ids[i]] = 0;
    for (uint32_t t = 0; t < task->L; t++) targets[t] = -1;
    for (uint32_t t = 2 * R; t < task->L; t++) ids[t] = (int32_t)draws_below(&r, task->V);
    /* The pairs in a random order, while slots are chosen one after another: slot s is taken with the chance pairs left / slots left. */
    uint32_t order[MQAR_PAIRS];
    for (uint32_t i = 0; i < R; i++) {
        const uint32_t k = draws_below(&r, i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    for (uint32_t s = 0, left = R; s < slots && left > 0; s++) {
        if (draws_below(&r, slots - s) >= left) continue;
        const uint32_t pair = order[--left], t = 2 * R + 2 * s;
        ids[t] = ids[2 * pair];
        targets[t] = ids[2 * pair + 1];
    }
}
