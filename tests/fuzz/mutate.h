/* Mutations of files, for fuzz programs. Include once, after defining CAPACITY: the bytes that the buffer of a file has.
 *
 * A program's loop is the same in every run, or with `--seed N --seconds N` one of other inputs, for so long. What fails then aborts (a
 * sanitizer does so where abort_on_error=1), and the input is written to crash-SEED in the current folder. */
#ifndef DARTLM_TESTS_MUTATE_H
#define DARTLM_TESTS_MUTATE_H

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t random_state; /* not 0 */
static uint64_t random_seed;
static time_t random_end; /* 0: after so many rounds */
static const uint8_t *random_input;
static size_t random_input_size;
static char random_path[40];

/* What the program is at work on. */
static inline void random_watch(const uint8_t *input, size_t size)
{
    random_input = input;
    random_input_size = size;
}

static inline void random_crash(int number)
{
    const int file = random_input != NULL ? open(random_path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    size_t written = 0;
    while (file >= 0 && written < random_input_size) {
        const ssize_t n = write(file, random_input + written, random_input_size - written);
        if (n <= 0) break;
        written += (size_t)n;
    }
    signal(number, SIG_DFL);
    raise(number);
}

/* Returns how many arguments are left, argv[0] among them, as files to read. */
static inline int random_begin(int argc, char **argv, uint64_t seed)
{
    random_seed = seed;
    if (argc != 5 || strcmp(argv[1], "--seed") != 0 || strcmp(argv[3], "--seconds") != 0) return argc;
    random_seed = strtoull(argv[2], NULL, 10);
    if (random_seed == 0) random_seed = seed;
    random_end = time(NULL) + (time_t)strtoul(argv[4], NULL, 10);
    snprintf(random_path, sizeof random_path, "crash-%llu", (unsigned long long)random_seed);
    signal(SIGABRT, random_crash);
    return 1;
}

static inline bool random_goes_on(uint32_t round, uint32_t rounds)
{
    if (random_end == 0) return round < rounds;
    if (round % 64 != 0 || time(NULL) < random_end) return true;
    printf("seed %llu: %u rounds\n", (unsigned long long)random_seed, round);
    return false;
}

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
