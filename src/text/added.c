#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

bool text_added_add(text_added *added, const uint8_t *content, size_t bytes, int32_t id, bool special)
{
    if (added->count == added->capacity) {
        const uint32_t capacity = added->capacity * 2 + 32;
        text_added_token *tokens = realloc(added->tokens, capacity * sizeof *tokens);
        if (tokens == NULL) return false;
        added->tokens = tokens;
        added->capacity = capacity;
    }
    added->tokens[added->count++] = (text_added_token){.count = (uint32_t)bytes, .id = id, .special = special};
    return text_bytes_add(&added->bytes, content, bytes);
}

static int by_content(const void *a, const void *b)
{
    const text_added_token *x = a, *y = b;
    const int order = memcmp(x->at, y->at, x->count < y->count ? x->count : y->count);
    return order != 0 ? order : (x->count > y->count) - (x->count < y->count);
}

const text_added_token *text_added_finish(text_added *added)
{
    const uint8_t *at = added->bytes.at;
    for (uint32_t i = 0; i < added->count; at += added->tokens[i++].count) added->tokens[i].at = at;
    if (added->count > 0) qsort(added->tokens, added->count, sizeof *added->tokens, by_content);
    added->same_first = added->count > 0;
    for (uint32_t i = 0; i < added->count; i++) {
        const text_added_token *token = &added->tokens[i];
        if (i == 0) added->first = token->at[0] * TEXT_EACH;
        if (i == 0 && token->count > 1) added->second = token->at[1] * TEXT_EACH;
        if (token->at[0] * TEXT_EACH != added->first) added->same_first = false;
        if (token->count == 1 || token->at[1] * TEXT_EACH != added->second) added->any_second = UINT64_MAX;
        if (i > 0 && by_content(token - 1, token) == 0) return token - 1;
        added->firsts[token->at[0]] = true;
        if (token->count == 1) memset(added->pairs + token->at[0] * 32u, 0xFF, 32);
        else added->pairs[token->at[0] * 32u + token->at[1] / 8] |= (uint8_t)(1u << token->at[1] % 8);
    }
    return NULL;
}

void text_added_free(text_added *added)
{
    free(added->bytes.at);
    free(added->tokens);
    *added = (text_added){.count = 0};
}

/* The first of tokens low to high - 1, whose first `depth` bytes agree, that has at least `byte` there. */
static uint32_t bound(const text_added *added, uint32_t low, uint32_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const text_added_token *token = &added->tokens[middle];
        if (token->count <= depth || token->at[depth] < byte) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The longest token that the text begins with. */
static const text_added_token *longest(const text_added *added, const uint8_t *text, size_t bytes)
{
    const text_added_token *found = NULL;
    uint32_t low = 0, high = added->count;
    for (size_t depth = 0; depth < bytes; depth++) {
        low = bound(added, low, high, depth, text[depth]);
        high = bound(added, low, high, depth, text[depth] + 1u);
        if (low == high) break;
        if (added->tokens[low].count == depth + 1) found = &added->tokens[low];
    }
    return found;
}

/* Goes on, in steps of eight bytes, to where the first bytes of a token may be, or to the last eight bytes. */
static size_t skip(const text_added *added, const uint8_t *text, size_t i, size_t bytes)
{
    for (; bytes - i > 8; i += 8) {
        /* Bytes that are 0 here agree. Subtracting 1 from each sets the highest bit of those, and perhaps of bytes behind the first such. */
        const uint64_t differ = (text_word(text + i) ^ added->first) | ((text_word(text + i + 1) ^ added->second) & ~added->any_second);
        const uint64_t found = (differ - TEXT_EACH) & ~differ & TEXT_HIGHS;
        if (found != 0) return i + text_lowest(found) / 8;
    }
    return i;
}

const text_added_token *text_added_find(const text_added *added, const uint8_t *text, size_t from, size_t bytes, size_t *at)
{
    if (added->count == 0) return NULL;
    for (size_t i = from; i < bytes; i++) {
        if (added->same_first) i = skip(added, text, i, bytes);
        if (!added->firsts[text[i]]) continue;
        if (i + 1 < bytes && (added->pairs[text[i] * 32u + text[i + 1] / 8] >> text[i + 1] % 8 & 1) == 0) continue;
        const text_added_token *found = longest(added, text + i, bytes - i);
        if (found == NULL) continue;
        *at = i;
        return found;
    }
    return NULL;
}

const text_added_token *text_added_exact(const text_added *added, const uint8_t *content, size_t bytes)
{
    const text_added_token *found = bytes > 0 ? longest(added, content, bytes) : NULL;
    return found != NULL && found->count == bytes ? found : NULL;
}
