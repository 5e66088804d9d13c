/* tokenizer.json from anywhere, and text of any bytes. For clang's libFuzzer, compile with -DDART_LIBFUZZER -fsanitize=fuzzer; the first byte of
 * the input says which of the two the rest is. Otherwise a program: a loop of mutations, or files that are named, as tokenizer.json (mutate.h). */
#include "dartlm/text.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

#define SPECIAL(id, content, form, special) \
    "{\"id\":" #id ",\"content\":\"" content "\",\"single_word\":false,\"lstrip\":false," \
    "\"rstrip\":false,\"normalized\":" form ",\"special\":" special "}"

static const char *const valid[] = {
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
    SPECIAL(0, "<e>", "false", "true") "," SPECIAL(9, "  ", "true", "false")
    "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true},"
    "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{"
    "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"vocab\":{\"<e>\":0,\"a\":1,\"b\":2,\"\\u0120\":3,\"ab\":4,\"\\u0120a\":5,\"aa\":6,"
    "\"aaaa\":7,"
    "\"\\u00c3\":8},\"merges\":[\"a b\",\"\\u0120 a\",\"a a\",\"aa aa\"]}}",
    "{\"added_tokens\":[" SPECIAL(3, "<|x|>", "false", "true") "],\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
    "\"pattern\":{\"Regex\":\"'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+"
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\","
    "\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"post_processor\":{\"type\":\"TemplateProcessing\","
    "\"single\":[{\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
    "\"special_tokens\":{\"x\":{\"ids\":[3]}}},"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}}",
};

/* Encodes bytes and decodes what comes of it; wrong UTF-8 must be refused, with its place. */
static void use(dart_tokenizer *t, const char *text, size_t bytes)
{
    dart_tokenizer_info info;
    dart_token_list list = {NULL, 0, 0};
    dart_text_stream *stream = NULL;
    static const char *const stops[] = {"ab", "\xC3\xA9"};
    const char *given;
    size_t count;
    require(dart_tokenizer_describe(t, &info) == DART_OK);
    for (uint32_t way = 0; way < 4; way++) {
        const dart_encode_options options = {.plain = way & 1, .frame = way & 2};
        list.count = 0;
        const dart_status status = dart_tokenizer_encode(t, text, bytes, &options, &list);
        require(status == (text_utf8_prefix((const uint8_t *)text, bytes) == bytes ? DART_OK : DART_BAD_DATA));
        for (size_t i = 0; i < list.count; i++) require(list.ids[i] >= 0 && (uint32_t)list.ids[i] < info.ids);
        const dart_text_options read = {.with_special = way & 1, .stops = stops, .stops_count = way & 2};
        require(dart_text_stream_create(t, &read, &stream) == DART_OK);
        for (size_t i = 0; i < list.count; i++) {
            require(dart_text_stream_feed(stream, list.ids + i, 1, &given, &count, NULL) == DART_OK);
            require(text_utf8_prefix((const uint8_t *)given, count) == count);
        }
        require(dart_text_stream_end(stream, &given, &count) == DART_OK);
        require(text_utf8_prefix((const uint8_t *)given, count) == count);
        dart_text_stream_destroy(&stream);
    }
    dart_token_list_free(&list);
}

static dart_status parse(const uint8_t *data, size_t size)
{
    static const char sample[] = "ab <e>aaaaab  \xC3\xA9 e\xCC\x81<|x|>'s 12";
    char error[600] = "";
    dart_tokenizer *t = NULL;
    const dart_tokenizer_source source = {.json = (const char *)data, .json_bytes = size};
    const dart_status status = dart_tokenizer_create(&source, &t, error, sizeof error);
    if (status == DART_OK) {
        use(t, sample, sizeof sample - 1);
        dart_tokenizer_destroy(&t);
    } else {
        require(status == DART_BAD_DATA || status == DART_UNSUPPORTED || status == DART_OUT_OF_MEMORY);
        require(error[0] != '\0' && t == NULL);
    }
    return status;
}

static void encode(const uint8_t *data, size_t size)
{
    static dart_tokenizer *tokenizers[2];
    for (size_t i = 0; i < 2; i++) {
        const dart_tokenizer_source source = {.json = valid[i], .json_bytes = strlen(valid[i])};
        if (tokenizers[i] == NULL) require(dart_tokenizer_create(&source, &tokenizers[i], NULL, 0) == DART_OK);
        use(tokenizers[i], (const char *)data, size);
    }
#ifndef DART_LIBFUZZER
    for (size_t i = 0; i < 2; i++) dart_tokenizer_destroy(&tokenizers[i]);
#endif
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if (data[0] % 2 == 0) parse(data + 1, size - 1);
    else encode(data + 1, size - 1);
    return 0;
}

#ifndef DART_LIBFUZZER

#define ROUNDS 30000u
#define CAPACITY 4096u
#include "mutate.h"

static const char *const words[] = {
    "\"", "\\", "{", "}", "[", "]", ",", ":", "-", "0", "1", "9", "1.5", "1e999", "-1", "null", "true", "false",
    "\\u0000", "\\ud83d", "\\u0301", "\xC3",
    "\x1b[31m", "99999999999999999999", "2097151", "2097152", "\"a\":7,", "\"a b\",", "[\"a\",\"b\"],",
    "[[[[]]]]", "\"type\":\"NFC\"", "\"merges\":[]",
    "{\"id\":4,\"content\":\"<e\"},", "\"ids\":[0,1,2,3,4,5,6,7,8],",
};

/* In memory of its own, so that a sanitizer sees every byte read past the end. */
static uint8_t *copy_of(const uint8_t *text, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    require(copy != NULL);
    memcpy(copy, text, size);
    random_watch(copy, size);
    return copy;
}

static dart_status run(const uint8_t *text, size_t size)
{
    uint8_t *copy = copy_of(text, size);
    const dart_status status = parse(copy, size);
    free(copy);
    return status;
}

static int run_file(const char *path)
{
    enum { LIMIT = 1 << 24 };
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    uint8_t *data = malloc(LIMIT);
    require(data != NULL);
    run(data, fread(data, 1, LIMIT, file));
    fclose(file);
    free(data);
    return 0;
}

/* Bytes at random, most of them letters of the vocabularies and parts of characters. */
static void run_text(void)
{
    static const char letters[] = "aaaaaaaabbb  <e>|x'st\n\r\t0";
    static const char *const parts[] = {"\xC3\xA9", "\xCC\x81", "\xE0\xA4\x95", "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB",
                                        "\xF0\x9F\x98\x80", "\xE2\x80\xA9", "<|x|>"};
    uint8_t text[3000];
    size_t size = 0;
    const size_t most = random_below(10) == 0 ? sizeof text - 16 : 60;
    const uint32_t broken = random_below(3) == 0 ? 20 : 0;
    while (size < most) {
        if (broken > 0 && random_below(broken) == 0) text[size++] = (uint8_t)random_below(256);
        else if (random_below(4) > 0) text[size++] = (uint8_t)letters[random_below(sizeof letters - 1)];
        else for (const char *part = parts[random_below(COUNT_OF(parts))]; *part != '\0'; part++) text[size++] = (uint8_t)*part;
    }
    uint8_t *copy = copy_of(text, size);
    encode(copy, size);
    free(copy);
}

int main(int argc, char **argv)
{
    argc = random_begin(argc, argv);
    static uint8_t text[CAPACITY];
    int failed = 0;
    for (int i = 1; i < argc; i++) failed |= run_file(argv[i]);
    if (argc > 1) return failed;

    for (size_t v = 0; v < COUNT_OF(valid); v++) {
        const size_t size = strlen(valid[v]);
        memcpy(text, valid[v], size);
        require(run(text, size) == DART_OK);
        for (size_t length = 0; length < size; length++) require(run(text, length) == DART_BAD_DATA);
    }
    for (uint32_t round = 0; random_goes_on(round, ROUNDS); round++) {
        if (round % 8 == 0) run_text();
        const size_t v = random_below(COUNT_OF(valid));
        size_t size = strlen(valid[v]);
        memcpy(text, valid[v], size);
        for (uint32_t steps = 1 + random_below(4); steps > 0; steps--) size = mutate_json(text, size, words, COUNT_OF(words));
        run(text, size);
    }
    return 0;
}

#endif
