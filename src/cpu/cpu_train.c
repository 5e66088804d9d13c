/* Loss and optimizer, see shaders/loss/args.h and shaders/optim/args.h; loops_loss.h has the cross entropy. */
#include "cpu_vector.h"

void cpu_labelled_plain(const cpu_task *task)
{
    const struct LabelledArgs *args = task->args;
    const int32_t target = ((const int32_t *)task->bindings[BINDING_labelled_targets].data)[args->targets_at + task->tile];
    const bool has_label = target >= 0 && (uint32_t)target < args->vocabulary;
    for (size_t i = 0; i < args->width; i += CPU_SCRATCH) {
        const size_t count = args->width - i < CPU_SCRATCH ? args->width - i : CPU_SCRATCH;
        if (has_label) load_row(task->scratch, &task->bindings[BINDING_labelled_x], args->x_at + (size_t)task->tile * args->x_row + i, count);
        else memset(task->scratch, 0, count * sizeof(float));
        store_row(&task->bindings[BINDING_labelled_y], args->y_at + (size_t)task->tile * args->width + i, task->scratch, count);
    }
}

void cpu_loss_sum_plain(const cpu_task *task)
{
    const struct LossSumArgs *args = task->args;
    const float *parts = task->bindings[BINDING_loss_sum_parts].data;
    double loss = 0;
    int32_t correct = 0;
    for (size_t t = 0; t < args->rows; t++) {
        loss += (double)parts[2 * t];
        correct += (int32_t)parts[2 * t + 1];
    }
    ((float *)task->bindings[BINDING_loss_sum_loss].data)[args->loss_at] += (float)loss;
    ((int32_t *)task->bindings[BINDING_loss_sum_correct].data)[args->correct_at] += correct;
}

void cpu_square_sum_plain(const cpu_task *task)
{
    const struct SquareSumArgs *args = task->args;
    const size_t begin = (size_t)task->tile * task->T0, count = cpu_min(task->T0, args->count - (uint32_t)begin);
    const float *x = (const float *)task->bindings[BINDING_square_sum_x].data + args->x_at + begin;
    const float sum = dot(x, x, count);
    ((float *)task->bindings[BINDING_square_sum_partial].data)[args->partial_at + task->tile] = isfinite(sum) ? sum : INFINITY;
}

void cpu_grad_scale_plain(const cpu_task *task)
{
    const struct GradScaleArgs *args = task->args;
    const float *partial = task->bindings[BINDING_grad_scale_partial].data;
    float *scale = (float *)task->bindings[BINDING_grad_scale_scale].data + args->scale_at;
    const float factor = args->flags & HAS_FACTOR ? ((const float *)task->bindings[BINDING_grad_scale_factor].data)[args->factor_at] : 1.0f;
    double sum = 0;
    for (size_t i = 0; i < args->count; i++) sum += (double)partial[i];
    const float norm = sqrtf((float)sum) * factor, k = args->clip / (norm + 1e-6f);
    const bool finite = isfinite(norm);
    scale[0] = finite ? norm : INFINITY;
    scale[1] = !finite ? 0.0f : factor * (k < 1.0f ? k : 1.0f);
    scale[2] = finite ? 1.0f : 0.0f;
    scale[3] = 0.0f;
}

void cpu_adamw_plain(const cpu_task *task)
{
    const struct AdamwArgs *args = task->args;
    const size_t begin = (size_t)task->tile * task->T0, count = cpu_min(task->T0, args->count - (uint32_t)begin);
    float *w = (float *)task->bindings[BINDING_adamw_w].data + args->w_at + begin;
    float *m = (float *)task->bindings[BINDING_adamw_m].data + args->m_at + begin;
    float *v = (float *)task->bindings[BINDING_adamw_v].data + args->v_at + begin;
    const float *grad = (const float *)task->bindings[BINDING_adamw_grad].data + args->grad_at + begin;
    const float *scale = (const float *)task->bindings[BINDING_adamw_scale].data + args->scale_at;
    const float *hyper = (const float *)task->bindings[BINDING_adamw_hyper].data + args->hyper_at;
    if (scale[2] == 0.0f) return;
    const float k = scale[1], lr = hyper[0], beta1 = hyper[1], beta2 = hyper[2], eps = hyper[3], c1 = hyper[4], c2 = hyper[5];
    const float decay = args->flags & DECAYS ? hyper[6] : 0.0f;
    for (size_t i = 0; i < count; i++) {
        const float g = k * grad[i];
        m[i] = beta1 * m[i] + (1.0f - beta1) * g;
        v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
        w[i] -= lr * (m[i] / c1 / (sqrtf(v[i] / c2) + eps) + decay * w[i]);
    }
    if (args->flags & HAS_COPY) store_row(&task->bindings[BINDING_adamw_copy], args->copy_at + begin, w, count);
}
