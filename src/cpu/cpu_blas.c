/* The matrix product through a CBLAS. The launch is a single tile, so that as a rule the library's own threads have the
 * processor for themselves; two launches that do not depend on one another may still call it at the same time. */
#include "cpu_vector.h"

#if defined(DARTLM_BLAS)
#include <cblas.h>

enum { OUTPUTS = 128, ROWS = 256, DEPTH = 512 };

void cpu_linear_blas(const cpu_task *task)
{
    const struct LinearArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_linear_x], *weight = &task->bindings[BINDING_linear_weight];
    const cpu_tensor *y = &task->bindings[BINDING_linear_y];
    float *sums = task->scratch, *rights = sums + OUTPUTS * ROWS, *lefts = rights + OUTPUTS * DEPTH;
    for (size_t o = 0; o < args->outputs; o += OUTPUTS) {
        const size_t outputs = cpu_min(OUTPUTS, args->outputs - (uint32_t)o);
        for (size_t t = 0; t < args->rows; t += ROWS) {
            const size_t rows = cpu_min(ROWS, args->rows - (uint32_t)t);
            for (size_t k = 0; k < args->inputs; k += DEPTH) {
                const size_t depth = cpu_min(DEPTH, args->inputs - (uint32_t)k);
                const matrix left = matrix_of(lefts, x, args->x_at + t * args->x_row + k, args->x_row, rows, depth);
                const matrix right = matrix_of(rights, weight, args->weight_at + o * args->inputs + k, args->inputs,
                                               outputs, depth);
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)outputs, (int)depth, 1.0f, left.at,
                            (int)left.row, right.at, (int)right.row, k ? 1.0f : 0.0f, sums, (int)outputs);
            }
            for (size_t i = 0; i < rows; i++) {
                const size_t at = args->y_at + (t + i) * args->y_row + o;
                if (args->flags & IS_ADD) axpy(sums + i * outputs, 1.0f, row_of(lefts, y, at, outputs), outputs);
                store_row(y, at, sums + i * outputs, outputs);
            }
        }
    }
}
#endif
