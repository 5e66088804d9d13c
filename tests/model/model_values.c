/* States as values: saved, loaded, copied, taken back, cancelled: model_values DEVICE_SPEC DATA_DIR. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#endif
#include "model_cases.h"

#include "infer/state_file.h"

#if defined(_WIN32)
#include <process.h>
#define process_id _getpid
#else
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#define process_id getpid
#endif

/* ---- Kinds of states ---- */

typedef struct kind {
    const char *name;
    void (*change)(dart_model_config *);
    dart_model_options storage;
    bool no_sma, windowed;
    uint32_t memory_block;
    double tolerance; /* of logits in another order of sums: 0: TOLERANCE */
} kind;

static void no_change(dart_model_config *c) { (void)c; }
static void to_mamba2(dart_model_config *c) { c->sma = false; }
static void to_independent(dart_model_config *c) { c->independent_c = true; }
static void to_eights(dart_model_config *c) { c->N = 16; }
/* Sections large enough for the threads of saving and loading. */
static void to_large(dart_model_config *c)
{
    c->H = 8;
    c->P = 64;
    c->N = 32;
}
static void to_transformer(dart_model_config *c)
{
    *c = (dart_model_config){.transformer = true, .V = 97, .W = 24, .layers = 2, .H = 4, .P = 6, .G = 2, .F = 32, .base = 500, .eps = 1e-5f};
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
    {.name = "Transformer, f16, rooms of 8", .change = to_transformer, .memory_block = 8, .storage = {.memories = DART_STORAGE_F16},
     .tolerance = F16_TOLERANCE},
};

static double tolerance_of(const kind *k) { return k->tolerance > 0 ? k->tolerance : TOLERANCE; }

static dart_model *model_of_kind(const kind *k)
{
    dart_model_config config = small;
    k->change(&config);
    return model_of(&config, &k->storage);
}

static dart_state *state_of_kind(dart_model *model, const kind *k, uint32_t B)
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

static void feed_counts(run *r, const uint32_t *counts)
{
    int32_t rows[MOST_B * L] = {0};
    const uint32_t B = r->state->B;
    for (uint32_t b = 0; b < B; b++) memcpy(&rows[b * L], &r->ids[b * L + r->at[b]], counts[b] * sizeof *rows);
    must(dart_prefill(r->state, &(dart_prefill_args){.ids = rows, .L = L, .counts = counts}), "dart_prefill");
    for (uint32_t b = 0; b < B; b++) r->at[b] += counts[b];
}

/* `count` steps; logits, optional, count B V. */
static void steps(run *r, uint32_t count, float *logits)
{
    const uint32_t B = r->state->B, V = r->state->model->config.V;
    for (uint32_t i = 0; i < count; i++) {
        int32_t now[MOST_B];
        for (uint32_t b = 0; b < B; b++) now[b] = r->ids[b * L + r->at[b]++];
        must(dart_decode(r->state, &(dart_decode_args){.ids = now, .logits = logits != NULL ? logits + (size_t)i * B * V : NULL}), "dart_decode");
    }
}

static void last_logits(dart_state *state, float *logits)
{
    must(dart_prefill(state, &(dart_prefill_args){.want = DART_LOGITS_LAST, .logits = logits}), "dart_prefill");
}

/* Three sequences of 25, 14 and 7 tokens, windows open. */
static void begin(run *r)
{
    static const uint32_t counts[MOST_B] = {19, 8, 1, 0};
    memset(r->at, 0, sizeof r->at);
    feed_counts(r, counts);
    steps(r, 6, NULL);
}

static char path[128];
static void name_file(void) { snprintf(path, sizeof path, "model_values.%ld.state", (long)process_id()); }

static uint8_t *read_file(size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long end = ftell(file);
    assert_true(end > 0);
    rewind(file);
    uint8_t *data = malloc((size_t)end);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)end, file), (size_t)end);
    fclose(file);
    *bytes = (size_t)end;
    return data;
}

/* ---- Files ---- */

static void saves_and_goes_on(void **unused)
{
    (void)unused;
    enum { B = 3 };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const kind *k = &kinds[i];
        dart_model *model = model_of_kind(k);
        const uint32_t V = model->config.V;
        const size_t count = (size_t)STEPS * B * V;
        int32_t *ids = ids_of(MOST_B, V), next[B], again[B];
        float *plain = logits_of(B, V), *saver = logits_of(B, V), *loader = logits_of(B, V), last[B * 97], last_again[B * 97];
        run p = {.state = state_of_kind(model, k, B), .ids = ids}, s = {.state = state_of_kind(model, k, B), .ids = ids},
            l = {.state = state_of_kind(model, k, B), .ids = ids};
        print_message("  %s\n", k->name);
        begin(&p);
        steps(&p, STEPS, plain);
        begin(&s);
        must(dart_prefill(s.state, &(dart_prefill_args){.sampling = &(dart_sampling){0}, .next_ids = next}), "dart_prefill");
        must(dart_state_save(s.state, -1, path), "dart_state_save");
        last_logits(s.state, last);
        must(dart_state_load(l.state, -1, path), "dart_state_load");
        for (uint32_t b = 0; b < B; b++) assert_int_equal(dart_state_position(l.state, b), s.at[b]);
        memcpy(l.at, s.at, sizeof l.at);
        last_logits(l.state, last_again);
        assert_memory_equal(last_again, last, (size_t)B * V * sizeof *last);
        steps(&s, STEPS, saver);
        steps(&l, STEPS, loader);
        assert_memory_equal(loader, saver, count * sizeof *saver);
        assert_close(k->name, distance(saver, plain, count), tolerance_of(k));
        /* Over a state with other tokens: their rooms are cut otherwise. */
        must(dart_state_load(p.state, -1, path), "dart_state_load");
        for (uint32_t b = 0; b < B; b++) p.at[b] -= STEPS;
        /* The tokens chosen last are there. */
        must(dart_decode(p.state, &(dart_decode_args){.next_ids = again}), "dart_decode");
        must(dart_state_load(p.state, -1, path), "dart_state_load");
        must(dart_decode(p.state, &(dart_decode_args){.ids = next, .next_ids = next}), "dart_decode");
        assert_memory_equal(again, next, sizeof next);
        must(dart_state_load(p.state, -1, path), "dart_state_load");
        steps(&p, STEPS, loader);
        assert_close(k->name, distance(loader, plain, count), tolerance_of(k));
        dart_state_destroy(&p.state);
        dart_state_destroy(&s.state);
        dart_state_destroy(&l.state);
        free(plain);
        free(saver);
        free(loader);
        free(ids);
        dart_model_destroy(&model);
    }
    remove(path);
}

/* What every sequence of a state yields after its tokens so far: the logits of a state that is fed alone. */
static void check_sequence(const run *r, const kind *k, uint32_t b, const int32_t *tokens, uint32_t count)
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

/* One sequence of a batch into another place of another batch, by a file and by a copy. */
static void moves_one_sequence(void **unused)
{
    (void)unused;
    enum { B = 3 };
    for (size_t i = 0; i < COUNT_OF(kinds) * 2; i++) {
        const kind *k = &kinds[i / 2];
        dart_model *model = model_of_kind(k);
        int32_t *ids = ids_of(MOST_B, model->config.V), *moved = ids_of(MOST_B, model->config.V);
        run s = {.state = state_of_kind(model, k, B), .ids = ids}, t = {.state = state_of_kind(model, k, MOST_B), .ids = moved};
        begin(&s);
        begin(&t);
        if (i % 2 == 0) {
            must(dart_state_save(s.state, 0, path), "dart_state_save");
            must(dart_state_load(t.state, 2, path), "dart_state_load");
        } else {
            must(dart_state_copy(t.state, 2, s.state, 0), "dart_state_copy");
        }
        /* ids of row 0 stand in row 2 now. */
        memcpy(&moved[2 * L], ids, L * sizeof *moved);
        t.at[2] = s.at[0];
        for (uint32_t b = 0; b < MOST_B; b++) check_sequence(&t, k, b, &moved[b * L], t.at[b]);
        steps(&t, 5, NULL);
        for (uint32_t b = 0; b < MOST_B; b++) check_sequence(&t, k, b, &moved[b * L], t.at[b]);
        for (uint32_t b = 0; b < B; b++) check_sequence(&s, k, b, &ids[b * L], s.at[b]);
        dart_state_destroy(&s.state);
        dart_state_destroy(&t.state);
        free(ids);
        free(moved);
        dart_model_destroy(&model);
    }
    remove(path);
}

/* Four answers to one context: the prompt once, a copy for each answer, and the same tokens as four prompts give. */
static void shares_one_context(void **unused)
{
    (void)unused;
    enum { B = 4, PROMPT = 21, N = 12 };
    static const uint32_t first_only[B] = {PROMPT};
    const dart_sampling sampling = {.temperature = 1, .seed = 5, .repetition_penalty = 1.5f};
    dart_model *model = model_of_kind(&kinds[0]);
    int32_t *ids = ids_of(1, model->config.V), prompts[B * PROMPT], expected[N * B], got[N * B];
    for (uint32_t b = 0; b < B; b++) memcpy(&prompts[b * PROMPT], ids, PROMPT * sizeof *ids);
    dart_state *apart = state_of_kind(model, &kinds[0], B), *shared = state_of_kind(model, &kinds[0], B);
    must(dart_prefill(apart, &(dart_prefill_args){.ids = prompts, .L = PROMPT}), "dart_prefill");
    must(dart_prefill(shared, &(dart_prefill_args){.ids = ids, .L = PROMPT, .counts = first_only}), "dart_prefill");
    for (uint32_t b = 1; b < B; b++) must(dart_state_copy(shared, b, shared, 0), "dart_state_copy");
    must(dart_prefill(apart, &(dart_prefill_args){.sampling = &sampling}), "dart_prefill");
    must(dart_prefill(shared, &(dart_prefill_args){.sampling = &sampling}), "dart_prefill");
    must(dart_generate(apart, &(dart_generate_args){.n = N, .sampling = &sampling, .ids = expected}), "dart_generate");
    must(dart_generate(shared, &(dart_generate_args){.n = N, .sampling = &sampling, .ids = got}), "dart_generate");
    assert_memory_equal(got, expected, sizeof got);
    assert_true(memcmp(&got[0], &got[1], sizeof got[0]) != 0 || memcmp(&got[B], &got[B + 1], sizeof got[0]) != 0);
    dart_state_destroy(&apart);
    dart_state_destroy(&shared);
    free(ids);
    dart_model_destroy(&model);
}

/* Which ids a sequence has consumed, which repetition_penalty asks for, goes back with it. */
static void forgets_what_was_taken_back(void **unused)
{
    (void)unused;
    enum { PROMPT = 21, N = 12 };
    const dart_sampling penalty = {.repetition_penalty = 3};
    dart_model *model = model_of_kind(&kinds[0]);
    int32_t *ids = ids_of(1, model->config.V), plain[N], first[N], again[N], after[N];
    const dart_prefill_args prompt = {.ids = ids, .L = PROMPT, .sampling = &penalty};
    dart_state *state = state_of_kind(model, &kinds[0], 1);
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = PROMPT, .sampling = &(dart_sampling){0}}), "dart_prefill");
    must(dart_generate(state, &(dart_generate_args){.n = N, .ids = plain}), "dart_generate");
    must(dart_state_reset(state, -1), "dart_state_reset");
    must(dart_prefill(state, &prompt), "dart_prefill");
    must(dart_state_mark(state, 0), "dart_state_mark");
    must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = &penalty, .ids = first}), "dart_generate");
    assert_memory_not_equal(first, plain, sizeof first);
    must(dart_state_truncate(state, 0, PROMPT, NULL), "dart_state_truncate");
    must(dart_prefill(state, &(dart_prefill_args){.sampling = &penalty}), "dart_prefill");
    must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = &penalty, .ids = again}), "dart_generate");
    assert_memory_equal(again, first, sizeof first);
    /* Without the mark, all tokens again. */
    must(dart_state_truncate(state, 0, PROMPT - 3, ids), "dart_state_truncate");
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids + PROMPT - 3, .L = 3, .sampling = &penalty}), "dart_prefill");
    must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = &penalty, .ids = after}), "dart_generate");
    assert_memory_equal(after, first, sizeof first);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

/* A file of 16-bit tails and memories for a model that stores f32, and back: as another device may by default. */
static void converts_storage(void **unused)
{
    (void)unused;
    enum { B = 3 };
    dart_model *half = NULL, *full = NULL;
    const dart_model_options of_half = {.activations = DART_STORAGE_F16, .memories = DART_STORAGE_F16}, of_full = {.memories = DART_STORAGE_F32};
    static const kind as = {.name = "converted", .change = no_change, .tolerance = F16_TOLERANCE};
    half = model_of(&small, &of_half);
    full = model_of(&small, &of_full);
    assert_int_equal(half->fingerprint, full->fingerprint);
    int32_t *ids = ids_of(MOST_B, small.V);
    run a = {.state = state_of_kind(half, &as, B), .ids = ids}, b = {.state = state_of_kind(full, &as, B), .ids = ids};
    begin(&a);
    must(dart_state_save(a.state, -1, path), "dart_state_save");
    must(dart_state_load(b.state, -1, path), "dart_state_load");
    memcpy(b.at, a.at, sizeof b.at);
    for (uint32_t i = 0; i < B; i++) check_sequence(&b, &as, i, &ids[i * L], b.at[i]);
    steps(&b, STEPS, NULL);
    must(dart_state_save(b.state, 1, path), "dart_state_save");
    must(dart_state_load(a.state, 1, path), "dart_state_load");
    a.at[1] = b.at[1];
    for (uint32_t i = 0; i < B; i++) check_sequence(&a, &as, i, &ids[i * L], a.at[i]);
    dart_state_destroy(&a.state);
    dart_state_destroy(&b.state);
    free(ids);
    dart_model_destroy(&half);
    dart_model_destroy(&full);
    remove(path);
}

/* Here, then on the CPU backend, then here again: the same tokens as without a move. */
static void moves_between_devices(void **unused)
{
    (void)unused;
    enum { N = 6 };
    dart_device *cpu = NULL;
    must(dart_device_open(context, &(dart_device_options){.spec = "cpu", .poison = true}, &cpu), "dart_device_open");
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const kind *k = &kinds[i];
        dart_model *here = model_of_kind(k), *there = NULL;
        must(dart_model_random(cpu, &here->config, 7, &k->storage, &there), "dart_model_random");
        const uint32_t V = here->config.V;
        int32_t *ids = ids_of(1, V), expected[3 * N], got[3 * N];
        float logits[97], other[97];
        const dart_sampling penalty = {.repetition_penalty = 1.5f}; /* the ids that were there come along */
        const dart_prefill_args prompt = {.ids = ids, .L = 21, .sampling = &penalty};
        dart_state *whole = state_of_kind(here, k, 1), *a = state_of_kind(here, k, 1), *b = state_of_kind(there, k, 1);
        must(dart_prefill(whole, &prompt), "dart_prefill");
        must(dart_generate(whole, &(dart_generate_args){.sampling = &penalty, .n = 3 * N, .ids = expected}), "dart_generate");
        must(dart_prefill(a, &prompt), "dart_prefill");
        must(dart_generate(a, &(dart_generate_args){.sampling = &penalty, .n = N, .ids = got}), "dart_generate");
        must(dart_state_save(a, -1, path), "dart_state_save");
        must(dart_state_load(b, -1, path), "dart_state_load");
        last_logits(a, logits);
        last_logits(b, other);
        assert_close(k->name, distance(other, logits, V), tolerance_of(k));
        must(dart_generate(b, &(dart_generate_args){.sampling = &penalty, .n = N, .ids = got + N}), "dart_generate");
        must(dart_state_save(b, 0, path), "dart_state_save");
        must(dart_state_load(a, 0, path), "dart_state_load");
        must(dart_generate(a, &(dart_generate_args){.sampling = &penalty, .n = N, .ids = got + 2 * N}), "dart_generate");
        /* In 16 bits two logits may be as good as equal. */
        if (k->tolerance <= 0) assert_memory_equal(got, expected, sizeof got);
        last_logits(whole, logits);
        last_logits(a, other);
        if (memcmp(got, expected, sizeof got) == 0) assert_close(k->name, distance(other, logits, V), tolerance_of(k));
        else print_message("  %s: other tokens\n", k->name);
        dart_state_destroy(&whole);
        dart_state_destroy(&a);
        dart_state_destroy(&b);
        free(ids);
        dart_model_destroy(&there);
        dart_model_destroy(&here);
    }
    dart_device_destroy(&cpu);
    remove(path);
}

/* ---- Refusals ---- */

static void refuses_load(dart_state *state, int32_t b, dart_status wanted, const char *says)
{
    char text[512];
    quiet = true;
    const dart_status status = dart_state_load(state, b, path);
    quiet = false;
    dart_state_error(state, text, sizeof text);
    if (status != wanted || strstr(text, says) == NULL)
        fail_msg("%s, '%s' instead of %s, '%s'", dart_status_name(status), text, dart_status_name(wanted), says);
    assert_int_equal(state->broken, DART_OK);
}

static void refuses_other_models(void **unused)
{
    (void)unused;
    enum { B = 2 };
    dart_model *model = model_of(&small, NULL), *other = NULL;
    int32_t *ids = ids_of(B, small.V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B});
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 20}), "dart_prefill");
    must(dart_state_save(state, -1, path), "dart_state_save");
    refuses_load(state, 0, DART_INVALID_ARGUMENT, "2 sequences, 1 are to be loaded");
    struct { dart_model_config config; uint64_t seed; dart_state_options options; const char *says; } cases[] = {
        {small, 8, {.B = B}, "the weights differ"},
        {small, 7, {.B = B, .S = 4}, "chunks of 8 tokens, this state of 4"},
        {small, 7, {.B = B, .no_sma = true}, "with state-memory attention"},
        {small, 7, {.B = 1}, "2 sequences, 1 are to be loaded"},
        {small, 7, {.B = B}, "its layers is 3, of this one 2"},
        {small, 7, {.B = B}, "its eps is"},
        {small, 7, {.B = B}, "its tied is 0, of this one 1"},
    };
    cases[4].config.layers = 2;
    cases[5].config.eps = 2e-5f;
    cases[6].config.tied = true;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        must(dart_model_random(device, &cases[i].config, cases[i].seed, NULL, &other), "dart_model_random");
        dart_state *s = state_of(other, &cases[i].options);
        refuses_load(s, -1, DART_INVALID_ARGUMENT, cases[i].says);
        dart_state_destroy(&s);
        dart_model_destroy(&other);
    }
    /* The default S of a configuration is no part of a state. */
    dart_model_config coarse = small;
    coarse.S = 16;
    must(dart_model_random(device, &coarse, 7, NULL, &other), "dart_model_random");
    dart_state *s = state_of(other, &(dart_state_options){.B = B, .S = 8});
    must(dart_state_load(s, -1, path), "dart_state_load");
    assert_int_equal(dart_state_position(s, 1), 20);
    quiet = true;
    assert_int_equal(dart_state_copy(state, 0, s, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_copy(state, 2, state, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_copy(state, 0, state, 2), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_save(state, 2, path), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_load(state, 2, path), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_mark(state, 2), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_truncate(state, 2, 0, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_truncate(state, 0, 21, ids), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_truncate(state, 0, 5, NULL), DART_INVALID_ARGUMENT);
    remove(path);
    assert_int_equal(dart_state_load(state, -1, path), DART_IO);
    assert_int_equal(dart_state_load(state, -1, "."), DART_IO);
    quiet = false;
    dart_state_destroy(&s);
    dart_model_destroy(&other);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

static dart_status load_bytes(dart_state *state, const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1); /* so that a sanitizer sees every byte read past the end */
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    const dart_status status = model_state_load_memory(state, -1, copy, bytes, "input");
    free(copy);
    return status;
}

/* Every prefix, and a flipped bit in every byte: refused, and the state goes on as one that never saw the file. */
static void refuses_damage(void **unused)
{
    (void)unused;
    dart_model_config tiny = small;
    tiny.W = 16;
    tiny.layers = 1;
    tiny.H = 2;
    tiny.N = 4;
    dart_model *model = model_of(&tiny, NULL);
    const uint32_t V = tiny.V;
    int32_t *ids = ids_of(1, V);
    float expected[97], got[97];
    dart_state *state = state_of(model, NULL), *other = state_of(model, NULL);
    must(dart_prefill(other, &(dart_prefill_args){.ids = ids, .L = 26}), "dart_prefill");
    must(dart_state_save(other, -1, path), "dart_state_save");
    size_t bytes;
    uint8_t *data = read_file(&bytes);
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = 13, .want = DART_LOGITS_LAST, .logits = expected}), "dart_prefill");
    quiet = true;
    for (size_t length = 0; length < bytes; length += length < 600 || length + 600 > bytes ? 1 : 7)
        assert_int_equal(load_bytes(state, data, length), DART_BAD_DATA);
    for (size_t i = 0; i < bytes; i++) {
        data[i] ^= (uint8_t)(1u << i % 8);
        const dart_status status = load_bytes(state, data, bytes);
        if (status != DART_BAD_DATA) fail_msg("byte %zu of %zu changed: %s", i, bytes, dart_status_name(status));
        data[i] ^= (uint8_t)(1u << i % 8);
    }
    quiet = false;
    assert_int_equal(dart_state_position(state, 0), 13);
    last_logits(state, got);
    assert_memory_equal(got, expected, V * sizeof *got);
    assert_int_equal(load_bytes(state, data, bytes), DART_OK);
    assert_int_equal(dart_state_position(state, 0), 26);
    dart_state_destroy(&state);
    dart_state_destroy(&other);
    free(data);
    free(ids);
    dart_model_destroy(&model);
    remove(path);
}

/* The n-th call of the backend or allocation fails: nothing is lost, or the state says that it is broken. */
static void survives_failures(void **unused)
{
    (void)unused;
    enum { B = 2 };
    const kind *k = &kinds[7]; /* windows */
    dart_model *model = model_of_kind(k);
    int32_t *ids = ids_of(MOST_B, model->config.V);
    uint32_t failures = 0, broken = 0;
    for (int call = 0; call < 5; call++) {
        bool done = false;
        for (uint32_t n = 1; !done; n++) {
            run s = {.state = state_of_kind(model, k, B), .ids = ids}, t = {.state = state_of_kind(model, k, B), .ids = ids};
            begin(&s);
            must(dart_state_save(s.state, -1, path), "dart_state_save");
            feed_counts(&t, (const uint32_t[]){5, 9});
            dart_status status = DART_OK;
            dart_state *changed = call == 0 || call > 2 ? s.state : t.state;
            const uint64_t before = dart_state_position(changed, 0);
            quiet = true;
            atomic_store(&device->fail_in, n);
            switch (call) {
            case 0: status = dart_state_save(s.state, -1, path); break;
            case 1: status = dart_state_load(t.state, -1, path); break;
            case 2: status = dart_state_copy(t.state, 0, s.state, 1); break;
            case 3: status = dart_state_mark(s.state, 0); break;
            default: status = dart_state_truncate(s.state, 0, 17, ids); break;
            }
            done = atomic_load(&device->fail_in) != 0;
            atomic_store(&device->fail_in, 0);
            quiet = false;
            assert_int_equal(status, done ? DART_OK : DART_OUT_OF_MEMORY);
            failures += !done;
            broken += changed->broken != DART_OK;
            /* The file is the old one or the new one. */
            run fresh = {.state = state_of_kind(model, k, B), .ids = ids};
            must(dart_state_load(fresh.state, -1, path), "dart_state_load");
            dart_state_destroy(&fresh.state);
            if (changed->broken != DART_OK) {
                must(dart_state_reset(changed, -1), "dart_state_reset");
            } else if (!done && call < 4) {
                assert_int_equal(dart_state_position(changed, 0), before);
                run *r = changed == s.state ? &s : &t;
                for (uint32_t b = 0; b < B; b++) check_sequence(r, k, b, &ids[b * L], r->at[b]);
            } else if (!done) {
                s.at[0] = (uint32_t)dart_state_position(s.state, 0);
                for (uint32_t b = 0; b < B; b++) check_sequence(&s, k, b, &ids[b * L], s.at[b]);
            }
            dart_state_destroy(&s.state);
            dart_state_destroy(&t.state);
        }
    }
    print_message("  %u failures, %u of them left a broken state\n", failures, broken);
    free(ids);
    dart_model_destroy(&model);
    remove(path);
}

/* The disk takes some bytes and no more: the old file stays, and the state goes on. */
static void keeps_the_old_file(void **unused)
{
    (void)unused;
#if defined(_WIN32)
    print_message("NOT RUN: this system has no limit on files\n");
    skip();
#else
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(MOST_B, small.V);
    run s = {.state = state_of_kind(model, &kinds[0], 3), .ids = ids};
    struct rlimit before;
    size_t bytes, again;
    begin(&s);
    must(dart_state_save(s.state, -1, path), "dart_state_save");
    uint8_t *data = read_file(&bytes);
    steps(&s, 1, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    quiet = true;
    for (size_t i = 0; i < 12; i++) { /* in every section */
        const struct rlimit little = {.rlim_cur = i < 11 ? bytes * i / 11 : bytes - 1, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
        const dart_status status = dart_state_save(s.state, -1, path);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, DART_IO);
        uint8_t *kept = read_file(&again);
        assert_int_equal(again, bytes);
        assert_memory_equal(kept, data, bytes);
        free(kept);
    }
    quiet = false;
    signal(SIGXFSZ, SIG_DFL);
    for (uint32_t b = 0; b < 3; b++) check_sequence(&s, &kinds[0], b, &ids[b * L], s.at[b]);
    free(data);
    dart_state_destroy(&s.state);
    free(ids);
    dart_model_destroy(&model);
    remove(path);
#endif
}

/* ---- Going back ---- */

static void returns_to_marks(void **unused)
{
    (void)unused;
    enum { B = 3 };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const kind *k = &kinds[i];
        dart_model *model = model_of_kind(k);
        const uint32_t V = model->config.V;
        const bool transformer = model->config.transformer;
        int32_t *ids = ids_of(MOST_B, V);
        float at_mark[B * 97], got[B * 97];
        run r = {.state = state_of_kind(model, k, B), .ids = ids};
        feed_counts(&r, (const uint32_t[]){16, 3, 0});
        must(dart_state_mark(r.state, 0), "dart_state_mark"); /* a chunk's border */
        last_logits(r.state, at_mark);
        steps(&r, 7, NULL);
        must(dart_state_mark(r.state, 0), "dart_state_mark"); /* none: 23, with windows open */
        steps(&r, 12, NULL);
        /* To a token between two marks: the last ids. */
        must(dart_state_truncate(r.state, 0, 21, ids), "dart_state_truncate");
        r.at[0] = 21;
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        steps(&r, 4, NULL);
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        /* To the mark itself: the same bits. */
        must(dart_state_truncate(r.state, 0, 16, transformer ? ids : NULL), "dart_state_truncate");
        r.at[0] = 16;
        last_logits(r.state, got);
        if (!transformer) assert_memory_equal(got, at_mark, V * sizeof *got);
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        quiet = true;
        assert_int_equal(dart_decode(r.state, &(dart_decode_args){.ids = NULL}), DART_INVALID_ARGUMENT);
        if (!transformer) assert_int_equal(dart_state_truncate(r.state, 0, 15, NULL), DART_INVALID_ARGUMENT);
        const int32_t bad[2] = {0, -1};
        assert_int_equal(dart_state_truncate(r.state, 1, 2, bad), DART_INVALID_ARGUMENT);
        quiet = false;
        /* Without a mark, from the beginning; and to nothing. */
        must(dart_state_truncate(r.state, 1, 11, ids + L), "dart_state_truncate");
        r.at[1] = 11;
        must(dart_state_truncate(r.state, 2, 0, NULL), "dart_state_truncate");
        r.at[2] = 0;
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        steps(&r, 9, NULL);
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        assert_true(transformer || dart_state_bytes(r.state, DART_STATE_MARKS) > 0);
        dart_state_destroy(&r.state);
        free(ids);
        dart_model_destroy(&model);
    }
}

typedef struct patience {
    uint32_t asked, most;
} patience;

static bool go_on(void *user)
{
    patience *p = user;
    return ++p->asked <= p->most;
}

/* Ended after any number of submissions, a layer each: every sequence stands behind a whole piece, and goes on. */
static void stops_behind_a_piece(void **unused)
{
    (void)unused;
    enum { B = 2 };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const kind *k = &kinds[i];
        dart_model *model = model_of_kind(k);
        int32_t *ids = ids_of(MOST_B, model->config.V);
        bool done = false, stood_between = false;
        for (uint32_t most = 0; !done; most++) {
            run r = {.state = state_of_kind(model, k, B), .ids = ids};
            r.state->slice_ns = 1;
            feed_counts(&r, (const uint32_t[]){3, 0});
            steps(&r, 2, NULL);
            patience p = {.most = most};
            int32_t rows[B * L];
            for (uint32_t b = 0; b < B; b++) memcpy(&rows[b * 30], &ids[b * L + r.at[b]], 30 * sizeof *rows);
            quiet = true;
            const dart_status status =
                dart_prefill(r.state, &(dart_prefill_args){.ids = rows, .L = 30, .go_on = go_on, .user = &p, .sampling = &(dart_sampling){0}});
            quiet = false;
            done = status == DART_OK;
            if (!done) assert_int_equal(status, DART_CANCELLED);
            for (uint32_t b = 0; b < B; b++) {
                const uint32_t position = (uint32_t)dart_state_position(r.state, b);
                stood_between = stood_between || (position > r.at[b] && position < r.at[b] + 30);
                r.at[b] = position;
            }
            for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
            const uint32_t room = r.at[0] > r.at[1] ? L - r.at[0] : L - r.at[1];
            steps(&r, room < 3 ? room : 3, NULL);
            for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
            dart_state_destroy(&r.state);
        }
        assert_true(stood_between);
        free(ids);
        dart_model_destroy(&model);
    }
}

/* A broken state of one sequence is mended by resetting sequence 0. */
static void resetting_the_only_sequence_mends(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(1, small.V);
    run r = {.state = state_of(model, NULL), .ids = ids};
    feed_counts(&r, (const uint32_t[]){20});
    r.state->broken = DART_TIMEOUT;
    quiet = true;
    assert_int_equal(dart_state_save(r.state, -1, path), DART_TIMEOUT);
    assert_int_equal(dart_state_load(r.state, -1, path), DART_TIMEOUT);
    assert_int_equal(dart_state_truncate(r.state, 0, 0, NULL), DART_TIMEOUT);
    quiet = false;
    must(dart_state_reset(r.state, 0), "dart_state_reset");
    r.at[0] = 0;
    feed_counts(&r, (const uint32_t[]){12});
    check_sequence(&r, &kinds[0], 0, ids, 12);
    dart_state_destroy(&r.state);
    free(ids);
    dart_model_destroy(&model);
}

/* ---- Anything, in any order ---- */

static uint32_t random_state;
static uint32_t below(uint32_t limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % limit;
}

typedef struct history {
    int32_t ids[MOST_B][L];
    uint32_t count[MOST_B];
} history;

/* Two states and a file; every sequence is what its own history says. */
static void keeps_histories(void **unused)
{
    (void)unused;
    enum { ROUNDS = 24, ACTIONS = 14 };
    for (uint32_t round = 0; round < ROUNDS; round++) {
        random_state = 977 + round;
        const kind *k = &kinds[below(COUNT_OF(kinds))];
        dart_model *model = model_of_kind(k);
        const uint32_t V = model->config.V;
        run r[2];
        history h[2], saved;
        bool has_file = false;
        uint32_t saved_B = 0;
        memset(h, 0, sizeof h);
        for (int i = 0; i < 2; i++) r[i] = (run){.state = state_of_kind(model, k, 1 + below(MOST_B))};
        for (uint32_t action = 0; action < ACTIONS; action++) {
            const uint32_t i = below(2), b = below(r[i].state->B), B = r[i].state->B;
            run *now = &r[i];
            history *own = &h[i];
            switch (below(8)) {
            case 0:
            case 1: { /* tokens at once */
                int32_t rows[MOST_B * L] = {0};
                uint32_t counts[MOST_B];
                for (uint32_t s = 0; s < B; s++) {
                    counts[s] = below(L - own->count[s] + 1);
                    if (below(2)) counts[s] /= 2;
                    for (uint32_t t = 0; t < counts[s]; t++) rows[s * L + t] = own->ids[s][own->count[s]++] = (int32_t)below(V);
                }
                must(dart_prefill(now->state, &(dart_prefill_args){.ids = rows, .L = L, .counts = counts}), "dart_prefill");
                break;
            }
            case 2: { /* steps */
                bool room = true;
                for (uint32_t s = 0; s < B; s++) room = room && own->count[s] + 5 < L;
                for (uint32_t t = 0; t < 5 && room; t++) {
                    int32_t ids[MOST_B];
                    for (uint32_t s = 0; s < B; s++) ids[s] = own->ids[s][own->count[s]++] = (int32_t)below(V);
                    must(dart_decode(now->state, &(dart_decode_args){.ids = ids}), "dart_decode");
                }
                break;
            }
            case 3: { /* a copy */
                const uint32_t from = below(2), from_b = below(r[from].state->B);
                must(dart_state_copy(now->state, b, r[from].state, from_b), "dart_state_copy");
                memmove(own->ids[b], h[from].ids[from_b], sizeof own->ids[b]);
                own->count[b] = h[from].count[from_b];
                break;
            }
            case 4: { /* out */
                const bool all = below(2) == 0;
                must(dart_state_save(now->state, all ? -1 : (int32_t)b, path), "dart_state_save");
                has_file = true;
                saved = *own;
                saved_B = all ? B : 1;
                if (!all) {
                    memcpy(saved.ids[0], own->ids[b], sizeof saved.ids[0]);
                    saved.count[0] = own->count[b];
                }
                break;
            }
            case 5: /* in */
                if (has_file && saved_B == B) {
                    must(dart_state_load(now->state, -1, path), "dart_state_load");
                    *own = saved;
                } else if (has_file && saved_B == 1) {
                    must(dart_state_load(now->state, (int32_t)b, path), "dart_state_load");
                    memcpy(own->ids[b], saved.ids[0], sizeof saved.ids[0]);
                    own->count[b] = saved.count[0];
                }
                break;
            case 6: must(dart_state_mark(now->state, b), "dart_state_mark"); break;
            default:
                own->count[b] = below(own->count[b] + 1);
                must(dart_state_truncate(now->state, b, own->count[b], own->ids[b]), "dart_state_truncate");
                break;
            }
        }
        for (int i = 0; i < 2; i++) {
            for (uint32_t b = 0; b < r[i].state->B; b++) check_sequence(&r[i], k, b, h[i].ids[b], h[i].count[b]);
            dart_state_destroy(&r[i].state);
        }
        dart_model_destroy(&model);
    }
    remove(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves_and_goes_on),
        cmocka_unit_test(moves_one_sequence),
        cmocka_unit_test(shares_one_context), cmocka_unit_test(forgets_what_was_taken_back),
        cmocka_unit_test(converts_storage),
        cmocka_unit_test(moves_between_devices),
        cmocka_unit_test(refuses_other_models),
        cmocka_unit_test(refuses_damage),
        cmocka_unit_test(survives_failures),
        cmocka_unit_test(keeps_the_old_file),
        cmocka_unit_test(returns_to_marks),
        cmocka_unit_test(stops_behind_a_piece),
        cmocka_unit_test(resetting_the_only_sequence_mends),
        cmocka_unit_test(keeps_histories),
    };
    name_file();
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
