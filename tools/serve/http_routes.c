/* What is asked: paths, and what each answers. */
#include "serve/http_parts.h"

#include <string.h>

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

bool http_find_route(exchange *x, const char *path, const char *method)
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
