/* A stream as the ops see it: checks of arguments, scratch memory, launches. */
#ifndef DART_STREAM_H
#define DART_STREAM_H

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

/* An op in the making: `op` names it in messages. Every function below does nothing once the stream has failed. */
typedef struct op_call {
    dart_stream *stream;
    const char *op;
    const kernel_row *row; /* of the kernel being launched; never NULL */
    backend_launch launch;
} op_call;

/* DART_OK, or the stream's sticky failure. Takes the position of the scratch memory. */
dart_status op_begin(op_call *call, dart_stream *stream, const char *op);
/* Gives scratch memory back to later ops; returns the stream's status. */
dart_status op_end(op_call *call);
dart_status op_fail(op_call *call, dart_status code, const char *format, ...) DART_PRINTF(3, 4);
#define OP_REQUIRE(call, condition, ...) \
    do { \
        if (!(condition)) return op_fail((call), DART_INVALID_ARGUMENT, __VA_ARGS__); \
    } while (0)

static inline bool op_has(const dart_tensor *tensor) { return tensor->buffer != NULL; }
/* Elements from one row to the next. */
static inline uint32_t op_row(const dart_tensor *tensor, uint64_t width)
{
    return (uint32_t)(tensor->row != 0 ? tensor->row : width);
}
/* Is the tensor of rows x width what `kinds` allows, on this device, and inside its buffer? */
bool op_check(op_call *call, const char *name, const dart_tensor *tensor, int kinds, uint64_t rows, uint64_t width);
/* f32 scratch until op_end; absent tensor on failure. */
dart_tensor op_scratch(op_call *call, uint64_t elements);
/* That many zeros (i32) for a kernel that leaves them zero again, as tickets by which its tiles find out which is done last.
 * Launches that use them follow one another. */
dart_tensor op_tickets(op_call *call, uint64_t elements);
/* The tensor itself where it is given, else scratch. */
dart_tensor op_kept(op_call *call, const dart_tensor *tensor, uint64_t elements);

/* Opens a launch of the kernel: picks the row for that many rows of work and the traits (FITS_...) of the call. */
void op_kernel(op_call *call, kernel_id id, uint32_t rows, uint32_t traits);
/* Is kernel `one`, which does what `other` and a launch before it do, to be taken? Where it has a row for the call, unless a variant is
 * forced that only `other` has. */
bool op_prefers(const op_call *call, kernel_id one, kernel_id other, uint32_t rows, uint32_t traits);
/* Does dart_norm_linear multiply matrices in this call? Where it does not, a norm and a product of its result are faster from
 * some rows on. */
bool op_norm_linear_has_matrices(const dart_device *device, const dart_norm_linear_args *args);
/* FITS_F16 or FITS_BF16 when both tensors are of that type, else 0. */
uint32_t op_fits_half(const dart_tensor *a, const dart_tensor *b);
/* Does each row of the tensor, and each 8 elements of it, start at a multiple of 16 bytes (16-bit elements)? */
bool op_fits_rows(const dart_tensor *tensor, uint64_t width);
/* Binds `elements` elements from where the tensor starts; returns the index of the first one within the binding.
 * An absent tensor stays unbound. */
uint32_t op_bind(op_call *call, uint32_t slot, const dart_tensor *tensor, uint64_t elements);
/* As op_bind for rows x width of a view. */
uint32_t op_bind_rows(op_call *call, uint32_t slot, const dart_tensor *tensor, uint64_t rows, uint64_t width);
/* Launches with the arguments, whose first field is set to tiles. Nothing to do when tiles is 0. */
void op_launch(op_call *call, void *args, uint64_t tiles);

/* Largest number of bytes a binding can have, allowing for its alignment. */
uint64_t op_binding_limit(const op_call *call);
dart_status op_status(const op_call *call);

#endif
