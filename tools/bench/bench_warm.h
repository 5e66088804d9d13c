/* When a device has got as fast as it gets. */
#ifndef DARTLM_BENCH_WARM_H
#define DARTLM_BENCH_WARM_H

#include <stdbool.h>
#include <stdint.h>

/* The clock of a GPU that had nothing to do for two seconds stays low for up to 311 ms of work and then rises at once (one H200,
 * driver 580, 2026-11-22: runs took 3 to 5 times as long, each of them the same). So a device is warm when nothing has got
 * faster for half a second. */
#define BENCH_WARM_NS UINT64_C(500000000)

typedef struct bench_warm {
    bool begun;
    double seconds; /* of the run that the wait counts from */
    uint64_t since; /* when it began */
} bench_warm;

/* After a run that took so long and ended now (base_now_ns): is another one needed before any is timed? */
bool bench_is_cold(bench_warm *warm, double seconds, uint64_t now);

#endif
