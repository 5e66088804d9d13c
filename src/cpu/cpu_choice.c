/* Choosing a token from a row of logits. */
#include "cpu_vector.h"

/* Order of numbers as unsigned integers: larger numbers have larger orders, both zeros the same, NaN 0. */
static uint32_t order_of(float value)
{
    const uint32_t u = base_bits_of(value + 0.0f);
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

/* Settings of a row. */
typedef struct choice_settings {
    float temperature, top_p, min_p;
    uint32_t top_k, seed_low, seed_high, place;
} choice_settings;

/* The logits of a row that take part. */
typedef struct logits {
    const cpu_task *task;
    size_t at, width;
    float *scratch;
    const uint32_t *seen;
    uint32_t past; /* an id that counts as seen */
    float penalty; /* 0: none */
} logits;

static const float *logits_block(const logits *row, size_t begin, size_t *count)
{
    const size_t left = row->width - begin;
    *count = left < BLOCK ? left : BLOCK;
    if (row->penalty == 0) return row_of(row->scratch, &row->task->bindings[BINDING_sample_logits], row->at + begin, *count);
    load_row(row->scratch, &row->task->bindings[BINDING_sample_logits], row->at + begin, *count);
    for (size_t k = 0; k < *count; k++) {
        const size_t id = begin + k;
        if (id != row->past && !(row->seen[id / 32] >> id % 32 & 1)) continue;
        row->scratch[k] = row->scratch[k] < 0 ? row->scratch[k] * row->penalty : row->scratch[k] / row->penalty;
    }
    return row->scratch;
}

/* The order of the last kept logit, found digit by digit, and how many logits of that order are kept. */
static uint32_t find_threshold(const logits *row, uint64_t keep, uint64_t *ties)
{
    uint32_t threshold = 0;
    for (int shift = 32 - DIGITS; shift >= 0; shift -= DIGITS) {
        uint32_t buckets[BUCKETS] = {0};
        for (size_t i = 0, count; i < row->width; i += count) {
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

static double weight_of(float logit, float largest, float temperature)
{
    if (!(logit > -INFINITY)) return 0;
    return logit == largest ? 1 : (double)expf((logit - largest) / temperature);
}

/* Of the logits above `threshold`, and *ties of those equal to it, keeps those before which, from the largest down, the weights add up to less
 * than top_p of all: the order at which they reach that is found digit by digit. */
static uint32_t cut_by_mass(const logits *row, const choice_settings *set, float largest, uint32_t threshold, uint64_t *ties)
{
    double tied = 0, target = 0, above = 0; /* above: the weight of larger digits */
    uint32_t found = 0;
    for (int shift = 32 - DIGITS; shift >= 0; shift -= DIGITS) {
        double masses[BUCKETS] = {0};
        for (size_t i = 0, count; i < row->width; i += count) {
            const float *v = logits_block(row, i, &count);
            for (size_t k = 0; k < count; k++) {
                const uint32_t order = order_of(v[k]);
                const bool same = shift == 32 - DIGITS || (order ^ found) >> (shift + DIGITS) == 0;
                if (order < threshold || order == 0 || !same) continue;
                if (order > threshold) masses[order >> shift & (BUCKETS - 1)] += weight_of(v[k], largest, set->temperature);
                else tied = (double)*ties * weight_of(v[k], largest, set->temperature);
            }
        }
        const bool has_ties = shift == 32 - DIGITS || (threshold ^ found) >> (shift + DIGITS) == 0;
        if (has_ties) masses[threshold >> shift & (BUCKETS - 1)] += tied;
        for (size_t d = 0; d < BUCKETS && shift == 32 - DIGITS; d++) target += (double)set->top_p * masses[d];
        uint32_t digit = BUCKETS - 1;
        while (digit > 0 && above + masses[digit] < target) above += masses[digit--];
        found |= digit << shift;
    }
    if (found < threshold) return threshold; /* rounding: all of them */
    const uint32_t bits = found & 0x80000000u ? found & 0x7fffffffu : ~found;
    double each = weight_of(base_float_of(bits), largest, set->temperature);
    if (each < 1e-38) each = 1e-38;
    const double exact = ceil((target - above) / each), most = found == threshold ? (double)*ties : 1e9;
    *ties = exact < 1 ? 1 : exact > most ? (uint64_t)most : (uint64_t)exact;
    return found;
}

/* One row, whose temperature is above 0. */
static int32_t sample(const logits *row, const choice_settings *set, uint32_t position)
{
    uint32_t threshold = 1;
    uint64_t ties = 0;
    if (set->top_k != 0 && set->top_k < row->width) threshold = find_threshold(row, set->top_k, &ties);
    const double u = philox(position, set->place, set->seed_low, set->seed_high) / 4294967296.0;

    float largest = -INFINITY;
    for (size_t i = 0, count; i < row->width; i += count) {
        const float *v = logits_block(row, i, &count);
        for (size_t k = 0; k < count; k++)
            if (v[k] > largest) largest = v[k];
    }
    if (set->top_p > 0 && set->top_p < 1 && largest > -INFINITY) threshold = cut_by_mass(row, set, largest, threshold, &ties);
    /* The first round adds up the total, the second one walks to u times it. */
    double total = 0;
    size_t last = 0, id = 0;
    bool chosen = false;
    for (int round = 0; round < 2; round++) {
        double sum = 0;
        uint64_t left = ties;
        for (size_t i = 0, count; i < row->width && !chosen; i += count) {
            const float *v = logits_block(row, i, &count);
            for (size_t k = 0; k < count && !chosen; k++) {
                const uint32_t order = order_of(v[k]);
                if (order < threshold || (order == threshold && left == 0)) continue;
                if (order == threshold) left--;
                const double weight = weight_of(v[k], largest, set->temperature);
                if (set->min_p > 0 && weight < (double)set->min_p) continue;
                last = i + k;
                sum += weight;
                if (round == 1 && weight > 0 && sum > u * total) {
                    id = i + k;
                    chosen = true;
                }
            }
        }
        total = sum;
    }
    return (int32_t)(chosen ? id : last);
}

/* The lowest index of the largest logit of those that take part. */
static int32_t largest_taking_part(const logits *row)
{
    uint32_t best = 0;
    size_t id = 0;
    for (size_t i = 0, count; i < row->width; i += count) {
        const float *v = logits_block(row, i, &count);
        for (size_t k = 0; k < count; k++) {
            const uint32_t order = order_of(v[k]);
            if (order <= best) continue;
            best = order;
            id = i + k;
        }
    }
    return (int32_t)id;
}

void cpu_sample_plain(const cpu_task *task)
{
    const struct SampleArgs *args = task->args;
    const size_t t = task->tile;
    const int32_t *settings = (const int32_t *)task->bindings[BINDING_sample_settings].data + args->settings_at + SETTING_WORDS * t;
    int32_t *ids = (int32_t *)task->bindings[BINDING_sample_ids].data + args->ids_at;
    uint32_t *seen = NULL;
    if (args->flags & HAS_SEEN)
        seen = (uint32_t *)task->bindings[BINDING_sample_seen].data + args->seen_at + t * cpu_blocks(args->width, 32);
    uint32_t position = 0;
    if (args->flags & HAS_SEQ) {
        const int32_t *seq = (const int32_t *)task->bindings[BINDING_sample_seq].data + args->seq_at + 2 * t;
        if ((args->flags & KEEPS_ENDED) && seq[1] == 0) return;
        position = (uint32_t)seq[0] + (uint32_t)seq[1];
    }
    const uint32_t below = (uint32_t)settings[7] & ~ROW_ZERO, place = (uint32_t)settings[7] & ROW_ZERO ? 0 : task->tile;
    const choice_settings set = {base_float_of((uint32_t)settings[0]), base_float_of((uint32_t)settings[4]), base_float_of((uint32_t)settings[5]),
                                     (uint32_t)settings[1], (uint32_t)settings[2], (uint32_t)settings[3], place};
    const float penalty = base_float_of((uint32_t)settings[6]);
    logits row = {.task = task, .at = args->logits_at + t * args->logits_row, .width = args->width, .scratch = task->scratch, .seen = seen};
    if (below != 0 && below < args->width) row.width = below;
    row.past = args->flags & MARKS_IDS ? (uint32_t)ids[t] : UINT32_MAX;
    if ((args->flags & HAS_SEEN) && penalty > 0 && penalty < INFINITY && penalty != 1) row.penalty = penalty;
    const uint32_t past = row.past;
    if (set.temperature > 0) ids[t] = sample(&row, &set, position);
    else {
        ids[t] = largest_of(task, &task->bindings[BINDING_sample_part], args->blocks);
        /* The parts know no penalty and all ids. */
        if (row.penalty != 0 || (size_t)ids[t] >= row.width) ids[t] = largest_taking_part(&row);
    }
    if (past < args->width) seen[past / 32] |= UINT32_C(1) << past % 32;
}

void cpu_mark_ids_plain(const cpu_task *task)
{
    const struct MarkIdsArgs *args = task->args;
    const int32_t *ids = (const int32_t *)task->bindings[BINDING_mark_ids_ids].data + args->ids_at;
    uint32_t *seen = (uint32_t *)task->bindings[BINDING_mark_ids_seen].data + args->seen_at + (size_t)task->tile * cpu_blocks(args->V, 32);
    const cpu_sequence own = cpu_sequence_of(args->flags, &task->bindings[BINDING_mark_ids_seq], args->seq_at, task->tile, args->L, args->T);
    for (size_t t = 0; t < own.piece.count; t++) {
        const uint32_t id = (uint32_t)ids[own.row + t];
        if (id < args->V) seen[id / 32] |= UINT32_C(1) << id % 32;
    }
}

/* ---- Log-probabilities ---- */

#define LOWEST (-3.4e38f) /* stands for -infinity, as on other backends */

static float log_probability(float logit, float log_z)
{
    const float difference = logit - log_z;
    return log_z > LOWEST && difference > LOWEST ? difference : LOWEST;
}

void cpu_log_probs_plain(const cpu_task *task)
{
    const struct LogProbsArgs *args = task->args;
    const cpu_tensor *all = &task->bindings[BINDING_log_probs_logits];
    const size_t t = task->tile, at = args->logits_at + t * args->logits_row;
    float best[DART_MOST_TOP];
    int32_t ids[DART_MOST_TOP];
    uint32_t found = 0;
    float largest = -INFINITY;
    for (size_t i = 0; i < args->width; i += BLOCK) {
        const size_t count = args->width - i < BLOCK ? args->width - i : BLOCK;
        const float *v = row_of(task->scratch, all, at + i, count);
        for (size_t k = 0; k < count; k++) {
            if (v[k] > largest) largest = v[k];
            if (args->k == 0 || v[k] != v[k] || (found == args->k && !(v[k] > best[found - 1]))) continue;
            uint32_t place = found < args->k ? found++ : found - 1;
            for (; place > 0 && v[k] > best[place - 1]; place--) {
                best[place] = best[place - 1];
                ids[place] = ids[place - 1];
            }
            best[place] = v[k];
            ids[place] = (int32_t)(i + k);
        }
    }
    float log_z = LOWEST;
    if (largest > -INFINITY) {
        double sum = 0;
        for (size_t i = 0; i < args->width; i += BLOCK) {
            const size_t count = args->width - i < BLOCK ? args->width - i : BLOCK;
            const float *v = row_of(task->scratch, all, at + i, count);
            for (size_t k = 0; k < count; k++)
                if (v[k] > -INFINITY) sum += (double)expf(v[k] - largest);
        }
        log_z = (float)((double)largest + log(sum));
    }
    ((float *)task->bindings[BINDING_log_probs_log_z].data)[args->log_z_at + t] = log_z;
    if (args->flags & HAS_TARGETS) {
        const uint32_t target = (uint32_t)((const int32_t *)task->bindings[BINDING_log_probs_targets].data)[args->targets_at + t];
        const float result = target < args->width ? log_probability(load_one(all, at + target), log_z) : 0;
        ((float *)task->bindings[BINDING_log_probs_target].data)[args->target_at + t] = result;
    }
    for (uint32_t k = 0; k < args->k; k++) {
        const size_t to = t * args->k + k;
        ((int32_t *)task->bindings[BINDING_log_probs_top_ids].data)[args->top_ids_at + to] = k < found ? ids[k] : -1;
        ((float *)task->bindings[BINDING_log_probs_top].data)[args->top_at + to] = k < found ? log_probability(best[k], log_z) : LOWEST;
    }
}
