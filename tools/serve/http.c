#define _POSIX_C_SOURCE 200809L
#include "serve/http.h"
#include "serve/access.h"
#include "serve/peers.h"
#include "serve/worker.h"
#include "base/base.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

typedef struct exchange exchange;

struct http {
    http_options options;
    engine *engine;
    metrics *counts;
    api_limits limits;
    const api_names *names;
    struct MHD_Daemon *daemon;
    int64_t started;
    uint16_t port;
    atomic_size_t bodies;  /* bytes that are being received */
    atomic_size_t answers; /* bytes of answers under way, about */
    atomic_uint exchanges; /* under way */
    worker *worker;        /* of what is large, one at a time: JSON takes many times its size */
    peers *peers;
};

typedef bool answer_function(exchange *x, api_text *to, api_error *error);

typedef struct route {
    const char *path, *method;
    answer_function *answer;
    const char *type; /* of what it answers */
    bool open;        /* needs no key */
} route;

/* A request and its answer. */
struct exchange {
    http *of;
    peer *peer;
    struct MHD_Connection *connection;
    const route *route;
    api_error error; /* found before the body was complete */
    const char *allow;
    api_text body, out; /* out: the answer, or of a stream what is to be sent */
    size_t counted;     /* of http.bodies */
    size_t expected;    /* of http.answers */
    size_t out_at;      /* of a stream: what has been sent */
    job *job;
    work work;
    bool read, written; /* the body; the answer of the job */
    bool ended;
    int status;
    uint64_t began_ns;
};

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

/* ---- What is asked ---- */

static bool ready(exchange *x, api_error *error)
{
    static const char *const texts[] = {"the model is still being loaded", "", "the server is stopping", "the device is lost"};
    const engine_state state = engine_state_of(x->of->engine);
    return state == ENGINE_READY || api_fail(error, 503, NULL, "%s", texts[state]);
}

static bool answer_health(exchange *x, api_text *to, api_error *error)
{
    if (!ready(x, error)) return false;
    api_print(to, "{\"status\":\"ok\"}");
    return true;
}

static bool answer_metrics(exchange *x, api_text *to, api_error *error)
{
    (void)error;
    metrics_write(x->of->counts, to);
    return true;
}

static bool answer_models(exchange *x, api_text *to, api_error *error)
{
    if (!ready(x, error)) return false;
    api_write_models(to, x->of->options.model, x->of->started, x->of->limits.context);
    return true;
}

static bool answer_model(exchange *x, api_text *to, api_error *error)
{
    if (!ready(x, error)) return false;
    api_write_model(to, x->of->options.model, x->of->started, x->of->limits.context);
    return true;
}

static bool answer_tokenizer(exchange *x, api_text *to, api_error *error)
{
    if (!ready(x, error)) return false;
    api_write_tokenizer(to, x->of->names, x->of->limits.tokenizer);
    return true;
}

static bool answer_tokenize(exchange *x, api_text *to, api_error *error)
{
    return ready(x, error) && api_tokenize(x->body.at, x->body.bytes, &x->of->limits, to, error);
}

static bool answer_detokenize(exchange *x, api_text *to, api_error *error)
{
    return ready(x, error) && api_detokenize(x->body.at, x->body.bytes, &x->of->limits, to, error);
}

static void resume(void *connection) { MHD_resume_connection(connection); }

/* Answers wait in memory for clients that read slowly. */
static bool expect_answer(exchange *x, size_t bytes, api_error *error)
{
    const size_t others = atomic_fetch_add(&x->of->answers, bytes);
    x->expected = bytes;
    return others == 0 || (others < HTTP_MOST_ANSWERS && bytes <= HTTP_MOST_ANSWERS - others) ||
           api_fail(error, 429, NULL, "answers to other requests fill the memory; try again later");
}

/* Reads the request and queues its job, which the answer then waits for. */
static bool answer_completion(exchange *x, api_text *to, api_error *error)
{
    http *h = x->of;
    api_request request;
    (void)to;
    if (!ready(x, error)) return false;
    bool read = api_read_completion(x->body.at, x->body.bytes, &h->limits, &request, error) &&
                expect_answer(x, api_answer_bytes(&request), error);
    if (read) {
        x->job = job_create(&request, h->options.model);
        read = x->job != NULL || api_fail(error, 503, NULL, "no memory for this request");
    }
    api_request_free(&request);
    if (!read) return false;
    x->job->wake = resume;
    x->job->user = x->connection;
    if (!engine_submit(h->engine, x->job, error)) return false;
    peers_note(h->peers, x->peer, false, x->job);
    return true;
}

static const char ONE_MODEL[] = "/v1/models/"; /* and its name */
static const route routes[] = {
    {"/v1/completions", "POST", answer_completion, "application/json", false},
    {"/v1/models", "GET", answer_models, "application/json", false},
    {ONE_MODEL, "GET", answer_model, "application/json", false},
    {"/tokenizer_info", "GET", answer_tokenizer, "application/json", false},
    {"/tokenize", "POST", answer_tokenize, "application/json", false},
    {"/detokenize", "POST", answer_detokenize, "application/json", false},
    {"/metrics", "GET", answer_metrics, "text/plain; version=0.0.4", false},
    {"/health", "GET", answer_health, "application/json", true},
};

static bool find_route(exchange *x, const char *path, const char *method)
{
    const bool head = strcmp(method, "HEAD") == 0;
    if (strncmp(path, ONE_MODEL, sizeof ONE_MODEL - 1) == 0) {
        const char *asked = path + sizeof ONE_MODEL - 1, *model = x->of->options.model;
        if (strcmp(asked, model) != 0) return api_fail(&x->error, 404, "model", "there is no model '%.60s' here, only '%.100s'", asked, model);
        path = ONE_MODEL;
    }
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        if (strcmp(routes[i].path, path) != 0) continue;
        x->route = &routes[i];
        if (strcmp(method, routes[i].method) == 0 || (head && strcmp(routes[i].method, "GET") == 0)) return true;
        x->allow = routes[i].method;
        return api_fail(&x->error, 405, NULL, "%s takes %s", routes[i].path, routes[i].method);
    }
    if (strcmp(path, "/v1/chat/completions") == 0)
        return api_fail(&x->error, 404, NULL, "there is no %s: this server has no chat templates; send the text to /v1/completions", path);
    return api_fail(&x->error, 404, NULL, "there is no %.100s", path);
}

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
    if (!find_route(x, path, method) && x->route == NULL && o->key == NULL) return false;
    const bool open = x->route != NULL && x->route->open;
    if (o->key != NULL && !open && !access_key(key, o->key))
        return api_fail(&x->error, 401, NULL, "the Authorization header must have this server's key");
    return x->error.status == 0;
}

/* ---- Answers ---- */

static enum MHD_Result queue(exchange *x, struct MHD_Response *response, int status, const char *type)
{
    if (response == NULL) return MHD_NO;
    x->status = status;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (status == 401) MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == 429 || status == 503) MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (status == 405 && x->allow != NULL) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, x->allow);
    const enum MHD_Result queued = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return queued;
}

/* The text becomes the library's. */
static enum MHD_Result send_text(exchange *x, api_text *text, int status, const char *type)
{
    if (text->failed) {
        api_text_free(text);
        return MHD_NO;
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(text->bytes, text->at, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) free(text->at);
    *text = (api_text){.at = NULL};
    return queue(x, response, status, type);
}

static enum MHD_Result send_error(exchange *x, const api_error *error)
{
    api_text text = {NULL, 0, 0, false};
    api_write_error(&text, error);
    return send_text(x, &text, error->status, "application/json");
}

/* The next bytes of a stream. */
static ssize_t read_stream(void *user, uint64_t at, char *to, size_t most)
{
    exchange *x = user;
    job *j = x->job;
    (void)at;
    if (x->out_at == x->out.bytes) {
        x->out.bytes = x->out_at = 0;
        if (x->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        pthread_mutex_lock(&j->lock);
        x->ended = job_write_news(j, &x->out, x->of->names, x->of->limits.tokenizer);
        if (x->out.bytes == 0 && !x->ended) {
            j->sleeping = true;
            MHD_suspend_connection(x->connection);
        }
        pthread_mutex_unlock(&j->lock);
        if (x->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    const size_t left = x->out.bytes - x->out_at, count = left < most ? left : most;
    if (count > 0) memcpy(to, x->out.at + x->out_at, count);
    x->out_at += count;
    return (ssize_t)count;
}

static void forget_body(exchange *x)
{
    atomic_fetch_sub(&x->of->bodies, x->counted);
    x->counted = 0;
    api_text_free(&x->body);
}

/* Does what the body asks for: the answer is in x->out then, or the job is queued. */
static void read_request(exchange *x)
{
    const bool done = x->route->answer(x, &x->out, &x->error);
    forget_body(x);
    x->read = true;
    if (done) return;
    api_text_free(&x->out);
    job_release(x->job); /* the queue did not take it */
    x->job = NULL;
}

static void write_job(exchange *x)
{
    job_write(x->job, &x->out, x->of->names, x->of->limits.tokenizer);
    x->written = true;
}

static void read_apart(void *user)
{
    exchange *x = user;
    read_request(x);
    MHD_resume_connection(x->connection);
}

static void write_apart(void *user)
{
    exchange *x = user;
    write_job(x);
    MHD_resume_connection(x->connection);
}

/* Has the worker run it, after which the connection is answered. */
static enum MHD_Result hand_over(exchange *x, void (*run)(void *user))
{
    x->work = (work){.run = run, .user = x};
    MHD_suspend_connection(x->connection);
    if (worker_add(x->of->worker, &x->work)) return MHD_YES;
    api_fail(&x->error, 503, NULL, "the server is stopping");
    MHD_resume_connection(x->connection);
    return MHD_YES;
}

/* The answer of a job, once it is over; until then the connection sleeps. */
static enum MHD_Result send_job(exchange *x)
{
    job *j = x->job;
    api_error failure = {.status = 0};
    if (j->request.settings.stream)
        return queue(x, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, x, NULL), 200, "text/event-stream");
    pthread_mutex_lock(&j->lock);
    const bool over = job_over(j);
    if (!over) {
        j->sleeping = true;
        MHD_suspend_connection(x->connection);
    } else failure = j->failure;
    pthread_mutex_unlock(&j->lock);
    if (!over) return MHD_YES;
    if (failure.status != 0) return send_error(x, &failure);
    if (!x->written && x->expected > HTTP_LARGE) return hand_over(x, write_apart);
    if (!x->written) write_job(x);
    return send_text(x, &x->out, 200, "application/json");
}

static enum MHD_Result answer(exchange *x)
{
    if (!x->read && x->error.status == 0) {
        peers_note(x->of->peers, x->peer, false, NULL); /* all has arrived: what takes time now is not the client's */
        if (x->body.at == NULL) api_add(&x->body, " ", 1); /* an empty body is none of JSON */
        if (x->body.failed) api_fail(&x->error, 503, NULL, "no memory for this request");
        else if (x->body.bytes > HTTP_LARGE) return hand_over(x, read_apart);
        else read_request(x);
    }
    if (x->error.status != 0) return send_error(x, &x->error);
    return x->job != NULL ? send_job(x) : send_text(x, &x->out, 200, x->route->type);
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
    if (x->error.status != 0 && (expects || declared > DISCARDED * HTTP_MOST_BODY)) return send_error(x, &x->error);
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
    if (x->error.status != 0) forget_body(x);
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
    return answer(x);
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
    forget_body(x);
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
