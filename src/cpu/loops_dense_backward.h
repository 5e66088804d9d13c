/* Backward passes of the norms and of linear, see shaders/dense/args.h. */

#define NORM_BLOCK 4096u /* columns at a time */

/* SiLU of each element, and its derivative. */
static void CPU_NAME(silu_slopes)(float *value, float *slope, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) value[i] = x[i] > 0.0f ? -x[i] : x[i];
    exp_row(value, count);
    for (size_t i = 0; i < count; i++) {
        const float e = value[i], sigma = (x[i] > 0.0f ? 1.0f : e) / (1.0f + e), rest = (x[i] > 0.0f ? e : 1.0f) / (1.0f + e);
        value[i] = x[i] * sigma;
        slope[i] = sigma * (1.0f + x[i] * rest);
    }
}

void CPU_NAME(norm_backward)(const cpu_task *task)
{
    const struct NormBackwardArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_norm_backward_x], *weight = &task->bindings[BINDING_norm_backward_weight];
    const cpu_tensor *up_y = &task->bindings[BINDING_norm_backward_up_y], *grad_x = &task->bindings[BINDING_norm_backward_grad_x];
    const cpu_tensor *from = &task->bindings[BINDING_norm_backward_from], *copy = &task->bindings[BINDING_norm_backward_copy];
    const int32_t *from_rows =
        args->flags & HAS_FROM ? (const int32_t *)task->bindings[BINDING_norm_backward_from_rows].data + args->from_rows_at : NULL;
    const int32_t *rows = args->flags & HAS_ROWS ? (const int32_t *)task->bindings[BINDING_norm_backward_rows].data + args->rows_at : NULL;
    const size_t first = (size_t)task->tile * task->T0, count = cpu_min(task->T0, args->rows - (uint32_t)first);
    float *v = task->scratch, *up = v + NORM_BLOCK, *w = up + NORM_BLOCK, *sum = w + NORM_BLOCK, *factors = sum + NORM_BLOCK;
    float *partial = (float *)task->bindings[BINDING_norm_backward_partial].data + (size_t)task->tile * args->width;
    for (size_t r = 0; r < count; r++) {
        double squares = 0, along = 0;
        if (rows != NULL && rows[first + r] < 0) continue;
        const size_t source = rows != NULL ? (size_t)rows[first + r] : first + r;
        for (size_t i = 0; i < args->width; i += NORM_BLOCK) {
            const size_t width = cpu_min(args->width - (uint32_t)i, NORM_BLOCK);
            const float *read = row_of(v, x, args->x_at + source * args->x_row + i, width);
            const float *scale = row_of(w, weight, args->weight_at + i, width);
            load_row(up, up_y, args->up_y_at + (first + r) * args->up_y_row + i, width);
            for (size_t k = 0; k < width; k++) up[k] *= scale[k];
            squares += (double)dot(read, read, width);
            along += (double)dot(read, up, width);
        }
        const float inverse = 1.0f / sqrtf((float)(squares / args->width) + args->eps);
        factors[2 * r] = inverse;
        factors[2 * r + 1] = inverse * inverse * inverse * (float)(along / args->width);
    }
    for (size_t i = 0; i < args->width; i += NORM_BLOCK) {
        const size_t width = cpu_min(args->width - (uint32_t)i, NORM_BLOCK);
        load_row(w, weight, args->weight_at + i, width);
        memset(sum, 0, width * sizeof(float));
        for (size_t r = 0; r < count; r++) {
            if (rows != NULL && rows[first + r] < 0) continue;
            const size_t source = rows != NULL ? (size_t)rows[first + r] : first + r, to = args->grad_x_at + source * args->grad_x_row + i;
            const float inverse = factors[2 * r], along = factors[2 * r + 1];
            load_row(v, x, args->x_at + source * args->x_row + i, width);
            load_row(up, up_y, args->up_y_at + (first + r) * args->up_y_row + i, width);
            for (size_t k = 0; k < width; k++) {
                sum[k] += up[k] * v[k] * inverse;
                up[k] = inverse * up[k] * w[k] - along * v[k];
            }
            if (args->flags & IS_ADD) axpy(up, 1.0f, row_of(v, grad_x, to, width), width);
            const int32_t of = from_rows != NULL ? from_rows[first + r] : -1;
            if (of >= 0) axpy(up, 1.0f, row_of(v, from, args->from_at + (size_t)of * args->from_row + i, width), width);
            store_row(grad_x, to, up, width);
            if (args->flags & WRITES_COPY) store_row(copy, args->copy_at + (first + r) * args->copy_row + i, up, width);
        }
        memcpy(partial + i, sum, width * sizeof(float));
    }
}

/* A block of a row of the gated norm's inputs. */
typedef struct gated_row {
    float r[NORM_BLOCK], w[NORM_BLOCK], open[NORM_BLOCK], slope[NORM_BLOCK], up[NORM_BLOCK]; /* w = y + gate r; open = SiLU(z) */
} gated_row;

static void CPU_NAME(load_gated)(gated_row *of, const cpu_task *task, size_t t, size_t i, size_t width, float gate)
{
    const struct GatedNormBackwardArgs *args = task->args;
    const bool sma = (args->flags & HAS_SMA) != 0;
    load_row(of->up, &task->bindings[BINDING_gated_norm_backward_z], args->z_at + t * args->z_row + i, width);
    CPU_NAME(silu_slopes)(of->open, of->slope, of->up, width);
    load_row(of->w, &task->bindings[BINDING_gated_norm_backward_y], args->y_at + t * args->y_row + i, width);
    if (sma) {
        load_row(of->r, &task->bindings[BINDING_gated_norm_backward_r], args->r_at + t * args->r_row + i, width);
        axpy(of->w, gate, of->r, width);
    } else {
        memset(of->r, 0, width * sizeof(float));
    }
    load_row(of->up, &task->bindings[BINDING_gated_norm_backward_up_out], args->up_out_at + t * args->up_out_row + i, width);
}

void CPU_NAME(gated_norm_backward)(const cpu_task *task)
{
    const struct GatedNormBackwardArgs *args = task->args;
    const cpu_tensor *bindings = task->bindings;
    const bool sma = (args->flags & HAS_SMA) != 0;
    const size_t first = (size_t)task->tile * task->T0, count = cpu_min(task->T0, args->rows - (uint32_t)first);
    gated_row *row = (gated_row *)(void *)task->scratch;
    float *v = (float *)(row + 1), *u = v + NORM_BLOCK, *weight = u + NORM_BLOCK, *sum = weight + NORM_BLOCK, *factors = sum + NORM_BLOCK;
    float *partial = (float *)bindings[BINDING_gated_norm_backward_partial].data + (size_t)task->tile * args->width;
    for (size_t k = 0; k < count; k++) {
        const size_t t = first + k;
        const float raw = sma ? load_one(&bindings[BINDING_gated_norm_backward_gate], args->gate_at + t * args->gate_row) : 0.0f;
        float gate = 0, gate_slope = 0;
        if (sma) CPU_NAME(silu_slopes)(&gate, &gate_slope, &raw, 1);
        double squares = 0, along = 0, straight = 0, across = 0;
        for (size_t i = 0; i < args->width; i += NORM_BLOCK) {
            const size_t width = cpu_min(args->width - (uint32_t)i, NORM_BLOCK);
            CPU_NAME(load_gated)(row, task, t, i, width, gate);
            load_row(weight, &bindings[BINDING_gated_norm_backward_weight], args->weight_at + i, width);
            for (size_t j = 0; j < width; j++) {
                v[j] = row->w[j] * row->open[j];
                u[j] = row->up[j] * weight[j];
                row->r[j] *= row->open[j];
            }
            squares += (double)dot(v, v, width);
            along += (double)dot(u, v, width);
            straight += (double)dot(row->r, u, width);
            across += (double)dot(row->r, v, width);
        }
        const float inverse = 1.0f / sqrtf((float)(squares / args->width) + args->eps);
        factors[3 * k] = inverse;
        factors[3 * k + 1] = inverse * inverse * inverse * (float)(along / args->width);
        factors[3 * k + 2] = gate;
        const float grad_gate = gate_slope * (inverse * (float)straight - factors[3 * k + 1] * (float)across);
        if (sma) store_row(&bindings[BINDING_gated_norm_backward_grad_gate], args->grad_gate_at + t * args->grad_gate_row, &grad_gate, 1);
    }
    for (size_t i = 0; i < args->width; i += NORM_BLOCK) {
        const size_t width = cpu_min(args->width - (uint32_t)i, NORM_BLOCK);
        load_row(weight, &bindings[BINDING_gated_norm_backward_weight], args->weight_at + i, width);
        memset(sum, 0, width * sizeof(float));
        for (size_t k = 0; k < count; k++) {
            const size_t t = first + k;
            const float inverse = factors[3 * k], along = factors[3 * k + 1], gate = factors[3 * k + 2];
            CPU_NAME(load_gated)(row, task, t, i, width, gate);
            for (size_t j = 0; j < width; j++) {
                const float value = row->w[j] * row->open[j], grad = inverse * row->up[j] * weight[j] - along * value;
                sum[j] += row->up[j] * value * inverse;
                v[j] = grad * row->open[j];
                u[j] = grad * row->w[j] * row->slope[j];
                row->r[j] = gate * v[j];
            }
            store_row(&bindings[BINDING_gated_norm_backward_grad_y], args->grad_y_at + t * args->grad_y_row + i, v, width);
            store_row(&bindings[BINDING_gated_norm_backward_grad_z], args->grad_z_at + t * args->grad_z_row + i, u, width);
            if (sma) store_row(&bindings[BINDING_gated_norm_backward_grad_r], args->grad_r_at + t * args->grad_r_row + i, row->r, width);
        }
        memcpy(partial + i, sum, width * sizeof(float));
    }
}

#undef NORM_BLOCK

/* ---- Linear: products of blocks of DEPTH ---- */

#define DEPTH 256u

/* Adds a block of rows x columns of sums to the tensor, or stores it. */
static void CPU_NAME(put_block)(const cpu_tensor *to, size_t at, size_t row, float *sums, size_t rows, size_t columns, bool add, float *scratch)
{
    for (size_t i = 0; i < rows; i++) {
        float *sum = sums + i * columns;
        if (add) axpy(sum, 1.0f, row_of(scratch, to, at + i * row, columns), columns);
        store_row(to, at + i * row, sum, columns);
    }
}

void CPU_NAME(linear_backward_x)(const cpu_task *task)
{
    const struct LinearBackwardXArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->inputs, task->T0), t_blocks = cpu_blocks(args->rows, task->T1);
    const size_t i = (size_t)(task->tile % blocks) * task->T0, t = (size_t)(task->tile / blocks % t_blocks) * task->T1;
    const size_t part = task->tile / blocks / t_blocks, begin = part * args->share;
    const size_t end = begin + args->share < args->outputs ? begin + args->share : args->outputs;
    const size_t columns = cpu_min(task->T0, args->inputs - (uint32_t)i), rows = cpu_min(task->T1, args->rows - (uint32_t)t);
    float *sums = task->scratch, *a = sums + rows * columns, *b = a + rows * DEPTH;
    memset(sums, 0, rows * columns * sizeof(float));
    for (size_t o = begin; o < end; o += DEPTH) {
        const size_t depth = end - o < DEPTH ? end - o : DEPTH;
        const matrix left = matrix_of(a, &task->bindings[BINDING_linear_backward_x_up_y], args->up_y_at + t * args->up_y_row + o, args->up_y_row,
                                      rows, depth);
        const matrix right = matrix_of(b, &task->bindings[BINDING_linear_backward_x_weight], args->weight_at + o * args->inputs + i,
                                       args->inputs, depth, columns);
        product(rows, columns, depth, left.at, left.row, 1, right.at, right.row, sums, columns);
    }
    CPU_NAME(put_block)(&task->bindings[BINDING_linear_backward_x_grad_x], args->grad_x_at + (part * args->rows + t) * args->grad_x_row + i,
                        args->grad_x_row, sums, rows, columns, (args->flags & IS_ADD) != 0, a);
}

void CPU_NAME(linear_backward_weight)(const cpu_task *task)
{
    const struct LinearBackwardWeightArgs *args = task->args;
    const uint32_t i_blocks = cpu_blocks(args->inputs, task->T0), o_blocks = cpu_blocks(args->outputs, task->T1);
    const size_t i = (size_t)(task->tile % i_blocks) * task->T0, o = (size_t)(task->tile / i_blocks % o_blocks) * task->T1;
    const size_t part = task->tile / i_blocks / o_blocks, begin = part * args->share;
    const size_t end = begin + args->share < args->rows ? begin + args->share : args->rows;
    const size_t columns = cpu_min(task->T0, args->inputs - (uint32_t)i), rows = cpu_min(task->T1, args->outputs - (uint32_t)o);
    float *sums = task->scratch, *a = sums + rows * columns, *b = a + rows * DEPTH;
    memset(sums, 0, rows * columns * sizeof(float));
    for (size_t t = begin; t < end; t += DEPTH) {
        const size_t depth = end - t < DEPTH ? end - t : DEPTH;
        const matrix left = matrix_of(a, &task->bindings[BINDING_linear_backward_weight_up_y], args->up_y_at + t * args->up_y_row + o,
                                      args->up_y_row, depth, rows);
        const matrix right = matrix_of(b, &task->bindings[BINDING_linear_backward_weight_x], args->x_at + t * args->x_row + i, args->x_row,
                                       depth, columns);
        product(rows, columns, depth, left.at, 1, left.row, right.at, right.row, sums, columns);
    }
    CPU_NAME(put_block)(&task->bindings[BINDING_linear_backward_weight_grad_weight],
                        args->grad_weight_at + (part * args->outputs + o) * args->inputs + i, args->inputs, sums, rows, columns,
                        (args->flags & IS_ADD) != 0, a);
}

#undef DEPTH
