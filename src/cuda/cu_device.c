/* Contexts, kernels and memory of a device. */
#include "cu.h"

#include "base/file.h"

#include <stdlib.h>

/* By slot: how each row is launched. */
static const struct {
    const char *name; /* NULL: of the library */
    uint32_t needs, threads, shared_bytes, blocks, fallback;
} cu_rows[] = {
#define CUDA_ROW(id, variant, source, needs, fits, T0, T1, max_rows) {#id "_" #variant, needs, CUDA_BLOCK, 0, 0, 0},
#define CUDA_SHAPED_ROW(id, variant, source, needs, fits, T0, T1, max_rows, threads, shared_bytes, blocks) \
    {#id "_" #variant, needs, threads, shared_bytes, blocks, 0},
#define CUDA_BLAS_ROW(id, variant, fallback, needs, fits, T0, T1, max_rows) {NULL, needs, 0, 0, 0, CU_SLOT_##id##_##fallback},
#include "kernels.def"
};

/* The fallback of a CUDA_BLAS_ROW computes the tiles that were counted for that row, on any device and for any call. */
enum {
#define CUDA_ROW(id, variant, source, needs, fits, T0, T1, max_rows) \
    TILE0_##id##_##variant = (T0), TILE1_##id##_##variant = (T1), \
    ALWAYS_##id##_##variant = (needs) == 0 && (fits) == 0 && (max_rows) == 0,
#include "kernels.def"
};
#define CUDA_BLAS_ROW(id, variant, fallback, needs, fits, T0, T1, max_rows) \
    static_assert(TILE0_##id##_##fallback == (T0) && TILE1_##id##_##fallback == (T1) && ALWAYS_##id##_##fallback, \
                  "fallback of " #id "[" #variant "]");
#include "kernels.def"

/* The rows with a CUDA_MAP. */
static const struct { uint32_t slot, binding, rows; } cu_maps[] = {
#define CUDA_MAP(id, variant, binding, rows) {CU_SLOT_##id##_##variant, BINDING_##id##_##binding, rows},
#include "kernels.def"
};

/* Args, CudaBindings, the dtypes word and perhaps a CudaMap: what every driver passes to a kernel. */
#define CU_MAX_PARAMETERS 4096
#define KERNEL(id, Args) typedef struct Args args_of_##id;
#define CUDA_ROW(id, variant, source, needs, fits, T0, T1, max_rows) \
    static_assert(sizeof(args_of_##id) % 4 == 0 && \
                      sizeof(args_of_##id) + sizeof(struct CudaBindings) + 64 + sizeof(struct CudaMap) <= CU_MAX_PARAMETERS, \
                  "parameters of " #id);
#include "kernels.def"

/* The rows with a CUDA_OVERLAP. */
static const struct { uint32_t slot; int after; } cu_overlaps[] = {
#define CUDA_OVERLAP(id, variant, after) {CU_SLOT_##id##_##variant, KERNEL_##after},
#include "kernels.def"
};
/* Graphs take launches that overlap from this version of the driver on. */
#define CU_OVERLAP_DRIVER 12030

#define BIT(id, name) (1u << BINDING_##id##_##name)
static const struct { uint32_t slot, fetches; } cu_early[] = {
#define CUDA_EARLY(id, variant, bindings) {CU_SLOT_##id##_##variant, bindings},
#include "kernels.def"
};
#undef BIT

static const struct { const char *name; uint32_t slot, last, most; kernel_id id, last_id; } cu_merged_rows[] = {
#define CUDA_MERGED(id, variant, last, last_variant, source, most) \
    {#id "_" #variant "_" #last "_" #last_variant, CU_SLOT_##id##_##variant, CU_SLOT_##last##_##last_variant, most, KERNEL_##id, KERNEL_##last},
#include "kernels.def"
};

/* ---- Devices ---- */

/* Asking for an attribute loads the code now; a driver may otherwise do so while a stream is captured. */
static dart_status find_function(cu_device *device, uint8_t image, const char *name, int threads, uint32_t shared_bytes, CUfunction *function)
{
    int most = 0;
    dart_status status = DART_OK;
    base_lock(&cu_code);
    if (device->modules[image] == NULL) TRY(CU(device, cuModuleLoadData, &device->modules[image], cu_images[image]));
    TRY(CU(device, cuModuleGetFunction, function, device->modules[image], name));
    TRY(CU(device, cuFuncGetAttribute, &most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, *function));
    if (most < threads) FAIL(device->report, DART_UNSUPPORTED, "cuda: %s runs with at most %d threads", name, most);
    if (shared_bytes > 0) TRY(CU(device, cuFuncSetAttribute, *function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared_bytes));
fail:
    base_unlock(&cu_code);
    return status;
}

static dart_status find_merged(cu_device *device)
{
    dart_status status = DART_OK;
    for (size_t i = 0; i < COUNT_OF(cu_merged_rows) && status == DART_OK; i++) {
        device->merged[i] = (cu_merged){.kernel = &device->kernels[cu_merged_rows[i].slot], .last = &device->kernels[cu_merged_rows[i].last],
                                        .id = cu_merged_rows[i].id, .last_id = cu_merged_rows[i].last_id,
                                        .most = cu_merged_rows[i].most == 0 ? CU_MAX_GRID : cu_merged_rows[i].most};
        cu_merged *merged = &device->merged[i];
        merged->shared_bytes = merged->kernel->shared_bytes > merged->last->shared_bytes ? merged->kernel->shared_bytes : merged->last->shared_bytes;
        status = find_function(device, cu_merged_images[i], cu_merged_rows[i].name, CUDA_BLOCK, merged->shared_bytes, &merged->function);
    }
    device->merged_count = COUNT_OF(cu_merged_rows);
    return status;
}

dart_status cu_device_create(void *instance, uint32_t index, const dart_device_options *options, uint32_t capabilities,
                             base_report *report, void **device)
{
    const cu_instance *in = instance;
    dart_status status = DART_OK;
    bool entered = false;
    if (!in->adapters[index].info.usable)
        return base_fail(report, DART_UNSUPPORTED, "cuda: %s", in->adapters[index].info.why_not);
    if (options->backwards != 0) return base_fail(report, DART_UNSUPPORTED, "cuda: launches do not go backwards");
    cu_device *made = calloc(1, sizeof *made);
    if (made == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "cuda: no host memory");
    made->driver = &in->driver;
    made->blas = &in->blas;
    made->report = report;
    made->handle = in->adapters[index].handle;
    made->profiled = options->profile != NULL;
    atomic_init(&made->lost, false);
    made->kernels = calloc(COUNT_OF(cu_rows), sizeof *made->kernels);
    made->modules = calloc(cu_images_count, sizeof *made->modules);
    made->merged = calloc(COUNT_OF(cu_merged_rows), sizeof *made->merged);
    if (made->kernels == NULL || made->modules == NULL || made->merged == NULL) FAIL(report, DART_OUT_OF_MEMORY, "cuda: no host memory");
    TRY(CU(made, cuDevicePrimaryCtxRetain, &made->context, made->handle));
    TRY(cu_enter(made));
    entered = true;
    int multiprocessors = 0;
    TRY(CU(made, cuDeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, made->handle));
    for (size_t i = 0; i < COUNT_OF(cu_rows); i++) {
        cu_kernel *kernel = &made->kernels[i];
        kernel->overlaps = -1;
        kernel->fallback = cu_rows[i].fallback;
        if (cu_rows[i].name == NULL || (cu_rows[i].needs & ~capabilities) != 0) continue;
        TRY(find_function(made, cu_row_images[i], cu_rows[i].name, (int)cu_rows[i].threads, cu_rows[i].shared_bytes, &kernel->function));
        kernel->threads = cu_rows[i].threads;
        kernel->shared_bytes = cu_rows[i].shared_bytes;
        kernel->together = (cu_rows[i].needs & DART_CAP_RESIDENT) != 0;
        kernel->max_grid = cu_rows[i].blocks == 0 ? CU_MAX_GRID : cu_rows[i].blocks * (uint32_t)multiprocessors;
    }
    if ((capabilities & DART_CAP_CUBLASLT) != 0) TRY(cu_blas_open(made));
    for (size_t i = 0; i < COUNT_OF(cu_maps); i++) {
        made->kernels[cu_maps[i].slot].map_binding = cu_maps[i].binding;
        made->kernels[cu_maps[i].slot].map_rows = cu_maps[i].rows;
    }
    TRY(find_merged(made));
    int version = 0;
    TRY(CU(made, cuDriverGetVersion, &version));
    const bool early = version >= CU_OVERLAP_DRIVER && (capabilities & DART_CAP_SM90) != 0;
    for (size_t i = 0; i < COUNT_OF(cu_overlaps) && early; i++) made->kernels[cu_overlaps[i].slot].overlaps = cu_overlaps[i].after;
    for (size_t i = 0; i < COUNT_OF(cu_early) && early; i++) {
        made->kernels[cu_early[i].slot].early = true;
        made->kernels[cu_early[i].slot].fetches = cu_early[i].fetches;
    }
    TRY(CU(made, cuStreamCreate, &made->copies, CU_STREAM_NON_BLOCKING));
    TRY(cu_transfers_create(made));
    TRY(base_mutex_init(&made->submitting));
    /* Last, since it stands for the mutex as well. */
    status = CU(made, cuStreamCreate, &made->queue, CU_STREAM_NON_BLOCKING);
    if (status != DART_OK) base_mutex_destroy(&made->submitting);
    if (status != DART_OK) goto fail;
    cu_leave(made);
    *device = made;
    return DART_OK;
fail:
    if (entered) cu_leave(made);
    cu_device_destroy(made);
    return status;
}

void cu_device_destroy(void *device)
{
    cu_device *d = device;
    if (d == NULL) return;
    if (d->context != NULL) {
        /* On a lost device too: the context belongs to the host program as well. */
        if (d->driver->cuCtxPushCurrent(d->context) == CUDA_SUCCESS) {
            cu_blas_close(d);
            cu_transfers_destroy(d);
            if (d->copies != NULL) d->driver->cuStreamDestroy(d->copies);
            if (d->queue != NULL) d->driver->cuStreamDestroy(d->queue);
            for (uint32_t i = 0; i < cu_images_count && d->modules != NULL; i++) {
                if (d->modules[i] == NULL) continue;
                base_lock(&cu_code); /* one at a time, so that a capture waits for no more than that */
                d->driver->cuModuleUnload(d->modules[i]);
                base_unlock(&cu_code);
            }
            cu_leave(d);
        }
        d->driver->cuDevicePrimaryCtxRelease(d->handle);
    }
    if (d->queue != NULL) base_mutex_destroy(&d->submitting);
    free(d->kernels);
    free(d->merged);
    free(d->modules);
    free(d);
}

dart_status cu_warm(void *device, const backend_code *code)
{
    (void)code; /* loaded with the device */
    cu_device *d = device;
    return atomic_load(&d->lost) ? base_fail(d->report, DART_DEVICE_LOST, "cuda: the device was lost before") : DART_OK;
}

/* ---- Memory ---- */

dart_status cu_memory_create(void *device, uint64_t bytes, void **memory)
{
    cu_device *d = device;
    if (bytes > SIZE_MAX) return base_fail(d->report, DART_OUT_OF_MEMORY, "cuda: more bytes than an address can tell");
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    cu_memory *made = calloc(1, sizeof *made);
    if (made == NULL) {
        status = base_fail(d->report, DART_OUT_OF_MEMORY, "cuda: no host memory");
    } else {
        status = CU(d, cuMemAlloc, &made->address, (size_t)bytes);
    }
    cu_leave(d);
    if (status != DART_OK) {
        free(made);
        return status;
    }
    *memory = made;
    return DART_OK;
}

dart_status cu_memory_create_shared(void *device, uint64_t bytes, int descriptor, uint64_t allocated, void **memory)
{
    cu_device *d = device;
    if (descriptor < 0) return base_fail(d->report, DART_UNSUPPORTED, "cuda: memory is imported only; a Vulkan device makes and exports it");
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    const int copy = file_copy_descriptor(descriptor); /* an import that succeeds takes it */
    const CUexternalMemoryHandleDesc in = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = copy, .size = allocated};
    const CUexternalMemoryBufferDesc range = {.size = bytes};
    cu_memory *made = calloc(1, sizeof *made);
    if (made == NULL || copy < 0) status = base_fail(d->report, DART_OUT_OF_MEMORY, "cuda: no host memory, or descriptor %d is not open", descriptor);
    if (status == DART_OK) status = CU(d, cuImportExternalMemory, &made->external, &in);
    if (status != DART_OK) file_close_descriptor(copy);
    TRY(status);
    TRY(CU(d, cuExternalMemoryGetMappedBuffer, &made->address, made->external, &range));
    cu_leave(d);
    *memory = made;
    return DART_OK;
fail:
    cu_leave(d);
    cu_memory_destroy(d, made);
    return status;
}

void cu_memory_destroy(void *device, void *memory)
{
    cu_device *d = device;
    cu_memory *m = memory;
    if (m == NULL) return;
    if (d->driver->cuCtxPushCurrent(d->context) == CUDA_SUCCESS) {
        if (m->address != 0) d->driver->cuMemFree(m->address);
        if (m->external != NULL) d->driver->cuDestroyExternalMemory(m->external);
        cu_leave(d);
    }
    free(m);
}

uint64_t cu_memory_address(void *device, const void *memory)
{
    (void)device;
    return ((const cu_memory *)memory)->address;
}
