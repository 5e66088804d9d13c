/* Saved runs: what --json printed earlier, against what was measured now. */
#ifndef DARTLM_BENCH_SAVED_H
#define DARTLM_BENCH_SAVED_H

#include "cli/cli.h"

typedef struct bench_saved {
    const char *path; /* NULL: nothing to compare with */
    float tolerance;  /* by how much a time may grow, as a share */
    json_t *before;   /* what the file holds, from bench_saved_load to bench_saved_close */
} bench_saved;
#define BENCH_SAVED(s) \
    {"compare", 0, ARGS_TEXT, "FILE", &(s).path, "a run saved with --json: print the ratio of each time to it,\nand end with 3 when one is slower", \
     0, 0, false}, \
    {"tolerance", 0, ARGS_F32, "SHARE", &(s).tolerance, "by how much a time may grow before it is slower, by default 0.1", 0, 1000, false}
enum { BENCH_SLOWER = 3 };

/* Reads the file, if there is one, before anything is timed for it. */
int bench_saved_load(bench_saved *saved);
void bench_saved_close(bench_saved *saved);
/* Every object with a "case" and "seconds" in now against the one of the same case (and device) in the file; prints a
 * table to stderr. CLI_OK, CLI_FAILED, or BENCH_SLOWER. */
int bench_compare(const bench_saved *saved, const json_t *now);

#endif
