/* The seam: what a backend provides. This comment is the manual of whoever writes one.
 *
 * A backend finds devices, gives memory, and runs kernels of the table (kernels.def) with bindings, arguments and a
 * number of tiles. It knows nothing of ops, shapes or models. Copy null/, fill the slots, add one line to the list in
 * context.c; the tests reach every device through the public API and need no change.
 *
 * What the callers (context.c, device.c, buffer.c, stream.c) promise:
 *   - Handles are the backend's own opaque pointers; arguments are checked; sizes are above zero.
 *   - device functions may come from several threads at once (memory of one device from two threads, streams of one
 *     device from two threads); one stream is used by one thread at a time.
 *   - Between stream_begin and stream_submit come stream_launch calls. stream_submit may be repeated without
 *     recording again, each time after stream_wait said DART_OK. stream_begin and stream_destroy come when nothing is
 *     in flight (stream.c waits first), memory_destroy and device_destroy too (the caller's duty), except on a lost device.
 *   - A launch whose `barrier` is set must see the writes of all earlier launches of the stream, and its writes must
 *     not overtake their reads. Launches without it may overlap with earlier ones.
 *   - Submissions are ordered with host access: memory_write before submit is seen, memory_read after wait sees.
 *
 * What a backend promises: failures come back as statuses with a text in the device's report (but for DART_TIMEOUT, which
 * callers that poll see often), never as aborts; a failed
 * call leaves nothing behind; destructors accept half-built objects; a lost device answers DART_DEVICE_LOST from then on.
 */
#ifndef DART_BACKEND_H
#define DART_BACKEND_H

#include "kernel.h"

typedef struct backend_binding {
    void *memory;           /* of this device; NULL: absent, bind a dummy */
    uint64_t offset, bytes; /* offset a multiple of BACKEND_ALIGN; bytes > 0 */
} backend_binding;
#define BACKEND_ALIGN 256u

/* A variant made for types and tile sizes: what a backend compiles, where it compiles. */
typedef struct backend_code {
    const kernel_row *row;
    uint32_t dtypes; /* two bits a binding, see args.h */
    uint32_t T0, T1;
} backend_code;

typedef struct backend_launch {
    const kernel_row *row;
    uint32_t dtypes;
    uint32_t T0, T1; /* those of the row, or computed by the op where the row says 0 */
    uint32_t tiles;  /* > 0; equals the first field of args */
    const void *args;
    backend_binding bindings[KERNEL_MAX_BINDINGS]; /* kernel_table[row->id].bindings_count of them */
    bool barrier;
} backend_launch;

typedef struct backend {
    dart_backend_kind kind;
    dart_backend_kind rows; /* whose rows of the table it runs: its own, but for a backend that pretends to be another */
    /* What its kernels are good at, as measured; the model chooses between ways to the same result by them. */
    bool windows_pay;     /* many sequences that decode: windows of tokens (dart_window_...) cost less than a step of each */
    bool few_rows_linear; /* linear reads a long table for few rows faster than dart_norm_linear does */
    /* Loads drivers. *instance is NULL when there is nothing to load, which is no error. */
    dart_status (*instance_create)(const dart_context_options *options, base_report *report, void **instance);
    void (*instance_destroy)(void *instance);
    uint32_t (*device_count)(const void *instance);
    void (*device_info)(const void *instance, uint32_t index, dart_device_info *info); /* order of preference */

    /* capabilities: those of the info less options->without_capabilities. report outlives the device. */
    dart_status (*device_create)(void *instance, uint32_t index, const dart_device_options *options, uint32_t capabilities, base_report *report, void **device);
    void (*device_destroy)(void *device);

    /* Contents undefined. */
    dart_status (*memory_create)(void *device, uint64_t bytes, void **memory);
    void (*memory_destroy)(void *device, void *memory);
    dart_status (*memory_write)(void *device, void *memory, uint64_t offset, const void *data, uint64_t bytes);
    dart_status (*memory_read)(void *device, void *memory, uint64_t offset, void *data, uint64_t bytes);

    dart_status (*stream_create)(void *device, void **stream);
    void (*stream_destroy)(void *device, void *stream);
    dart_status (*stream_begin)(void *device, void *stream);
    dart_status (*stream_launch)(void *device, void *stream, const backend_launch *launch);
    /* Runs the recording `times` times, one run after the other; stream_elapsed tells of all of them together. */
    dart_status (*stream_submit)(void *device, void *stream, uint32_t times);
    dart_status (*stream_wait)(void *device, void *stream, uint64_t timeout_ns);
    dart_status (*stream_elapsed)(void *device, void *stream, uint64_t *ns);
    /* Optional; devices opened with options->profile need it: the time of each of the first `count` launches of the
     * finished run, each from the end of the one before. Sets *count to 0 .. *count: how many were timed. */
    dart_status (*stream_times)(void *device, void *stream, uint64_t *ns, uint32_t *count);

    /* Makes code ready ahead of the first launch (compiles a pipeline). From several threads at once. */
    dart_status (*warm)(void *device, const backend_code *code);
    /* What was compiled, for options->cache of a later device_create: size only when data is NULL. NULL: nothing is ever
     * compiled. The backend recognises its own bytes as those of the same device and driver; that they are whole is seen to. */
    dart_status (*cache_read)(void *device, void *data, size_t *bytes);
} backend;

extern const backend cpu_backend;
extern const backend null_backend;
extern const backend vulkan_backend; /* when built with DARTLM_VULKAN */
extern const backend cuda_backend;   /* when built with DARTLM_CUDA */

#endif
