/* Sums over rows and the gradient of the embedding; loops_dense_backward.h has the other backward passes of dense. */
#include "cpu_vector.h"

void cpu_column_sum_plain(const cpu_task *task)
{
    const struct ColumnSumArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->width, task->T0), i = task->tile % blocks * task->T0, part = task->tile / blocks;
    const size_t count = cpu_min(task->T0, args->width - i), begin = (size_t)part * args->share;
    const size_t end = begin + args->share < args->rows ? begin + args->share : args->rows;
    const float *x = (const float *)task->bindings[BINDING_column_sum_x].data + i;
    const cpu_tensor *y = &task->bindings[BINDING_column_sum_y];
    float *sum = task->scratch, *before = sum + count;
    memset(sum, 0, count * sizeof(float));
    for (size_t s = begin; s < end; s++) axpy(sum, 1.0f, x + s * args->width, count);
    for (size_t k = 0; k < count;) { /* line by line */
        const size_t to = (size_t)part * args->width + i + k, column = to % args->line;
        const size_t some = count - k < args->line - column ? count - k : args->line - column;
        const size_t at = args->y_at + to / args->line * args->y_row + column;
        if (args->flags & IS_ADD) axpy(sum + k, 1.0f, row_of(before, y, at, some), some);
        store_row(y, at, sum + k, some);
        k += some;
    }
}

void cpu_embed_backward_plain(const cpu_task *task)
{
    const struct EmbedBackwardArgs *args = task->args;
    const int32_t *plan = (const int32_t *)task->bindings[BINDING_embed_backward_plan].data + args->plan_at, *order = plan + 2;
    const uint32_t blocks = cpu_blocks(args->width, task->T0), i = task->tile % blocks * task->T0, number = task->tile / blocks;
    if (number >= (uint32_t)plan[0]) return;
    const int32_t *piece = order + args->rows + 4 * (size_t)number;
    const size_t count = cpu_min(task->T0, args->width - i);
    float *sum = task->scratch, *row = sum + count;
    memset(sum, 0, count * sizeof(float));
    for (int32_t k = piece[1]; k < piece[2]; k++) {
        const size_t at = args->up_y_at + (size_t)order[k] * args->up_y_row + i;
        axpy(sum, 1.0f, row_of(row, &task->bindings[BINDING_embed_backward_up_y], at, count), count);
    }
    if (piece[3] < 0)
        axpy((float *)task->bindings[BINDING_embed_backward_grad_weight].data + args->grad_weight_at + (size_t)piece[0] * args->width + i, 1.0f,
             sum, count);
    else
        memcpy((float *)task->bindings[BINDING_embed_backward_partial].data + (size_t)piece[3] * args->width + i, sum, count * sizeof(float));
}

void cpu_embed_backward_sum_plain(const cpu_task *task)
{
    const struct EmbedBackwardSumArgs *args = task->args;
    const int32_t *plan = (const int32_t *)task->bindings[BINDING_embed_backward_sum_plan].data + args->plan_at;
    const uint32_t blocks = cpu_blocks(args->width, task->T0), i = task->tile % blocks * task->T0, number = task->tile / blocks;
    if (number >= (uint32_t)plan[1]) return;
    const int32_t *run = plan + 2 + args->rows + 4 * ((size_t)args->rows / EMBED_PIECE + cpu_min(args->rows, args->vocabulary)) +
                         3 * (size_t)number;
    const size_t count = cpu_min(task->T0, args->width - i);
    const float *partial = (const float *)task->bindings[BINDING_embed_backward_sum_partial].data + (size_t)run[1] * args->width + i;
    float *sum = task->scratch;
    memset(sum, 0, count * sizeof(float));
    for (int32_t k = 0; k < run[2]; k++) axpy(sum, 1.0f, partial + (size_t)k * args->width, count);
    axpy((float *)task->bindings[BINDING_embed_backward_sum_grad_weight].data + args->grad_weight_at + (size_t)run[0] * args->width + i, 1.0f, sum,
         count);
}
