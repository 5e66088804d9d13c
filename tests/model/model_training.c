/* Training of whole models against gradients and steps that another program computed in fp64: model_training DEVICE_SPEC DATA_DIR. */
#define _POSIX_C_SOURCE 200809L
#include "model_cases.h"

#include "dartlm/train.h"

#include <unistd.h>

#define GRADIENT_TOLERANCE 2e-5 /* relative L2; the same definitions in fp32 differ by 5e-6 */
#define LOSS_TOLERANCE 1e-5
#define WEIGHT_TOLERANCE 1e-5 /* relative L2 after 20 steps; fp32 differs by 2.5e-7 */

typedef struct data {
    safetensors *file;
    base_report report;
} data;

static void open_data(data *d, const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", data_folder, folder, name);
    must(base_report_init(&d->report, NULL), "report");
    must(safetensors_open(path, &d->report, &d->file), path);
}

static void close_data(data *d)
{
    safetensors_close(&d->file);
    base_report_destroy(&d->report);
}

/* A tensor's elements, aligned: for free(). */
static void *elements(const data *d, const char *name)
{
    const safetensors_tensor *tensor = safetensors_find(d->file, name);
    if (tensor == NULL) fail_msg("no tensor %s", name);
    void *copy = malloc((size_t)tensor->bytes);
    assert_non_null(copy);
    memcpy(copy, tensor->data, (size_t)tensor->bytes);
    return copy;
}

static void must_train(dart_trainer *trainer, dart_status status, const char *what)
{
    char text[512] = "";
    if (status == DART_OK) return;
    dart_trainer_error(trainer, text, sizeof text);
    fail_msg("%s: %s (%s)", what, dart_status_name(status), text);
}

static dart_trainer *open_trainer(const char *folder, dart_trainer_options options)
{
    char path[4096];
    dart_trainer *trainer = NULL;
    snprintf(path, sizeof path, "%s/%s", data_folder, folder);
    must(dart_trainer_open(device, path, &options, &trainer), path);
    return trainer;
}

static float *read_values(dart_trainer *trainer, dart_train_values values, uint32_t index)
{
    dart_train_parameter p;
    assert_true(dart_trainer_parameter(trainer, index, &p));
    float *to = malloc((size_t)p.elements * sizeof *to);
    assert_non_null(to);
    must_train(trainer, dart_trainer_read(trainer, values, index, to), "read");
    return to;
}

/* The largest relative L2 distance of a parameter's values from those of a file, whose names begin with `prefix`. */
static double worst_distance(dart_trainer *trainer, dart_train_values values, const data *d, const char *prefix)
{
    dart_train_parameter p;
    double worst = 0;
    for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p); i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", prefix, p.name);
        float *got = read_values(trainer, values, i), *expected = elements(d, name);
        double difference = 0, norm = 0;
        for (uint64_t k = 0; k < p.elements; k++) {
            difference += ((double)got[k] - (double)expected[k]) * ((double)got[k] - (double)expected[k]);
            norm += (double)expected[k] * (double)expected[k];
        }
        const double l2 = norm > 0 ? sqrt(difference / norm) : difference;
        if (!(l2 <= worst)) worst = l2;
        free(got);
        free(expected);
    }
    return worst;
}

static void assert_same_bits(dart_trainer *a, dart_trainer *b, dart_train_values values)
{
    dart_train_parameter p;
    for (uint32_t i = 0; dart_trainer_parameter(a, i, &p); i++) {
        float *of_a = read_values(a, values, i), *of_b = read_values(b, values, i);
        if (memcmp(of_a, of_b, (size_t)p.elements * sizeof *of_a) != 0) fail_msg("%s differs", p.name);
        free(of_a);
        free(of_b);
    }
}

/* Every level of what is kept, and rows one by one or together. With `sequences`, every row holds so many, with the borders of the file. */
static void agree(const char *file, uint32_t sequences)
{
    enum { B = 2, LENGTH = 27, MOST = 4 };
    data d = {0};
    open_data(&d, "grad-model", file);
    int32_t cu[B * MOST + 2] = {0}; /* of two parts of one row or one part of two */
    int32_t *borders = sequences > 0 ? elements(&d, "cu") : NULL;
    int32_t *ids = elements(&d, "ids"), *targets = elements(&d, "target");
    float *loss = elements(&d, "loss"), *norm = elements(&d, "norm");
    dart_trainer *first[B + 1] = {NULL};
    for (uint32_t keep = 0; keep <= 3; keep++)
        for (uint32_t rows = 1; rows <= B; rows++) {
            dart_train_result result;
            dart_trainer *trainer = open_trainer("grad-model", (dart_trainer_options){.B = rows, .L = LENGTH, .keep = keep,
                                                                                      .documents = rows * sequences});
            const dart_train_batch batch = {.count = B / rows, .ids = ids, .targets = targets, .cu = sequences > 0 ? cu : NULL};
            memset(cu, 0, sizeof cu);
            for (uint32_t row = 0; row < B; row++)
                for (uint32_t k = 1; k <= sequences; k++)
                    cu[rows == B ? row * sequences + k : row * (sequences + 1) + k] = borders[k] + (rows == B ? (int32_t)row * LENGTH : 0);
            /* Twice: nothing of a batch may stay. */
            for (int i = 0; i < 2; i++) must_train(trainer, dart_trainer_gradient(trainer, &batch, &result), "gradient");
            const double l2 = worst_distance(trainer, DART_TRAIN_GRADIENT, &d, "grad.");
            print_message("  keep %u, %u rows: loss off by %.1e, norm by %.1e, gradients by %.1e\n", keep, rows, fabs(result.loss - (double)loss[0]),
                          fabs(result.norm / (double)norm[0] - 1), l2);
            assert_true(l2 <= GRADIENT_TOLERANCE);
            assert_true(fabs(result.loss - (double)loss[0]) <= LOSS_TOLERANCE);
            assert_true(fabs(result.norm / (double)norm[0] - 1) <= GRADIENT_TOLERANCE);
            if (first[rows] == NULL) {
                first[rows] = trainer;
                continue;
            }
            assert_same_bits(first[rows], trainer, DART_TRAIN_GRADIENT);
            dart_trainer_destroy(&trainer);
        }
    for (uint32_t rows = 1; rows <= B; rows++) dart_trainer_destroy(&first[rows]);
    free(borders);
    free(ids);
    free(targets);
    free(loss);
    free(norm);
    close_data(&d);
}

static void gradients_agree(void **unused)
{
    (void)unused;
    agree("whole.safetensors", 0);
}

static void packed_gradients_agree(void **unused)
{
    (void)unused;
    agree("packed.safetensors", 2);
}

static void steps_agree(void **unused)
{
    (void)unused;
    enum { STEPS = 20, B = 4, LENGTH = 16 };
    data d = {0};
    open_data(&d, "train-steps", "steps.safetensors");
    int32_t *ids = elements(&d, "ids"), *targets = elements(&d, "target");
    float *lr = elements(&d, "lr"), *loss = elements(&d, "loss"), *norm = elements(&d, "norm");
    const dart_trainer_options options = {.B = B, .L = LENGTH, .keep = 2, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                                          .weight_decay = 0.1f, .clip = 2.5f};
    dart_trainer *trainer = open_trainer("train-steps", options);
    for (uint32_t i = 0; i < STEPS; i++) {
        const dart_train_batch batch = {.ids = ids + i * B * LENGTH, .targets = targets + i * B * LENGTH};
        dart_train_result before, result;
        must_train(trainer, dart_trainer_evaluate(trainer, &batch, &before), "evaluate");
        must_train(trainer, dart_trainer_step(trainer, &batch, (double)lr[i], &result), "step");
        assert_true(before.loss == result.loss && before.correct == result.correct);
        assert_true(fabs(result.loss - (double)loss[i]) <= LOSS_TOLERANCE);
        assert_true(fabs(result.norm / (double)norm[i] - 1) <= GRADIENT_TOLERANCE);
        assert_false(result.skipped);
        const uint32_t done = i + 1;
        if (done != 1 && done != 5 && done != STEPS) continue;
        char name[64];
        data after = {0};
        snprintf(name, sizeof name, "after-%u.safetensors", done);
        open_data(&after, "train-steps", name);
        const double l2 = worst_distance(trainer, DART_TRAIN_WEIGHT, &after, "");
        print_message("  after %u steps: loss off by %.1e, weights by %.1e\n", done, fabs(result.loss - (double)loss[i]), l2);
        assert_true(l2 <= WEIGHT_TOLERANCE);
        close_data(&after);
    }
    assert_int_equal(dart_trainer_steps(trainer), STEPS);
    dart_trainer_destroy(&trainer);
    free(ids);
    free(targets);
    free(lr);
    free(loss);
    free(norm);
    close_data(&d);
}

enum { SMALL_B = 3, SMALL_L = 30 };

static void small_batch(int32_t *ids, int32_t *targets, uint32_t seed)
{
    for (uint32_t i = 0; i < SMALL_B * SMALL_L; i++) {
        ids[i] = (int32_t)(base_mix(seed + i) % small.V);
        targets[i] = i % 3 == 0 ? -1 : (int32_t)(base_mix(seed + 1000 + i) % small.V);
    }
}

static dart_trainer *make_small(dart_trainer_options options, bool sma)
{
    dart_trainer *trainer = NULL;
    dart_model_config config = small;
    config.sma = sma;
    options.B = SMALL_B;
    options.L = SMALL_L;
    must(dart_trainer_create(device, &config, &options, &trainer), "create");
    return trainer;
}

/* The same seed starts alike; a loss falls; a model of weights in bf16 follows its masters. */
static void learns(void **unused)
{
    (void)unused;
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    for (dart_storage weights = DART_STORAGE_F32; weights <= DART_STORAGE_BF16; weights += DART_STORAGE_BF16 - DART_STORAGE_F32) {
        const dart_trainer_options options = {.seed = 7, .weights = weights, .clip = 1, .weight_decay = 0.1f};
        dart_trainer *a = make_small(options, true), *b = make_small(options, true);
        dart_train_result begin = {0}, result = {0};
        assert_same_bits(a, b, DART_TRAIN_WEIGHT);
        small_batch(ids, targets, 5);
        const dart_train_batch batch = {.ids = ids, .targets = targets};
        for (int i = 0; i < 15; i++) {
            must_train(a, dart_trainer_step(a, &batch, 1e-2, &result), "step");
            must_train(b, dart_trainer_step(b, &batch, 1e-2, NULL), "step");
            if (i == 0) begin = result;
        }
        print_message("  %s: loss %.4f, then %.4f\n", weights == DART_STORAGE_F32 ? "f32" : "bf16", begin.loss, result.loss);
        assert_true(fabs(begin.loss - log((double)small.V)) < 0.2);
        assert_true(result.loss < 0.8 * begin.loss);
        assert_same_bits(a, b, DART_TRAIN_WEIGHT);
        assert_same_bits(a, b, DART_TRAIN_SQUARE);
        dart_trainer_destroy(&a);
        dart_trainer_destroy(&b);
    }
}

/* A step of a trainer. */
static void train_once(dart_trainer *trainer, const dart_train_batch *batch)
{
    must_train(trainer, dart_trainer_step(trainer, batch, 1e-2, NULL), "step");
}

/* Two trainers and a sequence that is read in pieces, in turns on one device: each leaves the bits that it leaves alone. */
static void share_a_device(void **unused)
{
    (void)unused;
    enum { STEPS = 3 };
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    const dart_trainer_options first = {.seed = 7, .clip = 1}, second = {.seed = 8, .keep = 3, .weights = DART_STORAGE_BF16};
    small_batch(ids, targets, 5);
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    dart_trainer *alone[2] = {make_small(first, true), NULL}, *together[2];
    for (uint32_t i = 0; i < STEPS; i++) train_once(alone[0], &batch);
    alone[1] = make_small(second, true);
    for (uint32_t i = 0; i < STEPS; i++) train_once(alone[1], &batch);
    dart_model *model = model_of(&small, NULL);
    dart_state *state = state_of(model, NULL);
    int32_t *read = ids_of(1, small.V);
    float *expected = logits_of(1, small.V), *logits = logits_of(1, small.V);
    for (uint32_t i = 0; i < STEPS; i++) feed(state, read, i * L / STEPS, (i + 1) * L / STEPS, expected);
    must(dart_state_reset(state, -1), "reset");
    together[0] = make_small(first, true);
    together[1] = make_small(second, true);
    for (uint32_t i = 0; i < STEPS; i++) {
        train_once(together[0], &batch);
        feed(state, read, i * L / STEPS, (i + 1) * L / STEPS, logits);
        train_once(together[1], &batch);
    }
    for (int i = 0; i < 2; i++) {
        assert_same_bits(alone[i], together[i], DART_TRAIN_WEIGHT);
        assert_same_bits(alone[i], together[i], DART_TRAIN_SQUARE);
    }
    assert_memory_equal(logits, expected, (size_t)L * small.V * sizeof *logits);
    for (int i = 0; i < 2; i++) {
        dart_trainer_destroy(&alone[i]);
        dart_trainer_destroy(&together[i]);
    }
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    free(read);
    free(expected);
    free(logits);
}

/* What was trained is loaded for inference, and says the same; a Mamba-2 goes on as a DART from where it was. */
static void exports(void **unused)
{
    (void)unused;
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    char folder[] = "model_training.XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    dart_trainer *trainer = make_small((dart_trainer_options){.seed = 3}, false), *dart = NULL;
    small_batch(ids, targets, 9);
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    dart_train_result result, as_dart;
    for (int i = 0; i < 3; i++) must_train(trainer, dart_trainer_step(trainer, &batch, 1e-2, NULL), "step");
    must_train(trainer, dart_trainer_evaluate(trainer, &batch, &result), "evaluate");
    must_train(trainer, dart_trainer_export(trainer, folder), "export");
    dart_model *model = NULL;
    dart_state *state = NULL;
    float *logits = malloc(sizeof *logits * SMALL_B * SMALL_L * small.V);
    assert_non_null(logits);
    must(dart_model_open(device, folder, NULL, &model), folder);
    must(dart_state_create(model, &(dart_state_options){.B = SMALL_B}, &state), "state");
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = SMALL_L, .want = DART_LOGITS_ALL, .logits = logits}), "prefill");
    double loss = 0;
    uint32_t labels = 0;
    for (uint32_t i = 0; i < SMALL_B * SMALL_L; i++) {
        const float *row = logits + (size_t)i * small.V;
        double sum = 0;
        if (targets[i] < 0) continue;
        for (uint32_t v = 0; v < small.V; v++) sum += exp((double)row[v]);
        loss += log(sum) - (double)row[targets[i]];
        labels++;
    }
    assert_int_equal(labels, result.labels);
    assert_true(fabs(loss / labels - result.loss) <= LOSS_TOLERANCE);
    must(dart_trainer_open(device, folder, &(dart_trainer_options){.B = SMALL_B, .L = SMALL_L, .add_sma = true}, &dart), "as DART");
    must_train(dart, dart_trainer_evaluate(dart, &batch, &as_dart), "evaluate");
    assert_true(fabs(as_dart.loss - result.loss) <= LOSS_TOLERANCE);
    must_train(dart, dart_trainer_step(dart, &batch, 1e-2, NULL), "step");
    dart_trainer_destroy(&dart);
    dart_trainer_destroy(&trainer);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    free(logits);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(remove(path), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* Wrong calls change nothing, and the next right one works. */
static void refuses(void **unused)
{
    (void)unused;
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L], none[SMALL_B * SMALL_L];
    dart_trainer *trainer = make_small((dart_trainer_options){.seed = 1}, true), *other = make_small((dart_trainer_options){.seed = 1}, true);
    dart_trainer *no = NULL;
    dart_train_result result;
    small_batch(ids, targets, 2);
    for (size_t i = 0; i < COUNT_OF(none); i++) none[i] = -1;
    const struct { int32_t *where, value; } wrong[] = {{&ids[5], -1}, {&ids[5], 97}, {&targets[7], 97}, {&targets[7], -2}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const int32_t was = *wrong[i].where;
        *wrong[i].where = wrong[i].value;
        assert_int_equal(dart_trainer_step(trainer, &(dart_train_batch){.ids = ids, .targets = targets}, 1e-2, NULL), DART_INVALID_ARGUMENT);
        *wrong[i].where = was;
    }
    assert_int_equal(dart_trainer_gradient(trainer, &(dart_train_batch){.ids = ids, .targets = none}, &result), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_gradient(trainer, &(dart_train_batch){.ids = ids}, &result), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_gradient(trainer, NULL, &result), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_step(trainer, &(dart_train_batch){.ids = ids, .targets = targets}, -1, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_step(trainer, &(dart_train_batch){.ids = ids, .targets = targets}, NAN, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_read(trainer, DART_TRAIN_WEIGHT, 1000, &(float){0}), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_export(trainer, "no such folder"), DART_IO);
    must_train(trainer, dart_trainer_step(trainer, &(dart_train_batch){.ids = ids, .targets = targets}, 1e-2, NULL), "step");
    must_train(other, dart_trainer_step(other, &(dart_train_batch){.ids = ids, .targets = targets}, 1e-2, NULL), "step");
    assert_same_bits(trainer, other, DART_TRAIN_WEIGHT);
    const dart_trainer_options bad[] = {{.L = 0}, {.L = 8, .keep = 4}, {.L = 8, .beta1 = 1}, {.L = 8, .beta1 = -2}, {.L = 8, .beta2 = -0.5f},
                                        {.L = 8, .eps = NAN}, {.L = 8, .weight_decay = -1}, {.L = 8, .clip = -1}, {.L = 8, .loss_scale = 3},
                                        {.L = 8, .loss_scale = 0.5f}, {.L = 8, .loss_scale = -1}, {.L = 8, .loss_scale = NAN},
                                        {.L = 8, .loss_scale = 8589934592.0f},
                                        {.B = 1 << 20, .L = 1 << 20}, {.L = 8, .weights = (dart_storage)9},
                                        {.L = 8, .activations = (dart_storage)9}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) assert_int_equal(dart_trainer_create(device, &small, &bad[i], &no), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_create(device, &(dart_model_config){.V = 5}, &(dart_trainer_options){.L = 8}, &no), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_open(device, "no such folder", &(dart_trainer_options){.L = 8}, &no), DART_IO);
    assert_null(no);
    assert_int_equal(dart_trainer_step(NULL, NULL, 0, NULL), DART_INVALID_ARGUMENT);
    dart_trainer_destroy(&trainer);
    dart_trainer_destroy(&other);
    dart_trainer_destroy(&no);
}

/* Batches made ready during the step before leave the bits of dart_trainer_step, and calls out of order are refused. */
static void goes_ahead(void **unused)
{
    (void)unused;
    enum { STEPS = 4, PARTS = 2, TOKENS = SMALL_B * SMALL_L };
    int32_t ids[PARTS * TOKENS], targets[PARTS * TOKENS];
    const dart_train_batch batch = {.count = PARTS, .ids = ids, .targets = targets};
    dart_trainer *plain = make_small((dart_trainer_options){.seed = 1}, true), *ahead = make_small((dart_trainer_options){.seed = 1}, true);
    dart_train_result expected[STEPS], result;
    float value;
    for (uint32_t i = 0; i < STEPS; i++) {
        for (uint32_t part = 0; part < PARTS; part++) small_batch(ids + part * TOKENS, targets + part * TOKENS, 10 * i + part);
        must_train(plain, dart_trainer_step(plain, &batch, 1e-2, &expected[i]), "step");
    }
    assert_int_equal(dart_trainer_start(ahead, 1e-2), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_finish(ahead, &result), DART_INVALID_ARGUMENT);
    for (uint32_t i = 0; i <= STEPS; i++) {
        if (i > 0) {
            must_train(ahead, dart_trainer_start(ahead, 1e-2), "start");
            assert_int_equal(dart_trainer_start(ahead, 1e-2), DART_INVALID_ARGUMENT);
            assert_int_equal(dart_trainer_evaluate(ahead, &batch, &result), DART_INVALID_ARGUMENT);
            assert_int_equal(dart_trainer_read(ahead, DART_TRAIN_WEIGHT, 0, &value), DART_INVALID_ARGUMENT);
            assert_int_equal(dart_trainer_save(ahead, ".", NULL), DART_INVALID_ARGUMENT);
        }
        for (uint32_t part = 0; part < PARTS; part++) small_batch(ids + part * TOKENS, targets + part * TOKENS, 10 * i + part);
        if (i < STEPS) must_train(ahead, dart_trainer_prepare(ahead, &batch), "prepare");
        memset(ids, 0xFF, sizeof ids);
        if (i == 0) continue;
        must_train(ahead, dart_trainer_finish(ahead, &result), "finish");
        assert_memory_equal(&result.loss, &expected[i - 1].loss, sizeof result.loss);
        assert_int_equal(result.correct, expected[i - 1].correct);
    }
    assert_int_equal(dart_trainer_prepare(ahead, &batch), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_start(ahead, 1e-2), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_trainer_steps(ahead), STEPS);
    assert_same_bits(plain, ahead, DART_TRAIN_WEIGHT);
    assert_same_bits(plain, ahead, DART_TRAIN_SQUARE);
    dart_trainer_destroy(&plain);
    dart_trainer_destroy(&ahead);
}

/* A loss that is not finite changes nothing. */
static void skips(void **unused)
{
    (void)unused;
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    dart_trainer *trainer = make_small((dart_trainer_options){.seed = 1}, true), *other = make_small((dart_trainer_options){.seed = 1}, true);
    dart_train_result result;
    small_batch(ids, targets, 2);
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    /* A rate that throws the weights out of range, so that the next loss is not finite. */
    must_train(trainer, dart_trainer_step(trainer, &batch, 9e5, &result), "step");
    must_train(other, dart_trainer_step(other, &batch, 9e5, &result), "step");
    must_train(trainer, dart_trainer_step(trainer, &batch, 9e5, &result), "step");
    print_message("  norm %g\n", result.norm);
    if (result.skipped) {
        assert_true(isinf(result.norm));
        assert_int_equal(dart_trainer_steps(trainer), 1);
        assert_same_bits(trainer, other, DART_TRAIN_WEIGHT);
        assert_same_bits(trainer, other, DART_TRAIN_MEAN);
    } else {
        assert_true(isfinite(result.norm));
        assert_int_equal(dart_trainer_steps(trainer), 2);
    }
    dart_trainer_destroy(&trainer);
    dart_trainer_destroy(&other);
}

/* Sequences of many lengths in one row, and each in a row of its own with nothing to learn behind it: sums in another order. */
static void packs(void **unused)
{
    (void)unused;
    static const uint32_t lengths[] = {7, 1, 0, SMALL_L, 4, 18};
    enum { DOCUMENTS = COUNT_OF(lengths), T = 3 * SMALL_L };
    int32_t ids[T], targets[T], cu[DOCUMENTS + 2] = {0}, row_ids[DOCUMENTS * SMALL_L] = {0}, row_targets[DOCUMENTS * SMALL_L];
    dart_model_config config = small;
    dart_trainer *packed = NULL, *rows = NULL;
    dart_train_result of_packed, of_rows;
    config.sma = true;
    for (uint32_t i = 0; i < T; i++) {
        ids[i] = (int32_t)(base_mix(77 + i) % small.V);
        targets[i] = -1;
    }
    for (uint32_t i = 0; i < DOCUMENTS * SMALL_L; i++) row_targets[i] = -1;
    for (uint32_t i = 0, t = 0; i < DOCUMENTS; i++) {
        cu[i] = (int32_t)t;
        for (uint32_t k = 0; k < lengths[i]; k++, t++) {
            targets[t] = (int32_t)(base_mix(99 + t) % small.V);
            row_ids[i * SMALL_L + k] = ids[t];
            row_targets[i * SMALL_L + k] = targets[t];
        }
        cu[i + 1] = (int32_t)t;
    }
    assert_true(T - cu[DOCUMENTS] <= SMALL_L); /* the rest is one more, without a target */
    cu[DOCUMENTS + 1] = T;
    const dart_trainer_options of_both = {.L = SMALL_L, .seed = 5};
    dart_trainer_options options = of_both;
    options.B = 3;
    options.documents = DOCUMENTS + 1;
    must(dart_trainer_create(device, &config, &options, &packed), "create");
    options = of_both;
    options.B = DOCUMENTS;
    must(dart_trainer_create(device, &config, &options, &rows), "create");
    dart_train_batch batch = {.ids = ids, .targets = targets, .cu = cu};
    must_train(packed, dart_trainer_gradient(packed, &batch, &of_packed), "gradient");
    must_train(rows, dart_trainer_gradient(rows, &(dart_train_batch){.ids = row_ids, .targets = row_targets}, &of_rows), "gradient");
    assert_true(fabs(of_packed.loss - of_rows.loss) <= LOSS_TOLERANCE);
    assert_true(of_packed.labels == of_rows.labels && of_packed.correct == of_rows.correct);
    dart_train_parameter p;
    for (uint32_t i = 0; dart_trainer_parameter(packed, i, &p); i++) {
        float *got = read_values(packed, DART_TRAIN_GRADIENT, i), *expected = read_values(rows, DART_TRAIN_GRADIENT, i);
        double difference = 0, norm = 0;
        for (uint64_t k = 0; k < p.elements; k++) {
            difference += ((double)got[k] - (double)expected[k]) * ((double)got[k] - (double)expected[k]);
            norm += (double)expected[k] * (double)expected[k];
        }
        if (difference > GRADIENT_TOLERANCE * GRADIENT_TOLERANCE * norm) fail_msg("%s: off by %.1e", p.name, sqrt(difference / norm));
        free(got);
        free(expected);
    }
    const dart_train_batch unasked = {.ids = row_ids, .targets = row_targets, .cu = cu}; /* cu without the option */
    assert_int_equal(dart_trainer_gradient(rows, &unasked, &of_rows), DART_INVALID_ARGUMENT);
    batch.cu = NULL;
    assert_int_equal(dart_trainer_gradient(packed, &batch, &of_packed), DART_INVALID_ARGUMENT);
    batch.cu = cu;
    cu[DOCUMENTS + 1]--;
    assert_int_equal(dart_trainer_gradient(packed, &batch, &of_packed), DART_INVALID_ARGUMENT);
    cu[DOCUMENTS + 1]++;
    cu[1] = SMALL_L + 1; /* longer than L, and falling after it */
    assert_int_equal(dart_trainer_gradient(packed, &batch, &of_packed), DART_INVALID_ARGUMENT);
    dart_trainer_destroy(&packed);
    dart_trainer_destroy(&rows);
}

/* ---- f16 ---- */

static double square_distance(const float *got, const float *expected, uint64_t count, double *norm)
{
    double difference = 0;
    for (uint64_t i = 0; i < count; i++) {
        difference += ((double)got[i] - (double)expected[i]) * ((double)got[i] - (double)expected[i]);
        *norm += (double)expected[i] * (double)expected[i];
    }
    return difference;
}

/* The relative L2 distance of all values of two trainers together; *worst, unless NULL, is that of the parameter where it is largest. */
static double apart(dart_trainer *a, dart_trainer *b, dart_train_values values, double *worst)
{
    dart_train_parameter p;
    double difference = 0, norm = 0;
    for (uint32_t i = 0; dart_trainer_parameter(a, i, &p); i++) {
        float *of_a = read_values(a, values, i), *of_b = read_values(b, values, i);
        double own = 0;
        const double off = square_distance(of_a, of_b, p.elements, &own);
        if (worst != NULL && off > *worst * *worst * own) *worst = own > 0 ? sqrt(off / own) : INFINITY;
        difference += off;
        norm += own;
        free(of_a);
        free(of_b);
    }
    return sqrt(difference / norm);
}

/* Relative. A value passes through about ten roundings of 2^-11 a layer, there and back, in three layers: sqrt(60) of them make 4e-3. That is for
 * all parameters together; of one alone much may cancel: f32 with roundings of 2^-24 is off by 5.5e-6, and f16 has 2^13 times as much. */
#define F16_TOLERANCE 4e-3
#define F16_WORST 4.5e-2

/* Every level of what is kept leaves the same bits, and they are those of the loss itself, whatever S. */
static void gradients_agree_in_f16(void **unused)
{
    (void)unused;
    enum { B = 2, LENGTH = 27 };
    data d = {0};
    open_data(&d, "grad-model", "whole.safetensors");
    int32_t *ids = elements(&d, "ids"), *targets = elements(&d, "target");
    float *loss = elements(&d, "loss"), *norm = elements(&d, "norm");
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    dart_trainer *first = NULL;
    for (uint32_t keep = 0; keep <= 3; keep++) {
        dart_train_result result;
        dart_trainer *trainer = open_trainer("grad-model", (dart_trainer_options){.B = B, .L = LENGTH, .keep = keep, .weights = DART_STORAGE_F16,
                                                                                  .loss_scale = 1024});
        must_train(trainer, dart_trainer_gradient(trainer, &batch, &result), "gradient");
        const double l2 = worst_distance(trainer, DART_TRAIN_GRADIENT, &d, "grad.");
        print_message("  keep %u: loss off by %.1e, norm by %.1e, gradients by %.1e\n", keep, fabs(result.loss - (double)loss[0]),
                      fabs(result.norm / (double)norm[0] - 1), l2);
        assert_true(result.scale == 1024);
        assert_true(l2 <= F16_WORST);
        assert_true(fabs(result.loss / (double)loss[0] - 1) <= F16_TOLERANCE);
        assert_true(fabs(result.norm / (double)norm[0] - 1) <= F16_TOLERANCE);
        if (first == NULL) {
            first = trainer;
            continue;
        }
        assert_same_bits(first, trainer, DART_TRAIN_GRADIENT);
        dart_trainer_destroy(&trainer);
    }
    dart_trainer_destroy(&first);
    free(ids);
    free(targets);
    free(loss);
    free(norm);
    close_data(&d);
}

/* Moments, which show a factor in the gradients that the quotient of AdamW would hide, with and without clipping. */
static void steps_agree_in_f16(void **unused)
{
    (void)unused;
    enum { STEPS = 5 };
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    small_batch(ids, targets, 5);
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    for (int clipped = 0; clipped <= 1; clipped++) {
        dart_trainer_options options = {.seed = 7, .clip = clipped ? 0.25f : 0};
        dart_trainer *exact = make_small(options, true);
        options.weights = DART_STORAGE_F16;
        dart_trainer *half = make_small(options, true);
        for (int i = 0; i < STEPS; i++) {
            dart_train_result expected, result, before;
            must_train(exact, dart_trainer_step(exact, &batch, 1e-3, &expected), "step");
            must_train(half, dart_trainer_evaluate(half, &batch, &before), "evaluate");
            must_train(half, dart_trainer_step(half, &batch, 1e-3, &result), "step");
            assert_true(before.loss == result.loss && before.correct == result.correct);
            assert_true(result.scale == 65536 && expected.scale == 1 && !result.skipped);
            assert_true(!clipped || result.norm > 0.5);
            assert_true(fabs(result.loss / expected.loss - 1) <= F16_TOLERANCE);
            assert_true(fabs(result.norm / expected.norm - 1) <= F16_TOLERANCE);
        }
        const double mean = apart(half, exact, DART_TRAIN_MEAN, NULL), square = apart(half, exact, DART_TRAIN_SQUARE, NULL);
        print_message("  clip %g: means off by %.1e, squares by %.1e\n", (double)options.clip, mean, square);
        assert_true(mean <= F16_TOLERANCE);
        assert_true(square <= 2 * F16_TOLERANCE);
        dart_trainer_destroy(&exact);
        dart_trainer_destroy(&half);
    }
}

/* 32 parts make shares of 5e-4, and gradients of some activations so small that f16 has few bits or none for them. */
static void small_gradients_survive(void **unused)
{
    (void)unused;
    enum { PARTS = 32, TOKENS = SMALL_B * SMALL_L };
    int32_t *ids = calloc(PARTS * TOKENS, sizeof *ids), *targets = calloc(PARTS * TOKENS, sizeof *targets);
    assert_true(ids != NULL && targets != NULL);
    for (uint32_t part = 0; part < PARTS; part++) small_batch(ids + part * TOKENS, targets + part * TOKENS, 5);
    const dart_train_batch batch = {.count = PARTS, .ids = ids, .targets = targets};
    dart_train_result exact, lost, kept;
    dart_trainer *f32 = make_small((dart_trainer_options){.seed = 7}, true);
    dart_trainer *without = make_small((dart_trainer_options){.seed = 7, .weights = DART_STORAGE_F16, .loss_scale = 1}, true);
    dart_trainer *with = make_small((dart_trainer_options){.seed = 7, .weights = DART_STORAGE_F16}, true);
    must_train(f32, dart_trainer_gradient(f32, &batch, &exact), "gradient");
    must_train(without, dart_trainer_gradient(without, &batch, &lost), "gradient");
    must_train(with, dart_trainer_gradient(with, &batch, &kept), "gradient");
    double worst[2] = {0, 0};
    const double off[2] = {apart(without, f32, DART_TRAIN_GRADIENT, &worst[0]), apart(with, f32, DART_TRAIN_GRADIENT, &worst[1])};
    print_message("  gradients off by %.1e, in the worst parameter %.1e, with S 1; by %.1e, %.1e with S %g\n", off[0], worst[0], off[1], worst[1],
                  kept.scale);
    assert_true(worst[0] > 4 * F16_WORST);
    assert_true(off[1] <= F16_TOLERANCE && worst[1] <= F16_WORST);
    assert_true(lost.loss == kept.loss);
    dart_trainer_destroy(&f32);
    dart_trainer_destroy(&without);
    dart_trainer_destroy(&with);
    free(ids);
    free(targets);
}

/* From an S that overflows. A trainer that begins at the S of the first good step has the same bits. */
static void scale_adapts(void **unused)
{
    (void)unused;
    enum { STEPS = 40, EVERY = 3 };
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    small_batch(ids, targets, 5);
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    dart_trainer_options options = {.seed = 7, .weights = DART_STORAGE_F16, .loss_scale = 4294967296.0f, .scale_steps = EVERY, .clip = 1};
    dart_trainer *trainer = make_small(options, true), *fresh = make_small(options, true), *other = NULL;
    dart_train_result result, begin = {0};
    double expected = (double)options.loss_scale;
    uint32_t good = 0, skipped = 0, doubled = 0, taken = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        must_train(trainer, dart_trainer_step(trainer, &batch, 1e-2, &result), "step");
        assert_true(result.scale == expected);
        assert_true(isfinite(result.loss));
        assert_true(result.skipped ? isinf(result.norm) : isfinite(result.norm));
        if (other != NULL) must_train(other, dart_trainer_step(other, &batch, 1e-2, NULL), "step");
        if (result.skipped) {
            if (taken == 0) assert_same_bits(trainer, fresh, DART_TRAIN_WEIGHT);
            expected /= 2;
            good = 0;
            skipped++;
            continue;
        }
        if (taken++ == 0) {
            begin = result;
            options.loss_scale = (float)result.scale;
            other = make_small(options, true);
            must_train(other, dart_trainer_step(other, &batch, 1e-2, NULL), "step");
        }
        if (++good == EVERY) {
            good = 0;
            doubled++;
            expected *= 2;
        }
    }
    print_message("  %u steps skipped, S doubled %u times; loss %.4f, then %.4f\n", skipped, doubled, begin.loss, result.loss);
    assert_true(skipped > 2 && doubled > 2);
    assert_int_equal(dart_trainer_steps(trainer), taken);
    assert_non_null(other);
    assert_same_bits(trainer, other, DART_TRAIN_WEIGHT);
    assert_same_bits(trainer, other, DART_TRAIN_SQUARE);
    assert_true(result.loss < 0.8 * begin.loss);
    dart_trainer_destroy(&trainer);
    dart_trainer_destroy(&fresh);
    dart_trainer_destroy(&other);
}

/* Gradients between steps are found at a lower S where they must, and the steps do not notice. */
static void gradients_between_steps(void **unused)
{
    (void)unused;
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    small_batch(ids, targets, 5);
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    const dart_trainer_options options = {.seed = 7, .weights = DART_STORAGE_F16, .loss_scale = 4294967296.0f};
    dart_trainer *asked = make_small(options, true), *plain = make_small(options, true), *exact = make_small((dart_trainer_options){.seed = 7}, true);
    dart_train_result result;
    must_train(exact, dart_trainer_gradient(exact, &batch, &result), "gradient");
    must_train(asked, dart_trainer_gradient(asked, &batch, &result), "gradient");
    assert_true(!result.skipped && result.scale < 4294967296.0 && isfinite(result.norm));
    assert_true(apart(asked, exact, DART_TRAIN_GRADIENT, NULL) <= F16_TOLERANCE);
    must_train(asked, dart_trainer_step(asked, &batch, 1e-2, &result), "step");
    assert_true(result.skipped && result.scale == 4294967296.0);
    must_train(plain, dart_trainer_step(plain, &batch, 1e-2, NULL), "step");
    for (int i = 0; i < 20; i++) {
        must_train(asked, dart_trainer_step(asked, &batch, 1e-2, &result), "step");
        must_train(plain, dart_trainer_step(plain, &batch, 1e-2, NULL), "step");
    }
    assert_true(!result.skipped);
    assert_same_bits(asked, plain, DART_TRAIN_WEIGHT);
    dart_trainer_destroy(&asked);
    dart_trainer_destroy(&plain);
    dart_trainer_destroy(&exact);
}

/* S and the count of good steps are part of a run. */
static void resumes_in_f16(void **unused)
{
    (void)unused;
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    char folder[] = "model_training.XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    small_batch(ids, targets, 5);
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    dart_trainer_options options = {.B = SMALL_B, .L = SMALL_L, .seed = 7, .weights = DART_STORAGE_F16, .loss_scale = 65536, .scale_steps = 5};
    dart_trainer *whole = make_small(options, true), *part = NULL;
    dart_train_result expected[12], result;
    for (int i = 0; i < 12; i++) must_train(whole, dart_trainer_step(whole, &batch, 1e-2, &expected[i]), "step");
    part = make_small(options, true);
    for (int i = 0; i < 7; i++) must_train(part, dart_trainer_step(part, &batch, 1e-2, &result), "step");
    must_train(part, dart_trainer_save(part, folder, "note"), "save");
    dart_trainer_destroy(&part);
    options.loss_scale = 2;
    must(dart_trainer_resume(device, folder, &options, &part), "resume");
    for (int i = 7; i < 12; i++) {
        must_train(part, dart_trainer_step(part, &batch, 1e-2, &result), "step");
        assert_true(result.scale == expected[i].scale && result.loss == expected[i].loss);
    }
    assert_true(expected[0].scale == 65536 && expected[11].scale == 4 * 65536);
    assert_same_bits(whole, part, DART_TRAIN_WEIGHT);
    assert_same_bits(whole, part, DART_TRAIN_SQUARE);
    dart_trainer_destroy(&part);
    /* Another storage goes on with the same run, without S. */
    options.weights = DART_STORAGE_BF16;
    must(dart_trainer_resume(device, folder, &options, &part), "resume");
    must_train(part, dart_trainer_step(part, &batch, 1e-2, &result), "step");
    assert_true(result.scale == 1 && !result.skipped);
    dart_trainer_destroy(&whole);
    dart_trainer_destroy(&part);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(remove(path), 0);
    snprintf(path, sizeof path, "%s/training.safetensors", folder);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* The mean is then the clipped gradient itself, and the square that of the last step. */
static void betas_of_zero(void **unused)
{
    (void)unused;
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    dart_train_parameter p;
    small_batch(ids, targets, 5);
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    dart_trainer *trainer = make_small((dart_trainer_options){.seed = 7, .beta1 = DART_BETA_ZERO, .beta2 = DART_BETA_ZERO}, true);
    dart_trainer *usual = make_small((dart_trainer_options){.seed = 7}, true);
    dart_trainer *named = make_small((dart_trainer_options){.seed = 7, .beta1 = 0.9f, .beta2 = 0.999f}, true);
    for (int i = 0; i < 3; i++) {
        train_once(trainer, &batch);
        train_once(usual, &batch);
        train_once(named, &batch);
    }
    assert_same_bits(usual, named, DART_TRAIN_WEIGHT);
    for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p); i++) {
        float *gradient = read_values(trainer, DART_TRAIN_GRADIENT, i), *mean = read_values(trainer, DART_TRAIN_MEAN, i);
        float *square = read_values(trainer, DART_TRAIN_SQUARE, i);
        for (uint64_t k = 0; k < p.elements; k++) {
            assert_true(mean[k] == gradient[k]);
            assert_true(fabsf(square[k] - gradient[k] * gradient[k]) <= 1e-6f * square[k]);
        }
        free(gradient);
        free(mean);
        free(square);
    }
    dart_trainer_destroy(&trainer);
    dart_trainer_destroy(&usual);
    dart_trainer_destroy(&named);
}

/* ---- Memory ---- */

/* Bytes of a trainer at level 2: parameters with moments, gradients and copies; what each layer keeps; what all layers share; scratch memory. */
typedef struct account {
    double parameters, kept, shared, scratch;
} account;

static account account_of(const dart_model_config *c, dart_trainer *trainer, double B, double length, double size)
{
    account a = {0};
    dart_train_parameter p;
    const double T = B * length, I = (double)c->H * c->P, M = ceil(length / c->S), memory = I * c->N, C = fmin(c->S, length);
    const double projected = (double)model_config_in_proj_row(c) + model_config_conv(c) + model_config_sma_proj(c) + model_config_sma_conv(c);
    for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p); i++)
        a.parameters += (double)p.elements * (p.rank == 2 && size < 4 ? 16 + size : 16);
    /* The stream and r in f32, memories, in 16 bits with scales, and lse. */
    const double scales = size < 4 ? 4 * B * M * memory / c->P : 0;
    a.kept = c->layers * (4 * T * c->W + size * B * M * memory + scales + 4 * T * I + 4 * T * c->H);
    /* The rest of one layer, and gradients of it: in f32 those of the stream and of memories. The stream behind the last layer. */
    const double rest = c->W + projected + 2 * I;
    a.shared = 2 * rest * T * size + 4 * T * c->W + 4 * T * c->W + size * T * I + 4 * B * M * memory;
    /* As ops_backward.h says of the op that takes the most: the scan, SMA with its qn, en and rho, or the cross entropy. */
    const double scan = 8 * B * M * c->G * C * C + 8 * B * M * memory + 16 * T * c->H;
    const double attention = 8 * T * c->H * M + 4 * T * c->G * (c->N + c->P) + 4 * B * M * memory + 4 * T * c->G * (2.0 * c->N + c->P) +
                             4 * B * M * c->H * c->N;
    const double loss = 2 * (fmin(67108864, 4 * T * c->V) + size * T * c->W);
    a.scratch = fmax(fmax(scan, attention), loss);
    return a;
}

static void memory_is_as_counted(void **unused)
{
    (void)unused;
    enum { ROWS = 2, LENGTH = 512 };
    static const dart_model_config config = {.sma = true, .V = 256, .W = 128, .layers = 8, .H = 4, .P = 64, .G = 1, .N = 32, .K = 4, .S = 64,
                                             .eps = 1e-5f, .sma_eps = 1e-5f};
    int32_t *ids = calloc(ROWS * LENGTH, sizeof *ids), *targets = calloc(ROWS * LENGTH, sizeof *targets);
    assert_true(ids != NULL && targets != NULL);
    for (uint32_t i = 0; i < ROWS * LENGTH; i++) {
        ids[i] = (int32_t)(base_mix(i) % config.V);
        targets[i] = (int32_t)(base_mix(i + 1) % config.V);
    }
    for (dart_storage weights = DART_STORAGE_F32; weights <= DART_STORAGE_F16; weights++) {
        dart_trainer *trainer = NULL;
        const dart_trainer_options options = {.B = ROWS, .L = LENGTH, .keep = 2, .weights = weights};
        assert_int_equal(dart_device_bytes(device), 0);
        must(dart_trainer_create(device, &config, &options, &trainer), "create");
        const double made = (double)dart_device_bytes(device);
        const dart_train_batch batch = {.ids = ids, .targets = targets};
        must_train(trainer, dart_trainer_step(trainer, &batch, 1e-3, NULL), "step");
        const double used = (double)dart_device_bytes(device);
        const account a = account_of(&config, trainer, ROWS, LENGTH, weights == DART_STORAGE_F32 ? 4 : 2);
        const double buffers = a.parameters + a.kept + a.shared, count = buffers + a.scratch;
        print_message("  %s: %.2f MB, %.2f MB of scratch memory in it; counted %.2f = parameters %.2f + kept %.2f + shared %.2f + scratch %.2f\n",
                      weights == DART_STORAGE_F32 ? "f32" : "f16", used / 1e6, (used - made) / 1e6, count / 1e6, a.parameters / 1e6, a.kept / 1e6,
                      a.shared / 1e6, a.scratch / 1e6);
        assert_true(fabs(made / buffers - 1) <= 0.01);
        assert_true(fabs(used / count - 1) <= 0.15);
        dart_trainer_destroy(&trainer);
    }
    free(ids);
    free(targets);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_as_counted),
        cmocka_unit_test(betas_of_zero),
        cmocka_unit_test(gradients_agree_in_f16), cmocka_unit_test(steps_agree_in_f16), cmocka_unit_test(small_gradients_survive),
        cmocka_unit_test(scale_adapts),           cmocka_unit_test(gradients_between_steps), cmocka_unit_test(resumes_in_f16),
        cmocka_unit_test(gradients_agree), cmocka_unit_test(steps_agree), cmocka_unit_test(learns), cmocka_unit_test(exports),
        cmocka_unit_test(refuses),         cmocka_unit_test(skips),       cmocka_unit_test(share_a_device),
        cmocka_unit_test(goes_ahead),      cmocka_unit_test(packed_gradients_agree), cmocka_unit_test(packs),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
