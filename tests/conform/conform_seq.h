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

/* With CASE_PACKED: documents of 0 to L tokens, around the borders of chunks among them, one of L; behind them rows of none. cu: B + 1. */
typedef struct conform_packing {
    int32_t *cu;
    uint32_t T;
} conform_packing;
void conform_packing_make(conform_data *d, conform_packing *packing);
/* The slot of document b's first chunk. */
static inline uint64_t conform_slot(const conform_packing *packing, uint32_t b, uint32_t S) { return (uint64_t)packing->cu[b] / S + b; }

/* The memory of the open chunk, B H N P, and its log-decay, B H; 0 where a sequence stands at a border. */
void conform_open_make(conform_data *d, const conform_seq *seq, conform_tensor **open, conform_tensor **decay);

/* Raw matrices, or normalised ones with their scales: the smallest step of f16 counts by the scale. of NULL: nothing. */
void conform_compare_matrices(conform_data *d, const char *name, const conform_tensor *of, const conform_tensor *scale,
                              const double *expected, conform_limits limits);

/* Runs from the first memory that may close on: all of them in one or, with CASE_RUNS, the first one and the rest. */
typedef struct conform_runs {
    uint32_t count;
    dart_memories runs[2];
    conform_tensor *rows[2], *scales[2];
} conform_runs;
void conform_runs_make(conform_data *d, const conform_seq *seq, conform_runs *runs);
/* What they hold of the memories of chunks that close; dh: M matrices a sequence, from that of its first chunk on. */
void conform_compare_runs(conform_data *d, const conform_seq *seq, const conform_runs *runs, uint32_t M, const double *dh,
                          conform_limits limits);

#endif
