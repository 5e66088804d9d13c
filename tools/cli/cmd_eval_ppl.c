/* dartlm eval ppl: how well a language model says what comes next. */
#include "corpus.h"
#include "cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct text_test {
    corpus data;
    uint32_t L, B, piece; /* tokens of a sequence, sequences at a time, tokens of them at a time */
    uint32_t parts;       /* of a sequence that have sums of their own; 0: none */
    uint64_t sequences;
    int32_t *ids, *targets; /* B L */
    int32_t *wanted, *best; /* B piece: the next tokens of a piece, and the likeliest ones */
    float *target, *top;    /* B piece: their log-probabilities */
} text_test;

typedef struct score {
    uint64_t tokens, right;
    double loss; /* sum of -log of the probability of the next token */
} score;

typedef struct scores {
    score all;
    score *parts; /* by place in the sequence */
    double seconds;
} scores;

static void add(score *s, float log_probability, bool right)
{
    s->loss -= (double)log_probability;
    s->right += right;
    s->tokens++;
}

/* `count` sequences of the batch, piece after piece. */
static dart_status run_batch(dart_state *state, const text_test *test, uint32_t count, scores *s)
{
    const dart_scores wanted = {.k = 1, .targets = test->wanted, .target = test->target, .top_ids = test->best, .top = test->top};
    dart_status status = dart_state_reset(state, -1);
    for (uint32_t t = 0; t < test->L && status == DART_OK; t += test->piece) {
        const uint32_t n = test->L - t < test->piece ? test->L - t : test->piece;
        for (uint32_t b = 0; b < test->B; b++)
            memcpy(test->wanted + (size_t)b * n, test->targets + (size_t)b * test->L + t, n * sizeof *test->wanted);
        status = dart_prefill(state, &(dart_prefill_args){.ids = test->ids + t, .ids_row = test->L, .L = n, .want = DART_LOGITS_ALL,
                                                          .scores = &wanted});
        for (size_t i = 0; i < (size_t)count * n && status == DART_OK; i++) {
            const bool right = test->best[i] == test->wanted[i];
            add(&s->all, test->target[i], right);
            if (test->parts > 0) add(s->parts + (uint64_t)(t + i % n) * test->parts / test->L, test->target[i], right);
        }
    }
    return status;
}

static int run(text_test *test, dart_state *state, scores *s)
{
    const size_t tokens = (size_t)test->B * test->L;
    test->ids = calloc(tokens, sizeof *test->ids);
    test->targets = calloc(tokens, sizeof *test->targets);
    const size_t rows = (size_t)test->B * test->piece;
    test->wanted = calloc(rows, sizeof *test->wanted);
    test->best = calloc(rows, sizeof *test->best);
    test->target = calloc(rows, sizeof *test->target);
    test->top = calloc(rows, sizeof *test->top);
    s->parts = calloc(test->parts + 1, sizeof *s->parts);
    if (s->parts == NULL || test->ids == NULL || test->targets == NULL || test->wanted == NULL || test->best == NULL || test->target == NULL ||
        test->top == NULL)
        return cli_fail_memory();
    const uint64_t begin = base_now_ns();
    for (uint64_t first = 0; first < test->sequences; first += test->B) {
        const uint32_t count = test->sequences - first < test->B ? (uint32_t)(test->sequences - first) : test->B;
        cli_progress("sequence %" PRIu64 " of %" PRIu64, first, test->sequences);
        for (uint32_t b = 0; b < count; b++)
            corpus_cut(&test->data, (first + b) * test->L, test->L, test->ids + (size_t)b * test->L, test->targets + (size_t)b * test->L);
        const dart_status status = run_batch(state, test, count, s);
        if (status != DART_OK) return cli_fail_state(state, status);
    }
    cli_progress_end();
    s->seconds = (double)(base_now_ns() - begin) / 1e9;
    return CLI_OK;
}

static double mean_loss(const score *s) { return s->loss / (double)s->tokens; }
static double accuracy(const score *s) { return (double)s->right / (double)s->tokens; }

/* Place p of a sequence of L belongs to part p parts / L: the first place of a part. */
static uint32_t first_place(const text_test *test, uint32_t part)
{
    return (uint32_t)(((uint64_t)part * test->L + test->parts - 1) / test->parts);
}

static json_t *list_parts(const text_test *test, const scores *s)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < test->parts; i++) {
        const double loss = mean_loss(s->parts + i);
        json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:o, s:o, s:f}", "from", (json_int_t)first_place(test, i), "to",
                                              (json_int_t)first_place(test, i + 1) - 1, "tokens", (json_int_t)s->parts[i].tokens, "loss",
                                              cli_json_number(loss), "perplexity", cli_json_number(exp(loss)), "accuracy",
                                              accuracy(s->parts + i)));
    }
    return list;
}

static int print_parts(const text_test *test, const scores *s)
{
    char number[CLI_NUMBER];
    cli_table *table = cli_table_create("rrrrr");
    const char *const titles[] = {"places", "tokens", "loss", "perplexity", "right"};
    for (size_t i = 0; i < COUNT_OF(titles); i++) cli_table_cell(table, "%s", titles[i]);
    for (uint32_t i = 0; i < test->parts; i++) {
        cli_table_cell(table, "%" PRIu32 " to %" PRIu32, first_place(test, i), first_place(test, i + 1) - 1);
        cli_table_cell(table, "%s", cli_count(s->parts[i].tokens, number));
        cli_table_cell(table, "%.5f", mean_loss(s->parts + i));
        cli_table_cell(table, "%.4f", exp(mean_loss(s->parts + i)));
        cli_table_cell(table, "%.2f %%", 100 * accuracy(s->parts + i));
    }
    return cli_table_print(&table);
}

static int print(const cli_session *session, const text_test *test, const scores *s, bool json)
{
    const double loss = mean_loss(&s->all), speed = (double)s->all.tokens / s->seconds;
    char number[3][CLI_NUMBER];
    if (json) {
        json_t *found = json_pack("{s:s, s:s, s:I, s:o, s:o, s:f, s:f}", "task", "ppl", "device", session->info.name, "tokens",
                                  (json_int_t)s->all.tokens, "loss", cli_json_number(loss), "perplexity", cli_json_number(exp(loss)), "accuracy",
                                  accuracy(&s->all), "tokens_per_second", speed);
        if (test->parts > 0) json_object_set_new(found, "places", list_parts(test, s));
        return cli_print_json(found);
    }
    printf("perplexity  %.4f; loss %.5f, %.5f bits a token\n", exp(loss), loss, loss / 0.69314718055994531);
    printf("accuracy    %s of %s right, %.2f %%\n", cli_count(s->all.right, number[0]), cli_count(s->all.tokens, number[1]),
           100 * accuracy(&s->all));
    printf("speed       %s tokens/s\n", cli_rate(speed, number[2]));
    return test->parts > 0 ? print_parts(test, s) : CLI_OK;
}

int cmd_eval_ppl(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    cli_model_options with = {.folder = NULL};
    text_test test = {.L = 2048, .B = 1, .piece = 2048};
    args_list files = {.count = 0};
    uint32_t most = 0;
    bool bytes = false;
    const char *tokenizer = NULL;
    const args_option options[] = {
        {"model", 0, ARGS_TEXT, "DIR", &with.folder, "config.json and *.safetensors", 0, 0, true},
        CORPUS_OPTIONS(files, bytes),
        CORPUS_TOKENIZER(tokenizer),
        {"length", 0, ARGS_U32, "L", &test.L, "tokens of a sequence, by default 2048", 1, 1 << 24, false},
        {"batch", 0, ARGS_U32, "B", &test.B, "sequences at a time, by default 1", 1, 65536, false},
        {"places", 0, ARGS_U32, "N", &test.parts, "also by place in the sequence, in N parts of it", 1, 4096, false},
        {"sequences", 0, ARGS_U32, "N", &most, "only the first N", 1, 0, false},
        CLI_STATE(with),
        CLI_WEIGHTS(common, with),
        CLI_DEVICE(common),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm eval ppl",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Perplexity of a language model: the data is cut into sequences of L tokens, each read from an empty state; what does not\n"
            "fill a sequence is left out. A token is right if the model ranks the next one first."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_model *model = NULL;
    dart_state *state = NULL;
    dart_model_info info;
    scores s = {.parts = NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (test.parts > test.L) return args_mistake(&syntax, "--places: more parts than the %" PRIu32 " tokens of a sequence", test.L);
    status = corpus_open(&test.data, &files, bytes, tokenizer);
    if (status == CLI_OK && test.data.count <= test.L)
        status = cli_fail("the data has %" PRIu64 " tokens; a sequence takes %" PRIu32 " and the one behind it", test.data.count, test.L);
    if (status == CLI_OK) status = cli_open_model(&session, &common, &with, &model);
    if (status != CLI_OK) goto done;
    if (dart_model_describe(model, &info) != DART_OK || info.config.V < test.data.V) {
        status = cli_fail("%s has %" PRIu32 " ids, the data %" PRIu32, with.folder, info.config.V, test.data.V);
        goto done;
    }
    test.sequences = (test.data.count - 1) / test.L;
    if (most > 0 && most < test.sequences) test.sequences = most;
    if (test.B > test.sequences) test.B = (uint32_t)test.sequences;
    if (test.piece > test.L) test.piece = test.L;
    const dart_state_options state_options = {.B = test.B, .S = with.S, .no_sma = with.no_sma};
    const dart_status made = dart_state_create(model, &state_options, &state);
    status = made == DART_OK ? run(&test, state, &s) : cli_fail_model(model, made);
    if (status == CLI_OK) status = print(&session, &test, &s, common.json);
done:
    free(s.parts);
    free(test.ids);
    free(test.targets);
    free(test.wanted);
    free(test.best);
    free(test.target);
    free(test.top);
    corpus_close(&test.data);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    cli_close(&session);
    return status;
}
