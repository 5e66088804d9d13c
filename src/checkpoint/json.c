#include "json.h"

dart_status checkpoint_json_parse(const char *text, size_t bytes, const char *name, base_report *report, json_t **object)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    /* Out of memory is most often a failure without a text. */
    if (root == NULL && (error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory))
        return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory to read it", name);
    if (root == NULL) return base_fail(report, DART_BAD_DATA, "%s: line %d: %s", name, error.line, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return base_fail(report, DART_BAD_DATA, "%s: not a JSON object", name);
    }
    *object = root;
    return DART_OK;
}

bool checkpoint_json_sizes(const json_t *array, uint64_t *out, uint32_t max, uint32_t *count)
{
    if (!json_is_array(array) || json_array_size(array) > max) return false;
    *count = (uint32_t)json_array_size(array);
    for (uint32_t i = 0; i < *count; i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
        out[i] = (uint64_t)json_integer_value(value);
    }
    return true;
}
