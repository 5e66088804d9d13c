/* The server's engine without HTTP: many requests at once get what each gets alone, however they begin, and whoever leaves: model_engine
 * DEVICE_SPEC DATA_DIR. */
#include "model_cases.h"

#include "serve/engine.h"

enum { V = 1024, JOBS = 24, SLOTS = 6, LONGEST = 60, MOST = 14 };

static const dart_model_config shape = {.sma = true, .V = V, .W = 32, .layers = 2, .H = 4, .P = 16, .G = 1, .N = 16, .K = 4, .S = 8, .eps = 1e-5f,
                                        .sma_eps = 1e-5f};

static uint64_t random_state;
static uint32_t draw(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % limit);
}

/* What is asked: one or two prompts, of which many begin with the same tokens. */
typedef struct question {
    uint32_t prompts, counts[2];
    int32_t ids[2][LONGEST];
    api_settings settings;
} question;

static void make_question(question *q)
{
    const uint32_t kind = draw(4);
    q->prompts = 1 + draw(2);
    for (uint32_t p = 0; p < q->prompts; p++) {
        const uint32_t common = draw(3) > 0 ? draw(LONGEST - 5) : 0;
        q->counts[p] = common + 1 + draw(LONGEST - common);
        for (uint32_t i = 0; i < q->counts[p]; i++) q->ids[p][i] = (int32_t)(i < common ? (i * 37 + 5) % 1000 : draw(1000));
    }
    q->settings = (api_settings){.max_tokens = 1 + draw(MOST), .n = 1 + draw(3), .logprobs = kind > 1 ? (int32_t)draw(3) : -1, .echo = kind == 3,
                                 .ignore_eos = true, .seeded = true, .seed = draw(100000), .temperature = kind % 2 == 0 ? 0.0f : 1.2f, .top_p = 1,
                                 .repetition_penalty = 1};
    if (q->settings.echo && draw(2) == 0) q->settings.max_tokens = 0;
}

/* The answers from first to before end of those to a question, as a request of its own. */
static job *job_of(const question *q, uint32_t prompt, uint32_t prompts, uint32_t n, uint64_t seed)
{
    api_request request = {.settings = q->settings, .prompts = calloc(prompts, sizeof *request.prompts), .prompts_count = prompts};
    assert_non_null(request.prompts);
    request.settings.n = n;
    request.settings.seed = seed;
    for (uint32_t p = 0; p < prompts; p++)
        for (uint32_t i = 0; i < q->counts[prompt + p]; i++) must(dart_token_list_add(&request.prompts[p].ids, q->ids[prompt + p][i]), "an id");
    job *made = job_create(&request, "m");
    assert_non_null(made);
    return made;
}

static void submit(engine *e, job *j)
{
    api_error error = {.status = 0};
    if (!engine_submit(e, j, &error)) fail_msg("engine_submit: %s", error.message);
}

static void wait_for(job *j)
{
    for (uint64_t begin = base_now_ns();; base_pause_ns(100000)) {
        pthread_mutex_lock(&j->lock);
        const bool over = job_over(j);
        pthread_mutex_unlock(&j->lock);
        if (over) return;
        if (base_now_ns() - begin > UINT64_C(240000000000)) fail_msg("no answer in four minutes");
    }
}

/* Can rounding choose between two tokens behind the prompt and `before` tokens of the answer? It can between two that are the likeliest alike, and,
 * of drawn ones, between two neighbours of the running sum that a drawn number is looked up in: those between them, by their ids, have no share of
 * it. One wrong token in five hundred passes so. */
static bool rounding_chooses(dart_model *model, const question *q, const job_sequence *answer, size_t before, int32_t one, int32_t other)
{
    if (one < 0 || one >= V || other < 0 || other >= V) return false;
    static float logits[V];
    int32_t ids[LONGEST + MOST];
    const uint32_t count = answer->count + (uint32_t)before;
    memcpy(ids, answer->ids, answer->count * sizeof *ids);
    memcpy(ids + answer->count, answer->tokens.ids, before * sizeof *ids);
    dart_state *state = state_of(model, &(dart_state_options){.B = 1});
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = count, .L = count, .want = DART_LOGITS_LAST, .logits = logits}),
         "dart_prefill");
    dart_state_destroy(&state);
    double most = -INFINITY, total = 0, between = 0;
    for (int32_t k = 0; k < V; k++) most = fmax(most, logits[k]);
    if (q->settings.temperature == 0.0f) return fmin(logits[one], logits[other]) > most - 1e-4;
    for (int32_t k = 0; k < V; k++) {
        const double share = exp((logits[k] - most) / q->settings.temperature);
        total += share;
        if ((k > one && k < other) || (k > other && k < one)) between += share;
    }
    return between < TOLERANCE * total;
}

/* fp32 in batches of other sizes: sums are cut differently. Returns whether rounding chose another token somewhere, behind which answers differ. */
static bool compare(dart_model *model, const question *q, const job_sequence *got, const job_sequence *alone)
{
    const size_t count = alone->tokens.count;
    size_t same = 0;
    assert_int_equal(got->tokens.count, count);
    while (same < count && got->tokens.ids[same] == alone->tokens.ids[same]) same++;
    if (same < count && !rounding_chooses(model, q, alone, same, got->tokens.ids[same], alone->tokens.ids[same]))
        fail_msg("token %zu of %zu is %d, alone %d (temperature %g)", same, count, got->tokens.ids[same], alone->tokens.ids[same],
                 (double)q->settings.temperature);
    assert_int_equal(got->scores.count, alone->scores.count);
    for (size_t i = 0; i + (count - same) < got->scores.count; i++) assert_true(fabsf(got->scores.own[i] - alone->scores.own[i]) < 1e-4f);
    assert_string_equal(got->finish, alone->finish);
    return same < count;
}

static engine *start(dart_model *model, dart_tokenizer *tokenizer, metrics *counts)
{
    char error[640] = "";
    const batch_options options = {.slots = SLOTS, .context = LONGEST + MOST, .budget = 48};
    engine *e = engine_create(1000, counts);
    assert_non_null(e);
    if (engine_start(e, model, tokenizer, &options, error, sizeof error) != DART_OK) fail_msg("engine_start: %s", error);
    return e;
}

/* Returns how many answers rounding turned. */
static uint32_t all_at_once(dart_model *model, dart_tokenizer *tokenizer, const question *questions, job *(*alone)[2][3])
{
    static metrics counts;
    uint32_t turned = 0;
    job *jobs[JOBS], *leavers[JOBS / 4];
    counts = (metrics){.waiting = 0};
    engine *e = start(model, tokenizer, &counts);
    for (uint32_t i = 0; i < JOBS; i++) {
        const question *q = &questions[i];
        jobs[i] = job_of(q, 0, q->prompts, q->settings.n, q->settings.seed);
        submit(e, jobs[i]);
        if (i % 4 == 0) submit(e, leavers[i / 4] = job_of(&questions[i], 0, 1, 1, 0));
        if (draw(3) == 0) base_pause_ns(1000000 * (uint64_t)draw(10));
        if (i % 4 == 3) job_fail(leavers[i / 4], JOB_LEFT, "left");
    }
    for (uint32_t i = 0; i < JOBS; i++) {
        wait_for(jobs[i]);
        if (jobs[i]->failure.status != 0) fail_msg("job %u: %s", i, jobs[i]->failure.message);
    }
    engine_stop(e, false);
    for (uint32_t i = 0; i < JOBS; i++) {
        const uint32_t n = questions[i].settings.n;
        for (uint32_t p = 0; p < questions[i].prompts; p++)
            for (uint32_t k = 0; k < n; k++)
                turned += compare(model, &questions[i], &jobs[i]->sequences[p * n + k], &alone[i][p][k]->sequences[0]);
    }
    print_message("  %llu tokens of prompts computed, %llu shared\n", atomic_load(&counts.prompt_tokens), atomic_load(&counts.shared_tokens));
    assert_true(atomic_load(&counts.shared_tokens) > 0);
    assert_int_equal(atomic_load(&counts.prefilling) + atomic_load(&counts.decoding) + atomic_load(&counts.waiting), 0);
    engine_destroy(&e);
    for (uint32_t i = 0; i < JOBS; i++) job_release(jobs[i]);
    for (uint32_t i = 0; i < JOBS / 4; i++) job_release(leavers[i]);
    return turned;
}

static void answers_are_those_of_a_request_alone(void **unused)
{
    (void)unused;
    static metrics counts;
    static question questions[JOBS];
    static job *alone[JOBS][2][3];
    char path[512], error[640] = "";
    dart_tokenizer *tokenizer = NULL;
    snprintf(path, sizeof path, "%s/tokenizer", data_folder);
    if (dart_tokenizer_open(path, &tokenizer, error, sizeof error) != DART_OK) fail_msg("%s", error);
    const uint64_t seed = base_now_ns() % 1000000007;
    random_state = seed * 2 + 1;
    print_message("  seed %llu\n", (unsigned long long)seed);
    dart_model *model = model_of(&shape, NULL);
    engine *e = start(model, tokenizer, &counts);
    for (uint32_t i = 0; i < JOBS; i++) {
        question *q = &questions[i];
        make_question(q);
        for (uint32_t p = 0; p < q->prompts; p++)
            for (uint32_t k = 0; k < q->settings.n; k++) {
                submit(e, alone[i][p][k] = job_of(q, p, 1, 1, q->settings.seed + k));
                wait_for(alone[i][p][k]);
            }
    }
    assert_int_equal(atomic_load(&counts.shared_tokens), 0);
    engine_destroy(&e);
    uint32_t turned = 0;
    for (int round = 0; round < 2; round++) turned += all_at_once(model, tokenizer, questions, alone);
    if (turned > 0) print_message("  rounding turned %u answers\n", turned);
    assert_true(turned <= 1); /* a draw this near to a border is rare: two of them in a run would be a mistake */
    for (uint32_t i = 0; i < JOBS; i++)
        for (uint32_t p = 0; p < questions[i].prompts; p++)
            for (uint32_t k = 0; k < questions[i].settings.n; k++) job_release(alone[i][p][k]);
    dart_model_destroy(&model);
    dart_tokenizer_destroy(&tokenizer);
}

/* A server that ends while prompts are computed tells those who wait. */
static void stops_at_once(void **unused)
{
    (void)unused;
    static metrics counts;
    char path[512], error[640] = "";
    dart_tokenizer *tokenizer = NULL;
    job *jobs[12];
    snprintf(path, sizeof path, "%s/tokenizer", data_folder);
    if (dart_tokenizer_open(path, &tokenizer, error, sizeof error) != DART_OK) fail_msg("%s", error);
    dart_model *model = model_of(&shape, NULL);
    for (uint32_t round = 0; round < 3; round++) {
        engine *e = start(model, tokenizer, &counts);
        question q;
        random_state = 77 + round;
        for (uint32_t i = 0; i < COUNT_OF(jobs); i++) {
            make_question(&q);
            submit(e, jobs[i] = job_of(&q, 0, 1, 1, 1));
        }
        base_pause_ns(1000000 * (uint64_t)draw(20));
        engine_destroy(&e);
        for (uint32_t i = 0; i < COUNT_OF(jobs); i++) {
            assert_true(job_over(jobs[i]));
            job_release(jobs[i]);
        }
    }
    dart_model_destroy(&model);
    dart_tokenizer_destroy(&tokenizer);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_those_of_a_request_alone), cmocka_unit_test(stops_at_once)};
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
