/* Semaphores of other APIs, imported by file descriptor. */
#include "cu.h"

#include <stdlib.h>

dart_status cu_semaphore_create(void *device, bool binary, int descriptor, void **semaphore)
{
    cu_device *d = device;
    const CUexternalSemaphoreHandleDesc in = {.type = binary ? CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD
                                                             : CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD,
                                              .handle.fd = descriptor};
    if (descriptor < 0) return base_fail(d->report, DART_UNSUPPORTED, "cuda: semaphores are imported only; a Vulkan device makes and exports them");
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    cu_semaphore *made = calloc(1, sizeof *made);
    if (made == NULL) FAIL(d->report, DART_OUT_OF_MEMORY, "cuda: no host memory");
    TRY(CU(d, cuImportExternalSemaphore, &made->handle, &in));
    cu_leave(d);
    *semaphore = made;
    return DART_OK;
fail:
    cu_leave(d);
    free(made);
    return status;
}

void cu_semaphore_destroy(void *device, void *semaphore)
{
    cu_device *d = device;
    cu_semaphore *s = semaphore;
    if (s == NULL) return;
    if (d->driver->cuCtxPushCurrent(d->context) == CUDA_SUCCESS) {
        d->driver->cuDestroyExternalSemaphore(s->handle);
        cu_leave(d);
    }
    free(s);
}

/* As the arrays that the driver takes. */
static uint32_t gather(const backend_signal *list, uint32_t count, CUexternalSemaphore *handles, CUexternalSemaphoreParams *params)
{
    for (uint32_t i = 0; i < count; i++) {
        handles[i] = ((const cu_semaphore *)list[i].semaphore)->handle;
        params[i] = (CUexternalSemaphoreParams){.value = list[i].value};
    }
    return count;
}

dart_status cu_order_waits(cu_device *device, const backend_order *order, CUstream queue)
{
    CUexternalSemaphore handles[BACKEND_MAX_SIGNALS];
    CUexternalSemaphoreParams params[BACKEND_MAX_SIGNALS];
    if (order == NULL || order->waits_count == 0) return DART_OK;
    const uint32_t count = gather(order->waits, order->waits_count, handles, params);
    return CU(device, cuWaitExternalSemaphoresAsync, handles, params, count, queue);
}

dart_status cu_order_signals(cu_device *device, const backend_order *order, CUstream queue)
{
    CUexternalSemaphore handles[BACKEND_MAX_SIGNALS];
    CUexternalSemaphoreParams params[BACKEND_MAX_SIGNALS];
    if (order == NULL || order->signals_count == 0) return DART_OK;
    const uint32_t count = gather(order->signals, order->signals_count, handles, params);
    return CU(device, cuSignalExternalSemaphoresAsync, handles, params, count, queue);
}
