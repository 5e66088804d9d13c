/* Byte pair encoding of a piece: its bytes are tokens; the pair of lowest rank, of equals the leftmost, becomes one token until no pair merges.
 *
 * Long pieces are encoded in windows that overlap, so that what is at work stays in the caches. That is exact: a sequence of tokens is the
 * encoding of its text if each two neighbours are the encoding of theirs (as long as no merge has crossed a border between tokens, what is on both
 * sides of it merges as it does alone, and so no merge comes to cross it), and neighbours in the encoding of a window are that. Two windows that
 * have the same token at the same place can therefore be joined there. Where two have none, a heap merges the whole piece. */
#include "merge.h"

#include <string.h>

enum { OVERLAP = 8, LANES = 8, BLOCK = 32 };

bool text_encode_piece(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list)
{
    const int32_t id = text_vocabulary_piece(v, piece, bytes);
    if (id == TEXT_NO_TOKEN) return text_merge(v, piece, bytes, list);
    if (list->count == list->capacity && !text_list_reserve(list, 1)) return false;
    list->ids[list->count++] = id;
    return true;
}

/* The pieces of a block are looked up together, of each the first place of the table only, and without a branch: so the processor waits for
 * several of them at once. Those that are not there, or are longer than a key, go one by one. */
bool text_encode_block(const text_vocabulary *v, const uint8_t *text, size_t bytes, dart_token_list *list, size_t *done)
{
    enum { KEY = 8 };
    uint8_t copy[TEXT_BLOCK + KEY], to[TEXT_BLOCK];
    int32_t ids[TEXT_BLOCK];
    uint64_t slow = 0;
    uint32_t count = 0, begin = 0;
    if (bytes < sizeof copy) {
        memset(copy + bytes, ' ', sizeof copy - bytes);
        text = memcpy(copy, text, bytes);
    }
    for (uint64_t ends = text_block_ends(text, bytes); ends != 0; ends &= ends - 1) {
        const uint32_t end = text_lowest(ends), n = end - begin;
        const uint64_t key = text_word(text + begin) & UINT64_MAX >> (64 - 8 * (n < KEY ? n : KEY));
        const text_place *place = &v->pieces[text_piece_home(v, key, n)];
        const bool there = (place->key == key) & (place->count == n) & (n <= KEY);
        slow |= (uint64_t)!there << count;
        ids[count] = place->id;
        to[count++] = (uint8_t)end;
        begin = end;
    }
    *done = begin;
    if (list->capacity - list->count < count && !text_list_reserve(list, count)) return false;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t from = i > 0 ? to[i - 1] : 0;
        if ((slow >> i & 1) == 0) list->ids[list->count++] = ids[i];
        else if (!text_encode_piece(v, text + from, to[i] - from, list) || !text_list_reserve(list, count - i)) return false;
    }
    return true;
}

/* ---- A short piece ---- */

enum { SHORT = 32 };

/* Tokens in a row with the ranks of each and the next; a merge moves up those behind. */
static bool merge_short(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list)
{
    int32_t ids[SHORT];
    uint32_t ranks[SHORT], count = 0;
    uint8_t kept[SHORT + 1] = {0};
    for (size_t i = 0; i < bytes; i++) {
        kept[count] = piece[i];
        ids[count] = v->symbols[piece[i]];
        count += ids[count] != TEXT_NO_TOKEN;
    }
    for (uint32_t i = 0; i + 1 < count; i++) ranks[i] = v->symbol_ranks[kept[i] * 256 + kept[i + 1]];
    while (count > 1) {
        uint32_t least = TEXT_NO_RANK, at = 0;
        for (uint32_t i = 0; i + 1 < count; i++) {
            at = ranks[i] < least ? i : at;
            least = ranks[i] < least ? ranks[i] : least;
        }
        if (least == TEXT_NO_RANK) break;
        count--;
        ids[at] = v->merged[least];
        for (uint32_t i = at + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            ranks[i - 1] = ranks[i];
        }
        if (at + 1 < count) ranks[at] = text_vocabulary_rank(v, ids[at], ids[at + 1]);
        if (at > 0) ranks[at - 1] = text_vocabulary_rank(v, ids[at - 1], ids[at]);
    }
    if (list->capacity - list->count < count && !text_list_reserve(list, count)) return false;
    if (count > 0) memcpy(list->ids + list->count, ids, count * sizeof *ids);
    list->count += count;
    return true;
}

/* ---- A window ---- */

/* Tokens of up to TEXT_WINDOW bytes; those that are no more stay in place. */
typedef struct work {
    uint32_t count, padded;
    int32_t ids[TEXT_WINDOW];
    int32_t keys[TEXT_WINDOW]; /* rank of a token and the next, then the index: the least key is the pair to merge. INT32_MAX: none */
    int32_t least[TEXT_WINDOW / BLOCK]; /* keys of a block of keys */
    uint16_t bytes[TEXT_WINDOW], next[TEXT_WINDOW], previous[TEXT_WINDOW];
} work;

static int32_t key_at(const text_vocabulary *v, const work *w, uint32_t i)
{
    if (w->next[i] == w->count) return INT32_MAX;
    const uint32_t rank = text_vocabulary_rank(v, w->ids[i], w->ids[w->next[i]]);
    return rank == TEXT_NO_RANK ? INT32_MAX : (int32_t)(rank << TEXT_WINDOW_BITS | i);
}

static void find_least(work *w, uint32_t block)
{
    int32_t least[LANES];
    const int32_t *keys = w->keys + block * BLOCK;
    const uint32_t count = w->padded - block * BLOCK < BLOCK ? w->padded - block * BLOCK : BLOCK;
    for (uint32_t k = 0; k < LANES; k++) least[k] = keys[k];
    for (uint32_t i = LANES; i < count; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) least[k] = keys[i + k] < least[k] ? keys[i + k] : least[k];
    for (uint32_t k = 1; k < LANES; k++) least[0] = least[k] < least[0] ? least[k] : least[0];
    w->least[block] = least[0];
}

/* The bytes that have a token. */
static void begin_work(const text_vocabulary *v, const uint8_t *text, uint32_t bytes, work *w)
{
    w->count = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        if (v->symbols[text[i]] == TEXT_NO_TOKEN) continue;
        w->ids[w->count] = v->symbols[text[i]];
        w->bytes[w->count] = (uint16_t)i;
        w->next[w->count] = (uint16_t)(w->count + 1);
        w->previous[w->count] = (uint16_t)(w->count - 1);
        w->count++;
    }
    w->padded = (uint32_t)base_round_up(w->count, LANES);
    for (uint32_t i = 0; i + 1 < w->count; i++) {
        const uint32_t rank = v->symbol_ranks[text[w->bytes[i]] * 256 + text[w->bytes[i + 1]]];
        w->keys[i] = rank == TEXT_NO_RANK ? INT32_MAX : (int32_t)(rank << TEXT_WINDOW_BITS | i);
    }
    for (uint32_t i = w->count > 0 ? w->count - 1 : 0; i < w->padded; i++) w->keys[i] = INT32_MAX;
    for (uint32_t block = 0; block * BLOCK < w->count; block++) find_least(w, block);
}

/* Merges the pair of a key. */
static void join_pair(const text_vocabulary *v, work *w, int32_t key)
{
    const uint32_t i = (uint32_t)key % TEXT_WINDOW, gone = w->next[i], before = i > 0 ? w->previous[i] : i;
    w->ids[i] = v->merged[key >> TEXT_WINDOW_BITS];
    w->next[i] = w->next[gone];
    w->keys[gone] = INT32_MAX;
    if (w->next[i] < w->count) w->previous[w->next[i]] = (uint16_t)i;
    w->keys[i] = key_at(v, w, i);
    if (before < i) w->keys[before] = key_at(v, w, before);
    find_least(w, i / BLOCK);
    if (gone / BLOCK != i / BLOCK) find_least(w, gone / BLOCK);
    if (before / BLOCK != i / BLOCK) find_least(w, before / BLOCK);
}

static void encode_window(const text_vocabulary *v, const uint8_t *text, uint32_t bytes, text_window *to)
{
    work w;
    begin_work(v, text, bytes, &w);
    for (;;) {
        int32_t key = INT32_MAX;
        for (uint32_t block = 0; block * BLOCK < w.count; block++) key = w.least[block] < key ? w.least[block] : key;
        if (key == INT32_MAX) break;
        join_pair(v, &w, key);
    }
    to->count = 0;
    for (uint32_t i = 0; i < w.count; i = w.next[i], to->count++) {
        to->ids[to->count] = w.ids[i];
        to->begins[to->count] = w.bytes[i];
    }
}

/* ---- Windows of a piece ---- */

static bool add_tokens(const text_window *w, uint32_t from, uint32_t to, dart_token_list *list)
{
    if (list->capacity - list->count < to - from && !text_list_reserve(list, to - from)) return false;
    for (uint32_t i = from; i < to; i++) list->ids[list->count++] = w->ids[i];
    return true;
}

/* The first token of a, from *i on, that b, which begins `shift` bytes behind a, has at the same place. false where there is none. */
static bool find_join(const text_window *a, uint32_t *i, const text_window *b, uint32_t *j, uint32_t shift)
{
    for (*j = 0; *i < a->count; ++*i) {
        while (*j < b->count && b->begins[*j] + shift < a->begins[*i]) ++*j;
        if (*j == b->count) return false;
        if (b->begins[*j] + shift == a->begins[*i] && b->ids[*j] == a->ids[*i]) return true;
    }
    return false;
}

bool text_merge_in_windows(const text_vocabulary *v, const uint8_t *piece, size_t bytes, uint32_t size, dart_token_list *list, bool *joined)
{
    text_window windows[2], *w = &windows[0], *next = &windows[1];
    size_t begin = 0;
    uint32_t first = 0; /* the token of the window that is not in the list yet */
    encode_window(v, piece, (uint32_t)base_smaller(bytes, size), w);
    *joined = true;
    while (bytes - begin > size) {
        uint32_t i = 0, j = 0, shift = 0;
        *joined = false;
        /* Few tokens are long ones: each that two windows share is encoded twice. */
        for (uint32_t back = w->count / 4 < OVERLAP ? w->count / 4 + (w->count < 4) : OVERLAP; back < w->count && !*joined; back *= 2) {
            i = w->count - back;
            shift = w->begins[i];
            encode_window(v, piece + begin + shift, (uint32_t)base_smaller(bytes - begin - shift, size), next);
            if (i < first) i = first;
            *joined = find_join(w, &i, next, &j, shift);
        }
        if (!*joined) return true;
        begin += shift;
        if (!add_tokens(w, first, i, list)) return false;
        text_window *const spare = w;
        first = j;
        w = next;
        next = spare;
    }
    return add_tokens(w, first, w->count, list);
}

bool text_merge(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list)
{
    const size_t kept = list->count;
    bool joined = false;
    if (bytes <= SHORT) return merge_short(v, piece, bytes, list);
    if (!text_merge_in_windows(v, piece, bytes, TEXT_WINDOW, list, &joined)) return false;
    if (joined) return true;
    list->count = kept;
    return text_merge_by_heap(v, piece, bytes, list);
}
