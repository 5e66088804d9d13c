#define _POSIX_C_SOURCE 200809L
#include "serve/http_parts.h"
#include "serve/access.h"
#include "base/base.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

/* ---- Connections ---- */

static void connection_changes(void *user, struct MHD_Connection *connection, void **context, enum MHD_ConnectionNotificationCode code)
{
    http *h = user;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) *context = info != NULL ? peers_add(h->peers, (int)info->connect_fd) : NULL;
    else {
        peers_remove(h->peers, *context);
        *context = NULL;
    }
}

/* ---- Headers ---- */

/* Headers that must not stand twice: this server and one in front of it could each follow another of them. */
typedef struct single {
    const char *name;
    int count;
} single;
static enum MHD_Result count_single(void *user, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind, (void)value;
    for (single *s = user; s->name != NULL; s++) s->count += strcasecmp(s->name, name) == 0;
    return MHD_YES;
}

static bool check_single(exchange *x)
{
    single singles[] = {{MHD_HTTP_HEADER_HOST, 0}, {MHD_HTTP_HEADER_CONTENT_LENGTH, 0}, {MHD_HTTP_HEADER_TRANSFER_ENCODING, 0},
                        {MHD_HTTP_HEADER_AUTHORIZATION, 0}, {MHD_HTTP_HEADER_ORIGIN, 0}, {NULL, 0}};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_single, singles);
    for (const single *s = singles; s->name != NULL; s++)
        if (s->count > 1) return api_fail(&x->error, 400, NULL, "the header %s stands %d times", s->name, s->count);
    return singles[1].count + singles[2].count < 2 || api_fail(&x->error, 400, NULL, "Content-Length and Transfer-Encoding exclude each other");
}

/* What the headers say against the request. */
static bool check_headers(exchange *x, const char *path, const char *method)
{
    const http_options *o = &x->of->options;
    const char *host = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    const char *origin = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    const char *key = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    if (!check_single(x)) return false;
    if (!access_host(host, o->names, o->names_count)) return api_fail(&x->error, 403, NULL, "the Host header names another server");
    if (!access_origin(origin, host)) return api_fail(&x->error, 403, NULL, "pages of other servers may not ask this one");
    if (!http_find_route(x, path, method) && x->route == NULL && o->key == NULL) return false;
    const bool open = x->route != NULL && x->route->open;
    if (o->key != NULL && !open && !access_key(key, o->key))
        return api_fail(&x->error, 401, NULL, "the Authorization header must have this server's key");
    return x->error.status == 0;
}

/* ---- Requests ---- */

static enum MHD_Result begin(http *h, struct MHD_Connection *connection, const char *path, const char *method, void **context)
{
    enum { DISCARDED = 4 };
    exchange *x = calloc(1, sizeof *x);
    if (x == NULL) return MHD_NO;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    *x = (exchange){.of = h, .connection = connection, .peer = info != NULL ? info->socket_context : NULL, .began_ns = base_now_ns()};
    *context = x;
    atomic_fetch_add(&h->exchanges, 1);
    check_headers(x, path, method);
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const unsigned long long declared = length != NULL ? strtoull(length, NULL, 10) : 0;
    if (declared > HTTP_MOST_BODY && x->error.status == 0)
        api_fail(&x->error, 413, NULL, "the body has more than %zu bytes", HTTP_MOST_BODY);
    /* A client that has not sent its body yet, or would send much, is answered at once; the connection then closes. Others may be unable to read
     * an answer before they have sent all: what they send is read and forgotten. */
    const bool expects = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT) != NULL;
    if (x->error.status != 0 && (expects || declared > DISCARDED * HTTP_MOST_BODY)) return http_send_error(x, &x->error);
    return MHD_YES;
}

static void take_body(exchange *x, const char *data, size_t bytes)
{
    http *h = x->of;
    if (x->error.status != 0) return;
    if (bytes > HTTP_MOST_BODY - x->body.bytes) api_fail(&x->error, 413, NULL, "the body has more than %zu bytes", HTTP_MOST_BODY);
    else if (atomic_fetch_add(&h->bodies, bytes) > HTTP_MOST_BODIES - bytes) {
        atomic_fetch_sub(&h->bodies, bytes);
        api_fail(&x->error, 503, NULL, "other requests fill the memory for bodies");
    } else {
        x->counted += bytes;
        api_add(&x->body, data, bytes);
    }
    if (x->error.status != 0) http_forget_body(x);
}

static enum MHD_Result handle(void *user, struct MHD_Connection *connection, const char *path, const char *method, const char *version,
                              const char *data, size_t *bytes, void **context)
{
    (void)version;
    if (*context == NULL) return begin(user, connection, path, method, context);
    exchange *x = *context;
    if (*bytes > 0) {
        take_body(x, data, *bytes);
        *bytes = 0;
        return MHD_YES;
    }
    return http_answer(x);
}

static void ended(void *user, struct MHD_Connection *connection, void **context, enum MHD_RequestTerminationCode code)
{
    http *h = user;
    exchange *x = *context;
    (void)connection;
    if (x == NULL) return;
    *context = NULL;
    peers_note(h->peers, x->peer, true, NULL);
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK) x->status = JOB_LEFT;
    if (x->job != NULL) {
        pthread_mutex_lock(&x->job->lock);
        x->job->sleeping = false; /* the connection is not to be resumed any more */
        pthread_mutex_unlock(&x->job->lock);
        job_fail(x->job, JOB_LEFT, "the client has left"); /* does nothing to one that is over */
    }
    job_release(x->job);
    metrics_answer(h->counts, x->status);
    if (h->options.log)
        fprintf(stderr, "dartlm: %s %d %.1f ms\n", x->route != NULL ? x->route->path : "-", x->status, (double)(base_now_ns() - x->began_ns) / 1e6);
    atomic_fetch_sub(&h->answers, x->expected);
    http_forget_body(x);
    api_text_free(&x->out);
    free(x);
    atomic_fetch_sub(&h->exchanges, 1);
}

/* ---- Start and end ---- */

static struct MHD_Daemon *listen_on(http *h, const struct addrinfo *address)
{
    const unsigned flags = MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                           (address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0u);
    return MHD_start_daemon(flags, h->options.port, NULL, NULL, handle, h, MHD_OPTION_SOCK_ADDR, address->ai_addr, MHD_OPTION_NOTIFY_COMPLETED, ended,
                            h, MHD_OPTION_NOTIFY_CONNECTION, connection_changes, h, MHD_OPTION_CONNECTION_LIMIT, (unsigned)HTTP_MOST_CONNECTIONS,
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->options.receive_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            (size_t)HTTP_HEADER_BYTES, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)HTTP_THREADS, MHD_OPTION_END);
}

http *http_start(const http_options *options, engine *e, metrics *counts, char *error, size_t error_size)
{
    char port[8];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    struct addrinfo *address = NULL;
    http *h = calloc(1, sizeof *h);
    snprintf(error, error_size, "no memory on the host");
    if (h == NULL) return NULL;
    h->options = *options;
    h->engine = e;
    h->counts = counts;
    h->started = (int64_t)time(NULL);
    h->worker = worker_start();
    h->peers = peers_start(options->receive_seconds, HTTP_MOST_CONNECTIONS);
    if (h->peers == NULL || h->worker == NULL) goto fail;
    snprintf(port, sizeof port, "%u", (unsigned)options->port);
    if (getaddrinfo(options->host, port, &hints, &address) != 0) {
        snprintf(error, error_size, "%s is no address in numbers", options->host);
        goto fail;
    }
    errno = 0;
    h->daemon = listen_on(h, address);
    if (h->daemon == NULL) {
        snprintf(error, error_size, "cannot listen on %s, port %u%s%s", options->host, (unsigned)options->port, errno != 0 ? ": " : "",
                 errno != 0 ? strerror(errno) : "");
        goto fail;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    h->port = info != NULL ? info->port : options->port;
    freeaddrinfo(address);
    return h;
fail:
    if (address != NULL) freeaddrinfo(address);
    http_stop(&h);
    return NULL;
}

uint16_t http_port(const http *h) { return h->port; }

void http_ready(http *h, const api_limits *limits, const api_names *names)
{
    h->limits = *limits;
    h->names = names;
}

void http_stop(http **http_)
{
    http *h = *http_;
    if (h == NULL) return;
    const struct timespec pause = {.tv_nsec = 10000000};
    for (int i = 0; i < 500 && atomic_load(&h->exchanges) > 0; i++) nanosleep(&pause, NULL);
    if (h->worker != NULL) worker_stop(h->worker); /* so that no connection sleeps */
    if (h->daemon != NULL) MHD_stop_daemon(h->daemon);
    worker_destroy(&h->worker);
    peers_stop(&h->peers);
    free(h);
    *http_ = NULL;
}
