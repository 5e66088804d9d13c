/* The draw of cases (conform_options.draw), on the CPU backend: what it runs reaches the rows that all cases reach, and is what a seed says. And a
 * run that is stopped: what it ran is in the report. */
#include "conform.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static dart_context *context;

/* The report of a run; turns 0: of all cases. */
static json_t *run(const char *filter, uint64_t seed, uint32_t turns)
{
    const char *const cpu = "cpu";
    FILE *file = tmpfile();
    assert_non_null(file);
    const conform_options options = {.devices = &cpu, .devices_count = 1, .filter = filter, .json = true, .seed = 1, .draw = turns > 0,
                                     .draw_seed = seed, .draw_turns = turns};
    assert_int_equal(conform_all(context, &options, file), 0);
    rewind(file);
    json_error_t error;
    json_t *report = json_loadf(file, 0, &error);
    fclose(file);
    assert_non_null(report);
    return report;
}

static const char *text_of(const json_t *result, const char *key) { return json_string_value(json_object_get(result, key)); }

/* Adds "kernel[variant]" of all results to a set. */
static void add_rows(json_t *rows, const json_t *report)
{
    const json_t *results = json_object_get(report, "results");
    for (size_t i = 0; i < json_array_size(results); i++) {
        char text[512];
        snprintf(text, sizeof text, "%s", text_of(json_array_get(results, i), "kernels"));
        for (char *at = strtok(text, " "); at != NULL; at = strtok(NULL, " ")) json_object_set_new(rows, at, json_true());
    }
}

static json_t *rows_of(const json_t *report)
{
    json_t *rows = json_object();
    add_rows(rows, report);
    return rows;
}

/* The runs: each a variant and a case. */
static json_t *runs_of(const json_t *report)
{
    json_t *runs = json_object();
    const json_t *results = json_object_get(report, "results");
    for (size_t i = 0; i < json_array_size(results); i++) {
        char text[256];
        snprintf(text, sizeof text, "%s %s", text_of(json_array_get(results, i), "variant"), text_of(json_array_get(results, i), "case"));
        json_object_set_new(runs, text, json_true());
    }
    return runs;
}

/* "norm B1 L3" has norm, layer_norm and gated_norm, whose rows have names that end alike. */
static const char *const filters[] = {"sma B1 L5", "conv B", "norm B1 L3"};

/* Are the sets the same? Prints what only one of them has. */
static bool same(const json_t *got, const json_t *want)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)want, name, value) if (json_object_get(got, name) == NULL) print_message("  without %s\n", name);
    json_object_foreach((json_t *)(uintptr_t)got, name, value) if (json_object_get(want, name) == NULL) print_message("  with %s\n", name);
    return json_equal(got, want);
}

static void every_row_runs(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof filters / sizeof filters[0]; f++) {
        json_t *all = run(filters[f], 0, 0), *want = rows_of(all);
        assert_true(json_object_size(want) > 1);
        for (uint64_t seed = 7; seed < 10; seed++) {
            json_t *drawn = run(filters[f], seed, 1), *got = rows_of(drawn);
            assert_true(same(got, want));
            assert_int_equal(json_integer_value(json_object_get(drawn, "runs_of")), json_array_size(json_object_get(all, "results")));
            assert_int_equal(json_integer_value(json_object_get(drawn, "runs")), json_array_size(json_object_get(drawn, "results")));
            assert_int_equal(json_integer_value(json_object_get(drawn, "rows")), json_object_size(want));
            assert_true(json_array_size(json_object_get(drawn, "results")) < json_array_size(json_object_get(all, "results")));
            json_decref(got);
            json_decref(drawn);
        }
        json_decref(want);
        json_decref(all);
    }
}

static void seeds_in_a_row_have_every_row(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof filters / sizeof filters[0]; f++) {
        json_t *all = run(filters[f], 0, 0), *want = rows_of(all), *got = json_object();
        for (uint64_t seed = 23; seed < 26; seed++) {
            json_t *drawn = run(filters[f], seed, 3);
            add_rows(got, drawn);
            json_decref(drawn);
        }
        assert_true(same(got, want));
        json_decref(got);
        json_decref(want);
        json_decref(all);
    }
}

static void a_seed_says_what_runs(void **state)
{
    (void)state;
    json_t *first = run("sma B1 L5", 5, 1), *again = run("sma B1 L5", 5, 1), *other = run("sma B1 L5", 6, 1);
    json_t *of_first = runs_of(first), *of_again = runs_of(again), *of_other = runs_of(other);
    assert_true(json_equal(of_first, of_again));
    assert_false(json_equal(of_first, of_other));
    json_t *all[] = {of_first, of_again, of_other, first, again, other};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) json_decref(all[i]);
}

static bool ask(void *left) { return (*(uint32_t *)left)-- > 0; }

/* Threads take the longest runs first, so that what ended lies behind what did not begin. */
static void a_stopped_run_reports_what_ran(void **state)
{
    (void)state;
    enum { RUNS = 9 };
    const char *const cpu = "cpu";
    for (uint32_t jobs = 2; jobs <= 5; jobs += 3) {
        uint32_t left = RUNS;
        FILE *file = tmpfile();
        assert_non_null(file);
        const conform_options options = {.devices = &cpu, .devices_count = 1, .filter = "norm B", .json = true, .seed = jobs, .jobs = jobs,
                                         .go_on = ask, .go_on_user = &left};
        assert_int_equal(conform_all(context, &options, file), 1);
        rewind(file);
        json_error_t error;
        json_t *report = json_loadf(file, 0, &error);
        fclose(file);
        assert_non_null(report);
        assert_true(json_is_true(json_object_get(report, "stopped")));
        assert_int_equal(json_array_size(json_object_get(report, "results")), RUNS);
        json_decref(report);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_runs),
        cmocka_unit_test(seeds_in_a_row_have_every_row),
        cmocka_unit_test(a_seed_says_what_runs),
        cmocka_unit_test(a_stopped_run_reports_what_ran),
    };
    if (dart_context_create(NULL, &context) != DART_OK) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dart_context_destroy(&context);
    return failed;
}
