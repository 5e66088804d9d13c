/* tokenizer.json: what is refused, with key and value, and what is wrong, with its place. */
#include "dartlm/text.h"
#include "base/base.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A tokenizer of the bytes a, b, space and of ab, abab, in parts that cases replace. */
static const struct {
    const char *key, *value;
} parts[] = {
    {"version", "\"1.0\""},
    {"truncation", "null"},
    {"padding", "null"},
    {"added_tokens",
     "[{\"id\":5,\"content\":\"<end>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}]"},
    {"normalizer", "{\"type\":\"NFC\"}"},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"},
    {"post_processor", "null"},
    {"decoder", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}"},
    {"model",
     "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null,\"fuse_unk\":false,"
     "\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"abab\":4},"
     "\"merges\":[\"a b\",[\"ab\",\"ab\"]]}"},
};

/* The file with `key` replaced; value NULL leaves it out. */
static char *file_with(const char *key, const char *value)
{
    size_t size = 8192 + (value != NULL ? strlen(value) : 0), used = 0;
    char *text = malloc(size);
    assert_non_null(text);
    text[used++] = '{';
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const bool replaced = key != NULL && strcmp(parts[i].key, key) == 0;
        if (replaced && value == NULL) continue;
        used += (size_t)snprintf(text + used, size - used, "%s\"%s\":%s", used > 1 ? "," : "", parts[i].key, replaced ? value : parts[i].value);
    }
    snprintf(text + used, size - used, "%s}", key != NULL && strcmp(key, "more") == 0 ? value : "");
    return text;
}

/* The tokens of "abab<end> b" of the file, or its failure. */
static dart_status try_file(const char *key, const char *value, const char *config, char *error, size_t error_size)
{
    dart_tokenizer *t = NULL;
    char *text = file_with(key, value);
    const dart_tokenizer_source source = {
        .json = text, .json_bytes = strlen(text), .config = config, .config_bytes = config != NULL ? strlen(config) : 0};
    const dart_status status = dart_tokenizer_create(&source, &t, error, error_size);
    assert_true((status == DART_OK) == (t != NULL));
    dart_tokenizer_destroy(&t);
    free(text);
    return status;
}

#define ADDED(fields) \
    "[{\"id\":5,\"content\":\"<end>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true" fields "}]"
#define TOKEN(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"," flags "}"
#define PLAIN "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":false"
#define NORMAL "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":true,\"special\":false"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define SPLIT(pattern, behavior, invert) "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior "\",\"invert\":" invert "}"
#define QWEN2 "{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|" \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}"
#define SEQUENCE(a, b) "{\"type\":\"Sequence\",\"pretokenizers\":[" a "," b "]}"
#define MODEL(fields) "{\"vocab\":{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"abab\":4},\"merges\":[\"a b\",\"ab ab\"]," fields "}"
#define VOCAB(vocab, merges) "{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]}"
#define FRAME(single, specials) "{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"pair\":[],\"special_tokens\":{" specials "}}"
#define A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define END "{\"SpecialToken\":{\"id\":\"<end>\",\"type_id\":0}}"
#define END_IDS "\"<end>\":{\"id\":\"<end>\",\"ids\":[5],\"tokens\":[\"<end>\"]}"

static const struct test_case {
    const char *key, *value;
    dart_status status;
    const char *said; /* NULL: anything */
} cases[] = {
    /* What is computed. */
    {NULL, NULL, DART_OK, NULL},
    {"version", NULL, DART_OK, NULL},
    {"normalizer", "null", DART_OK, NULL},
    {"normalizer", NULL, DART_OK, NULL},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}", DART_OK, NULL},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false}", DART_OK, NULL},
    {"pre_tokenizer", SEQUENCE(SPLIT(QWEN2, "Isolated", "false"), BYTES), DART_OK, NULL},
    {"post_processor", FRAME(END "," A "," END, END_IDS), DART_OK, NULL},
    {"post_processor", "{\"type\":\"Sequence\",\"processors\":[" BYTES "," FRAME(END "," A, END_IDS) "]}", DART_OK, NULL},
    {"model", MODEL("\"ignore_merges\":true"), DART_OK, NULL},
    {"model", MODEL("\"dropout\":0.0"), DART_OK, NULL},
    {"added_tokens", "[]", DART_OK, NULL},
    {"added_tokens", "null", DART_OK, NULL},
    {"added_tokens", "[" TOKEN(3, "ab", PLAIN) "," TOKEN(5, "<end>", NORMAL) "," TOKEN(6, "  ", NORMAL) "]", DART_OK, NULL},
    /* What is not. */
    {"more", ",\"chat\":1", DART_UNSUPPORTED, "chat is 1"},
    {"version", "\"2.0\"", DART_UNSUPPORTED, "version is \"2.0\", supported is 1.0"},
    {"truncation", "{\"max_length\":512}", DART_UNSUPPORTED, "truncation is {\"max_length\":512}"},
    {"padding", "{\"strategy\":\"BatchLongest\"}", DART_UNSUPPORTED, "padding is"},
    {"normalizer", "{\"type\":\"NFKC\"}", DART_UNSUPPORTED, "normalizer is {\"type\":\"NFKC\"}, supported is null or NFC"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}", DART_UNSUPPORTED, "Lowercase"},
    {"normalizer", "{\"type\":\"NFC\",\"form\":1}", DART_UNSUPPORTED, "normalizer.form is 1"},
    {"normalizer", "3", DART_UNSUPPORTED, "normalizer is 3"},
    {"pre_tokenizer", "null", DART_UNSUPPORTED, "pre_tokenizer is null"},
    {"pre_tokenizer", NULL, DART_UNSUPPORTED, "pre_tokenizer is missing"},
    {"pre_tokenizer", "{\"type\":\"Whitespace\"}", DART_UNSUPPORTED, "Whitespace"},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", DART_UNSUPPORTED, "pre_tokenizer.add_prefix_space is true"},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\"}", DART_BAD_DATA, "pre_tokenizer.add_prefix_space is missing"},
    {"pre_tokenizer", BYTES, DART_UNSUPPORTED, "pre_tokenizer.use_regex is false"},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"more\":[]}", DART_UNSUPPORTED, "pre_tokenizer.more is []"},
    {"pre_tokenizer", SEQUENCE(SPLIT("{\"Regex\":\"\\\\p{N}\"}", "Isolated", "false"), BYTES), DART_UNSUPPORTED,
     "Split.pattern is {\"Regex\":\"\\\\p{N}\"}"},
    {"pre_tokenizer", SEQUENCE(SPLIT("{\"String\":\" \"}", "Isolated", "false"), BYTES), DART_UNSUPPORTED, "Split.pattern is {\"String\":\" \"}"},
    {"pre_tokenizer", SEQUENCE(SPLIT(QWEN2, "Removed", "false"), BYTES), DART_UNSUPPORTED, "Split.behavior is \"Removed\""},
    {"pre_tokenizer", SEQUENCE(SPLIT(QWEN2, "Isolated", "true"), BYTES), DART_UNSUPPORTED, "Split.invert is true"},
    {"pre_tokenizer", SEQUENCE(BYTES, SPLIT(QWEN2, "Isolated", "false")), DART_UNSUPPORTED, "pre_tokenizer is"},
    {"post_processor", "{\"type\":\"BertProcessing\"}", DART_UNSUPPORTED, "BertProcessing"},
    {"post_processor", FRAME(END, END_IDS), DART_UNSUPPORTED, "post_processor.single"},
    {"post_processor", FRAME(A "," A, END_IDS), DART_UNSUPPORTED, "post_processor.single"},
    {"post_processor", FRAME("{\"Sequence\":{\"id\":\"B\",\"type_id\":0}}", END_IDS), DART_UNSUPPORTED, "post_processor.single"},
    {"post_processor", FRAME(END "," A, ""), DART_BAD_DATA, "special_tokens has no ids"},
    {"post_processor", FRAME(END "," A, "\"<end>\":{\"ids\":[6]}"), DART_BAD_DATA, "special_tokens.<end>.ids[0] is no token"},
    {"post_processor", FRAME(END "," A, "\"<end>\":{\"ids\":[0,0,0,0,0,0,0,0,0]}"), DART_UNSUPPORTED, "up to 8"},
    {"post_processor", "{\"type\":\"Sequence\",\"processors\":[" FRAME(END "," A, END_IDS) "," FRAME(END "," A, END_IDS) "]}", DART_UNSUPPORTED,
     "one TemplateProcessing"},
    {"decoder", "null", DART_UNSUPPORTED, "decoder is null, supported is ByteLevel"},
    {"decoder", "{\"type\":\"Metaspace\"}", DART_UNSUPPORTED, "Metaspace"},
    {"decoder", "{\"type\":\"ByteLevel\",\"x\":1}", DART_UNSUPPORTED, "decoder.x is 1"},
    {"model", "{\"type\":\"Unigram\",\"vocab\":[]}", DART_UNSUPPORTED, "model.type is \"Unigram\", supported is BPE"},
    {"model", MODEL("\"dropout\":0.1"), DART_UNSUPPORTED, "model.dropout is 0.1"},
    {"model", MODEL("\"byte_fallback\":true"), DART_UNSUPPORTED, "model.byte_fallback is true"},
    {"model", MODEL("\"continuing_subword_prefix\":\"##\""), DART_UNSUPPORTED, "model.continuing_subword_prefix is \"##\""},
    {"model", MODEL("\"end_of_word_suffix\":\"</w>\""), DART_UNSUPPORTED, "model.end_of_word_suffix is \"</w>\""},
    {"model", MODEL("\"unk_token\":\"a\""), DART_UNSUPPORTED, "model.unk_token is \"a\""},
    {"model", MODEL("\"more\":true"), DART_UNSUPPORTED, "model.more is true"},
    {"added_tokens",
     "[" TOKEN(5, "<end>", "\"single_word\":true,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true") "]", DART_UNSUPPORTED,
     "added_tokens[0].single_word is true"},
    {"added_tokens",
     "[" TOKEN(5, "<end>", "\"single_word\":false,\"lstrip\":true,\"rstrip\":false,\"normalized\":false,\"special\":true") "]", DART_UNSUPPORTED,
     "added_tokens[0].lstrip is true"},
    {"added_tokens",
     "[" TOKEN(5, "<end>", "\"single_word\":false,\"lstrip\":false,\"rstrip\":true,\"normalized\":false,\"special\":true") "]", DART_UNSUPPORTED,
     "added_tokens[0].rstrip is true"},
    {"added_tokens", ADDED(",\"more\":2"), DART_UNSUPPORTED, "added_tokens[0].more is 2"},
    {"added_tokens", "[" TOKEN(7, "<end>", PLAIN) "]", DART_UNSUPPORTED, "added_tokens[0].id is 7, supported is the one that follows, 5"},
    {"added_tokens", "[" TOKEN(5, "ab", PLAIN) "]", DART_UNSUPPORTED, "added_tokens[0].id is 5, supported is the one that follows, 3"},
    {"added_tokens", "[" TOKEN(5, "e\\u0301", NORMAL) "]", DART_UNSUPPORTED, "added_tokens[0].content"},
    {"added_tokens", "[" TOKEN(5, "x", PLAIN) "," TOKEN(6, "x", PLAIN) "]", DART_UNSUPPORTED, "has the content \"x\" twice"},
    {"added_tokens", "[" TOKEN(5, "x", PLAIN) "," TOKEN(6, "x", NORMAL) "]", DART_UNSUPPORTED, "has the content \"x\" twice"},
    {"added_tokens", "[" TOKEN(2097152, "x", PLAIN) "]", DART_UNSUPPORTED, "supported are ids below 2097152"},
    /* What is wrong. */
    {"model", NULL, DART_BAD_DATA, "model is missing"},
    {"model", "[]", DART_BAD_DATA, "model is no object"},
    {"model", "{\"vocab\":{}}", DART_BAD_DATA, "model.merges is no array"},
    {"model", "{\"merges\":[]}", DART_BAD_DATA, "model.vocab is no object"},
    {"model", MODEL("\"ignore_merges\":1"), DART_BAD_DATA, "model.ignore_merges is neither true nor false"},
    {"model", VOCAB("\"a\":-1", ""), DART_BAD_DATA, "model.vocab.a is no id"},
    {"model", VOCAB("\"a\":\"x\"", ""), DART_BAD_DATA, "model.vocab.a is no id"},
    {"model", VOCAB("\"a\":1.5", ""), DART_BAD_DATA, "model.vocab.a is no id"},
    {"model", VOCAB("\"a\":0,\"b\":0", ""), DART_BAD_DATA, "two tokens of model.vocab have the id 0"},
    {"model", VOCAB("\"a\":0,\"a\":1", ""), DART_BAD_DATA, "duplicate"},
    {"model", VOCAB("\"a\":0,\"b\":1", "\"a b\""), DART_BAD_DATA, "model.merges[0] has tokens that model.vocab lacks"},
    {"model", VOCAB("\"a\":0,\"b\":1", "\"ab\""), DART_BAD_DATA, "model.merges[0] is no pair"},
    {"model", VOCAB("\"a\":0,\"b\":1", "\"a b c\""), DART_BAD_DATA, "model.merges[0] is no pair"},
    {"model", VOCAB("\"a\":0,\"b\":1", "[\"a\"]"), DART_BAD_DATA, "model.merges[0] is no pair"},
    {"model", VOCAB("\"a\":0,\"b\":1", "[\"a\",1]"), DART_BAD_DATA, "model.merges[0] is no pair"},
    {"added_tokens", "{}", DART_BAD_DATA, "added_tokens is no array"},
    {"added_tokens", "[1]", DART_BAD_DATA, "added_tokens.id is no id"},
    {"added_tokens", "[{\"id\":5}]", DART_BAD_DATA, "added_tokens[0].content is no text"},
    {"added_tokens", "[{\"id\":5,\"content\":\"x\"}]", DART_BAD_DATA, "added_tokens[0].single_word is missing"},
    {"added_tokens", "[" TOKEN(5, "", PLAIN) "]", DART_BAD_DATA, "added_tokens[0].content is no text"},
    {"model", VOCAB("\"a\":0,\"b\":2", ""), DART_UNSUPPORTED, "added_tokens[0].id is 5, supported is the one that follows, 2"},
    {"version", "x", DART_BAD_DATA, "tokenizer.json: line 1"},
};

static void says_what_it_does_not_do(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char error[600];
        const struct test_case *c = &cases[i];
        const dart_status status = try_file(c->key, c->value, NULL, error, sizeof error);
        if (status != c->status || (c->said != NULL && strstr(error, c->said) == NULL))
            fail_msg("%s %s: %s, \"%s\", not %s, \"%s\"", c->key, c->value, dart_status_name(status), error, dart_status_name(c->status), c->said);
        if (status == DART_OK) assert_string_equal(error, "");
        assert_int_equal(try_file(c->key, c->value, NULL, NULL, 0), c->status);
    }
}

static void reads_its_configuration(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        dart_status status;
        const char *said;
    } files[] = {
        {"{}", DART_OK, NULL},
        {"{\"eos_token\":null,\"bos_token\":\"a\",\"chat_template\":\"x\"}", DART_OK, NULL},
        {"{\"eos_token\":{\"content\":\"<end>\"}}", DART_OK, NULL},
        {"{\"eos_token\":\"<none>\"}", DART_BAD_DATA, "eos_token is <none>, which is no token"},
        {"{\"bos_token\":7}", DART_BAD_DATA, "bos_token is no text"},
        {"{", DART_BAD_DATA, "tokenizer_config.json: line"},
    };
    char error[600];
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        assert_int_equal(try_file(NULL, NULL, files[i].config, error, sizeof error), files[i].status);
        if (files[i].said != NULL) assert_non_null(strstr(error, files[i].said));
    }
}

/* Later merges count where a pair stands twice; a token that merging does not reach is a piece only with ignore_merges. */
static void follows_the_merges(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int32_t ids[4];
        size_t count;
    } models[] = {
        {VOCAB("\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"ba\":4", "\"a b\",\"b a\""), {3, 3}, 2},           /* abab: the leftmost of the lowest */
        {VOCAB("\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"ba\":4", "\"a b\",\"b a\",\"a b\""), {0, 4, 1}, 3},       /* a b has rank 2 now */
        {VOCAB("\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"abab\":4", "\"a b\""), {3, 3}, 2},                        /* abab is not reached */
        {"{\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"abab\":4},\"merges\":[\"a b\"]}", {4}, 1},
        {VOCAB("\"a\":0,\"x\":1,\"\\u0120\":2,\"aa\":3,\"z\":4", "\"a a\""), {3}, 1},                              /* b is no token and falls away */
    };
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        dart_tokenizer *t = NULL;
        dart_token_list list = {NULL, 0, 0};
        char *text = file_with("model", models[i].model), error[600] = "";
        const dart_tokenizer_source source = {.json = text, .json_bytes = strlen(text)};
        if (dart_tokenizer_create(&source, &t, error, sizeof error) != DART_OK) fail_msg("%zu: %s", i, error);
        assert_int_equal(dart_tokenizer_encode(t, "abab", 4, NULL, &list), DART_OK);
        assert_int_equal(list.count, models[i].count);
        assert_memory_equal(list.ids, models[i].ids, list.count * sizeof *list.ids);
        dart_token_list_free(&list);
        dart_tokenizer_destroy(&t);
        free(text);
    }
}

static void refuses_wrong_calls(void **state)
{
    (void)state;
    dart_tokenizer *t = NULL;
    const dart_tokenizer_source nothing = {.json = NULL};
    assert_int_equal(dart_tokenizer_create(NULL, &t, NULL, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_tokenizer_create(&nothing, &t, NULL, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_tokenizer_open(NULL, &t, NULL, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_tokenizer_open("x", NULL, NULL, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_tokenizer_describe(NULL, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_text_stream_create(NULL, NULL, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_text_stream_feed(NULL, NULL, 0, NULL, NULL, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_text_stream_end(NULL, NULL, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_tokenizer_find(NULL, "a"), -1);
    dart_text_stream_destroy(NULL);
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_it_does_not_do),
        cmocka_unit_test(reads_its_configuration),
        cmocka_unit_test(follows_the_merges),
        cmocka_unit_test(refuses_wrong_calls),
    };
    return cmocka_run_group_tests_name("unit_text_files", tests, NULL, NULL);
}
