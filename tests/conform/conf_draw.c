/* The draw of cases (conform_options.draw), on the CPU backend: what it runs reaches the rows that all cases reach, and is what a seed says. A
 * run that is stopped: what it ran is in the report. Runs of a case one after another, which share its inputs: none finds a trace of another. And
 * cases that nobody listed (conform_options.random): their names repeat them. */
#include "conform_suite.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

enum { WAYS = 2, RUNS = 4, OF = 47 };

/* Runs of a case as the device chooses and in plain rows, in turns. */
typedef struct turns {
    stream_choice choices[WAYS];
    conform_outcome outcomes[RUNS];
    uint32_t first, begun, end; /* first: the way of the first run */
} turns;

static bool take_turn(void *user, conform_run *out)
{
    turns *t = user;
    if (t->begun == t->end) return false;
    *out = (conform_run){.choice = &t->choices[(t->first + t->begun) % WAYS], .outcome = &t->outcomes[t->begun]};
    t->begun++;
    return true;
}

static void assert_alike(const conform_outcome *a, const conform_outcome *b, const char *name)
{
    bool alike = a->status == b->status && a->passed == b->passed && a->inputs == b->inputs && a->tensors == b->tensors &&
                 a->results_count == b->results_count && strcmp(a->variants, b->variants) == 0;
    for (uint32_t i = 0; i < a->results_count && alike; i++) {
        const conform_result *x = &a->results[i], *y = &b->results[i];
        alike = strcmp(x->tensor, y->tensor) == 0 && x->digest == y->digest && memcmp(&x->l2, &y->l2, sizeof x->l2) == 0 &&
                memcmp(&x->linf, &y->linf, sizeof x->linf) == 0 && memcmp(&x->row, &y->row, sizeof x->row) == 0 &&
                memcmp(&x->tolerance, &y->tolerance, sizeof x->tolerance) == 0 && memcmp(&x->share, &y->share, sizeof x->share) == 0;
    }
    if (!alike) fail_msg("%s: not what it gave alone", name);
}

/* Each case of those whose turn it is: four runs that share the inputs, against the same run alone. */
static void a_run_is_as_it_is_alone(void **state)
{
    (void)state;
    const uint64_t seed = (uint64_t)time(NULL);
    const conform_options options = {.seed = seed};
    static suite all;
    all = (suite){.options = &options};
    conform_list_cases(&all);
    static turns together, alone[WAYS];
    dart_device *device = NULL;
    uint32_t cases = 0;
    const dart_device_options opened = {.spec = "cpu", .poison = true};
    assert_int_equal(dart_device_open(context, &opened, &device), DART_OK);
    dart_device_info info;
    dart_device_describe(device, &info);
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t number = (uint32_t)(seed % OF); number < all.cases_count; number += OF) {
        const conform_case c = all.cases[number];
        char name[160];
        if ((c.flags & CASE_GPU) != 0) continue;
        conform_name(&c, name, sizeof name);
        turns of = {.choices = {{.capabilities = info.capabilities}, {.capabilities = info.capabilities, .variant = "plain"}}, .end = RUNS};
        together = of;
        conform_run_all((conform_data){.device = device, .c = &c, .seed = seed}, take_turn, &together);
        for (uint32_t way = 0; way < WAYS; way++) {
            alone[way] = of;
            alone[way].first = way;
            alone[way].end = 1;
            conform_run_all((conform_data){.device = device, .c = &c, .seed = seed}, take_turn, &alone[way]);
        }
        for (uint32_t i = 0; i < RUNS; i++) {
            assert_alike(&together.outcomes[i], &alone[i % WAYS].outcomes[0], name);
            conform_release(&together.outcomes[i]);
        }
        for (uint32_t way = 0; way < WAYS; way++) conform_release(&alone[way].outcomes[0]);
        cases++;
    }
    assert_true(cases > 10);
    free(all.cases);
    dart_device_destroy(&device);
}

static const char *const ops[] = {"convert", "norm", "linear_quantised", "cross_entropy", "ssd", "ssd_backward", "sma", "attention",
                                  "mixer", "window"};

/* A case that nobody listed is repeated by its name, and drawn again by its seed and number. */
static void a_drawn_case_has_a_name(void **state)
{
    (void)state;
    uint32_t views = 0, elsewhere = 0;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        for (uint64_t number = 0; number < 200; number++) {
            conform_case c, again, read;
            char name[160], name_again[160], name_read[160];
            conform_draw_case(ops[i], 3, number, &c);
            conform_draw_case(ops[i], 3, number, &again);
            conform_name(&c, name, sizeof name);
            conform_name(&again, name_again, sizeof name_again);
            assert_string_equal(name, name_again);
            assert_true(conform_parse(name, &read));
            conform_name(&read, name_read, sizeof name_read);
            assert_string_equal(name_read, name);
            assert_true(read.flags == c.flags && read.dtype == c.dtype && read.L == c.L && read.moved == c.moved && read.apart == c.apart);
            views += (c.flags & CASE_VIEW) != 0;
            conform_draw_case(ops[i], 4, number, &again);
            conform_name(&again, name_again, sizeof name_again);
            elsewhere += strcmp(name, name_again) != 0;
        }
    }
    assert_true(views > 100);
    assert_true(elsewhere > 1900);
}

static void a_name_that_is_none_is_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"", "ssd", "sad B1 L1 H1 G1 N1 P1 S1 f32", "ssd B1 L1 H1 G1 N1 P1 S1 f8", "ssd B1 L1 H1 G1 N1 P1 S1 f32 ",
                                        "ssd B1 L1 H1 G1 N1 P1 S1 f32 sequence", "ssd B1 L1 H1 G1 N1 P1 S1 f32 open seq",
                                        "ssd B1 L1 H1 G1 N1 P1 S1 f32 moved", "ssd B01 L1 H1 G1 N1 P1 S1 f32"};
    conform_case c;
    assert_true(conform_parse("ssd B1 L1 H1 G1 N1 P1 S1 f32 seq open moved2", &c));
    assert_true(c.flags == (CASE_SEQ | CASE_OPEN) && c.moved == 2 && c.dtype == DART_F32 && c.apart == 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (conform_parse(names[i], &c)) fail_msg("'%s' is taken for a case", names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_runs),
        cmocka_unit_test(seeds_in_a_row_have_every_row),
        cmocka_unit_test(a_seed_says_what_runs),
        cmocka_unit_test(a_stopped_run_reports_what_ran),
        cmocka_unit_test(a_run_is_as_it_is_alone),
        cmocka_unit_test(a_drawn_case_has_a_name),
        cmocka_unit_test(a_name_that_is_none_is_refused),
    };
    if (dart_context_create(NULL, &context) != DART_OK) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dart_context_destroy(&context);
    return failed;
}
