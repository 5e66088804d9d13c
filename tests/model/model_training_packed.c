/* Training on packed rows: one of the files of model_training. */
#include "train_cases.h"

void packed_gradients_agree(void **unused)
{
    (void)unused;
    agree("packed.safetensors", 2);
}

/* Sequences of many lengths in one row, and each in a row of its own with nothing to learn behind it: sums in another order. */
void packs(void **unused)
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
