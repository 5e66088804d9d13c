/* How long a benchmark warms a device up. */
#include "bench/bench_warm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MILLISECOND = 1000000 };

/* Milliseconds of runs that take `before` until so many have passed and `after` from then on. */
static uint64_t warms_up_for(double before, uint64_t until, double after)
{
    const uint64_t begin = 5000 * (uint64_t)MILLISECOND; /* the clock's zero is anywhere */
    uint64_t now = begin;
    bench_warm warm = {0};
    for (;;) {
        const double seconds = now - begin < until * MILLISECOND ? before : after;
        now += (uint64_t)(seconds * 1e9) + MILLISECOND / 20; /* what a submission takes */
        if (!bench_is_cold(&warm, seconds, now)) return (now - begin) / MILLISECOND;
    }
}

/* What was seen of the scan at L 65,536, at its worst, and twice that. */
static void waits_for_the_clock(void **unused)
{
    (void)unused;
    assert_in_range(warms_up_for(0.0035, 311, 0.00072), 811, 820);
    assert_in_range(warms_up_for(0.0035, 490, 0.00072), 990, 1000);
}

static void does_not_wait_for_nothing(void **unused)
{
    (void)unused;
    assert_in_range(warms_up_for(0.001, 0, 0.001), 500, 502);
    assert_in_range(warms_up_for(0.001, 300, 0.00097), 500, 502); /* noise */
    assert_in_range(warms_up_for(3, 0, 3), 3000, 3001);           /* once is enough */
    assert_in_range(warms_up_for(0, 0, 0), 500, 501);             /* a device that has no clock */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(waits_for_the_clock), cmocka_unit_test(does_not_wait_for_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
