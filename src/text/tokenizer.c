/* Tokenizers: what they are asked, and encoding. */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* ---- Queries ---- */

size_t dart_tokenizer_error(const dart_tokenizer *tokenizer, char *text, size_t size)
{
    if (tokenizer != NULL) return base_report_copy(&tokenizer->report, text, size);
    if (text != NULL && size > 0) text[0] = '\0';
    return 0;
}

dart_status dart_tokenizer_describe(const dart_tokenizer *t, dart_tokenizer_info *info)
{
    if (t == NULL || info == NULL) return DART_INVALID_ARGUMENT;
    *info = (dart_tokenizer_info){.ids = t->vocabulary.ids, .tokens = t->vocabulary.count, .bos = t->bos, .eos = t->eos, .nfc = t->nfc,
                                  .frames = t->before_count + t->after_count > 0};
    return DART_OK;
}

int32_t text_tokenizer_find(const dart_tokenizer *t, const char *name, size_t bytes)
{
    const text_added_token *added = text_added_exact(&t->raw, (const uint8_t *)name, bytes);
    if (added == NULL) added = text_added_exact(&t->normal, (const uint8_t *)name, bytes);
    int32_t id = TEXT_NO_TOKEN;
    if (added != NULL) return added->id;
    (void)text_vocabulary_find(&t->vocabulary, name, bytes, &id);
    return id;
}

int32_t dart_tokenizer_find(const dart_tokenizer *t, const char *name)
{
    return t == NULL || name == NULL ? TEXT_NO_TOKEN : text_tokenizer_find(t, name, strlen(name));
}

/* ---- Encoding ---- */

enum { ASK_BYTES = 1 << 20 }; /* between two calls of go_on */

/* One call. progress counts bytes of the text as it was given, and is advanced between pieces. */
typedef struct encoding {
    dart_tokenizer *t;
    dart_token_list *list;
    bool plain;
    base_progress progress;
    uint64_t part, part_bytes; /* what is being encoded of the text: where it begins, and how long it is */
} encoding;

static dart_status no_memory(encoding *e)
{
    return base_fail(&e->t->report, DART_OUT_OF_MEMORY, "no memory for the tokens of %llu bytes of text", (unsigned long long)e->progress.of);
}

static dart_status push(encoding *e, int32_t id) { return dart_token_list_add(e->list, id) == DART_OK ? DART_OK : no_memory(e); }

static dart_status ask(encoding *e, uint64_t done)
{
    e->progress.done = done;
    return base_advance(&e->progress, 0, &e->t->report, "dart_tokenizer_encode");
}

/* Text without added tokens, in normal form, whose length may differ from the part's. */
static dart_status encode_pieces(encoding *e, const uint8_t *text, size_t begin, size_t end)
{
    const dart_tokenizer *t = e->t;
    while (begin < end) {
        size_t next = 0;
        if (t->pattern == TEXT_PATTERN_GPT2 && text[begin] < 0x80 && !text_encode_block(&t->vocabulary, text + begin, end - begin, e->list, &next))
            return no_memory(e);
        begin += next;
        if (next == 0) {
            next = text_piece_end(t->pattern, t->properties, text, begin, end);
            if (!text_encode_piece(&t->vocabulary, text + begin, next - begin, e->list)) return no_memory(e);
            begin = next;
        }
        const uint64_t done = e->part + base_smaller(begin, e->part_bytes);
        if (done < e->progress.done + ASK_BYTES) continue;
        const dart_status status = ask(e, done);
        if (status != DART_OK) return status;
    }
    return DART_OK;
}

static dart_status encode_normal(encoding *e, const uint8_t *text, size_t bytes)
{
    size_t begin = 0, from = 0, at;
    const text_added_token *found;
    while ((found = text_added_find(&e->t->normal, text, from, bytes, &at)) != NULL) {
        from = at + found->count;
        if (e->plain && found->special) continue;
        dart_status status = encode_pieces(e, text, begin, at);
        if (status == DART_OK) status = push(e, found->id);
        if (status != DART_OK) return status;
        begin = from;
    }
    return encode_pieces(e, text, begin, bytes);
}

/* Text without raw added tokens: `bytes` from `begin` on. */
static dart_status encode_part(encoding *e, const uint8_t *text, size_t begin, size_t bytes)
{
    const dart_tokenizer *t = e->t;
    text += begin;
    e->part = begin;
    e->part_bytes = bytes;
    if (bytes == 0) return DART_OK;
    if (!t->nfc || !text_is_unstable(t->properties, text, bytes)) return encode_normal(e, text, bytes);
    text_bytes normal = {NULL, 0, 0};
    const dart_status status = text_normalize(t->properties, text, bytes, &normal) ? encode_normal(e, normal.at, normal.count) : no_memory(e);
    free(normal.at);
    return status;
}

static dart_status encode(encoding *e, const uint8_t *text, size_t bytes, bool frame)
{
    const dart_tokenizer *t = e->t;
    size_t begin = 0, from = 0, at;
    const text_added_token *found;
    dart_status status = ask(e, 0);
    for (uint32_t i = 0; i < t->before_count && frame && status == DART_OK; i++) status = push(e, t->before[i]);
    while (status == DART_OK && (found = text_added_find(&t->raw, text, from, bytes, &at)) != NULL) {
        from = at + found->count;
        if (e->plain && found->special) continue;
        status = encode_part(e, text, begin, at - begin);
        if (status == DART_OK) status = push(e, found->id);
        begin = from;
    }
    if (status == DART_OK) status = encode_part(e, text, begin, bytes - begin);
    for (uint32_t i = 0; i < t->after_count && frame && status == DART_OK; i++) status = push(e, t->after[i]);
    return status;
}

dart_status dart_tokenizer_encode(dart_tokenizer *t, const char *text, size_t bytes, const dart_encode_options *options, dart_token_list *list)
{
    const dart_encode_options standard = {.plain = false};
    if (t == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&t->report, list != NULL && (text != NULL || bytes == 0), "text or list is NULL");
    REQUIRE(&t->report, bytes <= DART_TEXT_BYTES, "a text of %zu bytes, at most %zu are encoded at once", bytes, DART_TEXT_BYTES);
    if (options == NULL) options = &standard;
    const size_t kept = list->count;
    const uint8_t *at = bytes > 0 ? (const uint8_t *)text : (const uint8_t *)"";
    const size_t valid = text_utf8_prefix(at, bytes);
    if (valid < bytes)
        return base_fail(&t->report, DART_BAD_DATA, "the text is not UTF-8: byte %zu is 0x%02X", valid, at[valid]);
    encoding e = {.t = t, .list = list, .plain = options->plain, .progress = {.go_on = options->go_on, .user = options->user, .of = bytes}};
    const dart_status status = encode(&e, at, bytes, options->frame);
    if (status != DART_OK) list->count = kept;
    return status;
}
