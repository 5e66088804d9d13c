#include "kernel.h"

#include <stddef.h>
#include <string.h>

const kernel_info kernel_table[KERNEL_COUNT] = {
#define KERNEL(id, Args) \
    [KERNEL_##id].name = #id, [KERNEL_##id].args_size = (uint32_t)sizeof(struct Args), \
    [KERNEL_##id].bindings_count = (uint32_t)sizeof(struct bindings_of_##id),
#define KERNEL_WHOLE(id) [KERNEL_##id].whole = true,
#define KERNEL_BY_ADDRESS(id) [KERNEL_##id].by_address = true,
#define KERNEL_TOGETHER(id, Args, member) [KERNEL_##id].together_at = (uint32_t)offsetof(struct Args, member),
#define BIND(id, binding_name, binding_access) \
    [KERNEL_##id].bindings[BINDING_##id##_##binding_name] = {#binding_name, ACCESS_##binding_access},
#include "kernels.def"
};

#define KERNEL(id, Args) static_assert(sizeof(struct Args) % 4 == 0, "arguments of " #id);
#include "kernels.def"
/* backend_launch.dtypes has two bits for each of the first. */
static_assert(2 * KERNEL_TYPED_BINDINGS <= 32, "bindings of any dtype");

/* A launch of several runs on any device that the backend opens: its rows need nothing, and have CUDA_BLOCK threads, as its file checks. */
enum {
#define CUDA_ROW(id, variant, source, needs, fits, T0, T1, max_rows) CUDA_NEEDS_##id##_##variant = (needs),
#define CUDA_BLAS_ROW(id, variant, fallback, needs, fits, T0, T1, max_rows)
#include "kernels.def"
};
#define CUDA_MERGED(id, variant, last, last_variant, ...) \
    static_assert(CUDA_NEEDS_##id##_##variant == 0 && CUDA_NEEDS_##last##_##last_variant == 0, #id " and " #last " as one launch");
#include "kernels.def"

/* The number of each op's first kernel. */
enum {
#define KERNELS(op) KERNELS_BEFORE_##op, KERNELS_last_##op = KERNELS_BEFORE_##op - 1,
#define KERNEL(id, Args) KERNELS_##id,
#include "kernels.def"
};
static const uint16_t first_kernels[KERNEL_OPS] = {
#define KERNELS(op) [KERNEL_OP_##op] = KERNELS_BEFORE_##op,
#include "kernels.def"
};

kernel_op kernel_op_of(kernel_id id)
{
    uint32_t op = 0;
    while (op + 1 < KERNEL_OPS && first_kernels[op + 1] <= id) op++;
    return (kernel_op)op;
}

/* Position of a row among those of its backend. */
enum {
    CPU_SLOT_start = -1,
#define CPU_ROW(id, variant, needs, fits, T0, T1, max_rows) CPU_SLOT_##id##_##variant,
#include "kernels.def"
    CUDA_SLOT_start = -1,
#define CUDA_ROW(id, variant, source, needs, fits, T0, T1, max_rows) CUDA_SLOT_##id##_##variant,
#include "kernels.def"
    SPIRV_SLOT_start = -1,
#define SPIRV_ROW(id, variant, source, needs, fits, T0, T1, max_rows, local, defines) SPIRV_SLOT_##id##_##variant,
#include "kernels.def"
    SLOT_end
};

/* ROWS_BEFORE_<id>: the place of the kernel's first row in kernel_rows. The rows of a kernel follow its KERNEL line. */
enum {
#define KERNEL(id, Args) ROWS_BEFORE_##id, ROW_last_##id = ROWS_BEFORE_##id - 1,
#define CPU_ROW(id, variant, needs, fits, T0, T1, max_rows) ROW_CPU_##id##_##variant,
#define CUDA_ROW(id, variant, source, needs, fits, T0, T1, max_rows) ROW_CUDA_##id##_##variant,
#define SPIRV_ROW(id, variant, source, needs, fits, T0, T1, max_rows, local, defines) ROW_SPIRV_##id##_##variant,
#include "kernels.def"
};
static const uint16_t first_rows[KERNEL_COUNT] = {
#define KERNEL(id, Args) [KERNEL_##id] = ROWS_BEFORE_##id,
#include "kernels.def"
};

const kernel_row kernel_rows[] = {
#define CPU_ROW(id, variant, needs, fits, T0, T1, max_rows) \
    {KERNEL_##id, #variant, DART_BACKEND_CPU, CPU_SLOT_##id##_##variant, needs, fits, T0, T1, max_rows, 1},
#define CUDA_ROW(id, variant, source, needs, fits, T0, T1, max_rows) \
    {KERNEL_##id, #variant, DART_BACKEND_CUDA, CUDA_SLOT_##id##_##variant, needs, fits, T0, T1, max_rows, 0},
#define SPIRV_ROW(id, variant, source, needs, fits, T0, T1, max_rows, local, defines) \
    {KERNEL_##id, #variant, DART_BACKEND_VULKAN, SPIRV_SLOT_##id##_##variant, needs, fits, T0, T1, max_rows, local},
#include "kernels.def"
};
const uint32_t kernel_rows_count = (uint32_t)COUNT_OF(kernel_rows);

static const struct { uint16_t row, other; } same_bits[] = {
#define SPIRV_SAME_BITS(id, variant, other, other_variant) {ROW_SPIRV_##id##_##variant, ROW_SPIRV_##other##_##other_variant},
#include "kernels.def"
};

const kernel_row *kernel_same_bits(const kernel_row *row)
{
    for (size_t i = 0; i < COUNT_OF(same_bits); i++)
        if (row == &kernel_rows[same_bits[i].row]) return &kernel_rows[same_bits[i].other];
    return NULL;
}

static const uint16_t slower[] = {
#define CUDA_SLOWER(id, variant) ROW_CUDA_##id##_##variant,
#include "kernels.def"
};

bool kernel_is_slower(const kernel_row *row)
{
    for (size_t i = 0; i < COUNT_OF(slower); i++)
        if (row == &kernel_rows[slower[i]]) return true;
    return false;
}

const kernel_row *kernel_pick(dart_backend_kind backend, kernel_id id, kernel_capabilities capabilities, uint32_t traits, uint32_t rows,
                              const char *variant)
{
    const kernel_row *first = NULL;
    for (uint32_t i = first_rows[id]; i < kernel_rows_count && kernel_rows[i].id == id; i++) {
        const kernel_row *row = &kernel_rows[i];
        if (row->backend != backend || (row->needs & ~capabilities.bits) != 0 || (row->fits & ~traits) != 0) continue;
        if (row->max_rows != 0 && rows > row->max_rows) continue;
        if (variant == NULL || strcmp(variant, row->variant) == 0) return row;
        if (first == NULL) first = row;
    }
    return first;
}

uint32_t kernel_needed_buffers(dart_backend_kind backend)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        const bool baseline = row->backend == backend && row->needs == 0 && row->fits == 0;
        if (baseline && kernel_buffers(row->id) > most) most = kernel_buffers(row->id);
    }
    return most;
}
