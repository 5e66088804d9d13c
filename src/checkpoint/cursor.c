#include "cursor.h"

#include <inttypes.h>
#include <string.h>

dart_status cursor_fail(const cursor *c, const char *what)
{
    return base_fail(c->report, DART_BAD_DATA, "%s: header byte %" PRIu64 ": %s", c->file, (uint64_t)(c->at - c->begin),
                     what);
}

void cursor_skip_space(cursor *c)
{
    while (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r') c->at++;
}

bool cursor_take(cursor *c, char wanted)
{
    cursor_skip_space(c);
    if (*c->at != wanted) return false;
    c->at++;
    return true;
}

/* Length of the well-formed UTF-8 sequence at s, 0 when there is none. */
static size_t utf8_length(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) return 1;
    if (u[0] < 0xC2 || u[0] > 0xF4) return 0;
    const size_t length = u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    /* The second byte excludes overlong forms, surrogates and what lies above U+10FFFF. */
    const unsigned low = u[0] == 0xE0 ? 0xA0 : u[0] == 0xF0 ? 0x90 : 0x80;
    const unsigned high = u[0] == 0xED ? 0x9F : u[0] == 0xF4 ? 0x8F : 0xBF;
    if (u[1] < low || u[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if (u[i] < 0x80 || u[i] > 0xBF) return 0;
    return length;
}

static bool take_hex4(const char *s, uint32_t *out)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        const char d = s[i];
        uint32_t digit;
        if (d >= '0' && d <= '9') digit = (uint32_t)(d - '0');
        else if (d >= 'a' && d <= 'f') digit = (uint32_t)(d - 'a') + 10;
        else if (d >= 'A' && d <= 'F') digit = (uint32_t)(d - 'A') + 10;
        else return false;
        value = value << 4 | digit;
    }
    *out = value;
    return true;
}

static char *put_utf8(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (char)(0xE0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    } else {
        *to++ = (char)(0xF0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3F));
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    }
    return to;
}

/* Reads \uXXXX after the u; c->at moves past it. 0 when it is wrong or U+0000, which C strings cannot hold. */
static uint32_t take_unicode(cursor *c)
{
    uint32_t code, low;
    if (!take_hex4(c->at, &code)) return 0;
    c->at += 4;
    if (code < 0xD800 || code > 0xDFFF) return code;
    if (code > 0xDBFF || c->at[0] != '\\' || c->at[1] != 'u' || !take_hex4(c->at + 2, &low)) return 0;
    if (low < 0xDC00 || low > 0xDFFF) return 0;
    c->at += 6;
    return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
}

dart_status cursor_string(cursor *c, const char **out)
{
    if (!cursor_take(c, '"')) return cursor_fail(c, "expected a string");
    char *const start = c->at;
    char *to = start;
    while (*c->at != '"') {
        const size_t length = utf8_length(c->at);
        if (length == 0) return cursor_fail(c, "invalid UTF-8");
        if ((unsigned char)*c->at < 0x20) return cursor_fail(c, "a string does not end or holds a control character");
        if (*c->at != '\\') {
            memmove(to, c->at, length);
            to += length;
            c->at += length;
            continue;
        }
        static const char escapes[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
        const char letter = c->at[1];
        const char *found = letter != '\0' ? strchr(escapes, letter) : NULL;
        if (found != NULL) {
            *to++ = plain[found - escapes];
            c->at += 2;
        } else {
            c->at += letter == 'u' ? 2 : 1;
            const uint32_t code = letter == 'u' ? take_unicode(c) : 0;
            if (code == 0) return cursor_fail(c, "invalid escape in a string");
            to = put_utf8(to, code);
        }
    }
    c->at++;
    *to = '\0';
    *out = start;
    return DART_OK;
}

dart_status cursor_size(cursor *c, uint64_t *out)
{
    uint64_t value = 0;
    cursor_skip_space(c);
    if (*c->at < '0' || *c->at > '9') return cursor_fail(c, "expected an integer that is not negative");
    if (c->at[0] == '0' && c->at[1] >= '0' && c->at[1] <= '9') return cursor_fail(c, "a number starts with 0");
    for (; *c->at >= '0' && *c->at <= '9'; c->at++)
        if (!base_mul(value, 10, &value) || !base_add(value, (uint64_t)(*c->at - '0'), &value))
            return cursor_fail(c, "an integer is too large");
    if (*c->at == '.' || *c->at == 'e' || *c->at == 'E') return cursor_fail(c, "a size is not an integer");
    *out = value;
    return DART_OK;
}

dart_status cursor_sizes(cursor *c, uint64_t *out, uint32_t max, uint32_t *count)
{
    *count = 0;
    if (!cursor_take(c, '[')) return cursor_fail(c, "expected an array of integers");
    if (cursor_take(c, ']')) return DART_OK;
    do {
        if (*count == max) return cursor_fail(c, "too many integers in an array");
        const dart_status status = cursor_size(c, &out[*count]);
        if (status != DART_OK) return status;
        ++*count;
    } while (cursor_take(c, ','));
    return cursor_take(c, ']') ? DART_OK : cursor_fail(c, "expected , or ]");
}
