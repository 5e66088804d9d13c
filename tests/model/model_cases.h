/* What the tests of models share: a device, models with random weights, and tokens fed in pieces. */
#ifndef DARTLM_TESTS_MODEL_CASES_H
#define DARTLM_TESTS_MODEL_CASES_H

#include "infer/state.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* fp32 against fp64 or against fp32 in another order, relative: a few hundred roundings of 6e-8 in a row. */
#define TOLERANCE 1e-5

extern const char *spec, *data_folder;
extern dart_context *context;
extern dart_device *device;
extern bool quiet, minimum_limits, many_registers, margins;

static inline void print_log(void *user, dart_log_level level, const char *text)
{
    (void)user, (void)level;
    if (!quiet) print_message("log: %s\n", text);
}

static inline void must(dart_status status, const char *what)
{
    if (status != DART_OK) fail_msg("%s: %s", what, dart_status_name(status));
}

static inline int open_device(void **state)
{
    (void)state;
    const dart_context_options options = {.log = print_log, .log_level = DART_LOG_WARNING, .with_null = true};
    dart_device_info info;
    if (dart_context_create(&options, &context) != DART_OK) return -1;
    if (dart_device_open(context, &(dart_device_options){.spec = spec, .poison = true, .minimum_limits = minimum_limits,
                                                         .margin = margins ? 16384 : 0,
                                                         .with_capabilities = DART_CAP_RESIDENT | (many_registers ? DART_CAP_REGISTERS160 : 0)},
                         &device) != DART_OK)
        return -1;
    dart_device_describe(device, &info);
    print_message("device %s (%s)\n", info.name, info.driver);
    return 0;
}

static inline int close_device(void **state)
{
    (void)state;
    const bool leaks = dart_device_bytes(device) != 0 || atomic_load(&device->strays) != 0;
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    return leaks ? -1 : 0;
}

/* Odd sizes, two groups. */
static const dart_model_config small = {.sma = true, .V = 97, .W = 32, .layers = 3, .H = 4, .P = 16, .G = 2, .N = 12,
                                        .K = 4, .S = 8,
                                        .eps = 1e-5f, .sma_eps = 1e-5f};
enum { L = 41 };

static inline dart_model *model_of(const dart_model_config *config, const dart_model_options *options)
{
    dart_model *model = NULL;
    must(dart_model_random(device, config, 7, options, &model), "dart_model_random");
    return model;
}

static inline dart_state *state_of(dart_model *model, const dart_state_options *options)
{
    dart_state *state = NULL;
    const dart_status status = dart_state_create(model, options, &state);
    char text[512];
    dart_model_error(model, text, sizeof text);
    if (status != DART_OK) fail_msg("dart_state_create: %s: %s", dart_status_name(status), text);
    return state;
}

/* Ids, the same for every sequence number whatever the batch. */
static inline int32_t *ids_of(uint32_t B, uint32_t V)
{
    int32_t *ids = calloc((size_t)B * L, sizeof *ids);
    assert_non_null(ids);
    uint32_t x = 12345;
    for (size_t i = 0; i < (size_t)B * L; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 8) % V);
    }
    return ids;
}

static inline float *logits_of(uint32_t B, uint32_t V)
{
    float *logits = calloc((size_t)B * L * V, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

/* Tokens from .. to - 1 of every sequence; logits B L V. */
static inline void feed(dart_state *state, const int32_t *ids, uint32_t from, uint32_t to, float *logits)
{
    const uint32_t B = state->B, V = state->model->config.V, n = to - from;
    float *part = logits_of(B, V);
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids + from, .ids_row = L, .L = n, .want = DART_LOGITS_ALL,
                                                  .logits = part}), "dart_prefill");
    for (size_t b = 0; b < B; b++) memcpy(&logits[(b * L + from) * V], &part[b * n * V], (size_t)n * V * sizeof *part);
    free(part);
}

static inline void step(dart_state *state, const int32_t *ids, uint32_t t, float *logits)
{
    const uint32_t B = state->B, V = state->model->config.V;
    float *part = logits_of(B, V);
    int32_t now[16];
    for (uint32_t b = 0; b < B; b++) now[b] = ids[b * L + t];
    must(dart_decode(state, &(dart_decode_args){.ids = now, .logits = part}), "dart_decode");
    for (size_t b = 0; b < B; b++) memcpy(&logits[(b * L + t) * V], &part[b * V], V * sizeof *part);
    free(part);
}

/* From the start: a piece of `cut` tokens, ten steps, and the rest in a piece. */
static inline void feed_around_steps(dart_state *state, const int32_t *ids, uint32_t cut, float *logits)
{
    must(dart_state_reset(state, -1), "dart_state_reset");
    feed(state, ids, 0, cut, logits);
    for (uint32_t t = cut; t < cut + 10 && t < L; t++) step(state, ids, t, logits);
    if (cut + 10 < L) feed(state, ids, cut + 10, L, logits);
}

static inline float *prefilled(dart_model *model, const dart_state_options *options, const int32_t *ids)
{
    dart_state *state = state_of(model, options);
    float *logits = logits_of(state->B, model->config.V);
    feed(state, ids, 0, L, logits);
    dart_state_destroy(&state);
    return logits;
}

/* A go_on that ends a call after `most` submissions. */
typedef struct patience {
    uint32_t asked, most;
} patience;

static inline bool go_on(void *user)
{
    patience *p = user;
    return ++p->asked <= p->most;
}

/* A go_on that hears how far a call is, and says no at its call `most`. calls is 0 before each call of the library. */
typedef struct asker {
    uint32_t calls, most;
    uint64_t done, of;
} asker;

static inline bool ask(void *user, uint64_t done, uint64_t of)
{
    asker *a = user;
    assert_true(done <= of && (a->calls == 0 || (done >= a->done && of == a->of)));
    a->done = done;
    a->of = of;
    return a->calls++ != a->most;
}

/* The larger of relative L2 and L-infinity; infinite for NaN. */
static inline double distance(const float *got, const float *expected, size_t count)
{
    double difference = 0, norm = 0, worst = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        const double d = fabs((double)got[i] - (double)expected[i]);
        difference += d * d;
        norm += (double)expected[i] * (double)expected[i];
        if (!(d <= worst)) worst = d;
        if (fabs((double)expected[i]) > largest) largest = fabs((double)expected[i]);
    }
    const double l2 = sqrt(difference / norm), linf = worst / largest;
    return !(l2 < 1e30) || !(linf < 1e30) ? INFINITY : l2 > linf ? l2 : linf;
}

static inline void assert_close(const char *what, double d, double tolerance)
{
    if (!(d <= tolerance)) fail_msg("%s: relative distance %.3e above %.1e", what, d, tolerance);
}

static inline int run_on_device(int argc, char **argv, const struct CMUnitTest *tests, size_t count)
{
    if (argc > 3 && strncmp(argv[3], "--", 2) == 0) {
        minimum_limits = strcmp(argv[3], "--minimum-limits") == 0;
        many_registers = strcmp(argv[3], "--many-registers") == 0; /* a processor takes the rows of GPUs, those with matrices among them */
        margins = strcmp(argv[3], "--margins") == 0; /* what is read outside a tensor is NaN, and what is written there fails the program */
        if (!minimum_limits && !many_registers && !margins) argc = 0;
        else argv[3] = argc > 4 ? argv[4] : NULL;
        argc--;
    }
    if (argc < 3 || argc > 5 || (argc == 5 && (argv[3][0] != '-' || argv[4][0] != '-'))) {
        fprintf(stderr, "usage: %s DEVICE_SPEC DATA_DIR [--minimum-limits | --many-registers | --margins] [TEST | -TEST [-TEST]]\n", argv[0]);
        return 2;
    }
    struct CMUnitTest kept[64];
    if (argc == 5) { /* cmocka skips one name, or those of a pattern */
        size_t left = 0;
        for (size_t i = 0; i < count && left < sizeof kept / sizeof *kept; i++)
            if (strcmp(tests[i].name, argv[4] + 1) != 0) kept[left++] = tests[i];
        if (left + 1 != count) {
            fprintf(stderr, "%s: there is no test %s\n", argv[0], argv[4] + 1);
            return 2;
        }
        tests = kept;
        count = left;
    }
    if (argc > 3 && argv[3][0] == '-') cmocka_set_skip_filter(argv[3] + 1);
    else if (argc == 4) cmocka_set_test_filter(argv[3]);
    spec = argv[1];
    data_folder = argv[2];
    return _cmocka_run_group_tests(argv[0], tests, count, open_device, close_device);
}

#endif
