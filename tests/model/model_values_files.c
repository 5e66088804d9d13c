/* States into files and other states, and what comes of them: one of the files of model_values. */
#include "value_cases.h"

void saves_and_goes_on(void **unused)
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

/* A whole batch brings its blocks of memories, which a state without a memory_block of its own then adds to. */
void goes_on_behind_other_blocks(void **unused)
{
    (void)unused;
    enum { B = 3 };
    static const uint32_t more[MOST_B] = {14, 20, 30};
    static const kind in_ones = {.name = "blocks of one memory", .change = no_change, .memory_block = 1};
    dart_model *model = model_of_kind(&in_ones);
    int32_t *ids = ids_of(MOST_B, model->config.V);
    run s = {.state = state_of_kind(model, &in_ones, B), .ids = ids};
    run l = {.state = state_of(model, &(dart_state_options){.B = B}), .ids = ids};
    begin(&s);
    assert_true(s.state->blocks_count > 1);
    must(dart_state_save(s.state, -1, path), "dart_state_save");
    must(dart_state_load(l.state, -1, path), "dart_state_load");
    assert_int_equal(l.state->blocks_count, s.state->blocks_count);
    memcpy(l.at, s.at, sizeof l.at);
    feed_counts(&l, more);
    for (uint32_t b = 0; b < B; b++) check_sequence(&l, &in_ones, b, &ids[b * L], l.at[b]);
    dart_state_destroy(&s.state);
    dart_state_destroy(&l.state);
    free(ids);
    dart_model_destroy(&model);
    remove(path);
}

/* One sequence of a batch into another place of another batch, by a file and by a copy. */
void moves_one_sequence(void **unused)
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
void shares_one_context(void **unused)
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

/* A file of 16-bit tails and memories for a model that stores f32, and back: as another device may by default. */
void converts_storage(void **unused)
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
void moves_between_devices(void **unused)
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
