/* Mutations of files, for fuzz programs. Include once, after defining CAPACITY: the bytes that the buffer of a file has.
 *
 * A program takes [--seed N] [--seconds N] [FILE...]. Files are read, and nothing else is done. Without files it mutates: for so many seconds, or for
 * a number of rounds of its own. Without --seed the inputs are others in every run: the seed is DARTLM_DRAW of the environment, which tools/test.sh
 * sets, or the time. It is printed first, and --seed with it gives the same inputs in the same order. What fails aborts (a sanitizer does so where
 * abort_on_error=1), and the input is written to crash-SEED in the current folder, those of further threads to crash-SEED-THREAD. */
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

enum { RANDOM_THREADS = 16 };
static _Thread_local uint64_t random_state; /* not 0 */
static _Thread_local uint32_t random_thread; /* below RANDOM_THREADS */
static uint64_t random_seed;
static time_t random_seconds; /* 0: so many rounds */
static time_t random_end;
static struct {
    const uint8_t *input;
    size_t size;
    char path[48];
} random_at[RANDOM_THREADS];

/* What the thread is at work on. */
static inline void random_watch(const uint8_t *input, size_t size)
{
    random_at[random_thread].input = input;
    random_at[random_thread].size = size;
}

static inline void random_crash(int number)
{
    for (int i = 0; i < RANDOM_THREADS; i++) {
        if (random_at[i].input == NULL) continue;
        const int file = open(random_at[i].path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        size_t written = 0;
        while (file >= 0 && written < random_at[i].size) {
            const ssize_t n = write(file, random_at[i].input + written, random_at[i].size - written);
            if (n <= 0) break;
            written += (size_t)n;
        }
    }
    signal(number, SIG_DFL);
    raise(number);
}

/* Where a stream of numbers begins: the streams of neighbouring numbers have nothing in common. The mixing function of splitmix64, Steele 2014. */
static inline uint64_t random_stream(uint64_t number)
{
    uint64_t x = number + UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    x ^= x >> 31;
    return x != 0 ? x : 1;
}

/* Reads the arguments and takes the options out of them. Returns how many are left, argv[0] among them: files to read. */
static inline int random_begin(int argc, char **argv)
{
    const char *const drawn = getenv("DARTLM_DRAW");
    struct timespec now = {0, 0};
    int left = 1;
    (void)timespec_get(&now, TIME_UTC);
    random_seed = drawn != NULL ? strtoull(drawn, NULL, 10) : ((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000) % 1000000000;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) random_seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) random_seconds = (time_t)strtoul(argv[++i], NULL, 10);
        else argv[left++] = argv[i];
    }
    random_state = random_stream(random_seed);
    if (left > 1) return left;
    for (int i = 0; i < RANDOM_THREADS; i++)
        snprintf(random_at[i].path, sizeof random_at[i].path, i > 0 ? "crash-%llu-%d" : "crash-%llu", (unsigned long long)random_seed, i);
    signal(SIGABRT, random_crash);
#ifndef __SANITIZE_ADDRESS__ /* which reports these itself */
    signal(SIGSEGV, random_crash);
    signal(SIGBUS, random_crash);
    signal(SIGFPE, random_crash);
#endif
    printf("seed %llu\n", (unsigned long long)random_seed);
    fflush(stdout); /* what aborts loses what is not written */
    return left;
}

/* Whether there is to be another round, behind `round` of them; the seconds begin with the first. */
static inline bool random_goes_on(uint32_t round, uint32_t rounds)
{
    if (round == 0) random_end = time(NULL) + random_seconds;
    if (random_seconds == 0 ? round < rounds : round % 64 != 0 || time(NULL) < random_end) return true;
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
