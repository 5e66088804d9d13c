/* Kernels of attention without a vector form: keys and values into their cache; loops_attention.h has the others. */
#include "cpu_vector.h"

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
