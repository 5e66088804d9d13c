/* Kernels of ssd without a vector form: the cumulative log-decay; loops_ssd.h has the others. */
#include "cpu_vector.h"

static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

void cpu_ssd_decay_plain(const cpu_task *task)
{
    const struct SsdDecayArgs *args = task->args;
    const uint64_t items = (uint64_t)args->B * args->M * args->H, begin = (uint64_t)task->tile * task->T0;
    float *decay = (float *)task->bindings[BINDING_ssd_decay_decay].data;
    for (uint64_t item = begin; item < begin + task->T0 && item < items; item++) {
        const size_t h = (size_t)(item % args->H), j = (size_t)(item / args->H % args->M),
                     b = (size_t)(item / args->H / args->M);
        const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_ssd_decay_seq], args->seq_at, (uint32_t)b, args->L, args->T);
        const cpu_chunk chunk = cpu_chunk_of(of.piece, args->S, (uint32_t)j);
        if (of.packed && chunk.begin >= chunk.end) continue;
        const float rate = -expf(load_one(&task->bindings[BINDING_ssd_decay_a_log], args->a_log_at + h));
        const float bias = args->flags & HAS_BIAS
                               ? load_one(&task->bindings[BINDING_ssd_decay_dt_bias], args->dt_bias_at + h)
                               : 0.0f;
        float *cum = (float *)task->bindings[BINDING_ssd_decay_cum].data + (of.row * args->H + h * of.span) * CUM_STRIDE;
        float high = 0, low = 0;
        for (size_t t = chunk.begin; t < chunk.end; t++) {
            float step = load_one(&task->bindings[BINDING_ssd_decay_dt],
                                  args->dt_at + (of.row + t) * args->dt_row + h);
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
        const size_t first = cpu_slot(&of, args->M, args->S) + b;
        decay[(first + 1 + j) * args->H + h] = high;
        if (j == 0)
            decay[first * args->H + h] =
                args->flags & HAS_OPEN
                    ? ((const float *)task->bindings[BINDING_ssd_decay_open_decay].data)[b * args->H + h]
                    : 0.0f;
    }
}
