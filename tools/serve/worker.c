#include "serve/worker.h"

static void *run(void *user)
{
    worker *w = user;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->work == NULL && !w->ends) pthread_cond_wait(&w->changed, &w->lock);
        if (w->work == NULL) break;
        pthread_mutex_unlock(&w->lock);
        w->work(w->user);
        pthread_mutex_lock(&w->lock);
        w->work = NULL;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

bool worker_start(worker *w)
{
    *w = (worker){.work = NULL};
    if (pthread_mutex_init(&w->lock, NULL) != 0) return false;
    if (pthread_cond_init(&w->changed, NULL) == 0) {
        w->made = pthread_create(&w->thread, NULL, run, w) == 0;
        if (w->made) return true;
        pthread_cond_destroy(&w->changed);
    }
    pthread_mutex_destroy(&w->lock);
    return false;
}

void worker_end(worker *w)
{
    if (!w->made) return;
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    w->made = false;
}

void worker_do(worker *w, void (*work)(void *user), void *user)
{
    if (!w->made) {
        work(user);
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->work = work;
    w->user = user;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

bool worker_busy(worker *w)
{
    if (!w->made) return false;
    pthread_mutex_lock(&w->lock);
    const bool busy = w->work != NULL;
    pthread_mutex_unlock(&w->lock);
    return busy;
}

void worker_wait(worker *w)
{
    if (!w->made) return;
    pthread_mutex_lock(&w->lock);
    while (w->work != NULL) pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}
