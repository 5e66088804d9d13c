/* Every op in every variant against the oracle, and the devices against one another:
 * conf_ops [--filter TEXT]... [--without TEXT] [--skip VARIANT] [--all VARIANT] [--seed N] [--turns N] [--minimum-limits] [--cut N]
 *     [--margin BYTES] [--backwards N] [--multiprocessors N] [--random N] DEVICE_SPEC...
 * One test a device; cases that did not run are listed. With --random N the cases are not those of the list, but N that the seed draws. Without
 * --seed every run has inputs of its own; what it prints says which. A variant that is skipped runs only where the device chooses its rows. With
 * --all it is a failure when a case launches a kernel that has a row of that name and does not run in that row as well. DARTLM_DRAW=SEED in the
 * environment: on a Vulkan device only some cases run, in some variants, so many that each row runs whose turn it is; one row in N has it with
 * --turns N, and N seeds, one after the other, have all rows that all cases run. A line "DRAWN: 12 of 345 ..." says how many. --all has no say
 * then. */
#include "conform.h"
#include "runtime/kernel.h"

#include <ctype.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { MAX_DEVICES = 8, MAX_FILTERS = 32 };

typedef struct known_bug {
    const char *device, *first, *fixed, *name, *reason;
} known_bug;
static const known_bug known_bugs[] = {
#define KNOWN_BUG(device, first, fixed, case, reason) {device, first, fixed, case, reason},
#include "known_bugs.def"
    {NULL, NULL, NULL, NULL, NULL},
};

static dart_context *context;
static dart_device_info devices[MAX_DEVICES];
static size_t devices_count;
static json_t *results; /* of all filters */
static bool minimum_limits;
static uint32_t cut; /* of --cut */
/* Of --margin. Drivers that check ranges would return 0 for what is read outside a tensor. */
static uint32_t margin = 4096;
static uint32_t backwards, multiprocessors;
static const char *every, *without; /* of --all and --without */
static bool draw;
static uint64_t draw_seed;
static uint32_t turns = 1, random_cases; /* of --turns and --random */
static json_int_t drawn[3]; /* runs, of so many, rows that they launch; of all filters */

/* The first two or three numbers with a dot between them; 0.0.0 without any. */
static void read_version(const char *text, long version[3])
{
    for (; text != NULL && *text != '\0'; text++) {
        const char *from = text;
        int numbers = 0;
        memset(version, 0, 3 * sizeof *version);
        while (numbers < 3 && isdigit((unsigned char)*from)) {
            char *end = NULL;
            version[numbers++] = strtol(from, &end, 10);
            from = *end == '.' ? end + 1 : end;
        }
        if (numbers >= 2) return;
    }
    memset(version, 0, 3 * sizeof *version);
}

static int compare_versions(const char *a, const char *b)
{
    long x[3], y[3];
    read_version(a, x);
    read_version(b, y);
    for (int i = 0; i < 3; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

static bool concerns(const known_bug *bug, const dart_device_info *device)
{
    return bug->device != NULL && strstr(device->name, bug->device) != NULL &&
           (bug->first == NULL || compare_versions(device->driver, bug->first) >= 0) &&
           (bug->fixed == NULL || compare_versions(device->driver, bug->fixed) < 0);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* The tensors that spent more than their tolerance. */
static void print_failure(const json_t *result)
{
    const json_t *tensors = json_object_get(result, "tensors");
    print_message("FAILED  %s  %s  (%s)  %s\n", text_of(result, "variant"), text_of(result, "case"), text_of(result, "kernels"),
                  text_of(result, "reason"));
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *t = json_array_get(tensors, i);
        print_message("        %-10s L2 %.2e  Linf %.2e  row %lld %.2e  tolerance %.2e%s\n", text_of(t, "name"),
                      json_number_value(json_object_get(t, "l2")), json_number_value(json_object_get(t, "linf")),
                      (long long)json_integer_value(json_object_get(t, "worst_row")),
                      json_number_value(json_object_get(t, "row")), json_number_value(json_object_get(t, "tolerance")),
                      json_is_true(json_object_get(t, "broken")) ? "  broken" : "");
        print_message("        %-10s element %lld is %s, expected %s\n", "", (long long)json_integer_value(json_object_get(t, "element")),
                      text_of(t, "got"), text_of(t, "want"));
    }
    print_message("        on %s; repeat with: %s\n", text_of(result, "device"), text_of(result, "repeat"));
}

static bool is_of(const json_t *result, const dart_device_info *device)
{
    return strcmp(text_of(result, "device"), device->name) == 0 && strcmp(text_of(result, "backend"), dart_backend_name(device->backend)) == 0;
}

/* Does the list of launched rows contain this one? */
static bool launched(const char *list, const char *row)
{
    for (const char *at = strstr(list, row); at != NULL; at = strstr(at + 1, row))
        if (at == list || at[-1] == ' ') return true;
    return false;
}

/* Kernels that the result's case launched, and never in the row called `every`, though they have one. */
static unsigned count_missing(const json_t *result, const dart_device_info *device)
{
    unsigned missing = 0;
    for (uint32_t k = 0; k < kernel_rows_count; k++) {
        const kernel_row *row = &kernel_rows[k];
        char any[80], named[120];
        bool found = false;
        if (row->backend != device->backend || strcmp(row->variant, every) != 0) continue;
        snprintf(any, sizeof any, "%s[", kernel_table[row->id].name);
        snprintf(named, sizeof named, "%s%s]", any, every);
        if (!launched(text_of(result, "kernels"), any)) continue;
        for (size_t i = 0; i < json_array_size(results) && !found; i++) {
            const json_t *other = json_array_get(results, i);
            found = is_of(other, device) && strcmp(text_of(other, "case"), text_of(result, "case")) == 0 &&
                    launched(text_of(other, "kernels"), named);
        }
        if (found) continue;
        print_message("FAILED  %s did not run in %s\n", text_of(result, "case"), named);
        missing++;
    }
    return missing;
}

static void one_device(void **state)
{
    const dart_device_info *device = *state;
    unsigned passed = 0, failed = 0, known = 0, not_run = 0, missing = 0, hits[COUNT(known_bugs)] = {0}, seen[COUNT(known_bugs)] = {0};
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *result = json_array_get(results, i);
        if (!is_of(result, device)) continue;
        if (every != NULL && !draw) missing += count_missing(result, device);
        const char *status = text_of(result, "status");
        const bool bad = strcmp(status, "failed") == 0;
        char name[256];
        bool expected = false;
        snprintf(name, sizeof name, "%s %s", text_of(result, "variant"), text_of(result, "case"));
        for (size_t k = 0; k < COUNT(known_bugs); k++) {
            if (!concerns(&known_bugs[k], device) || strstr(name, known_bugs[k].name) == NULL) continue;
            seen[k]++;
            hits[k] += bad;
            expected = true;
        }
        if (strcmp(status, "not run") == 0) {
            not_run++;
            print_message("NOT RUN: %s on %s: %s\n", name, device->name, text_of(result, "reason"));
        } else if (!bad) {
            passed++;
        } else if (expected) {
            known++;
        } else {
            failed++;
            print_failure(result);
        }
    }
    print_message("  %s, %s: %u passed, %u failed, %u known to fail, %u not run\n", device->name, device->driver, passed, failed, known, not_run);
    for (size_t k = 0; k < COUNT(known_bugs); k++)
        if (seen[k] > 0 && hits[k] == 0) fail_msg("known bug '%s' on %s does not show any more", known_bugs[k].name, device->name);
    assert_int_equal(failed, 0);
    assert_int_equal(missing, 0);
    assert_true(every == NULL || not_run == 0);
    assert_true(passed > 0);
}

static bool run(const char *const *specs, const char *filter, const char *skip, uint64_t seed)
{
    FILE *file = tmpfile();
    json_error_t error;
    if (file == NULL) return false;
    const conform_options options = {.devices = specs, .devices_count = (uint32_t)devices_count, .filter = filter, .without = without,
                                     .skip = skip, .json = true, .seed = seed, .minimum_limits = minimum_limits, .cut = cut, .margin = margin,
                                     .backwards = backwards, .multiprocessors = multiprocessors,
                                     .draw = draw, .draw_seed = draw_seed, .draw_turns = turns, .random = random_cases};
    conform_all(context, &options, file);
    rewind(file);
    json_t *report = json_loadf(file, 0, &error);
    fclose(file);
    if (report == NULL) fprintf(stderr, "the report is no JSON: line %d: %s\n", error.line, error.text);
    const json_t *part = json_object_get(report, "results");
    const bool whole = part != NULL && (filter == NULL || json_array_size(part) > 0) &&
                       json_array_extend(results, json_object_get(report, "results")) == 0;
    drawn[0] += json_integer_value(json_object_get(report, "runs"));
    drawn[1] += json_integer_value(json_object_get(report, "runs_of"));
    drawn[2] += json_integer_value(json_object_get(report, "rows"));
    if (part != NULL && !whole) fprintf(stderr, "no case is called '%s'\n", filter);
    json_decref(report);
    return whole;
}

int main(int argc, char **argv)
{
    const char *specs[MAX_DEVICES], *filters[MAX_FILTERS] = {NULL}, *skip = NULL;
    size_t filters_count = 0;
    uint64_t seed = (uint64_t)time(NULL) % 1000000;
    struct CMUnitTest tests[MAX_DEVICES];
    if (dart_context_create(NULL, &context) != DART_OK) return 1;
    for (int i = 1; i < argc; i++) {
        char text[512];
        dart_device *device = NULL;
        if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc && filters_count < MAX_FILTERS) {
            filters[filters_count++] = argv[++i];
        } else if (strcmp(argv[i], "--without") == 0 && i + 1 < argc) {
            without = argv[++i];
        } else if (strcmp(argv[i], "--skip") == 0 && i + 1 < argc) {
            skip = argv[++i];
        } else if (strcmp(argv[i], "--all") == 0 && i + 1 < argc) {
            every = argv[++i];
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--turns") == 0 && i + 1 < argc) {
            turns = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--random") == 0 && i + 1 < argc) {
            random_cases = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--cut") == 0 && i + 1 < argc) {
            cut = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--margin") == 0 && i + 1 < argc) {
            margin = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--backwards") == 0 && i + 1 < argc) {
            backwards = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--multiprocessors") == 0 && i + 1 < argc) {
            multiprocessors = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--minimum-limits") == 0) {
            minimum_limits = true;
        } else if (devices_count == MAX_DEVICES) {
            fprintf(stderr, "%d devices at most\n", MAX_DEVICES);
            return 2;
        } else if (dart_device_open(context, &(dart_device_options){.spec = argv[i]}, &device) != DART_OK) {
            dart_context_error(context, text, sizeof text);
            printf("NOT RUN: %s\n", text);
        } else {
            dart_device_info *info = &devices[devices_count];
            dart_device_describe(device, info);
            tests[devices_count] = (struct CMUnitTest){.name = argv[i], .test_func = one_device, .initial_state = info};
            specs[devices_count++] = argv[i];
        }
        dart_device_destroy(&device);
    }
    const char *draw_text = getenv("DARTLM_DRAW");
    draw = draw_text != NULL && devices_count > 0 && devices[0].backend == DART_BACKEND_VULKAN;
    if (draw) draw_seed = strtoull(draw_text, NULL, 10);
    int status = 77;
    printf("seed %llu\n", (unsigned long long)seed);
    if (devices_count > 0) {
        bool ran = true;
        results = json_array();
        for (size_t i = 0; i == 0 || i < filters_count; i++) ran = run(specs, filters[i], skip, seed) && ran;
        status = ran ? _cmocka_run_group_tests("conf_ops", tests, devices_count, NULL, NULL) : 1;
        json_decref(results);
        if (draw)
            printf("DRAWN: %lld of %lld runs of a case in a variant, %lld rows\n", (long long)drawn[0], (long long)drawn[1], (long long)drawn[2]);
    }
    dart_context_destroy(&context);
    return status;
}
