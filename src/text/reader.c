/* Values of tokenizer.json, and refusals of those that are not computed exactly. */
#include "reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dart_status text_refuse(const text_reader *r, const char *place, const json_t *value, const char *supported)
{
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const dart_status status = base_fail(r->report, DART_UNSUPPORTED, "%s: %s is %.100s, supported is %s", r->name, place,
                                         value == NULL ? "missing" : text != NULL ? text : "too long to show", supported);
    free(text);
    return status;
}

dart_status text_refuse_keys(const text_reader *r, const char *place, const json_t *object, const char *const *keys, size_t count)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        char full[TEXT_PLACE];
        size_t i = 0;
        while (i < count && strcmp(keys[i], key) != 0) i++;
        if (i < count) continue;
        snprintf(full, sizeof full, "%s%s%.40s", place, place[0] != '\0' ? "." : "", key);
        return text_refuse(r, full, value, "no such key");
    }
    return DART_OK;
}

dart_status text_read_boolean(const text_reader *r, const char *place, const json_t *object, const char *key, int standard, bool *out)
{
    const json_t *value = json_object_get(object, key);
    const bool missing = value == NULL || json_is_null(value);
    if (missing ? standard < 0 : !json_is_boolean(value))
        return base_fail(r->report, DART_BAD_DATA, "%s: %s.%s is %s", r->name, place, key, missing ? "missing" : "neither true nor false");
    *out = missing ? standard != 0 : json_is_true(value);
    return DART_OK;
}

const char *text_type(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type != NULL ? type : "";
}
