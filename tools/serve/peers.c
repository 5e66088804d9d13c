#define _GNU_SOURCE /* POLLRDHUP */
#include "serve/peers.h"
#include "base/base.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#ifndef POLLRDHUP
#define POLLRDHUP 0
#endif

#define CROWDED_NS UINT64_C(2000000000)

struct peer {
    peer *before, *after;
    int socket;
    uint64_t since_ns; /* when it began to receive a request; 0: it is not receiving */
    job *waits_for;
};

struct peers {
    pthread_mutex_t lock;
    peer *first;
    uint32_t count, most;
    uint64_t most_ns;
    atomic_bool quits;
    pthread_t thread;
};

static void look_at(const peers *all, peer *p, uint64_t now)
{
    const bool crowded = all->count > all->most / 4 * 3 && all->most_ns > CROWDED_NS;
    struct pollfd socket = {.fd = p->socket, .events = POLLRDHUP};
    if (p->since_ns > 0 && now - p->since_ns > (crowded ? CROWDED_NS : all->most_ns)) shutdown(p->socket, SHUT_RDWR);
    if (p->waits_for == NULL || poll(&socket, 1, 0) <= 0 || (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) return;
    job_fail(p->waits_for, JOB_LEFT, "the client has left");
}

static void *watch(void *user)
{
    peers *all = user;
    const struct timespec pause = {.tv_nsec = 50000000};
    while (!atomic_load(&all->quits)) {
        pthread_mutex_lock(&all->lock);
        for (peer *p = all->first; p != NULL; p = p->after) look_at(all, p, base_now_ns());
        pthread_mutex_unlock(&all->lock);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

peers *peers_start(uint32_t receive_seconds, uint32_t most)
{
    peers *all = calloc(1, sizeof *all);
    if (all == NULL) return NULL;
    all->most = most;
    all->most_ns = receive_seconds * UINT64_C(1000000000);
    const bool locked = pthread_mutex_init(&all->lock, NULL) == 0;
    if (locked && pthread_create(&all->thread, NULL, watch, all) == 0) return all;
    if (locked) pthread_mutex_destroy(&all->lock);
    free(all);
    return NULL;
}

void peers_stop(peers **all_)
{
    peers *all = *all_;
    if (all == NULL) return;
    atomic_store(&all->quits, true);
    pthread_join(all->thread, NULL);
    pthread_mutex_destroy(&all->lock);
    free(all);
    *all_ = NULL;
}

peer *peers_add(peers *all, int socket)
{
    peer *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->socket = socket;
    p->since_ns = base_now_ns();
    pthread_mutex_lock(&all->lock);
    p->after = all->first;
    if (p->after != NULL) p->after->before = p;
    all->first = p;
    all->count++;
    pthread_mutex_unlock(&all->lock);
    return p;
}

void peers_remove(peers *all, peer *p)
{
    if (p == NULL) return;
    pthread_mutex_lock(&all->lock);
    all->count--;
    if (p->before != NULL) p->before->after = p->after;
    else all->first = p->after;
    if (p->after != NULL) p->after->before = p->before;
    pthread_mutex_unlock(&all->lock);
    free(p);
}

void peers_note(peers *all, peer *p, bool receives, job *waits_for)
{
    if (p == NULL) return;
    pthread_mutex_lock(&all->lock);
    p->since_ns = receives ? base_now_ns() : 0;
    p->waits_for = waits_for;
    pthread_mutex_unlock(&all->lock);
}
