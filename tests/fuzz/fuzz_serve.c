/* Bodies of requests from anywhere. For clang's libFuzzer, compile with -DDART_LIBFUZZER -fsanitize=fuzzer; the first byte of the input says which
 * route the rest is for. Otherwise a program: a loop of mutations, or bodies in files that are named (mutate.h). */
#include "serve/access.h"
#include "serve/api.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

static const char vocabulary[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<e>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
    "\"special\":true}],"
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<e>\":0,\"a\":1,\"b\":2,\"\\u0120\":3,\"ab\":4,\"\\u00c3\":5,\"\\u00a9\":6},\"merges\":[\"a b\"]}}";

static dart_tokenizer *tokenizer;
static api_names names;
static const api_limits limits = {.model = "m", .V = 9, .context = 64, .prompts = 8};

static api_limits open_limits(void)
{
    const dart_tokenizer_source with_config = {.json = vocabulary, .json_bytes = sizeof vocabulary - 1, .config = "{\"eos_token\":\"<e>\"}",
                                               .config_bytes = 19};
    if (tokenizer == NULL) {
        require(dart_tokenizer_create(&with_config, &tokenizer, NULL, 0) == DART_OK);
        require(api_names_make(tokenizer, limits.V, &names));
    }
    api_limits own = limits;
    own.tokenizer = tokenizer;
    return own;
}

/* What is written is one JSON object. */
static json_t *parsed(const api_text *text)
{
    require(!text->failed);
    json_t *object = json_loadb(text->at, text->bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    require(object != NULL);
    return object;
}

static void check_error(const api_error *error)
{
    api_text text = {NULL, 0, 0, false};
    require((error->status == 400 || error->status == 404) && error->message[0] != '\0');
    api_write_error(&text, error);
    json_t *object = parsed(&text);
    require(json_integer_value(json_object_get(json_object_get(object, "error"), "code")) == error->status);
    json_decref(object);
    api_text_free(&text);
}

/* An answer to the request, with numbers that are hard to write. */
static void check_answer(const api_request *request)
{
    static const float hard[] = {-0.1f, -INFINITY, NAN, -3.4e38f, 0, -1e-38f, -16777217.0f, INFINITY};
    const api_settings *s = &request->settings;
    const uint32_t k = s->logprobs > 0 ? (uint32_t)s->logprobs : 0;
    const int32_t ids[] = {0, 5, 8};
    const api_head head = {.id = "cmpl-1", .model = "m\"\\\n", .created = 1};
    const api_usage usage = {1, 3};
    for (uint32_t p = 0; p < request->prompts_count; p++) {
        const api_prompt *prompt = &request->prompts[p];
        const size_t count = (s->echo ? prompt->ids.count : 0) + COUNT_OF(ids);
        api_scores scores = {.k = k};
        api_text text = {NULL, 0, 0, false};
        require(api_scores_reserve(&scores, count));
        for (size_t i = 0; i < count; i++) {
            scores.own[i] = hard[i % COUNT_OF(hard)];
            for (uint32_t j = 0; j < k; j++) {
                scores.top_ids[i * k + j] = (int32_t)((i + j) % 11) - 1;
                scores.top[i * k + j] = hard[(i + j) % COUNT_OF(hard)];
            }
        }
        const api_choice choice = {.index = p, .text = "x\xC3\xFF\x01\"", .bytes = 5, .prompt = s->echo ? prompt : NULL, .ids = ids,
                                   .ids_count = COUNT_OF(ids), .scores = s->logprobs >= 0 ? &scores : NULL, .finish = p % 2 == 0 ? "stop" : NULL};
        api_write_completion(&text, &head, &choice, 1, &usage, &names, tokenizer);
        json_t *object = parsed(&text), *found = json_array_get(json_object_get(object, "choices"), 0);
        const json_t *logprobs = json_object_get(found, "logprobs");
        require(json_is_string(json_object_get(found, "text")));
        for (size_t i = 0; i < 4 && s->logprobs >= 0; i++) {
            static const char *const keys[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
            const json_t *list = json_object_get(logprobs, keys[i]);
            require(json_array_size(list) == count);
            for (size_t n = 0; n < count && i == 1; n++) require(json_is_null(json_array_get(list, n)) == (s->echo && n == 0));
        }
        json_decref(object);
        text.bytes = 0;
        api_write_chunk(&text, &head, &choice, NULL, &names, tokenizer);
        require(memcmp(text.at, "data: {", 7) == 0 && memcmp(text.at + text.bytes - 3, "}\n\n", 3) == 0);
        require(memchr(text.at, '\n', text.bytes - 2) == NULL);
        api_text_free(&text);
        api_scores_free(&scores);
    }
}

/* Whether the body was accepted. */
static bool complete(const char *body, size_t size)
{
    const api_limits own = open_limits();
    api_error error = {.status = 0};
    api_request request;
    const bool read = api_read_completion(body, size, &own, &request, &error);
    if (!read) check_error(&error);
    require(!read || (request.prompts_count > 0 && request.prompts_count <= own.prompts));
    for (uint32_t p = 0; p < request.prompts_count && read; p++) {
        const dart_token_list *ids = &request.prompts[p].ids;
        require(ids->count > 0 && ids->count + request.settings.max_tokens <= own.context);
        for (size_t i = 0; i < ids->count; i++) require(ids->ids[i] >= 0 && (uint32_t)ids->ids[i] < own.V);
    }
    for (uint32_t i = 0; i < request.settings.stops_count; i++) require(request.settings.stops[i][0] != '\0');
    if (read) check_answer(&request);
    api_request_free(&request);
    return read;
}

static bool convert(const char *body, size_t size, bool back)
{
    const api_limits own = open_limits();
    api_error error = {.status = 0};
    api_text text = {NULL, 0, 0, false};
    const bool done = back ? api_detokenize(body, size, &own, &text, &error) : api_tokenize(body, size, &own, &text, &error);
    if (done) json_decref(parsed(&text));
    else check_error(&error);
    api_text_free(&text);
    return done;
}

/* Headers are texts of any bytes without zeros. */
static void ask_access(const char *text)
{
    static const char *const own[] = {"host.example"};
    (void)access_host(text, own, 1);
    (void)access_origin(text, "localhost");
    require(!access_key(text, "key") || strlen(text) == 10);
    require(!access_is_local(text) || strlen(text) >= 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    char *body = malloc(size);
    require(body != NULL);
    memcpy(body, data + 1, size - 1);
    body[size - 1] = '\0';
    if (data[0] % 4 == 0) complete(body, size - 1);
    else if (data[0] % 4 < 3) convert(body, size - 1, data[0] % 4 == 2);
    else ask_access(body);
    free(body);
    return 0;
}

#ifndef DART_LIBFUZZER

#define ROUNDS 60000u
#define CAPACITY 1024u
#include "mutate.h"

static const char *const valid[] = {
    "{\"model\":\"m\",\"prompt\":[[1,2,3],[0,8]],\"max_tokens\":1,\"temperature\":0,\"logprobs\":1,\"echo\":true,\"seed\":1234}",
    "{\"prompt\":\"ab <e>\",\"stop\":[\"a\",\"\\u00e9\"],\"max_tokens\":4,\"temperature\":0.0,\"top_p\":0.5,\"top_k\":3,\"min_p\":0.1}",
    "{\"prompt\":\"ab\",\"repetition_penalty\":1.1,\"ignore_eos\":true,\"n\":1,\"logit_bias\":{},\"unknown\":{\"a\":[1]}}",
    "{\"prompt\":[\"a\",\"b\"],\"stream\":true,\"stream_options\":{\"include_usage\":true},\"logprobs\":20,\"parse_special\":false}",
    "{\"prompt\":[1],\"max_tokens\":0,\"echo\":true,\"logprobs\":0}",
};
static const char *const tokenizer_bodies[] = {"{\"prompt\":\"ab <e>\",\"add_special_tokens\":false}", "{\"tokens\":[1,5,6,5,0]}"};

static const char *const words[] = {
    "\"", "\\", "{", "}", "[", "]", ",", ":", "-", "0", "1", "9", "-1", "1.5", "1e999", "99999999999999999999", "null", "true", "false", "\"\"",
    "\\u0000", "\\ud83d", "[[[[[[[[[[[[[[[[[", "\"n\":2,", "\"stop\":\"\",", "\"prompt\":[],", "\"prompt\":[[]],", "\"model\":\"x\",",
    "\xC3", "\x1b[31m",
};

static void run(const uint8_t *text, size_t size, size_t route)
{
    uint8_t *copy = malloc(size + 1); /* of its own size, so that a sanitizer sees every byte read past the end */
    require(copy != NULL);
    copy[0] = (uint8_t)route;
    memcpy(copy + 1, text, size);
    random_watch(copy, size + 1);
    LLVMFuzzerTestOneInput(copy, size + 1);
    free(copy);
}

static void check_access(void)
{
    static const char *const own[] = {"host.example"};
    static const char *const fine[] = {"127.0.0.1:8080", "localhost", "[::1]:80", "10.0.0.7", "HOST.example:1", "::1"};
    static const char *const foreign[] = {"evil.example", "127.0.0.1.evil.example", "localhost.evil", "", ":80", "[::1", "[::1]x",
                                          "host.example.evil"};
    for (size_t i = 0; i < COUNT_OF(fine); i++) require(access_host(fine[i], own, 1) == (strcmp(fine[i], "::1") != 0));
    for (size_t i = 0; i < COUNT_OF(foreign); i++) require(!access_host(foreign[i], own, 1));
    require(access_host(NULL, own, 1) && access_origin(NULL, NULL) && access_origin("http://localhost:80", "localhost:80"));
    require(!access_origin("http://evil.example", "localhost") && !access_origin("null", "localhost") && !access_origin("http://localhost", NULL));
    require(access_key("Bearer key", "key") && access_key("bearer key", "key"));
    require(!access_key(NULL, "key") && !access_key("Bearer ", "key") && !access_key("Bearer keykey", "key") && !access_key("Basic key", "key"));
    require(access_is_local("127.3.2.1") && access_is_local("::1"));
    require(!access_is_local("0.0.0.0") && !access_is_local("::") && !access_is_local("10.0.0.1") && !access_is_local("localhost"));
}

int main(int argc, char **argv)
{
    argc = random_begin(argc, argv);
    static uint8_t text[CAPACITY];
    static char file_text[1 << 20];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) return perror(argv[i]), 1;
        const size_t size = fread(file_text, 1, sizeof file_text, file);
        fclose(file);
        printf("%s: %s\n", argv[i], complete(file_text, size) ? "accepted" : "refused");
    }
    check_access();
    for (size_t v = 0; v < COUNT_OF(valid); v++) {
        require(complete(valid[v], strlen(valid[v])));
        for (size_t length = 0; length < strlen(valid[v]); length++) require(!complete(valid[v], length));
    }
    for (size_t v = 0; v < 2; v++) require(convert(tokenizer_bodies[v], strlen(tokenizer_bodies[v]), v == 1));
    for (uint32_t round = 0; argc == 1 && random_goes_on(round, ROUNDS); round++) {
        const size_t v = random_below(COUNT_OF(valid) + 2);
        const char *from = v < COUNT_OF(valid) ? valid[v] : tokenizer_bodies[v - COUNT_OF(valid)];
        size_t size = strlen(from);
        memcpy(text, from, size);
        for (uint32_t steps = 1 + random_below(4); steps > 0; steps--) size = mutate_json(text, size, words, COUNT_OF(words));
        run(text, size, v < COUNT_OF(valid) ? 0 : 1 + v - COUNT_OF(valid));
        if (round % 16 == 0) run(text, size < 40 ? size : 40, 3);
    }
    api_names_free(&names);
    dart_tokenizer_destroy(&tokenizer);
    return 0;
}

#endif
