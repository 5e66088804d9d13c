/* Answers of the server as they came over a connection: where each ends, and whether it is one at all. */
#ifndef DARTLM_TESTS_REPLIES_H
#define DARTLM_TESTS_REPLIES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct reply {
    int status;
    bool json;
    const char *body; /* its bytes are not counted where it comes in chunks */
    size_t body_bytes, bytes; /* bytes: of the whole answer */
} reply;

/* Reads the first answer. NULL, or what is wrong with it. An answer that is cut has as many bytes as there are, which is wrong where `whole`. The
 * answer to HEAD has a length but no body: it is taken for one where another answer follows or, with `head`, the end. */
const char *reply_read(const char *at, size_t size, bool whole, bool head, reply *a);

#endif
