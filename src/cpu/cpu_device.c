/* The backend itself: one device, host memory, recorded launches. */
#include "cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPU_FUNCTION_plain(id) cpu_##id##_plain
#define CPU_FUNCTION_few(id) cpu_##id##_few
#if defined(DARTLM_AVX2)
#define CPU_FUNCTION_avx2(id) cpu_##id##_avx2
#define CPU_FUNCTION_few_avx2(id) cpu_##id##_few_avx2
#else
#define CPU_FUNCTION_avx2(id) NULL
#define CPU_FUNCTION_few_avx2(id) NULL
#endif
#if defined(DARTLM_BLAS)
#define CPU_FUNCTION_blas(id) cpu_##id##_blas
#else
#define CPU_FUNCTION_blas(id) NULL
#endif

const cpu_kernel cpu_kernels[] = {
#define CPU_ROW(id, variant, needs, fits, T0, T1, max_rows) CPU_FUNCTION_##variant(id),
#include "kernels.def"
};

/* More threads than this gain nothing on one model and cost scratch. */
#define MAX_THREADS 256u

typedef struct cpu_device {
    base_report *report;
    cpu_pool *pool;
} cpu_device;

typedef struct cpu_stream {
    cpu_launch *launches;
    cpu_progress *progress; /* room for `capacity` launches, as `launches` */
    size_t count, capacity;
    uint64_t elapsed_ns;
} cpu_stream;

static char cpu_instance; /* its address stands for the backend, which has no state */

static dart_status instance_create(const dart_context_options *options, base_report *report, void **instance)
{
    (void)options, (void)report;
    *instance = &cpu_instance;
    return DART_OK;
}

static void instance_destroy(void *instance) { (void)instance; }

static uint32_t device_count(const void *instance) { return instance ? 1 : 0; }

static void device_info(const void *instance, uint32_t index, dart_device_info *info)
{
    (void)instance, (void)index;
    memset(info, 0, sizeof *info);
    info->backend = DART_BACKEND_CPU;
    info->type = DART_DEVICE_CPU;
    cpu_detect_name(info->name, sizeof info->name);
    snprintf(info->driver, sizeof info->driver, "dartlm %s", dart_version());
    info->capabilities = 0;
    if (cpu_detect_avx2()) info->capabilities |= DART_CAP_AVX2;
#if defined(DARTLM_BLAS)
    info->capabilities |= DART_CAP_BLAS;
#endif
    info->subgroup = info->workgroup = 1;
    info->shared_bytes = CPU_SCRATCH * sizeof(float);
    info->memory_bytes = base_memory_bytes();
    info->max_binding_bytes = UINT64_C(1) << 32; /* elements are numbered with 32 bits */
    info->usable = true;
}

static void device_destroy(void *device)
{
    cpu_device *d = device;
    if (!d) return;
    cpu_pool_destroy(d->pool);
    free(d);
}

static dart_status device_create(void *instance, uint32_t index, const dart_device_options *options,
                                 uint32_t capabilities, base_report *report, void **device)
{
    (void)instance, (void)index, (void)capabilities;
    uint32_t threads = options->threads ? options->threads : base_core_count();
    if (threads == 0) threads = 1;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    cpu_device *made = calloc(1, sizeof *made);
    if (!made) return base_fail(report, DART_OUT_OF_MEMORY, "no memory for a device");
    made->report = report;
    dart_status status = cpu_pool_create(threads, report, &made->pool);
    if (status != DART_OK) {
        device_destroy(made);
        return status;
    }
    *device = made;
    return DART_OK;
}

static dart_status memory_create(void *device, uint64_t bytes, void **memory)
{
    cpu_device *d = device;
    void *made = bytes <= SIZE_MAX ? cpu_aligned_alloc((size_t)bytes) : NULL;
    if (!made)
        return base_fail(d->report, DART_OUT_OF_MEMORY, "no host memory for %llu bytes", (unsigned long long)bytes);
    *memory = made;
    return DART_OK;
}

static void memory_destroy(void *device, void *memory)
{
    (void)device;
    cpu_aligned_free(memory);
}

static dart_status memory_write(void *device, void *memory, uint64_t offset, const void *data, uint64_t bytes)
{
    (void)device;
    memcpy((char *)memory + offset, data, (size_t)bytes);
    return DART_OK;
}

static dart_status memory_read(void *device, void *memory, uint64_t offset, void *data, uint64_t bytes)
{
    (void)device;
    memcpy(data, (const char *)memory + offset, (size_t)bytes);
    return DART_OK;
}

static void stream_destroy(void *device, void *stream)
{
    (void)device;
    cpu_stream *s = stream;
    if (!s) return;
    free(s->launches);
    free(s->progress);
    free(s);
}

static dart_status stream_create(void *device, void **stream)
{
    cpu_device *d = device;
    cpu_stream *made = calloc(1, sizeof *made);
    if (!made) return base_fail(d->report, DART_OUT_OF_MEMORY, "no memory for a stream");
    *stream = made;
    return DART_OK;
}

static dart_status stream_begin(void *device, void *stream)
{
    (void)device;
    cpu_stream *s = stream;
    s->count = 0;
    s->elapsed_ns = 0;
    return DART_OK;
}

static dart_status grow(cpu_device *device, cpu_stream *stream)
{
    size_t capacity = stream->capacity ? 2 * stream->capacity : 64;
    cpu_launch *launches = realloc(stream->launches, capacity * sizeof *launches);
    if (launches) stream->launches = launches;
    cpu_progress *progress = realloc(stream->progress, cpu_progress_bytes(capacity));
    if (progress) stream->progress = progress;
    if (!launches || !progress)
        return base_fail(device->report, DART_OUT_OF_MEMORY, "no memory for %zu launches", capacity);
    stream->capacity = capacity;
    return DART_OK;
}

static dart_status stream_launch(void *device, void *stream, const backend_launch *launch)
{
    cpu_device *d = device;
    cpu_stream *s = stream;
    const kernel_info *kernel = &kernel_table[launch->row->id];
    if (!cpu_kernels[launch->row->slot])
        return base_fail(d->report, DART_INTERNAL, "%s has no variant %s in this build", kernel->name,
                         launch->row->variant);
    if (s->count == s->capacity) {
        dart_status status = grow(d, s);
        if (status != DART_OK) return status;
    }
    cpu_launch *to = &s->launches[s->count];
    memset(to, 0, sizeof *to);
    to->kernel = cpu_kernels[launch->row->slot];
    to->T0 = launch->T0;
    to->T1 = launch->T1;
    to->first = launch->first;
    to->end = launch->end;
    to->barrier = launch->barrier;
    to->backwards = launch->backwards;
    memcpy(to->args, launch->args, kernel->args_size);
    for (uint32_t i = 0; i < kernel->bindings_count; i++) {
        const backend_binding *binding = &launch->bindings[i];
        to->bindings[i].data = binding->memory ? (char *)binding->memory + binding->offset : NULL;
        to->bindings[i].dtype = i < KERNEL_TYPED_BINDINGS ? (dart_dtype)(launch->dtypes >> (2 * i) & 3u) : DART_F32;
    }
    s->count++;
    return DART_OK;
}

static dart_status stream_submit(void *device, void *stream, uint32_t times, const backend_order *order)
{
    (void)order; /* it has no semaphores */
    cpu_device *d = device;
    cpu_stream *s = stream;
    const uint64_t begin = base_now_ns();
    for (uint32_t i = 0; i < times; i++) cpu_pool_run(d->pool, s->launches, s->progress, s->count);
    s->elapsed_ns = base_now_ns() - begin;
    return DART_OK;
}

static dart_status stream_wait(void *device, void *stream, uint64_t timeout_ns)
{
    (void)device, (void)stream, (void)timeout_ns;
    return DART_OK;
}

static dart_status stream_elapsed(void *device, void *stream, uint64_t *ns)
{
    (void)device;
    *ns = ((const cpu_stream *)stream)->elapsed_ns;
    return DART_OK;
}

static dart_status warm(void *device, const backend_code *code)
{
    (void)device, (void)code;
    return DART_OK;
}

const backend cpu_backend = {
    .kind = DART_BACKEND_CPU,
    .rows = DART_BACKEND_CPU,
    .ranges = true,
    .instance_create = instance_create,
    .instance_destroy = instance_destroy,
    .device_count = device_count,
    .device_info = device_info,
    .device_create = device_create,
    .device_destroy = device_destroy,
    .memory_create = memory_create,
    .memory_destroy = memory_destroy,
    .memory_write = memory_write,
    .memory_read = memory_read,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_begin = stream_begin,
    .stream_launch = stream_launch,
    .stream_submit = stream_submit,
    .stream_wait = stream_wait,
    .stream_elapsed = stream_elapsed,
    .warm = warm,
};
