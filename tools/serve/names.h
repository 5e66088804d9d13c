/* How answers name tokens. */
#ifndef DARTLM_SERVE_NAMES_H
#define DARTLM_SERVE_NAMES_H

#include "dartlm/text.h"

/* For each id its text where its bytes are UTF-8, else "bytes:\xe2\x80", so that different tokens have different names; "token_id:7" for an id that
 * no text has. */
typedef struct api_names {
    char *bytes;
    size_t *starts; /* ids + 1: name i is bytes[starts[i]] to before bytes[starts[i + 1]] */
    uint32_t ids;
} api_names;

/* Names of ids below `ids`. false without memory. */
bool api_names_make(dart_tokenizer *tokenizer, uint32_t ids, api_names *names);
void api_names_free(api_names *names);
/* Its bytes; *count of them. An id that is not below names->ids has the name of none. */
const char *api_name(const api_names *names, int32_t id, size_t *count);
/* Characters of UTF-8. */
size_t api_code_points(const char *text, size_t bytes);

#endif
