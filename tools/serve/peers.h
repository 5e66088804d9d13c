/* Connections, watched by a thread: those that take too long to send a request are ended, and jobs whose client has left. With more than three
 * quarters of all connections taken, two seconds are too long, so that idle connections keep nobody out. */
#ifndef DARTLM_SERVE_PEERS_H
#define DARTLM_SERVE_PEERS_H

#include "serve/job.h"

typedef struct peers peers;
typedef struct peer peer;

/* most: connections that there can be. NULL without memory or threads. */
peers *peers_start(uint32_t receive_seconds, uint32_t most);
/* Once all connections are closed. */
void peers_stop(peers **all);
/* A connection that begins to receive. NULL without memory: it is not watched. */
peer *peers_add(peers *all, int socket);
void peers_remove(peers *all, peer *p);
/* What it does now: receive a request, or not; and the job that its request waits for, or NULL, which must be there until the next call. p may be
 * NULL. */
void peers_note(peers *all, peer *p, bool receives, job *waits_for);

#endif
