/* norm and gated_norm: rows of any width, in blocks of NORM_BLOCK elements. */

#define NORM_BLOCK 4096u
#define NORM_KEPT (CPU_SCRATCH - 3u * NORM_BLOCK)

void CPU_NAME(norm)(const cpu_task *task)
{
    const struct NormArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_norm_x], *weight = &task->bindings[BINDING_norm_weight];
    size_t from = task->tile;
    if (args->flags & HAS_ROWS) {
        const int32_t row = ((const int32_t *)task->bindings[BINDING_norm_rows].data)[args->rows_at + from];
        if (row < 0) return;
        from = (size_t)row;
    }
    const size_t x_at = args->x_at + from * args->x_row;
    const size_t y_at = args->y_at + (size_t)task->tile * args->y_row;
    float *row = task->scratch, *scale = row + NORM_BLOCK;
    double squares = 0;
    for (size_t i = 0; i < args->width; i += NORM_BLOCK) {
        const size_t count = cpu_min(args->width - (uint32_t)i, NORM_BLOCK);
        const float *v = row_of(row, x, x_at + i, count);
        squares += (double)dot(v, v, count);
    }
    const float factor = 1.0f / sqrtf((float)(squares / args->width) + args->eps);
    for (size_t i = 0; i < args->width; i += NORM_BLOCK) {
        const size_t count = cpu_min(args->width - (uint32_t)i, NORM_BLOCK);
        load_row(row, x, x_at + i, count);
        const float *w = row_of(scale, weight, args->weight_at + i, count);
        for (size_t k = 0; k < count; k++) row[k] = row[k] * factor * w[k];
        store_row(&task->bindings[BINDING_norm_y], y_at + i, row, count);
    }
}

/* (y + silu(gate) r) silu(z) for a block of one row; other and scratch take NORM_BLOCK elements. */
static void CPU_NAME(gated_block)(const cpu_task *task, float *to, float *other, size_t at, size_t count, float gate)
{
    const struct GatedNormArgs *args = task->args;
    const size_t t = task->tile;
    load_row(other, &task->bindings[BINDING_gated_norm_z], args->z_at + t * args->z_row + at, count);
    silu_row(other, count);
    load_row(to, &task->bindings[BINDING_gated_norm_y], args->y_at + t * args->y_row + at, count);
    if (args->flags & HAS_SMA) {
        float *r = other + NORM_BLOCK;
        const float *v = row_of(r, &task->bindings[BINDING_gated_norm_r], args->r_at + t * args->r_row + at, count);
        axpy(to, gate, v, count);
    }
    for (size_t i = 0; i < count; i++) to[i] *= other[i];
}

void CPU_NAME(gated_norm)(const cpu_task *task)
{
    const struct GatedNormArgs *args = task->args;
    const size_t t = task->tile;
    float *other = task->scratch, *kept = other + 2 * (size_t)NORM_BLOCK;
    const bool keeps = args->width <= NORM_KEPT;
    float gate = 0;
    if (args->flags & HAS_SMA)
        gate = silu_one(load_one(&task->bindings[BINDING_gated_norm_gate], args->gate_at + t * args->gate_row));
    double squares = 0;
    for (size_t i = 0; i < args->width; i += NORM_BLOCK) {
        const size_t count = cpu_min(args->width - (uint32_t)i, NORM_BLOCK);
        float *v = keeps ? kept + i : kept;
        CPU_NAME(gated_block)(task, v, other, i, count, gate);
        squares += (double)dot(v, v, count);
    }
    const float factor = 1.0f / sqrtf((float)(squares / args->width) + args->eps);
    for (size_t i = 0; i < args->width; i += NORM_BLOCK) {
        const size_t count = cpu_min(args->width - (uint32_t)i, NORM_BLOCK);
        float *v = keeps ? kept + i : kept;
        if (!keeps) CPU_NAME(gated_block)(task, v, other, i, count, gate);
        const float *w = row_of(other, &task->bindings[BINDING_gated_norm_weight], args->weight_at + i, count);
        for (size_t k = 0; k < count; k++) v[k] = v[k] * factor * w[k];
        store_row(&task->bindings[BINDING_gated_norm_out], args->out_at + t * args->out_row + i, v, count);
    }
}

#undef NORM_BLOCK
#undef NORM_KEPT
