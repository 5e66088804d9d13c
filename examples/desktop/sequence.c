#include "sequence.h"

#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PAIRS = 64 };

/* splitmix64, below n */
static uint32_t draw(uint64_t *seed, uint32_t n)
{
    uint64_t x = *seed += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((x ^ x >> 31) % n);
}

static bool holds(const int32_t *ids, uint32_t count, int32_t id)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[2 * i] == id) return true;
    return false;
}

void sequence_make(sequence *s, uint32_t V, uint32_t tokens, uint64_t seed)
{
    int32_t exercise[4 * MOST_PAIRS] = {0}, answers[4 * MOST_PAIRS];
    const uint32_t pairs = V / 8 < MOST_PAIRS ? V / 8 : MOST_PAIRS, half = V / 2;
    memset(answers, -1, sizeof answers);
    for (uint32_t i = 0; i < pairs; i++) { /* keys from the lower half of the vocabulary, values from the upper */
        int32_t key;
        do key = (int32_t)(1 + draw(&seed, half - 1));
        while (holds(exercise, i, key));
        exercise[2 * i] = key;
        exercise[2 * i + 1] = (int32_t)(half + draw(&seed, V - half));
    }
    uint32_t order[MOST_PAIRS];
    for (uint32_t i = 0; i < pairs; i++) { /* shuffled as it grows */
        const uint32_t j = draw(&seed, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < pairs; i++) {
        const uint32_t at = 2 * (pairs + i);
        exercise[at] = exercise[2 * order[i]];
        exercise[at + 1] = (int32_t)(1 + draw(&seed, V - 1));
        answers[at] = exercise[2 * order[i] + 1];
    }
    *s = (sequence){.tokens = tokens, .given = 4 * pairs < tokens ? 4 * pairs : tokens};
    s->ids = calloc(tokens, sizeof *s->ids);
    s->answers = malloc(tokens * sizeof *s->answers);
    if (s->ids == NULL || s->answers == NULL) die("no memory for %u tokens", tokens);
    memset(s->answers, -1, tokens * sizeof *s->answers);
    memcpy(s->ids, exercise, s->given * sizeof *s->ids);
    memcpy(s->answers, answers, s->given * sizeof *s->answers);
}

void sequence_free(sequence *s)
{
    free(s->ids);
    free(s->answers);
    *s = (sequence){0};
}

void sequence_answer(sequence *s, uint32_t position, int32_t next)
{
    s->asked += s->answers[position] >= 0;
    s->recalled += s->answers[position] >= 0 && s->answers[position] == next;
    if (position + 1 >= s->given && position + 1 < s->tokens) s->ids[position + 1] = next;
}

void sequence_recount(sequence *s) { s->asked = s->recalled = 0; }

/* ---- Files ---- */

static FILE *open_ids(const char *state_path, const char *mode)
{
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s.ids", state_path);
    return length > 0 && (size_t)length < sizeof path ? fopen(path, mode) : NULL;
}

bool sequence_save(const sequence *s, const char *state_path)
{
    FILE *file = open_ids(state_path, "wb");
    if (file == NULL) return false;
    const bool written = fwrite(s->ids, sizeof *s->ids, s->tokens, file) == s->tokens;
    return fclose(file) == 0 && written;
}

bool sequence_load(sequence *s, const char *state_path, uint32_t position)
{
    FILE *file = open_ids(state_path, "rb");
    if (file == NULL) return false;
    int32_t *ids = calloc(s->tokens, sizeof *ids);
    const bool read = ids != NULL && fread(ids, sizeof *ids, s->tokens, file) >= (position < s->tokens ? position + 1 : position);
    fclose(file);
    if (read) memcpy(s->ids, ids, s->tokens * sizeof *ids);
    free(ids);
    sequence_recount(s);
    return read;
}
