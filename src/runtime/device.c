/* An open device, its cache of compiled code, and faults injected for tests. */
#include "device.h"

#include "base/checksum.h"

#include <stdlib.h>
#include <string.h>

/* ---- The cache of compiled code: a header, then the backend's bytes ---- */

typedef struct cache_header {
    char magic[8];
    uint64_t bytes, checksum; /* of what follows */
} cache_header;
static const char cache_magic[8] = "dartlmc2";

void device_unwrap_cache(dart_device_options *options, base_log *log)
{
    cache_header header;
    const unsigned char *data = options->cache;
    const size_t bytes = options->cache_bytes;
    options->cache = NULL;
    options->cache_bytes = 0;
    if (data == NULL || bytes == 0) return;
    bool whole = bytes > sizeof header;
    if (whole) memcpy(&header, data, sizeof header);
    whole = whole && memcmp(header.magic, cache_magic, sizeof cache_magic) == 0 && header.bytes == bytes - sizeof header &&
            header.checksum == base_checksum(0, data + sizeof header, bytes - sizeof header);
    if (whole) {
        options->cache = data + sizeof header;
        options->cache_bytes = bytes - sizeof header;
    } else if (log != NULL) {
        base_log_line(log, DART_LOG_WARNING, "the cache of compiled code is damaged, or of another version, and is not used");
    }
}

/* The least that Vulkan lets a device have, but for the buffers of a kernel: 4, which are too few. */
#define MINIMUM_BINDING_BYTES (UINT64_C(1) << 27)
#define MINIMUM_SHARED_BYTES 16384u
#define MINIMUM_WORKGROUP 128u

void device_limit(dart_device_info *info, const dart_device_options *options, dart_backend_kind rows)
{
    uint64_t binding = options->max_binding_bytes;
    uint32_t bindings = options->max_bindings;
    if (options->minimum_limits) {
        if (binding == 0 || binding > MINIMUM_BINDING_BYTES) binding = MINIMUM_BINDING_BYTES;
        if (rows == DART_BACKEND_VULKAN) {
            if (bindings == 0) bindings = kernel_needed_buffers(rows);
            if (info->shared_bytes > MINIMUM_SHARED_BYTES) info->shared_bytes = MINIMUM_SHARED_BYTES;
            if (info->workgroup > MINIMUM_WORKGROUP) info->workgroup = MINIMUM_WORKGROUP;
            info->capabilities &= ~(uint32_t)(DART_CAP_LARGE | DART_CAP_SHARED48);
        }
    }
    if (binding != 0 && binding < info->max_binding_bytes) info->max_binding_bytes = binding;
    if (bindings != 0 && (info->max_bindings == 0 || bindings < info->max_bindings)) info->max_bindings = bindings;
}

void dart_device_destroy(dart_device **device)
{
    if (device == NULL || *device == NULL) return;
    dart_device *d = *device;
    if (d->handle != NULL) d->backend->device_destroy(d->handle);
    if (d->instance != NULL) d->backend->instance_destroy(d->instance);
    base_report_destroy(&d->report);
    free(d);
    *device = NULL;
}

dart_status dart_device_cache(dart_device *device, void *data, size_t *bytes)
{
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, bytes != NULL, "dart_device_cache: no place for the size");
    size_t inner = 0;
    const size_t room = *bytes;
    if (device->backend->cache_read == NULL) {
        *bytes = 0;
        return DART_OK;
    }
    if (data == NULL) {
        const dart_status status = device_note(device, device->backend->cache_read(device->handle, NULL, &inner));
        if (status == DART_OK) *bytes = inner + sizeof(cache_header);
        return status;
    }
    REQUIRE(&device->report, room > sizeof(cache_header), "dart_device_cache: %zu bytes are too few", room);
    unsigned char *to = data;
    inner = room - sizeof(cache_header);
    const dart_status status = device_note(device, device->backend->cache_read(device->handle, to + sizeof(cache_header), &inner));
    if (status != DART_OK) return status;
    cache_header header = {.bytes = inner, .checksum = base_checksum(0, to + sizeof header, inner)};
    memcpy(header.magic, cache_magic, sizeof header.magic);
    memcpy(to, &header, sizeof header);
    *bytes = inner + sizeof header;
    return DART_OK;
}

dart_status dart_device_describe(const dart_device *device, dart_device_info *info)
{
    if (device == NULL || info == NULL) return DART_INVALID_ARGUMENT;
    *info = device->info;
    return DART_OK;
}

size_t dart_device_error(const dart_device *device, char *text, size_t size)
{
    return device != NULL ? base_report_copy(&device->report, text, size) : 0;
}

uint64_t dart_device_bytes(const dart_device *device) { return device != NULL ? atomic_load(&device->bytes) : 0; }

dart_status device_fault(dart_device *device)
{
    if (atomic_load(&device->lost)) return base_fail(&device->report, DART_DEVICE_LOST, "%s was lost", device->info.name);
    unsigned left = atomic_load(&device->fail_in);
    while (left > 0 && !atomic_compare_exchange_weak(&device->fail_in, &left, left - 1)) {
    }
    if (left != 1) return DART_OK;
    if (device->lose) {
        atomic_store(&device->lost, true);
        return base_fail(&device->report, DART_DEVICE_LOST, "%s was lost (injected)", device->info.name);
    }
    return base_fail(&device->report, DART_OUT_OF_MEMORY, "out of memory (injected)");
}

dart_status device_note(dart_device *device, dart_status status)
{
    if (status == DART_DEVICE_LOST) atomic_store(&device->lost, true);
    return status;
}

double device_assumed_rate(const dart_device_info *info)
{
    /* Of a multiprocessor of a discrete GPU; of another GPU; of a processor: lavapipe's decoding on two busy cores. */
    const double multiprocessor = 150e9, other = 100e9, processor = 250e6;
    const uint32_t unknown = 16;
    if (info->type == DART_DEVICE_CPU) return processor;
    if (info->type != DART_DEVICE_DISCRETE) return other;
    return (info->multiprocessors != 0 ? info->multiprocessors : unknown) * multiprocessor;
}

double device_assumed_bytes(const dart_device_info *info)
{
    return info->type == DART_DEVICE_DISCRETE ? 40e9 : info->type == DART_DEVICE_CPU ? 100e6 : 8e9;
}

void *device_calloc(dart_device *device, size_t count, size_t size)
{
    if (device_fault(device) != DART_OK) return NULL;
    void *memory = calloc(count, size);
    if (memory == NULL) base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory for %zu x %zu bytes", count, size);
    return memory;
}

bool device_has_matrices(const dart_device *device, dart_dtype dtype)
{
    const uint32_t needed = dtype == DART_F16 ? DART_CAP_MATRIX_F16 : dtype == DART_BF16 ? DART_CAP_MATRIX_BF16 : 0;
    return needed != 0 && (device->backend->matrices || (device->info.capabilities & needed) != 0);
}
