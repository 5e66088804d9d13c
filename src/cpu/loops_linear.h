/* y = x weight^T. */

#define DEPTH 256u      /* inputs of a block: a packed panel of 16 outputs fills half of an L1 cache of 32 KiB */
#define FEW_DEPTH 4096u

/* Stores the sums of a block of rows x outputs, whose rows lie c_row apart, to y from element `at` on, added to what y holds where that is asked. */
static void CPU_NAME(product_store)(const cpu_task *task, const cpu_tensor *y, size_t at, size_t y_row, bool add, float *c, size_t c_row,
                                    size_t rows, size_t outputs)
{
    float *before = task->scratch;
    for (size_t i = 0; i < rows; i++, at += y_row) {
        float *sum = c + i * c_row;
        if (add) axpy(sum, 1.0f, row_of(before, y, at, outputs), outputs);
        store_row(y, at, sum, outputs);
    }
}

/* Scratch: x as f32 (T1 x DEPTH), a panel of 16 packed outputs, and sums (T1 x T0). */
void CPU_NAME(linear)(const cpu_task *task)
{
    const struct LinearArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_linear_x], *weight = &task->bindings[BINDING_linear_weight];
    const uint32_t blocks = cpu_blocks(args->outputs, task->T0);
    const uint32_t output = task->tile % blocks * task->T0, row = task->tile / blocks * task->T1;
    const size_t outputs = cpu_min(task->T0, args->outputs - output), rows = cpu_min(task->T1, args->rows - row);
    const size_t c_row = (outputs + 15) / 16 * 16;
    float *unpacked = task->scratch, *panel = unpacked + 16 * DEPTH, *a = panel + 16 * DEPTH, *c = a + rows * DEPTH;
    memset(c, 0, rows * c_row * sizeof(float));
    for (size_t k = 0; k < args->inputs; k += DEPTH) {
        const size_t depth = cpu_min(DEPTH, args->inputs - (uint32_t)k);
        const matrix left = matrix_of(a, x, args->x_at + (size_t)row * args->x_row + k, args->x_row, rows, depth);
        for (size_t j = 0; j < c_row; j += 16) {
            const size_t at = args->weight_at + (output + j) * args->inputs + k;
            for (size_t i = 0; i < 16; i++) {
                if (j + i < outputs) load_row(unpacked + i * DEPTH, weight, at + i * args->inputs, depth);
                else memset(unpacked + i * DEPTH, 0, depth * sizeof(float));
            }
            /* Prefetches the next panel while this one is multiplied. */
            for (size_t i = 16; i < 32 && j + i < outputs; i++) prefetch_row(weight, at + i * args->inputs, depth);
            pack16(panel, unpacked, DEPTH, depth);
            product(rows, 16, depth, left.at, left.row, 1, panel, 16, c + j, c_row);
        }
    }
    CPU_NAME(product_store)(task, &task->bindings[BINDING_linear_y], args->y_at + (size_t)row * args->y_row + output, args->y_row,
                            (args->flags & IS_ADD) != 0, c, c_row, rows, outputs);
}

/* At most 8 rows. Reads the weights once, which bounds its speed. */
static void CPU_NAME(linear_few_rows)(const cpu_task *task)
{
    const struct LinearArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_linear_x], *weight = &task->bindings[BINDING_linear_weight];
    const uint32_t blocks = cpu_blocks(args->outputs, task->T0);
    const uint32_t output = task->tile % blocks * task->T0, row = task->tile / blocks * task->T1;
    const size_t outputs = cpu_min(task->T0, args->outputs - output), rows = cpu_min(task->T1, args->rows - row);
    float *converted = task->scratch, *a = converted + FEW_DEPTH, *c = a + rows * FEW_DEPTH;
    memset(c, 0, rows * outputs * sizeof(float));
    for (size_t k = 0; k < args->inputs; k += FEW_DEPTH) {
        const size_t depth = cpu_min(FEW_DEPTH, args->inputs - (uint32_t)k);
        const matrix left = matrix_of(a, x, args->x_at + (size_t)row * args->x_row + k, args->x_row, rows, depth);
        for (size_t o = 0; o < outputs; o++) {
            const size_t at = args->weight_at + (output + o) * args->inputs + k;
            for (size_t i = 0; i < rows; i += 4) {
                const size_t count = rows - i < 4 ? rows - i : 4;
                float sums[4];
                dots(sums, weight, at, left.at + i * left.row, left.row, count, depth, converted);
                for (size_t r = 0; r < count; r++) c[(i + r) * outputs + o] += sums[r];
            }
        }
    }
    CPU_NAME(product_store)(task, &task->bindings[BINDING_linear_y], args->y_at + (size_t)row * args->y_row + output, args->y_row,
                            (args->flags & IS_ADD) != 0, c, outputs, rows, outputs);
}

#undef DEPTH
#undef FEW_DEPTH
