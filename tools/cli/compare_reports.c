#include "compare_reports.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY = 400 };

typedef struct counts {
    uint32_t equal, other, apart; /* same bits, other bits, other inputs or no numbers */
    uint32_t gone, new, worse, better;
} counts;

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

/* ---- Reading ---- */

static int number_of_device(const json_t *report, const char *name)
{
    size_t i;
    const json_t *device;
    json_array_foreach(json_object_get(report, "devices"), i, device)
        if (strcmp(text_of(device, "name"), name) == 0) return (int)i;
    return -1;
}

/* Object of the results by device number, variant, case and seed; NULL, told to stderr, for a file that is no report. */
static json_t *load(const char *path, json_t **report)
{
    json_error_t error;
    size_t i;
    json_t *result, *by_key = json_object();
    *report = cli_json_load(path, 0, &error);
    if (*report == NULL) {
        if (error.line < 0) (void)cli_fail("%s", error.text);
        else (void)cli_fail("%s: %s (line %d); a run that was killed leaves no whole report", path, error.text, error.line);
        goto fail;
    }
    json_t *results = json_object_get(*report, "results");
    if (!json_is_array(results) || !json_is_array(json_object_get(*report, "devices"))) {
        (void)cli_fail("%s: no report of dartlm conform", path);
        goto fail;
    }
    json_array_foreach(results, i, result) {
        char key[KEY];
        snprintf(key, sizeof key, "%d %s %s seed %lld", number_of_device(*report, text_of(result, "device")),
                 text_of(result, "variant"), text_of(result, "case"), json_integer_value(json_object_get(result, "seed")));
        if (json_object_set(by_key, key, result) != 0) {
            (void)cli_fail("%s: result %zu is damaged", path, i);
            goto fail;
        }
    }
    return by_key;
fail:
    json_decref(*report);
    json_decref(by_key);
    *report = NULL;
    return NULL;
}

/* ---- Comparing ---- */

static bool same_bits(const json_t *a, const json_t *b)
{
    const json_t *left = json_object_get(a, "tensors"), *right = json_object_get(b, "tensors");
    if (json_array_size(left) != json_array_size(right)) return false;
    for (size_t i = 0; i < json_array_size(left); i++)
        if (strcmp(text_of(json_array_get(left, i), "digest"), text_of(json_array_get(right, i), "digest")) != 0) return false;
    return true;
}

static int print_change(const char *key, const json_t *was, const json_t *is, bool json)
{
    const char *before = was != NULL ? text_of(was, "status") : "absent", *after = is != NULL ? text_of(is, "status") : "absent";
    if (json) return cli_print_line(json_pack("{s:s, s:s, s:s}", "result", key, "before", before, "after", after));
    printf("%s -> %s  %s\n", before, after, key + strcspn(key, " ") + 1);
    return CLI_OK;
}

static void compare_result(const json_t *was, const json_t *is, counts *c, bool *changed)
{
    const bool passed = strcmp(text_of(was, "status"), "passed") == 0, passes = strcmp(text_of(is, "status"), "passed") == 0;
    *changed = strcmp(text_of(was, "status"), text_of(is, "status")) != 0;
    c->worse += passed && !passes;
    c->better += !passed && passes;
    if (!passed || !passes || strcmp(text_of(was, "inputs"), text_of(is, "inputs")) != 0) c->apart++;
    else if (same_bits(was, is)) c->equal++;
    else c->other++;
}

static int print_counts(const counts *c, bool json)
{
    if (json)
        return cli_print_line(json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "same_bits", (int)c->equal, "other_bits", (int)c->other,
                                        "not_comparable", (int)c->apart, "gone", (int)c->gone, "new", (int)c->new, "worse", (int)c->worse, "better",
                                        (int)c->better));
    printf("%" PRIu32 " results with the same bits, %" PRIu32 " with others, %" PRIu32 " that cannot be compared; %" PRIu32 " gone, %" PRIu32
           " new; %" PRIu32 " no longer pass, %" PRIu32 " pass now\n",
           c->equal, c->other, c->apart, c->gone, c->new, c->worse, c->better);
    return CLI_OK;
}

int compare_reports(const char *before, const char *after, bool json, bool *worse)
{
    json_t *first = NULL, *second = NULL, *had = load(before, &first), *has = had != NULL ? load(after, &second) : NULL, *result;
    counts c = {0};
    const char *key;
    int status = has != NULL ? CLI_OK : CLI_FAILED;
    if (status == CLI_OK) {
        json_object_foreach(had, key, result) {
            const json_t *now = json_object_get(has, key);
            bool changed = false;
            if (now == NULL) c.gone++;
            else compare_result(result, now, &c, &changed);
            if (changed && status == CLI_OK) status = print_change(key, result, now, json);
        }
        json_object_foreach(has, key, result)
            if (json_object_get(had, key) == NULL) {
                c.new++;
                if (strcmp(text_of(result, "status"), "failed") == 0 && status == CLI_OK) status = print_change(key, NULL, result, json);
            }
        if (status == CLI_OK) status = print_counts(&c, json);
    }
    *worse = c.worse > 0;
    json_decref(had);
    json_decref(has);
    json_decref(first);
    json_decref(second);
    return status;
}
