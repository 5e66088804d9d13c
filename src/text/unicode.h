/* Code points: UTF-8, classes, and the normal form NFC. The tables are made by tools/text/make_unicode.py from the reference implementation, and
 * name its version. */
#ifndef DART_UNICODE_H
#define DART_UNICODE_H

#include "base/base.h"

/* ---- Tables of the reference ---- */

enum { TEXT_OTHER = 0, TEXT_LETTER, TEXT_NUMBER, TEXT_SPACE };

/* Code points first to last have this value. */
typedef struct text_range {
    uint32_t first, last, value;
} text_range;
/* The whole canonical decomposition of a code point, 0 behind its end. */
typedef struct text_decomposition {
    uint32_t point, to[4];
} text_decomposition;
/* a and b compose to `to`. */
typedef struct text_composition {
    uint32_t a, b, to;
} text_composition;
extern const text_range text_class_ranges[], text_mark_ranges[]; /* values: TEXT_LETTER to TEXT_SPACE; combining classes */
extern const text_decomposition text_decompositions[];           /* in order of point */
extern const text_composition text_compositions[];               /* in order of a, then of b */
extern const size_t text_class_ranges_count, text_mark_ranges_count, text_decompositions_count, text_compositions_count;

/* ---- Eight bytes as a word: the first one is the lowest ---- */

#define TEXT_EACH UINT64_C(0x0101010101010101) /* times a byte: that byte eight times */
#define TEXT_HIGHS UINT64_C(0x8080808080808080)

static inline uint64_t text_word(const uint8_t *s)
{
    return (uint64_t)s[0] | (uint64_t)s[1] << 8 | (uint64_t)s[2] << 16 | (uint64_t)s[3] << 24 | (uint64_t)s[4] << 32 | (uint64_t)s[5] << 40 |
           (uint64_t)s[6] << 48 | (uint64_t)s[7] << 56;
}

/* The place of the lowest bit that is set; one is. The lowest bit times this constant has another six highest bits for each place. */
static inline unsigned text_lowest(uint64_t bits)
{
    static const uint8_t places[64] = {0,  1,  2,  53, 3,  7,  54, 27, 4,  38, 41, 8,  34, 55, 48, 28, 62, 5,  39, 46, 44, 42,
                                       22, 9,  24, 35, 59, 56, 49, 18, 29, 11, 63, 52, 6,  26, 37, 40, 33, 47, 61, 45, 43, 21,
                                       23, 58, 17, 10, 51, 25, 36, 32, 60, 20, 57, 16, 50, 31, 19, 15, 30, 14, 13, 12};
    return places[(bits & (0 - bits)) * UINT64_C(0x022FDD63CC95386D) >> 58];
}

/* ---- UTF-8 ---- */

enum { TEXT_POINTS = 0x110000 };

/* Bytes of the well-formed character at text, of which `bytes` (at least 1) are there; 0 where there is none, and then *invalid is the length of the
 * longest part of it that could begin a character, at least 1: what U+FFFD stands for. *point is the code point. */
size_t text_utf8_read(const uint8_t *text, size_t bytes, uint32_t *point, size_t *invalid);
/* Bytes at the start of the text that are well-formed. */
size_t text_utf8_prefix(const uint8_t *text, size_t bytes);
/* Whether `bytes` bytes can begin a character that is longer. */
bool text_utf8_begins(const uint8_t *text, size_t bytes);
/* The code point of a well-formed character of more than one byte, and its length. */
static inline uint32_t text_utf8_point(const uint8_t *s, size_t *length)
{
    if (s[0] < 0xE0) {
        *length = 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *length = 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *length = 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}
/* Writes 1 to 4 bytes, returns how many. */
size_t text_utf8_write(uint32_t point, uint8_t to[4]);

/* ---- Bytes that grow; false without memory ---- */

typedef struct text_bytes {
    uint8_t *at;
    size_t count, capacity;
} text_bytes;
bool text_bytes_reserve(text_bytes *bytes, size_t more);
bool text_bytes_add(text_bytes *bytes, const void *data, size_t count);

/* ---- Properties ---- */

/* Hangul's syllables L V and L V T are composed by arithmetic. */
enum {
    TEXT_HANGUL = 0xAC00, TEXT_HANGUL_L = 0x1100, TEXT_HANGUL_V = 0x1161, TEXT_HANGUL_T = 0x11A7,
    TEXT_HANGUL_LS = 19, TEXT_HANGUL_VS = 21, TEXT_HANGUL_TS = 28,
    TEXT_HANGUL_SYLLABLES = TEXT_HANGUL_LS * TEXT_HANGUL_VS * TEXT_HANGUL_TS
};

/* One byte a code point: bits 0 and 1 are its class. NFC of a text without code points that have TEXT_UNSTABLE is that text; a code point without it
 * begins a part whose normal form does not depend on what is before. */
enum { TEXT_CLASS = 3, TEXT_UNSTABLE = 4 };
/* TEXT_POINTS bytes for free(); NULL without memory. */
uint8_t *text_properties_create(void);

/* ---- NFC ---- */

/* Appends the normal form of well-formed UTF-8. false without memory. */
bool text_normalize(const uint8_t *properties, const uint8_t *text, size_t bytes, text_bytes *to);
/* Whether the text has a code point with TEXT_UNSTABLE; without one it is in normal form. */
bool text_is_unstable(const uint8_t *properties, const uint8_t *text, size_t bytes);

#endif
