/* The model of tokenizer.json, and its added tokens. */
#include "reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 64 };

static dart_status no_memory(const text_reader *r) { return base_fail(r->report, DART_OUT_OF_MEMORY, "%s: no memory for its tokens", r->name); }

/* ---- Vocabulary ---- */

/* An id where an integer should be. */
static dart_status check_id(const text_reader *r, const char *place, const char *key, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return base_fail(r->report, DART_BAD_DATA, "%s: %s.%.60s is no id", r->name, place, key);
    if (json_integer_value(value) >= TEXT_MAX_IDS)
        return base_fail(r->report, DART_UNSUPPORTED, "%s: %s.%.60s is %lld, supported are ids below %d", r->name, place, key,
                         json_integer_value(value), TEXT_MAX_IDS);
    return DART_OK;
}

/* One more than the largest id of the vocabulary and the added tokens. */
static dart_status count_ids(const text_reader *r, const json_t *vocab, const json_t *added, uint32_t *ids)
{
    dart_status status;
    const char *key;
    json_t *value;
    size_t i;
    json_int_t most = -1;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value) {
        TRY(check_id(r, "model.vocab", key, value));
        if (json_integer_value(value) > most) most = json_integer_value(value);
    }
    json_array_foreach(added, i, value) {
        TRY(check_id(r, "added_tokens", "id", json_object_get(value, "id")));
        if (json_integer_value(json_object_get(value, "id")) > most) most = json_integer_value(json_object_get(value, "id"));
    }
    *ids = (uint32_t)(most + 1);
    return DART_OK;
fail:
    return status;
}

static dart_status read_vocab(const text_reader *r, const json_t *vocab)
{
    text_vocabulary *v = &r->t->vocabulary;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value) {
        const int32_t id = (int32_t)json_integer_value(value);
        if (v->tokens[id].present) return base_fail(r->report, DART_BAD_DATA, "%s: two tokens of model.vocab have the id %" PRId32, r->name, id);
        if (!text_vocabulary_add(v, id, key, strlen(key), true)) return no_memory(r);
    }
    return DART_OK;
}

/* ---- Merges ---- */

/* The id of a name in the vocabulary, which may hold names that are no byte symbols; TEXT_NO_TOKEN where there is none. */
static dart_status find(const text_reader *r, const json_t *vocab, const uint8_t *name, size_t bytes, int32_t *id)
{
    if (!text_vocabulary_find(&r->t->vocabulary, (const char *)name, bytes, id)) return no_memory(r);
    if (*id != TEXT_NO_TOKEN) return DART_OK;
    char *copy = malloc(bytes + 1);
    if (copy == NULL) return no_memory(r);
    memcpy(copy, name, bytes);
    copy[bytes] = '\0';
    const json_t *value = json_object_get(vocab, copy);
    free(copy);
    if (value != NULL) *id = (int32_t)json_integer_value(value);
    return DART_OK;
}

/* Both parts of "a b" or ["a", "b"], one behind the other in pair. *first is 0 where it is neither. false without memory. */
static bool split_merge(const json_t *merge, text_bytes *pair, size_t *first)
{
    const char *a = json_string_value(merge), *b = a != NULL ? strchr(a, ' ') : NULL;
    size_t length = 0;
    pair->count = *first = 0;
    if (a != NULL) {
        if (b == NULL || strchr(b + 1, ' ') != NULL) return true;
        length = (size_t)(b - a);
        b++;
    } else {
        a = json_string_value(json_array_get(merge, 0));
        b = json_string_value(json_array_get(merge, 1));
        if (json_array_size(merge) != 2 || a == NULL || b == NULL) return true;
        length = strlen(a);
    }
    if (b[0] != '\0') *first = length;
    return text_bytes_add(pair, a, length) && text_bytes_add(pair, b, strlen(b));
}

static dart_status read_merges(const text_reader *r, const json_t *vocab, const json_t *merges)
{
    dart_status status = DART_OK;
    text_bytes pair = {NULL, 0, 0};
    const json_t *merge;
    size_t i, first = 0;
    json_array_foreach(merges, i, merge) {
        int32_t a = TEXT_NO_TOKEN, b = TEXT_NO_TOKEN, to = TEXT_NO_TOKEN;
        TRY(split_merge(merge, &pair, &first) ? DART_OK : no_memory(r));
        if (first == 0) FAIL(r->report, DART_BAD_DATA, "%s: model.merges[%zu] is no pair of tokens", r->name, i);
        TRY(find(r, vocab, pair.at, first, &a));
        TRY(find(r, vocab, pair.at + first, pair.count - first, &b));
        TRY(find(r, vocab, pair.at, pair.count, &to));
        if (a == TEXT_NO_TOKEN || b == TEXT_NO_TOKEN || to == TEXT_NO_TOKEN)
            FAIL(r->report, DART_BAD_DATA, "%s: model.merges[%zu] has tokens that model.vocab lacks", r->name, i);
        text_vocabulary_merge(&r->t->vocabulary, a, b, to);
    }
fail:
    free(pair.at);
    return status;
}

/* ---- The model ---- */

/* A missing byte would become unk_token; without one it becomes nothing. */
static bool has_all_bytes(const text_vocabulary *v)
{
    for (unsigned byte = 0; byte < 0xF5; byte++) /* those from F5 on, C0 and C1 are in no UTF-8 */
        if (v->symbols[byte] == TEXT_NO_TOKEN && byte != 0xC0 && byte != 0xC1) return false;
    return true;
}

static dart_status refuse_model(const text_reader *r, const json_t *model)
{
    static const char *const keys[] = {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
                                       "ignore_merges", "vocab", "merges"};
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    dart_status status;
    bool fallback = false, fuse;
    if (!json_is_object(model)) return base_fail(r->report, DART_BAD_DATA, "%s: model is no object", r->name);
    const json_t *type = json_object_get(model, "type"), *dropout = json_object_get(model, "dropout");
    if (type != NULL && strcmp(text_type(model), "BPE") != 0) return text_refuse(r, "model.type", type, "BPE");
    TRY(text_refuse_keys(r, "model", model, keys, COUNT_OF(keys)));
    if (dropout != NULL && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return text_refuse(r, "model.dropout", dropout, "null");
    for (size_t i = 0; i < COUNT_OF(affixes); i++) {
        char place[NAME];
        const json_t *affix = json_object_get(model, affixes[i]);
        snprintf(place, sizeof place, "model.%s", affixes[i]);
        const bool empty = affix == NULL || json_is_null(affix) || (json_is_string(affix) && json_string_length(affix) == 0);
        if (!empty) return text_refuse(r, place, affix, "null");
    }
    TRY(text_read_boolean(r, "model", model, "fuse_unk", false, &fuse));
    TRY(text_read_boolean(r, "model", model, "byte_fallback", false, &fallback));
    if (fallback) return text_refuse(r, "model.byte_fallback", json_object_get(model, "byte_fallback"), "false");
    return text_read_boolean(r, "model", model, "ignore_merges", false, &r->t->vocabulary.ignore_merges);
fail:
    return status;
}

dart_status text_read_model(const text_reader *r, const json_t *model, const json_t *added)
{
    dart_status status;
    uint32_t ids = 0;
    TRY(refuse_model(r, model));
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges"), *unknown = json_object_get(model, "unk_token");
    if (!json_is_object(vocab)) FAIL(r->report, DART_BAD_DATA, "%s: model.vocab is no object", r->name);
    if (!json_is_array(merges)) FAIL(r->report, DART_BAD_DATA, "%s: model.merges is no array", r->name);
    if (added != NULL && !json_is_null(added) && !json_is_array(added)) FAIL(r->report, DART_BAD_DATA, "%s: added_tokens is no array", r->name);
    if (json_array_size(merges) > TEXT_NO_RANK) FAIL(r->report, DART_UNSUPPORTED, "%s: model.merges has more than %d entries", r->name, TEXT_NO_RANK);
    TRY(count_ids(r, vocab, added, &ids));
    if (!text_vocabulary_reserve(&r->t->vocabulary, ids, (uint32_t)json_object_size(vocab), (uint32_t)json_array_size(merges))) return no_memory(r);
    TRY(read_vocab(r, vocab));
    TRY(read_merges(r, vocab, merges));
    if (unknown != NULL && !json_is_null(unknown) && !has_all_bytes(&r->t->vocabulary))
        return text_refuse(r, "model.unk_token", unknown, "null where the vocabulary lacks bytes");
    if (!text_vocabulary_finish(&r->t->vocabulary)) return no_memory(r);
    return DART_OK;
fail:
    return status;
}

/* ---- Added tokens ---- */

/* A piece of the vocabulary, or the next id as the reference counts: it takes no id from the file. */
static dart_status check_added_id(const text_reader *r, const char *place, const json_t *vocab, const char *content, int32_t id, int64_t *most)
{
    const json_t *known = json_object_get(vocab, content);
    const int64_t size = (int64_t)json_object_size(vocab), next = *most >= size ? *most + 1 : size;
    const int64_t expected = known != NULL ? (int64_t)json_integer_value(known) : next;
    if (id != expected)
        return base_fail(r->report, DART_UNSUPPORTED, "%s: %s.id is %" PRId32 ", supported is the one that follows, %" PRId64, r->name, place, id,
                         expected);
    if (known == NULL && r->t->vocabulary.tokens[id].present)
        return base_fail(r->report, DART_BAD_DATA, "%s: %s.id is %" PRId32 ", which is another token's", r->name, place, id);
    if (id > *most) *most = id;
    return DART_OK;
}

/* The reference looks for the normal form of a token that is not in it, and decodes to that. */
static dart_status check_form(const text_reader *r, const char *place, const json_t *token, const char *content)
{
    char key[NAME];
    const size_t bytes = strlen(content);
    text_bytes form = {NULL, 0, 0};
    if (!r->t->nfc || !text_is_unstable(r->t->properties, (const uint8_t *)content, bytes)) return DART_OK;
    const bool done = text_normalize(r->t->properties, (const uint8_t *)content, bytes, &form);
    const bool same = done && form.count == bytes && memcmp(form.at, content, bytes) == 0;
    free(form.at);
    if (!done) return no_memory(r);
    snprintf(key, sizeof key, "%.40s.content", place);
    return same ? DART_OK : text_refuse(r, key, json_object_get(token, "content"), "text in normal form where normalized is true");
}

static dart_status read_added(const text_reader *r, const char *place, const json_t *token, const json_t *vocab, int64_t *most)
{
    static const char *const strips[] = {"single_word", "lstrip", "rstrip"};
    static const char *const keys[] = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"};
    dart_status status;
    dart_tokenizer *t = r->t;
    bool strip = false, normalized = false, special = false;
    const char *content = json_string_value(json_object_get(token, "content"));
    const int32_t id = (int32_t)json_integer_value(json_object_get(token, "id"));
    if (content == NULL || content[0] == '\0') return base_fail(r->report, DART_BAD_DATA, "%s: %s.content is no text", r->name, place);
    TRY(text_refuse_keys(r, place, token, keys, COUNT_OF(keys)));
    for (size_t i = 0; i < COUNT_OF(strips); i++) {
        char key[NAME];
        snprintf(key, sizeof key, "%.40s.%s", place, strips[i]);
        TRY(text_read_boolean(r, place, token, strips[i], -1, &strip));
        if (strip) return text_refuse(r, key, json_object_get(token, strips[i]), "false");
    }
    TRY(text_read_boolean(r, place, token, "normalized", -1, &normalized));
    TRY(text_read_boolean(r, place, token, "special", -1, &special));
    if (normalized) TRY(check_form(r, place, token, content));
    TRY(check_added_id(r, place, vocab, content, id, most));
    if (!t->vocabulary.tokens[id].present && !text_vocabulary_add(&t->vocabulary, id, content, strlen(content), false)) return no_memory(r);
    if (special) t->vocabulary.tokens[id].special = true;
    const bool done = text_added_add(normalized ? &t->normal : &t->raw, (const uint8_t *)content, strlen(content), id, special);
    return done ? DART_OK : no_memory(r);
fail:
    return status;
}

dart_status text_read_added(const text_reader *r, const json_t *model, const json_t *added)
{
    dart_tokenizer *t = r->t;
    dart_status status;
    int64_t most = -1;
    const json_t *token, *vocab = json_object_get(model, "vocab");
    size_t i;
    json_array_foreach(added, i, token) {
        char place[NAME];
        snprintf(place, sizeof place, "added_tokens[%zu]", i);
        TRY(read_added(r, place, token, vocab, &most));
    }
    const text_added_token *twice = text_added_finish(&t->raw);
    if (twice == NULL) twice = text_added_finish(&t->normal);
    for (i = 0; i < t->normal.count && twice == NULL; i++) twice = text_added_exact(&t->raw, t->normal.tokens[i].at, t->normal.tokens[i].count);
    if (twice != NULL)
        FAIL(r->report, DART_UNSUPPORTED, "%s: added_tokens has the content \"%.*s\" twice", r->name,
             (int)(twice->count < 60 ? twice->count : 60), twice->at);
    return DART_OK;
fail:
    return status;
}
