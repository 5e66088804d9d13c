/* Host access to device memory. */
#include "cu.h"

#include <string.h>

/* Halves of a transfer's memory: one is filled or emptied while the other is copied. */
#define HALF_BYTES (UINT64_C(4) << 20)
#define STAGING_BYTES (2 * HALF_BYTES)
/* The driver stages pageable memory itself, on one thread and through memory of one size: good for what is small. */
#define STAGED_BYTES (UINT64_C(256) << 10)
enum { CU_MEMHOSTALLOC_PORTABLE = 1 };

dart_status cu_transfers_create(cu_device *device)
{
    dart_status status = base_mutex_init(&device->transfer_lock);
    if (status != DART_OK) return status;
    status = base_condition_init(&device->transfer_given);
    if (status != DART_OK) base_mutex_destroy(&device->transfer_lock);
    else device->has_transfers = true;
    return status;
}

/* But for `taken`, which is the lock's. */
static void transfer_destroy(const cu_device *device, cu_transfer *transfer)
{
    if (transfer->stream != NULL) device->driver->cuStreamDestroy(transfer->stream);
    for (uint32_t i = 0; i < 2; i++)
        if (transfer->copied[i] != NULL) device->driver->cuEventDestroy(transfer->copied[i]);
    if (transfer->memory != NULL) device->driver->cuMemFreeHost(transfer->memory);
    transfer->stream = NULL;
    transfer->copied[0] = transfer->copied[1] = NULL;
    transfer->memory = NULL;
}

void cu_transfers_destroy(cu_device *device)
{
    for (uint32_t i = 0; i < CU_TRANSFERS; i++) transfer_destroy(device, &device->transfers[i]);
    if (!device->has_transfers) return;
    base_condition_destroy(&device->transfer_given);
    base_mutex_destroy(&device->transfer_lock);
}

/* All of it or nothing: false where there is no such memory, and copies go without. */
static bool transfer_create(const cu_device *device, cu_transfer *transfer)
{
    const cu_driver *driver = device->driver;
    void *memory = NULL;
    if (transfer->memory != NULL) return true;
    if (driver->cuStreamCreate(&transfer->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) transfer->stream = NULL;
    for (uint32_t i = 0; i < 2; i++)
        if (driver->cuEventCreate(&transfer->copied[i], CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) transfer->copied[i] = NULL;
    if (transfer->stream != NULL && transfer->copied[0] != NULL && transfer->copied[1] != NULL &&
        driver->cuMemHostAlloc(&memory, (size_t)STAGING_BYTES, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS)
        transfer->memory = memory;
    if (transfer->memory == NULL) transfer_destroy(device, transfer);
    return transfer->memory != NULL;
}

/* The first free one, so that one thread alone makes one. Waits where all are taken. */
static cu_transfer *take(cu_device *device)
{
    uint32_t i = 0;
    base_lock(&device->transfer_lock);
    while (device->transfers[i].taken)
        if (++i == CU_TRANSFERS) {
            base_condition_wait(&device->transfer_given, &device->transfer_lock);
            i = 0;
        }
    device->transfers[i].taken = true;
    base_unlock(&device->transfer_lock);
    return &device->transfers[i];
}

static void give(cu_device *device, cu_transfer *transfer)
{
    base_lock(&device->transfer_lock);
    transfer->taken = false;
    base_condition_broadcast(&device->transfer_given);
    base_unlock(&device->transfer_lock);
}

static size_t piece_at(uint64_t bytes, uint64_t at) { return (size_t)base_smaller(HALF_BYTES, bytes - at); }

static dart_status staged_write(cu_device *d, cu_transfer *t, CUdeviceptr to, const uint8_t *data, uint64_t bytes)
{
    dart_status status = DART_OK;
    uint32_t half = 0;
    for (uint64_t at = 0; at < bytes && status == DART_OK; at += HALF_BYTES, half ^= 1) {
        uint8_t *place = t->memory + half * HALF_BYTES;
        if (at >= STAGING_BYTES) status = CU(d, cuEventSynchronize, t->copied[half]);
        if (status != DART_OK) break;
        memcpy(place, data + at, piece_at(bytes, at));
        status = CU(d, cuMemcpyHtoDAsync, to + at, place, piece_at(bytes, at), t->stream);
        if (status == DART_OK) status = CU(d, cuEventRecord, t->copied[half], t->stream);
    }
    return status;
}

static dart_status staged_read(cu_device *d, cu_transfer *t, CUdeviceptr from, uint8_t *data, uint64_t bytes)
{
    dart_status status = DART_OK;
    uint32_t half = 0;
    for (uint64_t at = 0; at < bytes + HALF_BYTES && status == DART_OK; at += HALF_BYTES, half ^= 1) {
        if (at < bytes) {
            status = CU(d, cuMemcpyDtoHAsync, t->memory + half * HALF_BYTES, from + at, piece_at(bytes, at), t->stream);
            if (status == DART_OK) status = CU(d, cuEventRecord, t->copied[half], t->stream);
        }
        if (at == 0 || status != DART_OK) continue;
        const uint64_t before = at - HALF_BYTES; /* arrives in the other half, while this one is copied */
        status = CU(d, cuEventSynchronize, t->copied[half ^ 1]);
        if (status == DART_OK) memcpy(data + before, t->memory + (half ^ 1) * HALF_BYTES, piece_at(bytes, before));
    }
    return status;
}

/* One of `from` and `to` is given. */
static dart_status transfer(cu_device *d, CUdeviceptr address, const void *from, void *to, uint64_t bytes)
{
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    cu_transfer *t = bytes > STAGED_BYTES ? take(d) : NULL;
    const bool staged = t != NULL && transfer_create(d, t);
    const CUstream stream = staged ? t->stream : d->copies;
    if (staged) status = to != NULL ? staged_read(d, t, address, to, bytes) : staged_write(d, t, address, from, bytes);
    else if (to != NULL) status = CU(d, cuMemcpyDtoHAsync, to, address, (size_t)bytes, stream);
    else status = CU(d, cuMemcpyHtoDAsync, address, from, (size_t)bytes, stream);
    /* The queue does not wait for copies: they have to be over before anything is submitted, and before others take the transfer. */
    const dart_status ended = CU(d, cuStreamSynchronize, stream);
    if (t != NULL) give(d, t);
    cu_leave(d);
    return status != DART_OK ? status : ended;
}

dart_status cu_memory_write(void *device, void *memory, uint64_t offset, const void *data, uint64_t bytes)
{
    const cu_memory *m = memory;
    return transfer(device, m->address + offset, data, NULL, bytes);
}

dart_status cu_memory_read(void *device, void *memory, uint64_t offset, void *data, uint64_t bytes)
{
    const cu_memory *m = memory;
    return transfer(device, m->address + offset, NULL, data, bytes);
}
