/* Looks over the shoulder of a backend: every launch that a device records is checked against the promises of
 * backend.h, and its barriers against a plain search for dependencies. One device at a time. */
#ifndef DARTLM_TESTS_SPY_H
#define DARTLM_TESTS_SPY_H

#include "dartlm/dartlm.h"

typedef struct spy_counts {
    uint32_t launches, barriers;
    uint32_t missing;   /* launches that depend on an earlier one without a barrier between */
    uint32_t needless;  /* barriers that separate nothing, fewer than 64 ranges after the last one */
    uint32_t broken;    /* launches that break another promise */
    char text[256];     /* of the first one */
} spy_counts;

/* From now on; memory and streams of the device made before are unknown and count as broken. */
void spy_on(dart_device *device);
/* Ends it. */
spy_counts spy_off(dart_device *device);

#endif
