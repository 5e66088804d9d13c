#include "trace.h"

#include <stdio.h>
#include <stdlib.h>

launch_note trace_note(const backend_launch *launch)
{
    return (launch_note){launch->row, launch->tiles, launch->dtypes, launch->barrier};
}

void trace_describe(const launch_note *note, char line[TRACE_LINE])
{
    snprintf(line, TRACE_LINE, "%s[%s] tiles=%u dtypes=%x%s", kernel_table[note->row->id].name, note->row->variant, note->tiles,
             note->dtypes, note->barrier ? " barrier" : "");
}

dart_status trace_keep(dart_device *device, launch_notes *notes, uint32_t index, const launch_note *note)
{
    if (index >= notes->capacity) {
        const uint32_t capacity = notes->capacity > 0 ? 2 * notes->capacity : 512;
        launch_note *grown = realloc(notes->notes, capacity * sizeof *grown);
        if (grown != NULL) notes->notes = grown;
        uint64_t *times = realloc(notes->times, capacity * sizeof *times);
        if (times != NULL) notes->times = times;
        if (grown == NULL || times == NULL)
            return base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory for notes of %u launches", capacity);
        notes->capacity = capacity;
    }
    notes->notes[index] = *note;
    return DART_OK;
}

dart_status trace_report(dart_device *device, void *stream, const launch_notes *notes, uint32_t count)
{
    const dart_status status = device->backend->stream_times(device->handle, stream, notes->times, &count);
    for (uint32_t i = 0; i < count && status == DART_OK; i++) {
        char line[TRACE_LINE];
        trace_describe(&notes->notes[i], line);
        device->profile(device->profile_user, line, notes->times[i]);
    }
    return status;
}

void trace_release(launch_notes *notes)
{
    free(notes->notes);
    free(notes->times);
}
