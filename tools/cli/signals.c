#if !defined(_WIN32)
#define _DEFAULT_SOURCE /* signal() then restarts the calls that a signal interrupts, and keeps the handler */
#endif
#include "cli.h"

#include <signal.h>
#include <time.h>

static volatile sig_atomic_t stopped_by; /* 0: no signal yet */

static void stop(int number)
{
    static volatile sig_atomic_t since;
    const sig_atomic_t now = (sig_atomic_t)time(NULL);
    const bool again = stopped_by != 0 && now - since > 1;
    if (stopped_by == 0) since = now;
    stopped_by = number;
    (void)signal(number, again ? SIG_DFL : stop);
    if (again) (void)raise(number);
}

void cli_stop_at(int number, bool ignored_too)
{
    if (signal(number, stop) == SIG_IGN && !ignored_too) (void)signal(number, SIG_IGN);
}

void cli_stop_no_more(int number)
{
    if (signal(number, SIG_DFL) == SIG_IGN) (void)signal(number, SIG_IGN);
}

int cli_stopped(void) { return stopped_by; }
