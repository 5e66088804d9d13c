/* The interface between the library and a backend. This comment is the manual for writing a backend.
 *
 * A backend finds devices, provides memory, and runs kernels of the table (kernels.def) with bindings, arguments and a number of
 * tiles. It knows nothing of ops, shapes or models. docs/adding.md lists the files that a new backend touches.
 *
 * What the callers (context.c, device.c, buffer.c, stream.c) guarantee:
 *   - Handles are opaque pointers that the backend made. Arguments are checked. Sizes are above zero.
 *   - Functions of one device may be called from several threads at once. A stream is used by one thread at a time.
 *   - stream_begin comes first, then stream_launch any number of times, then stream_submit. stream_submit may be repeated
 *     without recording again, each time after stream_wait returned DART_OK.
 *   - stream_begin, stream_destroy, memory_destroy and device_destroy are called when no work that uses the object is in flight,
 *     except on a lost device.
 *
 * What a backend guarantees:
 *   - A launch whose `barrier` is set sees the writes of all earlier launches of the stream, and its writes do not overtake
 *     the reads of earlier launches. A launch without `barrier` may overlap earlier ones.
 *   - Submissions of all streams of a device run in the order of the stream_submit calls, and each sees the writes of earlier ones.
 *     A submission sees every earlier memory_write. A memory_read after stream_wait sees the writes of the submission.
 *   - A failure is a status with a text in the device's report, never an abort. DART_TIMEOUT has no text, since callers that
 *     poll get it often.
 *   - A call that fails frees what it allocated. Destructors accept half-built objects.
 *   - After the device is lost, every call returns DART_DEVICE_LOST.
 */
#ifndef DART_BACKEND_H
#define DART_BACKEND_H

#include "kernel.h"

typedef struct backend_binding {
    void *memory;           /* of this device; NULL: absent, bind a dummy */
    uint64_t offset, bytes; /* offset a multiple of BACKEND_ALIGN; bytes > 0 */
} backend_binding;
#define BACKEND_ALIGN 256u
#define BACKEND_GROUP_KEY 128u /* bytes */

/* A variant with its specialisation: the unit that a backend compiles, if it compiles at run time. */
typedef struct backend_code {
    const kernel_row *row;
    uint32_t dtypes; /* two bits a binding, see shaders/args.h; absent: 0, or that of integers */
    uint32_t T0, T1;
    bool range; /* for launches of a part of the tiles, of backends with `ranges` */
} backend_code;

typedef struct backend_launch {
    const kernel_row *row;
    uint32_t dtypes;
    uint32_t T0, T1; /* tile sizes of the row, or computed by the op where the row says 0 */
    uint32_t tiles;  /* > 0; equals the first field of args */
    uint32_t first, end; /* the tiles to run, 0 to `tiles` unless the backend has `ranges` */
    const void *args;
    backend_binding bindings[KERNEL_MAX_BINDINGS]; /* kernel_table[row->id].bindings_count of them */
    bool barrier;
    bool backwards; /* tile end - 1 is begun first; of devices opened with options->backwards only */
} backend_launch;

/* What a submission waits for before it starts, and what it signals when it has ended. */
typedef struct backend_signal {
    void *semaphore; /* of this device */
    uint64_t value;  /* 0 for a binary one */
} backend_signal;
typedef struct backend_order {
    const backend_signal *waits, *signals;
    uint32_t waits_count, signals_count; /* at most BACKEND_MAX_SIGNALS each */
} backend_order;
#define BACKEND_MAX_SIGNALS 64u

typedef struct backend {
    dart_backend_kind kind;
    dart_backend_kind rows; /* the backend whose rows of the table it runs: `kind`, except for null, which runs Vulkan's */
    bool ranges;   /* stream_launch runs a part of a launch's tiles where it is asked to */
    bool matrices; /* every device multiplies matrices of f16 and bf16 in hardware, and no capability says so (device_has_matrices) */
    /* Loads the driver. *instance is NULL when no driver is installed, which is no error; base_note then says why there are no devices. */
    dart_status (*instance_create)(const dart_context_options *options, base_report *report, void **instance);
    void (*instance_destroy)(void *instance);
    uint32_t (*device_count)(const void *instance);
    void (*device_info)(const void *instance, uint32_t index, dart_device_info *info); /* order of preference */

    /* capabilities: those of device_info, plus options->with_capabilities, less options->without_capabilities. report outlives the
     * device. */
    dart_status (*device_create)(void *instance, uint32_t index, const dart_device_options *options, uint32_t capabilities, base_report *report,
                                 void **device);
    void (*device_destroy)(void *device);

    /* Contents undefined. */
    dart_status (*memory_create)(void *device, uint64_t bytes, void **memory);
    void (*memory_destroy)(void *device, void *memory);
    dart_status (*memory_write)(void *device, void *memory, uint64_t offset, const void *data, uint64_t bytes);
    dart_status (*memory_read)(void *device, void *memory, uint64_t offset, void *data, uint64_t bytes);
    /* Optional: where kernels find the memory, 0 where they cannot (without DART_CAP_ADDRESSES through Vulkan; wrapped buffers of a host). */
    uint64_t (*memory_address)(void *device, const void *memory);
    /* Optional: memory that the host writes often. *beside: memory_write does not wait for launches that have been submitted. A backend
     * without this function must not let memory_write wait for them. */
    dart_status (*memory_create_written)(void *device, uint64_t bytes, void **memory, bool *beside);

    /* Optional: memory with a POSIX file descriptor. memory_create_shared with descriptor -1 makes what can be exported, else takes that of
     * `allocated` bytes; DART_UNSUPPORTED where the device can do one of them only. */
    dart_status (*memory_create_shared)(void *device, uint64_t bytes, int descriptor, uint64_t allocated, void **memory);
    dart_status (*memory_export)(void *device, void *memory, int *descriptor, uint64_t *allocated);
    /* Optional, as memory_create_shared. A descriptor that is imported belongs to the semaphore from then on; after a failure it is the caller's. */
    dart_status (*semaphore_create)(void *device, bool binary, int descriptor, void **semaphore);
    dart_status (*semaphore_export)(void *device, void *semaphore, int *descriptor);
    void (*semaphore_destroy)(void *device, void *semaphore);

    dart_status (*stream_create)(void *device, void **stream);
    void (*stream_destroy)(void *device, void *stream);
    dart_status (*stream_begin)(void *device, void *stream);
    dart_status (*stream_launch)(void *device, void *stream, const backend_launch *launch);
    /* Runs the recording `times` times, one run after the other. stream_elapsed returns the time of all of them together.
     * order: NULL except for a backend with semaphores. */
    dart_status (*stream_submit)(void *device, void *stream, uint32_t times, const backend_order *order);
    dart_status (*stream_wait)(void *device, void *stream, uint64_t timeout_ns);
    dart_status (*stream_elapsed)(void *device, void *stream, uint64_t *ns);
    /* Optional; required for devices opened with options->profile. The times of the first *count launches of the finished run,
     * each from the end of the launch before. Lowers *count to the number of launches that were timed. */
    dart_status (*stream_times)(void *device, void *stream, uint64_t *ns, uint32_t *count);

    /* Optional: sums over the devices of several processes. group_key makes a key on one of them, which every member gives to group_create;
     * that call returns when all have called it. DART_UNSUPPORTED where there is no library for it. group_sum begins to replace the f32 elements
     * of each part by their sums over the members, group_share to bring the bytes of part i from member owners[i] to all others: both behind all
     * that was submitted before, beside what is submitted later, and in the same order of calls at every member. group_wait returns when all that
     * has begun is done. All wait for other members no longer than timeout_ns: then DART_TIMEOUT, which has a text. A failure ends the group. */
    dart_status (*group_key)(void *device, uint8_t key[BACKEND_GROUP_KEY]);
    dart_status (*group_create)(void *device, const uint8_t key[BACKEND_GROUP_KEY], uint32_t rank, uint32_t count, uint64_t timeout_ns,
                                void **group);
    void (*group_destroy)(void *device, void *group); /* what has begun is given up */
    dart_status (*group_sum)(void *device, void *group, const backend_binding *parts, uint32_t count);
    dart_status (*group_share)(void *device, void *group, const backend_binding *parts, const uint32_t *owners, uint32_t count);
    dart_status (*group_wait)(void *device, void *group);

    /* Compiles code ahead of the first launch that uses it. Called from several threads at once. */
    dart_status (*warm)(void *device, const backend_code *code);
    /* Copies the compiled code, for options->cache of a later device_create; with data NULL only its size. NULL for a backend
     * that compiles nothing. The backend must check that cached code belongs to this device and driver. device.c checks that
     * the bytes are complete and undamaged. */
    dart_status (*cache_read)(void *device, void *data, size_t *bytes);
} backend;

extern const backend cpu_backend;
extern const backend null_backend;
extern const backend vulkan_backend; /* when built with DARTLM_VULKAN */
extern const backend cuda_backend;   /* when built with DARTLM_CUDA */

#endif
