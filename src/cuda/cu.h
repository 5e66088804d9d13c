/* The CUDA backend's own types.
 *
 * cu_driver.c    loads the driver library
 * cu_blas.c      loads cuBLASLt, matrix products
 * cu_instance.c  list of devices
 * cu_device.c    contexts, kernels, memory
 * cu_transfer.c  host access to memory
 * cu_semaphore.c semaphores of other APIs
 * cu_group.c     sums over several devices: loads NCCL
 * cu_set.c       launches that are merged, or begin early
 * cu_stream.c    recording, graphs, waiting, times
 */
#ifndef DART_CU_H
#define DART_CU_H

#include "runtime/backend.h"
#include "cuda/lib/launch.h"

#include <stdatomic.h>

/* Slots of the rows (kernel_row.slot), and how many there are. */
enum {
#define CUDA_ROW(id, variant, source, needs, fits, T0, T1, max_rows) CU_SLOT_##id##_##variant,
#include "kernels.def"
    CU_ROWS
};

/* Room for the arguments of any kernel. */
typedef union cu_args {
#define KERNEL(id, Args) struct Args id;
#include "kernels.def"
} cu_args;

/* ---- The driver API, as far as it is used. Declared here so that the build needs no toolkit. ---- */

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned long long CUdeviceptr;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_READY = 600,
    CU_FIRST_CAPTURE_ERROR = 900, /* to the last: what breaks off a capture, or what a capture forbids */
    CU_LAST_CAPTURE_ERROR = 908
};
enum {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 95
};
enum {
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1,
    CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3,
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_EVENT_DEFAULT = 0,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
};
typedef struct CUlaunchAttribute {
    int id, pad;
    union { char room[64]; uint64_t aligned; int value; } value;
} CUlaunchAttribute;
typedef struct CUlaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned attributes_count;
} CUlaunchConfig;

#if defined(_WIN32)
#define CU_CALL __stdcall
#else
#define CU_CALL
#endif

typedef struct CUextMemory_st *CUexternalMemory;
enum { CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1 };
typedef struct CUexternalMemoryHandleDesc {
    int type;
    union { int fd; void *pointers[2]; } handle;
    unsigned long long size;
    unsigned flags, reserved[16];
} CUexternalMemoryHandleDesc;
typedef struct CUexternalMemoryBufferDesc {
    unsigned long long offset, size;
    unsigned flags, reserved[16];
} CUexternalMemoryBufferDesc;

typedef struct CUextSemaphore_st *CUexternalSemaphore;
enum { CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD = 1, CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD = 9 };
typedef struct CUexternalSemaphoreHandleDesc {
    int type;
    union { int fd; void *pointers[2]; } handle;
    unsigned flags, reserved[16];
} CUexternalSemaphoreHandleDesc;
/* The driver has two of the same size, whose other members are for other APIs. */
typedef struct CUexternalSemaphoreParams {
    unsigned long long value, others[8];
    unsigned flags, reserved[16];
} CUexternalSemaphoreParams;

/* Member, symbol, parameters. */
#define CU_FUNCTIONS(X) \
    X(cuInit, "cuInit", (unsigned flags)) \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *version)) \
    X(cuGetErrorString, "cuGetErrorString", (CUresult error, const char **text)) \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *count)) \
    X(cuDeviceGet, "cuDeviceGet", (CUdevice *device, int ordinal)) \
    X(cuDeviceGetName, "cuDeviceGetName", (char *name, int size, CUdevice device)) \
    X(cuDeviceGetUuid, "cuDeviceGetUuid_v2", (unsigned char *uuid, CUdevice device)) \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *bytes, CUdevice device)) \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device)) \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *context, CUdevice device)) \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device)) \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context)) \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext *context)) \
    X(cuModuleLoadData, "cuModuleLoadData", (CUmodule *module, const void *image)) \
    X(cuModuleUnload, "cuModuleUnload", (CUmodule module)) \
    X(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction *function, CUmodule module, const char *name)) \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *value, int attribute, CUfunction function)) \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction function, int attribute, int value)) \
    X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled", \
      (void *map, int type, uint32_t rank, void *address, const uint64_t *sizes, const uint64_t *strides, \
       const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill)) \
    X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *address, size_t bytes)) \
    X(cuMemFree, "cuMemFree_v2", (CUdeviceptr address)) \
    X(cuMemHostAlloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags)) \
    X(cuMemFreeHost, "cuMemFreeHost", (void *memory)) \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
    X(cuImportExternalMemory, "cuImportExternalMemory", (CUexternalMemory *memory, const CUexternalMemoryHandleDesc *desc)) \
    X(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", \
      (CUdeviceptr *address, CUexternalMemory memory, const CUexternalMemoryBufferDesc *desc)) \
    X(cuDestroyExternalMemory, "cuDestroyExternalMemory", (CUexternalMemory memory)) \
    X(cuImportExternalSemaphore, "cuImportExternalSemaphore", \
      (CUexternalSemaphore *semaphore, const CUexternalSemaphoreHandleDesc *desc)) \
    X(cuDestroyExternalSemaphore, "cuDestroyExternalSemaphore", (CUexternalSemaphore semaphore)) \
    X(cuWaitExternalSemaphoresAsync, "cuWaitExternalSemaphoresAsync", \
      (const CUexternalSemaphore *semaphores, const CUexternalSemaphoreParams *params, unsigned count, CUstream stream)) \
    X(cuSignalExternalSemaphoresAsync, "cuSignalExternalSemaphoresAsync", \
      (const CUexternalSemaphore *semaphores, const CUexternalSemaphoreParams *params, unsigned count, CUstream stream)) \
    X(cuStreamCreate, "cuStreamCreate", (CUstream *stream, unsigned flags)) \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", (CUstream *stream, unsigned flags, int priority)) \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream)) \
    X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream)) \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, int mode)) \
    X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph *graph)) \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", \
      (CUgraphExec *exec, CUgraph graph, unsigned long long flags)) \
    X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream)) \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec exec)) \
    X(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph)) \
    X(cuEventCreate, "cuEventCreate", (CUevent *event, unsigned flags)) \
    X(cuEventDestroy, "cuEventDestroy_v2", (CUevent event)) \
    X(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream)) \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags)) \
    X(cuEventQuery, "cuEventQuery", (CUevent event)) \
    X(cuEventSynchronize, "cuEventSynchronize", (CUevent event)) \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *milliseconds, CUevent start, CUevent end)) \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", \
      (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))

typedef struct cu_driver {
    void *library;
#define CU_MEMBER(member, symbol, parameters) CUresult (CU_CALL *member) parameters; /* NOLINT(bugprone-macro-parentheses): a declaration */
    CU_FUNCTIONS(CU_MEMBER)
#undef CU_MEMBER
} cu_driver;

/* False, and nothing to unload, when there is no driver or a function is missing, which *missing then names. */
bool cu_driver_load(cu_driver *driver, const char **missing);
void cu_driver_unload(cu_driver *driver);
const char *cu_driver_text(const cu_driver *driver, CUresult result);

/* ---- cuBLASLt, as far as it is used: handles are pointers, attributes and states ints, as in its versions 12 and 13. ---- */

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatmulDescOpaque *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayoutOpaque *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreferenceOpaque *cublasLtMatmulPreference_t;
typedef struct cu_blas_algorithm { uint64_t data[8]; } cu_blas_algorithm;
typedef struct cu_blas_heuristic {
    cu_blas_algorithm algorithm;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} cu_blas_heuristic;

#define CU_BLAS_FUNCTIONS(X) \
    X(cublasLtCreate, "cublasLtCreate", (cublasLtHandle_t *handle)) \
    X(cublasLtDestroy, "cublasLtDestroy", (cublasLtHandle_t handle)) \
    X(cublasLtMatmulDescCreate, "cublasLtMatmulDescCreate", (cublasLtMatmulDesc_t *desc, int compute_type, int scale_type)) \
    X(cublasLtMatmulDescDestroy, "cublasLtMatmulDescDestroy", (cublasLtMatmulDesc_t desc)) \
    X(cublasLtMatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute", \
      (cublasLtMatmulDesc_t desc, int attribute, const void *value, size_t bytes)) \
    X(cublasLtMatrixLayoutCreate, "cublasLtMatrixLayoutCreate", \
      (cublasLtMatrixLayout_t *layout, int type, uint64_t rows, uint64_t columns, int64_t leading)) \
    X(cublasLtMatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy", (cublasLtMatrixLayout_t layout)) \
    X(cublasLtMatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate", (cublasLtMatmulPreference_t *preference)) \
    X(cublasLtMatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy", (cublasLtMatmulPreference_t preference)) \
    X(cublasLtMatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute", \
      (cublasLtMatmulPreference_t preference, int attribute, const void *value, size_t bytes)) \
    X(cublasLtMatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic", \
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, \
       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int requested, \
       cu_blas_heuristic *results, int *returned)) \
    X(cublasLtMatmulAlgoCheck, "cublasLtMatmulAlgoCheck", \
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, \
       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cu_blas_algorithm *algorithm, cu_blas_heuristic *result)) \
    X(cublasLtMatmul, "cublasLtMatmul", \
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout, \
       const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d, \
       cublasLtMatrixLayout_t d_layout, const cu_blas_algorithm *algorithm, void *workspace, size_t workspace_bytes, CUstream stream))

typedef struct cu_blas {
    void *library; /* NULL: there is none */
#define CU_MEMBER(member, symbol, parameters) int (CU_CALL *member) parameters; /* NOLINT(bugprone-macro-parentheses): a declaration */
    CU_BLAS_FUNCTIONS(CU_MEMBER)
#undef CU_MEMBER
} cu_blas;
/* False, and nothing to unload, when there is no library or a function is missing. */
bool cu_blas_load(cu_blas *blas);
void cu_blas_unload(cu_blas *blas);

/* What a product is chosen by, and the library's choice, of which the device remembers the last ones: a recording asks for
 * the same few over and over, the next one often for the same with another number of rows. */
typedef struct cu_choice_matrix {
    uint32_t type, lines, columns, leading, transposed, alignment;
} cu_choice_matrix;
typedef struct cu_choice_key {
    cu_choice_matrix matrices[3]; /* left, right, result */
} cu_choice_key;
typedef struct cu_choice {
    cu_choice_key key;
    bool found;
    size_t workspace_bytes;
    cu_blas_algorithm algorithm;
} cu_choice;
#define CU_CHOICES 128
typedef struct cu_choices {
    cublasLtHandle_t handle; /* NULL without the capability */
    base_mutex mutex;
    uint32_t next;
    cu_choice last[CU_CHOICES];
} cu_choices;

/* ---- Instances and devices ---- */

typedef struct cu_adapter {
    CUdevice handle;
    dart_device_info info;
} cu_adapter;

typedef struct cu_instance {
    cu_driver driver;
    cu_blas blas;
    uint32_t adapters_count;
    cu_adapter *adapters;
} cu_instance;

dart_status cu_instance_create(const dart_context_options *options, base_report *report, void **instance);
void cu_instance_destroy(void *instance);
uint32_t cu_instance_device_count(const void *instance);
void cu_instance_device_info(const void *instance, uint32_t index, dart_device_info *info);

/* Blocks loop over further tiles, so that any number of tiles fits any grid. */
#define CU_MAX_GRID (1u << 20)

typedef struct cu_kernel {
    CUfunction function; /* NULL for rows of the library, and where the device lacks a capability of the row */
    uint32_t threads, shared_bytes, max_grid;
    uint32_t fallback;              /* of a row of the library: the slot of the row that is taken where it has no algorithm */
    uint32_t map_binding, map_rows; /* of its CudaMap; 0 rows: it takes none */
    int overlaps; /* the kernel_id of its CUDA_OVERLAP, or -1 */
    bool together;    /* all blocks of a launch run side by side, or the launch fails (DART_CAP_RESIDENT) */
    bool early;       /* it has a CUDA_EARLY, and the device begins such launches before the one before has ended */
    uint32_t fetches; /* its bindings: 1 << slot */
} cu_kernel;

/* A CUDA_MERGED. */
typedef struct cu_merged {
    CUfunction function;
    const cu_kernel *kernel, *last;
    kernel_id id, last_id;
    uint32_t most; /* blocks of a launch of `kernel` */
    uint32_t shared_bytes;
} cu_merged;

/* Memory of the host that the device copies from and to by itself, made when it is first used. */
enum { CU_TRANSFERS = 8 };
typedef struct cu_transfer {
    bool taken; /* under transfer_lock, and the condition that one has been given back */
    CUstream stream;
    CUevent copied[2]; /* by half of the memory */
    uint8_t *memory;   /* NULL: not yet */
} cu_transfer;

typedef struct cu_device {
    const cu_driver *driver;
    const cu_blas *blas;
    base_report *report;
    CUdevice handle;
    CUcontext context; /* the primary one, shared with the host program */
    CUmodule *modules;  /* by image, NULL where no row of the image runs on the device */
    cu_kernel *kernels; /* by slot */
    cu_merged *merged;  /* in the order of the CUDA_MERGED rows */
    uint32_t merged_count;
    CUstream copies;    /* small host access, apart from the null stream, which would wait for the host program's work */
    cu_transfer transfers[CU_TRANSFERS]; /* all other */
    base_mutex transfer_lock;
    base_condition transfer_given;
    bool has_transfers; /* the lock and the condition are there */
    CUstream queue;     /* submissions, one after another */
    base_mutex submitting; /* so that the two events of a submission hold nothing else between them */
    cu_choices choices;
    bool profiled; /* launches run one by one, and are timed */
    atomic_bool lost;
} cu_device;

dart_status cu_device_create(void *instance, uint32_t index, const dart_device_options *options, uint32_t capabilities,
                             base_report *report, void **device);
void cu_device_destroy(void *device);
/* Every use of the device stands between these two: the calling thread may have a context of its own. */
dart_status cu_enter(cu_device *device);
void cu_leave(cu_device *device);
/* The status of a driver call, with its text in the report. Remembers a loss of the device. */
dart_status cu_check(cu_device *device, CUresult result, const char *function);
#define CU(device, function, ...) cu_check((device), (device)->driver->function(__VA_ARGS__), #function)

/* Held by the one thread of the process that loads or unloads code, or captures launches: the driver breaks captures off when another thread
 * unloads code. All devices of the process on a GPU share the context where that happens. */
extern base_mutex cu_code;

typedef struct cu_memory {
    CUdeviceptr address;
    CUexternalMemory external; /* imported; NULL: the device's own */
} cu_memory;
dart_status cu_memory_create(void *device, uint64_t bytes, void **memory);
void cu_memory_destroy(void *device, void *memory);
dart_status cu_memory_create_shared(void *device, uint64_t bytes, int descriptor, uint64_t allocated, void **memory);
dart_status cu_memory_write(void *device, void *memory, uint64_t offset, const void *data, uint64_t bytes);
dart_status cu_memory_read(void *device, void *memory, uint64_t offset, void *data, uint64_t bytes);
uint64_t cu_memory_address(void *device, const void *memory);
dart_status cu_warm(void *device, const backend_code *code);

dart_status cu_transfers_create(cu_device *device);
void cu_transfers_destroy(cu_device *device);
typedef struct cu_semaphore {
    CUexternalSemaphore handle;
} cu_semaphore;
dart_status cu_semaphore_create(void *device, bool binary, int descriptor, void **semaphore);
void cu_semaphore_destroy(void *device, void *semaphore);
/* What the order says, in a queue; NULL: nothing. */
dart_status cu_order_waits(cu_device *device, const backend_order *order, CUstream queue);
dart_status cu_order_signals(cu_device *device, const backend_order *order, CUstream queue);

/* ---- Streams ---- */

typedef struct cu_launch {
    const cu_kernel *kernel;
    int id; /* kernel_id */
    uint32_t grid, dtypes;
    struct CudaBindings bindings;
    uint64_t bytes[CUDA_BINDINGS]; /* of each binding */
    struct CudaMap map;
    cu_args args;
    cu_choice choice; /* found: cuBLASLt computes it */
    bool barrier;
} cu_launch;

/* Launches that need not wait for one another are captured on so many streams beside the first one. */
enum { CU_SIDES = 3 };

typedef struct cu_stream {
    CUstream handle, sides[CU_SIDES];
    CUevent start, end, fork, joins[CU_SIDES];
    cu_launch *launches;
    uint32_t launches_count, launches_capacity;
    CUdeviceptr workspace; /* of cuBLASLt, for all launches, as they follow one another */
    size_t workspace_bytes;
    /* Of the launches; NULL until they are submitted again, and on a device that is profiled. `copied`: CU_COPIES times, of short recordings that run
     * many times; NULL until then. */
    CUgraphExec exec, copied;
    CUevent *marks;   /* after each launch; on such a device only */
    uint32_t marks_count;
    bool ran;         /* the recording has been submitted */
    bool capturing;   /* with cu_code held */
    bool submitted, measured;
} cu_stream;

dart_status cu_stream_create(void *device, void **stream);
void cu_stream_destroy(void *device, void *stream);
dart_status cu_stream_begin(void *device, void *stream);
dart_status cu_stream_launch(void *device, void *stream, const backend_launch *launch);
dart_status cu_stream_submit(void *device, void *stream, uint32_t times, const backend_order *order);
dart_status cu_stream_wait(void *device, void *stream, uint64_t timeout_ns);
dart_status cu_stream_elapsed(void *device, void *stream, uint64_t *ns);
dart_status cu_stream_times(void *device, void *stream, uint64_t *ns, uint32_t *count);

/* ---- Launches that do not wait for one another ---- */

/* merged: how they are one launch, or NULL. alone: the set is one launch on the first stream. When it starts, every launch but its predecessor has
 * ended; it lets its successor start only after its predecessor has ended. */
typedef struct cu_set {
    const cu_launch *launches;
    uint32_t count; /* 0: there is none */
    const cu_merged *merged;
    bool alone;
} cu_set;
cu_set cu_set_at(const cu_device *device, const cu_stream *stream, uint32_t first);
/* CUDA_EARLY: whether the set is one launch that may begin before the one that it waits for has ended. */
bool cu_set_begins_early(const cu_set *before, const cu_set *set);
/* A set that is merged. soon: the set after the next one. */
dart_status cu_set_launch(cu_device *device, const cu_set *set, const cu_set *soon, CUstream to, bool early);
/* CUDA_OVERLAP: whether launch i may begin before the only launch that it waits for ends. */
bool cu_launch_overlaps(const cu_stream *stream, uint32_t i);

/* ---- Matrix products ---- */

dart_status cu_blas_open(cu_device *device);
void cu_blas_close(cu_device *device);
/* How to compute the launch of a CUDA_BLAS_ROW; choice->found is false where the library cannot. */
dart_status cu_blas_choose(cu_device *device, const cu_launch *launch, cu_choice *choice);
dart_status cu_blas_run(cu_device *device, const cu_launch *launch, const cu_choice *choice, const cu_stream *stream, CUstream to);

/* ---- Sums over the devices of several processes ---- */

dart_status cu_group_key(void *device, uint8_t key[BACKEND_GROUP_KEY]);
dart_status cu_group_create(void *device, const uint8_t key[BACKEND_GROUP_KEY], uint32_t rank, uint32_t count, uint64_t timeout_ns, void **group);
void cu_group_destroy(void *device, void *group);
dart_status cu_group_sum(void *device, void *group, const backend_binding *parts, uint32_t count);
dart_status cu_group_share(void *device, void *group, const backend_binding *parts, const uint32_t *owners, uint32_t count);
dart_status cu_group_wait(void *device, void *group);

/* ---- The kernels compiled (cmake/cuda.cmake), generated sources ---- */

extern const uint64_t *const cu_images[];
extern const uint32_t cu_images_count;
/* By slot: the image with the function of each row, 0 for rows of the library. */
extern const uint8_t cu_row_images[CU_ROWS];
/* The image with the function of each CUDA_MERGED row. */
extern const uint8_t cu_merged_images[];

#endif
