/* Training of whole models against gradients and steps that another program computed in fp64: model_training DEVICE_SPEC DATA_DIR. */
#define _POSIX_C_SOURCE 200809L
#include "train_cases.h"

#include "train/trainer.h"

#include <unistd.h>

#define WEIGHT_TOLERANCE 1e-5 /* relative L2 after 20 steps; fp32 differs by 2.5e-7 */

static void gradients_agree(void **unused)
{
    (void)unused;
    agree("whole.safetensors", 0);
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

/* Steps in many submissions leave the bits of steps in few, and end where go_on says so, without a trace but in the gradients. */
static void goes_in_parts(void **unused)
{
    (void)unused;
    int32_t ids[2 * SMALL_B * SMALL_L], targets[2 * SMALL_B * SMALL_L];
    small_batch(ids, targets, 5);
    small_batch(ids + SMALL_B * SMALL_L, targets + SMALL_B * SMALL_L, 6);
    const dart_train_batch batch = {.count = 2, .ids = ids, .targets = targets};
    for (uint32_t keep = 0; keep <= 3; keep += 3) {
        asker a = {.most = UINT32_MAX};
        dart_trainer *whole = make_small((dart_trainer_options){.seed = 7, .clip = 1, .keep = keep, .slice_ms = UINT32_MAX}, true);
        dart_trainer *parts = make_small((dart_trainer_options){.seed = 7, .clip = 1, .keep = keep, .go_on = ask, .user = &a}, true);
        dart_train_result result, expected;
        assert_true(a.calls > 0);
        parts->most_work = 1; /* a launch a submission, on any device */
        parts->slice_ns = 1;
        for (uint32_t step = 0; step < 3; step++) {
            a.calls = 0;
            must_train(whole, dart_trainer_step(whole, &batch, 1e-2, &expected), "step");
            must_train(parts, dart_trainer_step(parts, &batch, 1e-2, &result), "step");
            assert_true(result.loss == expected.loss && result.norm == expected.norm && result.correct == expected.correct);
            assert_same_bits(whole, parts, DART_TRAIN_WEIGHT);
            assert_same_bits(whole, parts, DART_TRAIN_SQUARE);
            const uint32_t ends[] = {0, a.calls / 2, a.calls - 1};
            quiet = true;
            for (size_t i = 0; i < COUNT_OF(ends); i++) {
                const asker all = a;
                a = (asker){.most = ends[i]};
                assert_int_equal(dart_trainer_step(parts, &batch, 1e-2, &result), DART_CANCELLED);
                assert_int_equal(a.calls, ends[i] + 1);
                assert_int_equal(dart_trainer_steps(parts), step + 1);
                a = (asker){.most = ends[i]};
                const dart_status status = dart_trainer_evaluate(parts, &batch, &result);
                assert_int_equal(status, a.calls > ends[i] ? DART_CANCELLED : DART_OK);
                a = all;
            }
            quiet = false;
            assert_same_bits(whole, parts, DART_TRAIN_WEIGHT);
        }
        bool done = false;
        a = (asker){.most = UINT32_MAX};
        must_train(parts, dart_trainer_prepare(parts, &batch), "prepare");
        must_train(parts, dart_trainer_start(parts, 1e-2), "start");
        while (!done) must_train(parts, dart_trainer_poll(parts, &done), "poll");
        must_train(parts, dart_trainer_finish(parts, &result), "finish");
        must_train(whole, dart_trainer_step(whole, &batch, 1e-2, &expected), "step");
        assert_same_bits(whole, parts, DART_TRAIN_WEIGHT);
        dart_trainer_destroy(&whole);
        dart_trainer_destroy(&parts);
    }
}

/* A run that is not written to its end leaves the one before. */
static void files_can_be_ended(void **unused)
{
    (void)unused;
    int32_t ids[SMALL_B * SMALL_L], targets[SMALL_B * SMALL_L];
    char folder[] = "model_training.XXXXXX";
    assert_non_null(mkdtemp(folder));
    asker a = {.most = UINT32_MAX};
    const dart_trainer_options options = {.B = SMALL_B, .L = SMALL_L, .seed = 7, .go_on = ask, .user = &a};
    dart_trainer *trainer = make_small(options, true), *resumed = NULL;
    small_batch(ids, targets, 5);
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    a.calls = 0;
    train_once(trainer, &batch);
    a.calls = 0;
    must_train(trainer, dart_trainer_save(trainer, folder, "first"), "save");
    const uint32_t ends[] = {0, a.calls / 2, a.calls - 1};
    a = (asker){.most = UINT32_MAX};
    must(dart_trainer_resume(device, folder, &options, &resumed), "resume");
    const uint32_t last = a.calls - 1;
    assert_same_bits(trainer, resumed, DART_TRAIN_SQUARE);
    dart_trainer_destroy(&resumed);
    const uint64_t bytes = dart_device_bytes(device);
    quiet = true;
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        a = (asker){.most = ends[i]};
        assert_int_equal(dart_trainer_save(trainer, folder, "second"), DART_CANCELLED);
        assert_int_equal(a.calls, ends[i] + 1);
        a = (asker){.most = last * (uint32_t)i / 2};
        assert_int_equal(dart_trainer_resume(device, folder, &options, &resumed), DART_CANCELLED);
        assert_null(resumed);
        assert_int_equal(dart_device_bytes(device), bytes);
        a = (asker){.most = 0};
        assert_int_equal(dart_trainer_export(trainer, folder), DART_CANCELLED);
    }
    quiet = false;
    a = (asker){.most = UINT32_MAX};
    must(dart_trainer_resume(device, folder, &options, &resumed), "resume");
    assert_string_equal(dart_trainer_note(resumed), "first");
    dart_trainer_destroy(&resumed);
    dart_trainer_destroy(&trainer);
    char path[64];
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(remove(path), 0);
    snprintf(path, sizeof path, "%s/training.safetensors", folder);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(folder), 0); /* and nothing else was in it */
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
    dart_train_result expected[STEPS], result, between;
    float value;
    static const int32_t other[PARTS * TOKENS] = {1, 2, 3};
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
        /* The last one counts. */
        if (i < STEPS) must_train(ahead, dart_trainer_prepare(ahead, &(dart_train_batch){.ids = other, .targets = other}), "prepare");
        if (i < STEPS) must_train(ahead, dart_trainer_prepare(ahead, &batch), "prepare");
        memset(ids, 0xFF, sizeof ids);
        if (i == 0) continue;
        must_train(ahead, dart_trainer_finish(ahead, &result), "finish");
        if (i % 2 == 0)
            must_train(ahead, dart_trainer_evaluate(ahead, &(dart_train_batch){.count = PARTS, .ids = other, .targets = other}, &between),
                       "evaluate");
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_as_counted),
        cmocka_unit_test(levels_agree),
        cmocka_unit_test(betas_of_zero),
        cmocka_unit_test(gradients_agree_in_f16), cmocka_unit_test(steps_agree_in_f16), cmocka_unit_test(small_gradients_survive),
        cmocka_unit_test(scale_adapts),           cmocka_unit_test(gradients_between_steps), cmocka_unit_test(resumes_in_f16),
        cmocka_unit_test(gradients_agree), cmocka_unit_test(steps_agree), cmocka_unit_test(learns), cmocka_unit_test(exports),
        cmocka_unit_test(refuses),         cmocka_unit_test(skips),       cmocka_unit_test(share_a_device),
        cmocka_unit_test(goes_in_parts),   cmocka_unit_test(files_can_be_ended),
        cmocka_unit_test(goes_ahead),      cmocka_unit_test(packed_gradients_agree), cmocka_unit_test(packs),
        cmocka_unit_test(ranks_agree),     cmocka_unit_test(two_under_way), cmocka_unit_test(two_under_way_in_parts),
        cmocka_unit_test(refuses_under_way), cmocka_unit_test(second_can_be_ended), cmocka_unit_test(failures_beside_a_step),
        cmocka_unit_test(few_targets),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
