/* A request over HTTP and its answer: what the files of http*.c share. */
#ifndef DARTLM_SERVE_HTTP_PARTS_H
#define DARTLM_SERVE_HTTP_PARTS_H

#include "serve/http.h"
#include "serve/peers.h"
#include "serve/worker.h"

#include <microhttpd.h>
#include <stdatomic.h>

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

/* The route of a path and a method, in x->route. false with the error. */
bool http_find_route(exchange *x, const char *path, const char *method);
/* Once all has arrived, and again whenever the connection has slept. */
enum MHD_Result http_answer(exchange *x);
enum MHD_Result http_send_error(exchange *x, const api_error *error);
void http_forget_body(exchange *x);

#endif
