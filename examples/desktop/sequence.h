/* The tokens: first those given, an exercise in recall, then those that the model chose.
 *
 * The exercise is the one that the demo's model has learned (MQAR): pairs of a key and a value, then the keys again in another order, each
 * followed by any token. After a key of the second half the right next token is the value that followed the key in the first half. */
#ifndef DESKTOP_SEQUENCE_H
#define DESKTOP_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sequence {
    int32_t *ids, *answers; /* `tokens` each; answers: the right next token, -1 where nothing is asked */
    uint32_t tokens, given;
    uint32_t asked, recalled; /* questions so far, right answers */
} sequence;

/* Ids are below V. Ends the program when there is no memory. */
void sequence_make(sequence *s, uint32_t V, uint32_t tokens, uint64_t seed);
void sequence_free(sequence *s);
/* The model chose `next` after the token at `position`. */
void sequence_answer(sequence *s, uint32_t position, int32_t next);
/* Answers are counted anew. */
void sequence_recount(sequence *s);
/* All tokens, to and from a file beside a state's. The first `position` of them are those of that state. */
bool sequence_save(const sequence *s, const char *state_path);
bool sequence_load(sequence *s, const char *state_path, uint32_t position);

#endif
