/* dartlm eval niah: whether a model finds a sentence in a long text. */
#include "cli.h"
#include "niah.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct niah_prompt {
    niah_sample text;
    dart_token_list ids; /* of input, blank and prefix */
    uint32_t length;     /* as RULER counts: tokens of the input and of the answer, not those of the prefix */
    char *answer;        /* for free() */
    size_t answer_bytes;
} niah_prompt;

typedef struct niah_test {
    niah_haystack haystack;
    const char *haystack_path; /* NULL: the program's own sentences */
    uint32_t L, samples, n, B; /* n: tokens of an answer */
    uint64_t seed;
    niah_prompt *prompts;
    dart_tokenizer *tokenizer;
    dart_tokenizer_info info;
    uint64_t right, tokens;
    double seconds; /* of the model; 0: answers of a file */
} niah_test;

static const char *haystack_name(const niah_test *test)
{
    if (test->haystack.task == 1) return "RULER's";
    return test->haystack_path != NULL ? test->haystack_path : "dartlm's own sentences";
}

/* ---- Prompts ---- */

static int encode(const niah_test *test, const char *text, dart_token_list *list)
{
    const dart_status status = dart_tokenizer_encode(test->tokenizer, text, strlen(text), NULL, list);
    return status == DART_OK ? CLI_OK : cli_fail_tokenizer(test->tokenizer, "the prompt", status);
}

/* Makes the sample with a haystack of `units`. *length: of its input, of `behind` and of the answer. */
static int make(const niah_test *test, uint32_t index, uint32_t units, bool with_value, niah_sample *sample, uint64_t *length)
{
    dart_token_list list = {.ids = NULL};
    if (!niah_make(&test->haystack, test->seed, index, units, sample)) return cli_fail_memory();
    int status = encode(test, sample->input, &list);
    if (status == CLI_OK && with_value) status = encode(test, sample->value, &list);
    *length = (uint64_t)list.count + test->n;
    dart_token_list_free(&list);
    return status;
}

/* As many steps of units as the first sample has room for, its value counted once more, as RULER counts. */
static int measure(const niah_test *test, uint32_t step, uint32_t *units)
{
    for (*units = 0;; *units += step) {
        niah_sample sample = {.input = NULL};
        uint64_t length = 0;
        const int status = make(test, 0, *units + step, true, &sample, &length);
        free(sample.input);
        if (status != CLI_OK) return status;
        if (length > test->L) return CLI_OK;
        if (test->haystack.task != 1 && *units + step > test->haystack.words)
            return cli_fail("%s has %" PRIu32 " words, too few for %" PRIu32 " tokens", haystack_name(test), test->haystack.words, test->L);
    }
}

static int make_prompts(niah_test *test)
{
    const uint32_t step = test->haystack.task != 1 ? 500 : test->L < 4096 ? 5 : 25; /* RULER's */
    uint32_t most = 0;
    int status = measure(test, step, &most);
    for (uint32_t i = 0; i < test->samples && status == CLI_OK; i++) {
        niah_prompt *p = test->prompts + i;
        uint64_t length = UINT64_MAX;
        cli_progress("prompt %" PRIu32 " of %" PRIu32, i, test->samples);
        for (uint32_t units = most; units > 0 && length > test->L && status == CLI_OK; units -= step) {
            free(p->text.input);
            status = make(test, i, units, false, &p->text, &length);
        }
        if (status == CLI_OK && length > test->L)
            status = cli_fail("--length: %" PRIu32 " tokens have no room for %" PRIu32 " %s of the haystack, the question and %" PRIu32
                              " tokens of an answer", test->L, step, test->haystack.task == 1 ? "lines" : "words", test->n);
        p->length = (uint32_t)length;
        const size_t bytes = status == CLI_OK ? strlen(p->text.input) : 0;
        char *whole = malloc(bytes + sizeof p->text.prefix + 2);
        if (whole == NULL) status = cli_fail_memory();
        if (status == CLI_OK) {
            memcpy(whole, p->text.input, bytes);
            snprintf(whole + bytes, sizeof p->text.prefix + 2, " %s", p->text.prefix);
            status = encode(test, whole, &p->ids);
        }
        free(whole);
    }
    cli_progress_end();
    return status;
}

static int read_haystack(niah_test *test)
{
    char *text = NULL;
    size_t bytes = 0;
    if (test->haystack.task == 1) return CLI_OK;
    if (test->haystack_path == NULL) return niah_haystack_make(&test->haystack, test->seed, test->L + 500) ? CLI_OK : cli_fail_memory();
    int status = cli_read_text(test->haystack_path, &text, &bytes);
    if (status == CLI_OK && memchr(text, 0, bytes) != NULL) status = cli_fail("%s holds a zero byte: it is no text", test->haystack_path);
    if (status == CLI_OK && !niah_haystack_of(&test->haystack, text, bytes)) status = cli_fail_memory();
    if (status == CLI_OK && test->haystack.words == 0) status = cli_fail("%s holds no words", test->haystack_path);
    free(text);
    return status;
}

/* ---- Answers ---- */

static int keep_answer(niah_prompt *p, const char *text, size_t bytes)
{
    char *grown = realloc(p->answer, p->answer_bytes + bytes + 1);
    if (grown == NULL) return cli_fail_memory();
    memcpy(grown + p->answer_bytes, text, bytes);
    p->answer = grown;
    p->answer_bytes += bytes;
    return CLI_OK;
}

/* The text of ids[0], ids[B], ... up to the end of text. */
static int put_text(const niah_test *test, const int32_t *ids, niah_prompt *p)
{
    dart_text_stream *stream = NULL;
    const char *text;
    size_t bytes;
    dart_status status = dart_text_stream_create(test->tokenizer, NULL, &stream);
    int result = CLI_OK;
    for (uint32_t i = 0; i < test->n && status == DART_OK && result == CLI_OK; i++) {
        const int32_t id = ids[(size_t)i * test->B];
        if (id < 0 || id == test->info.eos) break;
        status = dart_text_stream_feed(stream, &id, 1, &text, &bytes, NULL);
        if (status == DART_OK) result = keep_answer(p, text, bytes);
    }
    if (status == DART_OK) status = dart_text_stream_end(stream, &text, &bytes);
    if (status == DART_OK && result == CLI_OK) result = keep_answer(p, text, bytes);
    dart_text_stream_destroy(&stream);
    return status == DART_OK ? result : cli_fail_tokenizer(test->tokenizer, "the answer", status);
}

/* `count` prompts, from `first`, the largest logit at each step. Places of the batch without a prompt repeat the first one. */
static int run_batch(const niah_test *test, dart_state *state, const dart_sampling *sampling, uint32_t first, uint32_t count, int32_t *ids,
                     int32_t *answers, uint32_t *counts)
{
    uint32_t L = 0;
    for (uint32_t b = 0; b < test->B; b++) {
        counts[b] = (uint32_t)test->prompts[first + (b < count ? b : 0)].ids.count;
        if (counts[b] > L) L = counts[b];
    }
    for (uint32_t b = 0; b < test->B; b++)
        memcpy(ids + (size_t)b * L, test->prompts[first + (b < count ? b : 0)].ids.ids, counts[b] * sizeof *ids);
    for (size_t i = 0; i < (size_t)test->n * test->B; i++) answers[i] = -1;
    dart_status status = dart_state_reset(state, -1);
    if (status == DART_OK)
        status = dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = L, .counts = counts, .sampling = sampling, .next_ids = answers});
    if (status == DART_OK && test->n > 1)
        status = dart_generate(state, &(dart_generate_args){.n = test->n - 1, .sampling = sampling, .ids = answers + test->B});
    if (status != DART_OK) return cli_fail_state(state, status);
    int result = CLI_OK;
    for (uint32_t b = 0; b < count && result == CLI_OK; b++) result = put_text(test, answers + b, test->prompts + first + b);
    return result;
}

static int ask_model(niah_test *test, dart_model *model, const cli_model_options *with)
{
    dart_model_info info;
    dart_state *state = NULL;
    dart_sampling sampling = {.ids_below = test->info.ids};
    uint64_t L = 0;
    dart_status status = dart_model_describe(model, &info);
    if (status != DART_OK) return cli_fail_model(model, status);
    if (test->info.ids > info.config.V)
        return cli_fail("%s has %" PRIu32 " ids, the tokenizer %" PRIu32, with->folder, info.config.V, test->info.ids);
    if (test->info.eos >= 0) sampling.end_ids[sampling.end_ids_count++] = test->info.eos;
    if (test->B > test->samples) test->B = test->samples;
    for (uint32_t i = 0; i < test->samples; i++)
        if (test->prompts[i].ids.count > L) L = test->prompts[i].ids.count;
    int32_t *ids = calloc((size_t)test->B * L, sizeof *ids), *answers = calloc((size_t)test->B * test->n, sizeof *answers);
    uint32_t *counts = calloc(test->B, sizeof *counts);
    const dart_state_options options = {.B = test->B, .S = with->S, .no_sma = with->no_sma};
    int result = ids == NULL || answers == NULL || counts == NULL ? cli_fail_memory() : CLI_OK;
    if (result == CLI_OK && (status = dart_state_create(model, &options, &state)) != DART_OK) result = cli_fail_model(model, status);
    const uint64_t begin = base_now_ns();
    for (uint32_t first = 0; first < test->samples && result == CLI_OK; first += test->B) {
        const uint32_t count = test->samples - first < test->B ? test->samples - first : test->B;
        cli_progress("sample %" PRIu32 " of %" PRIu32, first, test->samples);
        result = run_batch(test, state, &sampling, first, count, ids, answers, counts);
        for (uint32_t b = 0; b < count; b++) test->tokens += counts[b];
    }
    cli_progress_end();
    test->seconds = (double)(base_now_ns() - begin) / 1e9;
    dart_state_destroy(&state);
    free(ids);
    free(answers);
    free(counts);
    return result;
}

static int read_answers(niah_test *test, const char *path)
{
    cli_lines lines;
    json_t *object = NULL;
    uint32_t count = 0;
    int status = cli_lines_open(&lines, path);
    while (status == CLI_OK && (status = cli_lines_next(&lines, &object)) == CLI_OK && object != NULL) {
        const json_t *text = json_object_get(object, "answer");
        if (count == test->samples) status = cli_fail("%s: more answers than the %" PRIu32 " samples", path, test->samples);
        else if (!json_is_string(text)) status = cli_fail("%s: line %" PRIu64 " has no text \"answer\"", path, lines.line);
        else status = keep_answer(test->prompts + count++, json_string_value(text), json_string_length(text));
        json_decref(object);
    }
    if (status == CLI_OK && count < test->samples) status = cli_fail("%s: %" PRIu32 " answers to %" PRIu32 " samples", path, count, test->samples);
    cli_lines_close(&lines);
    return status;
}

/* ---- Files and figures ---- */

/* Prompts and, where there are some, answers: an object a line. */
static int write(const niah_test *test, const char *path, bool answered)
{
    cli_session session = {.context = NULL};
    file_writer *file = NULL;
    if (base_report_init(&session.report, NULL) != DART_OK) return cli_fail_memory();
    dart_status status = file_writer_open(path, &session.report, &file);
    for (uint32_t i = 0; i < test->samples && status == DART_OK; i++) {
        const niah_prompt *p = test->prompts + i;
        json_t *object = json_pack("{s:I, s:s, s:s, s:[s], s:I, s:I}", "index", (json_int_t)i, "input", p->text.input, "gen_prefix", p->text.prefix,
                                   "outputs", p->text.value, "length", (json_int_t)p->length, "max_length", (json_int_t)test->L);
        if (object != NULL && answered) {
            json_object_set_new(object, "answer", json_stringn_nocheck(p->answer, p->answer_bytes));
            json_object_set_new(object, "right", json_boolean(niah_right(p->text.value, p->answer, p->answer_bytes)));
        }
        char *line = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
        if (line == NULL) status = base_fail(&session.report, DART_OUT_OF_MEMORY, "no memory for a line of %s", path);
        if (status == DART_OK) status = file_writer_append(file, line, strlen(line));
        if (status == DART_OK) status = file_writer_append(file, "\n", 1);
        free(line);
        json_decref(object);
    }
    if (status == DART_OK) status = file_writer_close(&file);
    file_writer_destroy(&file);
    const int result = status == DART_OK ? CLI_OK : cli_fail_file(&session, status);
    base_report_destroy(&session.report);
    return result;
}

static int print(const niah_test *test, const char *device, bool json)
{
    const double percent = 100.0 * (double)test->right / test->samples, speed = test->seconds > 0 ? (double)test->tokens / test->seconds : 0;
    char number[CLI_NUMBER];
    const char *comparable = test->haystack.task == 1 ? "its words are dartlm's own, not RULER's"
                                                      : "its words and haystack are not RULER's: not comparable with RULER's figures";
    if (json)
        return cli_print_json(json_pack("{s:s, s:I, s:s, s:I, s:I, s:I, s:f, s:I, s:s, s:s, s:f}", "task", "niah", "number",
                                        (json_int_t)test->haystack.task, "device", device, "length", (json_int_t)test->L, "right",
                                        (json_int_t)test->right, "total", (json_int_t)test->samples, "percent", percent, "seed",
                                        (json_int_t)test->seed, "haystack", haystack_name(test), "note", comparable, "tokens_per_second", speed));
    printf("needle      %" PRIu64 " of %" PRIu32 " found, %.2f %%\n", test->right, test->samples, percent);
    printf("prompts     task %" PRIu32 ", up to %s tokens, haystack: %s; %s\n", test->haystack.task, cli_count(test->L, number), haystack_name(test),
           comparable);
    if (test->seconds > 0) printf("speed       %s tokens/s, prompts read and answers written\n", cli_rate(speed, number));
    return CLI_OK;
}

/* ---- The command ---- */

typedef struct niah_files {
    const char *tokenizer, *prompts, *answers, *write;
} niah_files;

static int evaluate(niah_test *test, const cli_common *common, const cli_model_options *with, const niah_files *files)
{
    cli_session session = {.context = NULL};
    dart_model *model = NULL;
    int status = cli_open_tokenizer(files->tokenizer != NULL ? files->tokenizer : with->folder, &test->tokenizer);
    if (status == CLI_OK) status = read_haystack(test);
    test->prompts = calloc(test->samples, sizeof *test->prompts);
    if (status == CLI_OK && test->prompts == NULL) status = cli_fail_memory();
    if (status != CLI_OK) return status;
    (void)dart_tokenizer_describe(test->tokenizer, &test->info);
    status = make_prompts(test);
    if (status != CLI_OK) return status;
    if (files->prompts != NULL) return write(test, files->prompts, false);
    if (files->answers != NULL) status = read_answers(test, files->answers);
    else {
        status = cli_open_model(&session, common, with, &model);
        if (status == CLI_OK) status = ask_model(test, model, with);
    }
    for (uint32_t i = 0; i < test->samples && status == CLI_OK; i++)
        test->right += niah_right(test->prompts[i].text.value, test->prompts[i].answer, test->prompts[i].answer_bytes);
    if (status == CLI_OK && files->write != NULL) status = write(test, files->write, true);
    if (status == CLI_OK) status = print(test, files->answers == NULL ? session.info.name : "none", common->json);
    dart_model_destroy(&model);
    cli_close(&session);
    return status;
}

int cmd_eval_niah(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    cli_model_options with = {.folder = NULL};
    niah_test test = {.haystack = {.task = 1}, .L = 1024, .samples = 500, .n = 128, .B = 8, .seed = 42};
    niah_files files = {.tokenizer = NULL};
    const args_option options[] = {
        {"model", 0, ARGS_TEXT, "DIR", &with.folder, "config.json and *.safetensors; not for --prompts and --answers", 0, 0, false},
        {"tokenizer", 0, ARGS_TEXT, "PATH", &files.tokenizer, "tokenizer.json, or the folder that it is in; by default of the model", 0, 0, false},
        {"task", 0, ARGS_U32, "N", &test.haystack.task,
         "1: repeated sentences, 7 digits; 2: a text, 7 digits; 3: a text, a UUID;\nby default 1", 1, 3, false},
        {"length", 0, ARGS_U32, "L", &test.L, "most tokens of text, question and answer, by default 1024", 256, 1 << 20, false},
        {"samples", 0, ARGS_U32, "N", &test.samples, "by default 500", 1, 1 << 20, false},
        {"seed", 0, ARGS_U64, "N", &test.seed, "of the samples, by default 42", 0, 0, false},
        {"haystack", 0, ARGS_TEXT, "FILE", &test.haystack_path, "the text of tasks 2 and 3; by default sentences that dartlm makes", 0, 0, false},
        {"new-tokens", 'n', ARGS_U32, "N", &test.n, "of an answer, by default 128", 1, 65536, false},
        {"batch", 0, ARGS_U32, "B", &test.B, "prompts at a time, by default 8", 1, 65536, false},
        {"prompts", 0, ARGS_TEXT, "FILE", &files.prompts, "write the prompts and their answers to FILE, JSON Lines, and run no model", 0, 0, false},
        {"answers", 0, ARGS_TEXT, "FILE", &files.answers, "judge the texts \"answer\" in the lines of FILE instead of a model's", 0, 0, false},
        {"write", 0, ARGS_TEXT, "FILE", &files.write, "write prompts and answers to FILE, JSON Lines", 0, 0, false},
        CLI_STATE(with),
        CLI_WEIGHTS(common, with),
        CLI_DEVICE(common),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm eval niah",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "A needle in a haystack: somewhere in a long text stands what the magic number of a word is, and the model is to say it. Prompts follow\n"
            "RULER's tasks niah_single_1, 2 and 3; the words are others, and so is the text. An answer takes the likeliest tokens, and is right\n"
            "if it contains the number. The beginning of the answer, about 20 tokens, comes on top of L, as it does there."};
    args_operands operands;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (files.prompts != NULL && (files.answers != NULL || files.write != NULL))
        return args_mistake(&syntax, "--prompts goes without --answers and --write");
    if (with.folder == NULL && files.prompts == NULL && files.answers == NULL) return args_mistake(&syntax, "--model is missing");
    if (with.folder == NULL && files.tokenizer == NULL) return args_mistake(&syntax, "--tokenizer or --model is needed");
    if (test.haystack_path != NULL && test.haystack.task == 1) return args_mistake(&syntax, "--haystack: task 1 has a text of its own");
    if (common.json && files.write != NULL && strcmp(files.write, "-") == 0)
        return args_mistake(&syntax, "--json and --write would both go to standard output");
    status = evaluate(&test, &common, &with, &files);
    for (uint32_t i = 0; i < test.samples && test.prompts != NULL; i++) {
        free(test.prompts[i].text.input);
        free(test.prompts[i].answer);
        dart_token_list_free(&test.prompts[i].ids);
    }
    free(test.prompts);
    niah_haystack_free(&test.haystack);
    dart_tokenizer_destroy(&test.tokenizer);
    return status;
}
