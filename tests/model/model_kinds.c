/* Every kind of model learns what its definition says: loss and gradients of a batch against derivatives of the definition in fp64.
 * model_kinds DEVICE_SPEC DATA_DIR. */
#include "model_cases.h"
#include "conform/definition.h"
#include "train/trainer.h"

/* f32 sums of these sizes, as in model_training. */
#define GRADIENT_TOLERANCE 2e-5
#define LOSS_TOLERANCE 1e-5

enum { ROWS = 2, TOKENS = 21, ALL = ROWS * TOKENS, MOST_LAYERS = 2, SEEDS = 3 };

static double uniform(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    return 2 * base_uniform(base_mix(*state)) - 1;
}

/* ---- A model on a tape ---- */

typedef struct definition_model {
    tape *tape;
    tape_vector table, norm, head;
    definition_block blocks[MOST_LAYERS];
} definition_model;

static tape_vector *place(definition_model *m, const model_parameter *p)
{
    definition_block *b = &m->blocks[p->layer];
    tape_vector *const places[MODEL_ROLE_COUNT] = {
        [MODEL_EMBEDDING] = &m->table,           [MODEL_FINAL_NORM] = &m->norm,
        [MODEL_HEAD] = &m->head,                 [MODEL_NORM] = &b->norm,
        [MODEL_IN_PROJ] = &b->in_proj,           [MODEL_CONV_WEIGHT] = &b->conv_weight,
        [MODEL_CONV_BIAS] = &b->conv_bias,       [MODEL_DT_BIAS] = &b->dt_bias,
        [MODEL_A_LOG] = &b->a_log,               [MODEL_D] = &b->d,
        [MODEL_MIXER_NORM] = &b->mixer_norm,     [MODEL_OUT_PROJ] = &b->out_proj,
        [MODEL_SMA_PROJ] = &b->sma_proj,         [MODEL_SMA_CONV_WEIGHT] = &b->sma_conv_weight,
        [MODEL_SMA_CONV_BIAS] = &b->sma_conv_bias};
    return places[p->role];
}

/* Gives every parameter of the trainer a value near its initial one, the gate of SMA included, and the tape the same. */
static void choose_values(dart_trainer *trainer, definition_model *m, uint64_t *random)
{
    for (uint32_t i = 0; i < trainer->parameters_count; i++) {
        const model_parameter *p = &trainer->parameters[i].is;
        float *values = malloc((size_t)p->elements * sizeof *values);
        double *exact = malloc((size_t)p->elements * sizeof *exact);
        assert_true(values != NULL && exact != NULL);
        must(dart_trainer_read(trainer, DART_TRAIN_WEIGHT, i, values), "dart_trainer_read");
        for (uint64_t k = 0; k < p->elements; k++) {
            values[k] += (float)(0.2 * uniform(random));
            exact[k] = (double)values[k];
        }
        must(trainer_write(trainer, i, values), "trainer_write");
        *place(m, p) = tape_input(m->tape, exact, (size_t)p->elements);
        free(exact);
        free(values);
    }
}

static tape_vector loss_of(definition_model *m, const dart_model_config *c, const definition_documents *documents, const int32_t *ids,
                           const int32_t *targets)
{
    tape_vector stream = definition_embed(m->tape, m->table, ids, ALL, c->W);
    for (uint32_t l = 0; l < c->layers; l++) {
        definition_block *b = &m->blocks[l];
        *b = (definition_block){.W = c->W, .H = c->H, .G = c->G, .P = c->P, .N = c->N, .K = c->K, .S = c->S, .sma = c->sma,
                                .independent_c = c->independent_c, .documents = *documents, .eps = (double)c->eps,
                                .sma_eps = (double)c->sma_eps, .dt_min = (double)c->dt_min, .dt_max = (double)c->dt_max, .norm = b->norm,
                                .in_proj = b->in_proj, .conv_weight = b->conv_weight, .conv_bias = b->conv_bias, .dt_bias = b->dt_bias,
                                .a_log = b->a_log, .d = b->d, .mixer_norm = b->mixer_norm, .out_proj = b->out_proj, .sma_proj = b->sma_proj,
                                .sma_conv_weight = b->sma_conv_weight, .sma_conv_bias = b->sma_conv_bias};
        stream = definition_run_block(m->tape, b, stream);
    }
    return definition_loss(m->tape, definition_norm(m->tape, stream, m->norm, (double)c->eps), c->tied ? m->table : m->head, targets, ALL, c->W,
                           c->V);
}

/* ---- The trainer beside it ---- */

static double worst_gradient(dart_trainer *trainer, definition_model *m, const char **name)
{
    double worst = 0;
    for (uint32_t i = 0; i < trainer->parameters_count; i++) {
        const model_parameter *p = &trainer->parameters[i].is;
        const double *expected = tape_gradient(m->tape, *place(m, p));
        float *got = malloc((size_t)p->elements * sizeof *got);
        double difference = 0, norm = 0;
        assert_non_null(got);
        must(dart_trainer_read(trainer, DART_TRAIN_GRADIENT, i, got), "dart_trainer_read");
        for (uint64_t k = 0; k < p->elements; k++) {
            difference += ((double)got[k] - expected[k]) * ((double)got[k] - expected[k]);
            norm += expected[k] * expected[k];
        }
        const double l2 = norm > 0 ? sqrt(difference / norm) : difference;
        if (!(l2 <= worst)) {
            worst = l2;
            *name = p->name;
        }
        free(got);
    }
    return worst;
}

static void check(const char *what, const dart_model_config *config, uint64_t seed, bool packed, uint32_t keep)
{
    static const int32_t borders[] = {0, 17, 17, 21, 34, 42};
    enum { DOCUMENTS = sizeof borders / sizeof borders[0] - 1 };
    const size_t whole[] = {0, TOKENS, ALL}, parts[] = {0, 17, 17, 21, 34, 42};
    const definition_documents documents = {packed ? DOCUMENTS : ROWS, packed ? parts : whole};
    uint64_t random = seed;
    int32_t ids[ALL], targets[ALL];
    dart_trainer *trainer = NULL;
    dart_train_result result;
    definition_model m = {.tape = tape_create()};
    for (int i = 0; i < ALL; i++) {
        ids[i] = (int32_t)((uniform(&random) + 1) / 2 * config->V);
        targets[i] = i % 5 == 3 ? -1 : (int32_t)((uniform(&random) + 1) / 2 * config->V);
    }
    must(dart_trainer_create(device, config,
                             &(dart_trainer_options){.B = ROWS, .L = TOKENS, .documents = packed ? DOCUMENTS : 0, .seed = seed, .keep = keep},
                             &trainer),
         "dart_trainer_create");
    choose_values(trainer, &m, &random);
    const tape_vector loss = loss_of(&m, config, &documents, ids, targets);
    tape_push(m.tape, loss, &(double){1});
    tape_reverse(m.tape);
    must(dart_trainer_gradient(trainer, &(dart_train_batch){.count = 1, .ids = ids, .targets = targets, .cu = packed ? borders : NULL}, &result),
         "dart_trainer_gradient");
    const char *name = "none";
    const double l2 = worst_gradient(trainer, &m, &name), off = fabs(result.loss - tape_values(m.tape, loss)[0]);
    print_message("  %s, seed %u%s: loss off by %.1e, gradients by %.1e (%s)\n", what, (unsigned)seed, packed ? ", documents in a row" : "", off, l2,
                  name);
    assert_true(off <= LOSS_TOLERANCE);
    assert_true(l2 <= GRADIENT_TOLERANCE);
    dart_trainer_destroy(&trainer);
    tape_destroy(&m.tape);
}

static void check_all(const char *what, const dart_model_config *config)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        check(what, config, seed, false, 0);
        check(what, config, seed, true, 2);
    }
}

static const dart_model_config dart = {.sma = true, .V = 23, .W = 16, .layers = MOST_LAYERS, .H = 4, .P = 8, .G = 2, .N = 6, .K = 4, .S = 4,
                                       .eps = 1e-5f, .sma_eps = 1e-5f};

static void learns_as_dart(void **unused)
{
    (void)unused;
    check_all("DART", &dart);
}

static void learns_as_mamba2(void **unused)
{
    (void)unused;
    dart_model_config config = dart;
    config.sma = false;
    config.tied = true;
    check_all("Mamba-2", &config);
}

static void learns_with_independent_c(void **unused)
{
    (void)unused;
    dart_model_config config = dart;
    config.independent_c = true;
    check_all("DART with independent C", &config);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns_as_dart),
        cmocka_unit_test(learns_as_mamba2),
        cmocka_unit_test(learns_with_independent_c),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
