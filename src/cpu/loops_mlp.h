/* SwiGLU and its gradient, see shaders/mlp/args.h. silu_slopes is in loops_dense_backward.h. */

void CPU_NAME(swiglu)(const cpu_task *task)
{
    const struct SwigluArgs *args = task->args;
    const cpu_tensor *a = &task->bindings[BINDING_swiglu_a], *u = &task->bindings[BINDING_swiglu_u], *h = &task->bindings[BINDING_swiglu_h];
    const size_t all = (size_t)args->rows * args->width, begin = (size_t)task->tile * task->T0;
    const size_t end = all - begin < task->T0 ? all : begin + task->T0;
    float *x = task->scratch, *y = x + task->T0;
    for (size_t i = begin; i < end;) {
        const size_t t = i / args->width, column = i % args->width, rest = args->width - column, count = end - i < rest ? end - i : rest;
        load_row(x, a, args->a_at + t * args->a_row + column, count);
        const float *by = row_of(y, u, args->u_at + t * args->u_row + column, count);
        silu_row(x, count);
        for (size_t k = 0; k < count; k++) x[k] *= by[k];
        store_row(h, args->h_at + t * args->h_row + column, x, count);
        i += count;
    }
}

void CPU_NAME(swiglu_backward)(const cpu_task *task)
{
    const struct SwigluBackwardArgs *args = task->args;
    const cpu_tensor *a = &task->bindings[BINDING_swiglu_backward_a], *u = &task->bindings[BINDING_swiglu_backward_u];
    const cpu_tensor *up_h = &task->bindings[BINDING_swiglu_backward_up_h];
    const cpu_tensor *grad_a = &task->bindings[BINDING_swiglu_backward_grad_a], *grad_u = &task->bindings[BINDING_swiglu_backward_grad_u];
    const size_t all = (size_t)args->rows * args->width, begin = (size_t)task->tile * task->T0;
    const size_t end = all - begin < task->T0 ? all : begin + task->T0;
    float *x = task->scratch, *value = x + task->T0, *slope = value + task->T0, *other = slope + task->T0, *up = other + task->T0;
    for (size_t i = begin; i < end;) {
        const size_t t = i / args->width, column = i % args->width, rest = args->width - column, count = end - i < rest ? end - i : rest;
        const float *from = row_of(x, a, args->a_at + t * args->a_row + column, count);
        const float *by = row_of(other, u, args->u_at + t * args->u_row + column, count);
        const float *grad = row_of(up, up_h, args->up_h_at + t * args->up_h_row + column, count);
        CPU_NAME(silu_slopes)(value, slope, from, count);
        for (size_t k = 0; k < count; k++) {
            value[k] *= grad[k];
            slope[k] *= grad[k] * by[k];
        }
        store_row(grad_a, args->grad_a_at + t * args->grad_a_row + column, slope, count);
        store_row(grad_u, args->grad_u_at + t * args->grad_u_row + column, value, count);
        i += count;
    }
}
