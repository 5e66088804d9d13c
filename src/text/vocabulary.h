/* The tables of a vocabulary, which encoding looks up for every piece and merge. */
#ifndef DART_VOCABULARY_H
#define DART_VOCABULARY_H

#include "tokenizer.h"

#include <string.h>

static inline uint64_t text_mix(uint64_t h)
{
    h *= UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 32;
}

/* Of up to 8 bytes these bytes, so that pieces of the same length differ where their keys do; of more a hash. */
static inline uint64_t text_piece_key(const uint8_t *s, size_t n)
{
    uint64_t key = n, word;
    uint32_t low, high;
    if (n > 8) {
        for (; n > 8; s += 8, n -= 8) {
            memcpy(&word, s, 8);
            key = text_mix(key ^ word);
        }
        memcpy(&word, s + n - 8, 8); /* the last 8 overlap the ones before */
        return text_mix(key ^ word);
    }
    if (n < 4) return n == 0 ? 0 : (uint64_t)s[0] | (uint64_t)s[n / 2] << 8 * (n / 2) | (uint64_t)s[n - 1] << 8 * (n - 1);
    memcpy(&low, s, 4);
    memcpy(&high, s + n - 4, 4);
    return low | (uint64_t)high << 8 * (n - 4);
}

/* Where the search for a key begins. */
static inline uint32_t text_piece_home(const text_vocabulary *v, uint64_t key, size_t bytes)
{
    return (uint32_t)(text_mix(key + bytes) >> 20) & v->pieces_mask;
}

/* The place of these bytes, or the empty one where they belong. Without `reached` also of tokens that merging does not reach. */
static inline text_place *text_piece_place(const text_vocabulary *v, const uint8_t *piece, size_t bytes, bool reached)
{
    const uint64_t key = text_piece_key(piece, bytes);
    uint32_t at = text_piece_home(v, key, bytes);
    for (; v->pieces[at].id != TEXT_NO_TOKEN; at = (at + 1) & v->pieces_mask) {
        const text_place *place = &v->pieces[at];
        if (place->key != key || (reached ? place->count : place->count & ~TEXT_UNREACHED) != bytes) continue;
        if (bytes <= 8 || memcmp(v->bytes.at + v->tokens[place->id].first, piece, bytes) == 0) break;
    }
    return &v->pieces[at];
}

/* The place of a pair, or the empty one where it belongs. */
static inline uint64_t *text_pair_place(const text_vocabulary *v, int32_t a, int32_t b)
{
    const uint64_t pair = (uint64_t)a << TEXT_ID_BITS | (uint64_t)b;
    uint32_t at = (uint32_t)(text_mix(pair) >> 20) & v->pairs_mask;
    while (v->pairs[at] != UINT64_MAX && v->pairs[at] >> TEXT_RANK_BITS != pair) at = (at + 1) & v->pairs_mask;
    return &v->pairs[at];
}

/* The token that a piece of these bytes becomes, or TEXT_NO_TOKEN: then its parts are merged. */
static inline int32_t text_vocabulary_piece(const text_vocabulary *v, const uint8_t *piece, size_t bytes)
{
    return text_piece_place(v, piece, bytes, true)->id;
}

/* TEXT_NO_RANK: they do not merge. */
static inline uint32_t text_vocabulary_rank(const text_vocabulary *v, int32_t a, int32_t b)
{
    return (uint32_t)(*text_pair_place(v, a, b) & TEXT_NO_RANK); /* which an empty place has, too */
}

#endif
