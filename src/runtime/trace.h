/* Launches as lines of text, for dart_stream_options.trace and dart_device_options.profile. */
#ifndef DART_TRACE_H
#define DART_TRACE_H

#include "device.h"

typedef struct launch_note {
    const kernel_row *row;
    uint32_t tiles, dtypes;
    bool barrier;
} launch_note;

/* Notes of the launches of a recording, and the times that the backend fills in after a run. */
typedef struct launch_notes {
    launch_note *notes;
    uint64_t *times; /* nanoseconds, one for each note */
    uint32_t capacity;
} launch_notes;

enum { TRACE_LINE = 160 };

launch_note trace_note(const backend_launch *launch);
/* "kernel[variant] tiles=N dtypes=HEX", and " barrier" where there is one. */
void trace_describe(const launch_note *note, char line[TRACE_LINE]);
/* Stores the note of launch `index`; grows the list. */
dart_status trace_keep(dart_device *device, launch_notes *notes, uint32_t index, const launch_note *note);
/* Calls the device's profile callback for the first `count` launches of the finished run. stream: the backend's handle. */
dart_status trace_report(dart_device *device, void *stream, const launch_notes *notes, uint32_t count);
void trace_release(launch_notes *notes);

#endif
