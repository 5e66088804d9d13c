#if !defined(_WIN32)
#define _DEFAULT_SOURCE /* signal() then restarts the calls that a signal interrupts, and keeps the handler */
#endif
#include "cli.h"

#include <signal.h>
#include <time.h>

static volatile sig_atomic_t stopped_by; /* 0: no signal yet */

#if defined(_WIN32)
static void prepare(void) {}
static void wake(void) {}
#else
#include <errno.h>
#include <semaphore.h>

static sem_t waking;

static void prepare(void)
{
    static bool done;
    if (!done) done = sem_init(&waking, 0, 0) == 0;
}

static void wake(void)
{
    const int before = errno;
    (void)sem_post(&waking);
    errno = before;
}

void cli_wait_for_stop(void)
{
    while (stopped_by == 0)
        while (sem_wait(&waking) != 0 && errno == EINTR) continue;
}
#endif

static void stop(int number)
{
    static volatile sig_atomic_t since;
    const sig_atomic_t now = (sig_atomic_t)time(NULL);
    const bool again = stopped_by != 0 && now - since > 1;
    if (stopped_by == 0) since = now;
    stopped_by = number;
    wake();
    (void)signal(number, again ? SIG_DFL : stop);
    if (again) (void)raise(number);
}

void cli_stop_at(int number, bool ignored_too)
{
    prepare();
    if (signal(number, stop) == SIG_IGN && !ignored_too) (void)signal(number, SIG_IGN);
}

void cli_stop_no_more(int number)
{
    if (signal(number, SIG_DFL) == SIG_IGN) (void)signal(number, SIG_IGN);
}

int cli_stopped(void) { return stopped_by; }
