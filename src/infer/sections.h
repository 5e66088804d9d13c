/* Sections of a state file: each between the file and the device, all of them on several threads. */
#ifndef DART_SECTIONS_H
#define DART_SECTIONS_H

#include "state_file.h"

#define SECTIONS_SMALL ((uint64_t)1 << 20)     /* bytes: starting threads takes longer than moving less */
#define SECTIONS_CONVERTED ((uint64_t)1 << 16) /* elements converted at a time */
#define SECTIONS_SCRATCH (2 * SECTIONS_CONVERTED * sizeof(float)) /* bytes that sections_move to the device needs */
enum { SECTIONS_WORKERS = 16 };

typedef struct sections_crew sections_crew;
struct sections_crew {
    dart_state *state;
    const state_file *file;
    uint32_t b; /* the sequences of the file are those from b on */
    const char *call;
    file_writer *writer;     /* saving */
    const uint8_t *sections; /* checking and loading */
    /* Section i, with memory of the worker's own. */
    dart_status (*section)(sections_crew *c, uint32_t i, uint8_t *scratch);
    uint32_t count;
    atomic_uint next;
    base_mutex lock; /* of what follows, and of the writer */
    uint32_t failed; /* the first section that failed; count: none */
    dart_status status;
    base_progress *progress; /* asked by the caller's thread; NULL: nobody is */
    atomic_uint done;
};

/* All sections, on at most `most` threads with this many bytes of scratch each. The status of the first section that failed. */
dart_status sections_run(sections_crew *c, uint32_t most, uint64_t scratch_bytes);
/* Where a section begins behind the header and its tables. */
uint64_t sections_at(const state_file *file, uint32_t i, uint64_t *bytes);
/* Section 0: the last rows and the ids seen; section i: layer i - 1. To the device: the section is only read, and scratch has
 * SECTIONS_SCRATCH bytes. */
dart_status sections_move(const sections_crew *c, uint32_t i, bool to_device, uint8_t *section, uint8_t *scratch);
/* DART_OUT_OF_MEMORY, or what has become of the device, with its text in the state. */
dart_status sections_no_memory(dart_state *state, const char *call);

#endif
