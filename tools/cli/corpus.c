#include "corpus.h"

#include "cli.h"

#include <inttypes.h>
#include <string.h>

static uint32_t token_at(const corpus_file *file, uint64_t i)
{
    const uint8_t *at = file->at + i * file->width;
    uint16_t narrow;
    uint32_t wide;
    switch (file->width) {
    case 1: return *at;
    case 2: memcpy(&narrow, at, sizeof narrow); return narrow;
    default: memcpy(&wide, at, sizeof wide); return wide;
    }
}

static int open_bytes(corpus *c, corpus_file *file, const char *path, cli_session *session)
{
    const dart_status status = file_map_open(path, &session->report, &file->map);
    if (status != DART_OK) return cli_fail_file(session, status);
    file->at = file->map.data;
    file->width = 1;
    file->count = file->map.bytes;
    c->V = CORPUS_END_ID + 1;
    c->end = CORPUS_END_ID;
    return CLI_OK;
}

static int open_text(corpus *c, corpus_file *file, const char *path, dart_tokenizer *tokenizer, cli_session *session)
{
    dart_tokenizer_info info;
    file_map map;
    dart_status status = file_map_open(path, &session->report, &map);
    if (status != DART_OK) return cli_fail_file(session, status);
    status = dart_tokenizer_describe(tokenizer, &info);
    if (status == DART_OK) status = dart_tokenizer_encode(tokenizer, (const char *)map.data, (size_t)map.bytes, NULL, &file->tokens);
    file_map_close(&map);
    if (status == DART_OK && info.eos >= 0) status = dart_token_list_add(&file->tokens, info.eos);
    if (status != DART_OK) return cli_fail_tokenizer(tokenizer, path, status);
    file->at = (const uint8_t *)file->tokens.ids;
    file->width = 4;
    file->count = file->tokens.count;
    c->V = info.ids;
    c->end = info.eos;
    return CLI_OK;
}

static int open_shard(corpus *c, corpus_file *file, const char *path, cli_session *session)
{
    uint64_t V, end = UINT64_MAX;
    const dart_status status = safetensors_open(path, &session->report, &file->shard);
    if (status == DART_BAD_DATA) (void)cli_fail("%s: tokens are read from safetensors; --bytes or --tokenizer PATH reads text", path);
    if (status != DART_OK) return cli_fail_file(session, status);
    const safetensors_tensor *tokens = safetensors_find(file->shard, "tokens");
    const char *vocabulary = safetensors_metadata(file->shard, "vocabulary"), *ends = safetensors_metadata(file->shard, "end");
    if (tokens == NULL || (tokens->dtype != SAFETENSORS_U16 && tokens->dtype != SAFETENSORS_U32))
        return cli_fail("%s: no tensor tokens of U16 or U32", path);
    if (vocabulary == NULL || !args_whole(vocabulary, &V) || V == 0 || V > INT32_MAX)
        return cli_fail("%s: vocabulary in the metadata is %.20s, not a number of ids", path, vocabulary != NULL ? vocabulary : "missing");
    if (c->V != 0 && c->V != V) return cli_fail("%s: a vocabulary of %" PRIu64 " ids, that of the files before has %" PRIu32, path, V, c->V);
    if (ends != NULL && (!args_whole(ends, &end) || end >= V))
        return cli_fail("%s: end in the metadata is %.20s, not one of %" PRIu64 " ids", path, ends, V);
    if (c->V != 0 && c->end != (int64_t)end) return cli_fail("%s: documents end otherwise than those of the files before", path);
    c->V = (uint32_t)V;
    c->end = (int64_t)end;
    file->at = tokens->data;
    file->width = tokens->dtype == SAFETENSORS_U16 ? 2 : 4;
    file->count = tokens->elements;
    return CLI_OK;
}

/* All ids are in the vocabulary; the checksum tells this data from other data. */
static int scan(corpus *c, const corpus_file *file, const char *path)
{
    if (file->count == 0) return cli_fail("%s holds no tokens", path);
    for (uint64_t i = 0; i < file->count; i++) {
        const uint32_t id = token_at(file, i);
        if (id >= c->V) return cli_fail("%s: token %" PRIu64 " is %" PRIu32 ", the vocabulary has %" PRIu32 " ids", path, i, id, c->V);
        c->checksum = base_mix(c->checksum ^ id);
    }
    c->checksum = base_mix(c->checksum ^ file->count << 8 ^ file->width);
    return CLI_OK;
}

int corpus_open(corpus *c, const args_list *files, bool bytes, const char *tokenizer)
{
    cli_session session = {.context = NULL};
    dart_tokenizer *opened = NULL;
    int result = CLI_OK;
    *c = (corpus){.bytes = bytes, .end = -1};
    if (bytes && tokenizer != NULL) return cli_fail("--bytes and --tokenizer exclude each other");
    if (base_report_init(&session.report, NULL) != DART_OK) return cli_fail_memory();
    if (tokenizer != NULL) result = cli_open_tokenizer(tokenizer, &opened);
    for (uint32_t i = 0; i < files->count && result == CLI_OK; i++) {
        corpus_file *file = &c->files[c->files_count++];
        if (opened != NULL) result = open_text(c, file, files->texts[i], opened, &session);
        else result = bytes ? open_bytes(c, file, files->texts[i], &session) : open_shard(c, file, files->texts[i], &session);
        if (result == CLI_OK) result = scan(c, file, files->texts[i]);
        file->first = c->count;
        c->count += file->count + (bytes ? 1 : 0);
    }
    dart_tokenizer_destroy(&opened);
    base_report_destroy(&session.report);
    return result;
}

void corpus_close(corpus *c)
{
    for (uint32_t i = 0; i < c->files_count; i++) {
        file_map_close(&c->files[i].map);
        safetensors_close(&c->files[i].shard);
        dart_token_list_free(&c->files[i].tokens);
    }
    c->files_count = 0;
}

void corpus_cut(const corpus *c, uint64_t first, uint32_t L, int32_t *ids, int32_t *targets)
{
    const corpus_file *file = c->files;
    for (uint32_t t = 0; t <= L; t++) {
        const uint64_t place = first + t;
        while (file + 1 < c->files + c->files_count && place >= file[1].first) file++;
        const uint64_t i = place - file->first;
        const int32_t id = i < file->count ? (int32_t)token_at(file, i) : CORPUS_END_ID;
        if (t < L) ids[t] = id;
        if (t > 0) targets[t - 1] = id;
    }
}

uint32_t corpus_documents(const int32_t *ids, uint32_t L, int64_t end)
{
    uint32_t documents = 1;
    for (uint32_t t = 0; t + 1 < L; t++) documents += ids[t] == end;
    return documents;
}
