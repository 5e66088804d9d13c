/* Answers: sent at once, when their job is over, or as a stream. */
#define _POSIX_C_SOURCE 200809L
#include "serve/http_parts.h"

#include <stdlib.h>
#include <string.h>

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

enum MHD_Result http_send_error(exchange *x, const api_error *error)
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

void http_forget_body(exchange *x)
{
    atomic_fetch_sub(&x->of->bodies, x->counted);
    x->counted = 0;
    api_text_free(&x->body);
}

/* Does what the body asks for: the answer is in x->out then, or the job is queued. */
static void read_request(exchange *x)
{
    const bool done = x->route->answer(x, &x->out, &x->error);
    http_forget_body(x);
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
    if (failure.status != 0) return http_send_error(x, &failure);
    if (!x->written && x->expected > HTTP_LARGE) return hand_over(x, write_apart);
    if (!x->written) write_job(x);
    return send_text(x, &x->out, 200, "application/json");
}

enum MHD_Result http_answer(exchange *x)
{
    if (!x->read && x->error.status == 0) {
        peers_note(x->of->peers, x->peer, false, NULL); /* all has arrived: what takes time now is not the client's */
        if (x->body.at == NULL) api_add(&x->body, " ", 1); /* an empty body is none of JSON */
        if (x->body.failed) api_fail(&x->error, 503, NULL, "no memory for this request");
        else if (x->body.bytes > HTTP_LARGE) return hand_over(x, read_apart);
        else read_request(x);
    }
    if (x->error.status != 0) return http_send_error(x, &x->error);
    return x->job != NULL ? send_job(x) : send_text(x, &x->out, 200, x->route->type);
}
