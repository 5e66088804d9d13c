/* Every kind of model learns what its definition says: loss and gradients of a batch against derivatives of the definition in fp64.
 * A Transformer's logits against its definition, too. model_kinds DEVICE_SPEC DATA_DIR. */
#define _DEFAULT_SOURCE
#include "model_cases.h"
#include "conform/definition.h"
#include "train/trainer.h"

#include <unistd.h>

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
    definition_transformer layers[MOST_LAYERS]; /* of a Transformer */
} definition_model;

static tape_vector *place(definition_model *m, const model_parameter *p)
{
    definition_block *b = &m->blocks[p->layer];
    definition_transformer *l = &m->layers[p->layer];
    tape_vector *const places[MODEL_ROLE_COUNT] = {
        [MODEL_EMBEDDING] = &m->table,           [MODEL_FINAL_NORM] = &m->norm,
        [MODEL_HEAD] = &m->head,                 [MODEL_NORM] = &b->norm,
        [MODEL_IN_PROJ] = &b->in_proj,           [MODEL_CONV_WEIGHT] = &b->conv_weight,
        [MODEL_CONV_BIAS] = &b->conv_bias,       [MODEL_DT_BIAS] = &b->dt_bias,
        [MODEL_A_LOG] = &b->a_log,               [MODEL_D] = &b->d,
        [MODEL_MIXER_NORM] = &b->mixer_norm,     [MODEL_OUT_PROJ] = &b->out_proj,
        [MODEL_SMA_PROJ] = &b->sma_proj,         [MODEL_SMA_CONV_WEIGHT] = &b->sma_conv_weight,
        [MODEL_SMA_CONV_BIAS] = &b->sma_conv_bias, [MODEL_Q_PROJ] = &l->q_proj,
        [MODEL_K_PROJ] = &l->k_proj,             [MODEL_V_PROJ] = &l->v_proj,
        [MODEL_MLP_NORM] = &l->mlp_norm,         [MODEL_GATE_PROJ] = &l->gate_proj,
        [MODEL_UP_PROJ] = &l->up_proj,           [MODEL_DOWN_PROJ] = &l->down_proj};
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

static tape_vector run_mixer(definition_model *m, const dart_model_config *c, const definition_documents *documents, uint32_t layer,
                             tape_vector stream)
{
    definition_block *b = &m->blocks[layer];
    b->W = c->W;
    b->H = c->H;
    b->G = c->G;
    b->P = c->P;
    b->N = c->N;
    b->K = c->K;
    b->S = c->S;
    b->sma = c->sma;
    b->independent_c = c->independent_c;
    b->documents = *documents;
    b->eps = (double)c->eps;
    b->sma_eps = (double)c->sma_eps;
    b->dt_min = (double)c->dt_min;
    b->dt_max = (double)c->dt_max;
    return definition_run_block(m->tape, b, stream);
}

static tape_vector run_transformer(definition_model *m, const dart_model_config *c, const definition_documents *documents, uint32_t layer,
                                   tape_vector stream)
{
    definition_transformer *l = &m->layers[layer];
    l->W = c->W;
    l->H = c->H;
    l->G = c->G;
    l->P = c->P;
    l->F = c->F;
    l->documents = *documents;
    l->eps = (double)c->eps;
    l->base = (double)c->base;
    l->norm = m->blocks[layer].norm;
    l->out_proj = m->blocks[layer].out_proj;
    return definition_run_transformer(m->tape, l, stream);
}

/* The stream behind the last norm, of `count` tokens. */
static tape_vector run_model(definition_model *m, const dart_model_config *c, const definition_documents *documents, const int32_t *ids, size_t count)
{
    tape_vector stream = definition_embed(m->tape, m->table, ids, count, c->W);
    for (uint32_t l = 0; l < c->layers; l++)
        stream = c->transformer ? run_transformer(m, c, documents, l, stream) : run_mixer(m, c, documents, l, stream);
    return definition_norm(m->tape, stream, m->norm, (double)c->eps);
}

static tape_vector head_of(const definition_model *m, const dart_model_config *c) { return c->tied ? m->table : m->head; }

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
    const tape_vector loss = definition_loss(m.tape, run_model(&m, config, &documents, ids, ALL), head_of(&m, config), targets, ALL, config->W,
                                             config->V);
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

static const dart_model_config transformer = {.transformer = true, .V = 23, .W = 16, .layers = MOST_LAYERS, .H = 4, .P = 6, .G = 2, .F = 20,
                                              .base = 100, .eps = 1e-5f};

static void learns_as_transformer(void **unused)
{
    (void)unused;
    dart_model_config tied = transformer;
    tied.tied = true;
    tied.G = 4;
    check_all("Transformer", &transformer);
    check_all("Transformer with as many keys as queries", &tied);
}

/* ---- Inference of a Transformer ---- */

static void take_weights(const dart_model *model, definition_model *m)
{
    model_parameter p;
    for (uint32_t i = 0; model_config_parameter(&model->config, i, &p); i++) {
        const dart_tensor *tensor = model_weight(model, p.layer, p.role);
        const size_t count = (size_t)p.elements, size = dart_dtype_size(tensor->dtype);
        void *raw = malloc(count * size);
        float *values = malloc(count * sizeof *values);
        double *exact = malloc(count * sizeof *exact);
        assert_true(raw != NULL && values != NULL && exact != NULL);
        must(dart_buffer_read(tensor->buffer, tensor->offset * size, raw, count * size), "dart_buffer_read");
        dart_to_f32(tensor->dtype, values, raw, count);
        for (size_t k = 0; k < count; k++) exact[k] = (double)values[k];
        *place(m, &p) = tape_input(m->tape, exact, count);
        free(exact);
        free(values);
        free(raw);
    }
}

/* Logits B L V by the definition, for free(). */
static float *defined(const dart_model *model, uint32_t B, const int32_t *ids)
{
    const dart_model_config *c = &model->config;
    definition_model m = {.tape = tape_create()};
    size_t begin[8];
    assert_true(B < 8);
    for (uint32_t b = 0; b <= B; b++) begin[b] = (size_t)b * L;
    take_weights(model, &m);
    const definition_documents documents = {B, begin};
    const tape_vector stream = run_model(&m, c, &documents, ids, (size_t)B * L);
    const tape_vector exact = definition_linear(m.tape, stream, head_of(&m, c), c->W, c->V);
    float *logits = logits_of(B, c->V);
    for (size_t i = 0; i < (size_t)B * L * c->V; i++) logits[i] = (float)tape_values(m.tape, exact)[i];
    tape_destroy(&m.tape);
    return logits;
}

static void transformer_follows_the_definition(void **unused)
{
    (void)unused;
    enum { B = 3 };
    dart_model_config wide = transformer;
    wide.P = 64; /* I is not W */
    wide.G = 1;
    wide.tied = true;
    const dart_model_config *const all[] = {&transformer, &wide};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        dart_model *model = model_of(all[i], NULL);
        int32_t *ids = ids_of(B, all[i]->V);
        float *expected = defined(model, B, ids), *got = prefilled(model, &(dart_state_options){.B = B}, ids);
        const double d = distance(got, expected, (size_t)B * L * all[i]->V);
        print_message("  off by %.1e\n", d);
        assert_close("prefill", d, TOLERANCE);
        free(got);
        free(expected);
        free(ids);
        dart_model_destroy(&model);
    }
}

/* Pieces, steps and both, with a cache that grows between them; after a reset the bits of a new state. */
static void transformer_splits_anywhere(void **unused)
{
    (void)unused;
    enum { B = 2 };
    dart_model *model = model_of(&transformer, NULL);
    const size_t count = (size_t)B * L * transformer.V;
    int32_t *ids = ids_of(B, transformer.V);
    float *whole = defined(model, B, ids), *got = logits_of(B, transformer.V), *first = logits_of(B, transformer.V);
    for (uint32_t block = 0; block <= 8; block += 4) {
        dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = block, .max_piece = 16});
        must(dart_state_warm(state), "dart_state_warm");
        for (uint32_t cut = 1; cut < L; cut += 3) {
            feed_around_steps(state, ids, cut, got);
            assert_close("prefill, decode, prefill", distance(got, whole, count), TOLERANCE);
            if (cut == 1) memcpy(first, got, count * sizeof *got);
        }
        assert_int_equal(dart_state_position(state, 1), L);
        const uint64_t token = 2 * transformer.G * transformer.P * sizeof(float) * transformer.layers;
        assert_int_equal(dart_state_bytes(state, DART_STATE_MEMORIES_USED), B * L * token);
        assert_true(dart_state_bytes(state, DART_STATE_MEMORIES) >= B * L * token);
        assert_int_equal(dart_state_bytes(state, DART_STATE_CONVOLUTION) + dart_state_bytes(state, DART_STATE_RECURRENT), 0);
        feed_around_steps(state, ids, 1, got);
        assert_memory_equal(got, first, count * sizeof *got);
        dart_state_destroy(&state);
    }
    free(first);
    free(got);
    free(whole);
    free(ids);
    dart_model_destroy(&model);
}

/* Sequences of different lengths, one of which starts again, and what each chooses alone. */
static void transformer_keeps_sequences_apart(void **unused)
{
    (void)unused;
    enum { B = 3, STEPS = 12 };
    const uint32_t counts[B] = {5, 0, 17};
    dart_model *model = model_of(&transformer, NULL);
    int32_t *ids = ids_of(B, transformer.V), together[STEPS * B], alone[STEPS], next[B];
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 3});
    const dart_sampling sampling = {.temperature = 0};
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 30, .want = DART_LOGITS_NONE}), "dart_prefill");
    for (int32_t b = 0; b < B; b++) must(dart_state_reset(state, b), "dart_state_reset");
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 17, .counts = counts}), "dart_prefill");
    const uint32_t more[B] = {1, 1, 1};
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids + 20, .ids_row = L, .L = 1, .counts = more, .sampling = &sampling, .next_ids = next}),
         "dart_prefill");
    must(dart_generate(state, &(dart_generate_args){.n = STEPS, .ids = together}), "dart_generate");
    for (uint32_t b = 0; b < B; b++) {
        dart_state *one = state_of(model, NULL);
        int32_t chosen;
        if (counts[b] > 0) must(dart_prefill(one, &(dart_prefill_args){.ids = ids + b * L, .L = counts[b]}), "dart_prefill");
        must(dart_prefill(one, &(dart_prefill_args){.ids = ids + b * L + 20, .L = 1, .sampling = &sampling, .next_ids = &chosen}), "dart_prefill");
        must(dart_generate(one, &(dart_generate_args){.n = STEPS, .ids = alone}), "dart_generate");
        assert_int_equal(chosen, next[b]);
        for (int i = 0; i < STEPS; i++) assert_int_equal(together[i * B + (int)b], alone[i]);
        dart_state_destroy(&one);
    }
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

/* Weights, activations and keys in 16 bits: each of some ten stored tensors a layer rounds by u / sqrt(3), as in model_pieces. */
static void transformer_keeps_to_its_storage(void **unused)
{
    (void)unused;
    static const struct { dart_storage storage; double u; } types[] = {{DART_STORAGE_F16, 1.0 / 2048}, {DART_STORAGE_BF16, 1.0 / 256}};
    dart_model_config even = transformer; /* whole tiles */
    even.W = even.F = 32;
    even.P = 16;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        dart_model *model = model_of(&even, &(dart_model_options){.weights = types[i].storage, .activations = types[i].storage});
        int32_t *ids = ids_of(1, even.V);
        float *expected = defined(model, 1, ids), *got = prefilled(model, NULL, ids);
        const double d = distance(got, expected, (size_t)L * even.V), most = 4 * types[i].u / sqrt(3.0) * sqrt(10.0 * even.layers);
        print_message("  off by %.1e, at most %.1e\n", d, most);
        assert_close("storage", d, most);
        free(got);
        free(expected);
        free(ids);
        dart_model_destroy(&model);
    }
}

/* Trained, exported and loaded again: the same loss. And a folder that lacks a tensor. */
static void transformer_is_exported(void **unused)
{
    (void)unused;
    char folder[] = "/tmp/dartlm-kinds-XXXXXX", path[64];
    int32_t ids[ALL], targets[ALL];
    uint64_t random = 5;
    dart_trainer *trainer = NULL, *again = NULL;
    dart_train_result before, after;
    const dart_train_batch batch = {.count = 1, .ids = ids, .targets = targets};
    const dart_trainer_options options = {.B = ROWS, .L = TOKENS, .seed = 3};
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < ALL; i++) {
        ids[i] = (int32_t)((uniform(&random) + 1) / 2 * transformer.V);
        targets[i] = (ids[i] + 1) % (int32_t)transformer.V;
    }
    must(dart_trainer_create(device, &transformer, &options, &trainer), "dart_trainer_create");
    must(dart_trainer_gradient(trainer, &batch, &before), "dart_trainer_gradient");
    for (int i = 0; i < 60; i++) must(dart_trainer_step(trainer, &batch, 1e-2f, &after), "dart_trainer_step");
    print_message("  loss %.3f, after 60 steps %.3f\n", before.loss, after.loss);
    assert_true(after.loss < before.loss / 2);
    must(dart_trainer_gradient(trainer, &batch, &before), "dart_trainer_gradient");
    must(dart_trainer_export(trainer, folder), "dart_trainer_export");
    must(dart_trainer_open(device, folder, &options, &again), "dart_trainer_open");
    must(dart_trainer_gradient(again, &batch, &after), "dart_trainer_gradient");
    assert_true(after.loss == before.loss);
    dart_trainer_destroy(&again);
    quiet = true;
    assert_int_equal(dart_trainer_open(device, folder, &(dart_trainer_options){.B = 1, .L = TOKENS, .add_sma = true}, &again),
                     DART_INVALID_ARGUMENT);
    quiet = false;
    dart_model *model = NULL;
    must(dart_model_open(device, folder, NULL, &model), "dart_model_open");
    dart_model_info info;
    must(dart_model_describe(model, &info), "dart_model_describe");
    assert_true(info.config.transformer && info.config.F == transformer.F && info.config.base == transformer.base);
    dart_model_destroy(&model);
    dart_trainer_destroy(&trainer);
    const char *const files[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        assert_int_equal(remove(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* With margins each weight has a buffer, and so margins, of its own; else small ones share one. */
static void weights_lie_between_margins(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    const dart_tensor *first = NULL;
    uint32_t others = 0;
    for (uint32_t role = 0; role < MODEL_ROLE_COUNT; role++) {
        const dart_tensor *weight = model_weight(model, 0, (model_role)role);
        if (weight->buffer == NULL) continue;
        if (first == NULL) first = weight;
        if (weight == first || (weight->buffer == first->buffer && weight->offset == first->offset)) continue; /* tied */
        assert_int_equal(weight->buffer != first->buffer, margins);
        others++;
    }
    assert_true(others > 5);
    dart_model_destroy(&model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns_as_dart),
        cmocka_unit_test(learns_as_mamba2),
        cmocka_unit_test(learns_with_independent_c),
        cmocka_unit_test(learns_as_transformer),
        cmocka_unit_test(transformer_follows_the_definition),
        cmocka_unit_test(transformer_splits_anywhere),
        cmocka_unit_test(transformer_keeps_sequences_apart),
        cmocka_unit_test(transformer_keeps_to_its_storage),
        cmocka_unit_test(transformer_is_exported),
        cmocka_unit_test(weights_lie_between_margins),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
