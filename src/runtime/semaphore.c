/* dart_semaphore, and submissions that wait for some and signal others. */
#include "device.h"
#include "stream.h"

#include <stdlib.h>

static dart_status make(dart_device *device, bool binary, int fd, dart_semaphore **semaphore, const char *call)
{
    if (device->backend->semaphore_create == NULL)
        return base_fail(&device->report, DART_UNSUPPORTED, "%s: %s shares no semaphores by descriptors", call, device->info.name);
    dart_semaphore *made = device_calloc(device, 1, sizeof *made);
    dart_status status = DART_OK;
    if (made == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    made->device = device;
    made->binary = binary;
    made->imported = fd >= 0;
    TRY(device_fault(device));
    TRY(device_note(device, device->backend->semaphore_create(device->handle, binary, fd, &made->handle)));
    *semaphore = made;
    return DART_OK;
fail:
    free(made);
    return status;
}

dart_status dart_semaphore_create_shared(dart_device *device, bool binary, dart_semaphore **semaphore)
{
    static const char call[] = "dart_semaphore_create_shared";
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, semaphore != NULL, "%s: no place for the semaphore", call);
    return make(device, binary, -1, semaphore, call);
}

dart_status dart_semaphore_export(dart_semaphore *semaphore, int *fd)
{
    if (semaphore == NULL) return DART_INVALID_ARGUMENT;
    dart_device *device = semaphore->device;
    REQUIRE(&device->report, fd != NULL, "dart_semaphore_export: no place for the descriptor");
    REQUIRE(&device->report, !semaphore->imported, "dart_semaphore_export: the semaphore is not of dart_semaphore_create_shared");
    const dart_status status = device_fault(device);
    return status != DART_OK ? status : device_note(device, device->backend->semaphore_export(device->handle, semaphore->handle, fd));
}

dart_status dart_semaphore_import(dart_device *device, int fd, bool binary, dart_semaphore **semaphore)
{
    static const char call[] = "dart_semaphore_import";
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, semaphore != NULL && fd >= 0, "%s: needs a descriptor and a place for the semaphore", call);
    return make(device, binary, fd, semaphore, call);
}

void dart_semaphore_destroy(dart_semaphore **semaphore)
{
    if (semaphore == NULL || *semaphore == NULL) return;
    dart_semaphore *s = *semaphore;
    s->device->backend->semaphore_destroy(s->device->handle, s->handle);
    free(s);
    *semaphore = NULL;
}

static dart_status translate(dart_stream *stream, const dart_semaphore_value *list, uint32_t count, backend_signal *to)
{
    REQUIRE(&stream->report, (list != NULL || count == 0) && count <= BACKEND_MAX_SIGNALS,
            "dart_stream_submit_ordered: at most %u semaphores each", BACKEND_MAX_SIGNALS);
    for (uint32_t i = 0; i < count; i++) {
        const dart_semaphore *semaphore = list[i].semaphore;
        REQUIRE(&stream->report, semaphore != NULL && semaphore->device == stream->device,
                "dart_stream_submit_ordered: a semaphore of another device, or none");
        REQUIRE(&stream->report, semaphore->binary || list[i].value > 0, "dart_stream_submit_ordered: value 0 of a timeline");
        to[i] = (backend_signal){semaphore->handle, semaphore->binary ? 0 : list[i].value};
    }
    return DART_OK;
}

dart_status dart_stream_submit_ordered(dart_stream *stream, const dart_submit_args *args)
{
    backend_signal waits[BACKEND_MAX_SIGNALS], signals[BACKEND_MAX_SIGNALS];
    if (stream == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&stream->report, args != NULL && !stream->options.warm, "dart_stream_submit_ordered: no arguments, or a stream with options.warm");
    dart_status status = translate(stream, args->waits, args->waits_count, waits);
    if (status == DART_OK) status = translate(stream, args->signals, args->signals_count, signals);
    if (status != DART_OK) return status;
    const backend_order order = {waits, signals, args->waits_count, args->signals_count};
    return stream_submit(stream, 1, args->waits_count + args->signals_count > 0 ? &order : NULL);
}
