/* What was launched, as a line of text: for traces, and for the times of a profiled device. */
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
    uint64_t *times; /* as many */
    uint32_t capacity;
} launch_notes;

enum { TRACE_LINE = 160 };

launch_note trace_note(const backend_launch *launch);
/* "kernel[variant] tiles=N dtypes=HEX", and " barrier" where there is one. */
void trace_describe(const launch_note *note, char line[TRACE_LINE]);
/* Keeps the note of launch `index`. */
dart_status trace_keep(dart_device *device, launch_notes *notes, uint32_t index, const launch_note *note);
/* Tells the device's profile function the times of `count` launches of the finished run of that stream of the backend. */
dart_status trace_report(dart_device *device, void *stream, const launch_notes *notes, uint32_t count);
void trace_release(launch_notes *notes);

#endif
