/* Choosing tokens and ending sequences, each by settings of its own: model_choice DEVICE_SPEC DATA_DIR. */
#include "model_cases.h"
#include "conform/oracle.h"

enum { B = 4, N = 40, PROMPT = 13 };

static const dart_sampling ways[B] = {
    {.temperature = 0}, {.temperature = 1.5f, .top_k = 20, .seed = 99}, {.temperature = 0.7f, .seed = UINT64_C(5) << 32},
    {.temperature = 1.5f, .top_k = 20, .seed = 100}};

/* The ways in which steps can be computed, whatever the device gains by them. */
typedef enum mode { PLAIN, FUSED, WINDOWED, MODES } mode;

static dart_state *state_in(dart_model *model, mode how)
{
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 3, .slice_ms = UINT32_MAX});
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

static void prompt(dart_state *state, const int32_t *ids, const dart_sampling *sampling, uint32_t count, int32_t *next)
{
    must(dart_state_reset(state, -1), "dart_state_reset");
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = PROMPT, .sampling = sampling, .sampling_count = count,
                                                  .next_ids = next}),
         "dart_prefill");
}

/* The batch without ends: the tokens of all steps, those of the prompt first, and the logits they were chosen from. */
typedef struct course {
    int32_t ids[N + 1][B];
    float logits[N + 1][B][97];
} course;

static course *run_course(dart_state *state, const int32_t *ids, const dart_sampling *sampling, uint32_t count)
{
    course *c = calloc(1, sizeof *c);
    assert_non_null(c);
    prompt(state, ids, sampling, count, c->ids[0]);
    must(dart_prefill(state, &(dart_prefill_args){.want = DART_LOGITS_LAST, .logits = c->logits[0][0]}), "dart_prefill");
    for (uint32_t i = 0; i < N; i++)
        must(dart_decode(state, &(dart_decode_args){.sampling = sampling, .sampling_count = count, .logits = c->logits[i + 1][0],
                                                    .next_ids = c->ids[i + 1]}),
             "dart_decode");
    return c;
}

/* Sequence b of a batch of four settings does what it does where all sequences have its setting. */
static void settings_differ(void **unused)
{
    (void)unused;
    dart_model *model = model_for_windows();
    int32_t *ids = ids_of(B, small.V), got[N][B];
    for (mode how = PLAIN; how < MODES; how++) {
        dart_state *state = state_in(model, how);
        course *mixed = run_course(state, ids, ways, B);
        for (uint32_t b = 0; b < B; b++) {
            course *alone = run_course(state, ids, &ways[b], b % 2); /* 0 and 1 both mean one for all */
            for (uint32_t i = 0; i <= N; i++) assert_int_equal(mixed->ids[i][b], alone->ids[i][b]);
            for (uint32_t i = 0; i <= N; i++) assert_memory_equal(mixed->logits[i][b], alone->logits[i][b], sizeof alone->logits[i][b]);
            free(alone);
        }
        prompt(state, ids, ways, B, NULL);
        must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = ways, .sampling_count = B, .ids = got[0]}), "dart_generate");
        assert_memory_equal(got, mixed->ids[1], sizeof got);
        free(mixed);
        dart_state_destroy(&state);
    }
    free(ids);
    dart_model_destroy(&model);
}

/* Other settings from step to step act at once, and the step is not recorded anew. */
static void settings_change(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(B, small.V), longer[B][PROMPT + 2], next[B], again[B];
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 100, .slice_ms = UINT32_MAX});
    dart_state *other = state_of(model, &(dart_state_options){.B = B, .memory_block = 100, .slice_ms = UINT32_MAX});
    const dart_sampling first = {.temperature = 1.5f, .top_k = 20, .seed = 5};
    uint32_t differ = 0;
    for (uint64_t change = 0; change < 8; change++) {
        dart_sampling second = first;
        if (change < 3) second.seed += 1 + change;
        else if (change < 5) second.seed += (change - 2) << 32;
        else if (change == 5) second.top_k = 1;
        else if (change == 6) second.temperature = 20;
        else second = (dart_sampling){0};
        for (uint32_t b = 0; b < B; b++) memcpy(longer[b], &ids[b * L], PROMPT * sizeof *ids);
        prompt(state, ids, &first, 1, next);
        for (uint32_t b = 0; b < B; b++) longer[b][PROMPT] = next[b];
        must(dart_decode(state, &(dart_decode_args){.sampling = &first, .next_ids = next}), "dart_decode");
        for (uint32_t b = 0; b < B; b++) longer[b][PROMPT + 1] = next[b];
        must(dart_decode(state, &(dart_decode_args){.sampling = &second, .next_ids = next}), "dart_decode");
        /* Prefill records every call. */
        must(dart_state_reset(other, -1), "dart_state_reset");
        must(dart_prefill(other, &(dart_prefill_args){.ids = longer[0], .L = PROMPT + 2, .sampling = &second, .next_ids = again}), "dart_prefill");
        assert_memory_equal(next, again, sizeof next);
        must(dart_prefill(other, &(dart_prefill_args){.sampling = &first, .next_ids = again}), "dart_prefill");
        differ += memcmp(next, again, sizeof next) != 0;
        /* The same place, the same number: a call without tokens chooses the same again. */
        must(dart_prefill(other, &(dart_prefill_args){.sampling = &second, .next_ids = again}), "dart_prefill");
        assert_memory_equal(next, again, sizeof next);
    }
    assert_int_equal(differ, 8);
    prompt(state, ids, &first, 1, next);
    must(dart_generate(state, &(dart_generate_args){.n = 2, .sampling = &first}), "dart_generate");
    state->slice_ns = 100000000;
    state->step_ns = 1; /* a recording forgets it, and then one step is submitted */
    must(dart_generate(state, &(dart_generate_args){.n = 20, .sampling = ways, .sampling_count = B}), "dart_generate");
    assert_int_equal(state->last_steps, 20);
    dart_state_destroy(&other);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

typedef struct listener {
    uint32_t heard;
    int32_t ids[N][B];
} listener;

static bool hear(void *user, uint32_t at, const int32_t *ids)
{
    listener *l = user;
    assert_int_equal(at, l->heard);
    assert_true(at < N);
    memcpy(l->ids[l->heard++], ids, B * sizeof *ids);
    return true;
}

/* Steps that each sequence takes with these ends, N at most. */
static void steps_until_end(const course *c, const dart_sampling *ends, uint32_t steps[B])
{
    for (uint32_t b = 0; b < B; b++)
        for (steps[b] = 0; steps[b] < N; steps[b]++) {
            bool ended = ends[b].last_position > 0 && PROMPT + steps[b] >= ends[b].last_position;
            for (uint32_t i = 0; i < ends[b].end_ids_count; i++) ended = ended || c->ids[steps[b]][b] == ends[b].end_ids[i];
            if (ended) break;
        }
}

static void assert_ids(const course *c, const uint32_t steps[B], int32_t (*ids)[B])
{
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t b = 0; b < B; b++) assert_int_equal(ids[i][b], i < steps[b] ? c->ids[i + 1][b] : -1);
}

static void assert_places(const dart_state *state, const uint32_t steps[B])
{
    for (uint32_t b = 0; b < B; b++) {
        assert_int_equal(dart_state_position(state, b), PROMPT + steps[b]);
        assert_int_equal(dart_state_ended(state, b), steps[b] < N);
    }
}

/* Some sequences end, the others do what they did without that, bit for bit, and those that ended can go on later. */
static void ends_one_by_one(dart_state *state, const course *c, const int32_t *ids, const dart_sampling ends[B])
{
    static const uint32_t together[] = {1, 7, 64};
    const uint32_t V = small.V;
    uint32_t steps[B], most = 0;
    int32_t got[N][B], next[B];
    float logits[B][97];
    steps_until_end(c, ends, steps);
    for (uint32_t b = 0; b < B; b++) most = steps[b] > most ? steps[b] : most;
    for (size_t k = 0; k < COUNT_OF(together); k++) {
        listener l = {.heard = 0};
        prompt(state, ids, ends, B, NULL);
        memset(got, 0x55, sizeof got);
        must(dart_generate(state, &(dart_generate_args){.n = N, .together = together[k], .sampling = ends, .sampling_count = B, .step = hear,
                                                        .user = &l, .ids = got[0]}), "dart_generate");
        assert_ids(c, steps, got);
        assert_int_equal(l.heard, most);
        assert_memory_equal(l.ids, got, most * sizeof got[0]);
        assert_places(state, steps);
    }
    /* The newest token of a sequence that has ended is still there. */
    must(dart_prefill(state, &(dart_prefill_args){.want = DART_LOGITS_LAST, .logits = logits[0]}), "dart_prefill");
    for (uint32_t b = 0; b < B; b++)
        assert_close("newest token", distance(logits[b], c->logits[steps[b]][b], V), TOLERANCE);
    /* Without ends all go on where they stopped. */
    must(dart_generate(state, &(dart_generate_args){.n = 5, .sampling = ways, .sampling_count = B}), "dart_generate");
    for (uint32_t b = 0; b < B; b++) {
        assert_int_equal(dart_state_position(state, b), PROMPT + steps[b] + 5);
        assert_false(dart_state_ended(state, b));
    }
    /* Step by step, with the logits. */
    prompt(state, ids, ends, B, next);
    for (uint32_t i = 0; i < N; i++) {
        memset(logits, 0x55, sizeof logits);
        must(dart_decode(state, &(dart_decode_args){.sampling = ends, .sampling_count = B, .logits = logits[0], .next_ids = next}), "dart_decode");
        for (uint32_t b = 0; b < B; b++) {
            float untouched[97];
            memset(untouched, 0x55, sizeof untouched);
            assert_int_equal(next[b], i < steps[b] ? c->ids[i + 1][b] : -1);
            assert_memory_equal(logits[b], i < steps[b] ? c->logits[i + 1][b] : untouched, sizeof untouched);
        }
    }
    assert_places(state, steps);
    for (uint32_t i = 0; i < 5; i++) {
        must(dart_decode(state, &(dart_decode_args){.sampling = ways, .sampling_count = B, .logits = logits[0], .next_ids = next}), "dart_decode");
        for (uint32_t b = 0; b < B; b++)
            if (steps[b] + i < N) {
                assert_int_equal(next[b], c->ids[steps[b] + i + 1][b]);
                assert_close("goes on", distance(logits[b], c->logits[steps[b] + i + 1][b], V), TOLERANCE);
            }
    }
}

static void sequences_end(void **unused)
{
    (void)unused;
    dart_model *model = model_for_windows();
    int32_t *ids = ids_of(B, small.V);
    for (mode how = PLAIN; how < MODES; how++) {
        dart_state *state = state_in(model, how);
        course *c = run_course(state, ids, ways, B);
        dart_sampling ends[B];
        memcpy(ends, ways, sizeof ends);
        /* By the token of a step, by the position, not at all, by the prompt's own token, which is the last of four end ids. */
        ends[1].end_ids_count = 1;
        ends[1].end_ids[0] = c->ids[7][1];
        ends[2].last_position = PROMPT + 11;
        ends[3].end_ids_count = 4;
        for (uint32_t i = 0; i < 4; i++) ends[3].end_ids[i] = i == 3 ? c->ids[0][3] : (c->ids[0][3] + 1) % (int32_t)small.V;
        ends_one_by_one(state, c, ids, ends);
        /* All of them, one by an id that is no longer in the list. */
        ends[0].last_position = PROMPT + 20;
        ends[3] = ways[3];
        ends[3].end_ids[0] = c->ids[0][3];
        ends[3].last_position = PROMPT + 1;
        ends_one_by_one(state, c, ids, ends);
        free(c);
        dart_state_destroy(&state);
    }
    free(ids);
    dart_model_destroy(&model);
}

/* Tokens of the caller go to ended sequences too; a reset forgets the end. */
static void ended_sequences_take_tokens(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(B, small.V), next[B];
    dart_state *state = state_in(model, PLAIN);
    const dart_sampling greedy = {0};
    course *c = run_course(state, ids, &greedy, 1);
    dart_sampling ends[B] = {{0}};
    for (uint32_t b = 1; b < B; b++) ends[b].last_position = PROMPT + 2;
    prompt(state, ids, ends, B, NULL);
    must(dart_generate(state, &(dart_generate_args){.n = 4, .sampling = ends, .sampling_count = B}), "dart_generate");
    const uint32_t counts[B] = {0, 1, 0, 0};
    const int32_t given[B] = {-1, c->ids[2][1], -1, -1};
    assert_true(dart_state_ended(state, 1));
    must(dart_prefill(state, &(dart_prefill_args){.ids = given, .L = 1, .counts = counts}), "dart_prefill");
    assert_false(dart_state_ended(state, 1));
    assert_true(dart_state_ended(state, 2));
    assert_int_equal(dart_state_position(state, 1), PROMPT + 3);
    must(dart_state_reset(state, 2), "dart_state_reset");
    assert_false(dart_state_ended(state, 2));
    assert_true(dart_state_ended(state, 3));
    const int32_t tokens[B] = {c->ids[4][0], c->ids[3][1], 0, c->ids[2][3]};
    must(dart_decode(state, &(dart_decode_args){.ids = tokens, .next_ids = next}), "dart_decode");
    assert_int_equal(next[0], c->ids[5][0]);
    assert_int_equal(next[1], c->ids[4][1]);
    assert_int_equal(next[3], c->ids[3][3]);
    for (uint32_t b = 0; b < B; b++) assert_false(dart_state_ended(state, b));
    assert_int_equal(dart_state_position(state, 2), 1);
    /* With nothing between the end and the tokens. */
    prompt(state, ids, ends, B, NULL);
    must(dart_generate(state, &(dart_generate_args){.n = 4, .sampling = ends, .sampling_count = B}), "dart_generate");
    const int32_t later[B] = {c->ids[4][0], c->ids[2][1], c->ids[2][2], c->ids[2][3]};
    must(dart_decode(state, &(dart_decode_args){.ids = later, .sampling = ends, .sampling_count = B, .next_ids = next}), "dart_decode");
    for (uint32_t b = 0; b < B; b++) {
        assert_int_equal(next[b], c->ids[b == 0 ? 5 : 3][b]);
        assert_int_equal(dart_state_position(state, b), PROMPT + (b == 0 ? 5 : 3));
        assert_int_equal(dart_state_ended(state, b), b != 0); /* beyond the last position still */
    }
    free(c);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

/* ---- All settings, against the definition ---- */

/* `id` is what the settings choose of the logits, `row` being the sequence, or something within rounding of it. */
static void check_choice(const dart_sampling *s, const float *logits, const int32_t *seen, uint64_t position, uint32_t row, int32_t id)
{
    double values[97], low, high, slack;
    for (uint32_t i = 0; i < small.V; i++) values[i] = (double)logits[i];
    const uint32_t key[2] = {(uint32_t)s->seed, (uint32_t)(s->seed >> 32)}, counter[4] = {(uint32_t)position, row, 0, 0};
    uint32_t words[4];
    oracle_philox4x32_10(counter, key, words);
    const oracle_sample_args args = {.logits = values, .V = small.V, .k = s->top_k, .below = s->ids_below, .temperature = (double)s->temperature,
                                     .top_p = (double)s->top_p, .min_p = (double)s->min_p, .penalty = (double)s->repetition_penalty, .seen = seen,
                                     .u = words[0] * 0x1p-32, .margin = 0x1p-19};
    const size_t want = oracle_sample(&args, &low, &high, &slack);
    if (s->temperature > 0 && (args.u - low < args.margin + slack || high - args.u < args.margin + slack)) return;
    assert_int_equal(id, want);
}

static void note(int32_t *seen, int32_t id) { seen[id / 32] = (int32_t)((uint32_t)seen[id / 32] | UINT32_C(1) << id % 32); }

/* Tokens of prompts in pieces, of ids given and of ids chosen all count for the penalty; a reset forgets them. */
static void all_settings_act(void **unused)
{
    (void)unused;
    enum { WORDS = 4, STEPS = 12 };
    static const dart_sampling full[B] = {
        {.repetition_penalty = 1.5f, .ids_below = 60},
        {.temperature = 1.5f, .top_p = 0.8f, .min_p = 0.05f, .repetition_penalty = 2, .seed = 3},
        {.temperature = 0.7f, .top_k = 30, .top_p = 0.6f, .ids_below = 50, .seed = 4},
        {.temperature = 2, .min_p = 0.3f, .repetition_penalty = 0.5f, .seed = 5}};
    dart_model *model = model_for_windows();
    int32_t *ids = ids_of(B, small.V), next[B], lasting[3][B];
    float logits[B][97];
    for (mode how = PLAIN; how < MODES; how++) {
        dart_state *state = state_in(model, how);
        int32_t seen[B][WORDS] = {{0}};
        must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = PROMPT - 4}), "dart_prefill");
        must(dart_state_reset(state, 2), "dart_state_reset");
        const uint32_t counts[B] = {4, 1, 3, 4};
        must(dart_prefill(state, &(dart_prefill_args){.ids = ids + PROMPT - 4, .ids_row = L, .L = 4, .counts = counts, .want = DART_LOGITS_LAST,
                                                      .logits = logits[0], .sampling = full, .sampling_count = B, .next_ids = next}),
             "dart_prefill");
        for (uint32_t b = 0; b < B; b++) {
            for (uint32_t t = b == 2 ? PROMPT - 4 : 0; t < PROMPT - 4 + counts[b]; t++) note(seen[b], ids[b * L + t]);
            check_choice(&full[b], logits[b], seen[b], dart_state_position(state, b), b, next[b]);
        }
        for (uint32_t i = 0; i < STEPS; i++) {
            for (uint32_t b = 0; b < B && i == 5; b++) next[b] = (int32_t)(7 * b + 1);
            for (uint32_t b = 0; b < B; b++) note(seen[b], next[b]);
            must(dart_decode(state, &(dart_decode_args){.ids = i == 5 ? next : NULL, .sampling = full, .sampling_count = B, .logits = logits[0],
                                                        .next_ids = next}),
                 "dart_decode");
            for (uint32_t b = 0; b < B; b++) check_choice(&full[b], logits[b], seen[b], dart_state_position(state, b), b, next[b]);
        }
        /* Steps in one submission. */
        must(dart_generate(state, &(dart_generate_args){.n = 3, .sampling = full, .sampling_count = B, .ids = lasting[0]}), "dart_generate");
        must(dart_prefill(state, &(dart_prefill_args){.want = DART_LOGITS_LAST, .logits = logits[0], .sampling = full, .sampling_count = B,
                                                      .next_ids = next}),
             "dart_prefill");
        for (uint32_t b = 0; b < B; b++) {
            assert_int_equal(next[b], lasting[2][b]);
            for (uint32_t i = 0; i < 2; i++) note(seen[b], lasting[i][b]);
        }
        dart_state_destroy(&state);
    }
    free(ids);
    dart_model_destroy(&model);
}

/* ---- Scores ---- */

static void near_score(float got, double want)
{
    if (!(fabs((double)got - want) <= 2e-5 * (1 + fabs(want)))) fail_msg("%.9g instead of %.9g", (double)got, want);
}

static void check_scores(const float *logits, int32_t target, float got, float log_z, uint32_t k, const int32_t *ids, const float *top)
{
    double sum = 0;
    for (uint32_t i = 0; i < small.V; i++) sum += exp((double)logits[i]);
    near_score(log_z, log(sum));
    near_score(got, target < 0 ? 0 : (double)logits[target] - log(sum));
    for (uint32_t n = 0; n < k; n++) {
        near_score(top[n], (double)logits[ids[n]] - log(sum));
        if (n > 0) assert_true(logits[ids[n]] < logits[ids[n - 1]] || (logits[ids[n]] == logits[ids[n - 1]] && ids[n] > ids[n - 1]));
        for (uint32_t i = 0; i < small.V && n + 1 == k; i++) {
            bool listed = false;
            for (uint32_t m = 0; m < k; m++) listed = listed || ids[m] == (int32_t)i;
            assert_true(listed || logits[i] <= logits[ids[n]]);
        }
    }
}

static void scores_are_those_of_the_logits(void **unused)
{
    (void)unused;
    enum { K_BEST = 5 };
    dart_model *model = model_of(&small, NULL);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .max_piece = 24});
    int32_t *ids = ids_of(B, small.V), targets[B][L], best[B][L][K_BEST], next[B];
    float log_z[B][L], target[B][L], top[B][L][K_BEST];
    float (*logits)[L][97] = calloc(B, sizeof *logits);
    assert_non_null(logits);
    const uint32_t counts[B] = {L, 7, 0, L - 1};
    for (uint32_t b = 0; b < B; b++)
        for (uint32_t t = 0; t < L; t++) targets[b][t] = t % 9 == 4 ? -1 : ids[(b * L + 3 * t) % (B * L)];
    const dart_scores all = {.k = K_BEST, .targets = targets[0], .target = target[0], .log_z = log_z[0], .top_ids = best[0][0], .top = top[0][0]};
    dart_prefill_args args = {.ids = ids, .L = L, .counts = counts, .want = DART_LOGITS_ALL, .logits = logits[0][0], .scores = &all};
    must(dart_prefill(state, &args), "dart_prefill");
    for (uint32_t b = 0; b < B; b++)
        for (uint32_t t = 0; t < counts[b]; t++)
            check_scores(logits[b][t], targets[b][t], target[b][t], log_z[b][t], K_BEST, best[b][t], top[b][t]);
    /* Some rows, without logits. */
    must(dart_state_reset(state, -1), "dart_state_reset");
    const uint64_t rows[3] = {3 * L + 5, 2, L + 6};
    const int32_t of_rows[3] = {11, -1, 96};
    const dart_scores some = {.k = 1, .targets = of_rows, .target = target[0], .log_z = log_z[0], .top_ids = best[0][0], .top = top[0][0]};
    args.want = DART_LOGITS_ROWS;
    args.rows = rows;
    args.rows_count = 3;
    args.logits = NULL;
    args.scores = &some;
    must(dart_prefill(state, &args), "dart_prefill");
    for (uint32_t i = 0; i < 3; i++)
        check_scores(logits[rows[i] / L][rows[i] % L], of_rows[i], target[0][i], log_z[0][i], 1, &best[0][0][i], &top[0][0][i]);
    /* Of the tokens chosen, in a choice and in a step. */
    const dart_scores chosen = {.target = target[0], .log_z = log_z[0]};
    args = (dart_prefill_args){.want = DART_LOGITS_LAST, .logits = logits[0][0], .scores = &chosen, .sampling = &ways[1], .next_ids = next};
    must(dart_prefill(state, &args), "dart_prefill");
    for (uint32_t b = 0; b < B; b++)
        if (b != 2) check_scores(logits[0][b], next[b], target[0][b], log_z[0][b], 0, NULL, NULL);
    must(dart_decode(state, &(dart_decode_args){.sampling = &ways[1], .logits = logits[0][0], .scores = &chosen, .next_ids = next}), "dart_decode");
    for (uint32_t b = 0; b < B; b++) check_scores(logits[0][b], next[b], target[0][b], log_z[0][b], 0, NULL, NULL);
    /* Of others, in both, whatever is chosen. */
    const int32_t others[B] = {(next[0] + 1) % (int32_t)small.V, -1, (next[2] + 2) % (int32_t)small.V, (next[3] + 3) % (int32_t)small.V};
    const dart_scores given = {.targets = others, .target = target[0], .log_z = log_z[0]};
    args = (dart_prefill_args){.want = DART_LOGITS_LAST, .logits = logits[0][0], .scores = &given, .sampling = &ways[1], .next_ids = next};
    must(dart_prefill(state, &args), "dart_prefill");
    for (uint32_t b = 0; b < B; b++) check_scores(logits[0][b], others[b], target[0][b], log_z[0][b], 0, NULL, NULL);
    must(dart_decode(state, &(dart_decode_args){.sampling = &ways[1], .logits = logits[0][0], .scores = &given, .next_ids = next}), "dart_decode");
    for (uint32_t b = 0; b < B; b++) check_scores(logits[0][b], others[b], target[0][b], log_z[0][b], 0, NULL, NULL);
    quiet = true;
    assert_int_equal(dart_prefill(state, &(dart_prefill_args){.scores = &all}), DART_INVALID_ARGUMENT); /* of no rows */
    assert_int_equal(dart_prefill(state, &(dart_prefill_args){.want = DART_LOGITS_LAST, .scores = &chosen}), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_decode(state, &(dart_decode_args){.scores = &(dart_scores){.k = DART_MOST_TOP + 1}}), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_decode(state, &(dart_decode_args){.scores = &(dart_scores){.k = 1}}), DART_INVALID_ARGUMENT);
    quiet = false;
    free(logits);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

static void refuse(dart_state *state, const dart_sampling *sampling, uint32_t count, const char *says)
{
    char text[512];
    int32_t ids[B] = {0};
    assert_int_equal(dart_decode(state, &(dart_decode_args){.ids = ids, .sampling = sampling, .sampling_count = count}), DART_INVALID_ARGUMENT);
    dart_state_error(state, text, sizeof text);
    if (strstr(text, says) == NULL) fail_msg("'%s' does not say '%s'", text, says);
    assert_int_equal(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = 1, .sampling = sampling, .sampling_count = count}),
                     DART_INVALID_ARGUMENT);
    assert_int_equal(dart_generate(state, &(dart_generate_args){.n = 1, .sampling = sampling, .sampling_count = count}), DART_INVALID_ARGUMENT);
    for (uint32_t b = 0; b < B; b++) assert_int_equal(dart_state_position(state, b), 1);
}

static void wrong_settings_are_refused(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    dart_state *state = state_in(model, PLAIN);
    const int32_t ids[B] = {0};
    must(dart_decode(state, &(dart_decode_args){.ids = ids}), "dart_decode");
    dart_sampling each[B] = {{0}};
    quiet = true;
    refuse(state, each, B - 1, "sampling_count 3");
    refuse(state, each, B + 1, "sampling_count 5");
    refuse(state, NULL, 1, "without sampling");
    each[B - 1].temperature = NAN;
    refuse(state, each, B, "sequence 3");
    each[B - 1] = (dart_sampling){.end_ids_count = DART_END_IDS + 1};
    refuse(state, each, B, "end ids");
    each[B - 1] = (dart_sampling){.end_ids_count = 2, .end_ids = {0, (int32_t)small.V}};
    refuse(state, each, B, "end id 97");
    each[B - 1].end_ids[1] = -1;
    refuse(state, each, B, "end id -1");
    each[B - 1] = (dart_sampling){.top_p = 1.5f};
    refuse(state, each, B, "top_p 1.5 of sequence 3");
    each[B - 1] = (dart_sampling){.min_p = -1};
    refuse(state, each, B, "min_p -1");
    each[B - 1] = (dart_sampling){.repetition_penalty = NAN};
    refuse(state, each, B, "repetition_penalty");
    each[B - 1] = (dart_sampling){.ids_below = small.V + 1};
    refuse(state, each, B, "ids_below 98");
    quiet = false;
    each[B - 1] = (dart_sampling){.end_ids_count = 2, .ids_below = small.V, .top_p = 1, .min_p = 1, .repetition_penalty = 1};
    each[B - 1].end_ids[1] = (int32_t)small.V - 1;
    must(dart_decode(state, &(dart_decode_args){.ids = ids, .sampling = each, .sampling_count = B}), "dart_decode");
    dart_state_destroy(&state);
    dart_model_destroy(&model);
}

/* A piece that reaches the last position ends the sequence, before any step; a position more lets it take one. */
static void pieces_end_at_the_last_position(void **unused)
{
    (void)unused;
    enum { TOKENS = 9 };
    dart_model *model = model_of(&small, NULL);
    dart_state *state = state_of(model, NULL);
    int32_t *ids = ids_of(1, small.V), next = 0;
    for (uint64_t more = 0; more < 2; more++) {
        const dart_sampling last = {.last_position = TOKENS + more};
        must(dart_state_reset(state, -1), "dart_state_reset");
        must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = TOKENS, .sampling = &last}), "dart_prefill");
        assert_int_equal(dart_state_ended(state, 0), more == 0);
        must(dart_decode(state, &(dart_decode_args){.sampling = &last, .next_ids = &next}), "dart_decode");
        assert_int_equal(next == -1, more == 0);
        assert_int_equal(dart_state_position(state, 0), TOKENS + more);
    }
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_differ),
        cmocka_unit_test(settings_change),
        cmocka_unit_test(sequences_end),
        cmocka_unit_test(pieces_end_at_the_last_position),
        cmocka_unit_test(ended_sequences_take_tokens),
        cmocka_unit_test(all_settings_act),
        cmocka_unit_test(scores_are_those_of_the_logits),
        cmocka_unit_test(wrong_settings_are_refused),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
