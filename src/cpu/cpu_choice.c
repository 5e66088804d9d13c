/* Choosing a token from a row of logits. */
#include "cpu_vector.h"

/* Order of numbers as unsigned integers: larger numbers have larger orders, both zeros the same, NaN 0. */
static uint32_t order_of(float value)
{
    const uint32_t u = cpu_bits(value + 0.0f);
    if (value != value) return 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

void cpu_argmax_part_plain(const cpu_task *task)
{
    const struct ArgmaxPartArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->width, task->T0);
    const uint32_t begin = task->tile % blocks * task->T0, count = cpu_min(task->T0, args->width - begin);
    const size_t at = args->logits_at + (size_t)(task->tile / blocks) * args->logits_row + begin;
    uint32_t *part = (uint32_t *)task->bindings[BINDING_argmax_part_part].data + 2 * (size_t)task->tile;
    const float *v = row_of(task->scratch, &task->bindings[BINDING_argmax_part_logits], at, count);
    float best = -INFINITY;
    uint32_t where = 0;
    bool found = false;
    for (uint32_t k = 0; k < count; k++) {
        if (v[k] > best || (!found && v[k] == best)) {
            best = v[k];
            where = k;
            found = true;
        }
    }
    part[0] = found ? order_of(best) : 0;
    part[1] = begin + where;
}

/* The lowest index of the largest logit of a row, from its parts; 0 where there is no number. */
static int32_t largest_of(const cpu_task *task, const cpu_tensor *parts, uint32_t blocks)
{
    const uint32_t *part = (const uint32_t *)parts->data + 2 * (size_t)task->tile * blocks;
    uint32_t best = 0, id = 0;
    for (uint32_t i = 0; i < blocks; i++) {
        if (part[2 * i] <= best) continue;
        best = part[2 * i];
        id = part[2 * i + 1];
    }
    return (int32_t)id;
}

void cpu_argmax_plain(const cpu_task *task)
{
    const struct ArgmaxArgs *args = task->args;
    int32_t *ids = (int32_t *)task->bindings[BINDING_argmax_ids].data;
    ids[(size_t)args->ids_at + task->tile] = largest_of(task, &task->bindings[BINDING_argmax_part], args->blocks);
}

/* Word 0 of Philox4x32-10 (Salmon et al. 2011). */
static uint32_t philox(uint32_t c0, uint32_t c1, uint32_t k0, uint32_t k1)
{
    uint32_t c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c0;
}

enum { BLOCK = 16384, DIGITS = 8, BUCKETS = 1 << DIGITS };

typedef struct logits {
    const cpu_task *task;
    const struct SampleArgs *args;
    size_t at;
    float *scratch;
} logits;

static const float *logits_block(const logits *row, size_t begin, size_t *count)
{
    const size_t left = row->args->width - begin;
    *count = left < BLOCK ? left : BLOCK;
    return row_of(row->scratch, &row->task->bindings[BINDING_sample_logits], row->at + begin, *count);
}

/* The order of the last kept logit, found digit by digit, and how many logits of that order are kept. */
static uint32_t find_threshold(const logits *row, uint64_t keep, uint64_t *ties)
{
    uint32_t threshold = 0;
    for (int shift = 32 - DIGITS; shift >= 0; shift -= DIGITS) {
        uint32_t buckets[BUCKETS] = {0};
        for (size_t i = 0, count; i < row->args->width; i += count) {
            const float *v = logits_block(row, i, &count);
            for (size_t k = 0; k < count; k++) {
                const uint32_t order = order_of(v[k]);
                const bool same = shift == 32 - DIGITS || (order ^ threshold) >> (shift + DIGITS) == 0;
                if (order != 0 && same) buckets[order >> shift & (BUCKETS - 1)]++;
            }
        }
        uint32_t digit = BUCKETS - 1;
        while (digit > 0 && buckets[digit] < keep) keep -= buckets[digit--];
        if (buckets[digit] < keep) { /* fewer numbers than keep: all of them */
            *ties = 0;
            return 1;
        }
        threshold |= digit << shift;
    }
    *ties = keep;
    return threshold;
}

/* One row, whose temperature is above 0. */
static int32_t sample(const cpu_task *task, const int32_t *settings, uint32_t position)
{
    const struct SampleArgs *args = task->args;
    const float temperature = cpu_float((uint32_t)settings[0]);
    const uint32_t top_k = (uint32_t)settings[1];
    const logits row = {task, args, args->logits_at + (size_t)task->tile * args->logits_row, task->scratch};
    uint32_t threshold = 1;
    uint64_t ties = 0;
    if (top_k != 0 && top_k < args->width) threshold = find_threshold(&row, top_k, &ties);
    const double u = philox(position, task->tile, (uint32_t)settings[2], (uint32_t)settings[3]) / 4294967296.0;

    float largest = -INFINITY;
    for (size_t i = 0, count; i < args->width; i += count) {
        const float *v = logits_block(&row, i, &count);
        for (size_t k = 0; k < count; k++)
            if (v[k] > largest) largest = v[k];
    }
    /* The first round adds up the total, the second one walks to u times it. */
    double total = 0;
    size_t last = 0, id = 0;
    bool chosen = false;
    for (int round = 0; round < 2; round++) {
        double sum = 0;
        uint64_t left = ties;
        for (size_t i = 0, count; i < args->width && !chosen; i += count) {
            const float *v = logits_block(&row, i, &count);
            for (size_t k = 0; k < count && !chosen; k++) {
                const uint32_t order = order_of(v[k]);
                if (order < threshold || (order == threshold && left == 0)) continue;
                if (order == threshold) left--;
                last = i + k;
                if (v[k] == largest && largest > -INFINITY) sum += 1.0;
                else if (v[k] > -INFINITY) sum += (double)expf((v[k] - largest) / temperature);
                if (round == 1 && sum > u * total) {
                    id = i + k;
                    chosen = true;
                }
            }
        }
        total = sum;
    }
    return (int32_t)(chosen ? id : last);
}

void cpu_sample_plain(const cpu_task *task)
{
    const struct SampleArgs *args = task->args;
    const size_t t = task->tile;
    const int32_t *settings = (const int32_t *)task->bindings[BINDING_sample_settings].data + args->settings_at + SETTING_WORDS * t;
    int32_t *ids = (int32_t *)task->bindings[BINDING_sample_ids].data + args->ids_at;
    uint32_t position = 0;
    if (args->flags & HAS_SEQ) {
        const int32_t *seq = (const int32_t *)task->bindings[BINDING_sample_seq].data + args->seq_at + 2 * t;
        if ((args->flags & KEEPS_ENDED) && seq[1] == 0) return;
        position = (uint32_t)seq[0] + (uint32_t)seq[1];
    }
    ids[t] = cpu_float((uint32_t)settings[0]) > 0 ? sample(task, settings, position)
                                                  : largest_of(task, &task->bindings[BINDING_sample_part], args->blocks);
}
