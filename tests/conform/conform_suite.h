/* A run of all cases: what it holds, and how it reports. */
#ifndef DARTLM_CONFORM_SUITE_H
#define DARTLM_CONFORM_SUITE_H

#include "conform.h"

typedef struct target {
    dart_device *device;
    dart_device_info info;
    char spec[300];
    char variant[32]; /* "" for the device's own choice */
    uint32_t claimed; /* capabilities of DART_CAP_SPEED that the device lacks and rows of that name need */
    uint32_t number;  /* of the device among those tested */
    bool shares;      /* the device of the first target of that number, which is made to choose for this one while it runs a case */
    bool concerned;   /* by the case at hand */
} target;

enum { MAX_TARGETS = 128, MAX_DEVICES = 16, MAX_ROWS = 1024, MAX_JOBS = 64, MOST_DUMPS = 100 };

typedef struct suite {
    dart_context *context;
    const conform_options *options;
    FILE *out;
    FILE *json; /* where JSON goes: out, the report, or NULL */
    target targets[MAX_TARGETS];
    conform_outcome outcomes[MAX_TARGETS]; /* of the case at hand */
    uint64_t seed;                         /* ... and its inputs */
    uint32_t targets_count, devices_count;
    int passed, failed, not_run;
    bool first_json;
    uint32_t dumped; /* files of tensors */
    bool reached[MAX_DEVICES][MAX_ROWS]; /* rows of the kernel table that some case ran on a device */
} suite;

/* What was found of a target. */
typedef struct tally {
    int cases, failed, not_run;
    double share;
    char worst[200];
    char tensor[24];
    uint64_t row;
    double against_first;
} tally;

/* What is tested: version, devices, seed. */
void conform_print_header(const suite *s);
/* The result of a case, as JSON and as text. */
void conform_print_outcome(suite *s, const target *t, const char *name, const conform_outcome *o);
/* The sums, and as text a line a target, of tallies[targets_count]. */
void conform_print_end(const suite *s, const tally *tallies);

#endif
