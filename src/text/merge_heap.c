/* Byte pair encoding with a heap of pairs by rank, then place. Pairs that are no more stay there and are passed over. */
#include "merge.h"

#include <stdlib.h>

/* A token. */
typedef struct place {
    int32_t id;
    uint32_t rank; /* of this token and the next; TEXT_NO_RANK also where the token is no more */
    uint32_t previous, next;
} place;

typedef struct heap {
    uint64_t *at; /* rank, then place: four children a node */
    size_t count, capacity;
} heap;

static bool push(heap *h, uint32_t rank, uint32_t at)
{
    if (h->count == h->capacity) {
        const size_t capacity = h->capacity + h->capacity / 2 + 256;
        uint64_t *grown = capacity > SIZE_MAX / sizeof *grown ? NULL : realloc(h->at, capacity * sizeof *grown);
        if (grown == NULL) return false;
        h->at = grown;
        h->capacity = capacity;
    }
    const uint64_t entry = (uint64_t)rank << 32 | at;
    size_t i = h->count++;
    for (; i > 0 && h->at[(i - 1) / 4] > entry; i = (i - 1) / 4) h->at[i] = h->at[(i - 1) / 4];
    h->at[i] = entry;
    return true;
}

static uint64_t pop(heap *h)
{
    const uint64_t least = h->at[0], last = h->at[--h->count];
    size_t i = 0;
    for (;;) {
        size_t child = 4 * i + 1, best = child;
        if (child >= h->count) break;
        for (const size_t end = h->count < child + 4 ? h->count : child + 4; ++child < end;)
            if (h->at[child] < h->at[best]) best = child;
        if (h->at[best] >= last) break;
        h->at[i] = h->at[best];
        i = best;
    }
    h->at[i] = last;
    return least;
}

/* The rank of a place and its next, which goes into the heap. */
static bool rank_place(const text_vocabulary *v, place *places, uint32_t count, uint32_t at, heap *h)
{
    place *p = &places[at];
    p->rank = p->next < count ? text_vocabulary_rank(v, p->id, places[p->next].id) : TEXT_NO_RANK;
    return p->rank == TEXT_NO_RANK || push(h, p->rank, at);
}

static bool merge(const text_vocabulary *v, place *places, uint32_t count, heap *h)
{
    for (uint32_t i = 0; i < count; i++)
        if (!rank_place(v, places, count, i, h)) return false;
    while (h->count > 0) {
        const uint64_t least = pop(h);
        const uint32_t at = (uint32_t)least;
        place *p = &places[at];
        if (p->rank != (uint32_t)(least >> 32)) continue;
        place *gone = &places[p->next];
        p->id = v->merged[p->rank];
        p->next = gone->next;
        gone->rank = TEXT_NO_RANK;
        if (p->next < count) places[p->next].previous = at;
        if (!rank_place(v, places, count, at, h) || (at > 0 && !rank_place(v, places, count, p->previous, h))) return false;
    }
    return true;
}

bool text_merge_by_heap(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list)
{
    uint32_t count = 0;
    heap h = {NULL, 0, 0};
    place *places = bytes > SIZE_MAX / sizeof *places - 1 ? NULL : malloc((bytes + 1) * sizeof *places);
    if (places == NULL) return false;
    for (size_t i = 0; i < bytes; i++) {
        const int32_t id = v->symbols[piece[i]];
        if (id == TEXT_NO_TOKEN) continue;
        places[count] = (place){.id = id, .previous = count - 1, .next = count + 1};
        count++;
    }
    bool done = merge(v, places, count, &h);
    for (uint32_t i = 0; i < count && done; i = places[i].next) {
        done = list->count < list->capacity || text_list_reserve(list, 1);
        if (done) list->ids[list->count++] = places[i].id;
    }
    free(h.at);
    free(places);
    return done;
}
