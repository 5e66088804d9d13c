#include "bench_saved.h"

#include <stdio.h>
#include <string.h>

typedef struct timing {
    const char *name, *device;
    double seconds;
} timing;

static bool timing_of(const json_t *value, timing *t)
{
    const json_t *seconds = json_object_get(value, "seconds");
    t->name = json_string_value(json_object_get(value, "case"));
    t->device = json_string_value(json_object_get(value, "device"));
    t->seconds = json_number_value(seconds);
    return t->name != NULL && json_is_number(seconds);
}

/* The same case on the same device anywhere within the value; 0 when there is none. */
static double find(const json_t *value, const timing *wanted)
{
    timing t;
    if (timing_of(value, &t)) {
        const bool same = t.device == NULL || wanted->device == NULL || strcmp(t.device, wanted->device) == 0;
        return same && strcmp(t.name, wanted->name) == 0 ? t.seconds : 0;
    }
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            const double found = find(json_array_get(value, i), wanted);
            if (found > 0) return found;
        }
    } else if (json_is_object(value)) {
        for (void *at = json_object_iter((json_t *)value); at != NULL; at = json_object_iter_next((json_t *)value, at)) {
            const double found = find(json_object_iter_value(at), wanted);
            if (found > 0) return found;
        }
    }
    return 0;
}

typedef struct tally {
    const bench_saved *saved;
    const json_t *before;
    uint32_t compared, slower, missing;
} tally;

static void compare(tally *sum, const json_t *value)
{
    timing t;
    char number[2][CLI_NUMBER];
    if (timing_of(value, &t)) {
        const double before = find(sum->before, &t);
        if (before <= 0) {
            fprintf(stderr, "not there  %s\n", t.name);
            sum->missing++;
            return;
        }
        const bool slower = t.seconds > before * (1 + (double)sum->saved->tolerance);
        fprintf(stderr, "%s %5.2f  %s (%s, was %s)\n", slower ? "slower" : "ok    ", t.seconds / before, t.name,
                cli_time(t.seconds, number[0]), cli_time(before, number[1]));
        sum->compared++;
        sum->slower += slower;
        return;
    }
    if (json_is_array(value))
        for (size_t i = 0; i < json_array_size(value); i++) compare(sum, json_array_get(value, i));
    else if (json_is_object(value))
        for (void *at = json_object_iter((json_t *)value); at != NULL; at = json_object_iter_next((json_t *)value, at))
            compare(sum, json_object_iter_value(at));
}

int bench_saved_load(bench_saved *saved)
{
    json_error_t error;
    if (saved->path == NULL) return CLI_OK;
    saved->before = cli_json_load(saved->path, JSON_REJECT_DUPLICATES, &error);
    if (saved->before != NULL) return CLI_OK;
    return error.line < 0 ? cli_fail("%s", error.text) : cli_fail("%s: %s, line %d", saved->path, error.text, error.line);
}

void bench_saved_close(bench_saved *saved)
{
    json_decref(saved->before);
    saved->before = NULL;
}

int bench_compare(const bench_saved *saved, const json_t *now)
{
    if (saved->path == NULL) return CLI_OK;
    tally sum = {.saved = saved, .before = saved->before};
    compare(&sum, now);
    if (sum.compared == 0) return cli_fail("%s holds none of these cases", saved->path);
    return sum.slower > 0 ? BENCH_SLOWER : CLI_OK;
}
