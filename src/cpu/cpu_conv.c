/* Kernels of conv without a vector form: tails; loops_conv.h has the others. */
#include "cpu_vector.h"

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
