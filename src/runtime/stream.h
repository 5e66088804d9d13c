/* A stream behind its public functions: what op calls (op.h) ask of it. */
#ifndef DART_STREAM_H
#define DART_STREAM_H

#include "trace.h"

enum { STREAM_IN_FLIGHT = 128 };

/* A range that launches since the last barrier read or write. */
typedef struct hazard {
    const void *memory;
    uint64_t begin, end;
    kernel_access access;
} hazard;

typedef struct buffer_list {
    dart_buffer **buffers;
    uint32_t count;
} buffer_list;

struct dart_stream {
    dart_device *device;
    void *handle; /* the backend's */
    base_report report;
    dart_stream_options options;
    dart_status status; /* sticky */
    bool submitted;     /* and not known to be done */
    bool closed;        /* submitted once: nothing more can be recorded */
    bool timed;         /* elapsed_ns is that of a finished submission */
    uint64_t elapsed_ns;
    uint32_t launches;
    hazard hazards[STREAM_IN_FLIGHT];
    uint32_t hazards_count;
    launch_notes notes; /* on a device that is profiled */
    backend_code *needs; /* of a warming stream: the code that launches asked for, each once */
    uint32_t needs_count;
    /* Scratch, which op.c hands out: buffers filled one after another, all given back between ops. */
    buffer_list chunks;
    uint32_t chunk; /* the one being filled */
    uint64_t used;  /* bytes of it */
    buffer_list tickets; /* zeros; launches recorded earlier may use any of them, later ones use the last and largest */
};

/* A failure of the backend, whose text lies in the device's report, becomes the stream's; `call` names who asked. */
dart_status stream_take_failure(dart_stream *stream, dart_status status, const char *call);
/* Records the launch, behind a barrier if it depends on one since the last. */
void stream_launch(dart_stream *stream, backend_launch *launch, const char *call);
#endif
