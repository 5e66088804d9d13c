/* Devices and buffers as the library sees them: the public objects behind the backends. */
#ifndef DART_DEVICE_H
#define DART_DEVICE_H

#include "backend.h"

#include <stdatomic.h>

struct dart_device {
    const backend *backend;
    void *handle; /* the backend's */
    base_report report;
    dart_device_info info; /* capabilities and max_binding_bytes as restricted by the options */
    char variant[32];      /* test hook, "" for none */
    bool poison, lose;
    void (*profile)(void *user, const char *line, uint64_t ns); /* NULL: launches are not timed */
    void *profile_user;
    atomic_uint fail_in; /* calls until the injected failure; 0: none */
    atomic_bool lost;
    atomic_ullong bytes;
};

struct dart_buffer {
    dart_device *device;
    void *memory;
    uint64_t bytes;
};

/* Counts down to the injected failure of the options: DART_OK, or the failure. Called before every backend call and
 * every allocation of host memory made on behalf of a device. */
dart_status device_fault(dart_device *device);
/* Remembers a loss, and passes the status on. */
dart_status device_note(dart_device *device, dart_status status);
/* Replaces the cache of the options by what it holds, or by nothing. */
void device_unwrap_cache(dart_device_options *options, base_log *log);
/* Zeroed host memory under fault injection; on failure NULL with the report set. */
void *device_calloc(dart_device *device, size_t count, size_t size);

#endif
