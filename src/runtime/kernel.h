/* The table of kernels as data, and the choice of a row. */
#ifndef DART_KERNEL_H
#define DART_KERNEL_H

#include "base/base.h"
#include "shaders/args.h"

#define KERNEL_MAX_BINDINGS 14
#define KERNEL_MAX_STORAGE 13 /* of a kernel with SPIRV rows: storage buffers that a shader stage must have */
#define KERNEL_MAX_ARGS 128

typedef enum kernel_id {
#define KERNEL(id, Args) KERNEL_##id,
#include "kernels.def"
    KERNEL_COUNT
} kernel_id;

typedef enum kernel_access { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_READ_WRITE = 3 } kernel_access;

typedef struct kernel_binding {
    const char *name;
    kernel_access access;
} kernel_binding;

typedef struct kernel_info {
    const char *name;
    uint32_t args_size;
    uint32_t bindings_count;
    kernel_binding bindings[KERNEL_MAX_BINDINGS];
} kernel_info;
extern const kernel_info kernel_table[KERNEL_COUNT];

/* Traits of a call, stated by the op: a row that names some is taken only where the call has them. What a device must have is
 * told by its capabilities (dart_capability). */
typedef enum kernel_trait {
    FITS_F16 = 1 << 0,         /* the operands of the products are all f16 */
    FITS_BF16 = 1 << 1,        /* ... all bf16 */
    FITS_HALF = 1 << 2,        /* ... all of 16 bits, of either kind */
    FITS_TILES = 1 << 3,       /* sizes are multiples of 16; offsets and row pitches of 8 elements, so that 16-byte loads and
                                  whole matrix tiles work */
    FITS_P64 = 1 << 4,         /* P, or D of softmax attention, is at most 64 */
    FITS_D64 = 1 << 5,         /* heads of softmax attention are 64 wide */
    FITS_N128_P64 = 1 << 6,
    FITS_SCAN = 1 << 7,        /* chunks of at most 256 tokens, N at most 128, P 16, 32 or 64 */
    FITS_FEWEST_TILES = 1 << 8, /* linear: y is below 32 tiles of 64 x 64 */
    FITS_FEW_TILES = 1 << 9,   /* linear: y is below 256 tiles of 64 x 64, which would leave much of a large device idle */
    FITS_MANY_TILES = 1 << 10  /* linear: y is at least 1536 of them, enough for larger ones */
} kernel_trait;
/* Does the row compute with cooperative matrices? Then `local` counts subgroups. */
#define ROW_HAS_MATRIX(row) (((row)->needs & DART_CAP_MATRIX) != 0)

/* One variant. `slot` numbers the rows of a backend from 0 in table order: backends keep code, modules and
 * functions in arrays of that order, made from the same file. */
typedef struct kernel_row {
    kernel_id id;
    const char *variant;
    dart_backend_kind backend;
    uint32_t slot;
    uint32_t needs; /* of the device: dart_capability bits */
    uint32_t fits;  /* of the call: kernel_trait bits */
    uint32_t T0, T1;
    uint32_t max_rows;
    uint32_t local; /* invocations of a workgroup (Vulkan); subgroups where the row has matrices */
} kernel_row;
extern const kernel_row kernel_rows[];
extern const uint32_t kernel_rows_count;

/* Bindings of the ids in order, e.g. BINDING_linear_weight. */
enum {
#define KERNEL(id, Args) BINDING_##id##_base, BINDING_##id##_reset = -1,
#define BIND(id, name, access) BINDING_##id##_##name,
#include "kernels.def"
    BINDING_end
};

/* The first row of that backend and kernel that the device's capabilities and the call's traits allow and rows fits; variant, when
 * not NULL, restricts the choice for kernels that have an eligible row of that name. NULL when there is none. */
const kernel_row *kernel_pick(dart_backend_kind backend, kernel_id id, uint32_t capabilities, uint32_t traits, uint32_t rows, const char *variant);
/* Has the device what the row needs? */
static inline bool kernel_runs_on(const kernel_row *row, const dart_device_info *info)
{
    return row->backend == info->backend && (row->needs & ~info->capabilities) == 0;
}

#endif
