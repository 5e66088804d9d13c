/* Batches whose places are filled one by one: idle sequences, numbers that do not depend on the place, copies of several sequences at once:
 * model_idle DEVICE_SPEC DATA_DIR. */
#include "model_cases.h"

enum { B = 4, N = 24, PROMPT = 13, FROM = 5, TO = 14 };

static const dart_sampling ways[B] = {
    {.temperature = 0}, {.temperature = 1.5f, .top_k = 20, .seed = 99}, {.temperature = 0.7f, .seed = UINT64_C(5) << 32},
    {.temperature = 1.5f, .top_k = 20, .seed = 100, .anywhere = true}};

/* The ways in which steps can be computed, whatever the device gains by them. */
typedef enum mode { PLAIN, FUSED, WINDOWED, MODES } mode;

static dart_state *state_in(dart_model *model, mode how, uint32_t sequences)
{
    dart_state *state = state_of(model, &(dart_state_options){.B = sequences, .memory_block = 3, .slice_ms = UINT32_MAX});
    state->fused = how == FUSED;
    state->windowed = how == WINDOWED;
    return state;
}

static dart_model *model_for_windows(void)
{
    dart_model_config config = small;
    config.N = 16;
    return model_of(&config, NULL);
}

typedef struct course {
    int32_t ids[N][B];
    float logits[N][B][97];
    uint64_t position[N][B];
} course;

/* N steps after a prompt; `idle` is so in steps FROM to TO. given: each step gets the ids that the one before chose. */
static course *run(dart_state *state, const int32_t *prompt, uint32_t idle, bool given)
{
    course *c = calloc(1, sizeof *c);
    assert_non_null(c);
    int32_t now[B];
    must(dart_state_reset(state, -1), "dart_state_reset");
    must(dart_prefill(state, &(dart_prefill_args){.ids = prompt, .ids_row = L, .L = PROMPT, .sampling = ways, .sampling_count = B, .next_ids = now}),
         "dart_prefill");
    for (uint32_t i = 0; i < N; i++) {
        dart_sampling sampling[B];
        memcpy(sampling, ways, sizeof sampling);
        if (idle < B) sampling[idle].idle = i >= FROM && i < TO;
        memset(c->logits[i], 0x55, sizeof c->logits[i]);
        must(dart_decode(state, &(dart_decode_args){.ids = given ? now : NULL, .sampling = sampling, .sampling_count = B, .logits = c->logits[i][0],
                                                    .next_ids = c->ids[i]}),
             "dart_decode");
        for (uint32_t b = 0; b < B; b++) {
            if (c->ids[i][b] >= 0) now[b] = c->ids[i][b];
            c->position[i][b] = dart_state_position(state, b);
            assert_int_equal(dart_state_ended(state, b), sampling[b].idle);
        }
    }
    return c;
}

/* The others compute what they compute without it, bit for bit; it goes on where it stood. */
static void idle_sequences_wait(void **unused)
{
    (void)unused;
    dart_model *model = model_for_windows();
    int32_t *ids = ids_of(B, small.V);
    float untouched[97];
    memset(untouched, 0x55, sizeof untouched);
    for (mode how = PLAIN; how < MODES; how++)
        for (int given = 0; given < 2; given++) {
            const uint32_t idle = 2;
            dart_state *state = state_in(model, how, B);
            course *all = run(state, ids, B, given), *c = run(state, ids, idle, given);
            for (uint32_t i = 0; i < N; i++)
                for (uint32_t b = 0; b < B; b++) {
                    const bool waits = b == idle && i >= FROM && i < TO;
                    const uint32_t as = b == idle && i >= TO ? i - (TO - FROM) : i;
                    assert_int_equal(c->ids[i][b], waits ? -1 : all->ids[as][b]);
                    if (waits) assert_memory_equal(c->logits[i][b], untouched, sizeof untouched);
                    else if (b != idle || i < FROM) assert_memory_equal(c->logits[i][b], all->logits[as][b], sizeof untouched);
                    else assert_close("goes on", distance(c->logits[i][b], all->logits[as][b], small.V), TOLERANCE);
                    assert_int_equal(c->position[i][b], waits ? PROMPT + FROM : all->position[as][b]);
                }
            free(all);
            free(c);
            dart_state_destroy(&state);
        }
    free(ids);
    dart_model_destroy(&model);
}

/* A batch of idle sequences takes no step, but the tokens that are given for it. */
static void all_may_be_idle(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    dart_state *state = state_in(model, PLAIN, 2), *other = state_in(model, PLAIN, 2);
    const int32_t given[2] = {11, 96}, wrong[2] = {11, 97};
    const dart_sampling idle = {.idle = true}, greedy = {0};
    int32_t next[2] = {5, 5}, wanted[2];
    must(dart_decode(state, &(dart_decode_args){.ids = given, .sampling = &idle, .next_ids = next}), "dart_decode");
    assert_int_equal(next[0], -1);
    assert_int_equal(next[1], -1);
    assert_int_equal(dart_state_position(state, 0), 0);
    quiet = true;
    assert_int_equal(dart_decode(state, &(dart_decode_args){.ids = wrong, .sampling = &idle}), DART_INVALID_ARGUMENT);
    quiet = false;
    must(dart_generate(state, &(dart_generate_args){.n = 3, .sampling = &idle, .ids = (int32_t[6]){0}}), "dart_generate");
    assert_int_equal(dart_state_position(state, 1), 0);
    must(dart_decode(state, &(dart_decode_args){.sampling = &greedy, .next_ids = next}), "dart_decode");
    must(dart_decode(other, &(dart_decode_args){.ids = given, .sampling = &greedy, .next_ids = wanted}), "dart_decode");
    assert_memory_equal(next, wanted, sizeof next);
    assert_int_equal(dart_state_position(state, 0), 1);
    dart_state_destroy(&other);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
}

/* The same sequence in every place of a batch: the same tokens, which differ where the number depends on the place. */
static void places_do_not_matter(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(1, small.V), prompts[B][PROMPT], got[2][N][B], alone[N];
    for (uint32_t b = 0; b < B; b++) memcpy(prompts[b], ids, sizeof prompts[b]);
    dart_state *state = state_in(model, PLAIN, B), *single = state_in(model, PLAIN, 1);
    for (uint32_t anywhere = 0; anywhere < 2; anywhere++) {
        const dart_sampling sampling = {.temperature = 1.2f, .seed = 77, .ids_below = 90, .anywhere = anywhere != 0};
        must(dart_state_reset(state, -1), "dart_state_reset");
        must(dart_prefill(state, &(dart_prefill_args){.ids = prompts[0], .L = PROMPT, .sampling = &sampling}), "dart_prefill");
        must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = &sampling, .ids = got[anywhere][0]}), "dart_generate");
        if (anywhere) continue;
        must(dart_prefill(single, &(dart_prefill_args){.ids = ids, .L = PROMPT, .sampling = &sampling}), "dart_prefill");
        must(dart_generate(single, &(dart_generate_args){.n = N, .sampling = &sampling, .ids = alone}), "dart_generate");
    }
    uint32_t differ = 0;
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t b = 0; b < B; b++) {
            assert_int_equal(got[1][i][b], alone[i]);
            assert_true(got[1][i][b] < 90);
            differ += got[0][i][b] != alone[i];
        }
    assert_true(differ > N);
    dart_state_destroy(&single);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

/* Sequences of several lengths, copied at once to places in another order: each goes on as where it was. */
static void several_are_copied(void **unused)
{
    (void)unused;
    static const uint32_t counts[B] = {3, 17, 40, 8}, places[B] = {5, 0, 3, 2};
    enum { MORE = 6, STEPS = 9 };
    dart_model *model = model_for_windows();
    int32_t *ids = ids_of(B, small.V), wanted[STEPS][B], got[STEPS][MORE], next[B], given[MORE] = {0};
    dart_sampling sampling[MORE] = {{.idle = true}, {.idle = true}, {.idle = true}, {.idle = true}, {.idle = true}, {.idle = true}};
    for (mode how = PLAIN; how < MODES; how++) {
        dart_state *from = state_in(model, how, B), *to = state_in(model, how, MORE);
        /* What stood in the places before does not matter. */
        must(dart_prefill(to, &(dart_prefill_args){.ids = ids, .L = 20, .ids_row = 20}), "dart_prefill");
        must(dart_prefill(from, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 40, .counts = counts, .sampling = ways, .sampling_count = B,
                                                     .next_ids = next}), "dart_prefill");
        must(dart_state_copy_several(to, places, from, (uint32_t[]){0, 1, 2, 3}, B), "dart_state_copy_several");
        for (uint32_t b = 0; b < B; b++) {
            assert_int_equal(dart_state_position(to, places[b]), counts[b]);
            sampling[places[b]] = (dart_sampling){.temperature = 0};
            given[places[b]] = next[b];
        }
        const dart_sampling greedy = {0};
        must(dart_generate(from, &(dart_generate_args){.n = STEPS, .sampling = &greedy, .ids = wanted[0]}), "dart_generate");
        must(dart_decode(to, &(dart_decode_args){.ids = given, .sampling = sampling, .sampling_count = MORE, .next_ids = got[0]}), "dart_decode");
        must(dart_generate(to, &(dart_generate_args){.n = STEPS - 1, .sampling = sampling, .sampling_count = MORE, .ids = got[1]}), "dart_generate");
        for (uint32_t i = 0; i < STEPS; i++)
            for (uint32_t b = 0; b < B; b++) assert_int_equal(got[i][places[b]], wanted[i][b]);
        quiet = true;
        assert_int_equal(dart_state_copy_several(to, (uint32_t[]){0, 6}, from, (uint32_t[]){0, 1}, 2), DART_INVALID_ARGUMENT);
        assert_int_equal(dart_state_copy_several(to, (uint32_t[]){0, 1}, from, (uint32_t[]){0, 4}, 2), DART_INVALID_ARGUMENT);
        assert_int_equal(dart_state_copy_several(to, (uint32_t[]){0, 1}, to, (uint32_t[]){2, 3}, 2), DART_INVALID_ARGUMENT);
        assert_int_equal(dart_state_copy_several(to, NULL, from, NULL, 2), DART_INVALID_ARGUMENT);
        quiet = false;
        must(dart_state_copy_several(to, NULL, from, NULL, 0), "no sequences");
        dart_state_destroy(&to);
        dart_state_destroy(&from);
    }
    free(ids);
    dart_model_destroy(&model);
}

/* A copy of a sequence that has ended has ended, too, by the settings of the state that it comes from. */
static void copies_have_ended_too(void **unused)
{
    (void)unused;
    const dart_sampling sampling[2] = {{.last_position = PROMPT}, {.last_position = PROMPT + 1}};
    dart_model *model = model_of(&small, NULL);
    dart_state *from = state_in(model, PLAIN, 2), *to = state_in(model, PLAIN, 3);
    int32_t *ids = ids_of(2, small.V), next[2];
    must(dart_prefill(from, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = PROMPT, .sampling = sampling, .sampling_count = 2, .next_ids = next}),
         "dart_prefill");
    assert_true(dart_state_ended(from, 0) && !dart_state_ended(from, 1));
    must(dart_state_copy_several(to, (uint32_t[]){2, 0}, from, (uint32_t[]){0, 1}, 2), "dart_state_copy_several");
    assert_true(!dart_state_ended(to, 0) && !dart_state_ended(to, 1) && dart_state_ended(to, 2));
    must(dart_state_copy(to, 1, from, 0), "dart_state_copy");
    must(dart_state_copy(to, 2, from, 1), "dart_state_copy");
    assert_true(!dart_state_ended(to, 0) && dart_state_ended(to, 1) && !dart_state_ended(to, 2));
    free(ids);
    dart_state_destroy(&to);
    dart_state_destroy(&from);
    dart_model_destroy(&model);
}

/* Sequences join others that are amid their windows: each goes on as it does alone, and those that were there before as well. */
static void some_join_later(void **unused)
{
    (void)unused;
    static const uint32_t counts[B] = {3, 17, 40, 8}, places[B] = {4, 1, 5, 2};
    enum { MORE = 6, STEPS = 45, FIRST = 7 }; /* windows fill, and chunks close, before and behind the join */
    dart_model *model = model_for_windows();
    int32_t *ids = ids_of(B, small.V), wanted[STEPS][B], got[STEPS][MORE], next[B];
    const dart_sampling greedy = {0};
    for (mode how = PLAIN; how < MODES; how++) {
        dart_state *from = state_in(model, how, B), *to = state_in(model, how, MORE);
        const dart_prefill_args prompts = {.ids = ids, .ids_row = L, .L = 40, .counts = counts, .sampling = &greedy, .next_ids = next};
        must(dart_prefill(from, &prompts), "dart_prefill");
        must(dart_generate(from, &(dart_generate_args){.n = STEPS, .sampling = &greedy, .ids = wanted[0]}), "dart_generate");
        must(dart_state_reset(from, -1), "dart_state_reset");
        must(dart_prefill(from, &prompts), "dart_prefill");
        for (uint32_t lot = 0, done = 0, more = FIRST; lot < 2; lot++, done += more, more = STEPS - done) {
            dart_sampling sampling[MORE] = {{.idle = true}, {.idle = true}, {.idle = true}, {.idle = true}, {.idle = true}, {.idle = true}};
            int32_t given[MORE] = {0};
            must(dart_state_copy_several(to, &places[2 * lot], from, (uint32_t[]){2 * lot, 2 * lot + 1}, 2), "dart_state_copy_several");
            for (uint32_t b = 0; b < 2 * lot + 2; b++) {
                sampling[places[b]].idle = false;
                given[places[b]] = b < 2 * lot ? got[done - 1][places[b]] : next[b];
            }
            must(dart_decode(to, &(dart_decode_args){.ids = given, .sampling = sampling, .sampling_count = MORE, .next_ids = got[done]}),
                 "dart_decode");
            must(dart_generate(to, &(dart_generate_args){.n = more - 1, .sampling = sampling, .sampling_count = MORE, .ids = got[done + 1]}),
                 "dart_generate");
            for (uint32_t i = 0; i < more; i++)
                for (uint32_t b = 0; b < 2 * lot + 2; b++)
                    assert_int_equal(got[done + i][places[b]], wanted[b < 2 * lot ? done + i : i][b]);
        }
        dart_state_destroy(&to);
        dart_state_destroy(&from);
    }
    free(ids);
    dart_model_destroy(&model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_sequences_wait),
        cmocka_unit_test(all_may_be_idle),
        cmocka_unit_test(places_do_not_matter),
        cmocka_unit_test(several_are_copied), cmocka_unit_test(copies_have_ended_too),
        cmocka_unit_test(some_join_later),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
