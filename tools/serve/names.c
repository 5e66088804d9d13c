#include "serve/names.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The name of an id, or with `to` NULL its length. */
static size_t write_name(const text_vocabulary *v, uint32_t id, char *to)
{
    char text[24];
    if (id >= v->ids || !v->tokens[id].present) {
        const int n = snprintf(text, sizeof text, "token_id:%u", (unsigned)id);
        if (to != NULL) memcpy(to, text, (size_t)n);
        return (size_t)n;
    }
    const uint8_t *bytes = v->bytes.at + v->tokens[id].first;
    const size_t count = v->tokens[id].count;
    if (text_utf8_prefix(bytes, count) == count) {
        if (to != NULL && count > 0) memcpy(to, bytes, count);
        return count;
    }
    if (to == NULL) return 6 + 4 * count;
    memcpy(to, "bytes:", 6);
    for (size_t i = 0; i < count; i++) {
        snprintf(text, sizeof text, "\\x%02x", bytes[i]);
        memcpy(to + 6 + 4 * i, text, 4);
    }
    return 6 + 4 * count;
}

bool api_names_make(dart_tokenizer *tokenizer, uint32_t ids, api_names *names)
{
    const text_vocabulary *v = &tokenizer->vocabulary;
    size_t total = 0;
    *names = (api_names){.ids = ids, .starts = calloc((size_t)ids + 1, sizeof *names->starts)};
    if (names->starts == NULL) return false;
    for (uint32_t id = 0; id < ids; id++) names->starts[id + 1] = total += write_name(v, id, NULL);
    names->bytes = malloc(total + 1);
    if (names->bytes == NULL) {
        api_names_free(names);
        return false;
    }
    for (uint32_t id = 0; id < ids; id++) write_name(v, id, names->bytes + names->starts[id]);
    return true;
}

void api_names_free(api_names *names)
{
    free(names->bytes);
    free(names->starts);
    *names = (api_names){.bytes = NULL};
}

const char *api_name(const api_names *names, int32_t id, size_t *count)
{
    *count = 0;
    if (id < 0 || (uint32_t)id >= names->ids) return "";
    *count = names->starts[id + 1] - names->starts[id];
    return names->bytes + names->starts[id];
}

size_t api_code_points(const char *text, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}
