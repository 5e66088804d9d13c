/* Requests from JSON. */
#include "serve/api.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool api_fail(api_error *error, int status, const char *param, const char *format, ...)
{
    va_list arguments;
    error->status = status;
    error->param = param;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return false;
}

static bool fail_memory(api_error *error) { return api_fail(error, 503, NULL, "no memory for this request"); }

/* ---- JSON ---- */

/* Whether brackets nest deeper than API_DEPTH, or there are more than API_MOST_LISTS of them or API_MOST_VALUES values: jansson's own limit of
 * depth is 2048, and it takes 40 bytes for a number and hundreds for a list, which have two in the body. */
static bool too_many(const char *body, size_t bytes)
{
    unsigned depth = 0, lists = 0, values = 1;
    bool text = false;
    for (size_t i = 0; i < bytes; i++) {
        const char c = body[i];
        if (text && c == '\\') i++;
        else if (c == '"') text = !text;
        else if (text) continue;
        else if (c == '{' || c == '[') {
            depth++;
            lists++;
        } else if (c == '}' || c == ']') depth -= depth > 0;
        else values += c == ',';
        if (depth > API_DEPTH || lists > API_MOST_LISTS || values > API_MOST_VALUES) return true;
    }
    return false;
}

/* The object, for json_decref, or NULL with the error. */
static json_t *read_object(const char *body, size_t bytes, api_error *error)
{
    json_error_t where;
    if (too_many(body, bytes)) {
        api_fail(error, 400, NULL, "the JSON nests deeper than %d, or holds more than %d lists or %d values", API_DEPTH, API_MOST_LISTS,
                 API_MOST_VALUES);
        return NULL;
    }
    json_t *object = json_loadb(body, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (object == NULL) api_fail(error, 400, NULL, "the body is not JSON: byte %d: %.120s", where.position, where.text);
    else if (!json_is_object(object)) {
        api_fail(error, 400, NULL, "the body is not a JSON object");
        json_decref(object);
        object = NULL;
    }
    return object;
}

/* The value of a key; NULL where it is absent or null. */
static json_t *value_of(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static bool read_bool(const json_t *object, const char *key, bool *to, api_error *error)
{
    const json_t *value = value_of(object, key);
    if (value == NULL) return true;
    if (!json_is_boolean(value)) return api_fail(error, 400, key, "%s must be true or false", key);
    *to = json_is_true(value);
    return true;
}

static bool read_number(const json_t *object, const char *key, double least, double most, float *to, api_error *error)
{
    const json_t *value = value_of(object, key);
    if (value == NULL) return true;
    const double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= least && number <= most))
        return api_fail(error, 400, key, "%s must be a number from %g to %g", key, least, most);
    *to = (float)number;
    return true;
}

static bool read_whole(const json_t *object, const char *key, int64_t least, int64_t most, int64_t *to, api_error *error)
{
    const json_t *value = value_of(object, key);
    if (value == NULL) return true;
    const int64_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < least || number > most)
        return api_fail(error, 400, key, "%s must be a whole number from %lld to %lld", key, (long long)least, (long long)most);
    *to = number;
    return true;
}

/* ---- Settings ---- */

/* Keys that ask for what is not done here: refused unless they say what is done anyway. */
static bool refuse_others(const json_t *object, api_error *error)
{
    static const struct {
        const char *key;
        double done; /* the number that asks for nothing */
    } others[] = {{"presence_penalty", 0}, {"frequency_penalty", 0}, {"min_tokens", 0}, {"suffix", 0}, {"logit_bias", 0}, {"use_beam_search", 0},
                  {"length_penalty", 1}, {"prompt_logprobs", NAN}, {"truncate_prompt_tokens", NAN}, {"include_stop_str_in_output", 0},
                  {"bad_words", 0}, {"allowed_token_ids", 0}, {"guided_json", 0}, {"guided_regex", 0}, {"guided_choice", 0}, {"guided_grammar", 0},
                  {"structured_outputs", 0}};
    bool skips = true;
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        const json_t *value = value_of(object, others[i].key);
        const bool nothing = value == NULL || json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
                             (json_is_object(value) && json_object_size(value) == 0) || (json_is_array(value) && json_array_size(value) == 0) ||
                             (json_is_number(value) && json_number_value(value) == others[i].done);
        if (!nothing) return api_fail(error, 400, others[i].key, "%s is not supported by this server", others[i].key);
    }
    if (!read_bool(object, "skip_special_tokens", &skips, error)) return false;
    return skips || api_fail(error, 400, "skip_special_tokens", "skip_special_tokens false is not supported by this server");
}

/* A copy of a text without zero bytes, which dart_text_stream takes. */
static bool add_stop(const json_t *value, api_settings *s, api_error *error)
{
    const size_t bytes = json_string_length(value);
    if (!json_is_string(value)) return api_fail(error, 400, "stop", "stop must be a text or a list of texts");
    if (bytes == 0) return api_fail(error, 400, "stop", "a stop must not be empty");
    if (bytes > API_STOP_BYTES) return api_fail(error, 400, "stop", "a stop has more than %d bytes", API_STOP_BYTES);
    if (memchr(json_string_value(value), '\0', bytes) != NULL) return api_fail(error, 400, "stop", "a stop must not hold U+0000");
    if (s->stops_count == API_MOST_STOPS) return api_fail(error, 400, "stop", "there are more than %d stops", API_MOST_STOPS);
    char *copy = malloc(bytes + 1);
    if (copy == NULL) return fail_memory(error);
    memcpy(copy, json_string_value(value), bytes + 1);
    s->stops[s->stops_count++] = copy;
    return true;
}

static bool read_stops(const json_t *object, api_settings *s, api_error *error)
{
    const json_t *stop = value_of(object, "stop");
    if (stop == NULL) return true;
    if (!json_is_array(stop)) return add_stop(stop, s, error);
    for (size_t i = 0; i < json_array_size(stop); i++)
        if (!add_stop(json_array_get(stop, i), s, error)) return false;
    return true;
}

static bool read_ids(const json_t *list, const char *key, const api_limits *limits, dart_token_list *ids, api_error *error);

static bool read_stop_ids(const json_t *object, const api_limits *limits, api_settings *s, api_error *error)
{
    static const char key[] = "stop_token_ids";
    const json_t *list = value_of(object, key);
    dart_token_list ids = {NULL, 0, 0};
    if (list == NULL) return true;
    if (!json_is_array(list)) return api_fail(error, 400, key, "%s must be a list of ids", key);
    if (json_array_size(list) > API_MOST_STOP_IDS) return api_fail(error, 400, key, "%s: more than %d are not supported", key, API_MOST_STOP_IDS);
    const bool done = read_ids(list, key, limits, &ids, error);
    for (size_t i = 0; i < ids.count; i++) s->stop_ids[s->stop_ids_count++] = ids.ids[i];
    dart_token_list_free(&ids);
    return done;
}

static bool read_stream(const json_t *object, api_settings *s, api_error *error)
{
    const json_t *options = value_of(object, "stream_options");
    if (!read_bool(object, "stream", &s->stream, error)) return false;
    if (options == NULL) return true;
    if (!json_is_object(options)) return api_fail(error, 400, "stream_options", "stream_options must be an object");
    if (!s->stream) return api_fail(error, 400, "stream_options", "stream_options come with stream");
    return read_bool(options, "include_usage", &s->usage, error);
}

static bool read_logprobs(const json_t *object, api_settings *s, api_error *error)
{
    int64_t logprobs = -1;
    if (json_is_false(value_of(object, "logprobs"))) return true;
    if (!read_whole(object, "logprobs", 0, API_MOST_LOGPROBS, &logprobs, error)) return false;
    s->logprobs = (int32_t)logprobs;
    return true;
}

/* All answers that are drawn are given: best_of says no more than n. */
static bool read_answers(const json_t *object, const api_limits *limits, api_settings *s, api_error *error)
{
    int64_t n = 1, best_of = 0;
    if (!read_whole(object, "n", 1, limits->prompts, &n, error) || !read_whole(object, "best_of", 1, INT32_MAX, &best_of, error)) return false;
    if (best_of != 0 && best_of != n) return api_fail(error, 400, "best_of", "best_of %lld is not n, %lld: others are not supported by this server",
                                                      (long long)best_of, (long long)n);
    s->n = (uint32_t)n;
    return true;
}

static bool read_settings(const json_t *object, const api_limits *limits, api_settings *s, api_error *error)
{
    int64_t max_tokens = 16, top_k = 0, seed = 0;
    *s = (api_settings){.logprobs = -1, .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n = 1};
    if (!refuse_others(object, error) || !read_answers(object, limits, s, error) ||
        !read_whole(object, "max_tokens", 0, INT32_MAX, &max_tokens, error) ||
        !read_whole(object, "top_k", -1, INT32_MAX, &top_k, error) || !read_whole(object, "seed", INT64_MIN, INT64_MAX, &seed, error) ||
        !read_logprobs(object, s, error) || !read_number(object, "temperature", 0, 1000, &s->temperature, error) ||
        !read_number(object, "top_p", 0, 1, &s->top_p, error) || !read_number(object, "min_p", 0, 1, &s->min_p, error) ||
        !read_number(object, "repetition_penalty", 0, 1000, &s->repetition_penalty, error) || !read_bool(object, "echo", &s->echo, error) ||
        !read_bool(object, "ignore_eos", &s->ignore_eos, error) || !read_stream(object, s, error) || !read_stops(object, s, error) ||
        !read_stop_ids(object, limits, s, error))
        return false;
    if (max_tokens > limits->context)
        return api_fail(error, 400, "max_tokens", "max_tokens %lld exceeds the %u tokens of this server's context", (long long)max_tokens,
                        (unsigned)limits->context);
    if (max_tokens == 0 && !s->echo) return api_fail(error, 400, "max_tokens", "max_tokens 0 comes with echo");
    s->max_tokens = (uint32_t)max_tokens;
    if (s->top_p <= 0) s->top_p = 1e-6f; /* the likeliest alone; dart_sampling's 0 would keep all */
    s->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    s->seeded = value_of(object, "seed") != NULL;
    s->seed = (uint64_t)seed;
    return true;
}

static bool read_model(const json_t *object, const api_limits *limits, api_error *error)
{
    const json_t *model = value_of(object, "model");
    if (model == NULL) return true;
    if (!json_is_string(model)) return api_fail(error, 400, "model", "model must be a text");
    if (strcmp(json_string_value(model), limits->model) == 0) return true;
    return api_fail(error, 404, "model", "there is no model '%.60s' here, only '%.100s'", json_string_value(model), limits->model);
}

/* ---- Prompts ---- */

static bool fail_tokenizer(const api_limits *limits, dart_status status, const char *param, api_error *error)
{
    char text[200] = "";
    if (status == DART_OUT_OF_MEMORY) return fail_memory(error);
    dart_tokenizer_error(limits->tokenizer, text, sizeof text);
    return api_fail(error, 400, param, "%s", text);
}

/* plain: special tokens in the text are text. */
static bool read_text(const json_t *value, const api_limits *limits, const dart_encode_options *options, api_prompt *prompt, api_error *error)
{
    prompt->bytes = json_string_length(value);
    prompt->text = malloc(prompt->bytes + 1);
    if (prompt->text == NULL) return fail_memory(error);
    memcpy(prompt->text, json_string_value(value), prompt->bytes + 1);
    const dart_status status = dart_tokenizer_encode(limits->tokenizer, prompt->text, prompt->bytes, options, &prompt->ids);
    return status == DART_OK || fail_tokenizer(limits, status, "prompt", error);
}

static bool read_ids(const json_t *list, const char *key, const api_limits *limits, dart_token_list *ids, api_error *error)
{
    if (json_array_size(list) > API_MOST_IDS) return api_fail(error, 400, key, "%s: a list has more than %d ids", key, API_MOST_IDS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const int64_t id = json_integer_value(value);
        if (!json_is_integer(value)) return api_fail(error, 400, key, "%s: entry %zu of a list of ids is not a whole number", key, i);
        if (id < 0 || id >= limits->V)
            return api_fail(error, 400, key, "%s: id %lld is not within 0 to %u", key, (long long)id, (unsigned)(limits->V - 1));
        if (dart_token_list_add(ids, (int32_t)id) != DART_OK) return fail_memory(error);
    }
    return true;
}

static bool read_prompt(const json_t *value, const api_limits *limits, const dart_encode_options *options, uint32_t max_tokens, api_prompt *prompt,
                        api_error *error)
{
    const bool read = json_is_string(value) ? read_text(value, limits, options, prompt, error)
                      : json_is_array(value)
                          ? read_ids(value, "prompt", limits, &prompt->ids, error)
                          : api_fail(error, 400, "prompt", "prompt must be a text, a list of texts, a list of ids or a list of lists of ids");
    if (!read) return false;
    if (prompt->ids.count == 0) return api_fail(error, 400, "prompt", "a prompt has no tokens");
    if (prompt->ids.count + max_tokens > limits->context)
        return api_fail(error, 400, "prompt", "the prompt's %zu tokens and max_tokens %u exceed the %u tokens of this server's context",
                        prompt->ids.count, (unsigned)max_tokens, (unsigned)limits->context);
    return true;
}

static bool read_prompts(const json_t *object, const api_limits *limits, api_request *request, api_error *error)
{
    const json_t *prompt = value_of(object, "prompt");
    bool plain = false, special = true, frame = false;
    if (!read_bool(object, "parse_special", &special, error) || !read_bool(object, "add_special_tokens", &frame, error)) return false;
    plain = !special;
    const dart_encode_options options = {.plain = plain, .frame = frame};
    const bool several = json_is_array(prompt) && !json_is_integer(json_array_get(prompt, 0));
    const size_t count = several ? json_array_size(prompt) : 1;
    if (prompt == NULL) return api_fail(error, 400, "prompt", "prompt is missing");
    if (count == 0) return api_fail(error, 400, "prompt", "a prompt has no tokens");
    if (count > limits->prompts) return api_fail(error, 400, "prompt", "%zu prompts, at most %u", count, (unsigned)limits->prompts);
    if (count * request->settings.n > limits->prompts)
        return api_fail(error, 400, "n", "%zu prompts with n %u ask for more than %u answers", count, (unsigned)request->settings.n,
                        (unsigned)limits->prompts);
    request->prompts = calloc(count, sizeof *request->prompts);
    if (request->prompts == NULL) return fail_memory(error);
    for (; request->prompts_count < count; request->prompts_count++) {
        const json_t *value = several ? json_array_get(prompt, request->prompts_count) : prompt;
        api_prompt *to = &request->prompts[request->prompts_count];
        if (read_prompt(value, limits, &options, request->settings.max_tokens, to, error)) continue;
        request->prompts_count++; /* what it has is freed with the others */
        return false;
    }
    return true;
}

/* Log-probabilities make an answer hundreds of times as long as the request. */
static bool fits(const api_request *request, api_error *error)
{
    const api_settings *s = &request->settings;
    uint64_t places = 0;
    for (uint32_t i = 0; i < request->prompts_count; i++) places += (uint64_t)s->n * (s->max_tokens + (s->echo ? request->prompts[i].ids.count : 0));
    if (s->logprobs < 0 || places * ((uint64_t)s->logprobs + 1) <= API_MOST_ENTRIES) return true;
    return api_fail(error, 400, "logprobs", "more than %d log-probabilities in an answer: ask with fewer prompts at a time", API_MOST_ENTRIES);
}

size_t api_answer_bytes(const api_request *request)
{
    enum { TOKEN = 8, SCORE = 40 }; /* a token's text; a log-probability with a name */
    const api_settings *s = &request->settings;
    const uint64_t each = TOKEN + (s->logprobs < 0 ? 0 : SCORE * ((uint64_t)s->logprobs + 1));
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < request->prompts_count; i++) {
        const api_prompt *prompt = &request->prompts[i];
        bytes += s->n * (s->max_tokens * each + (s->echo ? prompt->ids.count * each + prompt->bytes : 0));
    }
    return bytes < SIZE_MAX ? (size_t)bytes : SIZE_MAX;
}

bool api_read_completion(const char *body, size_t bytes, const api_limits *limits, api_request *request, api_error *error)
{
    *request = (api_request){.prompts = NULL};
    json_t *object = read_object(body, bytes, error);
    if (object == NULL) return false;
    const bool read = read_model(object, limits, error) && read_settings(object, limits, &request->settings, error) &&
                      read_prompts(object, limits, request, error) && fits(request, error);
    json_decref(object);
    return read;
}

void api_request_free(api_request *request)
{
    for (uint32_t i = 0; i < request->prompts_count; i++) {
        free(request->prompts[i].text);
        dart_token_list_free(&request->prompts[i].ids);
    }
    for (uint32_t i = 0; i < request->settings.stops_count; i++) free(request->settings.stops[i]);
    free(request->prompts);
    *request = (api_request){.prompts = NULL};
}

/* ---- The tokenizer alone ---- */

bool api_tokenize(const char *body, size_t bytes, const api_limits *limits, api_text *answer, api_error *error)
{
    json_t *object = read_object(body, bytes, error);
    if (object == NULL) return false;
    const json_t *prompt = value_of(object, "prompt");
    bool special = true, frame = false;
    dart_token_list ids = {NULL, 0, 0};
    bool done = read_bool(object, "parse_special", &special, error) && read_bool(object, "add_special_tokens", &frame, error) &&
                (json_is_string(prompt) || api_fail(error, 400, "prompt", "prompt must be a text"));
    if (done) {
        const dart_encode_options options = {.plain = !special, .frame = frame};
        const dart_status status = dart_tokenizer_encode(limits->tokenizer, json_string_value(prompt), json_string_length(prompt), &options, &ids);
        done = status == DART_OK || fail_tokenizer(limits, status, "prompt", error);
    }
    if (done) {
        api_print(answer, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids.count, (unsigned)limits->context);
        for (size_t i = 0; i < ids.count; i++) api_print(answer, "%s%d", i > 0 ? "," : "", (int)ids.ids[i]);
        api_print(answer, "]}");
    }
    dart_token_list_free(&ids);
    json_decref(object);
    return done;
}

bool api_detokenize(const char *body, size_t bytes, const api_limits *limits, api_text *answer, api_error *error)
{
    json_t *object = read_object(body, bytes, error);
    if (object == NULL) return false;
    const json_t *tokens = value_of(object, "tokens");
    const dart_text_options options = {.with_special = true};
    dart_token_list ids = {NULL, 0, 0};
    dart_text_stream *stream = NULL;
    api_text text = {NULL, 0, 0, false};
    const char *given;
    size_t count;
    bool done = (json_is_array(tokens) || api_fail(error, 400, "tokens", "tokens must be a list of ids")) &&
                read_ids(tokens, "tokens", limits, &ids, error);
    if (done) {
        done = dart_text_stream_create(limits->tokenizer, &options, &stream) == DART_OK &&
               dart_text_stream_feed(stream, ids.ids, ids.count, &given, &count, NULL) == DART_OK;
        if (done) api_add(&text, given, count);
        done = done && dart_text_stream_end(stream, &given, &count) == DART_OK;
        if (done) api_add(&text, given, count);
        if (!done || text.failed) done = fail_memory(error);
    }
    if (done) {
        api_print(answer, "{\"prompt\":");
        api_add_string(answer, text.at != NULL ? text.at : "", text.bytes);
        api_print(answer, "}");
    }
    dart_text_stream_destroy(&stream);
    api_text_free(&text);
    dart_token_list_free(&ids);
    json_decref(object);
    return done;
}
