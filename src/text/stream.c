/* Text from tokens. */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

struct dart_text_stream {
    dart_tokenizer *tokenizer;
    bool with_special, stopped;
    uint8_t tail[4]; /* the beginning of a character */
    size_t tail_count;
    text_bytes text;   /* what has been given, then what is kept back as the beginning of a stop */
    size_t given;
    text_bytes stops;  /* one behind another */
    size_t *lengths;   /* of stops */
    uint32_t stops_count;
};

static const uint8_t replacement[] = {0xEF, 0xBF, 0xBD}; /* U+FFFD */

/* ---- Making ---- */

static dart_status add_stops(dart_text_stream *s, const dart_text_options *options)
{
    base_report *report = &s->tokenizer->report;
    REQUIRE(report, options->stops != NULL || options->stops_count == 0, "stops is NULL");
    s->lengths = calloc((size_t)options->stops_count + 1, sizeof *s->lengths);
    if (s->lengths == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "no memory for a text stream");
    for (uint32_t i = 0; i < options->stops_count; i++) {
        const char *stop = options->stops[i];
        REQUIRE(report, stop != NULL && stop[0] != '\0', "stop %u is empty", (unsigned)i);
        const size_t length = strlen(stop);
        REQUIRE(report, text_utf8_prefix((const uint8_t *)stop, length) == length, "stop %u is not UTF-8", (unsigned)i);
        if (!text_bytes_add(&s->stops, stop, length)) return base_fail(report, DART_OUT_OF_MEMORY, "no memory for a text stream");
        s->lengths[s->stops_count++] = length;
    }
    return DART_OK;
}

dart_status dart_text_stream_create(dart_tokenizer *tokenizer, const dart_text_options *options, dart_text_stream **stream)
{
    static const dart_text_options standard = {false, NULL, 0};
    if (tokenizer == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&tokenizer->report, stream != NULL, "stream is NULL");
    if (options == NULL) options = &standard;
    dart_text_stream *s = calloc(1, sizeof *s);
    if (s == NULL) return base_fail(&tokenizer->report, DART_OUT_OF_MEMORY, "no memory for a text stream");
    s->tokenizer = tokenizer;
    s->with_special = options->with_special;
    const dart_status status = add_stops(s, options);
    if (status == DART_OK) *stream = s;
    else dart_text_stream_destroy(&s);
    return status;
}

void dart_text_stream_destroy(dart_text_stream **stream)
{
    if (stream == NULL || *stream == NULL) return;
    free((*stream)->text.at);
    free((*stream)->stops.at);
    free((*stream)->lengths);
    free(*stream);
    *stream = NULL;
}

/* ---- Stops ---- */

/* The longest stop that the text ends with, 0 if none does. */
static size_t stop_length(const dart_text_stream *s)
{
    const uint8_t *stop = s->stops.at, *end = s->text.at + s->text.count;
    size_t found = 0;
    for (uint32_t i = 0; i < s->stops_count; stop += s->lengths[i++])
        if (s->lengths[i] > found && s->lengths[i] <= s->text.count - s->given && memcmp(end - s->lengths[i], stop, s->lengths[i]) == 0)
            found = s->lengths[i];
    return found;
}

/* The bytes at the end of the text that may begin a stop. */
static size_t kept_back(const dart_text_stream *s)
{
    const uint8_t *stop = s->stops.at, *end = s->text.at + s->text.count;
    size_t kept = 0;
    for (uint32_t i = 0; i < s->stops_count; stop += s->lengths[i++]) {
        size_t n = s->lengths[i] - 1;
        if (n > s->text.count - s->given) n = s->text.count - s->given;
        for (; n > kept; n--)
            if (memcmp(end - n, stop, n) == 0) kept = n;
    }
    return kept;
}

/* ---- Characters ---- */

/* Appends whole characters, byte by byte where there are stops. false without memory. */
static bool add_text(dart_text_stream *s, const uint8_t *text, size_t bytes)
{
    if (s->stops_count == 0) return text_bytes_add(&s->text, text, bytes);
    for (size_t i = 0; i < bytes && !s->stopped; i++) {
        if (!text_bytes_add(&s->text, text + i, 1)) return false;
        const size_t length = stop_length(s);
        if (length == 0) continue;
        s->stopped = true;
        s->text.count -= length;
    }
    return true;
}

/* Completes the character in the tail with bytes of the text; *used of them are gone. */
static bool add_to_tail(dart_text_stream *s, const uint8_t *text, size_t bytes, size_t *used)
{
    *used = 0;
    while (s->tail_count > 0 && *used < bytes) {
        uint32_t point;
        size_t invalid;
        s->tail[s->tail_count] = text[*used];
        const size_t length = text_utf8_read(s->tail, s->tail_count + 1, &point, &invalid);
        if (length == 0 && invalid <= s->tail_count) { /* what was kept cannot go on with this byte */
            s->tail_count = 0;
            return add_text(s, replacement, sizeof replacement);
        }
        s->tail_count++;
        (*used)++;
        if (length > 0) {
            s->tail_count = 0;
            return add_text(s, s->tail, length);
        }
    }
    return true;
}

/* Appends bytes of a token. */
static bool add_bytes(dart_text_stream *s, const uint8_t *text, size_t bytes)
{
    size_t i;
    if (!add_to_tail(s, text, bytes, &i)) return false;
    while (i < bytes) {
        uint32_t point;
        size_t invalid;
        const size_t valid = text_utf8_prefix(text + i, bytes - i);
        if (!add_text(s, text + i, valid)) return false;
        i += valid;
        if (i == bytes) break;
        (void)text_utf8_read(text + i, bytes - i, &point, &invalid);
        if (invalid == bytes - i && text_utf8_begins(text + i, invalid)) {
            memcpy(s->tail, text + i, s->tail_count = invalid);
            break;
        }
        if (!add_text(s, replacement, sizeof replacement)) return false;
        i += invalid;
    }
    return true;
}

/* ---- Calls ---- */

/* Forgets what the last call gave. */
static void begin_call(dart_text_stream *s)
{
    const size_t kept = s->text.count - s->given;
    if (kept > 0) memmove(s->text.at, s->text.at + s->given, kept);
    s->text.count = kept;
    s->given = 0;
}

static dart_status give(dart_text_stream *s, bool done, size_t kept, const char **text, size_t *bytes)
{
    if (!done) return base_fail(&s->tokenizer->report, DART_OUT_OF_MEMORY, "no memory for decoded text");
    s->given = s->text.count - kept;
    *text = s->given > 0 ? (const char *)s->text.at : "";
    *bytes = s->given;
    return DART_OK;
}

dart_status dart_text_stream_feed(dart_text_stream *s, const int32_t *ids, size_t count, const char **text, size_t *bytes, bool *stopped)
{
    if (s == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&s->tokenizer->report, (ids != NULL || count == 0) && text != NULL && bytes != NULL, "ids, text or bytes is NULL");
    const text_vocabulary *v = &s->tokenizer->vocabulary;
    bool done = true;
    begin_call(s);
    for (size_t i = 0; i < count && done && !s->stopped; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= v->ids) continue;
        const text_token *token = &v->tokens[ids[i]];
        if (token->present && (s->with_special || !token->special)) done = add_bytes(s, v->bytes.at + token->first, token->count);
    }
    if (stopped != NULL) *stopped = s->stopped;
    return give(s, done, s->stopped ? 0 : kept_back(s), text, bytes);
}

dart_status dart_text_stream_end(dart_text_stream *s, const char **text, size_t *bytes)
{
    if (s == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&s->tokenizer->report, text != NULL && bytes != NULL, "text or bytes is NULL");
    begin_call(s);
    const bool done = s->tail_count == 0 || s->stopped || add_text(s, replacement, sizeof replacement);
    s->tail_count = 0;
    s->stopped = false;
    return give(s, done, 0, text, bytes);
}
