#include "config_reader.h"

#include "config_original.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG_BYTES 1048576u

/* Rewrites bare Infinity, -Infinity and NaN, which JSON does not know, as {"__float__": ...}. to holds 7 bytes for each
 * of text: NaN grows most, from 3 to 19. Returns the new length. */
static size_t spell_out(const char *text, size_t bytes, char *to)
{
    static const struct {
        const char *word, *spelling;
    } words[] = {{"-Infinity", "{\"__float__\":\"-Infinity\"}"},
                 {"Infinity", "{\"__float__\":\"Infinity\"}"},
                 {"NaN", "{\"__float__\":\"NaN\"}"}};
    char *const start = to;
    bool in_string = false;
    for (size_t i = 0; i < bytes;) {
        size_t w = in_string ? COUNT_OF(words) : 0, length = 0;
        for (; w < COUNT_OF(words); w++) {
            length = strlen(words[w].word);
            if (bytes - i >= length && memcmp(text + i, words[w].word, length) == 0) break;
        }
        if (w < COUNT_OF(words)) {
            const size_t spelled = strlen(words[w].spelling);
            memcpy(to, words[w].spelling, spelled);
            to += spelled;
            i += length;
            continue;
        }
        if (text[i] == '"') in_string = !in_string;
        if (text[i] == '\\' && in_string && i + 1 < bytes) *to++ = text[i++];
        *to++ = text[i++];
    }
    return (size_t)(to - start);
}

dart_status config_reader_open(const char *text, size_t bytes, const char *name, base_report *report, config_reader *reader)
{
    dart_status status;
    json_t *root = NULL, *translated = NULL;
    char *spelled = NULL;
    if (bytes > MAX_CONFIG_BYTES) FAIL(report, DART_BAD_DATA, "%s: longer than %u bytes", name, MAX_CONFIG_BYTES);
    spelled = malloc(7 * bytes + 1);
    if (spelled == NULL) FAIL(report, DART_OUT_OF_MEMORY, "%s: no memory to read it", name);
    TRY(checkpoint_json_parse(spelled, spell_out(text, bytes, spelled), name, report, &root));
    if (config_original_is(root)) TRY(config_original_translate(root, name, report, &translated));
    *reader = (config_reader){json_incref(translated != NULL ? translated : root), name, report};
fail:
    json_decref(translated);
    json_decref(root);
    free(spelled);
    return status;
}

void config_reader_close(config_reader *reader)
{
    json_decref(reader->root);
    reader->root = NULL;
}

json_t *config_get(const config_reader *r, const char *key)
{
    json_t *value = json_object_get(r->root, key);
    return json_is_null(value) ? NULL : value;
}

dart_status config_read_integer(const config_reader *r, const config_integer *field, uint32_t *out)
{
    const json_t *value = config_get(r, field->key);
    if (value == NULL && field->standard == 0)
        return base_fail(r->report, DART_BAD_DATA, "%s: %s is missing", r->name, field->key);
    if (value != NULL && !json_is_integer(value))
        return base_fail(r->report, DART_BAD_DATA, "%s: %s is not an integer", r->name, field->key);
    const json_int_t number = value != NULL ? json_integer_value(value) : (json_int_t)field->standard;
    if (number < (json_int_t)field->min || number > (json_int_t)field->max)
        return base_fail(r->report, DART_BAD_DATA,
                         "%s: %s is %lld, allowed are %" PRIu32 " to %" PRIu32, r->name, field->key,
                         number, field->min, field->max);
    *out = (uint32_t)number;
    return DART_OK;
}

bool config_real_of(const json_t *value, double *out)
{
    if (json_is_object(value)) {
        static const struct {
            const char *text;
            double value;
        } words[] = {{"Infinity", (double)INFINITY}, {"-Infinity", (double)-INFINITY}, {"NaN", (double)NAN}};
        const char *text = json_string_value(json_object_get(value, "__float__"));
        for (size_t i = 0; text != NULL && i < COUNT_OF(words); i++) {
            if (strcmp(text, words[i].text) != 0) continue;
            *out = words[i].value;
            return true;
        }
        return false;
    }
    *out = json_number_value(value);
    return json_is_number(value);
}

/* Beyond the range of f32 is infinite: the cast itself would be undefined. */
static float real_to_f32(double value)
{
    return fabs(value) <= (double)FLT_MAX || isnan(value) ? (float)value : value > 0 ? INFINITY : -INFINITY;
}

dart_status config_read_real(const config_reader *r, const char *key, double standard, float *out)
{
    const json_t *value = config_get(r, key);
    double number = standard;
    if (value != NULL && !config_real_of(value, &number))
        return base_fail(r->report, DART_BAD_DATA, "%s: %s is not a number", r->name, key);
    *out = real_to_f32(number);
    return DART_OK;
}

dart_status config_read_boolean(const config_reader *r, const char *key, bool standard, bool *out)
{
    const json_t *value = config_get(r, key);
    if (value != NULL && !json_is_boolean(value))
        return base_fail(r->report, DART_BAD_DATA, "%s: %s is neither true nor false", r->name, key);
    *out = value != NULL ? json_is_true(value) : standard;
    return DART_OK;
}

dart_status config_read_limits(const config_reader *r, float *dt_min, float *dt_max)
{
    const json_t *value = config_get(r, "time_step_limit");
    double low = 0, high = (double)INFINITY;
    if (value != NULL && (json_array_size(value) != 2 || !config_real_of(json_array_get(value, 0), &low) ||
                          !config_real_of(json_array_get(value, 1), &high)))
        return base_fail(r->report, DART_BAD_DATA, "%s: time_step_limit is not an array of two numbers", r->name);
    if (!(low >= 0 && isfinite(low) && high > 0 && high >= low))
        return base_fail(r->report, DART_BAD_DATA,
                         "%s: time_step_limit is %g to %g, allowed is 0 <= first <= second, second > 0", r->name, low,
                         high);
    *dt_min = real_to_f32(low);
    *dt_max = isfinite(high) ? real_to_f32(high) : 0;
    if (isfinite(high) && !(isfinite(*dt_max) && *dt_max > 0))
        return base_fail(r->report, DART_BAD_DATA, "%s: time_step_limit %g is out of the range of f32", r->name, high);
    return DART_OK;
}

const char *config_text(const json_t *value)
{
    const char *text = json_string_value(value);
    if (text == NULL) return "not a string";
    return strpbrk(text, "\n\t") != NULL ? "a text of several lines or columns" : text;
}

dart_status config_check_features(const config_reader *r, const config_feature *features, size_t count)
{
    dart_status status = DART_OK;
    for (size_t i = 0; i < count; i++) {
        bool value = !features[i].refused;
        TRY(config_read_boolean(r, features[i].key, !features[i].refused, &value));
        if (value == features[i].refused)
            return base_fail(r->report, DART_UNSUPPORTED, "%s: %s is %s, which is not supported", r->name,
                             features[i].key, value ? "true" : "false");
    }
fail:
    return status;
}
