/* Two reports of `dartlm conform --report`, side by side. */
#ifndef DARTLM_COMPARE_REPORTS_H
#define DARTLM_COMPARE_REPORTS_H

#include "cli.h"

/* Prints what differs: cases whose status changed, and how many results have the same bits. A result of the one report goes with that of the other
 * with the same device by number, variant, case and seed. CLI_OK unless a file cannot be read; *worse: whether a result that passed in `before` does
 * not in `after`. */
int compare_reports(const char *before, const char *after, bool json, bool *worse);

#endif
