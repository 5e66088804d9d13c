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
#include <unistd.h>

static int waking[2] = {-1, -1}; /* a pipe: what a handler may do is to write */

static void prepare(void)
{
    if (waking[0] < 0 && pipe(waking) != 0) waking[0] = waking[1] = -1;
}

static void wake(void) { (void)!write(waking[1], "", 1); }

void cli_wait_for_stop(void)
{
    char byte;
    while (stopped_by == 0)
        if (read(waking[0], &byte, 1) < 0 && stopped_by == 0) (void)sleep(1); /* interrupted, or no pipe could be had */
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
