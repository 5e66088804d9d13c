/* y = x weight^T with quantised weights. */
#include "base/quantised.h"
#if defined(CPU_AVX2)
#include "cpu_quantised_avx2.h"
#else
static inline void unpack_row(float *to, dart_dtype dtype, const uint8_t *row, size_t width, size_t first, size_t count)
{
    quantised_read(dtype, row, width, first, count, to);
}
#endif

#define DEPTH 256u       /* inputs of a block of the product of many rows */
#define FEW_DEPTH 4096u  /* inputs that few rows keep */
#define QUANTISED_ROWS 8u   /* T1 of the rows `few` */

/* The type of a binding of quantised rows: two bits, 0 or 1. */
static dart_dtype CPU_NAME(quantised_dtype)(const cpu_tensor *weight) { return weight->dtype == DART_F32 ? DART_Q8 : DART_Q4; }

/* As linear, whose panels of 16 outputs are unpacked here. Scratch: x as f32 (T1 x DEPTH), a panel, and sums (T1 x T0). */
void CPU_NAME(linear_quantised)(const cpu_task *task)
{
    const struct LinearQuantisedArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_linear_quantised_x];
    const uint8_t *weight = (const uint8_t *)task->bindings[BINDING_linear_quantised_weight].data + args->weight_at;
    const dart_dtype dtype = CPU_NAME(quantised_dtype)(&task->bindings[BINDING_linear_quantised_weight]);
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
            const uint8_t *from = weight + (output + j) * (size_t)args->weight_row;
            for (size_t i = 0; i < 16; i++) {
                if (j + i < outputs) unpack_row(unpacked + i * DEPTH, dtype, from + i * args->weight_row, args->inputs, k, depth);
                else memset(unpacked + i * DEPTH, 0, depth * sizeof(float));
            }
            pack16(panel, unpacked, DEPTH, depth);
            product(rows, 16, depth, left.at, left.row, 1, panel, 16, c + j, c_row);
        }
    }
    CPU_NAME(product_store)(task, &task->bindings[BINDING_linear_quantised_y], args->y_at + (size_t)row * args->y_row + output, args->y_row,
                            (args->flags & IS_ADD) != 0, c, c_row, rows, outputs);
}

#if defined(CPU_AVX2)
/* At most QUANTISED_ROWS rows. x becomes 16-bit numbers with a scale a block, so that a block is two multiplications of 16 numbers each, whose sums
 * are exact: each of the eight sums of a block adds four products of at most 127 x 32,767, which is below 2^24. Scratch: x and its scales. */
void cpu_linear_quantised_few_avx2(const cpu_task *task)
{
    const struct LinearQuantisedArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_linear_quantised_x];
    const uint8_t *weight = (const uint8_t *)task->bindings[BINDING_linear_quantised_weight].data + args->weight_at;
    const dart_dtype dtype = CPU_NAME(quantised_dtype)(&task->bindings[BINDING_linear_quantised_weight]);
    const uint32_t blocks = cpu_blocks(args->outputs, task->T0);
    const uint32_t output = task->tile % blocks * task->T0, row = task->tile / blocks * task->T1;
    const size_t outputs = cpu_min(task->T0, args->outputs - output), rows = cpu_min(task->T1, args->rows - row);
    const size_t part = FEW_DEPTH / QUANTISED_BLOCK;
    /* rows of FEW_DEPTH 16-bit numbers, of `part` scales and of `part` sums of blocks */
    int16_t *numbers = (int16_t *)(void *)(task->scratch + FEW_DEPTH);
    float *scales = task->scratch + FEW_DEPTH + QUANTISED_ROWS * FEW_DEPTH / 2;
    float *sums = scales + QUANTISED_ROWS * part, *c = sums + QUANTISED_ROWS * part;
    memset(c, 0, rows * outputs * sizeof(float));
    for (size_t k = 0; k < args->inputs; k += FEW_DEPTH) {
        const size_t depth = cpu_min(FEW_DEPTH, args->inputs - (uint32_t)k);
        for (size_t r = 0; r < rows; r++) {
            const float *from = row_of(task->scratch, x, args->x_at + (row + r) * (size_t)args->x_row + k, depth);
            round_blocks(numbers + r * FEW_DEPTH, scales + r * part, sums + r * part, from, depth);
        }
        for (size_t o = 0; o < outputs; o++) {
            const uint8_t *w = weight + (output + o) * (size_t)args->weight_row;
            for (size_t i = 0; i < rows; i += 4) {
                const size_t count = rows - i < 4 ? rows - i : 4;
                float found[4];
                quantised_dots(found, dtype, w, args->inputs, k, depth, numbers + i * FEW_DEPTH, FEW_DEPTH, scales + i * part,
                               sums + i * part, part, count);
                for (size_t r = 0; r < count; r++) c[(i + r) * outputs + o] += found[r];
            }
        }
    }
    CPU_NAME(product_store)(task, &task->bindings[BINDING_linear_quantised_y], args->y_at + (size_t)row * args->y_row + output, args->y_row,
                            (args->flags & IS_ADD) != 0, c, outputs, rows, outputs);
}
#endif

#undef DEPTH
#undef FEW_DEPTH
#undef QUANTISED_ROWS
