/* Kernels that move or make elements one by one. */
#include "cpu_vector.h"

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
        count = args->width - column < end - i ? args->width - column : end - i;
        if (count > CPU_SCRATCH) count = CPU_SCRATCH;
        if (args->flags & HAS_SEQ) {
            const uint32_t b = (uint32_t)(row / args->L), t = (uint32_t)(row % args->L);
            const cpu_tensor *seq = &task->bindings[BINDING_convert_seq];
            if (t >= cpu_piece_of(args->flags, seq, args->seq_at, b, args->L).count) continue;
        }
        load_row(task->scratch, &task->bindings[BINDING_convert_x], (size_t)(args->x_at + row * args->x_row + column),
                 (size_t)count);
        store_row(&task->bindings[BINDING_convert_y], (size_t)(args->y_at + row * args->y_row + column), task->scratch,
                  (size_t)count);
    }
}

void cpu_kv_append_plain(const cpu_task *task)
{
    const struct KvAppendArgs *args = task->args;
    const cpu_tensor *seq = &task->bindings[BINDING_kv_append_seq];
    const uint64_t width = (uint64_t)args->G * args->D, total = (uint64_t)args->B * args->L * width;
    const uint64_t begin = (uint64_t)task->tile * task->T0, end = begin + task->T0 < total ? begin + task->T0 : total;
    for (uint64_t i = begin, count; i < end; i += count) {
        const size_t row = (size_t)(i / width), column = (size_t)(i % width);
        const uint32_t b = (uint32_t)(row / args->L), t = (uint32_t)(row % args->L);
        const cpu_piece piece = cpu_piece_of(args->flags, seq, args->seq_at, b, args->L);
        const uint64_t place = (uint64_t)piece.position + t;
        count = width - column < end - i ? width - column : end - i;
        if (count > CPU_SCRATCH) count = CPU_SCRATCH;
        if (t >= piece.count || place >= args->C) continue;
        const size_t to = (size_t)b * args->C + (size_t)place;
        load_row(task->scratch, &task->bindings[BINDING_kv_append_k], args->k_at + row * args->k_row + column, (size_t)count);
        store_row(&task->bindings[BINDING_kv_append_to_k], args->to_k_at + to * args->to_k_row + column, task->scratch, (size_t)count);
        load_row(task->scratch, &task->bindings[BINDING_kv_append_v], args->v_at + row * args->v_row + column, (size_t)count);
        store_row(&task->bindings[BINDING_kv_append_to_v], args->to_v_at + to * args->to_v_row + column, task->scratch, (size_t)count);
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
        const uint32_t position = (uint32_t)seq[2 * b] + (uint32_t)seq[2 * b + 1];
        seq[2 * b] = (int32_t)position;
        if (args->flags & HAS_ROWS) log[args->log_at + b * args->slots + position % args->slots] = ids[args->ids_at + b];
    }
}

void cpu_conv_tail_plain(const cpu_task *task)
{
    const struct ConvTailArgs *args = task->args;
    const cpu_tensor *tail = &task->bindings[BINDING_conv_tail_tail];
    const uint32_t blocks = cpu_blocks(args->C, task->T0);
    const uint32_t channel = task->tile % blocks * task->T0, b = task->tile / blocks;
    const size_t width = cpu_min(task->T0, args->C - channel), kept = args->K - 1;
    const size_t count =
        cpu_piece_of(args->flags, &task->bindings[BINDING_conv_tail_seq], args->seq_at, b, args->L).count;
    if (count == 0) return;
    /* Upwards: a row that comes from the old tail comes from a later one. */
    for (size_t k = 0; k < kept; k++) {
        const size_t input = k + count; /* less K - 1 */
        if (input >= kept)
            load_row(task->scratch, &task->bindings[BINDING_conv_tail_x],
                     args->x_at + ((size_t)b * args->L + input - kept) * args->x_row + channel, width);
        else load_row(task->scratch, tail, args->tail_at + ((size_t)b * kept + input) * args->C + channel, width);
        store_row(tail, args->tail_at + ((size_t)b * kept + k) * args->C + channel, task->scratch, width);
    }
}

static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

void cpu_ssd_decay_plain(const cpu_task *task)
{
    const struct SsdDecayArgs *args = task->args;
    const uint64_t items = (uint64_t)args->B * args->M * args->H, begin = (uint64_t)task->tile * task->T0;
    float *decay = (float *)task->bindings[BINDING_ssd_decay_decay].data;
    for (uint64_t item = begin; item < begin + task->T0 && item < items; item++) {
        const size_t h = (size_t)(item % args->H), j = (size_t)(item / args->H % args->M),
                     b = (size_t)(item / args->H / args->M);
        const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_ssd_decay_seq], args->seq_at,
                                             (uint32_t)b, args->L);
        const cpu_chunk chunk = cpu_chunk_of(piece, args->S, (uint32_t)j);
        const float rate = -expf(load_one(&task->bindings[BINDING_ssd_decay_a_log], args->a_log_at + h));
        const float bias = args->flags & HAS_BIAS
                               ? load_one(&task->bindings[BINDING_ssd_decay_dt_bias], args->dt_bias_at + h)
                               : 0.0f;
        float *cum = (float *)task->bindings[BINDING_ssd_decay_cum].data + (b * args->H + h) * args->L * CUM_STRIDE;
        float high = 0, low = 0;
        for (size_t t = chunk.begin; t < chunk.end; t++) {
            float step = load_one(&task->bindings[BINDING_ssd_decay_dt],
                                  args->dt_at + (b * args->L + t) * args->dt_row + h);
            if (!(args->flags & IS_STEP)) {
                step = softplus(step + bias);
                if (step < args->dt_min) step = args->dt_min;
                if (step > args->dt_max) step = args->dt_max;
            }
            const float term = rate * step;
            const float sum = high + term, part = sum - high;
            const float lost = (high - (sum - part)) + (term - part);
            low += lost;
            high = sum + low;
            low -= high - sum;
            cum[t * CUM_STRIDE] = high;
            cum[t * CUM_STRIDE + 1] = low;
            cum[t * CUM_STRIDE + 2] = step;
        }
        decay[(b * (args->M + (size_t)1) + 1 + j) * args->H + h] = high;
        if (j == 0)
            decay[b * (args->M + (size_t)1) * args->H + h] =
                args->flags & HAS_OPEN
                    ? ((const float *)task->bindings[BINDING_ssd_decay_open_decay].data)[b * args->H + h]
                    : 0.0f;
    }
}
