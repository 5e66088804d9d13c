/* One function, however the tokens arrive: model_pieces DEVICE_SPEC DATA_DIR. */
#include "model_cases.h"
#include "conform/oracle.h"
#include "spy.h"

/* Heads enough that a batch may be taken in parts that start anywhere. */
static const dart_model_config many_heads = {.sma = true, .tied = true, .no_conv_bias = true, .V = 61, .W = 64,
                                             .layers = 2, .H = 64, .P = 2,
                                             .G = 1, .N = 5, .K = 3, .S = 6, .eps = 1e-5f, .sma_eps = 1e-5f};

/* ---- Against the oracle ---- */

typedef struct judge {
    oracle_weights weights;
    oracle_layer layers[4];
    double *taken[64];
    size_t taken_count;
} judge;

static const double *taken(judge *j, const dart_model *model, const model_parameter *parameter)
{
    const dart_tensor *tensor = model_weight(model, parameter->layer, parameter->role);
    const size_t count = (size_t)parameter->elements, size = dart_dtype_size(tensor->dtype);
    void *raw = malloc(count * size);
    float *values = malloc(count * sizeof *values);
    double *copy = malloc(count * sizeof *copy);
    assert_true(raw != NULL && values != NULL && copy != NULL && j->taken_count < 64);
    must(dart_buffer_read(tensor->buffer, tensor->offset * size, raw, count * size), "dart_buffer_read");
    dart_to_f32(tensor->dtype, values, raw, count);
    for (size_t i = 0; i < count; i++) copy[i] = (double)values[i];
    free(values);
    free(raw);
    return j->taken[j->taken_count++] = copy;
}

/* The model's weights as they are stored. */
static void judge_init(judge *j, const dart_model *model)
{
    const dart_model_config *c = &model->config;
    memset(j, 0, sizeof *j);
    j->weights = (oracle_weights){.V = c->V, .W = c->W, .H = c->H, .G = c->G, .P = c->P, .N = c->N, .K = c->K,
                                  .layers = c->layers,
                                  .independent_c = c->independent_c,
                                  .eps = (double)c->eps, .sma_eps = (double)c->sma_eps, .dt_min = (double)c->dt_min,
                                      .dt_max = (double)c->dt_max,
                                  .layer = j->layers};
    model_parameter p;
    for (uint32_t i = 0; model_config_parameter(c, i, &p); i++) {
        oracle_layer *l = &j->layers[p.layer];
        const double **const places[MODEL_ROLE_COUNT] = {
            [MODEL_EMBEDDING] = &j->weights.embedding, [MODEL_FINAL_NORM] = &j->weights.norm_f,
                [MODEL_HEAD] = &j->weights.lm_head,
            [MODEL_NORM] = &l->norm, [MODEL_IN_PROJ] = &l->in_proj, [MODEL_CONV_WEIGHT] = &l->conv_weight,
                [MODEL_CONV_BIAS] = &l->conv_bias,
            [MODEL_DT_BIAS] = &l->dt_bias, [MODEL_A_LOG] = &l->a_log, [MODEL_D] = &l->d,
                [MODEL_MIXER_NORM] = &l->gated_norm,
            [MODEL_OUT_PROJ] = &l->out_proj, [MODEL_SMA_PROJ] = &l->sma_proj,
                [MODEL_SMA_CONV_WEIGHT] = &l->sma_conv_weight,
            [MODEL_SMA_CONV_BIAS] = &l->sma_conv_bias};
        *places[p.role] = taken(j, model, &p);
    }
}

static void judge_destroy(judge *j)
{
    for (size_t i = 0; i < j->taken_count; i++) free(j->taken[i]);
}

static float *judged(const judge *j, uint32_t B, uint32_t S, bool sma, const int32_t *ids)
{
    const size_t count = (size_t)B * L * j->weights.V;
    double *exact = calloc(count, sizeof *exact);
    float *logits = logits_of(B, (uint32_t)j->weights.V);
    assert_non_null(exact);
    oracle_model(&(oracle_model_args){.weights = &j->weights, .B = B, .L = L, .S = S, .sma = sma, .ids = ids,
                                      .logits = exact});
    for (size_t i = 0; i < count; i++) logits[i] = (float)exact[i];
    free(exact);
    return logits;
}

/* Prefill with S and SMA as given against the oracle; returns the distance. */
static double against_oracle(const dart_model_config *config, const dart_model_options *storage, uint32_t S,
                             bool no_sma)
{
    enum { B = 3 };
    dart_model *model = model_of(config, storage);
    judge j;
    judge_init(&j, model);
    int32_t *ids = ids_of(B, config->V);
    float *expected = judged(&j, B, S, config->sma && !no_sma, ids);
    float *got = prefilled(model, &(dart_state_options){.B = B, .S = S, .no_sma = no_sma}, ids);
    const double d = distance(got, expected, (size_t)B * L * config->V);
    free(got);
    free(expected);
    free(ids);
    judge_destroy(&j);
    dart_model_destroy(&model);
    return d;
}

/* What leaving the memories out changes. */
static double share_of_memories(void)
{
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(1, small.V);
    float *with = prefilled(model, NULL, ids), *without = prefilled(model, &(dart_state_options){.no_sma = true}, ids);
    const double share = distance(without, with, (size_t)L * small.V);
    free(without);
    free(with);
    free(ids);
    dart_model_destroy(&model);
    return share;
}

static void follows_the_definition(void **unused)
{
    (void)unused;
    static const uint32_t chunk_sizes[] = {1, 2, 5, 8, 16, 40, 41, 64};
    dart_model_config mamba2 = small;
    mamba2.sma = false;
    for (size_t i = 0; i < COUNT_OF(chunk_sizes); i++) {
        char what[64];
        snprintf(what, sizeof what, "S %u", chunk_sizes[i]);
        assert_close(what, against_oracle(&small, NULL, chunk_sizes[i], false), TOLERANCE);
        assert_close(what, against_oracle(&many_heads, NULL, chunk_sizes[i], false), TOLERANCE);
    }
    assert_close("no_sma", against_oracle(&small, NULL, 8, true), TOLERANCE);
    dart_model_config independent = small;
    independent.independent_c = true;
    assert_close("independent c", against_oracle(&independent, NULL, 8, false), TOLERANCE);
    assert_close("mamba2", against_oracle(&mamba2, NULL, 8, false), TOLERANCE);
    print_message("  leaving SMA out changes the logits by %.2e\n", share_of_memories());
    assert_true(share_of_memories() > 0.01);
    print_message("  S 8: %.2e; without SMA %.2e\n", against_oracle(&small, NULL, 8, false),
                  against_oracle(&small, NULL, 8, true));
}

/* Storage in 16 bits rounds each stored activation by a relative u / sqrt(3) at random: 8 tensors a layer, which add
 * up as squares, amplified by what follows: below 4 here. Memories alone count once a layer, for their share in the
 * logits. The oracle has the weights as stored. */
static void keeps_to_its_storage(void **unused)
{
    (void)unused;
    static const struct {
        dart_storage storage;
        double u;
    } types[] = {{DART_STORAGE_F16, 1.0 / 2048}, {DART_STORAGE_BF16, 1.0 / 256}};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        const dart_storage s = types[i].storage;
        const double unit = 4 * types[i].u / sqrt(3.0) * sqrt((double)small.layers);
        const dart_model_options only_weights = {.weights = s, .activations = DART_STORAGE_F32, .memories = DART_STORAGE_F32};
        const double weights = against_oracle(&small, &only_weights, 8, false);
        const double memories = against_oracle(&small, &(dart_model_options){.memories = s}, 8, false);
        const double all = against_oracle(&small, &(dart_model_options){.weights = s, .activations = s}, 8, false);
        print_message("  %s: weights %.2e, memories %.2e (at most %.2e), all %.2e (at most %.2e)\n",
                      i == 0 ? "f16" : "bf16", weights, memories, unit * share_of_memories(), all, unit * sqrt(8.0));
        assert_close("weights", weights, TOLERANCE);
        assert_close("memories", memories, unit * share_of_memories());
        assert_close("all", all, unit * sqrt(8.0));
    }
}

/* ---- Against itself ---- */

static void splits_alike(const dart_model_config *config)
{
    enum { B = 2 };
    dart_model *model = model_of(config, NULL);
    const size_t count = (size_t)B * L * config->V;
    int32_t *ids = ids_of(B, config->V);
    float *whole = prefilled(model, &(dart_state_options){.B = B}, ids), *got = logits_of(B, config->V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 2});
    double worst = 0;
    for (uint32_t cut = 1; cut < L; cut++) {
        char what[64];
        must(dart_state_reset(state, -1), "dart_state_reset");
        feed(state, ids, 0, cut, got);
        feed(state, ids, cut, L, got);
        snprintf(what, sizeof what, "cut after %u", cut);
        const double d = distance(got, whole, count);
        assert_close(what, d, TOLERANCE);
        if (d > worst) worst = d;
    }
    for (uint32_t n = 1; n <= 17; n++) {
        must(dart_state_reset(state, -1), "dart_state_reset");
        for (uint32_t t = 0; t < L; t += n) feed(state, ids, t, t + n < L ? t + n : L, got);
        assert_close("pieces of equal length", distance(got, whole, count), TOLERANCE);
    }
    must(dart_state_reset(state, -1), "dart_state_reset");
    for (uint32_t t = 0; t < L; t++) step(state, ids, t, got);
    assert_close("token by token", distance(got, whole, count), TOLERANCE);
    for (uint32_t cut = 1; cut < L; cut += 3) {
        feed_around_steps(state, ids, cut, got);
        assert_close("prefill, decode, prefill", distance(got, whole, count), TOLERANCE);
    }
    assert_int_equal(dart_state_position(state, 1), L);
    print_message("  worst of all cuts %.2e\n", worst);
    dart_state_destroy(&state);
    free(got);
    free(whole);
    free(ids);
    dart_model_destroy(&model);
}

static void splits_anywhere(void **unused)
{
    (void)unused;
    dart_model_config independent = small;
    independent.independent_c = true;
    splits_alike(&small);
    splits_alike(&independent);
}

/* Sequences so different in length that they are packed: the logits of each, and what each goes on with, are what it has alone. Pieces of
 * at most `piece` tokens. */
static void packs(const dart_model_config *config, const dart_model_options *options, uint32_t piece, double tolerance)
{
    enum { B = 6, LONGEST = 190, MORE = 20 };
    const uint32_t counts[B] = {17, 0, LONGEST, 8, 1, 96}, V = config->V;
    dart_model *model = model_of(config, options);
    int32_t *ids = malloc(B * (LONGEST + MORE) * sizeof *ids);
    float *together = calloc((size_t)B * LONGEST * V, sizeof *together), *alone = calloc((size_t)LONGEST * V, sizeof *alone);
    float *steps = calloc((size_t)B * V, sizeof *steps), *step_alone = calloc(V, sizeof *step_alone);
    assert_true(ids != NULL && together != NULL && alone != NULL && steps != NULL && step_alone != NULL);
    for (uint32_t i = 0; i < B * (LONGEST + MORE); i++) ids[i] = (int32_t)(base_mix(i) % V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .max_piece = piece, .memory_block = 2}), *one[B];
    state->packs_any = true; /* also where nothing is gained */
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = LONGEST + MORE, .L = LONGEST, .counts = counts,
                                                  .want = DART_LOGITS_ALL, .logits = together}),
         "dart_prefill");
    for (uint32_t b = 0; b < B; b++) {
        one[b] = state_of(model, NULL);
        if (counts[b] == 0) continue;
        must(dart_prefill(one[b], &(dart_prefill_args){.ids = ids + b * (LONGEST + MORE), .L = counts[b], .want = DART_LOGITS_ALL, .logits = alone}),
             "dart_prefill");
        assert_close("packed", distance(&together[(size_t)b * LONGEST * V], alone, (size_t)counts[b] * V), tolerance);
    }
    int32_t cu[4] = {-1, -1, -1, -1}; /* written by packed pieces only */
    must(model_state_read(state, WORK_CU, 0, cu, 4, "packs"), "model_state_read");
    assert_true(cu[0] == 0 && cu[1] == 17 && cu[2] == 17 && cu[3] == 17 + LONGEST);
    for (uint32_t t = 0; t < MORE; t++) {
        int32_t now[B];
        for (uint32_t b = 0; b < B; b++) now[b] = ids[b * (LONGEST + MORE) + LONGEST + t];
        must(dart_decode(state, &(dart_decode_args){.ids = now, .logits = steps}), "dart_decode");
        for (uint32_t b = 0; b < B; b++) {
            must(dart_decode(one[b], &(dart_decode_args){.ids = &now[b], .logits = step_alone}), "dart_decode");
            assert_close("a step after it", distance(&steps[(size_t)b * V], step_alone, V), tolerance);
        }
    }
    for (uint32_t b = 0; b < B; b++) dart_state_destroy(&one[b]);
    dart_state_destroy(&state);
    free(step_alone);
    free(steps);
    free(alone);
    free(together);
    free(ids);
    dart_model_destroy(&model);
}

static void packs_sequences(void **unused)
{
    (void)unused;
    dart_model_config mamba2 = small;
    mamba2.sma = false;
    const dart_model_config transformer = {.transformer = true, .V = 53, .W = 24, .layers = 2, .H = 4, .P = 6, .G = 2, .F = 32, .base = 500,
                                           .eps = 1e-5f};
    const dart_model_config neox = {.transformer = true, .neox = true, .V = 53, .W = 24, .layers = 2, .H = 4, .P = 6, .G = 4, .F = 32, .R = 4,
                                    .base = 500, .eps = 1e-5f};
    packs(&small, NULL, 0, TOLERANCE);
    packs(&many_heads, NULL, 240, TOLERANCE); /* some of them */
    packs(&mamba2, NULL, 0, TOLERANCE);
    packs(&transformer, NULL, 0, TOLERANCE);
    packs(&neox, NULL, 0, TOLERANCE);
    /* Memories are read as they are, not as they are stored: a few units of 2^-9, as in model_steps. */
    packs(&small, &(dart_model_options){.weights = DART_STORAGE_F16, .activations = DART_STORAGE_F16}, 0, 8 * 0x1p-9);
}

/* Memories of an odd number of 16-bit elements, one a block: what lies behind them begins at no whole word. One layer, as a second one's
 * memories would be rounded from sums in another order. */
static void keeps_odd_memories(void **unused)
{
    (void)unused;
    const dart_model_config odd = {
        .sma = true, .V = 97, .W = 3, .layers = 1, .H = 1, .P = 3, .G = 1, .N = 1, .K = 4, .S = 4, .eps = 1e-5f, .sma_eps = 1e-5f};
    dart_model *model = model_of(&odd, &(dart_model_options){.memories = DART_STORAGE_F16});
    int32_t *ids = ids_of(1, odd.V);
    float *whole = prefilled(model, &(dart_state_options){0}, ids), *got = prefilled(model, &(dart_state_options){.memory_block = 1}, ids);
    assert_close("odd memories", distance(got, whole, (size_t)L * odd.V), TOLERANCE);
    free(got);
    free(whole);
    free(ids);
    dart_model_destroy(&model);
}

/* Chunks shorter than the convolution: what a first piece that sees no memory leaves in the tails reaches tokens that choose among
 * several. */
static void splits_short_chunks(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(1, small.V);
    float *got = logits_of(1, small.V);
    for (uint32_t S = 1; S <= 2; S++) {
        float *whole = prefilled(model, &(dart_state_options){.S = S}, ids);
        dart_state *state = state_of(model, &(dart_state_options){.S = S});
        for (uint32_t cut = 1; cut <= 5; cut++) {
            must(dart_state_reset(state, -1), "dart_state_reset");
            feed(state, ids, 0, cut, got);
            feed(state, ids, cut, L, got);
            assert_close("short chunks", distance(got, whole, (size_t)L * small.V), TOLERANCE);
        }
        dart_state_destroy(&state);
        free(whole);
    }
    free(got);
    free(ids);
    dart_model_destroy(&model);
}

static void cuts_pieces_itself(void **unused)
{
    (void)unused;
    enum { B = 5 };
    static const dart_model_config *const configs[] = {&small, &many_heads};
    static const uint32_t pieces[] = {1, 5, 6, 7, 11, 16, 40, 64, 100, 205};
    for (size_t m = 0; m < COUNT_OF(configs); m++) {
        dart_model *model = model_of(configs[m], NULL);
        const uint32_t V = configs[m]->V;
        int32_t *ids = ids_of(B, V);
        float *whole = prefilled(model, &(dart_state_options){.B = B, .max_piece = B * L}, ids);
        for (size_t i = 0; i < COUNT_OF(pieces); i++) {
            char what[64];
            float *got = prefilled(model, &(dart_state_options){.B = B, .max_piece = pieces[i]}, ids);
            snprintf(what, sizeof what, "max_piece %u", pieces[i]);
            assert_close(what, distance(got, whole, (size_t)B * L * V), TOLERANCE);
            free(got);
        }
        free(whole);
        free(ids);
        dart_model_destroy(&model);
    }
}

/* Sequences of different lengths, some untouched, against each alone. */
static void keeps_sequences_apart(void **unused)
{
    (void)unused;
    enum { B = 5 };
    static const dart_model_config *const configs[] = {&small, &many_heads};
    static const uint32_t counts[3][B] = {{13, 0, 1, 16, 0}, {0, 20, 0, 8, 0}, {28, 0, 5, 17, 3}};
    for (size_t m = 0; m < COUNT_OF(configs); m++) {
        dart_model *model = model_of(configs[m], NULL);
        const uint32_t V = configs[m]->V;
        int32_t *ids = ids_of(B, V);
        float last[B * 97] = {0}, alone[97], before[B * 97];
        int32_t chosen[B], one = 0;
        dart_state *state = state_of(model, &(dart_state_options){.B = B, .max_piece = m == 0 ? 0 : 12,
                                                                  .memory_block = 1});
        uint32_t at[B] = {0};
        for (size_t round = 0; round < 3; round++) {
            int32_t now[B * L];
            for (uint32_t b = 0; b < B; b++)
                for (uint32_t t = 0; t < L; t++) now[b * L + t] = t < counts[round][b] ? ids[b * L + at[b] + t] : -5;
            memcpy(before, last, sizeof last);
            must(dart_prefill(state, &(dart_prefill_args){.ids = now, .L = L, .counts = counts[round],
                                                          .want = DART_LOGITS_LAST, .logits = last,
                                                          .sampling = &(dart_sampling){0}, .next_ids = chosen}),
                                                              "dart_prefill");
            for (uint32_t b = 0; b < B; b++) {
                at[b] += counts[round][b];
                assert_int_equal(dart_state_position(state, b), at[b]);
                if (round > 0 && counts[round][b] == 0)
                    assert_memory_equal(&last[b * V], &before[b * V], V * sizeof *last);
            }
        }
        for (uint32_t b = 0; b < B; b++) {
            dart_state *single = state_of(model, NULL);
            must(dart_prefill(single, &(dart_prefill_args){.ids = ids + b * L, .L = at[b], .want = DART_LOGITS_LAST,
                                                           .logits = alone, .sampling = &(dart_sampling){0},
                                                           .next_ids = &one}), "dart_prefill");
            assert_close("alone", distance(&last[b * V], alone, V), TOLERANCE);
            assert_int_equal(chosen[b], one);
            dart_state_destroy(&single);
        }
        assert_true(dart_state_bytes(state, DART_STATE_MEMORIES_USED) <= dart_state_bytes(state, DART_STATE_MEMORIES));
        dart_state_destroy(&state);
        free(ids);
        dart_model_destroy(&model);
    }
}

static void resets(void **unused)
{
    (void)unused;
    enum { B = 3 };
    dart_model *model = model_of(&small, NULL);
    const size_t count = (size_t)B * L * small.V, row = (size_t)L * small.V;
    int32_t *ids = ids_of(B, small.V);
    float *fresh = prefilled(model, &(dart_state_options){.B = B}, ids), *got = logits_of(B, small.V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B});
    for (uint32_t t = 0; t < 19; t++) step(state, ids, t, got);
    must(dart_state_reset(state, -1), "dart_state_reset");
    feed(state, ids, 0, L, got);
    assert_memory_equal(got, fresh, count * sizeof *got);
    /* A launch a layer, and those of the newest rows and of the ids that were seen. */
    must(dart_state_reset(state, -1), "dart_state_reset");
    spy_on(device);
    must(dart_state_reset(state, -1), "dart_state_reset");
    assert_int_equal(spy_off(device).launches, small.layers + 2);
    feed(state, ids, 0, L, got);
    assert_memory_equal(got, fresh, count * sizeof *got);
    /* One sequence anew; the others go on. */
    must(dart_state_reset(state, 1), "dart_state_reset");
    assert_int_equal(dart_state_position(state, 0), L);
    assert_int_equal(dart_state_position(state, 1), 0);
    const uint32_t counts[B] = {0, L, 0};
    memset(got, 0, count * sizeof *got);
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = L, .counts = counts, .want = DART_LOGITS_ALL,
                                                  .logits = got}), "dart_prefill");
    assert_close("one anew", distance(got + row, fresh + row, row), TOLERANCE);
    assert_true(got[0] == 0.0f && got[2 * row] == 0.0f);
    quiet = true;
    assert_int_equal(dart_state_reset(state, 3), DART_INVALID_ARGUMENT);
    quiet = false;
    dart_state_destroy(&state);
    free(got);
    free(fresh);
    free(ids);
    dart_model_destroy(&model);
}

/* Ids of one long sequence. */
static int32_t *long_ids(uint32_t count, uint32_t V)
{
    int32_t *ids = calloc(count, sizeof *ids);
    assert_non_null(ids);
    uint32_t x = 99;
    for (uint32_t i = 0; i < count; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 8) % V);
    }
    return ids;
}

static const dart_model_config narrow = {.sma = true, .V = 50, .W = 16, .layers = 2, .H = 2, .P = 16, .G = 1, .N = 16, .K = 4, .S = 4,
                                         .eps = 1e-5f, .sma_eps = 1e-5f};

/* Tokens fed at once, then one by one; logits of each of the latter. */
static void feed_and_step(dart_state *state, const int32_t *ids, uint32_t at_once, uint32_t steps, float *logits)
{
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = at_once}), "dart_prefill");
    for (uint32_t t = 0; t < steps; t++)
        must(dart_decode(state, &(dart_decode_args){.ids = ids + at_once + t, .logits = logits + (size_t)t * narrow.V}), "dart_decode");
}

/* Memories that outgrow their first block: one call of 2,000 tokens makes a block of 500, a new state that gets 1,016 makes one of
 * 256 and a second one later. Where blocks end, sums are cut. */
static void resets_to_the_blocks_of_a_new_state(void **unused)
{
    (void)unused;
    enum { LONG = 2000, SHORT = 1016, STEPS = 24 };
    dart_model *model = model_of(&narrow, NULL);
    const dart_state_options options = {.max_piece = 256};
    const size_t count = (size_t)STEPS * narrow.V;
    int32_t *ids = long_ids(LONG, narrow.V);
    float *fresh = calloc(count, sizeof *fresh), *got = calloc(count, sizeof *got);
    assert_non_null(fresh);
    assert_non_null(got);
    dart_state *state = state_of(model, &options);
    feed_and_step(state, ids, SHORT, STEPS, fresh);
    dart_state_destroy(&state);
    state = state_of(model, &options);
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = LONG}), "dart_prefill");
    const uint64_t bytes = dart_state_bytes(state, DART_STATE_MEMORIES);
    must(dart_state_reset(state, -1), "dart_state_reset");
    assert_int_equal(dart_state_bytes(state, DART_STATE_MEMORIES), bytes); /* kept */
    assert_int_equal(dart_state_bytes(state, DART_STATE_MEMORIES_USED), 0);
    feed_and_step(state, ids, SHORT, STEPS, got);
    assert_memory_equal(got, fresh, count * sizeof *got);
    /* Used as before, it needs no more memory than before. */
    const uint64_t both = dart_state_bytes(state, DART_STATE_MEMORIES);
    for (int again = 0; again < 2; again++) {
        must(dart_state_reset(state, -1), "dart_state_reset");
        feed_and_step(state, ids, SHORT, STEPS, got);
        assert_memory_equal(got, fresh, count * sizeof *got);
        assert_int_equal(dart_state_bytes(state, DART_STATE_MEMORIES), both);
    }
    dart_state_destroy(&state);
    free(fresh);
    free(got);
    free(ids);
    dart_model_destroy(&model);
}

/* A recorded step reads the first block, of 256 memories, and closes into the second one. Then both are empty and give way to one
 * of 550, and the next step reads the first block and closes into the second one again: it is recorded anew all the same. */
static void records_steps_anew_for_other_blocks(void **unused)
{
    (void)unused;
    enum { BEFORE = 1024, AFTER = 2200 };
    dart_model *model = model_of(&narrow, NULL);
    int32_t *ids = long_ids(AFTER + 1, narrow.V);
    float got[50], fresh[50];
    dart_state *state = state_of(model, NULL);
    feed_and_step(state, ids, AFTER, 1, fresh);
    dart_state_destroy(&state);
    state = state_of(model, NULL);
    feed_and_step(state, ids, BEFORE, 1, got);
    must(dart_state_reset(state, 0), "dart_state_reset");
    feed_and_step(state, ids, AFTER, 1, got);
    assert_memory_equal(got, fresh, sizeof got);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

/* ---- Choosing tokens ---- */

static int32_t largest(const float *logits, uint32_t V)
{
    int32_t best = 0;
    for (uint32_t v = 1; v < V; v++)
        if (logits[v] > logits[best]) best = (int32_t)v;
    return best;
}

static bool stop_at_third(void *user, uint32_t at, const int32_t *ids)
{
    (void)ids;
    *(uint32_t *)user = at;
    return at < 2;
}

static void chooses_tokens(void **unused)
{
    (void)unused;
    enum { B = 2, N = 20 };
    const uint32_t V = small.V;
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(B, V);
    static const dart_sampling ways[] = {{0}, {.temperature = 1.5f, .top_k = 20, .seed = 99}};
    for (size_t w = 0; w < COUNT_OF(ways); w++) {
        dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 1});
        int32_t first[B], next[B], chain[N][B], generated[N][B];
        float logits[B * 97];
        const dart_prefill_args prompt = {.ids = ids, .ids_row = L, .L = 13, .sampling = &ways[w], .next_ids = first,
                                          .want = DART_LOGITS_LAST, .logits = logits};
        must(dart_prefill(state, &prompt), "dart_prefill");
        for (uint32_t b = 0; b < B && w == 0; b++) assert_int_equal(first[b], largest(&logits[b * V], V));
        memcpy(next, first, sizeof next);
        for (size_t i = 0; i < N; i++) {
            /* Now from the host, now from the device. */
            must(dart_decode(state, &(dart_decode_args){.ids = i % 2 == 0 ? next : NULL, .sampling = &ways[w],
                                                        .logits = logits, .next_ids = chain[i]}), "dart_decode");
            for (uint32_t b = 0; b < B && w == 0; b++) assert_int_equal(chain[i][b], largest(&logits[b * V], V));
            memcpy(next, chain[i], sizeof next);
        }
        must(dart_state_reset(state, -1), "dart_state_reset");
        quiet = true;
        assert_int_equal(dart_decode(state, &(dart_decode_args){.sampling = &ways[w]}), DART_INVALID_ARGUMENT);
        quiet = false;
        /* The same prompt with its last token decoded. */
        must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 12}), "dart_prefill");
        const int32_t token[B] = {ids[12], ids[L + 12]};
        must(dart_decode(state, &(dart_decode_args){.ids = token, .sampling = &ways[w], .next_ids = next}),
             "dart_decode");
        assert_memory_equal(next, first, sizeof first);
        must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = &ways[w], .ids = generated[0]}),
             "dart_generate");
        assert_memory_equal(generated, chain, sizeof chain);
        uint32_t steps = 0;
        must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = &ways[1 - w], .step = stop_at_third,
                                                        .user = &steps}), "dart_generate");
        assert_int_equal(steps, 2);
        assert_int_equal(dart_state_position(state, 0), 13 + N + 3);
        dart_state_destroy(&state);
    }
    free(ids);
    dart_model_destroy(&model);
}

/* Another choice after the same tokens draws the same random number. */
static void chooses_the_same_without_tokens(void **unused)
{
    (void)unused;
    enum { B = 4 };
    static const dart_sampling sampling = {.temperature = 5, .seed = 3};
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(B, small.V), first[B], again[B] = {-1, -1, -1, -1};
    dart_state *state = state_of(model, &(dart_state_options){.B = B});
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 13, .sampling = &sampling, .next_ids = first}),
         "dart_prefill");
    must(dart_prefill(state, &(dart_prefill_args){.sampling = &sampling, .next_ids = again}), "dart_prefill");
    assert_memory_equal(again, first, sizeof first);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_definition),
        cmocka_unit_test(keeps_to_its_storage),
        cmocka_unit_test(splits_anywhere), cmocka_unit_test(packs_sequences),
        cmocka_unit_test(splits_short_chunks),
        cmocka_unit_test(keeps_odd_memories),
        cmocka_unit_test(cuts_pieces_itself),
        cmocka_unit_test(keeps_sequences_apart),
        cmocka_unit_test(resets),
        cmocka_unit_test(resets_to_the_blocks_of_a_new_state),
        cmocka_unit_test(records_steps_anew_for_other_blocks),
        cmocka_unit_test(chooses_the_same_without_tokens),
        cmocka_unit_test(chooses_tokens),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
