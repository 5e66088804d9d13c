/* Multi-query associative recall: sequences of key-value pairs, then keys whose values are to be recalled. */
#include "cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct recall_test {
    uint64_t sequences, L, queries; /* a sequence */
    int32_t *ids, *places, *targets;
} recall_test;

typedef struct recall {
    uint64_t right, total, tokens, warm_tokens;
    double seconds, warm_seconds; /* all of it, and without the first batch */
    uint64_t bytes[DART_STATE_KV_CACHE + 1]; /* of one sequence */
} recall;

static void release(recall_test *test)
{
    free(test->ids);
    free(test->places);
    free(test->targets);
}

static int find(const safetensors *file, const char *path, const char *name, const safetensors_tensor **tensor)
{
    *tensor = safetensors_find(file, name);
    if (*tensor == NULL) return cli_fail("%s: tensor %s is missing", path, name);
    char shape[160];
    if ((*tensor)->rank != 2 || (*tensor)->elements == 0)
        return cli_fail("%s: tensor %s has shape %s, expected sequences x length", path, name,
                        cli_shape((*tensor)->shape, (*tensor)->rank, shape));
    return CLI_OK;
}

static int check(const recall_test *test, const char *path, uint32_t V)
{
    for (uint64_t i = 0; i < test->sequences * test->queries; i++) {
        if (test->places[i] < 0 || (uint64_t)test->places[i] >= test->L)
            return cli_fail("%s: query_pos holds %" PRId32 ", beyond %" PRIu64 " tokens", path, test->places[i],
                            test->L);
        if (test->targets[i] < 0 || (uint32_t)test->targets[i] >= V)
            return cli_fail("%s: target holds %" PRId32 ", the vocabulary has %" PRIu32, path, test->targets[i], V);
    }
    return CLI_OK;
}

static int load(cli_session *session, const char *path, uint32_t V, recall_test *test)
{
    safetensors *file = NULL;
    const safetensors_tensor *ids = NULL, *places = NULL, *targets = NULL;
    const dart_status status = safetensors_open(path, &session->report, &file);
    if (status != DART_OK) return cli_fail_file(session, status);
    int result = CLI_FAILED;
    if (find(file, path, "input_ids", &ids) != CLI_OK || find(file, path, "query_pos", &places) != CLI_OK ||
        find(file, path, "target", &targets) != CLI_OK)
        goto done;
    if (places->shape[0] != ids->shape[0] || targets->shape[0] != ids->shape[0] ||
        targets->shape[1] != places->shape[1]) {
        cli_fail("%s: input_ids, query_pos and target disagree in their shapes", path);
        goto done;
    }
    if (ids->shape[1] > INT32_MAX || places->shape[1] > INT32_MAX) {
        cli_fail("%s: sequences are too long", path);
        goto done;
    }
    test->sequences = ids->shape[0];
    test->L = ids->shape[1];
    test->queries = places->shape[1];
    if (cli_integers(ids, &test->ids) != CLI_OK || cli_integers(places, &test->places) != CLI_OK ||
        cli_integers(targets, &test->targets) != CLI_OK)
        goto done;
    result = check(test, path, V);
done:
    safetensors_close(&file);
    return result;
}

/* The lowest index among the largest; NaN never wins. */
static int32_t best(const float *logits, uint32_t V)
{
    uint32_t index = 0;
    float top = -INFINITY;
    for (uint32_t v = 0; v < V; v++) {
        if (!(logits[v] > top)) continue;
        top = logits[v];
        index = v;
    }
    return (int32_t)index;
}

/* Sequences first .. first + count - 1 in a batch of B. */
static dart_status run_batch(dart_state *state, const recall_test *test, uint64_t first, uint32_t count, uint32_t B,
                             uint32_t V, float *logits, uint64_t *rows, uint32_t *counts, recall *result)
{
    const size_t queries = (size_t)test->queries;
    dart_status status = dart_state_reset(state, -1);
    if (status != DART_OK) return status;
    for (uint32_t b = 0; b < B; b++) counts[b] = b < count ? (uint32_t)test->L : 0;
    for (size_t i = 0; i < count * queries; i++)
        rows[i] = i / queries * test->L + (uint64_t)test->places[first * queries + i];
    const dart_prefill_args args = {.ids = test->ids + first * test->L,
                                    .L = (uint32_t)test->L,
                                    .counts = counts,
                                    .want = DART_LOGITS_ROWS,
                                    .rows = rows,
                                    .rows_count = count * queries,
                                    .logits = logits};
    status = dart_prefill(state, &args);
    if (status != DART_OK) return status;
    for (size_t i = 0; i < count * queries; i++)
        result->right += best(logits + i * V, V) == test->targets[first * queries + i];
    result->total += count * queries;
    return DART_OK;
}

static int run(const cli_session *session, const dart_model *model, dart_state *state, const recall_test *test,
               uint32_t B, recall *result)
{
    dart_model_info info;
    int failed = CLI_OK;
    dart_status status = dart_model_describe(model, &info);
    if (status != DART_OK) return cli_fail_device(session, status);
    const uint32_t V = info.config.V;
    const size_t queries = (size_t)test->queries;
    float *logits = calloc(B * queries, V * sizeof *logits);
    uint64_t *rows = calloc(queries, B * sizeof *rows);
    uint32_t *counts = calloc(B, sizeof *counts);
    if (logits == NULL || rows == NULL || counts == NULL) failed = cli_fail_memory();
    for (uint64_t first = 0; first < test->sequences && failed == CLI_OK; first += B) {
        const uint32_t count = test->sequences - first < B ? (uint32_t)(test->sequences - first) : B;
        cli_progress("sequence %" PRIu64 " of %" PRIu64, first, test->sequences);
        const uint64_t start = base_now_ns();
        status = run_batch(state, test, first, count, B, V, logits, rows, counts, result);
        if (status != DART_OK) failed = cli_fail_state(state, status);
        const double seconds = (double)(base_now_ns() - start) / 1e9;
        result->tokens += count * test->L;
        result->seconds += seconds;
        if (first > 0) {
            result->warm_tokens += count * test->L;
            result->warm_seconds += seconds;
        } else {
            for (int kind = 0; kind <= DART_STATE_KV_CACHE; kind++)
                result->bytes[kind] = dart_state_bytes(state, (dart_state_kind)kind) / count;
        }
    }
    cli_progress_end();
    free(logits);
    free(rows);
    free(counts);
    return failed;
}

/* What has to be kept of a sequence's past. */
static uint64_t state_bytes(const recall *r)
{
    return r->bytes[DART_STATE_CONVOLUTION] + r->bytes[DART_STATE_RECURRENT] + r->bytes[DART_STATE_MEMORIES_USED];
}

static double speed(const recall *r)
{
    const double seconds = r->warm_tokens > 0 ? r->warm_seconds : r->seconds;
    const double tokens = (double)(r->warm_tokens > 0 ? r->warm_tokens : r->tokens);
    return seconds > 0 ? tokens / seconds : 0;
}

typedef enum output { OUTPUT_TEXT, OUTPUT_JSON, OUTPUT_CSV } output;

static int print(const cli_session *session, const recall_test *test, const recall *r, output how)
{
    const double percent = 100 * (double)r->right / (double)r->total;
    const uint64_t *bytes = r->bytes;
    char number[6][CLI_NUMBER];
    if (how == OUTPUT_JSON)
        return cli_print_json(
            json_pack("{s:s, s:s, s:I, s:I, s:f, s:I, s:f, s:f, s:{s:I, s:I, s:I, s:I, s:I, s:I}}", "task", "mqar",
                      "device", session->info.name, "right", (json_int_t)r->right, "total", (json_int_t)r->total,
                      "percent", percent, "tokens", (json_int_t)r->tokens, "seconds", r->seconds, "tokens_per_second",
                      speed(r), "bytes_per_sequence", "state", (json_int_t)state_bytes(r), "convolution",
                      (json_int_t)bytes[DART_STATE_CONVOLUTION], "recurrent", (json_int_t)bytes[DART_STATE_RECURRENT],
                      "memories", (json_int_t)bytes[DART_STATE_MEMORIES_USED], "memories_allocated",
                      (json_int_t)bytes[DART_STATE_MEMORIES], "kv_cache", (json_int_t)bytes[DART_STATE_KV_CACHE]));
    if (how == OUTPUT_CSV) {
        printf("right,total,percent,tokens_per_second,seconds,state_bytes,kv_cache_bytes,device\n");
        printf("%" PRIu64 ",%" PRIu64 ",%.2f,%.0f,%.2f,%" PRIu64 ",%" PRIu64 ",\"%s\"\n", r->right, r->total, percent,
               speed(r), r->seconds, state_bytes(r), bytes[DART_STATE_KV_CACHE], session->info.name);
        return CLI_OK;
    }
    printf("recall      %" PRIu64 " of %" PRIu64 " right, %.2f %%\n", r->right, r->total, percent);
    printf("speed       %s tokens/s; %s tokens in %s\n", cli_rate(speed(r), number[0]), cli_count(r->tokens, number[1]),
           cli_time(r->seconds, number[2]));
    printf("state       %s a sequence of %" PRIu64 " tokens: %s of convolution tails, %s recurrent, %s of memories (%s allocated)\n",
           cli_bytes(state_bytes(r), number[0]), test->L, cli_bytes(bytes[DART_STATE_CONVOLUTION], number[1]),
           cli_bytes(bytes[DART_STATE_RECURRENT], number[2]), cli_bytes(bytes[DART_STATE_MEMORIES_USED], number[3]),
           cli_bytes(bytes[DART_STATE_MEMORIES], number[5]));
    printf("KV cache    %s would hold keys and values of the same heads and tokens\n",
           cli_bytes(bytes[DART_STATE_KV_CACHE], number[4]));
    return CLI_OK;
}

static int eval_mqar(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    cli_model_options with = {.folder = NULL};
    const char *data = NULL;
    uint32_t B = 16;
    bool csv = false;
    const args_option options[] = {
        {"model", 0, ARGS_TEXT, "DIR", &with.folder, "config.json and *.safetensors", 0, 0, true},
        {"data", 0, ARGS_TEXT, "FILE", &data, "the test, safetensors", 0, 0, true},
        {"batch", 0, ARGS_U32, "B", &B, "sequences at a time, by default 16", 1, 65536, false},
        CLI_STATE(with),
        CLI_WEIGHTS(common, with),
        CLI_DEVICE(common),
        {"csv", 0, ARGS_FLAG, NULL, &csv, "print comma-separated values", 0, 0, false},
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm eval mqar",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Multi-query associative recall. FILE holds input_ids (sequences x tokens), query_pos and target\n"
            "(sequences x queries): after the token at each query_pos the model should rank target first.\n"
            "Speed is that of all batches but the first."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_model *model = NULL;
    dart_state *state = NULL;
    dart_model_info info;
    recall_test test = {.sequences = 0};
    recall result = {.right = 0};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    status = cli_open_model(&session, &common, &with, &model);
    if (status != CLI_OK) goto done;
    status = CLI_FAILED;
    if (dart_model_describe(model, &info) != DART_OK || load(&session, data, info.config.V, &test) != CLI_OK) goto done;
    if (B > test.sequences) B = (uint32_t)test.sequences;
    const dart_state_options state_options = {.B = B, .S = with.S, .no_sma = with.no_sma};
    const dart_status made = dart_state_create(model, &state_options, &state);
    if (made != DART_OK) {
        status = cli_fail_model(model, made);
        goto done;
    }
    status = run(&session, model, state, &test, B, &result);
    if (status == CLI_OK)
        status = print(&session, &test, &result, common.json ? OUTPUT_JSON : csv ? OUTPUT_CSV : OUTPUT_TEXT);
done:
    release(&test);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    cli_close(&session);
    return status;
}

int cmd_eval(int argc, char **argv)
{
    static const char help[] = "usage: dartlm eval TASK [options]\n\n"
                               "Tasks: mqar (multi-query associative recall), ppl (perplexity of a language model), niah (a needle in a\n"
                               "haystack), lambada (the last words of texts); see dartlm eval TASK --help.\n";
    if (argc > 1 && strcmp(argv[1], "mqar") == 0) return eval_mqar(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "ppl") == 0) return cmd_eval_ppl(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "niah") == 0) return cmd_eval_niah(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "lambada") == 0) return cmd_eval_lambada(argc - 1, argv + 1);
    return args_no_task("dartlm eval", help, argc, argv);
}
