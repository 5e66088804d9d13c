/* Wrong calls, small devices, memory that runs out: model_failures DEVICE_SPEC DATA_DIR. */
#define _POSIX_C_SOURCE 200809L
#include "model_cases.h"

#include <unistd.h>

static void refuses(dart_state *state, const dart_prefill_args *args, const char *says)
{
    char text[512];
    assert_int_equal(dart_prefill(state, args), DART_INVALID_ARGUMENT);
    dart_state_error(state, text, sizeof text);
    if (strstr(text, says) == NULL) fail_msg("'%s' does not say '%s'", text, says);
}

static void refuses_wrong_calls(void **unused)
{
    (void)unused;
    enum { B = 2 };
    const uint32_t V = small.V;
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(B, V);
    float *whole = prefilled(model, &(dart_state_options){.B = B}, ids), *got = logits_of(B, V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B});
    static const uint32_t too_many[B] = {L, L + 1};
    static const uint64_t bad_row[1] = {(uint64_t)B * L};
    feed(state, ids, 0, 10, got);
    quiet = true;
    int32_t wrong[B * L];
    for (int32_t bad = -1; bad <= (int32_t)V; bad += (int32_t)V + 1) {
        memcpy(wrong, ids, sizeof wrong);
        wrong[L + 3] = bad;
        refuses(state, &(dart_prefill_args){.ids = wrong, .L = L}, "sequence 1, token 3");
        assert_int_equal(dart_decode(state, &(dart_decode_args){.ids = &wrong[L + 3]}), DART_INVALID_ARGUMENT);
    }
    refuses(state, &(dart_prefill_args){.ids = ids, .L = L, .counts = too_many}, "exceed L");
    refuses(state, &(dart_prefill_args){.L = L}, "ids");
    refuses(state, &(dart_prefill_args){.ids = ids, .L = L, .ids_row = 3}, "apart");
    refuses(state, &(dart_prefill_args){.ids = ids, .L = L, .want = DART_LOGITS_ALL}, "logits");
    refuses(state, &(dart_prefill_args){.ids = ids, .L = L, .want = DART_LOGITS_ROWS, .rows = bad_row, .rows_count = 1,
                                        .logits = got}, "row 0");
    refuses(state, &(dart_prefill_args){.ids = ids, .L = L, .sampling = &(dart_sampling){.temperature = -1}},
            "temperature");
    refuses(state, &(dart_prefill_args){.ids = ids, .L = L, .sampling = &(dart_sampling){.temperature = NAN}},
            "temperature");
    quiet = false;
    feed(state, ids, 10, L, got);
    assert_close("after refusals", distance(got, whole, (size_t)B * L * V), TOLERANCE);
    /* Any tokens, in any order. */
    uint64_t rows[4] = {L + 40, 3, L, 3};
    float picked[4 * 97];
    must(dart_state_reset(state, -1), "dart_state_reset");
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = L, .want = DART_LOGITS_ROWS, .rows = rows,
                                                  .rows_count = 4, .logits = picked}), "rows");
    for (size_t i = 0; i < 4; i++) assert_close("row", distance(&picked[i * V], &whole[rows[i] * V], V), TOLERANCE);
    dart_state_destroy(&state);
    free(got);
    free(whole);
    free(ids);
    dart_model_destroy(&model);
}

static void works_within_small_bindings(void **unused)
{
    (void)unused;
    enum { B = 2, MOST = 16384 };
    dart_device *narrow = NULL;
    dart_model *model = NULL, *wide = model_of(&small, NULL);
    must(dart_device_open(context, &(dart_device_options){.spec = spec, .max_binding_bytes = MOST}, &narrow),
         "dart_device_open");
    must(dart_model_random(narrow, &small, 7, NULL, &model), "dart_model_random");
    int32_t *ids = ids_of(B, small.V);
    float *expected = prefilled(wide, &(dart_state_options){.B = B}, ids);
    float *got = prefilled(model, &(dart_state_options){.B = B}, ids);
    assert_close("small bindings", distance(got, expected, (size_t)B * L * small.V), TOLERANCE);
    dart_state *state = state_of(model, &(dart_state_options){.B = B});
    for (uint32_t t = 0; t < L; t++) step(state, ids, t, got);
    assert_close("small bindings, decoding", distance(got, expected, (size_t)B * L * small.V), TOLERANCE);
    dart_state_destroy(&state);
    quiet = true;
    assert_int_equal(dart_state_create(model, &(dart_state_options){.B = 100}, &state), DART_UNSUPPORTED);
    quiet = false;
    assert_null(state);
    free(got);
    free(expected);
    free(ids);
    dart_model_destroy(&model);
    dart_model_destroy(&wide);
    dart_device_destroy(&narrow);
}

/* Prefill, decoding, another prefill: 30 tokens of two sequences into logits 2 V. */
static dart_status short_run(dart_state *state, const int32_t *ids, float *logits)
{
    const int32_t token[2] = {ids[20], ids[L + 20]};
    dart_status status = dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 20,
                                                                  .sampling = &(dart_sampling){0}});
    if (status == DART_OK) status = dart_decode(state, &(dart_decode_args){.ids = token});
    if (status == DART_OK)
        status = dart_prefill(state, &(dart_prefill_args){.ids = ids + 21, .ids_row = L, .L = 9,
                                                          .want = DART_LOGITS_LAST, .logits = logits});
    return status;
}

/* Every call of the backend and every allocation fails once. */
static void survives_failures(void **unused)
{
    (void)unused;
    dart_model_config one = small;
    one.layers = 1;
    int32_t *ids = ids_of(2, one.V);
    float expected[2 * 97], got[2 * 97];
    const dart_state_options options = {.B = 2, .memory_block = 2};
    dart_model *whole = model_of(&one, NULL);
    dart_state *fresh = state_of(whole, &options);
    must(short_run(fresh, ids, expected), "short_run");
    dart_state_destroy(&fresh);
    const uint64_t bytes = dart_device_bytes(device);
    uint32_t failures = 0, broken = 0;
    bool done = false;
    quiet = true;
    for (uint32_t n = 1; !done; n++) {
        dart_model *model = NULL;
        dart_state *state = NULL;
        atomic_store(&device->fail_in, n);
        dart_status status = dart_model_random(device, &one, 7, NULL, &model);
        if (status == DART_OK) status = dart_state_create(model, &options, &state);
        if (status == DART_OK) status = short_run(state, ids, got);
        done = atomic_load(&device->fail_in) != 0;
        atomic_store(&device->fail_in, 0);
        assert_int_equal(status, done ? DART_OK : DART_OUT_OF_MEMORY);
        failures += !done;
        if (state != NULL) {
            broken += state->broken != DART_OK;
            if (state->broken != DART_OK) assert_int_equal(short_run(state, ids, got), DART_OUT_OF_MEMORY);
            must(dart_state_reset(state, -1), "dart_state_reset");
            must(short_run(state, ids, got), "short_run");
            assert_memory_equal(got, expected, sizeof got);
        }
        dart_state_destroy(&state);
        dart_model_destroy(&model);
        assert_int_equal(dart_device_bytes(device), bytes);
    }
    quiet = false;
    print_message("  %u failures, %u of them left a broken state\n", failures, broken);
    dart_model_destroy(&whole);
    free(ids);
}

static void opening_survives_failures(void **unused)
{
    (void)unused;
    char path[4096];
    snprintf(path, sizeof path, "%s/hf-mamba2", data_folder);
    uint32_t n = 1;
    quiet = true;
    for (bool done = false; !done; n++) {
        dart_model *model = NULL;
        atomic_store(&device->fail_in, n);
        const dart_status status = dart_model_open(device, path, NULL, &model);
        done = atomic_load(&device->fail_in) != 0;
        atomic_store(&device->fail_in, 0);
        assert_int_equal(status, done ? DART_OK : DART_OUT_OF_MEMORY);
        dart_model_destroy(&model);
        assert_int_equal(dart_device_bytes(device), 0);
    }
    dart_model *model = NULL;
    assert_int_equal(dart_model_open(device, data_folder, NULL, &model), DART_IO);
    assert_null(model);
    quiet = false;
    print_message("  %u failures\n", n - 2);
}

/* What fails ahead of the first piece changes nothing: the run goes on as if it had not been. */
static void failures_ahead_change_nothing(void **unused)
{
    (void)unused;
    enum { B = 2 };
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(B, small.V);
    float *whole = prefilled(model, &(dart_state_options){.B = B}, ids), *got = logits_of(B, small.V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 1});
    quiet = true;
    for (uint32_t t = 0; t < L; t++) {
        for (uint32_t n = 1; n <= 5; n++) {
            const int32_t token[B] = {ids[t], ids[L + t]};
            atomic_store(&device->fail_in, n);
            const dart_status status = t % 2 == 0 ? dart_prefill(state, &(dart_prefill_args){.ids = ids + t,
                .ids_row = L, .L = L - t < 20 ? L - t : 20})
                                                  : dart_decode(state, &(dart_decode_args){.ids = token});
            const bool failed = atomic_load(&device->fail_in) == 0;
            atomic_store(&device->fail_in, 0);
            if (!failed || state->broken != DART_OK) {
                /* It went through, or broke: rebuild what was there. */
                must(dart_state_reset(state, -1), "dart_state_reset");
                if (t > 0) feed(state, ids, 0, t, got);
                continue;
            }
            assert_int_equal(status, DART_OUT_OF_MEMORY);
            assert_int_equal(dart_state_position(state, 0), t);
        }
        step(state, ids, t, got);
    }
    quiet = false;
    assert_close("between failures", distance(got, whole, (size_t)B * L * small.V), TOLERANCE);
    dart_state_destroy(&state);
    free(got);
    free(whole);
    free(ids);
    dart_model_destroy(&model);
}

/* Positions are 31 bits wide: the last token is number 2^31 - 1. */
static void ends_at_the_last_position(void **unused)
{
    (void)unused;
    enum { B = 2 };
    dart_model *model = model_of(&small, NULL);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .no_sma = true}); /* no memories of so many chunks */
    int32_t *ids = ids_of(B, small.V);
    state->positions[1] = INT32_MAX - 3;
    quiet = true;
    assert_int_equal(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = 4}), DART_INVALID_ARGUMENT);
    quiet = false;
    assert_int_equal(dart_state_position(state, 0), 0);
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = 3}), "dart_prefill");
    assert_int_equal(dart_state_position(state, 1), INT32_MAX);
    quiet = true;
    assert_int_equal(dart_decode(state, &(dart_decode_args){.ids = ids}), DART_INVALID_ARGUMENT);
    quiet = false;
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

/* Against a token-level cache of the same heads a memory is N / (2 S) of the size, and its scale adds 4 / (P bytes). */
static void counts_bytes(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, &(dart_model_options){.memories = DART_STORAGE_F16});
    dart_state *state = state_of(model, &(dart_state_options){.memory_block = 4});
    int32_t *ids = ids_of(1, small.V);
    float *logits = logits_of(1, small.V);
    feed(state, ids, 0, 40, logits);
    const uint64_t I = (uint64_t)small.H * small.P, memories = 40 / small.S;
    assert_int_equal(dart_state_bytes(state, DART_STATE_KV_CACHE), small.layers * 40 * 2 * I * 2);
    assert_int_equal(dart_state_bytes(state, DART_STATE_MEMORIES_USED),
                     small.layers * memories * (I * small.N * 2 + small.H * small.N * 4));
    assert_int_equal(dart_state_bytes(state, DART_STATE_MEMORIES),
                     small.layers * 8 * (I * small.N * 2 + small.H * small.N * 4));
    assert_int_equal(dart_state_bytes(state, DART_STATE_RECURRENT), small.layers * (2 * I * small.N + small.H) * 4);
    assert_int_equal(dart_state_bytes(state, DART_STATE_CONVOLUTION),
                     small.layers * (small.K - 1) * (I + 2 * small.G * small.N + small.G * (small.N + small.P)) * 4);
    assert_true(dart_state_bytes(state, DART_STATE_WORKSPACE) > 0);
    dart_state_destroy(&state);
    free(logits);
    free(ids);
    dart_model_destroy(&model);
}

/* ---- Long calls tell how far they are, and end when asked to ---- */

static dart_status load(bool from_file, asker *a, dart_model **model)
{
    char folder[4096];
    const dart_model_options options = {.go_on = ask, .user = a};
    snprintf(folder, sizeof folder, "%s/hf-mamba2", data_folder);
    return from_file ? dart_model_open(device, folder, &options, model) : dart_model_random(device, &small, 3, &options, model);
}

static void loading_can_be_ended(void **unused)
{
    (void)unused;
    const uint64_t before = dart_device_bytes(device);
    for (int from_file = 0; from_file <= 1; from_file++) {
        asker whole = {.most = UINT32_MAX};
        dart_model *model = NULL;
        must(load(from_file, &whole, &model), "loading");
        dart_model_destroy(&model);
        assert_true(whole.calls > 20);
        assert_int_equal(whole.done, whole.of);
        const uint32_t ends[] = {0, whole.calls / 2, whole.calls - 1};
        quiet = true;
        for (size_t i = 0; i < COUNT_OF(ends); i++) {
            asker a = {.most = ends[i]};
            assert_int_equal(load(from_file, &a, &model), DART_CANCELLED);
            assert_null(model);
            assert_int_equal(a.calls, ends[i] + 1);
            assert_int_equal(dart_device_bytes(device), before);
        }
        quiet = false;
    }
}

static void warming_can_be_ended(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    dart_state *state = state_of(model, NULL);
    asker first = {.most = 0}, whole = {.most = UINT32_MAX};
    quiet = true;
    assert_int_equal(dart_state_warm_while(state, ask, &first), DART_CANCELLED);
    quiet = false;
    assert_int_equal(first.calls, 1);
    must(dart_state_warm_while(state, ask, &whole), "dart_state_warm_while");
    assert_true(whole.calls > 0 && whole.of >= first.of); /* the CPU has nothing to compile */
    must(dart_decode(state, &(dart_decode_args){.ids = (int32_t[1]){1}}), "dart_decode");
    dart_state_destroy(&state);
    dart_model_destroy(&model);
}

/* What a file holds, for free(). */
static char *contents(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *data = malloc(1 << 20);
    assert_true(file != NULL && data != NULL);
    *bytes = fread(data, 1, 1 << 20, file);
    fclose(file);
    return data;
}

static void saving_and_loading_can_be_ended(void **unused)
{
    (void)unused;
    char folder[] = "model_failures.XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/state", folder);
    dart_model *model = model_of(&small, NULL);
    dart_state *state = state_of(model, NULL), *other = state_of(model, NULL);
    int32_t *ids = ids_of(1, small.V);
    float *logits = logits_of(1, small.V), *expected = logits_of(1, small.V);
    feed(state, ids, 0, L / 2, logits);
    feed(other, ids, 0, L / 3, expected);
    asker saved = {.most = UINT32_MAX}, loaded = {.most = UINT32_MAX};
    must(dart_state_save_while(state, 0, path, ask, &saved), "dart_state_save_while");
    assert_true(saved.calls >= 2);
    assert_int_equal(saved.done, saved.of);
    size_t before = 0, after = 0;
    char *kept = contents(path, &before);
    quiet = true;
    for (uint32_t i = 0; i < 2; i++) {
        asker a = {.most = i == 0 ? 0 : saved.calls - 1};
        assert_int_equal(dart_state_save_while(other, 0, path, ask, &a), DART_CANCELLED);
        char *now = contents(path, &after);
        assert_int_equal(after, before);
        assert_memory_equal(now, kept, before);
        free(now);
    }
    asker none = {.most = 0};
    assert_int_equal(dart_state_load_while(other, 0, path, ask, &none), DART_CANCELLED);
    assert_int_equal(dart_state_position(other, 0), L / 3);
    quiet = false;
    feed(other, ids, L / 3, L / 2, expected); /* as if nothing had been */
    must(dart_state_load_while(other, 0, path, ask, &loaded), "dart_state_load_while");
    assert_true(loaded.calls >= 2);
    assert_int_equal(loaded.done, loaded.of);
    assert_int_equal(dart_state_position(other, 0), L / 2);
    free(kept);
    free(ids);
    free(logits);
    free(expected);
    dart_state_destroy(&state);
    dart_state_destroy(&other);
    dart_model_destroy(&model);
    remove(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_wrong_calls),
        cmocka_unit_test(works_within_small_bindings),
        cmocka_unit_test(survives_failures),
        cmocka_unit_test(opening_survives_failures),
        cmocka_unit_test(failures_ahead_change_nothing),
        cmocka_unit_test(ends_at_the_last_position),
        cmocka_unit_test(counts_bytes),
        cmocka_unit_test(loading_can_be_ended),
        cmocka_unit_test(warming_can_be_ended),
        cmocka_unit_test(saving_and_loading_can_be_ended),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
