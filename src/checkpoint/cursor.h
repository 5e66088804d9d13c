/* Reads the little JSON that headers of untrusted files need: objects, strings and arrays of sizes, nothing nested by
 * recursion. Strings are decoded in place, so that reading needs no memory beyond the text itself. */
#ifndef DART_CURSOR_H
#define DART_CURSOR_H

#include "base/base.h"

typedef struct cursor {
    char *at, *begin; /* the text ends with a terminator, which no function below accepts */
    const char *file; /* for messages */
    base_report *report;
} cursor;

/* DART_BAD_DATA with file and place. */
dart_status cursor_fail(const cursor *c, const char *what);
void cursor_skip_space(cursor *c);
/* Moves past white space and then past `wanted` when it is there. */
bool cursor_take(cursor *c, char wanted);
/* *out is UTF-8 without U+0000 and lies in the text. */
dart_status cursor_string(cursor *c, const char **out);
dart_status cursor_size(cursor *c, uint64_t *out);
/* [a, b, ...] of at most max sizes. */
dart_status cursor_sizes(cursor *c, uint64_t *out, uint32_t max, uint32_t *count);

#endif
