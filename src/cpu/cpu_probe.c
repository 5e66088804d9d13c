/* The check of wide kernels on the CPU. */
#include "cpu.h"

#include <string.h>

void cpu_wide_check_plain(const cpu_task *task)
{
    enum { INPUTS = 17, WORDS = 31 };
    const struct WideCheckArgs *args = task->args;
    uint32_t at[INPUTS + 1], words[WORDS];
    static_assert(offsetof(struct WideCheckArgs, w00) - offsetof(struct WideCheckArgs, a00_at) == sizeof at, "inputs");
    static_assert(offsetof(struct WideCheckArgs, last) - offsetof(struct WideCheckArgs, w00) == sizeof words, "words");
    memcpy(at, (const char *)args + offsetof(struct WideCheckArgs, a00_at), sizeof at);
    memcpy(words, (const char *)args + offsetof(struct WideCheckArgs, w00), sizeof words);
    float *y = (float *)task->bindings[INPUTS].data + args->y_at;
    const uint32_t begin = task->tile * task->T0, end = begin + task->T0 < args->count ? begin + task->T0 : args->count;
    for (uint32_t i = begin; i < end; i++) {
        float sum = args->last;
        for (uint32_t j = INPUTS; j < WORDS; j++) sum += (float)words[j];
        for (uint32_t j = 0; j < INPUTS; j++) sum += ((const float *)task->bindings[j].data)[at[j] + i] * (float)words[j];
        y[i] = sum;
    }
}
