/* JSON from untrusted files. */
#ifndef DART_JSON_H
#define DART_JSON_H

#include "base/base.h"

#include <jansson.h>

/* The object that the text is, for json_decref. A key that stands twice in one object, nesting beyond jansson's 2048 levels and an
 * integer beyond 64 bits are DART_BAD_DATA, as is whatever is not a JSON object. name is for messages. */
dart_status checkpoint_json_parse(const char *text, size_t bytes, const char *name, base_report *report, json_t **object);
/* An array of at most `max` integers that are not negative. */
bool checkpoint_json_sizes(const json_t *array, uint64_t *out, uint32_t max, uint32_t *count);

#endif
