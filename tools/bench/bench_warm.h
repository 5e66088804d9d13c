/* When a device has got as fast as it gets. */
#ifndef DARTLM_BENCH_WARM_H
#define DARTLM_BENCH_WARM_H

#include <stdbool.h>
#include <stdint.h>

/* The clock of a GPU that had nothing to do for two seconds stays low for some time of work, in which all runs take equally long, and then rises at
 * once (docs/lab/2026-11-22-warming-up.md). So a device is warm when nothing has got faster for half a second, which is longer than that time. */
#define BENCH_WARM_NS UINT64_C(500000000)

typedef struct bench_warm {
    bool begun;
    double seconds; /* of the run that the wait counts from */
    uint64_t since; /* when it began */
} bench_warm;

/* After a run that took so long and ended now (base_now_ns): is another one needed before any is timed? */
bool bench_is_cold(bench_warm *warm, double seconds, uint64_t now);

#endif
