/* Pieces of text, as the regular expressions of the patterns cut it. Alternatives are tried in order, the first that matches counts, and each
 * takes as much as it can. */
#include "tokenizer.h"

#include <string.h>

static const struct {
    text_pattern pattern;
    const char *expression;
} patterns[] = {
    {TEXT_PATTERN_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {TEXT_PATTERN_LLAMA3,
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {TEXT_PATTERN_QWEN2,
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

bool text_pattern_find(const char *expression, text_pattern *pattern)
{
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        if (strcmp(patterns[i].expression, expression) != 0) continue;
        *pattern = patterns[i].pattern;
        return true;
    }
    return false;
}

/* The text behind where a piece begins. */
typedef struct reader {
    const uint8_t *properties, *text;
    size_t bytes;
} reader;

/* The class of the character at i, and its length. */
static inline unsigned class_at(const reader *r, size_t i, size_t *length)
{
    uint32_t c = r->text[i];
    *length = 1;
    if (c >= 0x80) c = text_utf8_point(r->text + i, length);
    return r->properties[c] & TEXT_CLASS;
}

static inline size_t run_end(const reader *r, size_t i, unsigned class)
{
    size_t length;
    while (i < r->bytes && class_at(r, i, &length) == class) i += length;
    return i;
}

static bool is_line_end(uint8_t c) { return c == '\r' || c == '\n'; }

/* White space up to `end`: all of it if nothing follows or it is one character, else without the last one, which belongs to what follows. */
static size_t space_end(const reader *r, size_t i, size_t end)
{
    if (end == r->bytes) return end;
    size_t last = end - 1;
    while ((r->text[last] & 0xC0) == 0x80) last--;
    return last > i ? last : end;
}

/* The end of a contraction behind the apostrophe at i, or i. With any_case also capitals, and U+017F, whose capital is S. */
static size_t contraction_end(const reader *r, size_t i, bool any_case)
{
    const uint8_t fold = any_case ? 0x20 : 0;
    if (i + 1 >= r->bytes) return i;
    const uint8_t first = r->text[i + 1] | fold;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return i + 2;
    if (i + 2 >= r->bytes) return i;
    if (any_case && r->text[i + 1] == 0xC5 && r->text[i + 2] == 0xBF) return i + 3;
    const uint8_t second = r->text[i + 2] | fold;
    const bool two = ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
    return two ? i + 3 : i;
}

static size_t gpt2_end(const reader *r, size_t i)
{
    size_t length, k = i;
    unsigned class = class_at(r, i, &length);
    if (r->text[i] == '\'') {
        const size_t end = contraction_end(r, i, false);
        if (end > i) return end;
    } else if (r->text[i] == ' ' && i + 1 < r->bytes) {
        size_t after;
        const unsigned next = class_at(r, i + 1, &after);
        if (next != TEXT_SPACE) {
            class = next;
            length = after;
            k = i + 1;
        }
    }
    const size_t end = run_end(r, k + length, class);
    return class == TEXT_SPACE ? space_end(r, i, end) : end;
}

/* Others with a space in front and the ends of lines behind. */
static size_t others_end(const reader *r, size_t i)
{
    i = run_end(r, i, TEXT_OTHER);
    while (i < r->bytes && is_line_end(r->text[i])) i++;
    return i;
}

static size_t llama3_end(const reader *r, size_t i, unsigned digits)
{
    size_t length, after = 0;
    const uint8_t c = r->text[i];
    const unsigned class = class_at(r, i, &length);
    if (c == '\'') {
        const size_t end = contraction_end(r, i, true);
        if (end > i) return end;
    }
    if (class == TEXT_LETTER) return run_end(r, i + length, TEXT_LETTER);
    if (class == TEXT_NUMBER) {
        for (i += length; digits > 1 && i < r->bytes && class_at(r, i, &length) == TEXT_NUMBER; digits--) i += length;
        return i;
    }
    const unsigned next = i + length < r->bytes ? class_at(r, i + length, &after) : TEXT_SPACE;
    if (next == TEXT_LETTER && !is_line_end(c)) return run_end(r, i + length + after, TEXT_LETTER);
    if (class == TEXT_OTHER) return others_end(r, i);
    if (c == ' ' && next == TEXT_OTHER) return others_end(r, i + 1);
    const size_t end = run_end(r, i + length, TEXT_SPACE);
    for (size_t line = end; line > i; line--)
        if (is_line_end(r->text[line - 1])) return line;
    return space_end(r, i, end);
}

/* ---- The pieces of a block of ASCII at once ---- */

/* The characters of a block that are of a kind, a bit each. */
typedef struct kinds {
    uint64_t letters, numbers, spaces, blanks, quotes; /* spaces are all white space, blanks ' ', quotes '\'' */
    uint32_t ascii;                                    /* bytes in front of the first that is none */
} kinds;

/* The highest bit of each byte from low to high; all bytes are below 0x80. */
static inline uint64_t in_range(uint64_t word, uint8_t low, uint8_t high)
{
    return (word + (0x80u - low) * TEXT_EACH) & ~(word + (0x7Fu - high) * TEXT_EACH) & TEXT_HIGHS;
}

/* The highest bits of the bytes of a word, in bits 0 to 7: the product moves bit 8 i by 56 - 7 i, and no two sums of that kind are equal. */
static inline uint64_t pack(uint64_t highs) { return (highs >> 7) * UINT64_C(0x0102040810204080) >> 56; }

static inline kinds block_kinds(const uint8_t *block)
{
    kinds k = {.ascii = TEXT_BLOCK};
    for (uint32_t i = 0; i < TEXT_BLOCK; i += 8) {
        const uint64_t word = text_word(block + i), low = word & ~TEXT_HIGHS, foreign = word & TEXT_HIGHS;
        const uint64_t blanks = in_range(low, ' ', ' '), quotes = in_range(low, '\'', '\'');
        k.letters |= pack(in_range(low | 0x20 * TEXT_EACH, 'a', 'z')) << i;
        k.numbers |= pack(in_range(low, '0', '9')) << i;
        k.spaces |= pack(blanks | in_range(low, '\t', '\r')) << i;
        k.blanks |= pack(blanks) << i;
        if (quotes != 0) k.quotes |= pack(quotes) << i;
        if (foreign == 0) continue;
        k.ascii = i + text_lowest(pack(foreign));
        break;
    }
    return k;
}

uint64_t text_block_ends(const uint8_t *block, size_t bytes)
{
    const reader r = {NULL, block, TEXT_BLOCK};
    const kinds k = block_kinds(block);
    const uint64_t l = k.letters, n = k.numbers, s = k.spaces, other = ~(l | n | s);
    /* A run begins a piece unless a blank is in front of it, which then does; so does the last of several spaces. */
    uint64_t begins = ((l & ~(l << 1)) | (n & ~(n << 1)) | (other & ~(other << 1))) & ~(k.blanks << 1);
    begins |= s & ~(s << 1 & s >> 1);
    for (uint64_t quotes = k.quotes & begins; quotes != 0; quotes &= quotes - 1) {
        const unsigned at = text_lowest(quotes);
        const size_t end = contraction_end(&r, at, false);
        if (end == at) continue;
        begins &= ~(UINT64_C(2) << at);
        if (end < TEXT_BLOCK) begins |= UINT64_C(1) << end;
    }
    begins &= ~UINT64_C(1);
    if (bytes < TEXT_BLOCK && k.ascii >= bytes) return (begins & ((UINT64_C(1) << bytes) - 1)) | UINT64_C(1) << bytes;
    /* What follows the last two characters is not known. */
    return k.ascii == 0 ? 0 : begins & ((UINT64_C(1) << (k.ascii - 1)) - 1);
}

size_t text_piece_end(text_pattern pattern, const uint8_t *properties, const uint8_t *text, size_t at, size_t bytes)
{
    const reader r = {properties, text, bytes};
    switch (pattern) {
    case TEXT_PATTERN_LLAMA3: return llama3_end(&r, at, 3);
    case TEXT_PATTERN_QWEN2: return llama3_end(&r, at, 1);
    case TEXT_PATTERN_GPT2: break;
    }
    return gpt2_end(&r, at);
}
