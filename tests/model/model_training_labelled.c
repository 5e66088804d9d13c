/* Training where few tokens have a target: one of the files of model_training. The end of the last layer is then computed for those tokens only. */
#define _POSIX_C_SOURCE 200809L
#include "train_cases.h"

#include "train/trainer.h"

#include <unistd.h>

enum { B = 8, LENGTH = 64, T = B * LENGTH, PARTS = 4 };

/* The part of a batch's targets that a token belongs to. */
static uint32_t in_turn(uint32_t t) { return t % PARTS; }              /* as many in each chunk */
static uint32_t anywhere(uint32_t t) { return (uint32_t)(base_mix(31 + t) % PARTS); }
static uint32_t quarter(uint32_t t) { return t % LENGTH / (LENGTH / PARTS); } /* the first chunks have none, but for part 0 */
static uint32_t late_anywhere(uint32_t t)                              /* in the last half, but for part 0 */
{
    return t % LENGTH < LENGTH / 2 || t % 4 == 3 ? 0 : (uint32_t)(1 + base_mix(17 + t) % (PARTS - 1));
}

typedef struct values { double *of[64]; } values;

static void add_gradients(dart_trainer *trainer, double by, values *to)
{
    dart_train_parameter p;
    for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p); i++) {
        assert_true(i < COUNT_OF(to->of));
        float *own = read_values(trainer, DART_TRAIN_GRADIENT, i);
        if (to->of[i] == NULL) to->of[i] = calloc((size_t)p.elements, sizeof *to->of[i]);
        assert_non_null(to->of[i]);
        for (uint64_t k = 0; k < p.elements; k++) to->of[i][k] += by * (double)own[k];
        free(own);
    }
}

/* Relative L2 distance: of the worst parameter, or of all together. */
static double apart(dart_trainer *trainer, const values *got, const values *expected, bool together)
{
    dart_train_parameter p;
    double worst = 0, differences = 0, norms = 0;
    for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p); i++) {
        double difference = 0, norm = 0;
        for (uint64_t k = 0; k < p.elements; k++) {
            const double d = got->of[i][k] - expected->of[i][k];
            difference += d * d;
            norm += expected->of[i][k] * expected->of[i][k];
        }
        const double l2 = norm > 0 ? sqrt(difference / norm) : difference;
        if (!(l2 <= worst)) worst = l2;
        differences += difference;
        norms += norm;
    }
    return together ? sqrt(differences / norms) : worst;
}

static void free_values(values *v)
{
    for (size_t i = 0; i < COUNT_OF(v->of); i++) free(v->of[i]);
    *v = (values){0};
}

static int32_t ids[T], targets[T];

/* A model that has learnt a little: at first a state-memory attention adds nothing. */
static void write_model(const dart_model_config *config, const char *folder)
{
    dart_trainer *trainer = NULL;
    must(dart_trainer_create(device, config, &(dart_trainer_options){.B = B, .L = LENGTH, .seed = 3}, &trainer), "create");
    for (uint32_t t = 0; t < T; t++) {
        ids[t] = (int32_t)(base_mix(7 + t) % config->V);
        targets[t] = (int32_t)(base_mix(70007 + t) % config->V);
    }
    for (int i = 0; i < 4; i++) train_once(trainer, &(dart_train_batch){.ids = ids, .targets = targets});
    must_train(trainer, dart_trainer_export(trainer, folder), "export");
    dart_trainer_destroy(&trainer);
}

/* A loss is the mean over targets: gradients of batches that share the targets of one batch out add up to its gradient, each times its targets.
 * In 16 bits the sum and the gradient of the whole batch are as far from what f32 gives, `exact`, and no farther from one another than both of
 * that. exact: written with f32. */
static void add_up(const char *folder, dart_trainer_options options, uint32_t (*part_of)(uint32_t), const char *name, values *exact)
{
    int32_t some[T];
    values sum = {{0}}, whole = {{0}};
    dart_train_result result;
    dart_trainer *trainer = NULL;
    double loss = 0;
    uint64_t labels = 0;
    options.B = B;
    options.L = LENGTH;
    must(dart_trainer_open(device, folder, &options, &trainer), folder);
    for (uint32_t part = 0; part < PARTS; part++) {
        for (uint32_t t = 0; t < T; t++) some[t] = part_of(t) == part ? targets[t] : -1;
        must_train(trainer, dart_trainer_gradient(trainer, &(dart_train_batch){.ids = ids, .targets = some}, &result), "gradient");
        if (result.labels < T / 2 - 64) assert_true(trainer_is_labelled(trainer)); /* rows are rounded up to a multiple of 64 */
        if (part_of == in_turn) assert_int_equal(trainer->rows.of_chunk > 0, trainer->sma);
        const uint32_t chunk = trainer->config.transformer ? 1 : trainer->config.S, passed = trainer->rows.quiet;
        uint32_t first = LENGTH;
        for (uint32_t t = 0; t < T; t++)
            if (some[t] >= 0 && t % LENGTH < first) first = t % LENGTH;
        assert_true(passed <= first && passed % chunk == 0);
        if (part_of == quarter && part > 0) assert_int_equal(passed > 0, !trainer->config.transformer);
        if (!trainer_is_labelled(trainer)) assert_int_equal(passed, 0);
        add_gradients(trainer, (double)result.labels, &sum);
        loss += result.loss * (double)result.labels;
        labels += result.labels;
        dart_train_result evaluated;
        must_train(trainer, dart_trainer_evaluate(trainer, &(dart_train_batch){.ids = ids, .targets = some}, &evaluated), "evaluate");
        assert_true(evaluated.loss == result.loss);
        assert_int_equal(evaluated.correct, result.correct);
    }
    must_train(trainer, dart_trainer_gradient(trainer, &(dart_train_batch){.ids = ids, .targets = targets}, &result), "gradient");
    assert_int_equal(labels, T);
    add_gradients(trainer, (double)T, &whole);
    const bool is_exact = options.weights == DART_STORAGE_DEFAULT;
    const double off = apart(trainer, &sum, &whole, !is_exact);
    print_message("  %s, keep %u: gradients off by %.1e, loss by %.1e\n", name, options.keep, off, fabs(loss / T - result.loss));
    assert_true(fabs(loss / T - result.loss) <= LOSS_TOLERANCE);
    if (is_exact) {
        assert_true(off <= GRADIENT_TOLERANCE);
        *exact = whole;
    } else {
        const double of_sum = apart(trainer, &sum, exact, true), of_whole = apart(trainer, &whole, exact, true);
        print_message("    in 16 bits the sum is off by %.1e of f32, the whole by %.1e\n", of_sum, of_whole);
        assert_true(off <= of_sum + of_whole);
        assert_true(of_sum <= 2 * of_whole);
        free_values(&whole);
    }
    free_values(&sum);
    dart_trainer_destroy(&trainer);
}

static const dart_model_config transformer = {.transformer = true, .V = 97, .W = 32, .layers = 2, .H = 4, .P = 8, .G = 2, .F = 24, .base = 100,
                                              .eps = 1e-5f};

void few_targets(void **unused)
{
    (void)unused;
    static const struct { const char *name; uint32_t (*part_of)(uint32_t); } shares[] = {
        {"in turn", in_turn}, {"anywhere", anywhere}, {"quarters", quarter}, {"late", late_anywhere}};
    dart_model_config kinds[] = {small, small, small, transformer};
    static const char *names[] = {"DART", "DART, c of its own", "Mamba-2", "Transformer"};
    kinds[1].independent_c = true;
    kinds[2].sma = false;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        char folder[] = "model_training.XXXXXX";
        assert_non_null(mkdtemp(folder));
        write_model(&kinds[k], folder);
        const size_t count = k == 0 ? COUNT_OF(shares) : 2; /* the others are alike there */
        for (size_t s = 0; s < count; s++) {
            char name[64];
            const uint32_t keep = (uint32_t)((k + s) % 4);
            snprintf(name, sizeof name, "%s, %s", names[k], shares[s].name);
            values exact = {{0}};
            add_up(folder, (dart_trainer_options){.keep = keep}, shares[s].part_of, name, &exact);
            add_up(folder, (dart_trainer_options){.keep = keep, .weights = DART_STORAGE_BF16}, shares[s].part_of, name, &exact);
            free_values(&exact);
        }
        static const char *const files[] = {"config.json", "model.safetensors"};
        for (size_t i = 0; i < COUNT_OF(files); i++) {
            char path[64];
            snprintf(path, sizeof path, "%s/%s", folder, files[i]);
            assert_int_equal(remove(path), 0);
        }
        assert_int_equal(rmdir(folder), 0);
    }
}
