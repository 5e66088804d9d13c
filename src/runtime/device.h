/* dart_device and dart_buffer: the public objects, which hold the backend's handles. */
#ifndef DART_DEVICE_H
#define DART_DEVICE_H

#include "backend.h"

#include <stdatomic.h>

struct dart_device {
    const backend *backend;
    void *handle; /* made by backend->device_create */
    void *instance; /* of this device alone, destroyed after it; NULL: the context's */
    base_report report;
    dart_device_info info; /* capabilities and limits as restricted by the options */
    char variant[32];      /* test hook, "" for none */
    bool poison, lose;
    uint32_t backwards; /* test hook, as in dart_device_options */
    uint64_t margin; /* test hook, bytes before and behind every buffer */
    atomic_uint strays; /* buffers destroyed so far whose margins a launch had written to */
    uint32_t cut; /* test hook, ranges of every launch; 0: as streams pace them */
    void (*profile)(void *user, const char *line, uint64_t ns); /* NULL: launches are not timed */
    void *profile_user;
    atomic_uint fail_in; /* calls until the injected failure; 0: none */
    atomic_bool lost;
    atomic_ullong bytes; /* allocated now, see dart_device_bytes */
};

struct dart_buffer {
    dart_device *device;
    void *memory;
    uint64_t bytes;
    uint64_t margin; /* bytes of memory before the first of `bytes`, and as many behind the last */
    bool wrapped; /* memory of the caller's, not counted */
    bool shared;  /* can be exported */
};

struct dart_semaphore {
    dart_device *device;
    void *handle; /* made by backend->semaphore_create */
    bool binary, imported;
};

/* A buffer that the host writes often. *beside: dart_buffer_write does not wait for what has been submitted, so that the host writes it while
 * launches run that do not use it. */
dart_status buffer_create_written(dart_device *device, uint64_t bytes, bool *beside, dart_buffer **buffer);

/* DART_OK, or what reading failed with. *at: the first byte outside the buffer that is not as dart_buffer_create left it, below 0 or from the
 * buffer's size on; INT64_MAX: none, or a device without margins. */
dart_status buffer_check_margins(const dart_buffer *buffer, int64_t *at);

/* Opens device `within` of an instance. own: the device destroys the instance, which on failure is done at once. */
dart_status context_open_device(dart_context *context, const backend *b, void *instance, uint32_t within, bool own,
                                const dart_device_options *options, dart_device **device);
base_report *context_report(dart_context *context);
/* Counts down to the failure that options.fail_at injects. Returns DART_OK or that failure; DART_DEVICE_LOST on a lost device.
 * Must be called before every backend call and every allocation of host memory on behalf of a device. */
dart_status device_fault(dart_device *device);
/* Marks the device as lost when status is DART_DEVICE_LOST. Returns status. */
dart_status device_note(dart_device *device, dart_status status);
/* Replaces options->cache, a header and the backend's bytes, by those bytes. Sets it to NULL, with a warning in the log, when the
 * header or the checksum is wrong. */
void device_unwrap_cache(dart_device_options *options, base_log *log);
/* Lowers what the device may be used for to the limits of the options. rows: of the backend whose kernels it runs. */
void device_limit(dart_device_info *info, const dart_device_options *options, dart_backend_kind rows);
/* Operations a second that such a device computes at least, before anything has been measured. An assumption, meant to be far below what it
 * reaches. */
double device_assumed_rate(const dart_device_info *info);
/* Bytes a second that it reads or writes at least, likewise. */
double device_assumed_bytes(const dart_device_info *info);
/* Submissions are planned to take this share of the time that one may take: the rest is for what measures do not foresee. */
#define DEVICE_SLICE_SHARE 0.6
/* Does the device multiply matrices of that type in hardware, by a capability or as all devices of its backend do? */
bool device_has_matrices(const dart_device *device, dart_dtype dtype);
/* Zeroed host memory, subject to fault injection. On failure NULL, with the text in device->report. */
void *device_calloc(dart_device *device, size_t count, size_t size);

#endif
