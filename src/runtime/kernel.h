/* The table of kernels as data, and the choice of a row. */
#ifndef DART_KERNEL_H
#define DART_KERNEL_H

#include "base/base.h"
#include "shaders/args.h"

/* Bindings that may be of any dtype: the first of a kernel, as many as the word `dtypes` has room for. Later ones are f32. */
#define KERNEL_TYPED_BINDINGS 16

typedef enum kernel_id {
#define KERNEL(id, Args) KERNEL_##id,
#include "kernels.def"
    KERNEL_COUNT
} kernel_id;

/* One struct of chars for each kernel: its size is the number of bindings of the kernel. */
struct bindings_of_none {
    char none;
#define KERNEL(id, Args) \
    }; \
    struct bindings_of_##id {
#define BIND(id, name, access) char name;
#include "kernels.def"
};

/* Their sizes are the most bindings and the longest arguments of any kernel. */
union kernel_any_bindings {
#define KERNEL(id, Args) struct bindings_of_##id id;
#include "kernels.def"
};
union kernel_any_args {
#define KERNEL(id, Args) struct Args id;
#include "kernels.def"
};
#define KERNEL_MAX_BINDINGS sizeof(union kernel_any_bindings)
#define KERNEL_MAX_ARGS sizeof(union kernel_any_args)

typedef enum kernel_access { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_READ_WRITE = 3 } kernel_access;

typedef struct kernel_binding {
    const char *name;
    kernel_access access;
} kernel_binding;

typedef struct kernel_info {
    const char *name;
    uint32_t args_size;
    uint32_t bindings_count;
    bool whole; /* launches are not cut into ranges of tiles */
    bool by_address; /* reads and writes memory that no binding names */
    uint32_t together_at; /* where in the arguments the number of neighbouring tiles lies that stay in one range; 0: each tile may begin one */
    kernel_binding bindings[KERNEL_MAX_BINDINGS];
} kernel_info;
extern const kernel_info kernel_table[KERNEL_COUNT];

/* Traits of a call, which the op states: a row is eligible only if the call has all traits that the row names in `fits`. What a
 * row needs of the device is named in `needs` (dart_capability). */
/* These mean the same in all ops. Their bits are numbered here, in any order: two branches that add a trait each conflict instead of sharing one. */
enum {
    TRAIT_F16, TRAIT_BF16, TRAIT_16BIT, TRAIT_WORDS, TRAIT_TILES, TRAIT_UNPACKED, TRAIT_P64, TRAIT_N32_P64, TRAIT_N64_P64, TRAIT_N128_P64,
    TRAITS_SHARED
};
/* TRAIT_<OP>_<NAME>: those of one op are numbered from there on by the lines of its table, which say what they mean. Ops share these bits: a row
 * names traits of its own op only (unit_kernels), and a call states those of the op whose kernel it launches. */
enum {
#define KERNELS(op) TRAITS_OF_##op, TRAITS_before_##op = TRAITS_SHARED - 1,
#define TRAIT(op, name) TRAIT_##op##_##name,
#include "kernels.def"
    TRAITS_end
};
#define TRAIT(op, name) static_assert(TRAIT_##op##_##name < 31, "traits of a call are bits of an enumerator");
#include "kernels.def"
#define FITS(name) FITS_##name = 1 << TRAIT_##name
typedef enum kernel_trait {
    FITS(F16),      /* the operands of the products are all f16 */
    FITS(BF16),     /* the operands of the products are all bf16, or f32 that the row rounds to it */
    FITS(16BIT),    /* the operands of the products have 16 bits each, f16 or bf16, also mixed */
    FITS(WORDS),    /* sizes of rows, offsets and row pitches are multiples of 8 elements, so that loads of 16 bytes work */
    FITS(TILES),    /* the same, and sizes are multiples of 16, so that whole matrix tiles work; f32 may begin at any multiple of 16 bytes */
    FITS(UNPACKED), /* sequences lie L rows apart: no cu */
    FITS(P64),      /* P is at most 64 */
    FITS(N32_P64),  /* N is at most 32 and P at most 64 */
    FITS(N64_P64),  /* N is 64 and P is 64 */
    FITS(N128_P64), /* N is 128 and P is 64 */
#define TRAIT(op, name) FITS(op##_##name),
#include "kernels.def"
} kernel_trait;
#undef FITS
/* The ops, in the order of the table. */
typedef enum kernel_op {
#define KERNELS(op) KERNEL_OP_##op,
#include "kernels.def"
    KERNEL_OPS
} kernel_op;
/* The op whose traits rows of the kernel may name. */
kernel_op kernel_op_of(kernel_id id);
/* Whether the row computes with cooperative matrices. `local` of such a row counts subgroups. */
#define ROW_HAS_MATRIX(row) (((row)->needs & DART_CAP_MATRIX) != 0)
/* Whether the row is a library's (CUDA_BLAS_ROW), which cuts sums into parts itself and rounds no operand. */
#define ROW_IS_LIBRARY(row) (((row)->needs & DART_CAP_CUBLASLT) != 0)

/* One variant. `slot` numbers the rows of a backend from 0 in table order. Backends index their arrays of code, modules and
 * functions by it; the build makes those arrays from the same table. */
typedef struct kernel_row {
    kernel_id id;
    const char *variant;
    dart_backend_kind backend;
    uint32_t slot;
    uint32_t needs; /* of the device: dart_capability bits */
    uint32_t fits;  /* of the call: kernel_trait bits */
    uint32_t T0, T1;   /* tile sizes; 0: the op computes it */
    uint32_t max_rows; /* the row takes calls of at most this many rows; 0: any number */
    uint32_t local; /* invocations of a workgroup (Vulkan); subgroups where the row has matrices */
} kernel_row;
extern const kernel_row kernel_rows[];
extern const uint32_t kernel_rows_count;

/* BINDING_<id>_<name>: the number of a binding within its kernel, e.g. BINDING_linear_weight. */
enum {
#define KERNEL(id, Args) BINDING_##id##_base, BINDING_##id##_reset = -1,
#define BIND(id, name, access) BINDING_##id##_##name,
#include "kernels.def"
    BINDING_end
};

/* Bits of dart_capability. A type of its own, so that traits in their place do not compile. */
typedef struct kernel_capabilities {
    uint32_t bits;
} kernel_capabilities;

/* The first row of the kernel in table order that is eligible: of that backend, with `needs` among capabilities, `fits` among
 * traits, and max_rows 0 or not below rows. When variant is not NULL, an eligible row of that name goes first. NULL when no row is
 * eligible. */
const kernel_row *kernel_pick(dart_backend_kind backend, kernel_id id, kernel_capabilities capabilities, uint32_t traits, uint32_t rows,
                              const char *variant);
/* The row of another kernel that adds up in the same order, so that either leaves the same bits (SPIRV_SAME_BITS); NULL: none is known. */
const kernel_row *kernel_same_bits(const kernel_row *row);
/* Do launches of other kernels that do the same take less time, as the table says (CUDA_SLOWER)? */
bool kernel_is_slower(const kernel_row *row);
/* Can a launch of the row go in ranges of its tiles? Workgroups with cooperative matrices may number their work otherwise; devices with matrices are
 * fast. Arguments that fill the push constants leave no room for where a range begins. */
static inline bool kernel_has_ranges(const kernel_row *row)
{
    const kernel_info *kernel = &kernel_table[row->id];
    return !ROW_HAS_MATRIX(row) && !kernel->whole && kernel->args_size != PUSH_BYTES;
}
/* Buffers that a kernel takes: its bindings, and one for arguments longer than PUSH_BYTES. */
static inline uint32_t kernel_buffers(kernel_id id)
{
    return kernel_table[id].bindings_count + (kernel_table[id].args_size > PUSH_BYTES);
}
/* Whether the device allows as many buffers as the kernel takes. If not, no row of the kernel is eligible. */
static inline bool kernel_fits(kernel_id id, const dart_device_info *info)
{
    return info->max_bindings == 0 || kernel_buffers(id) <= info->max_bindings;
}
/* The most buffers of any kernel with a baseline row of the backend (needs and fits 0): a device that allows fewer cannot be used. */
uint32_t kernel_needed_buffers(dart_backend_kind backend);
/* Whether the row runs on the device. */
static inline bool kernel_runs_on(const kernel_row *row, const dart_device_info *info)
{
    return kernel_fits(row->id, info) && row->backend == info->backend && (row->needs & ~info->capabilities) == 0;
}

#endif
