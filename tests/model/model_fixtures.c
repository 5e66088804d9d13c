/* The trained and the foreign checkpoints, and one of long tensors: model_fixtures DEVICE_SPEC DATA_DIR. */
#define _POSIX_C_SOURCE 200809L
#include "model_cases.h"

#include "dartlm/train.h"

#include <time.h>
#if !defined(_WIN32)
#include <unistd.h>
#endif

/* fp32 logits against fp64 ones, as a share of the reference's norm: the specification of the fixtures. */
#define FIXTURE_TOLERANCE 1e-5
/* Far above what any backend should take; the figures printed are to be looked at. */
#define SECONDS_LIMIT 60.0

typedef struct fixture {
    dart_model *model;
    safetensors *file;
    base_report report;
} fixture;

static void open_fixture(fixture *f, const char *name, const char *expected)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", data_folder, name);
    must(dart_model_open(device, path, NULL, &f->model), path);
    snprintf(path, sizeof path, "%s/%s/%s", data_folder, name, expected);
    must(base_report_init(&f->report, NULL), "report");
    must(safetensors_open(path, &f->report, &f->file), path);
}

static void close_fixture(fixture *f)
{
    safetensors_close(&f->file);
    base_report_destroy(&f->report);
    dart_model_destroy(&f->model);
}

/* A tensor's elements, aligned: for free(). */
static void *elements(const fixture *f, const char *name, uint64_t count)
{
    const safetensors_tensor *tensor = safetensors_find(f->file, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->elements, count);
    void *copy = malloc((size_t)tensor->bytes);
    assert_non_null(copy);
    memcpy(copy, tensor->data, (size_t)tensor->bytes);
    return copy;
}

static void compare(const char *what, const float *got, const double *expected, size_t count)
{
    double difference = 0, norm = 0, worst = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        const double d = fabs((double)got[i] - expected[i]);
        difference += d * d;
        norm += expected[i] * expected[i];
        if (!(d <= worst)) worst = d;
        if (fabs(expected[i]) > largest) largest = fabs(expected[i]);
    }
    const double l2 = sqrt(difference / norm), linf = worst / largest;
    print_message("  %s: relative L2 %.2e, L-inf %.2e\n", what, l2, linf);
    assert_true(l2 <= FIXTURE_TOLERANCE);
    assert_true(linf <= FIXTURE_TOLERANCE);
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* For free(). */
static double *widened(float *values, size_t count)
{
    double *wide = calloc(count, sizeof *wide);
    assert_non_null(wide);
    for (size_t i = 0; i < count; i++) wide[i] = (double)values[i];
    free(values);
    return wide;
}

/* Logits of two sequences by another program: prefilled, and token by token. */
static void follows_others(const char *name, bool fp64, uint32_t length, uint32_t V)
{
    enum { B = 2 };
    const size_t count = (size_t)B * length * V;
    fixture f = {0};
    open_fixture(&f, name, "expected.safetensors");
    int32_t *ids = elements(&f, "ids", (uint64_t)B * length);
    double *expected = fp64 ? elements(&f, "logits_fp64", count) : widened(elements(&f, "logits", count), count);
    float *logits = calloc(count, sizeof *logits), *step = calloc((size_t)B * V, sizeof *step);
    assert_true(logits != NULL && step != NULL);
    dart_state *state = NULL;
    must(dart_state_create(f.model, &(dart_state_options){.B = B}, &state), "state");
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = length, .want = DART_LOGITS_ALL, .logits = logits}),
         "prefill");
    compare("prefill", logits, expected, count);
    must(dart_state_reset(state, -1), "reset");
    for (uint32_t t = 0; t < length; t++) {
        const int32_t now[B] = {ids[t], ids[length + t]};
        must(dart_decode(state, &(dart_decode_args){.ids = now, .logits = step}), "decode");
        for (size_t b = 0; b < B; b++) memcpy(&logits[(b * length + t) * V], &step[b * V], V * sizeof *step);
    }
    compare("decode", logits, expected, count);
    dart_state_destroy(&state);
    free(step);
    free(logits);
    free(expected);
    free(ids);
    close_fixture(&f);
}

static void hf_mamba2(void **unused)
{
    (void)unused;
    follows_others("hf-mamba2", true, 77, 301);
}

static void hf_neox(void **unused)
{
    (void)unused;
    follows_others("hf-neox", false, 33, 61);
    follows_others("hf-neox-sequential", false, 33, 61);
}

/* Its gradients, too; f32 sums as in model_training. */
static void hf_llama(void **unused)
{
    (void)unused;
    enum { B = 2, LENGTH = 33 };
    char path[4096];
    follows_others("hf-llama", false, LENGTH, 61);
    fixture f = {0};
    open_fixture(&f, "hf-llama", "expected.safetensors");
    int32_t *ids = elements(&f, "ids", B * LENGTH), *targets = elements(&f, "target", B * LENGTH);
    float *loss = elements(&f, "loss", 1);
    dart_trainer *trainer = NULL;
    dart_train_result result;
    dart_train_parameter p;
    snprintf(path, sizeof path, "%s/hf-llama", data_folder);
    must(dart_trainer_open(device, path, &(dart_trainer_options){.B = B, .L = LENGTH}, &trainer), path);
    must(dart_trainer_gradient(trainer, &(dart_train_batch){.count = 1, .ids = ids, .targets = targets}, &result), "gradient");
    double worst = 0;
    for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p); i++) {
        char name[256];
        snprintf(name, sizeof name, "grad.%s", p.name);
        float *expected = elements(&f, name, p.elements), *got = malloc((size_t)p.elements * sizeof *got);
        assert_non_null(got);
        must(dart_trainer_read(trainer, DART_TRAIN_GRADIENT, i, got), "read");
        const double l2 = distance(got, expected, (size_t)p.elements);
        if (!(l2 <= worst)) worst = l2;
        free(got);
        free(expected);
    }
    print_message("  loss off by %.1e, gradients by %.1e\n", fabs(result.loss - (double)loss[0]), worst);
    assert_true(fabs(result.loss - (double)loss[0]) <= 1e-5);
    assert_true(worst <= 2e-5);
    dart_trainer_destroy(&trainer);
    free(loss);
    free(targets);
    free(ids);
    close_fixture(&f);
}

enum { SEQUENCES = 128, TOKENS = 256, QUERIES = 64, VOCABULARY = 8192, BATCH = 16, FIRST = 8 };

static uint32_t right_answers(const fixture *f, bool no_sma, const char *expected_name, const char *what)
{
    const size_t rows_count = (size_t)BATCH * QUERIES;
    int32_t *ids = elements(f, "input_ids", SEQUENCES * TOKENS);
    int32_t *places = elements(f, "query_pos", SEQUENCES * QUERIES);
    int32_t *targets = elements(f, "target", SEQUENCES * QUERIES);
    float *first = elements(f, expected_name, FIRST * VOCABULARY);
    float *logits = calloc(rows_count * VOCABULARY, sizeof *logits);
    double *expected = calloc((size_t)FIRST * VOCABULARY, sizeof *expected);
    uint64_t *rows = calloc(rows_count, sizeof *rows);
    assert_true(logits != NULL && expected != NULL && rows != NULL);
    for (size_t i = 0; i < (size_t)FIRST * VOCABULARY; i++) expected[i] = (double)first[i];
    dart_state *state = NULL;
    const double start = seconds();
    must(dart_state_create(f->model, &(dart_state_options){.B = BATCH, .max_piece = BATCH * TOKENS, .no_sma = no_sma},
                           &state), "state");
    uint32_t right = 0;
    for (size_t s = 0; s < SEQUENCES; s += BATCH) {
        for (size_t i = 0; i < rows_count; i++) rows[i] = i / QUERIES * TOKENS + (uint64_t)places[s * QUERIES + i];
        must(dart_state_reset(state, -1), "reset");
        must(dart_prefill(state, &(dart_prefill_args){.ids = &ids[s * TOKENS], .L = TOKENS, .want = DART_LOGITS_ROWS,
                                                      .rows = rows,
                                                      .rows_count = rows_count, .logits = logits}), "prefill");
        if (s == 0) compare(what, logits, expected, FIRST * VOCABULARY);
        for (size_t i = 0; i < rows_count; i++) {
            const float *row = &logits[i * VOCABULARY];
            int32_t best = 0;
            for (int32_t v = 1; v < VOCABULARY; v++)
                if (row[v] > row[best]) best = v;
            right += best == targets[s * QUERIES + i];
        }
    }
    const double took = seconds() - start;
    print_message("  %s: %u of %d right, %.2f s\n", what, right, SEQUENCES * QUERIES, took);
    assert_true(took <= SECONDS_LIMIT);
    dart_state_destroy(&state);
    free(rows);
    free(expected);
    free(logits);
    free(first);
    free(targets);
    free(places);
    free(ids);
    return right;
}

static void mqar_dart(void **unused)
{
    (void)unused;
    fixture f = {0};
    open_fixture(&f, "mqar-dart", "test.safetensors");
    assert_int_equal(right_answers(&f, false, "logits_first8", "mqar-dart"), 8134);
    assert_int_equal(right_answers(&f, true, "logits_first8_no_sma", "mqar-dart without SMA"), 935);
    close_fixture(&f);
}

static void mqar_mamba2(void **unused)
{
    (void)unused;
    fixture f = {0};
    open_fixture(&f, "mqar-mamba2", "test.safetensors");
    assert_int_equal(right_answers(&f, false, "logits_first8", "mqar-mamba2"), 4055);
    close_fixture(&f);
}

#if !defined(_WIN32) /* which makes folders otherwise */
/* A table of more elements than are taken at a time, as it is stored and converted on the way. */
static void reads_long_tensors(void **unused)
{
    (void)unused;
    enum { ROWS = 33000, WIDTH = 32, ELEMENTS = ROWS * WIDTH, MOST = 16 };
    static const char text[] = "{\"model_type\": \"dart\", \"vocab_size\": 33000, \"hidden_size\": 32, \"state_size\": 8, \"num_heads\": 4, "
                               "\"head_dim\": 16, \"n_groups\": 1, \"expand\": 2, \"conv_kernel\": 4, \"chunk_size\": 8, \"num_hidden_layers\": 1, "
                               "\"layer_norm_epsilon\": 1e-5, \"sma_norm_epsilon\": 1e-5, \"tie_word_embeddings\": true}";
    static const struct { safetensors_dtype stored; dart_dtype dtype; dart_storage weights; } forms[] = {
        {SAFETENSORS_F32, DART_F32, DART_STORAGE_F32}, {SAFETENSORS_F16, DART_F16, DART_STORAGE_F32}, {SAFETENSORS_F32, DART_F32, DART_STORAGE_F16}};
    char folder[] = "model_fixtures.XXXXXX", config_path[64], path[64], names[MOST][sizeof ((model_parameter *)NULL)->name];
    assert_non_null(mkdtemp(folder));
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(config_path, "w");
    assert_true(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    base_report report;
    dart_model_config config;
    must(base_report_init(&report, NULL), "report");
    must(model_config_load(folder, &report, &config), "config");
    float *values = malloc(ELEMENTS * sizeof *values), *got = malloc(ELEMENTS * sizeof *got);
    void *stored = malloc(ELEMENTS * sizeof *values);
    assert_true(values != NULL && stored != NULL && got != NULL);
    /* Whole numbers that f16 holds, and no two rows alike. */
    for (uint32_t i = 0; i < ELEMENTS; i++) values[i] = (float)((i + i / 2048 * 7) % 2048);
    for (size_t k = 0; k < COUNT_OF(forms); k++) {
        safetensors_tensor entries[MOST];
        model_parameter p;
        uint32_t count = 0;
        dart_from_f32(forms[k].dtype, stored, values, ELEMENTS);
        for (; model_config_parameter(&config, count, &p); count++) {
            assert_true(count < MOST && p.elements <= ELEMENTS);
            memcpy(names[count], p.name, sizeof p.name);
            entries[count] = (safetensors_tensor){.name = names[count], .dtype = forms[k].stored, .rank = p.rank, .data = stored};
            memcpy(entries[count].shape, p.shape, sizeof p.shape);
        }
        must(safetensors_write(path, entries, count, &report), report.text);
        dart_model *model = NULL;
        must(dart_model_open(device, folder, &(dart_model_options){.weights = forms[k].weights}, &model), "dart_model_open");
        const dart_tensor *table = model_weight(model, 0, MODEL_EMBEDDING);
        must(dart_buffer_read(table->buffer, table->offset * dart_dtype_size(table->dtype), stored, ELEMENTS * dart_dtype_size(table->dtype)),
             "read");
        dart_to_f32(table->dtype, got, stored, ELEMENTS);
        assert_memory_equal(got, values, ELEMENTS * sizeof *got);
        dart_model_destroy(&model);
    }
    remove(path);
    remove(config_path);
    rmdir(folder);
    free(got);
    free(stored);
    free(values);
    base_report_destroy(&report);
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hf_mamba2),
        cmocka_unit_test(hf_neox),
        cmocka_unit_test(hf_llama),
#if !defined(_WIN32)
        cmocka_unit_test(reads_long_tensors),
#endif
        cmocka_unit_test(mqar_dart),
        cmocka_unit_test(mqar_mamba2),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
