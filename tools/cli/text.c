/* Texts and tokenizers. */
#include "cli.h"
#include "corpus.h"
#include "system.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char END_OF_TEXT[] = "<|endoftext|>"; /* of bytes */

int cli_open_tokenizer(const char *path, dart_tokenizer **tokenizer)
{
    char text[640] = "";
    char *in_folder = file_join(path, "tokenizer.json");
    const bool lacks = in_folder != NULL && file_is_folder(path) && !file_exists(in_folder);
    free(in_folder);
    if (lacks) return cli_fail("%s has no tokenizer.json; --tokenizer names the one of another folder", path);
    const dart_status status = dart_tokenizer_open(path, tokenizer, text, sizeof text);
    if (status == DART_OK) return CLI_OK;
    return text[0] != '\0' ? cli_fail("%s (%s)", text, dart_status_name(status)) : cli_fail("%s", dart_status_name(status));
}

int cli_fail_tokenizer(const dart_tokenizer *tokenizer, const char *what, dart_status status)
{
    char text[640] = "";
    dart_tokenizer_error(tokenizer, text, sizeof text);
    return cli_fail("%s: %s (%s)", what, text, dart_status_name(status));
}

static int read_stream(FILE *file, const char *name, char **text, size_t *bytes)
{
    size_t capacity = 0;
    *text = NULL;
    *bytes = 0;
    while (!feof(file)) {
        if (*bytes + 1 >= capacity) {
            char *grown = capacity > SIZE_MAX / 4 ? NULL : realloc(*text, capacity = capacity * 2 + 65536);
            if (grown == NULL) return cli_fail_memory();
            *text = grown;
        }
        *bytes += fread(*text + *bytes, 1, capacity - *bytes - 1, file);
        if (ferror(file)) return cli_fail("%s cannot be read", name);
    }
    (*text)[*bytes] = '\0';
    return CLI_OK;
}

int cli_read_text(const char *path, char **text, size_t *bytes)
{
    const bool standard = path == NULL || strcmp(path, "-") == 0;
    if (!standard && file_is_folder(path)) return cli_fail("%s is a folder", path);
    FILE *file = standard ? stdin : system_open(path, "rb");
    if (file == NULL) return cli_fail("cannot open %s", path);
    const int status = read_stream(file, standard ? "standard input" : path, text, bytes);
    if (!standard) fclose(file);
    if (status == CLI_OK) return CLI_OK;
    free(*text);
    *text = NULL;
    return status;
}

json_t *cli_json_load(const char *path, size_t flags, json_error_t *error)
{
    FILE *file = system_open(path, "rb");
    if (file == NULL) {
        error->line = -1;
        snprintf(error->text, sizeof error->text, "unable to open %.80s: %s", path, strerror(errno));
        return NULL;
    }
    json_t *value = json_loadf(file, flags, error);
    fclose(file);
    return value;
}

int cli_lines_open(cli_lines *lines, const char *path)
{
    *lines = (cli_lines){.path = path};
    const int status = cli_read_text(path, &lines->text, &lines->bytes);
    lines->at = lines->text;
    return status;
}

int cli_lines_next(cli_lines *lines, json_t **object)
{
    *object = NULL;
    while (lines->at != NULL && lines->at < lines->text + lines->bytes) {
        char *end = memchr(lines->at, '\n', (size_t)(lines->text + lines->bytes - lines->at));
        char *line = lines->at;
        json_error_t error;
        if (end == NULL) end = lines->text + lines->bytes;
        lines->at = end + 1;
        lines->line++;
        if (line + strspn(line, " \t\r") >= end) continue;
        *object = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &error);
        if (*object == NULL) return cli_fail("%s: line %" PRIu64 ": %s", lines->path, lines->line, error.text);
        if (json_is_object(*object)) return CLI_OK;
        json_decref(*object);
        *object = NULL;
        return cli_fail("%s: line %" PRIu64 " is no JSON object", lines->path, lines->line);
    }
    return CLI_OK;
}

void cli_lines_close(cli_lines *lines)
{
    free(lines->text);
    *lines = (cli_lines){.path = NULL};
}

static dart_status copy_file(const char *from, const char *to, base_report *report)
{
    file_map map = {NULL, 0};
    file_writer *file = NULL;
    dart_status status;
    TRY(file_map_open(from, report, &map));
    TRY(file_writer_open(to, report, &file));
    TRY(file_writer_append(file, map.data, map.bytes));
    TRY(file_writer_close(&file));
fail:
    file_writer_destroy(&file);
    file_map_close(&map);
    return status;
}

int cli_copy_tokenizer(const char *path, const char *folder)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json"};
    cli_session session = {.context = NULL};
    dart_status status = DART_OK;
    const bool is_folder = file_is_folder(path);
    if (base_report_init(&session.report, NULL) != DART_OK) return cli_fail_memory();
    char *beside = is_folder ? file_join("", path) : file_folder(path);
    for (size_t i = 0; i < COUNT_OF(names) && status == DART_OK; i++) {
        char *from = beside == NULL ? NULL : i == 0 && !is_folder ? file_join("", path) : file_join(beside, names[i]);
        char *to = file_join(folder, names[i]);
        if (from == NULL || to == NULL) status = base_fail(&session.report, DART_OUT_OF_MEMORY, "no memory to copy %s", names[i]);
        else if (i == 0 || file_exists(from)) status = copy_file(from, to, &session.report);
        free(from);
        free(to);
    }
    const int result = status == DART_OK ? CLI_OK : cli_fail_file(&session, status);
    free(beside);
    base_report_destroy(&session.report);
    return result;
}

/* The character that stands for a byte in files of byte-level BPE: the printable ones of Latin-1 for themselves, the others from U+0100 on. */
static void name_byte(uint32_t byte, char name[3])
{
    uint32_t point = 256;
    for (uint32_t b = 0; b <= byte; b++) {
        const bool shown = (b > 32 && b < 127) || (b > 160 && b != 173);
        if (b == byte && shown) point = byte;
        else if (b < byte && !shown) point++;
    }
    memcpy(name, point < 128 ? (char[]){(char)point, '\0', '\0'} : (char[]){(char)(0xC0 | point >> 6), (char)(0x80 | (point & 63)), '\0'}, 3);
}

/* A byte is a token, whose id it is; no normal form and no merges. */
static json_t *byte_tokenizer(void)
{
    json_t *ids = json_object();
    for (uint32_t b = 0; b < CORPUS_END_ID; b++) {
        char name[3];
        name_byte(b, name);
        json_object_set_new(ids, name, json_integer((json_int_t)b));
    }
    return json_pack("{s:s, s:[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}], s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s, s:b, s:b, s:b}, "
                     "s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:o, s:[]}}",
                     "version", "1.0", "added_tokens", "id", (int)CORPUS_END_ID, "content", END_OF_TEXT, "single_word", 0, "lstrip", 0, "rstrip", 0,
                     "normalized", 0, "special", 1, "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                     "use_regex", 1, "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1,
                     "model", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                     "byte_fallback", 0, "vocab", ids, "merges");
}

static dart_status write_json(const char *folder, const char *name, json_t *object, base_report *report)
{
    char *path = file_join(folder, name), *text = object != NULL ? json_dumps(object, JSON_INDENT(1)) : NULL;
    file_writer *file = NULL;
    dart_status status = DART_OK;
    if (path == NULL || text == NULL) status = base_fail(report, DART_OUT_OF_MEMORY, "no memory to write %s", name);
    if (status == DART_OK) status = file_writer_open(path, report, &file);
    if (status == DART_OK) status = file_writer_append(file, text, strlen(text));
    if (status == DART_OK) status = file_writer_append(file, "\n", 1);
    if (status == DART_OK) status = file_writer_close(&file);
    file_writer_destroy(&file);
    json_decref(object);
    free(text);
    free(path);
    return status;
}

int cli_write_byte_tokenizer(const char *folder)
{
    cli_session session = {.context = NULL};
    if (base_report_init(&session.report, NULL) != DART_OK) return cli_fail_memory();
    dart_status status = write_json(folder, "tokenizer.json", byte_tokenizer(), &session.report);
    if (status == DART_OK) status = write_json(folder, "tokenizer_config.json", json_pack("{s:s}", "eos_token", END_OF_TEXT), &session.report);
    const int result = status == DART_OK ? CLI_OK : cli_fail_file(&session, status);
    base_report_destroy(&session.report);
    return result;
}
