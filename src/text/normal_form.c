/* NFC: canonical decomposition, order of marks, composition (Unicode Standard Annex 15), part by part: a part begins at a code point that is
 * stable, and only parts with others are computed. */
#include "unicode.h"

#include <stdlib.h>
#include <string.h>

/* A code point to be put in order: combining class, place, code point, in 8, 35 and 21 bits. Places make the order stable. */
typedef struct part {
    uint64_t *at;
    size_t count, capacity;
} part;

enum { POINT_BITS = 21, CLASS_SHIFT = 56, SHORT_RUN = 16 };

static uint32_t point_of(uint64_t entry) { return (uint32_t)(entry & ((1u << POINT_BITS) - 1)); }
static uint32_t class_of(uint64_t entry) { return (uint32_t)(entry >> CLASS_SHIFT); }

static uint32_t combining_class(uint32_t c)
{
    size_t low = 0, high = text_mark_ranges_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const text_range *r = &text_mark_ranges[middle];
        if (c < r->first) high = middle;
        else if (c > r->last) low = middle + 1;
        else return r->value;
    }
    return 0;
}

static const text_decomposition *decomposition(uint32_t c)
{
    size_t low = 0, high = text_decompositions_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const uint32_t point = text_decompositions[middle].point;
        if (c == point) return &text_decompositions[middle];
        if (c < point) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* What a and b compose to, or 0. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    const uint32_t l = a - TEXT_HANGUL_L, v = b - TEXT_HANGUL_V, s = a - TEXT_HANGUL, t = b - TEXT_HANGUL_T;
    if (l < TEXT_HANGUL_LS && v < TEXT_HANGUL_VS) return TEXT_HANGUL + (l * TEXT_HANGUL_VS + v) * TEXT_HANGUL_TS;
    if (s < TEXT_HANGUL_SYLLABLES && s % TEXT_HANGUL_TS == 0 && t > 0 && t < TEXT_HANGUL_TS) return a + t;
    size_t low = 0, high = text_compositions_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const text_composition *pair = &text_compositions[middle];
        if (pair->a == a && pair->b == b) return pair->to;
        if (a < pair->a || (a == pair->a && b < pair->b)) high = middle;
        else low = middle + 1;
    }
    return 0;
}

static bool part_add(part *p, uint32_t c)
{
    if (p->count == p->capacity) {
        const size_t capacity = p->capacity * 2 + 64;
        uint64_t *at = capacity > SIZE_MAX / sizeof *at ? NULL : realloc(p->at, capacity * sizeof *at);
        if (at == NULL) return false;
        p->at = at;
        p->capacity = capacity;
    }
    p->at[p->count] = (uint64_t)combining_class(c) << CLASS_SHIFT | (uint64_t)p->count << POINT_BITS | c;
    p->count++;
    return true;
}

static bool part_decompose(part *p, uint32_t c)
{
    const uint32_t s = c - TEXT_HANGUL;
    if (s < TEXT_HANGUL_SYLLABLES) {
        const uint32_t t = s % TEXT_HANGUL_TS;
        return part_add(p, TEXT_HANGUL_L + s / (TEXT_HANGUL_VS * TEXT_HANGUL_TS)) &&
               part_add(p, TEXT_HANGUL_V + s / TEXT_HANGUL_TS % TEXT_HANGUL_VS) && (t == 0 || part_add(p, TEXT_HANGUL_T + t));
    }
    const text_decomposition *d = decomposition(c);
    if (d == NULL) return part_add(p, c);
    for (size_t i = 0; i < COUNT_OF(d->to) && d->to[i] != 0; i++)
        if (!part_add(p, d->to[i])) return false;
    return true;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts marks between starters; long runs not by insertion, which would be quadratic. */
static void part_order(part *p)
{
    size_t end;
    for (size_t begin = 0; begin < p->count; begin = end + 1) {
        end = begin;
        while (end < p->count && class_of(p->at[end]) != 0) end++;
        if (end - begin > SHORT_RUN) {
            qsort(p->at + begin, end - begin, sizeof *p->at, by_value);
            continue;
        }
        for (size_t i = begin + 1; i < end; i++) {
            const uint64_t entry = p->at[i];
            size_t j = i;
            for (; j > begin && p->at[j - 1] > entry; j--) p->at[j] = p->at[j - 1];
            p->at[j] = entry;
        }
    }
}

/* Composes each mark or starter with the last starter unless something between them has the same class or is a starter. */
static void part_compose(part *p)
{
    size_t starter = SIZE_MAX, kept = 0;
    for (size_t i = 0; i < p->count; i++) {
        const uint64_t entry = p->at[i];
        const uint32_t class = class_of(entry);
        const bool adjacent = starter != SIZE_MAX && kept == starter + 1;
        if (starter != SIZE_MAX && (adjacent || (class != 0 && class_of(p->at[kept - 1]) < class))) {
            const uint32_t to = compose(point_of(p->at[starter]), point_of(entry));
            if (to != 0) {
                p->at[starter] = to;
                continue;
            }
        }
        if (class == 0) starter = kept;
        p->at[kept++] = entry;
    }
    p->count = kept;
}

static bool part_write(const part *p, text_bytes *to)
{
    if (!text_bytes_reserve(to, 4 * p->count)) return false;
    for (size_t i = 0; i < p->count; i++) to->count += text_utf8_write(point_of(p->at[i]), to->at + to->count);
    return true;
}

static inline uint32_t point_at(const uint8_t *text, size_t i, size_t *length)
{
    *length = 1;
    return text[i] < 0x80 ? text[i] : text_utf8_point(text + i, length);
}

/* Where the part begins that holds the next unstable code point: `bytes` where there is none. *at is the code point's place. */
static size_t next_part(const uint8_t *properties, const uint8_t *text, size_t from, size_t bytes, size_t *at)
{
    size_t stable = from;
    for (size_t i = from, length; i < bytes; i += length) {
        const uint32_t c = point_at(text, i, &length);
        if (c >= 0x80 && (properties[c] & TEXT_UNSTABLE) != 0) {
            *at = i;
            return stable;
        }
        stable = i;
    }
    *at = bytes;
    return bytes;
}

bool text_is_unstable(const uint8_t *properties, const uint8_t *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes) {
        uint64_t eight;
        size_t length = 1;
        if (bytes - i >= 8) {
            memcpy(&eight, text + i, 8);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += 8;
                continue;
            }
        }
        const uint32_t c = point_at(text, i, &length);
        if ((properties[c] & TEXT_UNSTABLE) != 0) return true;
        i += length;
    }
    return false;
}

bool text_normalize(const uint8_t *properties, const uint8_t *text, size_t bytes, text_bytes *to)
{
    part p = {NULL, 0, 0};
    bool done = true;
    for (size_t from = 0; from < bytes && done;) {
        size_t i, length;
        const size_t begin = next_part(properties, text, from, bytes, &i);
        done = text_bytes_add(to, text + from, begin - from);
        p.count = 0;
        for (size_t at = begin; at < bytes && done; at += length) {
            const uint32_t c = point_at(text, at, &length);
            if (at > i && (properties[c] & TEXT_UNSTABLE) == 0) break;
            done = part_decompose(&p, c);
            from = at + length;
        }
        if (begin == bytes) break;
        part_order(&p);
        part_compose(&p);
        done = done && part_write(&p, to);
    }
    free(p.at);
    return done;
}
