/* Where the time of a run goes: launches of one description taken together, the longest first. */
#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_profile_note(void *user, const char *line, uint64_t ns)
{
    cli_profile *profile = user;
    if (profile->phase == NULL) return;
    const char *barrier = strstr(line, " barrier");
    const size_t length = barrier != NULL ? (size_t)(barrier - line) : strlen(line);
    size_t i = 0;
    while (i < profile->entries_count &&
           (strcmp(profile->entries[i].phase, profile->phase) != 0 || strlen(profile->entries[i].line) != length ||
            memcmp(profile->entries[i].line, line, length) != 0))
        i++;
    if (i == COUNT_OF(profile->entries) || length >= sizeof profile->entries[i].line) return;
    cli_profile_entry *entry = &profile->entries[i];
    if (i == profile->entries_count) {
        *entry = (cli_profile_entry){.phase = profile->phase};
        memcpy(entry->line, line, length);
        profile->entries_count++;
    }
    entry->count++;
    entry->ns += ns;
}

static int by_time(const void *a, const void *b)
{
    const cli_profile_entry *x = a, *y = b;
    const int phase = strcmp(y->phase, x->phase);
    return phase != 0 ? phase : (x->ns < y->ns) - (x->ns > y->ns);
}

void cli_profile_print(cli_profile *profile, uint32_t runs)
{
    qsort(profile->entries, profile->entries_count, sizeof profile->entries[0], by_time);
    const char *phase = NULL;
    double total = 0;
    char time[2][CLI_NUMBER];
    for (size_t i = 0; i < profile->entries_count; i++) {
        const cli_profile_entry *entry = &profile->entries[i];
        if (phase == NULL || strcmp(phase, entry->phase) != 0) {
            phase = entry->phase;
            total = 0;
            for (size_t k = i; k < profile->entries_count && strcmp(profile->entries[k].phase, phase) == 0; k++)
                total += (double)profile->entries[k].ns / runs / 1e9;
            printf("%s, launches one by one: %s a run\n", phase, cli_time(total, time[0]));
            printf("  share      time  launches      each\n");
        }
        const double share = (double)entry->ns / runs / 1e9;
        printf("%5.1f %%  %8s  %8" PRIu64 "  %8s  %s\n", total > 0 ? 100 * share / total : 0, cli_time(share, time[0]),
               entry->count / runs, cli_time((double)entry->ns / (double)entry->count / 1e9, time[1]), entry->line);
    }
}
