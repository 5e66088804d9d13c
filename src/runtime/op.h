/* The parts of an op: operands, checks, scratch memory, launches.
 *
 * An op describes its tensors in a struct of op_operand and checks all of them with OP_CHECK. For each launch it picks a variant
 * with op_kernel, which sets the tile sizes T0 and T1, and records the launch with OP_LAUNCH, which binds operands by name:
 *
 *     struct { op_operand x, y; } o = {.x = {"x", args->x, OP_FLOAT | OP_VIEW, T, W}, .y = {"y", args->y, OP_FLOAT | OP_VIEW, T, W}};
 *     if (!OP_CHECK(&call, o)) return op_status(&call);
 *     struct ConvertArgs k = {.rows = T, .width = W};
 *     op_kernel(&call, KERNEL_convert, T, 0);
 *     OP_LAUNCH(&call, &k, base_ceil_div((uint64_t)T * W, call.T0), OP_ROWS(convert, x, &o.x, k), OP_ROWS(convert, y, &o.y, k));
 *
 * Every function does nothing once the stream has failed. An op calls op_begin first and op_end last; src/ops/dense/dense.c has
 * complete examples. */
#ifndef DART_OP_H
#define DART_OP_H

#include "device.h"

/* What a tensor argument may be: its dtypes, and bits of layout. */
enum {
    OP_F32 = 1 << DART_F32,
    OP_FLOAT = 1 << DART_F32 | 1 << DART_F16 | 1 << DART_BF16,
    OP_I32 = 1 << DART_I32,
    OP_QUANTISED = 1 << DART_Q8 | 1 << DART_Q4, /* width and offset count bytes */
    OP_VIEW = 1 << 8,     /* may have rows farther apart than their width */
    OP_OPTIONAL = 1 << 9, /* may be absent: buffer is NULL */
    OP_ALIGNED = 1 << 10  /* must start at a multiple of 64 elements */
};

/* A tensor of rows x width elements, the caller's or scratch. `name` stands in messages, `kinds` are bits of the enum above. */
typedef struct op_operand {
    const char *name;
    dart_tensor of;
    int kinds;
    uint64_t rows, width;
} op_operand;

/* A call of an op while it is recorded. `op` names it in messages. */
typedef struct op_call {
    dart_stream *stream;
    const char *op;
    const kernel_row *row; /* of the kernel being launched; never NULL */
    uint32_t T0, T1;       /* tile sizes of the row; where the row says 0, the op sets them between op_kernel and OP_LAUNCH */
} op_call;

/* Initialises call. DART_OK, or the stream's sticky failure; DART_INVALID_ARGUMENT when the recording has been submitted. */
dart_status op_begin(op_call *call, dart_stream *stream, const char *op);
/* Makes the scratch memory available to later ops. Returns the stream's status. */
dart_status op_end(op_call *call);
/* The stream's status. */
dart_status op_status(const op_call *call);
/* Fails the stream with code and the text "op: format", unless it has failed already. Returns the stream's status. */
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
/* Whether each operand has a dtype and layout that its `kinds` allow, lies on this device and inside its buffer. Fails the stream
 * otherwise. */
bool op_check(op_call *call, const op_operand *operands, size_t count);
/* op_check of a struct whose members are all op_operand. */
#define OP_CHECK(call, operands) op_check((call), (const op_operand *)&(operands), sizeof(operands) / sizeof(op_operand))

/* Scratch memory of the stream, undefined contents, valid until op_end. Absent on failure. */
op_operand op_scratch(op_call *call, dart_dtype dtype, uint64_t rows, uint64_t width);
/* i32 counters that are 0, by which the tiles of a kernel find out which of them finishes last. The kernel must leave them 0. All
 * launches that use tickets share the memory, so that barriers keep them apart. */
op_operand op_tickets(op_call *call, uint64_t elements);
/* i32 words through which the workgroups of one launch pass values to one another; 0 at first, then what the launches with posts, which alone use
 * them, have left there. */
op_operand op_posts(op_call *call, uint64_t elements);
/* One i32, 0. A kernel whose workgroups wait for one another sets it where one of them has waited in vain: the submission's wait fails then. */
op_operand op_stuck(op_call *call);
/* i32 words of the host's, for this recording. */
op_operand op_table(op_call *call, const uint32_t *words, uint64_t count);
/* Where kernels find the operand's first element; 0: not by address. */
uint64_t op_address(const op_call *call, const op_operand *operand);
/* The operand itself if present, else f32 scratch memory of its shape. */
op_operand op_kept(op_call *call, const op_operand *operand);

/* FITS_F16 or FITS_BF16 when both tensors are of that type, else 0. */
uint32_t op_fits_16bit(const dart_tensor *a, const dart_tensor *b);
/* Whether offset and row pitch are multiples of 8 elements, so that every row of 16-bit elements starts at a multiple of 16 bytes. */
bool op_fits_rows(const op_operand *operand);

/* ---- Launches ---- */

/* Picks the row of the kernel for a call with these rows and traits (FITS_...), and sets call->row, T0 and T1. Fails the stream
 * with DART_UNSUPPORTED when no row is eligible. */
void op_kernel(op_call *call, kernel_id id, uint32_t rows, uint32_t traits);
/* Whether to launch kernel `one`, which fuses `other` and the launch before it: if `one` has an eligible row, unless the device
 * option `variant` names a row that only `other` has. */
bool op_prefers(const op_call *call, kernel_id one, kernel_id other, uint32_t rows, uint32_t traits);

/* The row of the kernel that the device takes by itself, whatever a stream is told to take, as states are made before there are streams. NULL if none
 * runs there. */
const kernel_row *op_row_on(const dart_device *device, kernel_id id, uint32_t rows, uint32_t traits);

/* An operand as a binding of a kernel. Absent operands stay unbound. */
typedef struct op_binding {
    uint32_t slot;
    const op_operand *operand;
    uint32_t *at;  /* set to the index of the operand's first element within the binding; NULL: the index must be 0 (OP_ALIGNED) */
    uint32_t *row; /* set to the elements from one row to the next; NULL: the kernel does not need them */
} op_binding;
/* Binds an operand as `name` of the kernel. OP_AT also sets args.name_at; OP_ROWS sets args.name_at and args.name_row. */
#define OP_WHOLE(kernel, name, operand) {BINDING_##kernel##_##name, (operand), NULL, NULL}
#define OP_AT(kernel, name, operand, args) {BINDING_##kernel##_##name, (operand), &(args).name##_at, NULL}
#define OP_ROWS(kernel, name, operand, args) {BINDING_##kernel##_##name, (operand), &(args).name##_at, &(args).name##_row}

/* Records a launch of the picked row. Sets the first field of args to tiles. Does nothing when tiles is 0. Fails the stream with
 * DART_UNSUPPORTED when an operand exceeds max_binding_bytes. */
void op_launch(op_call *call, void *args, uint64_t tiles, const op_binding *bindings, size_t count);
#define OP_LAUNCH(call, args, tiles, ...) \
    op_launch((call), (args), (tiles), (const op_binding[]){__VA_ARGS__}, sizeof((const op_binding[]){__VA_ARGS__}) / sizeof(op_binding))

/* The most chunks of S tokens that a piece of L tokens touches; with seq the piece may start inside a chunk. */
static inline uint32_t op_chunks(uint32_t L, uint32_t S, bool with_seq)
{
    return L == 0 || S == 0 ? 0 : (uint32_t)base_ceil_div((uint64_t)L + (with_seq ? S - 1 : 0), S);
}

/* How the sequences of a call lie in its token-major tensors: L rows apart, or packed (cu: shaders/args.h, HAS_CU). */
typedef struct op_layout {
    op_operand seq;  /* what binds as seq: positions and counts, cu, or nothing */
    uint64_t rows;   /* of a token-major tensor: B L, or T */
    uint32_t flags;  /* HAS_SEQ, HAS_CU or 0 */
    uint32_t traits; /* FITS_UNPACKED unless packed */
    uint32_t B, L, T;
} op_layout;
/* Checks B, L, T, seq and cu, but not that seq and cu lie on the device (OP_CHECK of layout->seq does). Returns the stream's status. */
dart_status op_lay_out(op_call *call, op_layout *layout, uint32_t B, uint32_t L, uint32_t T, const dart_tensor *seq, const dart_tensor *cu);
static inline bool op_packed(const op_layout *layout) { return (layout->flags & HAS_CU) != 0; }
/* Slots of pieces of at most `size` tokens: B times those of L tokens, `each`, or T / size + B. */
static inline uint64_t op_slots(const op_layout *layout, uint64_t each, uint32_t size)
{
    return op_packed(layout) ? (uint64_t)layout->T / size + layout->B : layout->B * each;
}

/* Multiprocessors of the device; 128 where the driver does not tell. */
uint32_t op_multiprocessors(const op_call *call);
/* The largest power of two that is not above op_multiprocessors. Thresholds of tile sizes were measured at powers of two. */
uint32_t op_wave(const op_call *call);
/* The most bytes of an operand that fit a binding wherever the operand starts: max_binding_bytes less BACKEND_ALIGN. */
uint64_t op_binding_limit(const op_call *call);

#endif
