/* JSON from untrusted files. */
#ifndef DART_JSON_H
#define DART_JSON_H

#include "base/base.h"

#include <jansson.h>

/* Bytes of the header or index of a checkpoint, enough for about 40,000 tensors. The reference implementation of safetensors takes
 * headers of 100 MB; but of text made for that, empty objects in an array, the parser makes values of 80 times its size. */
#define CHECKPOINT_MAX_JSON (4u << 20)

/* The object that the text is, for json_decref. A key that stands twice in one object, nesting beyond jansson's 2048 levels and an
 * integer beyond 64 bits are DART_BAD_DATA, as is whatever is not a JSON object. name is for messages. */
dart_status checkpoint_json_parse(const char *text, size_t bytes, const char *name, base_report *report, json_t **object);
/* An array of at most `max` integers that are not negative. */
bool checkpoint_json_sizes(const json_t *array, uint64_t *out, uint32_t max, uint32_t *count);

#endif
