/* Byte pair encoding of a piece: its bytes are tokens; the pair of lowest rank, of equals the leftmost, becomes one token until no pair merges. */
#include "vocabulary.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT = 64 };

bool text_encode_piece(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list)
{
    const int32_t id = text_vocabulary_piece(v, piece, bytes);
    if (id == TEXT_NO_TOKEN) return text_merge(v, piece, bytes, list);
    if (list->count == list->capacity && !text_list_reserve(list, 1)) return false;
    list->ids[list->count++] = id;
    return true;
}

/* The tokens of bytes, without those that have none. */
static size_t symbols(const text_vocabulary *v, const uint8_t *piece, size_t bytes, int32_t *ids)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        if (v->symbols[piece[i]] != TEXT_NO_TOKEN) ids[count++] = v->symbols[piece[i]];
    return count;
}

/* By searching for the lowest rank among all each time. ranks[i] is that of ids i and i + 1. */
bool text_merge(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list)
{
    int32_t ids[SHORT];
    uint32_t ranks[SHORT];
    if (bytes > SHORT) return text_merge_long(v, piece, bytes, list);
    size_t count = symbols(v, piece, bytes, ids);
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = text_vocabulary_rank(v, ids[i], ids[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == TEXT_NO_RANK) break;
        ids[best] = v->merged[ranks[best]];
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (count - best - 1) * sizeof *ranks);
        if (best + 1 < count) ranks[best] = text_vocabulary_rank(v, ids[best], ids[best + 1]);
        if (best > 0) ranks[best - 1] = text_vocabulary_rank(v, ids[best - 1], ids[best]);
    }
    if (!text_list_reserve(list, count)) return false;
    memcpy(list->ids + list->count, ids, count * sizeof *ids);
    list->count += count;
    return true;
}

/* ---- Long pieces: a heap of pairs by rank, then place. A pair that is no more stays in the heap and is passed over. ---- */

typedef struct place {
    int32_t id;
    uint32_t rank; /* of this token and the next; TEXT_NO_RANK also where the token is no more */
    uint32_t previous, next;
} place;

typedef struct queue {
    uint64_t *at; /* rank, then place: a heap of four children a node */
    size_t count, capacity;
} queue;

static bool queue_push(queue *q, uint32_t rank, uint32_t at)
{
    if (q->count == q->capacity) {
        const size_t capacity = q->capacity + q->capacity / 2 + 256;
        uint64_t *grown = capacity > SIZE_MAX / sizeof *grown ? NULL : realloc(q->at, capacity * sizeof *grown);
        if (grown == NULL) return false;
        q->at = grown;
        q->capacity = capacity;
    }
    const uint64_t entry = (uint64_t)rank << 32 | at;
    size_t i = q->count++;
    for (; i > 0 && q->at[(i - 1) / 4] > entry; i = (i - 1) / 4) q->at[i] = q->at[(i - 1) / 4];
    q->at[i] = entry;
    return true;
}

static uint64_t queue_pop(queue *q)
{
    const uint64_t least = q->at[0], last = q->at[--q->count];
    size_t i = 0;
    for (;;) {
        size_t child = 4 * i + 1, best = child;
        if (child >= q->count) break;
        for (size_t end = q->count < child + 4 ? q->count : child + 4; ++child < end;)
            if (q->at[child] < q->at[best]) best = child;
        if (q->at[best] >= last) break;
        q->at[i] = q->at[best];
        i = best;
    }
    q->at[i] = last;
    return least;
}

/* The rank of a place and its next, which goes into the queue. */
static bool rank_place(const text_vocabulary *v, place *places, uint32_t count, uint32_t at, queue *q)
{
    place *p = &places[at];
    p->rank = p->next < count ? text_vocabulary_rank(v, p->id, places[p->next].id) : TEXT_NO_RANK;
    return p->rank == TEXT_NO_RANK || queue_push(q, p->rank, at);
}

static bool merge_places(const text_vocabulary *v, place *places, uint32_t count, queue *q)
{
    for (uint32_t i = 0; i < count; i++)
        if (!rank_place(v, places, count, i, q)) return false;
    while (q->count > 0) {
        const uint64_t least = queue_pop(q);
        const uint32_t at = (uint32_t)least;
        place *p = &places[at];
        if (p->rank != (uint32_t)(least >> 32)) continue;
        place *gone = &places[p->next];
        p->id = v->merged[p->rank];
        p->next = gone->next;
        gone->rank = TEXT_NO_RANK;
        if (p->next < count) places[p->next].previous = at;
        if (!rank_place(v, places, count, at, q)) return false;
        if (at > 0 && !rank_place(v, places, count, p->previous, q)) return false;
    }
    return true;
}

bool text_merge_long(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list)
{
    uint32_t count = 0;
    queue q = {NULL, 0, 0};
    place *places = bytes > SIZE_MAX / sizeof *places ? NULL : malloc(bytes * sizeof *places);
    if (places == NULL) return false;
    for (size_t i = 0; i < bytes; i++) {
        const int32_t id = v->symbols[piece[i]];
        if (id == TEXT_NO_TOKEN) continue;
        places[count] = (place){.id = id, .previous = count - 1, .next = count + 1};
        count++;
    }
    bool done = merge_places(v, places, count, &q);
    for (uint32_t i = 0; i < count && done; i = places[i].next) {
        done = list->count < list->capacity || text_list_reserve(list, 1);
        if (done) list->ids[list->count++] = places[i].id;
    }
    free(q.at);
    free(places);
    return done;
}
