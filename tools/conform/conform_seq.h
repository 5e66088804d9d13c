/* Positions and counts of a case. */
#ifndef DARTLM_CONFORM_SEQ_H
#define DARTLM_CONFORM_SEQ_H

#include "conform_data.h"

typedef struct conform_seq {
    int32_t *pos, *count; /* B each */
    int32_t *pairs;       /* B 2, as the seq tensor holds them */
} conform_seq;

/* With CASE_SEQ: positions on and around chunk borders, counts from L down, the last of three or more sequences empty.
 * Without: 0 and L. */
void conform_seq_make(conform_data *d, conform_seq *seq);
void conform_seq_free(conform_seq *seq);

/* Runs from the first memory that may close on: all of them in one or, with CASE_RUNS, the first one and the rest. */
typedef struct conform_runs {
    uint32_t count;
    dart_memories runs[2];
    conform_tensor *rows[2], *scales[2];
} conform_runs;
void conform_runs_make(conform_data *d, const conform_seq *seq, conform_runs *runs);

#endif
