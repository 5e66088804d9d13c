/* What the tests of states as values share: kinds of states, sequences that are fed, and what each has to yield. */
#ifndef DARTLM_TESTS_VALUE_CASES_H
#define DARTLM_TESTS_VALUE_CASES_H

#include "model_cases.h"

/* ---- Kinds of states ---- */

typedef struct kind {
    const char *name;
    void (*change)(dart_model_config *);
    dart_model_options storage;
    bool no_sma, windowed;
    uint32_t memory_block;
    double tolerance; /* of logits in another order of sums: 0: TOLERANCE */
} kind;

static inline void no_change(dart_model_config *c) { (void)c; }
static inline void to_mamba2(dart_model_config *c) { c->sma = false; }
static inline void to_independent(dart_model_config *c) { c->independent_c = true; }
static inline void to_eights(dart_model_config *c) { c->N = 16; }
/* Sections large enough for the threads of saving and loading. */
static inline void to_large(dart_model_config *c)
{
    c->H = 8;
    c->P = 64;
    c->N = 32;
}
static inline void to_transformer(dart_model_config *c)
{
    *c = (dart_model_config){.transformer = true, .V = 97, .W = 24, .layers = 2, .H = 4, .P = 6, .G = 2, .F = 32, .base = 500, .eps = 1e-5f};
}
static inline void to_neox(dart_model_config *c)
{
    *c = (dart_model_config){.transformer = true, .neox = true, .V = 97, .W = 24, .layers = 2, .H = 4, .P = 6, .G = 4, .F = 32, .R = 2, .base = 500,
                             .eps = 1e-5f};
}

/* 16 bits: a rounding of 2^-11 or 2^-8 may fall the other way, and a few layers carry it on. */
#define F16_TOLERANCE 4e-3
#define BF16_TOLERANCE 4e-2

static const kind kinds[] = {
    {.name = "SMA", .change = no_change},
    {.name = "SMA, small blocks", .change = no_change, .memory_block = 1},
    {.name = "SMA, memories f16", .change = no_change, .storage = {.memories = DART_STORAGE_F16}, .tolerance = F16_TOLERANCE},
    {.name = "SMA, all bf16", .change = no_change, .memory_block = 2, .tolerance = BF16_TOLERANCE,
     .storage = {.weights = DART_STORAGE_BF16, .activations = DART_STORAGE_BF16, .memories = DART_STORAGE_BF16}},
    {.name = "no_sma", .change = no_change, .no_sma = true},
    {.name = "Mamba-2", .change = to_mamba2},
    {.name = "independent c", .change = to_independent},
    {.name = "windows", .change = to_eights, .windowed = true, .memory_block = 2},
    {.name = "windows, f16", .change = to_eights, .windowed = true, .tolerance = F16_TOLERANCE,
     .storage = {.activations = DART_STORAGE_F16, .memories = DART_STORAGE_F16}},
    {.name = "Mamba-2, windows", .change = to_eights, .windowed = true, .no_sma = true},
    {.name = "large sections", .change = to_large},
    {.name = "Transformer", .change = to_transformer},
    {.name = "GPT-NeoX", .change = to_neox},
    {.name = "Transformer, f16, rooms of 8", .change = to_transformer, .memory_block = 8, .storage = {.memories = DART_STORAGE_F16},
     .tolerance = F16_TOLERANCE},
};

static inline double tolerance_of(const kind *k) { return k->tolerance > 0 ? k->tolerance : TOLERANCE; }

static inline dart_model *model_of_kind(const kind *k)
{
    dart_model_config config = small;
    k->change(&config);
    return model_of(&config, &k->storage);
}

static inline dart_state *state_of_kind(dart_model *model, const kind *k, uint32_t B)
{
    dart_state *state =
        state_of(model, &(dart_state_options){.B = B, .no_sma = k->no_sma, .memory_block = k->memory_block, .max_piece = 24, .marks = 2});
    if (k->windowed) {
        state->fused = false;
        state->windowed = true; /* also where nothing is gained */
    }
    return state;
}

/* ---- Tokens ---- */

enum { MOST_B = 4, STEPS = 8 };

/* The tokens of sequences so far, and those to come: row b of ids. */
typedef struct run {
    dart_state *state;
    const int32_t *ids;
    uint32_t at[MOST_B];
} run;

static inline void feed_counts(run *r, const uint32_t *counts)
{
    int32_t rows[MOST_B * L] = {0};
    const uint32_t B = r->state->B;
    for (uint32_t b = 0; b < B; b++) memcpy(&rows[b * L], &r->ids[b * L + r->at[b]], counts[b] * sizeof *rows);
    must(dart_prefill(r->state, &(dart_prefill_args){.ids = rows, .L = L, .counts = counts}), "dart_prefill");
    for (uint32_t b = 0; b < B; b++) r->at[b] += counts[b];
}

/* `count` steps; logits, optional, count B V. */
static inline void steps(run *r, uint32_t count, float *logits)
{
    const uint32_t B = r->state->B, V = r->state->model->config.V;
    for (uint32_t i = 0; i < count; i++) {
        int32_t now[MOST_B];
        for (uint32_t b = 0; b < B; b++) now[b] = r->ids[b * L + r->at[b]++];
        must(dart_decode(r->state, &(dart_decode_args){.ids = now, .logits = logits != NULL ? logits + (size_t)i * B * V : NULL}), "dart_decode");
    }
}

static inline void last_logits(dart_state *state, float *logits)
{
    must(dart_prefill(state, &(dart_prefill_args){.want = DART_LOGITS_LAST, .logits = logits}), "dart_prefill");
}

/* Three sequences of 25, 14 and 7 tokens, windows open. */
static inline void begin(run *r)
{
    static const uint32_t counts[MOST_B] = {19, 8, 1, 0};
    memset(r->at, 0, sizeof r->at);
    feed_counts(r, counts);
    steps(r, 6, NULL);
}

extern char path[128]; /* of a file of this process */

/* What every sequence of a state yields after its tokens so far: the logits of a state that is fed alone. */
static inline void check_sequence(const run *r, const kind *k, uint32_t b, const int32_t *tokens, uint32_t count)
{
    const uint32_t V = r->state->model->config.V;
    float got[MOST_B * 97], expected[97];
    assert_int_equal(dart_state_position(r->state, b), count);
    last_logits(r->state, got);
    if (count == 0) {
        for (uint32_t i = 0; i < V; i++) assert_true(got[b * V + i] == 0.0f);
        return;
    }
    dart_state *alone = state_of_kind(r->state->model, k, 1);
    must(dart_prefill(alone, &(dart_prefill_args){.ids = tokens, .L = count, .want = DART_LOGITS_LAST, .logits = expected}), "dart_prefill");
    dart_state_destroy(&alone);
    assert_close(k->name, distance(&got[b * V], expected, V), tolerance_of(k));
}

/* The tests, by file. */
void saves_and_goes_on(void **unused);
void goes_on_behind_other_blocks(void **unused);
void moves_one_sequence(void **unused);
void shares_one_context(void **unused);
void converts_storage(void **unused);
void moves_between_devices(void **unused);
void refuses_other_models(void **unused);
void refuses_damage(void **unused);
void survives_failures(void **unused);
void keeps_the_old_file(void **unused);
void writes_as_memory(void **unused);
void forgets_what_was_taken_back(void **unused);
void returns_to_marks(void **unused);
void stops_behind_a_piece(void **unused);
void stops_going_back(void **unused);
void stops_copying(void **unused);
void resetting_the_only_sequence_mends(void **unused);
void keeps_histories(void **unused);

#endif
