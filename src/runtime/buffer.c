#include "device.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

/* Poison goes in and comes out in pieces, so that a large buffer does not need its size again on the host. */
enum { PIECE = 1 << 20 };

/* Words of poison: NaN as f32, f16 and bf16. With margins it is a huge number as i32, so that an id read from there leads far away; else -1. */
static uint16_t poison_of(const dart_device *device) { return device->margin > 0 ? 0x7fff : 0xffff; }

/* Of the memory, margins included. */
static dart_status poison(dart_buffer *buffer)
{
    dart_device *device = buffer->device;
    const uint64_t all = buffer->bytes + 2 * buffer->margin, piece = base_round_up(all < PIECE ? all : PIECE, 2);
    uint16_t *words = malloc((size_t)piece);
    if (words == NULL) return base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory to poison a buffer");
    for (size_t i = 0; i < piece / 2; i++) words[i] = poison_of(device);
    dart_status status = DART_OK;
    for (uint64_t at = 0; at < all && status == DART_OK; at += piece) {
        const uint64_t left = all - at;
        status = device->backend->memory_write(device->handle, buffer->memory, at, words, left < piece ? left : piece);
    }
    free(words);
    return device_note(device, status);
}

/* The first byte from `from` on, of `bytes` in the memory, that is no poison; from + bytes: none. */
static dart_status find_change(const dart_buffer *buffer, uint64_t from, uint64_t bytes, uint64_t *change)
{
    dart_device *device = buffer->device;
    const uint16_t word = poison_of(device);
    uint8_t *read = malloc(PIECE);
    if (read == NULL) return base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory to check a margin");
    dart_status status = DART_OK;
    uint64_t at = from;
    bool same = true;
    while (same && at < from + bytes && status == DART_OK) {
        const uint64_t left = from + bytes - at, count = left < PIECE ? left : PIECE;
        status = device_note(device, device->backend->memory_read(device->handle, buffer->memory, at, read, count));
        for (uint64_t i = 0; i < count && same && status == DART_OK; i++, at += same) same = read[i] == (at % 2 == 0 ? word & 0xff : word >> 8);
    }
    free(read);
    *change = at;
    return status;
}

dart_status buffer_check_margins(const dart_buffer *buffer, int64_t *at)
{
    const uint64_t margin = buffer->margin, end = margin + buffer->bytes;
    uint64_t change = margin;
    *at = INT64_MAX;
    if (margin == 0) return DART_OK;
    dart_status status = find_change(buffer, 0, margin, &change);
    if (status == DART_OK && change == margin) status = find_change(buffer, end, margin, &change);
    if (status == DART_OK && change < end + margin) *at = (int64_t)(change - margin);
    return status;
}

static void report_stray(const dart_buffer *buffer)
{
    dart_device *device = buffer->device;
    int64_t at = INT64_MAX;
    if (atomic_load(&device->lost) || buffer_check_margins(buffer, &at) != DART_OK || at == INT64_MAX) return;
    atomic_fetch_add(&device->strays, 1);
    base_log_line(device->report.log, DART_LOG_ERROR, "a launch wrote byte %lld of a buffer of %llu bytes", (long long)at,
                  (unsigned long long)buffer->bytes);
}

/* beside: NULL, or as for memory_create_written. */
static dart_status create(dart_device *device, uint64_t bytes, bool *beside, dart_buffer **buffer)
{
    const backend *b = device->backend;
    dart_buffer *made = device_calloc(device, 1, sizeof *made);
    dart_status status = DART_OK;
    if (made == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    made->device = device;
    made->margin = device->margin;
    if (bytes > UINT64_MAX - 2 * made->margin) FAIL(&device->report, DART_OUT_OF_MEMORY, "a buffer of %llu bytes", (unsigned long long)bytes);
    const uint64_t all = bytes + 2 * made->margin;
    TRY(device_fault(device));
    if (beside != NULL) *beside = true;
    if (beside != NULL && b->memory_create_written != NULL)
        TRY(device_note(device, b->memory_create_written(device->handle, all, &made->memory, beside)));
    else TRY(device_note(device, b->memory_create(device->handle, all, &made->memory)));
    made->bytes = bytes;
    atomic_fetch_add(&device->bytes, bytes);
    if (device->poison || device->margin > 0) TRY(poison(made));
    *buffer = made;
    return DART_OK;
fail:
    dart_buffer_destroy(&made);
    return status;
}

dart_status dart_buffer_create(dart_device *device, uint64_t bytes, dart_buffer **buffer)
{
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, buffer != NULL && bytes > 0, "dart_buffer_create: needs a size and a place for the buffer");
    return create(device, bytes, NULL, buffer);
}

dart_status buffer_create_written(dart_device *device, uint64_t bytes, bool *beside, dart_buffer **buffer)
{
    return create(device, bytes, beside, buffer);
}

/* ---- By file descriptor ---- */

static dart_status create_shared(dart_device *device, uint64_t bytes, int fd, uint64_t allocated, dart_buffer **buffer, const char *call)
{
    if (device->backend->memory_create_shared == NULL)
        return base_fail(&device->report, DART_UNSUPPORTED, "%s: %s shares no memory by descriptors", call, device->info.name);
    dart_buffer *made = device_calloc(device, 1, sizeof *made);
    dart_status status = DART_OK;
    if (made == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    made->device = device;
    made->wrapped = true; /* until there is memory to count */
    TRY(device_fault(device));
    TRY(device_note(device, device->backend->memory_create_shared(device->handle, bytes, fd, allocated, &made->memory)));
    made->bytes = bytes;
    made->wrapped = fd >= 0;
    made->shared = fd < 0;
    if (made->shared) atomic_fetch_add(&device->bytes, bytes);
    else file_close_descriptor(fd); /* the backend has a copy */
    *buffer = made;
    made = NULL;
fail:
    dart_buffer_destroy(&made);
    return status;
}

dart_status dart_buffer_create_shared(dart_device *device, uint64_t bytes, dart_buffer **buffer)
{
    static const char call[] = "dart_buffer_create_shared";
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, buffer != NULL && bytes > 0, "%s: needs a size and a place for the buffer", call);
    return create_shared(device, bytes, -1, 0, buffer, call);
}

dart_status dart_buffer_export(dart_buffer *buffer, int *fd, uint64_t *allocated)
{
    if (buffer == NULL) return DART_INVALID_ARGUMENT;
    dart_device *device = buffer->device;
    REQUIRE(&device->report, fd != NULL && allocated != NULL, "dart_buffer_export: no place for the descriptor or its size");
    REQUIRE(&device->report, buffer->shared, "dart_buffer_export: the buffer is not of dart_buffer_create_shared");
    const dart_status status = device_fault(device);
    return status != DART_OK ? status : device_note(device, device->backend->memory_export(device->handle, buffer->memory, fd, allocated));
}

dart_status dart_buffer_import(dart_device *device, int fd, uint64_t allocated, uint64_t bytes, dart_buffer **buffer)
{
    static const char call[] = "dart_buffer_import";
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, buffer != NULL && fd >= 0, "%s: needs a descriptor and a place for the buffer", call);
    REQUIRE(&device->report, bytes > 0 && bytes <= allocated, "%s: %llu bytes of %llu", call, (unsigned long long)bytes,
            (unsigned long long)allocated);
    return create_shared(device, bytes, fd, allocated, buffer, call);
}

void dart_buffer_destroy(dart_buffer **buffer)
{
    if (buffer == NULL || *buffer == NULL) return;
    dart_buffer *b = *buffer;
    if (b->memory != NULL) {
        if (b->margin > 0) report_stray(b);
        b->device->backend->memory_destroy(b->device->handle, b->memory);
        if (!b->wrapped) atomic_fetch_sub(&b->device->bytes, b->bytes);
    }
    free(b);
    *buffer = NULL;
}

uint64_t dart_buffer_bytes(const dart_buffer *buffer) { return buffer != NULL ? buffer->bytes : 0; }

static dart_status check_range(const dart_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes, const char *call)
{
    if (buffer == NULL) return DART_INVALID_ARGUMENT;
    base_report *report = &buffer->device->report;
    REQUIRE(report, data != NULL || bytes == 0, "%s: no data", call);
    REQUIRE(report, offset <= buffer->bytes && bytes <= buffer->bytes - offset,
            "%s: bytes %llu to %llu of a buffer of %llu", call, (unsigned long long)offset,
            (unsigned long long)(offset + bytes), (unsigned long long)buffer->bytes);
    return DART_OK;
}

dart_status dart_buffer_write(dart_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes)
{
    dart_status status = check_range(buffer, offset, data, bytes, "dart_buffer_write");
    if (status != DART_OK || bytes == 0) return status;
    dart_device *device = buffer->device;
    status = device_fault(device);
    if (status != DART_OK) return status;
    return device_note(device, device->backend->memory_write(device->handle, buffer->memory, buffer->margin + offset, data, bytes));
}

dart_status dart_buffer_read(const dart_buffer *buffer, uint64_t offset, void *data, uint64_t bytes)
{
    dart_status status = check_range(buffer, offset, data, bytes, "dart_buffer_read");
    if (status != DART_OK || bytes == 0) return status;
    dart_device *device = buffer->device;
    status = device_fault(device);
    if (status != DART_OK) return status;
    return device_note(device, device->backend->memory_read(device->handle, buffer->memory, buffer->margin + offset, data, bytes));
}
