/* Quantised checkpoints, whole and broken: unit_quantised_files DATA_DIR. */
#include "checkpoint/config.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define IN_PROJ "backbone.layers.0.mixer.in_proj.weight"
#define EMBEDDING "backbone.embeddings.weight"

enum { MOST = 128, ROUNDS = 4000 };

static const char *data_folder;
static const char path[] = "unit_quantised_files.safetensors", broken_path[] = "unit_quantised_broken.safetensors";
static base_report report;
static dart_model_config config;

static const char *folder_of(const char *name)
{
    static char folder[4096];
    snprintf(folder, sizeof folder, "%s/%s", data_folder, name);
    return folder;
}

static safetensors *quantised(const char *name, dart_dtype dtype)
{
    safetensors *file = NULL;
    model_quantised_counts counts;
    assert_int_equal(model_config_load(folder_of(name), &report, &config), DART_OK);
    assert_int_equal(model_quantise(folder_of(name), dtype, path, NULL, &report, &counts), DART_OK);
    assert_true(counts.matrices > 0 && counts.bytes_after < counts.bytes_before);
    assert_int_equal(safetensors_open(path, &report, &file), DART_OK);
    return file;
}

/* What is read of the file is what dart_quantise makes of the source. */
static void holds_what_loading_makes(void **unused)
{
    (void)unused;
    static const char *const names[] = {"hf-mamba2", "mqar-dart", "hf-neox"};
    for (size_t i = 0; i < 6; i++) {
        safetensors *source = NULL, *file = quantised(names[i / 2], i % 2 == 0 ? DART_Q8 : DART_Q4);
        model_parameter p;
        assert_int_equal(safetensors_open(folder_of(names[i / 2]), &report, &source), DART_OK);
        assert_int_equal(model_weights_check(&config, file, false, NULL, &report), DART_OK);
        assert_string_equal(safetensors_metadata(file, "dartlm.quantised"), i % 2 == 0 ? "q8" : "q4");
        for (uint32_t k = 0; model_config_parameter(&config, k, &p); k++) {
            const model_source before = model_source_find(source, &p), after = model_source_find(file, &p);
            const size_t count = (size_t)before.tensor->elements, kept = model_source_is_quantised(&after) ? (size_t)(after.rows * after.width) : 0;
            float *want = malloc(count * sizeof *want), *got = malloc(count * sizeof *got);
            assert_true(want != NULL && got != NULL);
            model_source_to_f32(&before, 0, count, want);
            model_source_to_f32(&after, 0, count, got);
            if (kept > 0) {
                const size_t bytes = dart_quantised_row(after.dtype, (uint32_t)after.width);
                uint8_t *rows = malloc(bytes * (size_t)after.rows), *read = malloc(bytes * (size_t)after.rows);
                assert_true(rows != NULL && read != NULL);
                assert_int_equal(dart_quantise(after.dtype, (uint32_t)after.width, (size_t)after.rows, want, rows), DART_OK);
                assert_int_equal(dart_dequantise(after.dtype, (uint32_t)after.width, (size_t)after.rows, rows, want), DART_OK);
                model_source_rows(&after, 0, (size_t)after.rows, read);
                assert_memory_equal(read, rows, bytes * (size_t)after.rows);
                free(rows);
                free(read);
            }
            assert_memory_equal(got, want, count * sizeof *want);
            free(want);
            free(got);
        }
        safetensors_close(&source);
        safetensors_close(&file);
    }
}

/* ---- Broken files ---- */

typedef struct copy {
    safetensors_tensor entries[MOST];
    size_t count;
} copy;

static copy copied(const safetensors *file)
{
    copy c = {.count = safetensors_count(file)};
    assert_true(c.count <= MOST);
    for (size_t i = 0; i < c.count; i++) c.entries[i] = *safetensors_at(file, i);
    return c;
}

static safetensors_tensor *entry(copy *c, const char *name)
{
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->entries[i].name, name) == 0) return &c->entries[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void check_refused(const copy *c, const char *word)
{
    safetensors *file = NULL;
    char text[512];
    assert_int_equal(safetensors_write(broken_path, c->entries, c->count, &report), DART_OK);
    assert_int_equal(safetensors_open(broken_path, &report, &file), DART_OK);
    const dart_status status = model_weights_check(&config, file, false, NULL, &report);
    base_report_copy(&report, text, sizeof text);
    if (status != DART_BAD_DATA || strstr(text, word) == NULL) fail_msg("'%s' expected, not %s: '%s'", word, dart_status_name(status), text);
    safetensors_close(&file);
}

/* The same file with one byte of a tensor's data replaced. */
static void check_byte(const safetensors *file, const char *name, size_t at, uint8_t value, const char *word)
{
    copy c = copied(file);
    safetensors_tensor *t = entry(&c, name);
    uint8_t *bytes = malloc((size_t)t->bytes);
    assert_non_null(bytes);
    memcpy(bytes, t->data, (size_t)t->bytes);
    bytes[at] = value;
    if ((value & 0x7f) == 0x7f) bytes[at - 1] |= 0x80; /* an exponent of ones */
    t->data = bytes;
    check_refused(&c, word);
    free(bytes);
}

#define BROKEN(file, name, word, ...) \
    do { \
        copy c = copied(file); \
        safetensors_tensor *t = entry(&c, name); \
        __VA_ARGS__; \
        check_refused(&c, word); \
    } while (0)

static void refuses_broken_files(void **unused)
{
    (void)unused;
    safetensors *file = quantised("mqar-dart", DART_Q4);
    BROKEN(file, IN_PROJ ".scale", "in_proj.weight.scale is missing", t->name = "other");
    BROKEN(file, IN_PROJ ".minimum", "in_proj.weight.minimum is missing", t->name = "other");
    BROKEN(file, IN_PROJ ".rest", "in_proj.weight.rest is missing", t->name = "other");
    BROKEN(file, IN_PROJ ".scale", "in_proj.weight.scale has shape [287, 2]", t->shape[0]--);
    BROKEN(file, IN_PROJ ".minimum", "in_proj.weight.minimum has shape [288, 1]", t->shape[1]--);
    BROKEN(file, IN_PROJ ".rest", "in_proj.weight.rest has shape [1, 64]", t->shape[0]--);
    BROKEN(file, IN_PROJ, "in_proj.weight has shape [288, 31]", t->shape[1]--);
    BROKEN(file, IN_PROJ, "in_proj.weight has shape [287, 32]", t->shape[0]--);
    BROKEN(file, IN_PROJ, "in_proj.weight has shape [288, 32], the configuration asks for [288, 64]", t->dtype = SAFETENSORS_I8);
    BROKEN(file, IN_PROJ ".scale", "must be BF16", t->dtype = SAFETENSORS_F16);
    BROKEN(file, IN_PROJ ".minimum", "must be BF16", t->dtype = SAFETENSORS_I16);
    BROKEN(file, IN_PROJ ".rest", "weights are F32, F16 or BF16", t->dtype = SAFETENSORS_I32);
    BROKEN(file, "backbone.norm_f.weight", "weights are F32, F16 or BF16", t->dtype = SAFETENSORS_I8);
    check_byte(file, IN_PROJ ".scale", 1, 0x80, "negative scale at element 0");
    check_byte(file, IN_PROJ ".scale", 1, 0x7f, "in_proj.weight.scale holds");
    check_byte(file, IN_PROJ ".minimum", 3, 0xff, "in_proj.weight.minimum holds");
    check_byte(file, IN_PROJ ".rest", 3, 0x7f, "in_proj.weight.rest holds");
    check_byte(file, EMBEDDING, 100, 0x80, "holds -128");
    safetensors_close(&file);
}

/* Bytes of the file changed at random: refused or read to the end. */
static void survives_any_bytes(void **unused)
{
    (void)unused;
    safetensors *file = quantised("hf-neox", DART_Q4);
    uint32_t state = 7, accepted = 0;
    safetensors_close(&file);
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    static uint8_t whole[1 << 18], some[1 << 18];
    static float values[1 << 14];
    const size_t size = fread(whole, 1, sizeof whole, stream);
    fclose(stream);
    assert_true(size > 8 && size < sizeof whole);
    const size_t header = 8 + (size_t)whole[0] + ((size_t)whole[1] << 8);
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(some, whole, size);
        for (int k = 0; k <= round % 3; k++) {
            state = state * 1664525u + 1013904223u;
            /* Half of them digits of the header, so that shapes and places change. */
            size_t at = (state >> 8) % (round % 2 == 0 ? header - 8 : size - 8) + 8;
            for (size_t n = 0; round % 4 == 0 && (some[at] < '0' || some[at] > '9') && n < header; n++) at = 8 + (at - 7) % (header - 8);
            some[at] = round % 4 == 0 ? (uint8_t)('0' + state % 10) : (uint8_t)(state >> 3);
        }
        dart_status status = safetensors_open_memory(some, size, "input", &report, &file);
        if (status == DART_OK) status = model_weights_check(&config, file, round % 2 != 0, NULL, &report);
        model_parameter p;
        for (uint32_t i = 0; status == DART_OK && model_config_parameter(&config, i, &p); i++) {
            const model_source source = model_source_find(file, &p);
            const size_t count = (size_t)(p.elements * p.parts);
            assert_true(count <= sizeof values / sizeof *values);
            model_source_to_f32(&source, 0, count, values);
        }
        accepted += status == DART_OK;
        assert_true(status == DART_OK || status == DART_BAD_DATA);
        safetensors_close(&file);
    }
    print_message("  %u of %d accepted\n", accepted, ROUNDS);
    assert_true(accepted > 0 && accepted < ROUNDS);
}

static void refuses_what_it_cannot_quantise(void **unused)
{
    (void)unused;
    model_quantised_counts counts;
    char text[512];
    assert_int_equal(model_quantise(folder_of("hf-llama"), DART_Q8, path, NULL, &report, &counts), DART_UNSUPPORTED); /* 24 and 40 wide */
    base_report_copy(&report, text, sizeof text);
    assert_non_null(strstr(text, "multiple of 32"));
    assert_int_equal(model_quantise("/nowhere", DART_Q8, path, NULL, &report, &counts), DART_IO);
}

typedef struct asker {
    uint64_t calls, most, done, of;
} asker;

static bool ask(void *user, uint64_t done, uint64_t of)
{
    asker *a = user;
    assert_true(done >= a->done && done <= of);
    a->done = done;
    a->of = of;
    return ++a->calls <= a->most;
}

/* Ended at any moment there is no file, and the whole of it ends with all done. */
static void ends_where_it_is_told_to(void **unused)
{
    (void)unused;
    model_quantised_counts counts;
    asker whole = {.most = UINT64_MAX};
    remove(path);
    base_progress progress = {.go_on = ask, .user = &whole};
    assert_int_equal(model_quantise(folder_of("hf-mamba2"), DART_Q8, path, &progress, &report, &counts), DART_OK);
    assert_true(whole.calls > 10);
    assert_int_equal(whole.done, whole.of);
    assert_int_equal(remove(path), 0);
    for (uint64_t most = 0; most < whole.calls; most++) {
        asker a = {.most = most};
        progress = (base_progress){.go_on = ask, .user = &a};
        assert_int_equal(model_quantise(folder_of("hf-mamba2"), DART_Q8, path, &progress, &report, &counts), DART_CANCELLED);
        assert_int_equal(a.calls, most + 1);
        assert_int_equal(remove(path), -1);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_where_it_is_told_to),
        cmocka_unit_test(holds_what_loading_makes), cmocka_unit_test(refuses_broken_files), cmocka_unit_test(survives_any_bytes),
        cmocka_unit_test(refuses_what_it_cannot_quantise)};
    if (argc != 2 || base_report_init(&report, NULL) != DART_OK) return 2;
    data_folder = argv[1];
    const int failed = cmocka_run_group_tests_name("unit_quantised_files", tests, NULL, NULL);
    base_report_destroy(&report);
    remove(path);
    remove(broken_path);
    return failed;
}
