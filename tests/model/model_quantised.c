/* Models with quantised weights against the same in f32: model_quantised DEVICE_SPEC DATA_DIR. */
#define _POSIX_C_SOURCE 200809L
#include "model_cases.h"

#include "base/file.h"
#include "dartlm/train.h"

#if !defined(_WIN32)
#include <unistd.h>
#endif

enum { TOKENS = 256, QUERIES = 64, SEQUENCES = 32, V = 8192 };

static dart_model *opened(const char *name, dart_storage weights)
{
    char path[4096];
    dart_model *model = NULL;
    snprintf(path, sizeof path, "%s/%s", data_folder, name);
    must(dart_model_open(device, path, &(dart_model_options){.weights = weights, .activations = DART_STORAGE_F32}, &model), path);
    return model;
}

typedef struct recall {
    float *logits; /* of all queries */
    uint32_t right;
} recall;

static const void *numbers(const safetensors *file, const char *name)
{
    const safetensors_tensor *t = safetensors_find(file, name);
    assert_non_null(t);
    return t->data;
}

static recall answer(const dart_model *model, const safetensors *test)
{
    const int32_t *ids = numbers(test, "input_ids"), *places = numbers(test, "query_pos"), *targets = numbers(test, "target");
    recall found = {.logits = calloc((size_t)SEQUENCES * QUERIES * V, sizeof(float))};
    dart_state *state = NULL;
    assert_non_null(found.logits);
    must(dart_state_create((dart_model *)model, NULL, &state), "state");
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint64_t rows[QUERIES];
        float *logits = found.logits + (size_t)s * QUERIES * V;
        for (uint32_t i = 0; i < QUERIES; i++) rows[i] = (uint64_t)places[s * QUERIES + i];
        must(dart_state_reset(state, -1), "reset");
        must(dart_prefill(state, &(dart_prefill_args){.ids = &ids[s * TOKENS], .L = TOKENS, .want = DART_LOGITS_ROWS, .rows = rows,
                                                      .rows_count = QUERIES, .logits = logits}), "prefill");
        for (uint32_t i = 0; i < QUERIES; i++) {
            const float *row = logits + (size_t)i * V;
            uint32_t best = 0;
            for (uint32_t v = 1; v < V; v++)
                if (row[v] > row[best]) best = v;
            found.right += (int32_t)best == targets[s * QUERIES + i];
        }
    }
    dart_state_destroy(&state);
    return found;
}

static double log_sum(const float *row)
{
    double top = (double)row[0], sum = 0;
    for (uint32_t v = 1; v < V; v++) top = fmax(top, (double)row[v]);
    for (uint32_t v = 0; v < V; v++) sum += exp((double)row[v] - top);
    return top + log(sum);
}

/* Mean over the queries of the divergence of `with` from `of`, in nats. */
static double divergence(const float *of, const float *with)
{
    double sum = 0;
    for (size_t i = 0; i < (size_t)SEQUENCES * QUERIES; i++) {
        const float *p = of + i * V, *q = with + i * V;
        const double zp = log_sum(p), zq = log_sum(q);
        for (uint32_t v = 0; v < V; v++) sum += exp((double)p[v] - zp) * (((double)p[v] - zp) - ((double)q[v] - zq));
    }
    return sum / (SEQUENCES * QUERIES);
}

/* A model that recalls 99 % of what it has read: nearly the same distribution with q8, and nearly as much recalled with q4. */
static void recalls(void **unused)
{
    (void)unused;
    static const struct { dart_storage storage; double divergence; uint32_t fewer; } all[] = {
        {DART_STORAGE_Q8, 1e-3, SEQUENCES * QUERIES / 500}, {DART_STORAGE_Q4, 0.1, SEQUENCES * QUERIES / 50}};
    char path[4096];
    safetensors *test = NULL;
    base_report report;
    must(base_report_init(&report, NULL), "report");
    snprintf(path, sizeof path, "%s/mqar-dart/test.safetensors", data_folder);
    must(safetensors_open(path, &report, &test), path);
    dart_model *plain = opened("mqar-dart", DART_STORAGE_DEFAULT);
    const recall want = answer(plain, test);
    for (size_t i = 0; i < 2; i++) {
        dart_model *model = opened("mqar-dart", all[i].storage);
        const recall got = answer(model, test);
        const double off = divergence(want.logits, got.logits);
        dart_model_info info, before;
        must(dart_model_describe(model, &info), "describe");
        must(dart_model_describe(plain, &before), "describe");
        print_message("  %s: KL %.2e, %u of %d right, f32 %u; %.2f of its bytes\n", dart_dtype_name(info.weights), off, got.right,
                      SEQUENCES * QUERIES, want.right, (double)info.bytes / (double)before.bytes);
        assert_true(off <= all[i].divergence);
        assert_true(got.right + all[i].fewer >= want.right);
        assert_true((double)info.bytes < 0.4 * (double)before.bytes);
        assert_true(model->fingerprint != plain->fingerprint);
        free(got.logits);
        dart_model_destroy(&model);
    }
    free(want.logits);
    dart_model_destroy(&plain);
    safetensors_close(&test);
    base_report_destroy(&report);
}

/* Token by token as in one piece, for every kind of model, also in the few launches that GPUs prefer: few rows of x are rounded to 16 bits,
 * many are not. */
static void decodes_as_it_prefills(void **unused)
{
    (void)unused;
    enum { LENGTH = 37, MOST = 8192 };
    static const char *const names[] = {"mqar-dart", "hf-mamba2", "hf-llama", "hf-neox"};
    static float whole[LENGTH * MOST], step[MOST];
    for (size_t i = 0; i < 12; i++) {
        const bool fused = i >= 8;
        dart_model *model = opened(names[i / 2 % 4], i % 2 == 0 ? DART_STORAGE_Q8 : DART_STORAGE_Q4);
        const uint32_t words = model->config.V;
        int32_t ids[LENGTH];
        dart_state *state = NULL;
        assert_true(words <= MOST);
        for (uint32_t t = 0; t < LENGTH; t++) ids[t] = (int32_t)((t * 7919 + 11) % words);
        must(dart_state_create(model, NULL, &state), "state");
        if (!model->config.transformer) state->fused = fused;
        must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = LENGTH, .want = DART_LOGITS_ALL, .logits = whole}), "prefill");
        must(dart_state_reset(state, -1), "reset");
        double difference = 0, norm = 0;
        for (uint32_t t = 0; t < LENGTH; t++) {
            must(dart_decode(state, &(dart_decode_args){.ids = &ids[t], .logits = step}), "decode");
            for (uint32_t v = 0; v < words; v++) {
                const double want = (double)whole[t * words + v];
                difference += pow((double)step[v] - want, 2);
                norm += want * want;
            }
        }
        print_message("  %s %s%s: %.1e\n", names[i / 2 % 4], dart_dtype_name(model->weights_dtype), fused ? " in few launches" : "",
                      sqrt(difference / norm));
        /* Steps of 2^-15 of a block's largest number are 5e-5 of its root mean square at most (conform_weights.c); through a few layers. */
        assert_true(sqrt(difference / norm) <= 5e-4);
        dart_state_destroy(&state);
        dart_model_destroy(&model);
    }
}

/* A model from quantised files is the one that is quantised when it is loaded. */
static void loads_quantised_files(void **unused)
{
    (void)unused;
    static const char folder[] = "model_quantised_files", weights[] = "model_quantised_files/model.safetensors",
                      config[] = "model_quantised_files/config.json";
    static const char *const names[] = {"mqar-dart", "hf-mamba2"};
    base_report report;
    must(base_report_init(&report, NULL), "report");
    for (size_t i = 0; i < 4; i++) {
        const dart_storage storage = i % 2 == 0 ? DART_STORAGE_Q8 : DART_STORAGE_Q4;
        char path[4096];
        model_quantised_counts counts;
        dart_model *loaded = opened(names[i / 2], storage), *model = NULL;
        snprintf(path, sizeof path, "%s/%s", data_folder, names[i / 2]);
        must(file_make_folder(folder, &report), folder);
        must(model_quantise(path, storage == DART_STORAGE_Q8 ? DART_Q8 : DART_Q4, weights, NULL, &report, &counts), weights);
        must(model_config_write(&loaded->config, folder, &report), config);
        must(dart_model_open(device, folder, &(dart_model_options){.activations = DART_STORAGE_F32}, &model), folder);
        assert_true(model->fingerprint == loaded->fingerprint);
        assert_true(model->bytes == loaded->bytes && model->weights_dtype == loaded->weights_dtype && model->memories == loaded->memories);
        for (uint32_t k = 0; k < model->buffers_count; k++) {
            const uint64_t bytes = dart_buffer_bytes(model->buffers[k]);
            uint8_t *a = calloc(1, (size_t)bytes), *b = calloc(1, (size_t)bytes);
            assert_true(a != NULL && b != NULL);
            /* Gaps between tensors hold anything. */
            for (uint32_t w = 0; w < model->config.layers * MODEL_ROLE_COUNT; w++) {
                const dart_tensor *t = &model->weights[w];
                if (t->buffer != model->buffers[k]) continue;
                assert_true(t->dtype == loaded->weights[w].dtype && t->offset == loaded->weights[w].offset);
                const uint64_t at = t->offset * dart_dtype_size(t->dtype);
                must(dart_buffer_read(model->buffers[k], at, a, 64), "read");
                must(dart_buffer_read(loaded->buffers[k], at, b, 64), "read");
                assert_memory_equal(a, b, 64);
            }
            free(a);
            free(b);
        }
        dart_model_destroy(&model);
        /* And as plain numbers. */
        must(dart_model_open(device, folder, &(dart_model_options){.weights = DART_STORAGE_F32}, &model), folder);
        assert_int_equal(model->weights_dtype, DART_F32);
        assert_false(model->quantised);
        dart_model_destroy(&model);
        dart_model_destroy(&loaded);
        dart_trainer *trainer = NULL;
        assert_int_equal(dart_trainer_open(device, folder, &(dart_trainer_options){.B = 1, .L = 8}, &trainer), DART_UNSUPPORTED);
        remove(weights);
        remove(config);
#if !defined(_WIN32)
        rmdir(folder);
#endif
    }
    base_report_destroy(&report);
}

/* A saved state belongs to the weights as they were loaded. */
static void keeps_states_apart(void **unused)
{
    (void)unused;
    static const char path[] = "model_quantised.state";
    const int32_t ids[] = {1, 2, 3, 4, 5};
    dart_model *plain = opened("hf-mamba2", DART_STORAGE_DEFAULT), *eight = opened("hf-mamba2", DART_STORAGE_Q8),
               *again = opened("hf-mamba2", DART_STORAGE_Q8), *four = opened("hf-mamba2", DART_STORAGE_Q4);
    dart_model *const others[] = {plain, four, again};
    dart_state *state = NULL;
    must(dart_state_create(eight, NULL, &state), "state");
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = 5}), "prefill");
    must(dart_state_save(state, -1, path), "save");
    dart_state_destroy(&state);
    for (size_t i = 0; i < 3; i++) {
        must(dart_state_create(others[i], NULL, &state), "state");
        assert_int_equal(dart_state_load(state, -1, path), i < 2 ? DART_INVALID_ARGUMENT : DART_OK);
        dart_state_destroy(&state);
    }
    remove(path);
    dart_model_destroy(&plain);
    dart_model_destroy(&eight);
    dart_model_destroy(&again);
    dart_model_destroy(&four);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recalls), cmocka_unit_test(decodes_as_it_prefills),
                                       cmocka_unit_test(loads_quantised_files), cmocka_unit_test(keeps_states_apart)};
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
