#include "bench_warm.h"

/* Less is noise. */
#define FASTER 0.95

bool bench_is_cold(bench_warm *warm, double seconds, uint64_t now)
{
    if (!warm->begun || seconds < FASTER * warm->seconds)
        *warm = (bench_warm){.begun = true, .seconds = seconds, .since = now - (uint64_t)(seconds * 1e9)};
    return now - warm->since < BENCH_WARM_NS;
}
