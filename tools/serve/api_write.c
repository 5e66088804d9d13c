/* Answers as JSON. Written directly: values of a JSON library would take a hundred times the memory of the numbers of a long prompt. */
#include "serve/api.h"
#include "text/unicode.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Text that grows ---- */

void api_text_free(api_text *text)
{
    free(text->at);
    *text = (api_text){.at = NULL};
}

static bool reserve(api_text *text, size_t more)
{
    if (text->failed) return false;
    if (more <= text->capacity - text->bytes) return true;
    const size_t capacity = text->bytes + more + text->capacity / 2 + 256;
    char *grown = realloc(text->at, capacity);
    text->failed = grown == NULL;
    if (text->failed) return false;
    text->at = grown;
    text->capacity = capacity;
    return true;
}

void api_add(api_text *text, const char *bytes, size_t count)
{
    if (count == 0 || !reserve(text, count)) return;
    memcpy(text->at + text->bytes, bytes, count);
    text->bytes += count;
}

void api_print(api_text *text, const char *format, ...)
{
    va_list arguments;
    char line[512]; /* no format here makes more: texts go through api_add */
    va_start(arguments, format);
    const int count = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (count < 0 || (size_t)count >= sizeof line) text->failed = true;
    else api_add(text, line, (size_t)count);
}

/* The inside of a JSON string; the bytes are UTF-8. */
static void add_escaped(api_text *text, const char *bytes, size_t count)
{
    size_t from = 0;
    for (size_t i = 0; i < count; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        api_add(text, bytes + from, i - from);
        from = i + 1;
        if (c == '\n') api_add(text, "\\n", 2);
        else if (c >= 0x20) api_print(text, "\\%c", c);
        else api_print(text, "\\u%04x", c);
    }
    api_add(text, bytes + from, count - from);
}

void api_add_string(api_text *text, const char *bytes, size_t count)
{
    api_add(text, "\"", 1);
    while (count > 0) {
        const size_t valid = text_utf8_prefix((const uint8_t *)bytes, count);
        add_escaped(text, bytes, valid);
        if (valid < count) api_add(text, "\\ufffd", 6);
        bytes += valid + (valid < count);
        count -= valid + (valid < count);
    }
    api_add(text, "\"", 1);
}

/* Nine digits give the same f32 again. JSON has no infinity: -9999, as vLLM has it. */
static void add_float(api_text *text, float value)
{
    const double number = !(value > -9999.0f) ? -9999.0 : value < 9999.0f ? (double)value : 9999.0; /* NaN: -9999 */
    api_print(text, "%.9g", number);
}

/* ---- Log-probabilities ---- */

static bool grow(void **at, size_t count, size_t size)
{
    void *grown = size != 0 && count > SIZE_MAX / size ? NULL : realloc(*at, count * size + 1);
    if (grown == NULL) return false;
    *at = grown;
    return true;
}

bool api_scores_reserve(api_scores *scores, size_t more)
{
    const size_t wanted = scores->count + more;
    if (wanted <= scores->capacity) return true;
    const size_t capacity = wanted + scores->capacity / 2;
    void *own = scores->own, *ids = scores->top_ids, *top = scores->top;
    const bool done = grow(&own, capacity, sizeof *scores->own) && grow(&ids, capacity, scores->k * sizeof *scores->top_ids) &&
                      grow(&top, capacity, scores->k * sizeof *scores->top);
    scores->own = own;
    scores->top_ids = ids;
    scores->top = top;
    if (done) scores->capacity = capacity;
    return done;
}

bool api_scores_append(api_scores *scores, const api_scores *from, size_t count)
{
    const size_t k = scores->k, at = scores->count;
    if (from->count < count || from->k != scores->k || !api_scores_reserve(scores, count)) return false;
    memcpy(scores->own + at, from->own, count * sizeof *from->own);
    if (k > 0) memcpy(scores->top_ids + at * k, from->top_ids, count * k * sizeof *from->top_ids);
    if (k > 0) memcpy(scores->top + at * k, from->top, count * k * sizeof *from->top);
    scores->count += count;
    return true;
}

void api_scores_free(api_scores *scores)
{
    free(scores->own);
    free(scores->top_ids);
    free(scores->top);
    *scores = (api_scores){.k = scores->k};
}

/* The likeliest tokens of place i and the token itself, by name; of tokens of one name the likeliest. */
static void add_top(api_text *to, const api_names *names, const api_scores *s, size_t i, int32_t id)
{
    const char *given[API_MOST_LOGPROBS + 1];
    size_t lengths[API_MOST_LOGPROBS + 1], count = 0;
    bool own = false;
    api_add(to, "{", 1);
    for (uint32_t j = 0; j <= s->k; j++) {
        const bool last = j == s->k;
        const int32_t top = last ? id : s->top_ids[i * s->k + j];
        if (top < 0 || (last && own)) continue;
        own = own || top == id;
        size_t length;
        const char *name = api_name(names, top, &length);
        bool had = false;
        for (size_t n = 0; n < count; n++) had = had || (lengths[n] == length && memcmp(given[n], name, length) == 0);
        if (had) continue;
        given[count] = name;
        lengths[count] = length;
        if (count++ > 0) api_add(to, ",", 1);
        api_add_string(to, name, length);
        api_add(to, ":", 1);
        /* The token's own number is the same wherever it stands, so that readers may compare for equality. */
        add_float(to, top == id ? s->own[i] : s->top[i * s->k + j]);
    }
    api_add(to, "}", 1);
}

/* Token n of the part: those of the prompt, then the generated ones. */
static int32_t token_of(const api_choice *c, size_t n)
{
    const size_t before = c->prompt != NULL ? c->prompt->ids.count : 0;
    return n < before ? c->prompt->ids.ids[n] : c->ids[n - before];
}

/* Returns the code points of the tokens. */
static size_t add_logprobs(api_text *to, const api_choice *c, const api_names *names)
{
    const size_t count = (c->prompt != NULL ? c->prompt->ids.count : 0) + c->ids_count;
    size_t length, points = 0;
    api_print(to, "{\"tokens\":[");
    for (size_t n = 0; n < count; n++) {
        const char *name = api_name(names, token_of(c, n), &length);
        if (n > 0) api_add(to, ",", 1);
        api_add_string(to, name, length);
    }
    api_print(to, "],\"token_logprobs\":[");
    for (size_t n = 0; n < count; n++) {
        if (n > 0) api_add(to, ",", 1);
        if (n == 0 && c->prompt != NULL) api_add(to, "null", 4);
        else add_float(to, c->scores->own[c->scores_at + n]);
    }
    api_print(to, "],\"top_logprobs\":[");
    for (size_t n = 0; n < count; n++) {
        if (n > 0) api_add(to, ",", 1);
        if (n == 0 && c->prompt != NULL) api_add(to, "null", 4);
        else add_top(to, names, c->scores, c->scores_at + n, token_of(c, n));
    }
    api_print(to, "],\"text_offset\":[");
    for (size_t n = 0; n < count; n++) {
        const char *name = api_name(names, token_of(c, n), &length);
        api_print(to, "%s%zu", n > 0 ? "," : "", c->offset + points);
        points += api_code_points(name, length);
    }
    api_print(to, "]}");
    return points;
}

/* ---- Answers ---- */

/* The text that the ids of a prompt stand for. */
static void add_decoded(api_text *to, const dart_token_list *ids, dart_tokenizer *tokenizer)
{
    const dart_text_options options = {.with_special = true};
    dart_text_stream *stream = NULL;
    const char *given;
    size_t count;
    bool done = dart_text_stream_create(tokenizer, &options, &stream) == DART_OK;
    done = done && dart_text_stream_feed(stream, ids->ids, ids->count, &given, &count, NULL) == DART_OK;
    if (done) api_add(to, given, count);
    done = done && dart_text_stream_end(stream, &given, &count) == DART_OK;
    if (done) api_add(to, given, count);
    to->failed = to->failed || !done;
    dart_text_stream_destroy(&stream);
}

static size_t add_choice(api_text *to, const api_choice *c, const api_names *names, dart_tokenizer *tokenizer)
{
    api_text text = {NULL, 0, 0, false};
    size_t points = 0;
    if (c->prompt != NULL && c->prompt->text != NULL) api_add(&text, c->prompt->text, c->prompt->bytes);
    else if (c->prompt != NULL) add_decoded(&text, &c->prompt->ids, tokenizer);
    api_add(&text, c->text, c->bytes);
    api_print(to, "{\"index\":%u,\"text\":", (unsigned)c->index);
    api_add_string(to, text.at != NULL ? text.at : "", text.bytes);
    api_print(to, ",\"logprobs\":");
    if (c->scores != NULL) points = add_logprobs(to, c, names);
    else api_add(to, "null", 4);
    if (c->finish != NULL) api_print(to, ",\"finish_reason\":\"%s\"}", c->finish);
    else api_print(to, ",\"finish_reason\":null}");
    to->failed = to->failed || text.failed;
    api_text_free(&text);
    return points;
}

static void add_head(api_text *to, const api_head *head)
{
    api_print(to, "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", head->id, (long long)head->created);
    api_add_string(to, head->model, strlen(head->model));
    api_print(to, ",\"choices\":[");
}

static void add_usage(api_text *to, const api_usage *usage)
{
    api_print(to, ",\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu}", (unsigned long long)usage->prompt,
              (unsigned long long)usage->completion, (unsigned long long)usage->prompt + (unsigned long long)usage->completion);
}

void api_write_completion(api_text *to, const api_head *head, const api_choice *choices, size_t count, const api_usage *usage, const api_names *names,
                          dart_tokenizer *tokenizer)
{
    add_head(to, head);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) api_add(to, ",", 1);
        add_choice(to, &choices[i], names, tokenizer);
    }
    api_add(to, "]", 1);
    add_usage(to, usage);
    api_add(to, "}", 1);
}

size_t api_write_chunk(api_text *to, const api_head *head, const api_choice *choice, const api_usage *usage, const api_names *names,
                       dart_tokenizer *tokenizer)
{
    size_t points = 0;
    api_add(to, "data: ", 6);
    add_head(to, head);
    if (choice != NULL) points = add_choice(to, choice, names, tokenizer);
    api_add(to, "]", 1);
    if (usage != NULL) add_usage(to, usage);
    api_add(to, "}\n\n", 3);
    return points;
}

void api_write_error(api_text *to, const api_error *error)
{
    const char *type = error->status == 401   ? "authentication_error"
                       : error->status == 403 ? "permission_error"
                       : error->status == 429 ? "rate_limit_error"
                       : error->status >= 500 ? "server_error"
                                              : "invalid_request_error";
    api_print(to, "{\"error\":{\"message\":");
    api_add_string(to, error->message, strlen(error->message));
    api_print(to, ",\"type\":\"%s\",\"param\":", type);
    if (error->param != NULL) api_print(to, "\"%s\"", error->param);
    else api_add(to, "null", 4);
    api_print(to, ",\"code\":%d}}", error->status);
}

void api_write_model(api_text *to, const char *model, int64_t created, uint32_t context)
{
    api_print(to, "{\"id\":");
    api_add_string(to, model, strlen(model));
    api_print(to, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"dartlm\",\"max_model_len\":%u}", (long long)created, (unsigned)context);
}

void api_write_models(api_text *to, const char *model, int64_t created, uint32_t context)
{
    api_print(to, "{\"object\":\"list\",\"data\":[");
    api_write_model(to, model, created, context);
    api_print(to, "]}");
}

static void add_token(api_text *to, const char *key, const api_names *names, int32_t id)
{
    size_t count;
    const char *name = api_name(names, id, &count);
    api_print(to, "\"%s\":", key);
    if (id >= 0) api_add_string(to, name, count);
    else api_add(to, "null", 4);
}

void api_write_tokenizer(api_text *to, const api_names *names, dart_tokenizer *tokenizer)
{
    dart_tokenizer_info info = {.bos = -1, .eos = -1};
    (void)dart_tokenizer_describe(tokenizer, &info);
    api_add(to, "{", 1);
    add_token(to, "eos_token", names, info.eos);
    api_add(to, ",", 1);
    add_token(to, "bos_token", names, info.bos);
    api_print(to, ",\"eos_token_id\":%d,\"bos_token_id\":%d,\"vocab_size\":%u}", (int)info.eos, (int)info.bos, (unsigned)info.ids);
}
