#include "unicode.h"

#include <stdlib.h>
#include <string.h>

size_t text_utf8_read(const uint8_t *s, size_t bytes, uint32_t *point, size_t *invalid)
{
    *invalid = 1;
    if (s[0] < 0x80) {
        *point = s[0];
        return 1;
    }
    if (s[0] < 0xC2 || s[0] > 0xF4) return 0;
    const size_t wanted = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    /* The second byte excludes overlong forms, surrogates and what lies above U+10FFFF. */
    const uint8_t low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80, high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < wanted; i++) {
        if (i == bytes || s[i] < (i == 1 ? low : 0x80) || s[i] > (i == 1 ? high : 0xBF)) return 0;
        *invalid = i + 1;
    }
    size_t length;
    *point = text_utf8_point(s, &length);
    return length;
}

bool text_utf8_begins(const uint8_t *s, size_t bytes)
{
    uint32_t point;
    size_t invalid;
    if (bytes == 0) return true;
    if (s[0] < 0xC2 || s[0] > 0xF4) return false;
    return text_utf8_read(s, bytes, &point, &invalid) == 0 && invalid == bytes;
}

size_t text_utf8_write(uint32_t point, uint8_t to[4])
{
    if (point < 0x80) {
        to[0] = (uint8_t)point;
        return 1;
    }
    if (point < 0x800) {
        to[0] = (uint8_t)(0xC0 | point >> 6);
        to[1] = (uint8_t)(0x80 | (point & 0x3F));
        return 2;
    }
    if (point < 0x10000) {
        to[0] = (uint8_t)(0xE0 | point >> 12);
        to[1] = (uint8_t)(0x80 | (point >> 6 & 0x3F));
        to[2] = (uint8_t)(0x80 | (point & 0x3F));
        return 3;
    }
    to[0] = (uint8_t)(0xF0 | point >> 18);
    to[1] = (uint8_t)(0x80 | (point >> 12 & 0x3F));
    to[2] = (uint8_t)(0x80 | (point >> 6 & 0x3F));
    to[3] = (uint8_t)(0x80 | (point & 0x3F));
    return 4;
}

size_t text_utf8_prefix(const uint8_t *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes) {
        uint64_t eight;
        uint32_t point;
        size_t invalid;
        if (bytes - i >= 8) {
            memcpy(&eight, text + i, 8);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += 8;
                continue;
            }
        }
        const size_t length = text_utf8_read(text + i, bytes - i, &point, &invalid);
        if (length == 0) break;
        i += length;
    }
    return i;
}

/* ---- Properties ---- */

/* What makes a code point depend on its neighbours, or be another one in normal form. */
static void mark_unstable(uint8_t *p)
{
    for (size_t i = 0; i < text_decompositions_count; i++) p[text_decompositions[i].point] |= TEXT_UNSTABLE;
    for (size_t i = 0; i < text_compositions_count; i++) p[text_compositions[i].to] &= (uint8_t)~TEXT_UNSTABLE;
    for (size_t i = 0; i < text_mark_ranges_count; i++)
        for (uint32_t c = text_mark_ranges[i].first; c <= text_mark_ranges[i].last; c++) p[c] |= TEXT_UNSTABLE;
    for (size_t i = 0; i < text_compositions_count; i++) p[text_compositions[i].b] |= TEXT_UNSTABLE;
    for (uint32_t c = TEXT_HANGUL_V + 0; c < TEXT_HANGUL_V + TEXT_HANGUL_VS; c++) p[c] |= TEXT_UNSTABLE;
    for (uint32_t c = TEXT_HANGUL_T + 1; c < TEXT_HANGUL_T + TEXT_HANGUL_TS; c++) p[c] |= TEXT_UNSTABLE;
    for (size_t i = 0; i < text_decompositions_count; i++)
        if (p[text_decompositions[i].to[0]] & TEXT_UNSTABLE) p[text_decompositions[i].point] |= TEXT_UNSTABLE;
}

uint8_t *text_properties_create(void)
{
    uint8_t *p = calloc(TEXT_POINTS, 1);
    if (p == NULL) return NULL;
    for (size_t i = 0; i < text_class_ranges_count; i++) {
        const text_range *r = &text_class_ranges[i];
        memset(p + r->first, (int)r->value, r->last - r->first + 1);
    }
    mark_unstable(p);
    return p;
}

/* ---- Bytes ---- */

bool text_bytes_reserve(text_bytes *bytes, size_t more)
{
    if (bytes->capacity - bytes->count >= more) return true;
    if (more > SIZE_MAX / 4 || bytes->count > SIZE_MAX / 4) return false;
    const size_t needed = bytes->count + more, capacity = needed + needed / 2 + 64;
    uint8_t *at = realloc(bytes->at, capacity);
    if (at == NULL) return false;
    bytes->at = at;
    bytes->capacity = capacity;
    return true;
}

bool text_bytes_add(text_bytes *bytes, const void *data, size_t count)
{
    if (!text_bytes_reserve(bytes, count)) return false;
    if (count > 0) memcpy(bytes->at + bytes->count, data, count);
    bytes->count += count;
    return true;
}
