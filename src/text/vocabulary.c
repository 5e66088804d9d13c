#include "vocabulary.h"

#include <stdlib.h>
#include <string.h>

/* ---- Byte symbols: 33..126, 161..172 and 174..255 are written as themselves, the other 68 bytes as U+0100 and on, in order. Source: GPT-2. ---- */

static bool is_plain(uint32_t byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

/* The byte of a symbol, or -1. The other 68 are 0..32, 127..160 and 173. */
static int symbol_byte(uint32_t point)
{
    if (point < 256) return is_plain(point) ? (int)point : -1;
    point -= 256;
    return point < 33 ? (int)point : point < 67 ? (int)(point - 33 + 127) : point == 67 ? 173 : -1;
}

/* The bytes of a name of symbols; false where something else is in it. to holds `bytes` bytes. */
static bool symbols_to_bytes(const char *name, size_t bytes, uint8_t *to, size_t *count)
{
    const uint8_t *s = (const uint8_t *)name;
    *count = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t point;
        size_t invalid;
        const size_t length = text_utf8_read(s + i, bytes - i, &point, &invalid);
        const int byte = length > 0 ? symbol_byte(point) : -1;
        if (byte < 0) return false;
        to[(*count)++] = (uint8_t)byte;
        i += length;
    }
    return true;
}

/* ---- Hash tables with linear probing, at most half full ---- */

static uint32_t table_size(uint32_t entries)
{
    uint32_t size = 16;
    while (size / 2 < entries) size *= 2;
    return size;
}

/* ---- Making ---- */

enum { SYMBOL_PAIRS = 256 * 256 };

bool text_vocabulary_reserve(text_vocabulary *v, uint32_t ids, uint32_t tokens, uint32_t merges)
{
    const uint32_t pieces = table_size(tokens), pairs = table_size(merges);
    v->ids = ids;
    v->tokens = calloc(ids > 0 ? ids : 1, sizeof *v->tokens);
    v->pieces = malloc(pieces * sizeof *v->pieces);
    v->pairs = malloc(pairs * sizeof *v->pairs);
    v->merged = malloc((merges > 0 ? merges : 1) * sizeof *v->merged);
    v->symbol_ranks = malloc(SYMBOL_PAIRS * sizeof *v->symbol_ranks);
    if (v->tokens == NULL || v->pieces == NULL || v->pairs == NULL || v->merged == NULL || v->symbol_ranks == NULL) return false;
    v->pieces_mask = pieces - 1;
    v->pairs_mask = pairs - 1;
    for (uint32_t i = 0; i < pieces; i++) v->pieces[i] = (text_place){.id = TEXT_NO_TOKEN};
    for (uint32_t i = 0; i < SYMBOL_PAIRS; i++) v->symbol_ranks[i] = TEXT_NO_RANK;
    memset(v->pairs, 0xFF, pairs * sizeof *v->pairs);
    for (size_t i = 0; i < COUNT_OF(v->symbols); i++) v->symbols[i] = TEXT_NO_TOKEN;
    return true;
}

void text_vocabulary_free(text_vocabulary *v)
{
    free(v->bytes.at);
    free(v->tokens);
    free(v->pieces);
    free(v->pairs);
    free(v->merged);
    free(v->symbol_ranks);
    *v = (text_vocabulary){.ids = 0};
}

bool text_vocabulary_add(text_vocabulary *v, int32_t id, const char *name, size_t bytes, bool merges)
{
    size_t count;
    text_token *token = &v->tokens[id];
    if (!text_bytes_reserve(&v->bytes, bytes)) return false;
    uint8_t *to = v->bytes.at + v->bytes.count;
    const bool symbols = symbols_to_bytes(name, bytes, to, &count);
    if (!symbols) memcpy(to, name, count = bytes);
    token->first = (uint32_t)v->bytes.count;
    token->count = (uint32_t)count;
    token->present = true;
    v->bytes.count += count;
    v->count++;
    if (!symbols || !merges) return true;
    *text_piece_place(v, to, count, false) = (text_place){.key = text_piece_key(to, count), .count = (uint32_t)count, .id = id};
    if (count == 1) v->symbols[to[0]] = id;
    return true;
}

bool text_vocabulary_find(const text_vocabulary *v, const char *name, size_t bytes, int32_t *id)
{
    uint8_t short_name[256], *to = bytes <= sizeof short_name ? short_name : malloc(bytes);
    size_t count;
    if (to == NULL) return false;
    *id = symbols_to_bytes(name, bytes, to, &count) ? text_piece_place(v, to, count, false)->id : TEXT_NO_TOKEN;
    if (to != short_name) free(to);
    return true;
}

/* The byte that a token is the symbol of, or -1. */
static int byte_of(const text_vocabulary *v, int32_t id)
{
    const text_token *token = &v->tokens[id];
    const int byte = token->count == 1 ? v->bytes.at[token->first] : -1;
    return byte >= 0 && v->symbols[byte] == id ? byte : -1;
}

void text_vocabulary_merge(text_vocabulary *v, int32_t a, int32_t b, int32_t to)
{
    const int first = byte_of(v, a), second = byte_of(v, b);
    if (first >= 0 && second >= 0) v->symbol_ranks[first * 256 + second] = v->merges;
    v->merged[v->merges] = to;
    *text_pair_place(v, a, b) = ((uint64_t)a << TEXT_ID_BITS | (uint64_t)b) << TEXT_RANK_BITS | v->merges++;
}

bool text_vocabulary_finish(text_vocabulary *v)
{
    dart_token_list list = {NULL, 0, 0};
    bool done = true;
    for (uint32_t i = 0; i <= v->pieces_mask && done && !v->ignore_merges; i++) {
        text_place *place = &v->pieces[i];
        if (place->id == TEXT_NO_TOKEN || place->count == 0) continue;
        list.count = 0;
        done = text_merge(v, v->bytes.at + v->tokens[place->id].first, place->count, &list);
        if (list.count != 1 || list.ids[0] != place->id) place->count |= TEXT_UNREACHED;
    }
    dart_token_list_free(&list);
    return done;
}
