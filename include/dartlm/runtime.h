/* dartlm: contexts, devices, buffers, tensors and streams. Part of dartlm.h, whose glossary and laws hold here. */
#ifndef DARTLM_RUNTIME_H
#define DARTLM_RUNTIME_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Contexts and devices ------------------------------------------------------------------------------------ */

typedef struct dart_context dart_context; /* the loaded backends and their devices */
typedef struct dart_device dart_device;   /* one opened device */
typedef struct dart_buffer dart_buffer;   /* memory on a device */
typedef struct dart_stream dart_stream;   /* a recorded sequence of launches */
typedef struct dart_semaphore dart_semaphore; /* orders submissions of several devices */

typedef enum dart_backend_kind {
    DART_BACKEND_CPU = 0,
    DART_BACKEND_VULKAN = 1,
    DART_BACKEND_CUDA = 2,
    DART_BACKEND_NULL = 3 /* records launches and runs none, so outputs keep their contents; listed with dart_context_options.with_null */
} dart_backend_kind;
/* "cpu", "vulkan", "cuda", "null". */
DART_API const char *dart_backend_name(dart_backend_kind kind);

typedef enum dart_device_type {
    DART_DEVICE_CPU = 0,
    DART_DEVICE_DISCRETE = 1,
    DART_DEVICE_INTEGRATED = 2,
    DART_DEVICE_VIRTUAL = 3,
    DART_DEVICE_OTHER = 4
} dart_device_type;

typedef struct dart_context_options {
    dart_log_function log; /* NULL: silent */
    void *log_user;
    dart_log_level log_level;   /* the least urgent level that is delivered */
    bool with_null;             /* list the null backend's device */
    bool without_vulkan;        /* do not load a Vulkan driver */
    bool without_cuda;          /* do not load the CUDA driver */
    const char *only_for;       /* the spec of the one device that will be opened, as in dart_device_options; NULL: any. Drivers whose
                                   devices it cannot mean are not loaded, and those that come after the device that it means are not
                                   either: CUDA's driver makes short prefills through Vulkan slower in the process that has loaded it
                                   (docs/lab/2026-11-26-then-and-now.md) */
    bool vulkan_validation;     /* enable the Khronos validation layer, whose messages go to the log as warnings and
                                   errors; DART_UNSUPPORTED when the layer is not installed */
} dart_context_options;

/* Loads the drivers that are installed and lists their devices. A missing driver is no error: its devices are absent.
 * options may be NULL. Blocking. */
DART_API dart_status dart_context_create(const dart_context_options *options, dart_context **context);
DART_API void dart_context_destroy(dart_context **context);
/* Copies the text of the last failure on this context (always terminated, possibly cut), returns its full length. */
DART_API size_t dart_context_error(const dart_context *context, char *text, size_t size);

/* What a device offers beyond the minimum of its backend, as bits. Each variant of a kernel names the bits that it needs. */
typedef enum dart_capability {
    DART_CAP_AVX2 = 1 << 0,        /* CPU: AVX2, FMA and F16C */
    DART_CAP_BLAS = 1 << 1,        /* CPU: built with a CBLAS */
    DART_CAP_STORE16 = 1 << 2,     /* Vulkan: 16-bit elements in storage buffers */
    DART_CAP_SUBGROUP = 1 << 3,    /* Vulkan: subgroup arithmetic in compute shaders, with full subgroups of 4 to 64 lanes */
    DART_CAP_FLOAT16 = 1 << 4,     /* Vulkan: 16-bit float arithmetic in shaders; not reported for AMD's GCN, where it is slower */
    DART_CAP_LARGE = 1 << 5,       /* Vulkan: workgroups of 256 invocations and 32 KiB of shared memory */
    DART_CAP_SHARED48 = 1 << 6,    /* Vulkan: 48 KiB of shared memory, 512 invocations */
    DART_CAP_MATRIX_F16 = 1 << 7,  /* Vulkan: cooperative matrices (KHR) of f16 with f32 sums */
    DART_CAP_MATRIX_BF16 = 1 << 8, /* Vulkan: cooperative matrices of bf16 with f32 sums */
    DART_CAP_MATRIX2 = 1 << 9,     /* Vulkan: NV_cooperative_matrix2 (reductions, conversions, element functions), products of
                                      16 x 16 x 16 by subgroups of 32 lanes */
    DART_CAP_WIDE = 1 << 10,       /* Vulkan: subgroups of 32 lanes or more */
    DART_CAP_REGISTERS = 1 << 11,  /* Vulkan: with 128 registers an invocation, enough invocations run to hide the latency of
                                      memory; absent on AMD's GCN, Adreno and Mali */
    DART_CAP_MATRIX_CUTS = 1 << 12,   /* Vulkan: converting a matrix of f32 sums to bf16 truncates instead of rounding. No
                                         specification promises that; a probe when the device is opened decides. */
    DART_CAP_MATRIX_PLACES = 1 << 13, /* Vulkan: an invocation holds the same elements of a matrix of f16 sums as of a matrix of
                                         f32 sums, and moving 16 bits as an f16 preserves them. A probe at opening decides. */
    DART_CAP_SM90 = 1 << 14,       /* CUDA: compute capability 9.0 exactly, with its warpgroup matrix instructions */
    DART_CAP_CUBLASLT = 1 << 15,   /* CUDA: the cuBLASLt library was found */
    DART_CAP_REGISTERS160 = 1 << 16, /* Vulkan: an invocation of a whole subgroup may have 160 registers; absent on Intel, Mali,
                                        Adreno, AMD's GCN and processors */
    DART_CAP_REGISTERS96 = 1 << 17, /* Vulkan: an invocation may have 96 registers; absent on Mali, whose invocations have 64 */
    DART_CAP_CUMULATIVE = 1 << 18, /* Vulkan: after a barrier of its workgroup, an invocation's atomic with release to the device also releases
                                        what other invocations of the workgroup wrote. The memory model promises that; reported only for drivers
                                        that are known to keep it. */
    DART_CAP_ADDRESSES = 1 << 19,  /* Vulkan: memory by its address, atomics of 64 bits between workgroups, and subgroups of one size that
                                      exchange values */
    DART_CAP_RESIDENT = 1 << 20    /* A launch of as many workgroups of 256 invocations as the device has multiprocessors runs all of them side by
                                      side, so that they can wait for one another. Vulkan: no specification promises that; reported for NVIDIA's
                                      driver, and a probe when the device is opened decides. CUDA: cooperative launches do. */
} dart_capability;
/* All use of matrix hardware through Vulkan. Pass it as without_capabilities when a driver's matrices are in doubt. */
#define DART_CAP_MATRIX \
    (DART_CAP_MATRIX_F16 | DART_CAP_MATRIX_BF16 | DART_CAP_MATRIX2 | DART_CAP_MATRIX_CUTS | DART_CAP_MATRIX_PLACES)

/* The bits that say what is fast on a device. A device without them runs the variants that need them correctly, but slower: of those that need
 * DART_CAP_RESIDENT one workgroup, where the number of multiprocessors is not known. */
#define DART_CAP_SPEED (DART_CAP_WIDE | DART_CAP_REGISTERS | DART_CAP_REGISTERS160 | DART_CAP_REGISTERS96 | DART_CAP_RESIDENT)

/* The floating-point modes that a Vulkan driver offers to shaders (VkPhysicalDeviceFloatControlsProperties). dartlm requests none of
 * them: each driver keeps its default, and results of two devices can differ by it. */
typedef enum dart_float_control {
    DART_FLOAT_PRESERVE_F16 = 1 << 0, /* infinities, NaN and signed zeros can be kept */
    DART_FLOAT_PRESERVE_F32 = 1 << 1,
    DART_FLOAT_DENORMAL_F16 = 1 << 2, /* denormals can be kept */
    DART_FLOAT_DENORMAL_F32 = 1 << 3,
    DART_FLOAT_FLUSH_F16 = 1 << 4,    /* denormals can be flushed to zero */
    DART_FLOAT_FLUSH_F32 = 1 << 5,
    DART_FLOAT_NEAREST_F16 = 1 << 6,  /* rounding to nearest even */
    DART_FLOAT_NEAREST_F32 = 1 << 7,
    DART_FLOAT_TRUNCATE_F16 = 1 << 8, /* rounding to zero */
    DART_FLOAT_TRUNCATE_F32 = 1 << 9
} dart_float_control;

typedef struct dart_device_info {
    dart_backend_kind backend;
    dart_device_type type;
    char name[256];
    char driver[256];           /* driver name and version */
    uint8_t uuid[16];           /* zero where the backend has none */
    uint32_t index;             /* within the backend: "vulkan:INDEX" */
    uint32_t capabilities;      /* dart_capability bits */
    uint32_t subgroup;          /* lanes of a subgroup (warp); 1 on the CPU */
    uint32_t shared_bytes;      /* shared memory of a workgroup */
    uint32_t workgroup;         /* the most threads of a workgroup; 1 on the CPU */
    uint32_t float_controls;    /* dart_float_control bits; 0 but for Vulkan */
    uint32_t multiprocessors;   /* streaming multiprocessors or compute units; 0: the driver does not tell */
    uint64_t memory_bytes;      /* of the largest device-local heap, or RAM */
    uint32_t max_bindings;      /* most buffers of one kernel; 0: no limit */
    uint64_t max_binding_bytes; /* most bytes of one tensor that a kernel can address */
    bool separate_queue;        /* Vulkan: its queue (in a list: the queue it would get by default) is of a family for compute without graphics */
    bool usable;
    char why_not[256];          /* when not usable: what the device lacks */
} dart_device_info;

/* The list of devices: Vulkan's first, then CUDA's, the CPU, null. Within a backend discrete GPUs come before integrated
 * ones, virtual ones and CPU drivers. DART_INVALID_ARGUMENT for an index past the list. */
DART_API uint32_t dart_context_device_count(const dart_context *context);
DART_API dart_status dart_context_device_info(const dart_context *context, uint32_t index, dart_device_info *info);
/* Copies why the context lists no device of a backend, e.g. "vulkan: no devices, the Vulkan loader found no driver" (always
 * terminated, possibly cut), and returns the full length. Empty where there is one, and for a backend that the options left out. */
DART_API size_t dart_context_why_none(const dart_context *context, dart_backend_kind kind, char *text, size_t size);

typedef struct dart_device_options {
    /* "cpu", "vulkan", "cuda", "null", or one of these with ":INDEX", ":NAME" (a case-insensitive part of the
     * name) or ":UUID" (32 hex digits, dashes allowed). NULL or "": the first usable real GPU (Vulkan, then CUDA),
     * else the CPU backend. "vulkan" alone falls back to a CPU driver. */
    const char *spec;
    uint32_t threads;               /* CPU backend: worker threads; 0: one per core */
    uint32_t without_capabilities;  /* dart_capability bits that the device counts as lacking (tests, faulty drivers) */
    /* Compiled code that dart_device_cache returned in an earlier run. The memory may be freed once the device is open. A
     * cache that is damaged, or belongs to another device or driver, is ignored. */
    const void *cache;
    size_t cache_bytes;
    /* Work on the device gives way to that of other queues and programs: a queue of low global priority (Vulkan, with VK_KHR_global_priority or
     * VK_EXT_global_priority). Where there is none, and for dart_device_adopt, whose queue the host makes, opening fails with DART_UNSUPPORTED. */
    bool low_priority;
    /* Work on the device runs beside frames: a queue of a family for compute without graphics. Without this option discrete GPUs take one where they
     * have one, others never. Where there is none, and for dart_device_adopt on a queue of another family, opening fails with DART_UNSUPPORTED. */
    bool separate_queue;
    const char *variant;            /* test hook: of each kernel that has a variant of this name for the call, use that one */
    uint32_t with_capabilities;     /* test hook: bits of DART_CAP_SPEED that the device counts as having, to run variants
                                       that are not meant for it */
    uint32_t wrong_probes;          /* test hook: dart_capability bits whose probe counts as failed */
    bool unchecked;                 /* test hook: skip the probes. Without it, opening runs small products of matrices, and
                                       the device loses the capabilities that give wrong numbers. */
    bool poison;                    /* fill new memory with NaN (0xFF bytes) */
    uint32_t margin;                /* test hook: every buffer lies between two margins of so many bytes, a multiple of 256, which hold NaN (as
                                       i32 a huge number) and which kernels see as if they were part of each tensor, so that a load outside a
                                       tensor gives NaN on drivers that check ranges, too. dart_buffer_destroy logs an error where a margin was
                                       written to. New memory is filled with the same NaN. 0: none */
    uint32_t backwards;             /* test hook, not through CUDA: launches begin the last of their tiles first; 1: all, 2: every second one of a
                                       recording. Results have the same bits unless a kernel depends on an order that nothing promises */
    uint32_t cut;                   /* test hook: each launch that can be cut is cut into so many ranges of its tiles; 0: as slice_ms requires */
    uint64_t max_binding_bytes;     /* test hook: a lower limit than the device's; 0: the device's */
    uint32_t max_bindings;          /* test hook: a lower limit than the device's; 0: the device's */
    /* The device counts as having the least that any usable device has, where it has more: bindings of 128 MiB, and through
     * Vulkan 16 KiB of shared memory, workgroups of 128 invocations and as many buffers as no kernel can do without. What a
     * device can do beside these limits (16-bit storage, subgroups) stays. */
    bool minimum_limits;
    uint32_t multiprocessors;       /* test hook: compute sizes of tiles and launches for this number; 0: the device's */
    uint32_t fail_at;               /* test hook: the n-th call of the backend or allocation of host memory, counted from
                                       opening, fails with DART_OUT_OF_MEMORY; 0: never */
    bool lose;                      /* test hook: call fail_at returns DART_DEVICE_LOST instead. The device itself goes on
                                       working, so use this with the null and CPU backends only. */
    /* Times every launch. The callback runs inside dart_stream_wait, once per launch in the order of recording, with the
     * line that dart_stream_options.trace would get and the nanoseconds between the end of the launch before and the end of
     * this one. Launches then never overlap, so that a run takes longer. Opening fails with DART_UNSUPPORTED where the
     * backend cannot time launches. Launches beyond the 8191st of a recording are not timed. */
    void (*profile)(void *user, const char *line, uint64_t ns);
    void *profile_user;
} dart_device_options;

/* Opens a device. options may be NULL. Several devices, and one device several times, may be open. Blocking. */
DART_API dart_status dart_device_open(dart_context *context, const dart_device_options *options, dart_device **device);
DART_API void dart_device_destroy(dart_device **device);
/* What dart_context_device_info says of this device, as it was opened: with the capabilities and limits that are left after probes and options. */
DART_API dart_status dart_device_describe(const dart_device *device, dart_device_info *info);
/* As dart_context_error. */
DART_API size_t dart_device_error(const dart_device *device, char *text, size_t size);
/* Copies the code compiled so far, for dart_device_options.cache of a later run. With data NULL, *bytes becomes the size that
 * is needed now. Otherwise *bytes holds the room at data and becomes the size that was written; too little room is
 * DART_INVALID_ARGUMENT. *bytes becomes 0 where the backend compiles nothing. */
DART_API dart_status dart_device_cache(dart_device *device, void *data, size_t *bytes);
/* Bytes of device memory that are allocated through this handle now. */
DART_API uint64_t dart_device_bytes(const dart_device *device);

/* ---- Buffers and tensors ------------------------------------------------------------------------------------- */

/* DART_Q8 and DART_Q4 are quantised: see dart_quantise. What may be quantised: `weight` of dart_embed, dart_linear and dart_norm_linear, and in_proj,
 * sma_proj and out_proj of dart_mixer_step. */
typedef enum dart_dtype { DART_F32 = 0, DART_F16 = 1, DART_BF16 = 2, DART_I32 = 3, DART_Q8 = 4, DART_Q4 = 5 } dart_dtype;
DART_API const char *dart_dtype_name(dart_dtype dtype); /* "f32", "f16", "bf16", "i32", "q8", "q4" */
/* Bytes of an element; 1 for quantised types, whose offsets count bytes; 0 for other values. */
DART_API size_t dart_dtype_size(dart_dtype dtype);

/* bytes > 0. Contents are undefined until written. */
DART_API dart_status dart_buffer_create(dart_device *device, uint64_t bytes, dart_buffer **buffer);
DART_API void dart_buffer_destroy(dart_buffer **buffer);
/* The bytes that it was made with; 0 for NULL. */
DART_API uint64_t dart_buffer_bytes(const dart_buffer *buffer);
/* Copy `bytes` bytes from `offset` on to and from the device. Blocking. Streams that use this range must have been waited for. A range that goes past
 * the buffer's end is DART_INVALID_ARGUMENT, and nothing is copied; bytes 0 does nothing. The text of a failure is that of dart_device_error. */
DART_API dart_status dart_buffer_write(dart_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes);
DART_API dart_status dart_buffer_read(const dart_buffer *buffer, uint64_t offset, void *data, uint64_t bytes);

/* Memory that others use as well, by a POSIX file descriptor: CUDA, OpenGL, another Vulkan device or process, on the same GPU. Who writes and who
 * reads must be ordered by the caller: by dart_stream_wait, or by a dart_semaphore, which orders them on the GPU.
 * DART_UNSUPPORTED with the reason where the device cannot: exported by Vulkan devices with VK_KHR_external_memory_fd (an adopted one must have
 * it switched on), imported by those and by CUDA. */
DART_API dart_status dart_buffer_create_shared(dart_device *device, uint64_t bytes, dart_buffer **buffer);
/* Of a buffer that dart_buffer_create_shared made. *fd: the caller's to close, or to give to an import, which takes it. *allocated: bytes of the
 * memory behind it, for APIs that ask (VkMemoryAllocateInfo.allocationSize, CUDA_EXTERNAL_MEMORY_HANDLE_DESC.size, glImportMemoryFdEXT); the
 * buffer begins at its start. The handle is of the type OPAQUE_FD. The memory lives until the buffer and all imports are gone. */
DART_API dart_status dart_buffer_export(dart_buffer *buffer, int *fd, uint64_t *allocated);
/* A buffer of `bytes` bytes on such memory, from dart_buffer_export with the same bytes or from another API, whose memory must not be of a dedicated
 * allocation. Takes fd when it succeeds. Not counted by dart_device_bytes. A Vulkan device takes what was allocated for a storage buffer of the same
 * bytes on the same driver; else DART_INVALID_ARGUMENT or what the driver says. fd must be a handle of memory: a driver need not notice another. */
DART_API dart_status dart_buffer_import(dart_device *device, int fd, uint64_t allocated, uint64_t bytes, dart_buffer **buffer);

/* A tensor is a view of a buffer: where it starts and how far apart its tokens lie. buffer == NULL: absent. */
typedef struct dart_tensor {
    dart_buffer *buffer;
    dart_dtype dtype;
    uint64_t offset; /* elements; of a quantised tensor bytes, a multiple of 16 */
    uint64_t row;    /* elements from one token to the next; 0: packed. Token-major tensors only. */
} dart_tensor;

/* Conversion between f32 and storage, round to nearest even, NaN stays NaN. dtype f32, f16 or bf16. */
DART_API void dart_from_f32(dart_dtype dtype, void *to, const float *from, size_t count);
DART_API void dart_to_f32(dart_dtype dtype, float *to, const void *from, size_t count);

/* Quantised rows: rows of `width` small whole numbers in blocks of 32, width a multiple of 32 and at most 2^30. Scales and minima are bf16. Number i
 * of a block stands for
 *   DART_Q8: scale n_i, n_i an int8 from -127 to 127. A row: width bytes n, then width / 32 scales.
 *   DART_Q4: scale n_i + minimum, n_i from 0 to 15. A row: width / 32 blocks of 16 bytes, then as many scales, then as many minima. Bits 4 j to
 *            4 j + 3 of the 16-bit word k of a block, little endian, hold n_(8 j + k).
 * Zeros fill a row up to a multiple of 16 bytes. dart_quantise takes the scale (largest magnitude) / 127, rounded up, so that no number is off by
 * more than half of it; for DART_Q4, of several pairs of scale and minimum with (largest - smallest) / 15 and the smallest among them, the one with
 * the least sum of squared errors. A block that holds NaN or infinity becomes NaN. */
/* Bytes of a row; 0 for other types and widths. */
DART_API size_t dart_quantised_row(dart_dtype dtype, uint32_t width);
/* `rows` quantised rows from rows x width numbers, and back. DART_INVALID_ARGUMENT where dart_quantised_row is 0. */
DART_API dart_status dart_quantise(dart_dtype dtype, uint32_t width, size_t rows, const float *from, void *to);
DART_API dart_status dart_dequantise(dart_dtype dtype, uint32_t width, size_t rows, const void *from, float *to);

/* ---- Streams ------------------------------------------------------------------------------------------------- */

typedef struct dart_stream_options {
    /* Called while recording, once per launch, with a line such as "ssd_output[base] tiles=96". */
    void (*trace)(void *user, const char *line);
    void *trace_user;
    /* Compile instead of run: ops note the code that they need, and dart_stream_submit compiles it on up to 16 threads, one a
     * core. A later recording of the same ops then compiles nothing. */
    bool warm;
    /* With warm, optional: called between kernels, from the thread that submits; false ends it with DART_CANCELLED. */
    bool (*go_on)(void *user, uint64_t done, uint64_t of);
    void *go_on_user;
} dart_stream_options;

/* A new stream is ready to record. */
DART_API dart_status dart_stream_create(dart_device *device, const dart_stream_options *options, dart_stream **stream);
DART_API void dart_stream_destroy(dart_stream **stream);
/* Empties the recording and clears a sticky error. Scratch memory stays allocated. Waits for work in flight. */
DART_API dart_status dart_stream_begin(dart_stream *stream);
/* Starts the recorded launches and closes the recording: later ops fail until dart_stream_begin. Submissions of all streams of
 * a device run one after another, in the order of the calls, and each sees what earlier ones wrote. The call does not block,
 * except on the CPU backend, which runs the launches before it returns. The same recording may be submitted again once the
 * last run has been waited for. Positions and counts, which change from run to run, lie in the seq tensor. */
DART_API dart_status dart_stream_submit(dart_stream *stream);
/* dart_stream_submit with `times` runs, 1 to 65536, one after the other. dart_stream_wait waits for all of them, and
 * dart_stream_elapsed returns their total. */
DART_API dart_status dart_stream_submit_times(dart_stream *stream, uint32_t times);
/* Blocks until the last submission is done, for at most timeout_ns (0: do not block; UINT64_MAX: no limit). DART_TIMEOUT: the
 * work is still running, and the stream may be waited for again. */
DART_API dart_status dart_stream_wait(dart_stream *stream, uint64_t timeout_ns);
/* Nanoseconds that the last finished submission took on the device; DART_INVALID_ARGUMENT before the first. */
DART_API dart_status dart_stream_elapsed(dart_stream *stream, uint64_t *ns);
/* Semaphores order submissions of this device and those of others on the same GPU, by a POSIX file descriptor: another dart_device, CUDA, OpenGL, the
 * host's Vulkan device, another process. What is written before a signal is seen by who has waited for it.
 *   timeline   a number that begins at 0 and only grows: a signal makes it `value`, a wait is for `value` or more, before or after the signal was
 *              submitted. Vulkan and CUDA have them.
 *   binary     a signal and then one wait, submitted in that order. OpenGL's are of this kind (GL_EXT_semaphore_fd).
 * DART_UNSUPPORTED with the reason where the device cannot: made and exported by Vulkan devices with VK_KHR_external_semaphore_fd (an adopted one
 * must have it switched on), imported by those and by CUDA. A driver may have one kind only: SwiftShader has binary ones, Mesa's lavapipe neither. */
DART_API dart_status dart_semaphore_create_shared(dart_device *device, bool binary, dart_semaphore **semaphore);
/* Of a semaphore that dart_semaphore_create_shared made. *fd, of the type OPAQUE_FD, is the caller's to close, or to give to an import, which
 * takes it. */
DART_API dart_status dart_semaphore_export(dart_semaphore *semaphore, int *fd);
/* A semaphore of that kind, from dart_semaphore_export or from another API. Takes fd when it succeeds. fd must be a handle of such a semaphore: a
 * driver need not notice another. */
DART_API dart_status dart_semaphore_import(dart_device *device, int fd, bool binary, dart_semaphore **semaphore);
/* Streams that wait for it or signal it must have been waited for. Imports of the same semaphore stay valid. */
DART_API void dart_semaphore_destroy(dart_semaphore **semaphore);
typedef struct dart_semaphore_value {
    dart_semaphore *semaphore; /* of the stream's device */
    uint64_t value;            /* of a timeline, above 0; ignored for a binary one */
} dart_semaphore_value;
typedef struct dart_submit_args {
    const dart_semaphore_value *waits, *signals;
    uint32_t waits_count, signals_count; /* at most 64 each */
} dart_submit_args;
/* dart_stream_submit that starts after all waits and then signals. Later submissions of the device run after it. Through Vulkan,
 * dart_buffer_write, dart_buffer_read and ops that write constants may wait for it as well, whatever buffer they concern: a thread must not call them
 * before it has caused the signal, and a copy that waits for ten minutes counts as a lost device. dart_stream_wait is still due before the next
 * use. The submission ends only after its waits are met; nothing ends it if a signal never comes. Not for streams with options.warm. */
DART_API dart_status dart_stream_submit_ordered(dart_stream *stream, const dart_submit_args *args);
/* Launches in the recording. */
DART_API uint32_t dart_stream_launches(const dart_stream *stream);
/* As dart_context_error. */
DART_API size_t dart_stream_error(const dart_stream *stream, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
