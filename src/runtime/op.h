/* What ops are made of: operands stated once, checks, scratch memory, launches.
 *
 * An op says what its tensors are in a struct of op_operand, checks all of them with OP_CHECK, and for each launch picks a variant
 * with op_kernel, which tells the tile sizes, and runs it with OP_LAUNCH, which binds operands by name:
 *
 *     struct { op_operand x, y; } o = {.x = {"x", args->x, OP_FLOAT | OP_VIEW, T, W}, .y = {"y", args->y, OP_FLOAT | OP_VIEW, T, W}};
 *     if (!OP_CHECK(&call, o)) return op_status(&call);
 *     struct ConvertArgs k = {.rows = T, .width = W};
 *     op_kernel(&call, KERNEL_convert, T, 0);
 *     OP_LAUNCH(&call, &k, base_ceil_div((uint64_t)T * W, call.T0), OP_ROWS(convert, x, &o.x, k), OP_ROWS(convert, y, &o.y, k));
 *
 * Every function does nothing once the stream has failed. */
#ifndef DART_OP_H
#define DART_OP_H

#include "device.h"

/* What a tensor argument may be. */
enum {
    OP_F32 = 1 << DART_F32,
    OP_FLOAT = 1 << DART_F32 | 1 << DART_F16 | 1 << DART_BF16,
    OP_I32 = 1 << DART_I32,
    OP_VIEW = 1 << 8,     /* may have rows farther apart than their width */
    OP_OPTIONAL = 1 << 9, /* may be absent */
    OP_ALIGNED = 1 << 10  /* must start at a multiple of 64 elements */
};

/* A tensor of rows x width: the caller's, as `name` in messages, or scratch. */
typedef struct op_operand {
    const char *name;
    dart_tensor of;
    int kinds;
    uint64_t rows, width;
} op_operand;

/* An op in the making: `op` names it in messages. */
typedef struct op_call {
    dart_stream *stream;
    const char *op;
    const kernel_row *row; /* of the kernel being launched; never NULL */
    uint32_t T0, T1;       /* its tile sizes; where the row says 0, the op sets them between op_kernel and OP_LAUNCH */
} op_call;

/* DART_OK, or the stream's sticky failure. Takes the position of the scratch memory. */
dart_status op_begin(op_call *call, dart_stream *stream, const char *op);
/* Gives scratch memory back to later ops; returns the stream's status. */
dart_status op_end(op_call *call);
dart_status op_status(const op_call *call);
dart_status op_fail(op_call *call, dart_status code, const char *format, ...) DART_PRINTF(3, 4);
#define OP_REQUIRE(call, condition, ...) \
    do { \
        if (!(condition)) return op_fail((call), DART_INVALID_ARGUMENT, __VA_ARGS__); \
    } while (0)

/* ---- Operands ---- */

static inline bool op_has(const dart_tensor *tensor) { return tensor->buffer != NULL; }
/* Elements from one row to the next. */
static inline uint32_t op_row(const op_operand *operand)
{
    return (uint32_t)(operand->of.row != 0 ? operand->of.row : operand->width);
}
/* Is each operand what its `kinds` allow, on this device, and inside its buffer? */
bool op_check(op_call *call, const op_operand *operands, size_t count);
/* For a struct that has operands as its only members. */
#define OP_CHECK(call, operands) op_check((call), (const op_operand *)&(operands), sizeof(operands) / sizeof(op_operand))

/* Scratch until op_end; absent on failure. */
op_operand op_scratch(op_call *call, dart_dtype dtype, uint64_t rows, uint64_t width);
/* That many zeros (i32) for a kernel that leaves them zero again, as tickets by which its tiles find out which is done last.
 * Launches that use them follow one another. */
op_operand op_tickets(op_call *call, uint64_t elements);
/* The operand itself where it is given, else f32 scratch in its place. */
op_operand op_kept(op_call *call, const op_operand *operand);

/* FITS_F16 or FITS_BF16 when both tensors are of that type, else 0. */
uint32_t op_fits_half(const dart_tensor *a, const dart_tensor *b);
/* Does each row of the operand, and each 8 elements of it, start at a multiple of 16 bytes (16-bit elements)? */
bool op_fits_rows(const op_operand *operand);

/* ---- Launches ---- */

/* Opens a launch of the kernel: picks the row for that many rows of work and the traits (FITS_...) of the call. */
void op_kernel(op_call *call, kernel_id id, uint32_t rows, uint32_t traits);
/* Is kernel `one`, which does what `other` and a launch before it do, to be taken? Where it has a row for the call, unless a variant is
 * forced that only `other` has. */
bool op_prefers(const op_call *call, kernel_id one, kernel_id other, uint32_t rows, uint32_t traits);

/* An operand as a binding of a kernel. Absent operands stay unbound. */
typedef struct op_binding {
    uint32_t slot;
    const op_operand *operand;
    uint32_t *at;  /* gets the index of the operand's first element within the binding; NULL: it is 0, the operand is OP_ALIGNED */
    uint32_t *row; /* gets the elements from one row to the next; NULL: rows follow one another, or their distance is known */
} op_binding;
/* Binding `name` of the kernel; OP_AT sets args.name_at, OP_ROWS args.name_row too. */
#define OP_WHOLE(kernel, name, operand) {BINDING_##kernel##_##name, (operand), NULL, NULL}
#define OP_AT(kernel, name, operand, args) {BINDING_##kernel##_##name, (operand), &(args).name##_at, NULL}
#define OP_ROWS(kernel, name, operand, args) {BINDING_##kernel##_##name, (operand), &(args).name##_at, &(args).name##_row}

/* Launches the picked row with the arguments, whose first field is set to tiles. Nothing to do when tiles is 0. */
void op_launch(op_call *call, void *args, uint64_t tiles, const op_binding *bindings, size_t count);
#define OP_LAUNCH(call, args, tiles, ...) \
    op_launch((call), (args), (tiles), (const op_binding[]){__VA_ARGS__}, sizeof((const op_binding[]){__VA_ARGS__}) / sizeof(op_binding))

/* Chunks of S tokens that a piece of L tokens may touch: with seq it may begin inside one. */
static inline uint32_t op_chunks(uint32_t L, uint32_t S, bool with_seq)
{
    return L == 0 || S == 0 ? 0 : (uint32_t)base_ceil_div((uint64_t)L + (with_seq ? S - 1 : 0), S);
}

/* Multiprocessors of the device; where the driver does not say, those of the devices that tile sizes were measured on. */
uint32_t op_multiprocessors(const op_call *call);
/* The largest power of two that is not above them: thresholds were measured at powers of two. */
uint32_t op_wave(const op_call *call);
/* Largest number of bytes a binding can have, allowing for its alignment. */
uint64_t op_binding_limit(const op_call *call);

#endif
