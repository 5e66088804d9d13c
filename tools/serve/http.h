/* HTTP: what arrives on sockets becomes jobs of an engine, and their results become answers. */
#ifndef DARTLM_SERVE_HTTP_H
#define DARTLM_SERVE_HTTP_H

#include "serve/engine.h"

typedef struct http_options {
    const char *host;         /* address to listen on, in numbers */
    uint16_t port;            /* 0: any that is free */
    const char *key;          /* NULL: none is asked for */
    const char *model;
    const char *const *names; /* further names of this server in Host headers */
    size_t names_count;
    uint32_t receive_seconds; /* that a request may take to arrive */
    bool log;                 /* a line on stderr for each answer, without prompts */
} http_options;

/* Limits that do not depend on options. */
#define HTTP_MOST_BODY ((size_t)32 << 20)      /* of a request */
#define HTTP_MOST_BODIES ((size_t)256 << 20)   /* of all that are being received */
#define HTTP_MOST_ANSWERS ((size_t)512 << 20)  /* of completions under way, as api_answer_bytes counts; one alone may be larger */
#define HTTP_LARGE ((size_t)1 << 20)           /* bodies and answers above that are read and written by a thread of their own */
enum { HTTP_MOST_CONNECTIONS = 256, HTTP_MOST_PROMPTS = 512, HTTP_THREADS = 4, HTTP_HEADER_BYTES = 32768 };

typedef struct http http;

/* Listens and answers; completions are refused until http_ready. NULL with the text of the error. */
http *http_start(const http_options *options, engine *e, metrics *counts, char *error, size_t error_size);
uint16_t http_port(const http *h);
/* Once the tokenizer is there, before engine_start. The names must outlive h. */
void http_ready(http *h, const api_limits *limits, const api_names *names);
/* Once the engine has stopped: waits a while for answers under way, then closes all connections. */
void http_stop(http **h);

#endif
