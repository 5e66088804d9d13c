/* dartlm eval lambada: how well a model says the last word of a text. */
#include "cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct example {
    dart_token_list ids; /* context and target */
    uint32_t context;    /* tokens of the context, at least 1 */
} example;

typedef struct lambada_test {
    const char *path;
    example *examples;
    size_t count, capacity;
    dart_tokenizer *tokenizer;
    dart_tokenizer_info info;
    uint32_t B;
    uint64_t tokens, targets, right; /* right: examples whose every target was the likeliest token */
    double log_probability;          /* sum over examples */
    double seconds;
} lambada_test;

/* ---- Examples ---- */

/* Tokens of context and target as one text; those that the context alone has are the context. Blanks that end a context belong to the target. */
static int encode(const lambada_test *test, const char *text, size_t context, size_t bytes, example *e)
{
    dart_token_list alone = {.ids = NULL};
    while (context > 0 && text[context - 1] == ' ') context--;
    dart_status status = DART_OK;
    if (context == 0 && test->info.bos < 0 && test->info.eos < 0)
        return cli_fail("%s: a text without context, and the tokenizer has no token that begins one", test->path);
    if (context == 0) status = dart_token_list_add(&e->ids, test->info.bos >= 0 ? test->info.bos : test->info.eos);
    const size_t begin = e->ids.count;
    if (status == DART_OK) status = dart_tokenizer_encode(test->tokenizer, text, context, NULL, &alone);
    if (status == DART_OK) status = dart_tokenizer_encode(test->tokenizer, text, bytes, NULL, &e->ids);
    e->context = (uint32_t)(begin + alone.count);
    dart_token_list_free(&alone);
    return status == DART_OK ? CLI_OK : cli_fail_tokenizer(test->tokenizer, test->path, status);
}

/* "text", whose last word is the target, or "context" and "target". */
static int take(lambada_test *test, const json_t *object, uint64_t line)
{
    const json_t *text = json_object_get(object, "text"), *context = json_object_get(object, "context"), *target = json_object_get(object, "target");
    const bool apart = json_is_string(context) && json_is_string(target);
    if (!apart && !json_is_string(text)) return cli_fail("%s: line %" PRIu64 " has no \"text\", nor \"context\" and \"target\"", test->path, line);
    if (test->count == test->capacity) {
        const size_t capacity = test->capacity * 2 + 64;
        example *grown = realloc(test->examples, capacity * sizeof *grown);
        if (grown == NULL) return cli_fail_memory();
        memset(grown + test->capacity, 0, (capacity - test->capacity) * sizeof *grown);
        test->examples = grown;
        test->capacity = capacity;
    }
    example *e = test->examples + test->count++;
    size_t before, bytes;
    char *joined = NULL;
    if (apart) {
        before = json_string_length(context);
        bytes = before + json_string_length(target);
        joined = malloc(bytes + 1);
        if (joined == NULL) return cli_fail_memory();
        memcpy(joined, json_string_value(context), before);
        memcpy(joined + before, json_string_value(target), bytes - before);
    } else {
        const char *whole = json_string_value(text);
        bytes = before = json_string_length(text);
        while (before > 0 && whole[before - 1] != ' ') before--;
    }
    const int status = encode(test, apart ? joined : json_string_value(text), before, bytes, e);
    free(joined);
    if (status != CLI_OK) return status;
    if (e->ids.count <= e->context) return cli_fail("%s: line %" PRIu64 " has no target", test->path, line);
    return e->ids.count <= INT32_MAX ? CLI_OK : cli_fail("%s: line %" PRIu64 " is too long", test->path, line);
}

static int read_examples(lambada_test *test)
{
    cli_lines lines;
    json_t *object = NULL;
    int status = cli_lines_open(&lines, test->path);
    while (status == CLI_OK && (status = cli_lines_next(&lines, &object)) == CLI_OK && object != NULL) {
        status = take(test, object, lines.line);
        json_decref(object);
    }
    cli_lines_close(&lines);
    if (status == CLI_OK && test->count == 0) status = cli_fail("%s has no examples", test->path);
    return status;
}

/* ---- Scores ---- */

typedef struct batch {
    int32_t *ids, *targets, *best;
    uint32_t *counts;
    uint64_t *rows;
    float *target, *top;
} batch;

static dart_status run_batch(lambada_test *test, dart_state *state, size_t first, uint32_t count, batch *b)
{
    uint32_t L = 0;
    size_t rows = 0;
    for (uint32_t i = 0; i < test->B; i++) {
        b->counts[i] = i < count ? (uint32_t)test->examples[first + i].ids.count - 1 : 0; /* what follows the last token is not asked */
        if (b->counts[i] > L) L = b->counts[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        const example *e = test->examples + first + i;
        memcpy(b->ids + (size_t)i * L, e->ids.ids, b->counts[i] * sizeof *b->ids);
        for (size_t t = e->context; t < e->ids.count; t++) {
            b->rows[rows] = (uint64_t)i * L + t - 1;
            b->targets[rows++] = e->ids.ids[t];
        }
        test->tokens += b->counts[i];
    }
    const dart_scores scores = {.k = 1, .targets = b->targets, .target = b->target, .top_ids = b->best, .top = b->top};
    dart_status status = dart_state_reset(state, -1);
    if (status == DART_OK)
        status = dart_prefill(state, &(dart_prefill_args){.ids = b->ids, .L = L, .counts = b->counts, .want = DART_LOGITS_ROWS, .rows = b->rows,
                                                          .rows_count = rows, .scores = &scores});
    if (status != DART_OK) return status;
    for (uint32_t i = 0, row = 0; i < count; i++) {
        const example *e = test->examples + first + i;
        bool right = true;
        for (size_t t = e->context; t < e->ids.count; t++, row++) {
            test->log_probability += (double)b->target[row];
            right = right && b->best[row] == b->targets[row];
        }
        test->targets += e->ids.count - e->context;
        test->right += right;
    }
    return DART_OK;
}

static int run(lambada_test *test, dart_model *model, const cli_model_options *with)
{
    dart_state *state = NULL;
    batch b = {.ids = NULL};
    size_t L = 0, targets = 0;
    if (test->B > test->count) test->B = (uint32_t)test->count;
    for (size_t i = 0; i < test->count; i++) {
        const example *e = test->examples + i;
        if (e->ids.count > L) L = e->ids.count;
        if (e->ids.count - e->context > targets) targets = e->ids.count - e->context;
    }
    const size_t rows = test->B * targets;
    b.ids = calloc(test->B, L * sizeof *b.ids);
    b.counts = calloc(test->B, sizeof *b.counts);
    b.rows = calloc(rows, sizeof *b.rows);
    b.targets = calloc(rows, sizeof *b.targets);
    b.best = calloc(rows, sizeof *b.best);
    b.target = calloc(rows, sizeof *b.target);
    b.top = calloc(rows, sizeof *b.top);
    int result = CLI_OK;
    if (b.ids == NULL || b.counts == NULL || b.rows == NULL || b.targets == NULL || b.best == NULL || b.target == NULL || b.top == NULL)
        result = cli_fail_memory();
    const dart_state_options options = {.B = test->B, .S = with->S, .no_sma = with->no_sma};
    dart_status status = DART_OK;
    if (result == CLI_OK && (status = dart_state_create(model, &options, &state)) != DART_OK) result = cli_fail_model(model, status);
    const uint64_t begin = base_now_ns();
    for (size_t first = 0; first < test->count && result == CLI_OK; first += test->B) {
        const uint32_t count = test->count - first < test->B ? (uint32_t)(test->count - first) : test->B;
        cli_progress("text %zu of %zu", first, test->count);
        status = run_batch(test, state, first, count, &b);
        if (status != DART_OK) result = cli_fail_state(state, status);
    }
    cli_progress_end();
    test->seconds = (double)(base_now_ns() - begin) / 1e9;
    dart_state_destroy(&state);
    free(b.ids);
    free(b.counts);
    free(b.rows);
    free(b.targets);
    free(b.best);
    free(b.target);
    free(b.top);
    return result;
}

static int print(const lambada_test *test, const char *device, bool json)
{
    const double loss = -test->log_probability / (double)test->count, accuracy = (double)test->right / (double)test->count;
    const double speed = (double)test->tokens / test->seconds;
    char number[2][CLI_NUMBER];
    if (json)
        return cli_print_json(json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:I, s:f, s:f}", "task", "lambada", "device", device, "texts",
                                        (json_int_t)test->count, "targets", (json_int_t)test->targets, "loss", cli_json_number(loss), "perplexity",
                                        cli_json_number(exp(loss)), "right", (json_int_t)test->right, "accuracy", accuracy, "tokens_per_second",
                                        speed));
    printf("perplexity  %.4f of a last word; loss %.5f\n", exp(loss), loss);
    printf("accuracy    %s of %s right, %.2f %%\n", cli_count(test->right, number[0]), cli_count(test->count, number[1]), 100 * accuracy);
    printf("speed       %s tokens/s\n", cli_rate(speed, number[0]));
    return CLI_OK;
}

int cmd_eval_lambada(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    cli_model_options with = {.folder = NULL};
    lambada_test test = {.B = 16};
    const char *tokenizer = NULL;
    const args_option options[] = {
        {"model", 0, ARGS_TEXT, "DIR", &with.folder, "config.json and *.safetensors", 0, 0, true},
        {"data", 0, ARGS_TEXT, "FILE", &test.path, "the texts, JSON Lines", 0, 0, true},
        {"tokenizer", 0, ARGS_TEXT, "PATH", &tokenizer, "tokenizer.json, or the folder that it is in; by default that of the model", 0, 0, false},
        {"batch", 0, ARGS_U32, "B", &test.B, "texts at a time, by default 16", 1, 65536, false},
        CLI_STATE(with),
        CLI_WEIGHTS(common, with),
        CLI_DEVICE(common),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm eval lambada",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "The last word of each text from all that comes before it. A line of FILE is a JSON object with \"text\", or with \"context\" and\n"
            "\"target\", which is then scored instead of the last word. Perplexity is exp of the mean over texts of -log p(word), all\n"
            "of the word's tokens together; a word is right if each of its tokens is the likeliest one."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_model *model = NULL;
    dart_model_info info;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    status = cli_open_tokenizer(tokenizer != NULL ? tokenizer : with.folder, &test.tokenizer);
    if (status == CLI_OK) (void)dart_tokenizer_describe(test.tokenizer, &test.info);
    if (status == CLI_OK) status = read_examples(&test);
    if (status == CLI_OK) status = cli_open_model(&session, &common, &with, &model);
    if (status == CLI_OK && (dart_model_describe(model, &info) != DART_OK || info.config.V < test.info.ids))
        status = cli_fail("%s has %" PRIu32 " ids, the tokenizer %" PRIu32, with.folder, info.config.V, test.info.ids);
    if (status == CLI_OK) status = run(&test, model, &with);
    if (status == CLI_OK) status = print(&test, session.info.name, common.json);
    for (size_t i = 0; i < test.count; i++) dart_token_list_free(&test.examples[i].ids);
    free(test.examples);
    dart_tokenizer_destroy(&test.tokenizer);
    dart_model_destroy(&model);
    cli_close(&session);
    return status;
}
