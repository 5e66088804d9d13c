/* Training with weights in f16, where the loss is scaled: one of the files of model_training. */
#define _POSIX_C_SOURCE 200809L
#include "train_cases.h"

#include <unistd.h>

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
void gradients_agree_in_f16(void **unused)
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
void steps_agree_in_f16(void **unused)
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
void small_gradients_survive(void **unused)
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
void scale_adapts(void **unused)
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
void gradients_between_steps(void **unused)
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
void resumes_in_f16(void **unused)
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
