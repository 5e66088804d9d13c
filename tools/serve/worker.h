/* A thread that runs what takes long, one thing after another, so that the threads that answer connections need not wait for it. */
#ifndef DARTLM_SERVE_WORKER_H
#define DARTLM_SERVE_WORKER_H

#include <stdbool.h>

typedef struct worker worker;

/* The caller's, until run is called: the worker does not look at it after that. */
typedef struct work {
    void (*run)(void *user);
    void *user;
    struct work *next; /* the worker's */
} work;

/* NULL without memory or threads. */
worker *worker_start(void);
/* false: it has been stopped. */
bool worker_add(worker *w, work *what);
/* Runs what waits, then ends its thread. */
void worker_stop(worker *w);
void worker_destroy(worker **w);

#endif
