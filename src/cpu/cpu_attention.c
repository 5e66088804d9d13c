/* Kernels of attention without a vector form: keys and values into their cache, results of blocks put together; loops_attention.h has the others. */
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
        if (t >= piece.count || place < args->first || place - args->first >= args->C) continue;
        const size_t to = (size_t)b * args->C + (size_t)(place - args->first);
        load_row(task->scratch, &task->bindings[BINDING_kv_append_k], args->k_at + row * args->k_row + column, (size_t)count);
        store_row(&task->bindings[BINDING_kv_append_to_k], args->to_k_at + to * args->to_k_row + column, task->scratch, (size_t)count);
        load_row(task->scratch, &task->bindings[BINDING_kv_append_v], args->v_at + row * args->v_row + column, (size_t)count);
        store_row(&task->bindings[BINDING_kv_append_to_v], args->to_v_at + to * args->to_v_row + column, task->scratch, (size_t)count);
    }
}

void cpu_attention_merge_plain(const cpu_task *task)
{
    const struct AttentionMergeArgs *args = task->args;
    const size_t heads = (size_t)args->B * args->L * args->H, begin = (size_t)task->tile * task->T0, D = args->D;
    const float *x_lse = task->bindings[BINDING_attention_merge_x_lse].data;
    float *lse = (float *)task->bindings[BINDING_attention_merge_lse].data + args->lse_at, *x = task->scratch, *o = x + D;
    for (size_t head = begin; head < begin + task->T0 && head < heads; head++) {
        const size_t row = head / args->H;
        const uint32_t b = (uint32_t)(row / args->L), t = (uint32_t)(row % args->L);
        const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_attention_merge_seq], args->seq_at, b, args->L);
        if (t >= piece.count || (uint64_t)piece.position + t < args->first) continue;
        const float top = fmaxf(lse[head], x_lse[head]), keep = exp_one(lse[head] - top), gain = exp_one(x_lse[head] - top), total = keep + gain;
        const size_t at = args->o_at + row * args->o_row + head % args->H * D;
        load_row(x, &task->bindings[BINDING_attention_merge_x], head * D, D);
        load_row(o, &task->bindings[BINDING_attention_merge_o], at, D);
        for (size_t d = 0; d < D; d++) o[d] = keep / total * o[d] + gain / total * x[d];
        store_row(&task->bindings[BINDING_attention_merge_o], at, o, D);
        lse[head] = top + logf(total);
    }
}
