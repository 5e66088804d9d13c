/* The table of kernels as data, and the choice of a row. */
#ifndef DART_KERNEL_H
#define DART_KERNEL_H

#include "base.h"
#include "../shaders/args.h"

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

/* Facts about a call, beside the capabilities of the device: a row that names some is taken only where the op states
 * them. Bits above those of dart_capability. */
enum {
    FITS_FEWEST_TILES = 1 << 20, /* linear: y is below 32 tiles of 64 x 64 */
    FITS_SCAN = 1 << 21,    /* chunks of at most 256 tokens, N at most 128, P 16, 32 or 64 */
    FITS_HALF = 1 << 22,    /* the operands of the products all have 16 bits, of either kind */
    FITS_P64 = 1 << 23,     /* P, or D of softmax attention, is at most 64 */
    FITS_F16 = 1 << 24,     /* the operands of the products are all f16 */
    FITS_BF16 = 1 << 25,    /* ... all bf16 */
    FITS_TILES = 1 << 26,   /* sizes are multiples of 16; offsets and row pitches of 8 elements, so that 16-byte loads and
                               whole matrix tiles work */
    FITS_N128_P64 = 1 << 27,
    FITS_D64 = 1 << 28,     /* heads of softmax attention are 64 wide */
    FITS_FEW_TILES = 1 << 29,  /* linear: y is below 256 tiles of 64 x 64, which would leave much of a large device idle */
    FITS_MANY_TILES = 1 << 30, /* linear: y is at least 1536 of them, enough for larger ones */
    FITS_ALL = FITS_SCAN | FITS_HALF | FITS_P64 | FITS_F16 | FITS_BF16 | FITS_TILES | FITS_N128_P64 | FITS_D64 |
               FITS_FEWEST_TILES | FITS_FEW_TILES | FITS_MANY_TILES
};
/* Does the row compute with cooperative matrices? Then `local` counts subgroups. */
#define ROW_HAS_MATRIX(row) (((row)->capabilities & DART_CAP_MATRIX) != 0)

/* One variant. `slot` numbers the rows of a backend from 0 in table order: backends keep code, modules and
 * functions in arrays of that order, made from the same file. */
typedef struct kernel_row {
    kernel_id id;
    const char *variant;
    dart_backend_kind backend;
    uint32_t slot;
    uint32_t capabilities; /* and facts */
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

/* The first row of the kernel that the capabilities and facts allow and rows fits; variant, when not NULL, restricts the
 * choice for kernels that have an eligible row of that name. NULL when there is none. */
const kernel_row *kernel_pick(kernel_id id, uint32_t capabilities, uint32_t rows, const char *variant);

#endif
