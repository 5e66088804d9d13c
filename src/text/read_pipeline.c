/* What of tokenizer.json is done before and after the model, and tokenizer_config.json. */
#include "reader.h"

#include <stdio.h>
#include <string.h>

/* Llama-3's file has 9 MB, Qwen3's 11. Of text made for that, the JSON parser makes values of 80 times its size. */
#define MAX_TOKENIZER_BYTES (16u << 20)
#define MAX_CONFIG_BYTES (4u << 20)

static bool is_absent(const json_t *value) { return value == NULL || json_is_null(value); }

/* ByteLevel of any role; use_regex and add_prefix_space matter to the pre-tokenizer only. */
static dart_status read_byte_level(const text_reader *r, const char *place, const json_t *object)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex"};
    return text_refuse_keys(r, place, object, keys, COUNT_OF(keys));
}

/* ---- normalizer ---- */

static dart_status read_normalizers(const text_reader *r, const char *place, const json_t *object, uint32_t depth)
{
    static const char *const keys[] = {"type"}, *const sequence_keys[] = {"type", "normalizers"};
    dart_status status;
    if (strcmp(text_type(object), "NFC") == 0) {
        r->t->nfc = true;
        return text_refuse_keys(r, place, object, keys, COUNT_OF(keys));
    }
    const json_t *list = json_object_get(object, "normalizers"), *item;
    if (strcmp(text_type(object), "Sequence") != 0 || !json_is_array(list) || depth > 0) return text_refuse(r, place, object, "null or NFC");
    TRY(text_refuse_keys(r, place, object, sequence_keys, COUNT_OF(sequence_keys)));
    size_t i;
    json_array_foreach(list, i, item) TRY(read_normalizers(r, "normalizer.normalizers", item, depth + 1));
    return DART_OK;
fail:
    return status;
}

dart_status text_read_normalizer(const text_reader *r, const json_t *normalizer)
{
    return is_absent(normalizer) ? DART_OK : read_normalizers(r, "normalizer", normalizer, 0);
}

/* ---- pre_tokenizer ---- */

static dart_status read_byte_level_pieces(const text_reader *r, const char *place, const json_t *object, bool pattern)
{
    dart_status status;
    bool prefix = false, regex = true;
    char key[TEXT_PLACE];
    TRY(read_byte_level(r, place, object));
    TRY(text_read_boolean(r, place, object, "add_prefix_space", -1, &prefix));
    snprintf(key, sizeof key, "%s.add_prefix_space", place);
    if (prefix) return text_refuse(r, key, json_object_get(object, "add_prefix_space"), "false");
    TRY(text_read_boolean(r, place, object, "use_regex", true, &regex));
    snprintf(key, sizeof key, "%s.use_regex", place);
    if (regex != pattern) return text_refuse(r, key, json_object_get(object, "use_regex"), pattern ? "true" : "false behind a Split");
    return DART_OK;
fail:
    return status;
}

static dart_status read_split(const text_reader *r, const char *place, const json_t *object)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert"};
    dart_status status;
    bool invert = false;
    const json_t *pattern = json_object_get(object, "pattern"), *behavior = json_object_get(object, "behavior");
    const char *expression = json_string_value(json_object_get(pattern, "Regex")), *how = json_string_value(behavior);
    TRY(text_refuse_keys(r, place, object, keys, COUNT_OF(keys)));
    TRY(text_read_boolean(r, place, object, "invert", -1, &invert));
    if (invert) return text_refuse(r, "pre_tokenizer Split.invert", json_object_get(object, "invert"), "false");
    if (how == NULL || strcmp(how, "Isolated") != 0) return text_refuse(r, "pre_tokenizer Split.behavior", behavior, "Isolated");
    if (expression == NULL || json_object_size(pattern) != 1 || !text_pattern_find(expression, &r->t->pattern))
        return text_refuse(r, "pre_tokenizer Split.pattern", pattern, "a Regex of GPT-2, Llama-3 or Qwen2");
    return DART_OK;
fail:
    return status;
}

dart_status text_read_pre_tokenizer(const text_reader *r, const json_t *object)
{
    static const char *const keys[] = {"type", "pretokenizers"};
    dart_status status;
    r->t->pattern = TEXT_PATTERN_GPT2;
    if (strcmp(text_type(object), "ByteLevel") == 0) return read_byte_level_pieces(r, "pre_tokenizer", object, true);
    const json_t *list = json_object_get(object, "pretokenizers");
    const json_t *split = json_array_get(list, 0), *bytes = json_array_get(list, 1);
    if (strcmp(text_type(object), "Sequence") != 0 || json_array_size(list) != 2 || strcmp(text_type(split), "Split") != 0 ||
        strcmp(text_type(bytes), "ByteLevel") != 0)
        return text_refuse(r, "pre_tokenizer", object, "ByteLevel, or a Sequence of Split and ByteLevel");
    TRY(text_refuse_keys(r, "pre_tokenizer", object, keys, COUNT_OF(keys)));
    TRY(read_split(r, "pre_tokenizer.pretokenizers[0]", split));
    TRY(read_byte_level_pieces(r, "pre_tokenizer.pretokenizers[1]", bytes, false));
    return DART_OK;
fail:
    return status;
}

/* ---- post_processor ---- */

/* The ids of a special token of a template. */
static dart_status read_frame_token(const text_reader *r, const json_t *specials, const char *name, int32_t *to, uint32_t *count)
{
    const json_t *ids = name != NULL ? json_object_get(json_object_get(specials, name), "ids") : NULL, *id;
    size_t i;
    if (!json_is_array(ids)) return base_fail(r->report, DART_BAD_DATA, "%s: post_processor.special_tokens has no ids of a token of single", r->name);
    json_array_foreach(ids, i, id) {
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= (json_int_t)r->t->vocabulary.ids || !r->t->vocabulary.tokens[value].present)
            return base_fail(r->report, DART_BAD_DATA, "%s: post_processor.special_tokens.%.40s.ids[%zu] is no token", r->name, name, i);
        if (*count == TEXT_FRAME) return text_refuse(r, "post_processor.single", specials, "up to 8 special tokens on each side");
        to[(*count)++] = (int32_t)value;
    }
    return DART_OK;
}

static dart_status read_template(const text_reader *r, const json_t *object)
{
    static const char *const keys[] = {"type", "single", "pair", "special_tokens"};
    dart_status status;
    dart_tokenizer *t = r->t;
    const json_t *single = json_object_get(object, "single"), *specials = json_object_get(object, "special_tokens"), *item;
    uint32_t sequences = 0;
    size_t i;
    TRY(text_refuse_keys(r, "post_processor", object, keys, COUNT_OF(keys)));
    if (!json_is_array(single) || t->before_count + t->after_count > 0) return text_refuse(r, "post_processor", object, "one TemplateProcessing");
    json_array_foreach(single, i, item) {
        const json_t *special = json_object_get(item, "SpecialToken"), *sequence = json_object_get(item, "Sequence");
        const char *which = json_string_value(json_object_get(sequence, "id"));
        if (special != NULL)
            TRY(read_frame_token(r, specials, json_string_value(json_object_get(special, "id")), sequences == 0 ? t->before : t->after,
                                 sequences == 0 ? &t->before_count : &t->after_count));
        else if (which == NULL || strcmp(which, "A") != 0 || ++sequences > 1)
            return text_refuse(r, "post_processor.single", single, "special tokens and the Sequence A");
    }
    if (sequences == 0) return text_refuse(r, "post_processor.single", single, "special tokens and the Sequence A");
    return DART_OK;
fail:
    return status;
}

static dart_status read_processor(const text_reader *r, const json_t *object)
{
    if (strcmp(text_type(object), "ByteLevel") == 0) return read_byte_level(r, "post_processor", object);
    if (strcmp(text_type(object), "TemplateProcessing") == 0) return read_template(r, object);
    return text_refuse(r, "post_processor", object, "null, ByteLevel, TemplateProcessing or a Sequence of them");
}

dart_status text_read_post_processor(const text_reader *r, const json_t *object)
{
    static const char *const keys[] = {"type", "processors"};
    dart_status status;
    const json_t *list = json_object_get(object, "processors"), *item;
    size_t i;
    if (is_absent(object)) return DART_OK;
    if (strcmp(text_type(object), "Sequence") != 0 || !json_is_array(list)) return read_processor(r, object);
    TRY(text_refuse_keys(r, "post_processor", object, keys, COUNT_OF(keys)));
    json_array_foreach(list, i, item) TRY(read_processor(r, item));
    return DART_OK;
fail:
    return status;
}

/* ---- decoder ---- */

dart_status text_read_decoder(const text_reader *r, const json_t *decoder)
{
    if (strcmp(text_type(decoder), "ByteLevel") != 0) return text_refuse(r, "decoder", decoder, "ByteLevel");
    return read_byte_level(r, "decoder", decoder);
}

/* ---- The files ---- */

static dart_status read_parts(const text_reader *r, const json_t *root)
{
    static const char *const keys[] = {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder",
                                       "model"};
    static const char *const none[] = {"truncation", "padding"};
    dart_status status;
    const json_t *version = json_object_get(root, "version"), *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    TRY(text_refuse_keys(r, "", root, keys, COUNT_OF(keys)));
    if (version != NULL && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return text_refuse(r, "version", version, "1.0");
    for (size_t i = 0; i < COUNT_OF(none); i++)
        if (!is_absent(json_object_get(root, none[i]))) return text_refuse(r, none[i], json_object_get(root, none[i]), "null");
    if (model == NULL) FAIL(r->report, DART_BAD_DATA, "%s: model is missing", r->name);
    TRY(text_read_normalizer(r, json_object_get(root, "normalizer")));
    TRY(text_read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer")));
    TRY(text_read_decoder(r, json_object_get(root, "decoder")));
    TRY(text_read_model(r, model, added));
    TRY(text_read_added(r, model, added));
    TRY(text_read_post_processor(r, json_object_get(root, "post_processor")));
    return DART_OK;
fail:
    return status;
}

dart_status text_tokenizer_read(dart_tokenizer *t, const char *json, size_t bytes, const char *name, base_report *report)
{
    const text_reader r = {t, name, report};
    json_t *root = NULL;
    if (bytes > MAX_TOKENIZER_BYTES) return base_fail(report, DART_UNSUPPORTED, "%s: longer than %u bytes", name, MAX_TOKENIZER_BYTES);
    dart_status status = checkpoint_json_parse(json, bytes, name, report, &root);
    if (status == DART_OK) status = read_parts(&r, root);
    json_decref(root);
    return status;
}

/* A token by its text, or {"content": its text}; TEXT_NO_TOKEN where there is none. */
static dart_status read_token(const text_reader *r, const json_t *root, const char *key, int32_t *id)
{
    const json_t *value = json_object_get(root, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (is_absent(value)) return DART_OK;
    if (!json_is_string(value)) return base_fail(r->report, DART_BAD_DATA, "%s: %s is no text", r->name, key);
    *id = text_tokenizer_find(r->t, json_string_value(value), json_string_length(value));
    if (*id != TEXT_NO_TOKEN) return DART_OK;
    return base_fail(r->report, DART_BAD_DATA, "%s: %s is %.60s, which is no token", r->name, key, json_string_value(value));
}

dart_status text_config_read(dart_tokenizer *t, const char *json, size_t bytes, const char *name, base_report *report)
{
    const text_reader r = {t, name, report};
    dart_status status;
    json_t *root = NULL;
    if (bytes > MAX_CONFIG_BYTES) FAIL(report, DART_UNSUPPORTED, "%s: longer than %u bytes", name, MAX_CONFIG_BYTES);
    TRY(checkpoint_json_parse(json, bytes, name, report, &root));
    TRY(read_token(&r, root, "bos_token", &t->bos));
    TRY(read_token(&r, root, "eos_token", &t->eos));
fail:
    json_decref(root);
    return status;
}
