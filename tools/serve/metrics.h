/* What the server counts, for Prometheus. Counters may be raised by any thread. */
#ifndef DARTLM_SERVE_METRICS_H
#define DARTLM_SERVE_METRICS_H

#include "serve/api.h"

#include <stdatomic.h>

enum { METRICS_STATUSES = 12, METRICS_BUCKETS = 14 };

/* Seconds, by their upper bounds: 1 ms, doubled from bucket to bucket, the last without one. */
typedef struct metrics_times {
    atomic_ullong buckets[METRICS_BUCKETS];
    atomic_ullong ns; /* their sum */
} metrics_times;

typedef struct metrics {
    atomic_ullong answers[METRICS_STATUSES]; /* by status of HTTP, in the order of metrics.c */
    atomic_ullong prompt_tokens, generated_tokens, shared_tokens, cancelled;
    atomic_ullong rounds, steps; /* of prompts; of slots */
    atomic_ullong prefill_ns, join_ns, decode_ns; /* of the device's work: prompts, copies of sequences to slots, steps */
    atomic_uint waiting, prefilling, decoding, slots; /* sequences now; slots: the most of them that decode */
    metrics_times whole, first; /* of a completion: until its answer, until its first token */
} metrics;

void metrics_answer(metrics *m, int status);
void metrics_time(metrics_times *times, uint64_t ns);
void metrics_write(metrics *m, api_text *to);

#endif
