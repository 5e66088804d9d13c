/* What the tests of training share: values that another program computed, trainers, and comparisons of what they hold. */
#ifndef DARTLM_TESTS_TRAIN_CASES_H
#define DARTLM_TESTS_TRAIN_CASES_H

#include "model_cases.h"

#include "dartlm/train.h"

#define GRADIENT_TOLERANCE 2e-5 /* relative L2; the same definitions in fp32 differ by 5e-6 */
#define LOSS_TOLERANCE 1e-5

typedef struct data {
    safetensors *file;
    base_report report;
} data;

static inline void open_data(data *d, const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", data_folder, folder, name);
    must(base_report_init(&d->report, NULL), "report");
    must(safetensors_open(path, &d->report, &d->file), path);
}

static inline void close_data(data *d)
{
    safetensors_close(&d->file);
    base_report_destroy(&d->report);
}

/* A tensor's elements, aligned: for free(). */
static inline void *elements(const data *d, const char *name)
{
    const safetensors_tensor *tensor = safetensors_find(d->file, name);
    if (tensor == NULL) fail_msg("no tensor %s", name);
    void *copy = malloc((size_t)tensor->bytes);
    assert_non_null(copy);
    memcpy(copy, tensor->data, (size_t)tensor->bytes);
    return copy;
}

static inline void must_train(dart_trainer *trainer, dart_status status, const char *what)
{
    char text[512] = "";
    if (status == DART_OK) return;
    dart_trainer_error(trainer, text, sizeof text);
    fail_msg("%s: %s (%s)", what, dart_status_name(status), text);
}

static inline dart_trainer *open_trainer(const char *folder, dart_trainer_options options)
{
    char path[4096];
    dart_trainer *trainer = NULL;
    snprintf(path, sizeof path, "%s/%s", data_folder, folder);
    must(dart_trainer_open(device, path, &options, &trainer), path);
    return trainer;
}

static inline float *read_values(dart_trainer *trainer, dart_train_values values, uint32_t index)
{
    dart_train_parameter p;
    assert_true(dart_trainer_parameter(trainer, index, &p));
    float *to = malloc((size_t)p.elements * sizeof *to);
    assert_non_null(to);
    must_train(trainer, dart_trainer_read(trainer, values, index, to), "read");
    return to;
}

/* The largest relative L2 distance of a parameter's values from those of a file, whose names begin with `prefix`. */
static inline double worst_distance(dart_trainer *trainer, dart_train_values values, const data *d, const char *prefix)
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

static inline void assert_same_bits(dart_trainer *a, dart_trainer *b, dart_train_values values)
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
static inline void agree(const char *file, uint32_t sequences)
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

enum { SMALL_B = 3, SMALL_L = 30 };

static inline void small_batch(int32_t *ids, int32_t *targets, uint32_t seed)
{
    for (uint32_t i = 0; i < SMALL_B * SMALL_L; i++) {
        ids[i] = (int32_t)(base_mix(seed + i) % small.V);
        targets[i] = i % 3 == 0 ? -1 : (int32_t)(base_mix(seed + 1000 + i) % small.V);
    }
}

static inline dart_trainer *make_small(dart_trainer_options options, bool sma)
{
    dart_trainer *trainer = NULL;
    dart_model_config config = small;
    config.sma = sma;
    options.B = SMALL_B;
    options.L = SMALL_L;
    must(dart_trainer_create(device, &config, &options, &trainer), "create");
    return trainer;
}

/* A step of a trainer. */
static inline void train_once(dart_trainer *trainer, const dart_train_batch *batch)
{
    must_train(trainer, dart_trainer_step(trainer, batch, 1e-2, NULL), "step");
}

/* The tests of the other files of model_training. */
void packed_gradients_agree(void **unused);
void packs(void **unused);
void ranks_agree(void **unused);
void two_under_way(void **unused);
void two_under_way_in_parts(void **unused);
void refuses_under_way(void **unused);
void second_can_be_ended(void **unused);
void failures_beside_a_step(void **unused);
void gradients_agree_in_f16(void **unused);
void steps_agree_in_f16(void **unused);
void small_gradients_survive(void **unused);
void scale_adapts(void **unused);
void gradients_between_steps(void **unused);
void resumes_in_f16(void **unused);
void memory_is_as_counted(void **unused);
void levels_agree(void **unused);
void few_targets(void **unused);

#endif
