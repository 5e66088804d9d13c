/* dartlm tokenize and dartlm detokenize: between text and token ids. */
#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER(path, model) \
    {"tokenizer", 0, ARGS_TEXT, "PATH", &(path), "tokenizer.json, or the folder that it is in", 0, 0, false}, \
    {"model", 0, ARGS_TEXT, "DIR", &(model), "the same: the folder of a model", 0, 0, false}

/* The path that was given, or NULL after a message. */
static const char *tokenizer_path(const args_syntax *syntax, const char *path, const char *model)
{
    if ((path == NULL) == (model == NULL)) {
        args_mistake(syntax, "either --tokenizer or --model is needed");
        return NULL;
    }
    return path != NULL ? path : model;
}

/* ---- tokenize ---- */

typedef struct task {
    dart_tokenizer *tokenizer;
    dart_tokenizer_info info;
    dart_encode_options options;
    const char *out; /* NULL: ids are printed */
    bool json;
    dart_token_list list;
} task;

/* Ids with spaces between them on one line. */
static void print_ids(const int32_t *ids, size_t count)
{
    char text[8192];
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        char digits[12];
        size_t n = 0;
        uint32_t id = (uint32_t)ids[i];
        if (used > sizeof text - sizeof digits - 2) {
            fwrite(text, 1, used, stdout);
            used = 0;
        }
        if (i > 0) text[used++] = ' ';
        do digits[n++] = (char)('0' + id % 10);
        while ((id /= 10) > 0);
        while (n > 0) text[used++] = digits[--n];
    }
    text[used++] = '\n';
    fwrite(text, 1, used, stdout);
}

static int print_json_ids(const int32_t *ids, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(array, json_integer(ids[i]));
    return cli_print_line(json_pack("{s:o}", "ids", array));
}

/* Appends the tokens of a file; or prints them. */
static int tokenize_file(task *t, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    int result = cli_read_text(path, &text, &bytes);
    if (result != CLI_OK) return result;
    if (t->out == NULL) t->list.count = 0;
    dart_status status = dart_tokenizer_encode(t->tokenizer, text, bytes, &t->options, &t->list);
    if (status == DART_OK && t->out != NULL && t->info.eos >= 0) status = dart_token_list_add(&t->list, t->info.eos);
    free(text);
    if (status != DART_OK) return cli_fail_tokenizer(t->tokenizer, path != NULL ? path : "standard input", status);
    if (t->out != NULL) return CLI_OK;
    if (t->json) return print_json_ids(t->list.ids, t->list.count);
    print_ids(t->list.ids, t->list.count);
    return CLI_OK;
}

/* As train lm reads it: ids of 16 bits where they fit. */
static int write_tokens(task *t)
{
    char vocabulary[16], end[16];
    const bool narrow = t->info.ids <= 65536;
    const safetensors_pair pairs[] = {{"vocabulary", vocabulary}, {"end", end}};
    cli_session session = {.context = NULL};
    uint16_t *ids = (uint16_t *)(void *)t->list.ids;
    snprintf(vocabulary, sizeof vocabulary, "%" PRIu32, t->info.ids);
    snprintf(end, sizeof end, "%" PRId32, t->info.eos);
    for (size_t i = 0; i < t->list.count && narrow; i++) {
        const uint16_t id = (uint16_t)t->list.ids[i];
        memcpy(ids + i, &id, sizeof id); /* over ids that have been read */
    }
    const safetensors_tensor tensor = {
        .name = "tokens", .data = t->list.ids, .dtype = narrow ? SAFETENSORS_U16 : SAFETENSORS_U32, .rank = 1, .shape = {t->list.count}};
    if (base_report_init(&session.report, NULL) != DART_OK) return cli_fail_memory();
    const dart_status status = safetensors_write_with(t->out, &tensor, 1, pairs, t->info.eos >= 0 ? 2 : 1, NULL, &session.report);
    const int result = status == DART_OK ? CLI_OK : cli_fail_file(&session, status);
    base_report_destroy(&session.report);
    return result;
}

int cmd_tokenize(int argc, char **argv)
{
    task t = {.tokenizer = NULL};
    const char *path = NULL, *model = NULL;
    const args_option options[] = {
        TOKENIZER(path, model),
        {"plain", 0, ARGS_FLAG, NULL, &t.options.plain, "special tokens in the text are text like any other", 0, 0, false},
        {"frame", 0, ARGS_FLAG, NULL, &t.options.frame, "add the tokens that the tokenizer puts around a text", 0, 0, false},
        {"out", 'o', ARGS_TEXT, "OUT", &t.out,
         "write a file of tokens for train lm and eval ppl; the\ntokenizer's end of text is put behind each file", 0, 0, false},
        {"json", 0, ARGS_FLAG, NULL, &t.json, "print JSON, a line for each file", 0, 0, false},
    };
    const args_syntax syntax = {
        .command = "dartlm tokenize",
        .operands = "[FILE...]",
        .options = options,
        .options_count = COUNT_OF(options),
        .about = "Turns text into token ids: those of each FILE on a line. Without a FILE, and for -, standard input is read."};
    args_operands operands;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    path = tokenizer_path(&syntax, path, model);
    if (path == NULL) return CLI_USAGE;
    status = cli_open_tokenizer(path, &t.tokenizer);
    if (status == CLI_OK) (void)dart_tokenizer_describe(t.tokenizer, &t.info);
    for (uint32_t i = 0; i < operands.count && status == CLI_OK; i++) status = tokenize_file(&t, operands.texts[i]);
    if (status == CLI_OK && operands.count == 0) status = tokenize_file(&t, NULL);
    if (status == CLI_OK && t.out != NULL) status = write_tokens(&t);
    dart_token_list_free(&t.list);
    dart_tokenizer_destroy(&t.tokenizer);
    return status;
}

/* ---- detokenize ---- */

/* The next number of the text, with blanks and commas before it; -1 at the end, -2 for anything else. */
static int64_t next_id(const char **at, const char *end)
{
    const char *s = *at;
    int64_t id = 0;
    while (s < end && (*s == ' ' || *s == ',' || *s == '\n' || *s == '\r' || *s == '\t')) s++;
    *at = s;
    if (s == end) return -1;
    for (; s < end && *s >= '0' && *s <= '9'; s++)
        if ((id = id * 10 + (*s - '0')) > INT32_MAX) return -2;
    if (s == *at) return -2;
    *at = s;
    return id;
}

static int detokenize(dart_tokenizer *tokenizer, dart_text_stream *stream, const char *path, const char *source, size_t bytes)
{
    enum { GROUP = 4096 };
    int32_t ids[GROUP];
    const char *at = source, *const end = source + bytes, *text = NULL;
    dart_status status = DART_OK;
    size_t count = 0, given = 0;
    for (int64_t id = 0; id >= 0 && status == DART_OK;) {
        id = next_id(&at, end);
        if (id == -2) return cli_fail("%s: byte %zu begins no token id", path, (size_t)(at - source));
        if (id >= 0) ids[count++] = (int32_t)id;
        if (count < GROUP && id >= 0) continue;
        status = dart_text_stream_feed(stream, ids, count, &text, &given, NULL);
        if (status == DART_OK) fwrite(text, 1, given, stdout);
        count = 0;
    }
    if (status == DART_OK) status = dart_text_stream_end(stream, &text, &given);
    if (status != DART_OK) return cli_fail_tokenizer(tokenizer, path, status);
    fwrite(text, 1, given, stdout);
    return CLI_OK;
}

int cmd_detokenize(int argc, char **argv)
{
    dart_tokenizer *tokenizer = NULL;
    dart_text_stream *stream = NULL;
    dart_text_options with = {.with_special = false};
    const char *path = NULL, *model = NULL, *source;
    char *text = NULL;
    size_t bytes = 0;
    const args_option options[] = {
        TOKENIZER(path, model),
        {"special", 0, ARGS_FLAG, NULL, &with.with_special, "print special tokens, too", 0, 0, false},
    };
    const args_syntax syntax = {
        .command = "dartlm detokenize",
        .operands = "[FILE]",
        .options = options,
        .options_count = COUNT_OF(options),
        .about = "Turns token ids, with blanks or commas between them, into text. Without FILE, and for -, standard input is read."};
    args_operands operands;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    path = tokenizer_path(&syntax, path, model);
    if (path == NULL) return CLI_USAGE;
    source = operands.count > 0 ? operands.texts[0] : "-";
    status = cli_open_tokenizer(path, &tokenizer);
    if (status == CLI_OK) status = cli_read_text(source, &text, &bytes);
    if (status == CLI_OK && dart_text_stream_create(tokenizer, &with, &stream) != DART_OK) status = cli_fail_memory();
    if (status == CLI_OK) status = detokenize(tokenizer, stream, source, text, bytes);
    free(text);
    dart_text_stream_destroy(&stream);
    dart_tokenizer_destroy(&tokenizer);
    return status;
}
