/* A needle in a haystack: one sentence that gives a key a value lies somewhere in a long text; the model is to say the value of the key. The three
 * tasks are those of RULER (Hsieh et al. 2024) with one needle; its templates are kept to the byte, its words and essays are not part of dartlm. */
#ifndef DARTLM_NIAH_H
#define DARTLM_NIAH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* | task | haystack                          | value         |
 * | 1    | five short sentences, line by line | 7 digits      |
 * | 2    | a text                            | 7 digits      |
 * | 3    | a text                            | a UUID        |
 * A unit of a haystack is a line of task 1, and a word of the text of the others. */
typedef struct niah_haystack {
    uint32_t task;
    char *text;     /* of tasks 2 and 3: words with one blank between them */
    size_t *ends;   /* of each word: the bytes of text up to it */
    uint32_t words;
} niah_haystack;

/* Of a text: its words, whatever white space is between them. false without memory. */
bool niah_haystack_of(niah_haystack *haystack, const char *text, size_t bytes);
/* Of plain sentences that the seed gives, at least `words` words. false without memory. */
bool niah_haystack_make(niah_haystack *haystack, uint64_t seed, uint32_t words);
void niah_haystack_free(niah_haystack *haystack);

typedef struct niah_sample {
    char *input;  /* the question behind the text that has the answer; for free() */
    char key[48], value[40];
    char prefix[160]; /* the beginning of the answer, which belongs to the prompt, a blank behind the input */
} niah_sample;
/* Sample `index` of a seed with a haystack of `units`, at least 1: the same key and value whatever the units. false without memory. */
bool niah_make(const niah_haystack *haystack, uint64_t seed, uint64_t index, uint32_t units, niah_sample *sample);

/* Whether the value is in the answer, letters large or small. */
bool niah_right(const char *value, const char *answer, size_t bytes);

#endif
