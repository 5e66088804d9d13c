/* A completion under way: what the thread that computes it and the thread that answers share. */
#ifndef DARTLM_SERVE_JOB_H
#define DARTLM_SERVE_JOB_H

#include "serve/metrics.h"

#include <pthread.h>

typedef struct job job;

/* One answer. What the engine writes and the answer reads is guarded by the job's lock. */
typedef struct job_sequence {
    job *of;
    uint32_t index; /* of the answer: those to a prompt follow one another, n of them */
    const int32_t *ids; /* the prompt, count of them */
    uint32_t count;
    dart_token_list tokens; /* generated */
    api_scores scores;
    api_text text;          /* generated, without a stop */
    const char *finish;     /* "stop", "length"; NULL: it goes on */
    /* The engine's alone. */
    dart_text_stream *stream;
    uint32_t fed; /* tokens of the prompt that are computed */
    uint64_t seed;
    /* The stream's alone: what chunks have had of it. */
    size_t sent_tokens, sent_text, points;
    bool ended;
} job_sequence;

struct job {
    pthread_mutex_t lock;
    int references; /* guarded by lock */
    api_request request;
    job_sequence *sequences;
    uint32_t count, admitted, done; /* admitted: the engine's alone */
    api_error failure; /* status 0: none */
    uint64_t arrived_ns;
    bool has_first; /* a token has been chosen */
    void (*wake)(void *user); /* called with the lock held, once, when there is news for a sleeping reader; then sleeping is false */
    void *user;
    bool sleeping;
    api_head head;
    char id[32];
    job *next; /* in the engine's queue */
};

/* Takes the request over. NULL without memory, the request is then the caller's. One reference. */
job *job_create(api_request *request, const char *model);
void job_keep(job *j);
void job_release(job *j);
/* With the lock held: all is done, or it has failed. */
bool job_over(const job *j);
/* With the lock held: wakes a sleeping reader. */
void job_wake(job *j);
/* Fails it, unless it is over; takes the lock. Its sequences free their slots before the next step. JOB_LEFT: the client has left. */
enum { JOB_LEFT = 499 };
void job_fail(job *j, int status, const char *message);

/* Of a job that is over, which the caller has seen with the lock held, and has not failed: nobody changes it any more. */
void job_write(const job *j, api_text *to, const api_names *names, dart_tokenizer *tokenizer);
/* With the lock held: appends the chunks of a stream that are new. true: the stream has ended. */
bool job_write_news(job *j, api_text *to, const api_names *names, dart_tokenizer *tokenizer);

#endif
