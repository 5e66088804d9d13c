/* The null backend: keeps memory, counts launches, runs nothing. The template for new backends. */
#include "runtime/backend.h"

#include <stdlib.h>
#include <string.h>

typedef struct null_stream {
    uint32_t recorded;
    uint64_t runs;
} null_stream;

static int null_handle; /* the instance has no state: any address serves */

typedef struct null_device {
    base_report *report;
} null_device;

static void *null_calloc(void *device, uint64_t bytes)
{
    void *memory = bytes <= SIZE_MAX ? calloc(1, (size_t)bytes) : NULL;
    if (memory == NULL)
        base_fail(((null_device *)device)->report, DART_OUT_OF_MEMORY, "no host memory for %llu bytes", (unsigned long long)bytes);
    return memory;
}

static dart_status null_instance_create(const dart_context_options *options, base_report *report, void **instance)
{
    (void)options, (void)report;
    *instance = &null_handle;
    return DART_OK;
}
static void null_instance_destroy(void *instance) { (void)instance; }
static uint32_t null_device_count(const void *instance) { return instance != NULL; }

/* Claims what a Vulkan device has, so that ops plan as they would there. */
static void null_device_info(const void *instance, uint32_t index, dart_device_info *info)
{
    (void)instance, (void)index;
    info->type = DART_DEVICE_OTHER;
    strcpy(info->name, "null");
    strcpy(info->driver, "records launches, runs nothing");
    info->capabilities = DART_CAP_STORE16 | DART_CAP_SUBGROUP;
    info->subgroup = 1;
    info->workgroup = 128;
    info->shared_bytes = 16384;
    info->memory_bytes = UINT64_C(1) << 32;
    info->max_binding_bytes = UINT64_C(1) << 27;
    info->usable = true;
}

static dart_status null_device_create(void *instance, uint32_t index, const dart_device_options *options, uint32_t capabilities,
                                      base_report *report, void **device)
{
    (void)instance, (void)index, (void)options, (void)capabilities;
    null_device *made = calloc(1, sizeof *made);
    if (made == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "no host memory for a device");
    made->report = report;
    *device = made;
    return DART_OK;
}
static void null_device_destroy(void *device) { free(device); }

static dart_status null_memory_create(void *device, uint64_t bytes, void **memory)
{
    *memory = null_calloc(device, bytes);
    return *memory != NULL ? DART_OK : DART_OUT_OF_MEMORY;
}
static void null_memory_destroy(void *device, void *memory)
{
    (void)device;
    free(memory);
}
static dart_status null_memory_write(void *device, void *memory, uint64_t offset, const void *data, uint64_t bytes)
{
    (void)device;
    memcpy((char *)memory + offset, data, (size_t)bytes);
    return DART_OK;
}
static dart_status null_memory_read(void *device, void *memory, uint64_t offset, void *data, uint64_t bytes)
{
    (void)device;
    memcpy(data, (const char *)memory + offset, (size_t)bytes);
    return DART_OK;
}

static dart_status null_stream_create(void *device, void **stream)
{
    *stream = null_calloc(device, sizeof(null_stream));
    return *stream != NULL ? DART_OK : DART_OUT_OF_MEMORY;
}
static void null_stream_destroy(void *device, void *stream)
{
    (void)device;
    free(stream);
}
static dart_status null_stream_begin(void *device, void *stream)
{
    (void)device;
    ((null_stream *)stream)->recorded = 0;
    return DART_OK;
}
static dart_status null_stream_launch(void *device, void *stream, const backend_launch *launch)
{
    (void)device, (void)launch;
    ((null_stream *)stream)->recorded++;
    return DART_OK;
}
static dart_status null_stream_submit(void *device, void *stream, uint32_t times, const backend_order *order)
{
    (void)device, (void)order;
    ((null_stream *)stream)->runs += times;
    return DART_OK;
}
static dart_status null_stream_wait(void *device, void *stream, uint64_t timeout_ns)
{
    (void)device, (void)stream, (void)timeout_ns;
    return DART_OK;
}
static dart_status null_stream_elapsed(void *device, void *stream, uint64_t *ns)
{
    (void)device, (void)stream;
    *ns = 0;
    return DART_OK;
}
static dart_status null_warm(void *device, const backend_code *code)
{
    (void)device, (void)code;
    return DART_OK;
}

const backend null_backend = {
    .kind = DART_BACKEND_NULL,
    .rows = DART_BACKEND_VULKAN,
    .ranges = true,
    .instance_create = null_instance_create,
    .instance_destroy = null_instance_destroy,
    .device_count = null_device_count,
    .device_info = null_device_info,
    .device_create = null_device_create,
    .device_destroy = null_device_destroy,
    .memory_create = null_memory_create,
    .memory_destroy = null_memory_destroy,
    .memory_write = null_memory_write,
    .memory_read = null_memory_read,
    .stream_create = null_stream_create,
    .stream_destroy = null_stream_destroy,
    .stream_begin = null_stream_begin,
    .stream_launch = null_stream_launch,
    .stream_submit = null_stream_submit,
    .stream_wait = null_stream_wait,
    .stream_elapsed = null_stream_elapsed,
    .warm = null_warm,
};
