/* Mutations of files, for fuzz programs. Include once, after defining CAPACITY: the bytes that the buffer of a file has. */
#ifndef DARTLM_TESTS_MUTATE_H
#define DARTLM_TESTS_MUTATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint64_t random_state; /* not 0 */

/* Below limit. xorshift64, Marsaglia 2003. */
static uint32_t random_below(size_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % limit);
}

/* Replaces cut bytes at `at` with count bytes, unless the file then has no room. Returns the file's size. */
static size_t replace(uint8_t *file, size_t size, size_t at, size_t cut, const void *with, size_t count)
{
    if (cut > size - at) cut = size - at;
    if (size - cut + count > CAPACITY) return size;
    memmove(file + at + count, file + at + cut, size - at - cut);
    memcpy(file + at, with, count);
    return size - cut + count;
}

/* JSON: a bit, a word in place of others, a gap, or another value after a colon, which keeps it JSON more often. */
static inline size_t mutate_json(uint8_t *text, size_t size, const char *const *words, size_t words_count)
{
    const size_t at = random_below(size + 1);
    const char *word = words[random_below(words_count)];
    size_t i = at;
    switch (random_below(4)) {
    case 0:
        if (at < size) text[at] ^= (uint8_t)(1u << random_below(8));
        return size;
    case 1: return replace(text, size, at, random_below(4), word, strlen(word));
    case 2: return replace(text, size, at, random_below(24), "", 0);
    default:
        while (i < size && text[i] != ':') i++;
        return i == size ? size : replace(text, size, i + 1, random_below(6), word, strlen(word));
    }
}

#endif
