#define _POSIX_C_SOURCE 200809L
#include "serve/worker.h"

#include <pthread.h>
#include <stdlib.h>

struct worker {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    work *first, *last;
    bool quits, ended;
};

static void *run(void *user)
{
    worker *w = user;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        work *next = w->first;
        if (next != NULL) {
            w->first = next->next;
            pthread_mutex_unlock(&w->lock);
            next->run(next->user);
            pthread_mutex_lock(&w->lock);
        } else if (w->quits) break;
        else pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

worker *worker_start(void)
{
    worker *w = calloc(1, sizeof *w);
    if (w == NULL) return NULL;
    const bool locks = pthread_mutex_init(&w->lock, NULL) == 0, waits = locks && pthread_cond_init(&w->changed, NULL) == 0;
    if (waits && pthread_create(&w->thread, NULL, run, w) == 0) return w;
    if (waits) pthread_cond_destroy(&w->changed);
    if (locks) pthread_mutex_destroy(&w->lock);
    free(w);
    return NULL;
}

bool worker_add(worker *w, work *what)
{
    what->next = NULL;
    pthread_mutex_lock(&w->lock);
    const bool taken = !w->quits;
    if (taken) {
        if (w->first == NULL) w->first = what;
        else w->last->next = what;
        w->last = what;
        pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return taken;
}

void worker_stop(worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->quits = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (!w->ended) pthread_join(w->thread, NULL);
    w->ended = true;
}

void worker_destroy(worker **w_)
{
    worker *w = *w_;
    if (w == NULL) return;
    worker_stop(w);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
    *w_ = NULL;
}
