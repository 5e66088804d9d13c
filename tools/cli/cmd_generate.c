#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "1,2,3" as ids for free(); NULL for anything else, or without memory. */
static int32_t *parse_ids(const char *text, uint32_t *count)
{
    const size_t length = strlen(text);
    int32_t *ids = malloc((length / 2 + 1) * sizeof *ids);
    *count = 0;
    while (ids != NULL) {
        char digits[16];
        uint64_t id = 0;
        const size_t span = strcspn(text, ",");
        if (span >= sizeof digits) break;
        memcpy(digits, text, span);
        digits[span] = '\0';
        if (!args_whole(digits, &id) || id > INT32_MAX) break;
        ids[(*count)++] = (int32_t)id;
        if (text[span] == '\0') return ids;
        text += span + 1;
    }
    free(ids);
    return NULL;
}

/* Steps that are submitted together: printed at once, which nobody sees at a few milliseconds. */
enum { TOGETHER = 8 };

/* What the command line asks for, and what it needs of a tokenizer. */
typedef struct request {
    const char *ids, *ids_file, *prompt, *prompt_file, *tokenizer_path; /* of ids, ids_file, prompt and prompt_file one is given */
    const char *load_state, *save_state; /* files, or NULL */
    args_list end_ids, stops;
    bool no_end;
    uint32_t n;
    dart_sampling sampling;
    const int32_t *prompt_ids;
    uint32_t prompt_count;
    int32_t *parsed;      /* of ids */
    dart_token_list list; /* of a prompt */
    dart_tokenizer *tokenizer; /* NULL: ids go out */
    dart_text_stream *stream;
} request;

typedef struct output {
    bool shown; /* as they come */
    bool first;
    uint32_t count; /* ids so far */
    dart_text_stream *stream; /* NULL: ids are shown */
    dart_status status; /* of the stream */
    char *text; /* where it is not shown */
    size_t bytes;
} output;

/* Shows text, or keeps it. */
static bool put_text(output *o, const char *text, size_t bytes)
{
    if (o->shown) {
        fwrite(text, 1, bytes, stdout);
        return fflush(stdout) == 0;
    }
    char *grown = realloc(o->text, o->bytes + bytes + 1);
    if (grown == NULL) o->status = DART_OUT_OF_MEMORY;
    if (grown == NULL) return false;
    o->text = grown;
    memcpy(o->text + o->bytes, text, bytes);
    o->bytes += bytes;
    return true;
}

static bool put_id(void *user, uint32_t step, const int32_t *ids)
{
    output *o = user;
    (void)step;
    o->count++;
    if (o->stream != NULL) {
        const char *text;
        size_t bytes;
        bool stopped;
        o->status = dart_text_stream_feed(o->stream, ids, 1, &text, &bytes, &stopped);
        return o->status == DART_OK && put_text(o, text, bytes) && !stopped;
    }
    if (!o->shown) return true;
    printf("%s%" PRId32, o->first ? "" : " ", ids[0]);
    o->first = false;
    return fflush(stdout) == 0;
}

/* What the stream has kept back. */
static int finish_text(output *o, const request *q)
{
    const char *text;
    size_t bytes;
    if (o->stream == NULL) return CLI_OK;
    if (o->status == DART_OK) o->status = dart_text_stream_end(o->stream, &text, &bytes);
    if (o->status == DART_OK) (void)put_text(o, text, bytes);
    return o->status == DART_OK ? CLI_OK : cli_fail_tokenizer(q->tokenizer, "the text", o->status);
}

/* *n: how many ids there are, of those wanted. */
static int run(dart_state *state, const request *q, int32_t *ids, uint32_t *n, output *o, double *prefill_seconds, double *decode_seconds)
{
    const uint64_t start = base_now_ns();
    const dart_prefill_args args = {.ids = q->prompt_ids, .L = q->prompt_count, .sampling = &q->sampling, .next_ids = ids};
    dart_status status = dart_prefill(state, &args);
    if (status != DART_OK) return cli_fail_state(state, status);
    const uint64_t middle = base_now_ns();
    *prefill_seconds = (double)(middle - start) / 1e9;
    bool going = put_id(o, 0, ids);
    if (going && q->n > 1) {
        const dart_generate_args more = { /* a state to be saved must not run ahead of what is printed */
            .n = q->n - 1, .together = q->save_state != NULL ? 1 : TOGETHER, .sampling = &q->sampling, .step = put_id, .user = o, .ids = ids + 1};
        status = dart_generate(state, &more);
    }
    *decode_seconds = (double)(base_now_ns() - middle) / 1e9;
    *n = o->count;
    const int result = finish_text(o, q);
    if (o->shown) putchar('\n');
    return status == DART_OK ? result : cli_fail_state(state, status);
}

static json_t *list(const int32_t *ids, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++) json_array_append_new(array, json_integer(ids[i]));
    return array;
}

static int print_json(const cli_session *session, const request *q, const int32_t *ids, uint32_t n, const output *o, const double *rates)
{
    json_t *found = json_pack("{s:s, s:o, s:o, s:f, s:f}", "device", session->info.name, "prompt", list(q->prompt_ids, q->prompt_count), "ids",
                              list(ids, n), "prefill_tokens_per_second", rates[0], "decode_tokens_per_second", rates[1]);
    if (q->stream != NULL) json_object_set_new(found, "text", json_stringn(o->text != NULL ? o->text : "", o->bytes));
    return cli_print_json(found);
}

/* With or without a prompt the text goes on behind what the state has consumed. */
static int load(dart_state *state, const char *path)
{
    const dart_status status = dart_state_load(state, 0, path);
    return status == DART_OK ? CLI_OK : cli_fail_state(state, status);
}

/* With all that was printed: the newest token has been chosen and not consumed. */
static int save(dart_state *state, const char *path, int32_t newest)
{
    dart_status status = dart_decode(state, &(dart_decode_args){.ids = &newest});
    if (status == DART_OK) status = dart_state_save(state, 0, path);
    return status == DART_OK ? CLI_OK : cli_fail_state(state, status);
}

static int generate(const cli_session *session, const cli_common *common, dart_model *model, const cli_model_options *with, const request *q)
{
    dart_state *state = NULL;
    const dart_state_options options = {.S = with->S, .no_sma = with->no_sma};
    double prefill = 0, decode = 0;
    uint32_t n = 0;
    output o = {.shown = !common->json, .first = true, .stream = q->stream};
    int32_t *ids = calloc(q->n, sizeof *ids);
    if (ids == NULL) return cli_fail_memory();
    const dart_status status = dart_state_create(model, &options, &state);
    if (status != DART_OK) {
        free(ids);
        return cli_fail_model(model, status);
    }
    int result = q->load_state != NULL ? load(state, q->load_state) : CLI_OK;
    if (result == CLI_OK) result = run(state, q, ids, &n, &o, &prefill, &decode);
    if (result == CLI_OK && q->save_state != NULL) result = save(state, q->save_state, ids[n - 1]);
    const double rates[2] = {q->prompt_count / (prefill > 0 ? prefill : 1e-9), decode > 0 ? (n - 1) / decode : 0};
    char rate[2][CLI_NUMBER];
    if (result == CLI_OK && common->json) result = print_json(session, q, ids, n, &o, rates);
    else if (result == CLI_OK && common->verbosity > 0)
        fprintf(stderr, "prefill %s tokens/s, decode %s tokens/s\n", cli_rate(rates[0], rate[0]), cli_rate(rates[1], rate[1]));
    dart_state_destroy(&state);
    free(o.text);
    free(ids);
    return result;
}

/* ---- What is asked for ---- */

/* The texts of --end-id. */
static int parse_end_ids(const args_syntax *syntax, const args_list *texts, dart_sampling *sampling)
{
    for (uint32_t i = 0; i < texts->count; i++) {
        uint64_t id = 0;
        if (i == DART_END_IDS) return args_mistake(syntax, "--end-id: given more than %d times", DART_END_IDS);
        if (!args_whole(texts->texts[i], &id) || id > INT32_MAX)
            return args_mistake(syntax, "--end-id: expected a token id, not '%s'", texts->texts[i]);
        sampling->end_ids[sampling->end_ids_count++] = (int32_t)id;
    }
    return ARGS_GO_ON;
}

/* The tokens of the prompt, framed as the tokenizer frames a text; an empty one begins with the tokenizer's beginning of text. */
static int encode_prompt(request *q, const dart_tokenizer_info *info)
{
    const dart_encode_options framed = {.frame = q->load_state == NULL}; /* a text goes on without its frame */
    char *read = NULL;
    size_t bytes = q->prompt != NULL ? strlen(q->prompt) : 0;
    if (q->prompt_file != NULL && cli_read_text(q->prompt_file, &read, &bytes) != CLI_OK) return CLI_FAILED;
    dart_status status = dart_tokenizer_encode(q->tokenizer, read != NULL ? read : q->prompt, bytes, &framed, &q->list);
    if (status == DART_OK && q->list.count == 0 && info->bos >= 0) status = dart_token_list_add(&q->list, info->bos);
    free(read);
    q->prompt_ids = q->list.ids;
    q->prompt_count = (uint32_t)q->list.count;
    if (status != DART_OK) return cli_fail_tokenizer(q->tokenizer, q->prompt_file != NULL ? q->prompt_file : "--prompt", status);
    if (q->list.count == 0) return cli_fail("the prompt is empty, and the tokenizer has no token that begins a text");
    return q->list.count <= INT32_MAX ? CLI_OK : cli_fail("the prompt has more than 2^31 tokens");
}

/* Opens the tokenizer, turns the prompt into ids, adds the end of text to the end ids. */
static int prepare_text(request *q, const char *folder)
{
    dart_tokenizer_info info;
    const dart_text_options options = {.stops = q->stops.texts, .stops_count = q->stops.count};
    if (cli_open_tokenizer(q->tokenizer_path != NULL ? q->tokenizer_path : folder, &q->tokenizer) != CLI_OK) return CLI_FAILED;
    (void)dart_tokenizer_describe(q->tokenizer, &info);
    q->sampling.ids_below = info.ids; /* the model may have more, which no text has */
    const bool prompted = q->prompt != NULL || q->prompt_file != NULL;
    if (prompted && encode_prompt(q, &info) != CLI_OK) return CLI_FAILED;
    if (!q->no_end && info.eos >= 0) {
        if (q->sampling.end_ids_count == DART_END_IDS)
            return cli_fail("--end-id: %d of them leave no room for the end of text; --no-end goes on behind it", DART_END_IDS);
        q->sampling.end_ids[q->sampling.end_ids_count++] = info.eos;
    }
    const dart_status status = dart_text_stream_create(q->tokenizer, &options, &q->stream);
    return status == DART_OK ? CLI_OK : cli_fail_tokenizer(q->tokenizer, "--stop", status);
}

/* Ids of a file, as `dartlm tokenize` prints them: whole numbers with blanks, ends of lines or commas between them. */
static int read_ids(request *q)
{
    const char *name = strcmp(q->ids_file, "-") == 0 ? "standard input" : q->ids_file;
    char *text = NULL;
    size_t bytes = 0;
    if (cli_read_text(q->ids_file, &text, &bytes) != CLI_OK) return CLI_FAILED;
    int status = bytes == strlen(text) && bytes / 2 < INT32_MAX ? CLI_OK : cli_fail("%s: a file of ids has no zero bytes, and less than 2^32", name);
    q->parsed = status == CLI_OK ? malloc((bytes / 2 + 1) * sizeof *q->parsed) : NULL;
    if (status == CLI_OK && q->parsed == NULL) status = cli_fail_memory();
    for (char *word = strtok(text, " \t\r\n,"); word != NULL && status == CLI_OK; word = strtok(NULL, " \t\r\n,")) {
        uint64_t id = 0;
        if (args_whole(word, &id) && id <= INT32_MAX) q->parsed[q->prompt_count++] = (int32_t)id;
        else status = cli_fail("%s: '%.40s' is no token id", name, word);
    }
    free(text);
    q->prompt_ids = q->parsed;
    if (status == CLI_OK && q->prompt_count == 0) return cli_fail("%s has no ids", name);
    return status;
}

/* What the table of options cannot say. */
static int check_request(const args_syntax *syntax, request *q, bool *text)
{
    const int prompts = (q->ids != NULL) + (q->ids_file != NULL) + (q->prompt != NULL) + (q->prompt_file != NULL);
    if (prompts > 1 || (prompts == 0 && q->load_state == NULL))
        return args_mistake(syntax, "one of --prompt, --prompt-file, --ids and --ids-file is needed; with --load-state at most one");
    *text = q->prompt != NULL || q->prompt_file != NULL || q->tokenizer_path != NULL;
    if (!*text && (q->stops.count > 0 || q->no_end)) return args_mistake(syntax, "--stop and --no-end need a tokenizer");
    const dart_sampling *s = &q->sampling;
    if (s->temperature <= 0 && (s->top_k != 0 || s->top_p > 0 || s->min_p > 0 || s->seed != 0))
        return args_mistake(syntax, "--top-k, --top-p, --min-p and --seed need a --temperature above 0");
    const int status = parse_end_ids(syntax, &q->end_ids, &q->sampling);
    if (status == ARGS_GO_ON && q->ids_file != NULL) return read_ids(q) == CLI_OK ? ARGS_GO_ON : CLI_FAILED;
    if (status != ARGS_GO_ON || q->ids == NULL) return status;
    q->prompt_ids = q->parsed = parse_ids(q->ids, &q->prompt_count);
    if (q->prompt_ids == NULL) return args_mistake(syntax, "--ids: expected whole numbers with commas between them, not '%s'", q->ids);
    return ARGS_GO_ON;
}

int cmd_generate(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    cli_model_options with = {.folder = NULL};
    request q = {.ids = NULL};
    const args_option options[] = {
        {"model", 0, ARGS_TEXT, "DIR", &with.folder, "config.json and *.safetensors", 0, 0, true},
        {"prompt", 0, ARGS_TEXT, "TEXT", &q.prompt, "the text to continue; the new text is printed as it comes", 0, 0, false},
        {"prompt-file", 0, ARGS_TEXT, "FILE", &q.prompt_file, "the same of a file, - is standard input", 0, 0, false},
        {"ids", 0, ARGS_TEXT, "1,2,3", &q.ids, "the tokens to continue; the new ids are printed, or, with\n--tokenizer, their text", 0, 0, false},
        {"ids-file", 0, ARGS_TEXT, "FILE", &q.ids_file, "the same of a file as `dartlm tokenize` writes them, - is standard input", 0, 0, false},
        {"load-state", 0, ARGS_TEXT, "FILE", &q.load_state,
         "continue the sequence of this file; a prompt comes behind it;\nwithout one ids are printed, or with --tokenizer their text",
         0, 0, false},
        {"save-state", 0, ARGS_TEXT, "FILE", &q.save_state, "write the sequence with all its tokens there at the end", 0, 0, false},
        {"tokens", 'n', ARGS_U32, "N", &q.n, "how many to add", 1, 1 << 24, true},
        {"tokenizer", 0, ARGS_TEXT, "PATH", &q.tokenizer_path, "tokenizer.json, or the folder that it is in; by default the\nmodel's", 0, 0, false},
        {"temperature", 0, ARGS_F32, "T", &q.sampling.temperature,
         "above 0: sample; by default the largest logit is taken", 0, 1000, false},
        {"top-k", 0, ARGS_U32, "K", &q.sampling.top_k, "sample from the K largest only", 0, 0, false},
        {"top-p", 0, ARGS_F32, "P", &q.sampling.top_p, "sample from the likeliest that make up a share of P", 0, 1, false},
        {"min-p", 0, ARGS_F32, "P", &q.sampling.min_p, "sample from those at least P times as likely as the likeliest", 0, 1, false},
        {"repetition-penalty", 0, ARGS_F32, "R", &q.sampling.repetition_penalty,
         "above 1: make tokens that the prompt or the new text has less\nlikely; with the largest logit, too", 0, 1000, false},
        {"end-id", 0, ARGS_LIST, "ID", &q.end_ids, "a token to stop behind; up to four times", 0, 0, false},
        {"stop", 0, ARGS_LIST, "TEXT", &q.stops, "a text to stop before", 0, 0, false},
        {"no-end", 0, ARGS_FLAG, NULL, &q.no_end, "go on behind the tokenizer's end of text", 0, 0, false},
        {"seed", 0, ARGS_U64, "X", &q.sampling.seed, "of the random numbers, by default 0", 0, 0, false},
        CLI_STATE(with),
        CLI_WEIGHTS(common, with),
        CLI_DEVICE(common),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm generate",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Continues a text, or a sequence of token ids, and prints what is new; with --verbose the speed, too. Text ends with the\n"
            "tokenizer's end of text (eos_token in tokenizer_config.json), as ids end with those of --end-id."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_model *model = NULL;
    bool text = false;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    status = check_request(&syntax, &q, &text);
    if (status != ARGS_GO_ON) goto done;
    status = cli_check_place(q.save_state);
    if (status == CLI_OK && text) status = prepare_text(&q, with.folder);
    if (status == CLI_OK) status = cli_open_model(&session, &common, &with, &model);
    dart_model_info info;
    if (status == CLI_OK && dart_model_describe(model, &info) == DART_OK && q.sampling.ids_below >= info.config.V) q.sampling.ids_below = 0;
    if (status == CLI_OK) status = generate(&session, &common, model, &with, &q);
    dart_model_destroy(&model);
    cli_close(&session);
done:
    free(q.parsed);
    dart_token_list_free(&q.list);
    dart_text_stream_destroy(&q.stream);
    dart_tokenizer_destroy(&q.tokenizer);
    return status;
}
