/* dartlm: the DART sequence model on Vulkan, CUDA and CPU. Tier 1: devices, buffers, streams, ops.
 *
 * GLOSSARY. Dimensions are upper case, tensors lower case. A letter has one meaning, except C and D.
 *
 *   B  batch                      S  chunk size                    x   B L H P  value input of the scan
 *   L  tokens in this piece       M  number of chunks, ceil(L/S)   dt  B L H    step size
 *   H  heads                      W  model width                   b   B L G N  write key
 *   G  groups of b, c, q, e       I  inner width, H P              c   B L G N  read vector (scan and SMA)
 *   P  head dimension             K  convolution width             q   B L G N  query
 *   N  state size                 V  vocabulary                    e   B L G P  value-side verifier
 *   T  rows of a row-wise op                                       h   B H N P  recurrent state
 *                                                                  dh  B M H N P chunk state memories
 *                                                                  r   B L H P  SMA readout, lse  B L H
 *   SMA: state-memory attention, dart_sma. A piece: the tokens of one call, L of each sequence at most.
 *   C  channels of a convolution; in softmax attention the capacity of the cache, in tokens
 *   D  head dimension of softmax attention; in dart_mixer_step the channels of the second convolution
 *   Head h belongs to group h / (H / G).
 *
 * LAWS that hold for every function below.
 *   Shapes     Row-major, last index fastest. A token-major tensor (B L ...) may be a view whose consecutive
 *              tokens lie `row` elements apart; everything else is packed.
 *   Numbers    Storage is f32, f16 or bf16, chosen per tensor; sums, states, norms and softmax statistics are f32.
 *   Errors     Every fallible function returns a dart_status. The text of the failed condition goes to the log
 *              callback of the context and to the *_error call of the object. The library never aborts, prints, or
 *              reads the environment. Out-parameters are untouched on failure unless stated otherwise.
 *   Streams    An op records its launches; dart_stream_submit runs them. The first failure of a stream is sticky: later
 *              ops and submissions return that status and do nothing, until dart_stream_begin clears it. A lost device
 *              stays lost.
 *   Threads    A context, a device and their queries may be used from several threads at once. A stream, a model
 *              or a state is used by one thread at a time; different ones concurrently. A buffer may be shared
 *              under the caller's own ordering.
 *   Lifetime   Destroy children before parents. Destroy functions take the address of the handle, set it to NULL and
 *              accept NULL. Destroying a stream waits for its work; a buffer is destroyed once every stream that uses
 *              it has been waited for.
 *   Alignment  Tensors may start at any element, with these exceptions: h, open, open_decay, cum, decay, qn, en, and in
 *              dart_window_args rows, steps and hin, start at multiples of 64 elements; the dh of a closing run of
 *              dart_window_args starts at a multiple of 8.
 *   Packed     Ops with cu and T also take B sequences of different lengths that lie one after another in T rows, as they are:
 *              cu i32 B + 1 (dart_cu_check), sequence b in the rows from cu_b to cu_(b+1) - 1, at most L of them, from position 0 on.
 *              Token-major tensors (B L ...) then have T rows, tensors of chunks (B M ...) dart_packed_chunks(T, S, B) slots,
 *              chunk j of sequence b in slot cu_b / S + b + j, rounded down. Slots of no chunk and rows of no sequence are neither
 *              read nor written. A sequence is computed as it is alone, to the bit where the same variants are taken, and
 *              what one holds, NaN included, reaches no other. cu excludes seq, and with it open; tail and the step plans.
 *   Zero       Option and argument structs are valid when zeroed, and zero means the default.
 */
#ifndef DARTLM_H
#define DARTLM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(DARTLM_STATIC)
#define DART_API
#elif defined(_WIN32)
#ifdef DARTLM_BUILD
#define DART_API __declspec(dllexport)
#else
#define DART_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define DART_API __attribute__((visibility("default")))
#else
#define DART_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of these headers; dart_version() tells that of the library. Before 1.0 a minor step may break. */
#define DART_VERSION_MAJOR 0
#define DART_VERSION_MINOR 1
#define DART_VERSION_PATCH 0
/* "MAJOR.MINOR.PATCH", static. */
DART_API const char *dart_version(void);

/* ---- Status and log ------------------------------------------------------------------------------------------ */

/* The result of a call. The comment of a failure says what the caller does next. */
typedef enum dart_status {
    DART_OK = 0,
    DART_INVALID_ARGUMENT = 1, /* fix the call: the text names the condition */
    DART_UNSUPPORTED = 2,      /* take another device, size or option: this one cannot do it */
    DART_OUT_OF_MEMORY = 3,    /* free something or ask for less, then try again */
    DART_DEVICE_LOST = 4,      /* destroy everything on this device and open it again */
    DART_TIMEOUT = 5,          /* wait again, or give up the device: the work is still running */
    DART_IO = 6,               /* the file cannot be opened or read: check path and rights */
    DART_BAD_DATA = 7,         /* the file's contents are wrong: the text names the place */
    DART_INTERNAL = 8,         /* a defect of this library or of a driver: report it with the text */
    DART_CANCELLED = 9         /* the caller's callback stopped the call: go on from where it says it stopped */
} dart_status;
/* Short lower-case name, static; "unknown status" for other values. */
DART_API const char *dart_status_name(dart_status status);

typedef enum dart_log_level { DART_LOG_ERROR = 0, DART_LOG_WARNING = 1, DART_LOG_INFO = 2, DART_LOG_TRACE = 3 } dart_log_level;
/* Called from any thread that uses the library, never concurrently for one context. The text is valid until the callback
 * returns. The callback must not call the library. */
typedef void (*dart_log_function)(void *user, dart_log_level level, const char *text);

/* ---- Contexts and devices ------------------------------------------------------------------------------------ */

typedef struct dart_context dart_context; /* the loaded backends and their devices */
typedef struct dart_device dart_device;   /* one opened device */
typedef struct dart_buffer dart_buffer;   /* memory on a device */
typedef struct dart_stream dart_stream;   /* a recorded sequence of launches */

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
                                        Adreno, AMD's GCN */
    DART_CAP_REGISTERS96 = 1 << 17  /* Vulkan: an invocation may have 96 registers; absent on Mali, whose invocations have 64 */
} dart_capability;
/* All use of matrix hardware through Vulkan. Pass it as without_capabilities when a driver's matrices are in doubt. */
#define DART_CAP_MATRIX \
    (DART_CAP_MATRIX_F16 | DART_CAP_MATRIX_BF16 | DART_CAP_MATRIX2 | DART_CAP_MATRIX_CUTS | DART_CAP_MATRIX_PLACES)

/* The bits that say what is fast on a device. A device without them runs the variants that need them correctly, but slower. */
#define DART_CAP_SPEED (DART_CAP_WIDE | DART_CAP_REGISTERS | DART_CAP_REGISTERS160 | DART_CAP_REGISTERS96)

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
    uint32_t multiprocessors;   /* streaming multiprocessors or compute units; 0: the driver does not tell */
    uint64_t memory_bytes;      /* of the largest device-local heap, or RAM */
    uint32_t max_bindings;      /* most buffers of one kernel; 0: no limit */
    uint64_t max_binding_bytes; /* most bytes of one tensor that a kernel can address */
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
    const char *variant;            /* test hook: of each kernel that has a variant of this name for the call, use that one */
    uint32_t with_capabilities;     /* test hook: bits of DART_CAP_SPEED that the device counts as having, to run variants
                                       that are not meant for it */
    uint32_t wrong_probes;          /* test hook: dart_capability bits whose probe counts as failed */
    bool unchecked;                 /* test hook: skip the probes. Without it, opening runs small products of matrices, and
                                       the device loses the capabilities that give wrong numbers. */
    bool poison;                    /* fill new memory with NaN (0xFF bytes) */
    uint64_t max_binding_bytes;     /* test hook: a lower limit than the device's; 0: the device's */
    uint32_t max_bindings;          /* test hook: a lower limit than the device's; 0: the device's */
    /* The device counts as having the least that any usable device has, where it has more: bindings of 128 MiB, and through
     * Vulkan 16 KiB of shared memory, workgroups of 128 invocations and as many buffers as no kernel can do without. What a
     * device can do beside these limits (16-bit storage, subgroups) stays. */
    bool minimum_limits;
    uint32_t multiprocessors;       /* test hook: compute tile sizes for this number; 0: the device's */
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

/* DART_Q8 and DART_Q4 are quantised: see dart_quantise. Only `weight` of dart_linear and dart_embed may be quantised. */
typedef enum dart_dtype { DART_F32 = 0, DART_F16 = 1, DART_BF16 = 2, DART_I32 = 3, DART_Q8 = 4, DART_Q4 = 5 } dart_dtype;
DART_API const char *dart_dtype_name(dart_dtype dtype); /* "f32", "f16", "bf16", "i32", "q8", "q4" */
/* Bytes of an element; 1 for quantised types, whose offsets count bytes; 0 for other values. */
DART_API size_t dart_dtype_size(dart_dtype dtype);

/* bytes > 0. Contents are undefined until written. */
DART_API dart_status dart_buffer_create(dart_device *device, uint64_t bytes, dart_buffer **buffer);
DART_API void dart_buffer_destroy(dart_buffer **buffer);
DART_API uint64_t dart_buffer_bytes(const dart_buffer *buffer);
/* Copy bytes from offset on to and from the device. Blocking. Streams that use this range must have been waited for. */
DART_API dart_status dart_buffer_write(dart_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes);
DART_API dart_status dart_buffer_read(const dart_buffer *buffer, uint64_t offset, void *data, uint64_t bytes);

/* Memory that others use as well, by a POSIX file descriptor: CUDA, OpenGL, another Vulkan device or process, on the same GPU. Who writes and who
 * reads must be ordered by the caller, e.g. by dart_stream_wait.
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
/* Launches in the recording. */
DART_API uint32_t dart_stream_launches(const dart_stream *stream);
/* As dart_context_error. */
DART_API size_t dart_stream_error(const dart_stream *stream, char *text, size_t size);

/* ---- Ops ------------------------------------------------------------------------------------------------------
 * Each op checks its arguments, takes scratch memory from the stream and records its launches in order; the library puts
 * barriers between launches that depend on one another. Inputs and outputs must not overlap unless stated. An op may allocate
 * device memory.
 *
 * Every op returns DART_INVALID_ARGUMENT for a size, tensor or option outside what its comment states, and DART_UNSUPPORTED
 * when a tensor exceeds max_binding_bytes and the op cannot split it. Scratch memory may fail with DART_OUT_OF_MEMORY.
 *
 * seq, where present, is an i32 tensor B 2: for each sequence its position (tokens consumed before this piece) and its count
 * (tokens of this piece, 0..L; a larger count is taken as L, a negative position or count as 0). Tokens past the count are not
 * read, and their outputs are not written. Without seq every sequence is at position 0 with L tokens. The device reads seq
 * when the recording runs. */

/* y_t = weight_{ids_t}: the rows of an embedding table.
 * ids i32 T; weight V W, or V quantised rows with W a multiple of 32; y T W. An id outside [0, V) gives a row of NaN. */
typedef struct dart_embed_args {
    uint32_t T, V, W;
    dart_tensor ids, weight, y;
} dart_embed_args;
DART_API dart_status dart_embed(dart_stream *stream, const dart_embed_args *args);

/* y = x / sqrt(mean(x^2) + eps) * weight, per row.
 * x T W (or any number of rows when rows is given); weight W; y T W.
 * rows, optional, i32 T: row t of y is computed from row rows_t of x (the caller's promise: within x); where rows_t is
 * negative, row t of y is left as it is. */
typedef struct dart_rms_norm_args {
    uint32_t T, W;
    float eps; /* > 0 */
    dart_tensor x, weight, rows, y;
} dart_rms_norm_args;
DART_API dart_status dart_rms_norm(dart_stream *stream, const dart_rms_norm_args *args);

/* y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias, per row.
 * bias W; the others as of dart_rms_norm, rows included. */
typedef struct dart_layer_norm_args {
    uint32_t T, W;
    float eps; /* > 0 */
    dart_tensor x, weight, bias, rows, y;
} dart_layer_norm_args;
DART_API dart_status dart_layer_norm(dart_stream *stream, const dart_layer_norm_args *args);

/* out = RMSNorm((y + SiLU(gate) r) SiLU(z)) weight, per row over all of I: the gated norm that ends a mixer, with the gated
 * SMA readout added to y first.
 * y, z, out T I; r T I and gate T (raw, before SiLU) both or neither; weight I. out may be y. */
typedef struct dart_gated_norm_args {
    uint32_t T, I;
    float eps; /* > 0 */
    dart_tensor y, r, gate, z, weight, out;
} dart_gated_norm_args;
DART_API dart_status dart_gated_norm(dart_stream *stream, const dart_gated_norm_args *args);

/* y = x weight^T + bias, or y += x weight^T + bias when add is set.
 * x T IN; weight OUT IN; bias OUT, optional; y T OUT. The bias is put into y first, rounded to y's type, and the product added to it.
 * weight may be OUT quantised rows, with IN a multiple of 32. A processor may then round x to multiples of m / 32767, where m is the
 * largest magnitude of its block of 32 numbers. Where the device multiplies 16-bit matrices and x is of their type, the weights are rounded to it. */
typedef struct dart_linear_args {
    uint32_t T, IN, OUT;
    bool add;
    dart_tensor x, weight, bias, y;
} dart_linear_args;
DART_API dart_status dart_linear(dart_stream *stream, const dart_linear_args *args);

/* y = RMSNorm(x) weight^T, with the results of dart_rms_norm and dart_linear, in one launch.
 * x T IN; norm IN; weight OUT IN, or OUT quantised rows with IN a multiple of 32; y T OUT.
 * Meant for a few rows: the weights are read once for every four rows. For many rows it pays only where the device multiplies
 * bf16 matrices, weight and y are bf16, and x is f32. */
typedef struct dart_norm_linear_args {
    uint32_t T, IN, OUT;
    float eps; /* > 0 */
    dart_tensor x, norm, weight, y;
} dart_norm_linear_args;
DART_API dart_status dart_norm_linear(dart_stream *stream, const dart_norm_linear_args *args);

/* Depthwise causal convolution, then SiLU: y_t = SiLU(bias + sum_k weight_k x_{t-K+1+k}).
 * x, y B L C; weight C K; bias C, optional; tail B K-1 C, optional: the inputs before the piece, oldest first,
 * replaced by the last K-1 inputs of the sequence so far. Without tail the inputs before the piece are zero. 2 <= K <= 8.
 * keep_tail: tail is only read. Call dart_conv_tail with the same arguments afterwards; its launch may then overlap others. */
typedef struct dart_conv_args {
    uint32_t B, L, C, K, T;
    bool keep_tail;
    dart_tensor x, weight, bias, tail, seq, cu, y;
} dart_conv_args;
DART_API dart_status dart_conv(dart_stream *stream, const dart_conv_args *args);
/* The update that dart_conv leaves out with keep_tail: tail becomes the last K-1 inputs of the sequence so far. x and tail are
 * required; weight, bias and y are ignored. */
DART_API dart_status dart_conv_tail(dart_stream *stream, const dart_conv_args *args);

/* Whether cu begins with 0, does not fall, has steps of at most L and ends with at most T; B + 1 numbers. DART_OK or
 * DART_INVALID_ARGUMENT. */
DART_API dart_status dart_cu_check(const int32_t *cu, uint32_t B, uint32_t L, uint32_t T);
/* T / S + B: slots of the chunks of B sequences in T rows; 0 where S is. */
DART_API uint64_t dart_packed_chunks(uint32_t T, uint32_t S, uint32_t B);

/* How dart_ssd, dart_sma and dart_attention are computed; results agree within rounding. DART_PLAN_AUTO takes the step plan
 * where it is allowed. */
typedef enum dart_plan { DART_PLAN_AUTO = 0, DART_PLAN_CHUNKED = 1, DART_PLAN_STEP = 2 /* L == 1 only */ } dart_plan;

/* A run of memories: memory first + i of sequence b, i < M, is dh[b, i]. Without scale the memories are raw. With scale they are
 * normalised: row n as stored is raw row n / scale_n, scale_n = sqrt(mean_p raw_np^2 + eps), so that the mean square of a stored
 * row is at most 1. */
typedef struct dart_memories {
    uint32_t first, M;
    dart_tensor dh;    /* B M H N P */
    dart_tensor scale; /* f32 B M H N, optional */
} dart_memories;

/* The scan of Mamba-2 with the memory of each chunk, computed chunk by chunk:
 *   dt_t = clamp(softplus(dt_t + dt_bias), dt_min, dt_max); with dt_is_step dt itself, which must not be negative;
 *   h_t = exp(dt_t A) h_{t-1} + dt_t b_t^T x_t, A = -exp(a_log);  y_t = c_t h_t + d x_t;
 *   dh_m = sum over the tokens s of chunk m of exp(sum_{s < k <= end} dt_k A) dt_s b_s^T x_s, the memory of chunk m: what its own
 *   tokens contribute to h at the end of the chunk. Chunks count from the start of the sequence.
 * x, y B L H P; dt B L H; b, c B L G N; a_log, dt_bias, d H (the last two optional).
 * h f32 B H N P, optional: in, the state before the piece (without h: zero); out, the state after its last token.
 * open f32 B H N P with open_decay f32 B H, optional, need h and seq: the open chunk, whose last token has not come yet.
 *   With them h is, in and out, the state at the last chunk border. open is the memory of the open chunk so far and open_decay
 *   its log-decay; the call replaces both. The state after the last token is exp(open_decay) h + open.
 * dh B M H N P with dh_scale f32 B M H N, optional: memory j is that of the j-th chunk that this piece touches, an unclosed
 *   one included; raw and f32 without dh_scale, else normalised (dart_memories) with eps under the root.
 *   M = dart_ssd_chunks(): ceil(L/S), or ceil((L+S-1)/S) when seq is given, since a piece may start inside a chunk.
 * memories, optional, instead of dh, need open: runs with scale that do not overlap. The memory of every chunk that closes
 *   within the piece is stored in the run that contains its number. The caller must provide that run; the op cannot check it.
 *   With a single run memories are computed in place; with several they are copied.
 * Intermediates, optional; where absent the stream's scratch memory holds them. f32, except hin:
 *   cum B H L 3: cumulative log-decay in the chunk as a rounded value and its remainder, then dt; with cu T H 3, that of sequence b
 *     from cu_b H 3 on, for each head as many as it has tokens;
 *   decay B M+1 H: open_decay as it came, then the log-decay of each chunk over this piece; with cu row cu_b / S + 2 b + 1 + j of
 *     dart_packed_chunks(T, S, B) + B rows;
 *   hin B M H N P with hin_scale f32 B M H N: the state entering each chunk of this piece that has tokens; raw without
 *   hin_scale, f32 or bf16, else normalised.
 * The op is causal: an infinity or NaN in b, c or dt of a token changes no earlier output. The same holds for x on the CPU. On a
 *   GPU an infinity or NaN in x may turn outputs of the same chunk up to 63 tokens earlier into NaN, and no others.
 * Rounding. With L > 1, h and y are computed from memories and hin as stored. Those that the caller does not provide are stored
 *   in f32. When x, b and c are all f16 or all bf16, they are stored in that dtype, which the fastest kernels read: memories
 *   normalised, hin normalised in f16 and raw in bf16.
 *   f16 calls accept any finite x as long as y and the weights (c_t . b_s) dt_s are within the range of f16. Other intermediates
 *   are rounded relative to the largest step or weight of their chunk.
 *   With DART_CAP_MATRIX2, N 128 and P 64, calls of 16 bits store c_t . b_s of 16 neighbouring tokens relative to the largest of
 *   the 16. Values below 2^-29 of the largest lose digits, also where they belong to earlier tokens.
 * DART_PLAN_STEP takes L = 1 without hin and without dh_scale.
 * Source: Dao and Gu 2024 (state space duality), DART. */
typedef struct dart_ssd_args {
    uint32_t B, L, H, G, N, P, S, T; /* N, P <= 256; G divides H; 1 <= S <= 2^30 */
    dart_plan plan;
    bool dt_is_step;
    float dt_min, dt_max; /* dt_max 0: no limit */
    float eps;            /* 0: 1e-5 */
    dart_tensor x, dt, b, c, a_log, dt_bias, d, seq, cu;
    dart_tensor h, open, open_decay;
    dart_tensor y, dh, dh_scale;
    const dart_memories *memories;
    uint32_t memories_count;
    dart_tensor cum, decay, hin, hin_scale;
} dart_ssd_args;
DART_API dart_status dart_ssd(dart_stream *stream, const dart_ssd_args *args);
/* Chunks that a piece of L tokens touches at most: M of dh and hin. 0 when L or S is 0. */
DART_API uint32_t dart_ssd_chunks(uint32_t L, uint32_t S, bool with_seq);

/* State-memory attention (SMA): for token t of chunk m(t) = (position + t) / S, over all memories m < m(t),
 *   qn = q / rms(q), en = e / rms(e), rms(v) = sqrt(mean(v^2) + eps), rho_n = (mean_p dh_np^2 + eps)^(-1/2),
 *   logit = qn . (rho (dh en)) / sqrt(N),  g = softmax_m(logit),  r = sum_m g_m (c dh_m).
 * With no past memory r = 0 and lse = -infinity.
 * q, c B L G N; e B L G P; r B L H P; lse f32 B L H, optional. N, P <= 256.
 * memories: runs in any order that do not overlap. A memory that lies in no run is left out of the softmax.
 * Intermediates, optional, f32: qn B L G N, divided by sqrt(N); en B L G P; with cu, what they hold in rows of
 *   no sequence is undefined. Source: DART. */
typedef struct dart_sma_args {
    uint32_t B, L, H, G, N, P, S, T;
    dart_plan plan;
    float eps; /* > 0 */
    dart_tensor q, e, c, seq, cu;
    const dart_memories *memories;
    uint32_t memories_count;
    dart_tensor r, lse;
    dart_tensor qn, en;
} dart_sma_args;
DART_API dart_status dart_sma(dart_stream *stream, const dart_sma_args *args);

/* Stores the chunks that close within a piece as normalised memories: dh row n / sqrt(mean_p dh_np^2 + eps) goes
 * to to.dh, the root to to.scale, at memory (position / S + j) where that lies in the run.
 * dh B M H N P as dart_ssd wrote it for this piece and the same seq and L; M = dart_ssd_chunks(L, S, seq). */
typedef struct dart_sma_append_args {
    uint32_t B, L, H, N, P, S;
    float eps; /* > 0 */
    dart_tensor dh, seq;
    dart_memories to;
} dart_sma_append_args;
DART_API dart_status dart_sma_append(dart_stream *stream, const dart_sma_append_args *args);

/* Softmax attention, causal, with a cache of keys and values: token t, at p = position + t of its sequence, sees the
 * cache's tokens s <= p (s < C where the cache ends earlier), tokens of its own piece included:
 *   w_s = softmax_s(scale q_t . k_s),  o_t = sum_s w_s v_s,  lse_t = log sum_s exp(scale q_t . k_s).
 * Head h uses the keys and values of group h / (H / G). The piece's own keys and values must be in the cache: call
 * dart_kv_append before, or, at position 0, pass them as the cache (C = L). Contents of the cache past p, NaN included, do not
 * reach o_t.
 * q, o B L H D; k, v B C G D, both of one type: token s of sequence b is row b C + s. All four may be views. lse f32 B L H,
 * optional. Without seq C must be at least L. Each tensor must fit a binding (max_binding_bytes). o must not be q.
 * Source: Dao 2023 (FlashAttention-2) for the order of the computation. */
typedef struct dart_attention_args {
    uint32_t B, L, H, G, D, C, T; /* D <= 256; G divides H */
    dart_plan plan;            /* DART_PLAN_STEP splits the cache among workgroups and merges */
    float scale;               /* 0: 1 / sqrt(D) */
    dart_tensor q, k, v, seq, cu;
    dart_tensor o, lse;
} dart_attention_args;
DART_API dart_status dart_attention(dart_stream *stream, const dart_attention_args *args);

/* Copies a piece's keys and values to their places in the cache: row b C + position + t of to_k and to_v becomes token t
 * of sequence b, rounded to the cache's type. Tokens at or past C are dropped; without seq L must be at most C.
 * k, v B L G D; to_k, to_v B C G D. All four may be views. D <= 256. */
typedef struct dart_kv_append_args {
    uint32_t B, L, G, D, C;
    dart_tensor k, v, seq;
    dart_tensor to_k, to_v;
} dart_kv_append_args;
DART_API dart_status dart_kv_append(dart_stream *stream, const dart_kv_append_args *args);

/* One block for one token of every sequence: x += out_proj(mixer(RMSNorm(x))), in few launches. Meant for a few sequences: the
 * weights are read once for every four rows.
 * With R = 2 I + 2 G N + H and Q = G N + G P + 1 rounded up to a multiple of 8, C = I + 2 G N, D = G (N + P):
 * x B W, in and out; seq B 2; norm W; in_proj R W, rows [z|x|b|c|dt]; conv_weight C K, conv_bias C (optional), tail B K-1 C as
 * dart_conv keeps it; a_log, dt_bias, d H; h B H N P as dart_ssd keeps it; mixer_norm I; out_proj W I.
 * in_proj, sma_proj and out_proj may be quantised rows, with W and I multiples of 32, P of 8. in_proj_rest, optional: the last H rows of
 * in_proj, which then has R - H; sma_proj_rest, optional: those of sma_proj from the gate's on, which then has G (N + P).
 * With state-memory attention (otherwise all absent): sma_proj Q W, rows [q|e|gate|padding]; sma_conv_weight D K,
 * sma_conv_bias D (optional), sma_tail B K-1 D; open, open_decay as dart_ssd keeps them; memories: the runs to attend to,
 * normalised (with scale); closing: the runs that receive the memory of a chunk that closes with this token, as dart_sma_append
 * stores it. A run may be in both lists. seq is required with attention, optional without.
 * Intermediates, optional, f32: proj B R, with [x|b|c] after their convolution; queries B Q, with [q|e] after theirs;
 * y B I, the output of the scan. A sequence with a count of 0 stays as it is. */
typedef struct dart_mixer_step_args {
    uint32_t B, W, H, G, N, P, K, S; /* N, P <= 256; G divides H; 2 <= K <= 8 */
    float eps, sma_eps;              /* > 0 */
    float dt_min, dt_max;            /* dt_max 0: no limit */
    dart_tensor x, seq;
    dart_tensor norm, in_proj, in_proj_rest, conv_weight, conv_bias, dt_bias, a_log, d, mixer_norm, out_proj;
    dart_tensor sma_proj, sma_proj_rest, sma_conv_weight, sma_conv_bias;
    dart_tensor tail, sma_tail, h, open, open_decay;
    const dart_memories *memories;
    const dart_memories *closing;
    uint32_t memories_count, closing_count;
    dart_tensor proj, queries, y;
} dart_mixer_step_args;
DART_API dart_status dart_mixer_step(dart_stream *stream, const dart_mixer_step_args *args);

/* Decoding many sequences: one token of each through the convolution and the scan. A window keeps the newest tokens of a
 * sequence. A step then reads one N x P matrix per head and the window, where dart_ssd reads two matrices and writes one. When the
 * window is full or a chunk closes, the window is folded into h and open. Three ops with the same arguments make a step, in
 * this order:
 *   dart_window_append: conv = the convolution of [x|b|c] with its SiLU, and tail is updated; x, b and the step size of the token
 *     are stored in the window;
 *   dart_window_output: y = c h_t + d x;
 *   dart_window_fold: folds full windows and windows of chunks that close; stores the memories of chunks that close in the runs
 *     of `closing`, as dart_sma_append does.
 * Between steps the recurrent state is h, open and the window together. Before the first step after dart_ssd, call
 * dart_window_fold with DART_WINDOW_OPEN: it makes hin from h and open, and an empty window. Before the next dart_ssd, call it with
 * DART_WINDOW_CLOSE: h, open and open_decay are then those that dart_ssd would have left. Both modes read the positions of seq as
 * they are before the next token, and ignore the counts. DART_WINDOW_JOIN is DART_WINDOW_OPEN for the sequences whose count is not 0:
 * others go on with their windows.
 * x B C, the columns [x|b|c] with C = H P + 2 G N; dt B H; conv_weight C K; conv_bias (optional) C; tail B K-1 C; a_log, dt_bias
 * (optional), d (optional) H; seq B 2; conv B C; y B H P; h, open, open_decay as dart_ssd keeps them, the latter two both or
 * neither; with open, closing must not be empty. The window: rows B dart_window_tokens() (H P + G N); steps f32 B
 * dart_window_tokens() H 2; hin B H N P, the state before the window, raw f32 or, with hin_scale f32 B H N, normalised
 * (dart_memories) in any float type, whose rounding y then shows. Before DART_WINDOW_OPEN the window may hold anything, but rows
 * must be finite.
 * N and P are multiples of 8. A sequence with a count of 0 stays as it is. */
typedef enum dart_window_mode { DART_WINDOW_STEP = 0, DART_WINDOW_OPEN, DART_WINDOW_CLOSE, DART_WINDOW_JOIN } dart_window_mode;
typedef struct dart_window_args {
    uint32_t B, H, G, N, P, K, S; /* N, P <= 256; G divides H; 2 <= K <= 8 */
    dart_window_mode mode;        /* dart_window_fold */
    float dt_min, dt_max;         /* dt_max 0: no limit */
    float eps;                    /* under the roots of memories and hin; > 0 */
    dart_tensor x, dt, conv_weight, conv_bias, tail, a_log, dt_bias, d, seq;
    dart_tensor conv, y, h, open, open_decay;
    dart_tensor rows, steps, hin, hin_scale;
    const dart_memories *closing;
    uint32_t closing_count;
} dart_window_args;
/* Tokens that a window has room for. */
DART_API uint32_t dart_window_tokens(void);
DART_API dart_status dart_window_append(dart_stream *stream, const dart_window_args *args);
DART_API dart_status dart_window_output(dart_stream *stream, const dart_window_args *args);
DART_API dart_status dart_window_fold(dart_stream *stream, const dart_window_args *args);

/* ids_t = the index of the largest logit, the lowest one among equals; NaN never wins, all NaN gives 0.
 * logits T V; ids i32 T. */
typedef struct dart_argmax_args {
    uint32_t T, V;
    dart_tensor logits, ids;
} dart_argmax_args;
DART_API dart_status dart_argmax(dart_stream *stream, const dart_argmax_args *args);

/* Chooses ids_t by the settings of row t. The device reads the settings when the recording runs, so that one recording serves
 * any settings. The order of the steps is that of the common libraries:
 *   1. Ids at or above ids_below_t do not take part (0 or >= V: all do), nor do NaN logits.
 *   2. Repetition penalty r_t above 0 and not 1, with `seen`: the logits of ids that seen_t has are divided by r_t, those below 0 multiplied
 *      by it. How often or how long ago an id came does not matter.
 *   3. temperature_t not above 0, or NaN: ids_t is the largest logit, the lowest index among equals; the steps below do not matter. Else the
 *      weight of an id is w = exp((logit - largest logit) / temperature_t).
 *   4. The top_k_t largest logits are kept (0 or >= V: all; ties: lower index first).
 *   5. top_p_t above 0 and below 1: of these, from the largest down (ties: lower index first), an id is kept if the weights before it add up to
 *      less than top_p_t times the sum of all weights that step 4 keeps. The largest logit is always kept.
 *   6. min_p_t above 0: of these, ids are kept whose w is not below min_p_t, that is, whose probability is not below min_p_t times the largest.
 *   7. ids_t ~ w of what is kept, walking it in index order with one uniform number: Philox4x32-10 of counter (position_t, t, 0, 0) and key
 *      seed_t; word 0 / 2^32. position_t is the sum of the two columns of seq (tokens so far), 0 without seq. With bit 31 of ids_below_t set,
 *      which is not part of that number, the counter is (position_t, 0, 0, 0): the choice does not depend on the place of the row.
 * Backends sum weights in different orders: within rounding of a border of steps 5 to 7 they may choose neighbours.
 * mark_ids: ids_t as it was before, if within 0 and V - 1, is put into seen_t first, and counts for step 2: in a decoding step it is the token
 * consumed. Rows whose id stays by keep_ended are not marked.
 * logits T V; settings i32 T 8: the 32 bits of the f32 temperature, top_k, the lower and the upper half of the seed, the bits of top_p, min_p
 * and the repetition penalty, ids_below; ids i32 T; seq T 2, optional; seen i32 T ceil(V/32), optional: id i is bit i mod 32 of word i / 32.
 * Source of Philox: Salmon et al. 2011. */
typedef struct dart_sample_args {
    uint32_t T, V;
    bool keep_ended; /* with seq: ids_t stays as it is where the count of row t is 0 */
    bool mark_ids;   /* with seen */
    dart_tensor logits, settings, seq, seen, ids;
} dart_sample_args;
DART_API dart_status dart_sample(dart_stream *stream, const dart_sample_args *args);

/* Puts the tokens of sequences into their sets: bit id mod 32 of word id / 32 of seen_b, for the tokens of sequence b. Ids outside 0 to V - 1
 * are passed over. seen keeps what it has; dart_fill makes it empty.
 * ids i32 B L, or T packed; seq or cu as in the laws above, optional; seen i32 B ceil(V/32). */
typedef struct dart_mark_ids_args {
    uint32_t B, L, T, V;
    dart_tensor ids, seq, cu, seen;
} dart_mark_ids_args;
DART_API dart_status dart_mark_ids(dart_stream *stream, const dart_mark_ids_args *args);

/* Log-probabilities of rows of logits, so that the logits need not leave the device:
 *   log_z_t = log sum_v exp(logits_t,v);  target_t = logits_t,targets_t - log_z_t;
 *   top_ids_t = the ids of the k largest logits, from the largest down, the lower index first among equals;  top_t = their logits - log_z_t.
 * A NaN logit counts as -infinity; +infinity must not occur. Results below -3.4e38, as of a logit of -infinity, are -3.4e38. Where there are
 * fewer than k numbers, top_ids is -1 and top -3.4e38. A target outside 0 to V - 1 gives 0. Sums are f32, as in cross entropy.
 * logits T V; log_z f32 T; targets i32 T and target f32 T, optional together; with k above 0 top_ids i32 T k and top f32 T k. */
enum { DART_MOST_TOP = 32 }; /* the largest k */
typedef struct dart_log_probs_args {
    uint32_t T, V, k;
    dart_tensor logits, targets, log_z, target, top_ids, top;
} dart_log_probs_args;
DART_API dart_status dart_log_probs(dart_stream *stream, const dart_log_probs_args *args);

/* Ends a decoding step on the device: position_b += count_b; then log[b, position_b mod slots] = ids_b, so that the host can read
 * the ids of several steps at once. A sequence then ends, which sets count_b = 0 and live_b = -1, when ids_b is one of its end
 * ids or when position_b has reached its last position. A sequence with a count of 0 stays as it is.
 * seq i32 B 2; ids i32 B and log i32 B slots, optional together; with them stops i32 B 5 and live i32 B, optional together:
 * stops_b are four end ids (-1: none) and the last position (0: none). live can be passed to dart_rms_norm as rows. */
typedef struct dart_advance_args {
    uint32_t B, slots;
    dart_tensor seq, ids, log, stops, live;
} dart_advance_args;
DART_API dart_status dart_advance(dart_stream *stream, const dart_advance_args *args);

/* y = x with another storage type: T rows of W elements. With pairs, i32 T 2, row to of y becomes row from of x for each pair {from, to};
 * x then has X rows and y has Y, every row of y is in one pair at most, and a pair with a negative number does nothing. */
typedef struct dart_convert_args {
    uint32_t T, W;
    uint32_t X, Y; /* with pairs only */
    dart_tensor x, y, pairs;
} dart_convert_args;
DART_API dart_status dart_convert(dart_stream *stream, const dart_convert_args *args);

/* y = value in every element (T rows of W). */
typedef struct dart_fill_args {
    uint32_t T, W;
    float value;
    dart_tensor y; /* f32, f16 or bf16; i32 takes the value converted */
} dart_fill_args;
DART_API dart_status dart_fill(dart_stream *stream, const dart_fill_args *args);

#ifdef __cplusplus
}
#endif
#endif
