/* A thread beside another one, which does one piece of work after another for it. */
#ifndef DARTLM_SERVE_WORKER_H
#define DARTLM_SERVE_WORKER_H

#include <pthread.h>
#include <stdbool.h>

typedef struct worker {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    void (*work)(void *user); /* under way; NULL: none */
    void *user;
    bool made, ends;
} worker;

/* A worker of zeros has no thread: worker_do then works at once, and nothing is ever under way. false: there is no thread. */
bool worker_start(worker *w);
/* Waits for what is under way. */
void worker_end(worker *w);
/* The last piece must be over, as worker_busy or worker_wait tells; what it wrote may then be read. */
void worker_do(worker *w, void (*work)(void *user), void *user);
bool worker_busy(worker *w);
void worker_wait(worker *w);

#endif
