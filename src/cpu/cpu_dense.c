/* Kernels of dense that move or make elements, and LayerNorm; loops_linear.h and loops_norm.h have the others. */
#include "cpu_vector.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

void cpu_fill_plain(const cpu_task *task)
{
    const struct FillArgs *args = task->args;
    const uint64_t total = (uint64_t)args->rows * args->width, begin = (uint64_t)task->tile * task->T0;
    const uint64_t end = begin + task->T0 < total ? begin + task->T0 : total;
    const size_t block = cpu_min(task->T0, CPU_SCRATCH);
    for (size_t i = 0; i < block; i++) task->scratch[i] = args->value;
    for (uint64_t i = begin, count; i < end; i += count) {
        const uint64_t row = i / args->width, column = i % args->width;
        count = args->width - column < end - i ? args->width - column : end - i;
        if (count > block) count = block;
        store_row(&task->bindings[BINDING_fill_y], (size_t)(args->y_at + row * args->y_row + column), task->scratch,
                  (size_t)count);
    }
}

void cpu_convert_plain(const cpu_task *task)
{
    const struct ConvertArgs *args = task->args;
    const uint64_t total = (uint64_t)args->rows * args->width, begin = (uint64_t)task->tile * task->T0;
    const uint64_t end = begin + task->T0 < total ? begin + task->T0 : total;
    for (uint64_t i = begin, count; i < end; i += count) {
        const uint64_t row = i / args->width, column = i % args->width;
        const cpu_tensor *seq = &task->bindings[BINDING_convert_seq];
        uint64_t from = row, to = row;
        count = args->width - column < end - i ? args->width - column : end - i;
        if (count > CPU_SCRATCH) count = CPU_SCRATCH;
        if (args->flags & HAS_ROWS) {
            const int32_t *pair = (const int32_t *)seq->data + args->seq_at + 2 * row;
            if (pair[0] < 0 || pair[1] < 0) continue;
            from = (uint64_t)pair[0];
            to = (uint64_t)pair[1];
        }
        bool zero = false;
        if (args->flags & HAS_FROM) {
            const int32_t named = ((const int32_t *)seq->data)[args->seq_at + row];
            zero = named < 0;
            from = zero ? 0 : (uint64_t)named;
        }
        if (args->flags & HAS_SEQ) {
            const uint32_t b = (uint32_t)(row / args->L), t = (uint32_t)(row % args->L);
            if (t >= cpu_piece_of(args->flags, seq, args->seq_at, b, args->L).count) continue;
        }
        if (zero) memset(task->scratch, 0, (size_t)count * sizeof *task->scratch);
        else load_row(task->scratch, &task->bindings[BINDING_convert_x], (size_t)(args->x_at + from * args->x_row + column), (size_t)count);
        store_row(&task->bindings[BINDING_convert_y], (size_t)(args->y_at + to * args->y_row + column), task->scratch,
                  (size_t)count);
    }
}

void cpu_embed_plain(const cpu_task *task)
{
    const struct EmbedArgs *args = task->args;
    const int64_t id = ((const int32_t *)task->bindings[BINDING_embed_ids].data)[(size_t)args->ids_at + task->tile];
    const bool outside = id < 0 || id >= (int64_t)args->vocabulary;
    const bool here = !outside && id >= (int64_t)args->first && id < (int64_t)args->first + args->count;
    const size_t y_at = args->y_at + (size_t)task->tile * args->y_row;
    if (!here && !(outside && args->first == 0)) return;
    for (size_t i = 0; i < args->width; i += CPU_SCRATCH) {
        const size_t count = cpu_min(args->width - (uint32_t)i, CPU_SCRATCH);
        if (here) load_row(task->scratch, &task->bindings[BINDING_embed_weight],
                           args->weight_at + (size_t)(id - (int64_t)args->first) * args->width + i, count);
        else for (size_t k = 0; k < count; k++) task->scratch[k] = NAN;
        store_row(&task->bindings[BINDING_embed_y], y_at + i, task->scratch, count);
    }
}

void cpu_advance_plain(const cpu_task *task)
{
    const struct AdvanceArgs *args = task->args;
    int32_t *seq = (int32_t *)task->bindings[BINDING_advance_seq].data + args->seq_at;
    const int32_t *ids = (const int32_t *)task->bindings[BINDING_advance_ids].data;
    int32_t *log = (int32_t *)task->bindings[BINDING_advance_log].data;
    const size_t begin = (size_t)task->tile * task->T0;
    for (size_t b = begin; b < begin + task->T0 && b < args->B; b++) {
        const uint32_t count = (uint32_t)seq[2 * b + 1], position = (uint32_t)seq[2 * b] + count;
        if (count == 0) continue;
        seq[2 * b] = (int32_t)position;
        if (args->flags & HAS_ROWS) log[args->log_at + b * args->slots + position % args->slots] = ids[args->ids_at + b];
        if (!(args->flags & HAS_STOPS)) continue;
        const int32_t *stop = (const int32_t *)task->bindings[BINDING_advance_stops].data + args->stops_at + STOP_WORDS * b;
        bool ended = stop[END_IDS] > 0 && position >= (uint32_t)stop[END_IDS];
        for (uint32_t i = 0; i < END_IDS; i++) ended = ended || stop[i] == ids[args->ids_at + b];
        if (!ended) continue;
        seq[2 * b + 1] = 0;
        ((int32_t *)task->bindings[BINDING_advance_live].data)[args->live_at + b] = -1;
    }
}

void cpu_bias_plain(const cpu_task *task)
{
    const struct BiasArgs *args = task->args;
    const cpu_tensor *y = &task->bindings[BINDING_bias_y];
    const size_t all = (size_t)args->rows * args->width, begin = (size_t)task->tile * task->T0;
    const size_t end = all - begin < task->T0 ? all : begin + task->T0;
    float *bias = task->scratch, *row = bias + task->T0;
    for (size_t i = begin, count; i < end; i += count) {
        const size_t column = i % args->width, at = args->y_at + i / args->width * args->y_row + column;
        count = args->width - column < end - i ? args->width - column : end - i;
        load_row(bias, &task->bindings[BINDING_bias_bias], args->bias_at + column, count);
        if (args->flags & IS_ADD) load_row(row, y, at, count);
        for (size_t k = 0; (args->flags & IS_ADD) && k < count; k++) bias[k] += row[k];
        store_row(y, at, bias, count);
    }
}

/* Rows of any width, a third of the scratch memory at a time. */
void cpu_layer_norm_plain(const cpu_task *task)
{
    const struct LayerNormArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_layer_norm_x];
    const uint32_t block = CPU_SCRATCH / 3;
    float *row = task->scratch, *weight = row + block, *bias = weight + block;
    size_t from = task->tile;
    if (args->flags & HAS_ROWS) {
        const int32_t given = ((const int32_t *)task->bindings[BINDING_layer_norm_rows].data)[args->rows_at + from];
        if (given < 0) return;
        from = (size_t)given;
    }
    const size_t x_at = args->x_at + from * args->x_row, y_at = args->y_at + (size_t)task->tile * args->y_row;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < args->width; i += block) {
        const size_t count = cpu_min(args->width - (uint32_t)i, block);
        load_row(row, x, x_at + i, count);
        for (size_t k = 0; k < count; k++) sum += (double)row[k];
    }
    const double mean = sum / args->width;
    for (size_t i = 0; i < args->width; i += block) {
        const size_t count = cpu_min(args->width - (uint32_t)i, block);
        if (args->width > block) load_row(row, x, x_at + i, count);
        for (size_t k = 0; k < count; k++) squares += ((double)row[k] - mean) * ((double)row[k] - mean);
    }
    const float factor = 1.0f / sqrtf((float)(squares / args->width) + args->eps);
    for (size_t i = 0; i < args->width; i += block) {
        const size_t count = cpu_min(args->width - (uint32_t)i, block);
        if (args->width > block) load_row(row, x, x_at + i, count);
        load_row(weight, &task->bindings[BINDING_layer_norm_weight], args->weight_at + i, count);
        load_row(bias, &task->bindings[BINDING_layer_norm_bias], args->bias_at + i, count);
        for (size_t k = 0; k < count; k++) row[k] = (float)((double)row[k] - mean) * factor * weight[k] + bias[k];
        store_row(&task->bindings[BINDING_layer_norm_y], y_at + i, row, count);
    }
}
