/* How tokenizers begin and end. */
#include "tokenizer.h"

#include "base/file.h"

#include <stdlib.h>

static dart_status create(dart_tokenizer **made)
{
    dart_tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL) return DART_OUT_OF_MEMORY;
    t->bos = t->eos = TEXT_NO_TOKEN;
    t->properties = text_properties_create();
    if (t->properties == NULL || base_report_init(&t->report, NULL) != DART_OK) {
        free(t->properties);
        free(t);
        return DART_OUT_OF_MEMORY;
    }
    *made = t;
    return DART_OK;
}

void dart_tokenizer_destroy(dart_tokenizer **tokenizer)
{
    if (tokenizer == NULL || *tokenizer == NULL) return;
    dart_tokenizer *t = *tokenizer;
    text_vocabulary_free(&t->vocabulary);
    text_added_free(&t->raw);
    text_added_free(&t->normal);
    free(t->properties);
    base_report_destroy(&t->report);
    free(t);
    *tokenizer = NULL;
}

/* Hands *made over, or its text and then destroys it. */
static dart_status finish(dart_status status, dart_tokenizer *made, dart_tokenizer **tokenizer, char *error, size_t error_size)
{
    if (error != NULL && error_size > 0) error[0] = '\0';
    if (status == DART_OK) {
        *tokenizer = made;
        return DART_OK;
    }
    if (made != NULL && error != NULL) base_report_copy(&made->report, error, error_size);
    dart_tokenizer_destroy(&made);
    return status;
}

static dart_status read_file(dart_tokenizer *t, const char *path,
                             dart_status (*read)(dart_tokenizer *, const char *, size_t, const char *, base_report *))
{
    file_map map = {NULL, 0};
    dart_status status = file_map_open(path, &t->report, &map);
    if (status == DART_OK) status = read(t, map.bytes > 0 ? (const char *)map.data : "", (size_t)map.bytes, path, &t->report);
    file_map_close(&map);
    return status;
}

dart_status dart_tokenizer_open(const char *path, dart_tokenizer **tokenizer, char *error, size_t error_size)
{
    if (path == NULL || tokenizer == NULL) return DART_INVALID_ARGUMENT;
    dart_tokenizer *t = NULL;
    char *folder = NULL, *json = NULL, *config = NULL;
    dart_status status;
    TRY(create(&t));
    folder = file_is_folder(path) ? file_join("", path) : file_folder(path);
    if (folder == NULL) FAIL(&t->report, DART_OUT_OF_MEMORY, "%s: no memory to open it", path);
    json = file_is_folder(path) ? file_join(path, "tokenizer.json") : file_join("", path);
    config = file_join(folder, "tokenizer_config.json");
    if (json == NULL || config == NULL) FAIL(&t->report, DART_OUT_OF_MEMORY, "%s: no memory to open it", path);
    TRY(read_file(t, json, text_tokenizer_read));
    if (file_exists(config)) TRY(read_file(t, config, text_config_read));
fail:
    free(folder);
    free(json);
    free(config);
    return finish(status, t, tokenizer, error, error_size);
}

dart_status dart_tokenizer_create(const dart_tokenizer_source *source, dart_tokenizer **tokenizer, char *error, size_t error_size)
{
    if (source == NULL || source->json == NULL || tokenizer == NULL) return DART_INVALID_ARGUMENT;
    dart_tokenizer *t = NULL;
    dart_status status;
    TRY(create(&t));
    TRY(text_tokenizer_read(t, source->json, source->json_bytes, "tokenizer.json", &t->report));
    if (source->config != NULL) TRY(text_config_read(t, source->config, source->config_bytes, "tokenizer_config.json", &t->report));
fail:
    return finish(status, t, tokenizer, error, error_size);
}
