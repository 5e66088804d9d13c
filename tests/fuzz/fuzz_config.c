/* config.json from anywhere. For clang's libFuzzer, compile with -DDART_LIBFUZZER -fsanitize=fuzzer. Otherwise a
 * program: a loop of mutations of valid files, or files that are named (mutate.h). */
#include "checkpoint/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

static dart_status parse(const uint8_t *data, size_t size)
{
    base_report report;
    dart_model_config config;
    model_parameter p;
    if (base_report_init(&report, NULL) != DART_OK) return DART_OUT_OF_MEMORY;
    const dart_status status = model_config_parse((const char *)data, size, "input", &report, &config);
    if (status == DART_OK) { /* what must hold of whatever was accepted */
        uint64_t count = 0;
        uint32_t parameters = 0;
        require(model_config_check(&config, DART_INTERNAL, "input", &report) == DART_OK);
        for (; model_config_parameter(&config, parameters, &p); parameters++) {
            require(p.elements > 0 && strlen(p.name) < sizeof p.name);
            count += p.elements;
        }
        require(count == model_config_count(&config));
    } else {
        char said[sizeof report.text];
        base_report_copy(&report, said, sizeof said);
        require(status == DART_BAD_DATA || status == DART_UNSUPPORTED || status == DART_OUT_OF_MEMORY);
        require(said[0] != '\0' && !base_has_controls(said));
    }
    base_report_destroy(&report);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse(data, size);
    return 0;
}

#ifndef DART_LIBFUZZER

#define ROUNDS 60000u
#define CAPACITY 2048u
#include "mutate.h"

static const char *const valid[] = {
    "{\"model_type\":\"mamba2\",\"vocab_size\":301,\"hidden_size\":96,\"state_size\":64,\"num_heads\":6,"
    "\"head_dim\":32,\"n_groups\":1,\"num_hidden_layers\":3,\"time_step_limit\":[0.0,Infinity]}",
    "{\"model_type\":\"dart\",\"vocab_size\":8192,\"hidden_size\":64,\"state_size\":16,\"num_heads\":2,\"head_dim\":64,"
    "\"n_groups\":2,\"expand\":2,\"conv_kernel\":4,\"use_conv_bias\":true,\"use_bias\":false,\"chunk_size\":16,"
    "\"num_hidden_layers\":2,\"layer_norm_epsilon\":1e-05,\"sma_norm_epsilon\":1e-05,\"tie_word_embeddings\":false,"
    "\"hidden_act\":\"silu\",\"rms_norm\":true,\"time_step_limit\":[0.0,{\"__float__\":\"Infinity\"}]}",
};

static const char *const words[] = {
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "-",
    "0",
    "1",
    "9",
    "1.5",
    "1e999",
    "-1",
    "null",
    "true",
    "false",
    "NaN",
    "Infinity",
    "-Infinity",
    "\"__float__\":",
    "\\u0000",
    "\\ud83d",
    "\xC3",
    "\x1b[31m",
    "\xC2\x9B",
    "99999999999999999999",
    "\"n_groups\":3",
    "\"hidden_act\":\"relu\",",
    "{\"a\":{\"b\":[[[]]]}}",
};

/* In memory of its own, so that a sanitizer sees every byte read past the end. */
static dart_status run(const uint8_t *text, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    require(copy != NULL);
    memcpy(copy, text, size);
    random_watch(copy, size);
    const dart_status status = parse(copy, size);
    free(copy);
    return status;
}

static int run_file(const char *path)
{
    enum { LIMIT = 1 << 21 };
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
        const size_t v = random_below(COUNT_OF(valid));
        size_t size = strlen(valid[v]);
        memcpy(text, valid[v], size);
        for (uint32_t steps = 1 + random_below(4); steps > 0; steps--) size = mutate_json(text, size, words, COUNT_OF(words));
        run(text, size);
    }
    return 0;
}

#endif
