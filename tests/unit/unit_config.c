/* Configurations, the list of parameters, and whether a checkpoint fits. */
#include "checkpoint/config.h"
#include "base/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef DART_TEST_DATA
#define DART_TEST_DATA "tests/data"
#endif

static base_log log_lines;
static base_report report;
static char warnings[2048];

static void keep_warning(void *user, dart_log_level level, const char *text)
{
    (void)user;
    if (level != DART_LOG_WARNING) return;
    const size_t used = strlen(warnings);
    snprintf(warnings + used, sizeof warnings - used, "%s\n", text);
}

static int set_up(void **state)
{
    (void)state;
    log_lines.function = keep_warning;
    log_lines.level = DART_LOG_TRACE;
    if (base_mutex_init(&log_lines.mutex) != DART_OK) return -1;
    return base_report_init(&report, &log_lines) == DART_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_report_destroy(&report);
    base_mutex_destroy(&log_lines.mutex);
    return 0;
}

#define BASE                                                                                                           \
    "\"model_type\":\"dart\",\"vocab_size\":300,\"hidden_size\":96,\"state_size\":64,\"num_heads\":6,\"head_dim\":32," \
    "\"num_hidden_layers\":3"

#define LLAMA "\"model_type\":\"llama\",\"vocab_size\":300,\"hidden_size\":96,\"intermediate_size\":256,\"num_hidden_layers\":3"
#define NEOX "\"model_type\":\"gpt_neox\",\"vocab_size\":300,\"hidden_size\":96,\"intermediate_size\":256,\"num_hidden_layers\":3"

static dart_status parse(const char *text, dart_model_config *config)
{
    return model_config_parse(text, strlen(text), "text", &report, config);
}

static void assert_reported(const char *wanted)
{
    char text[512];
    base_report_copy(&report, text, sizeof text);
    if (strstr(text, wanted) == NULL) fail_msg("no \"%s\" in \"%s\"", wanted, text);
}

static void counts_what_the_paper_counts(void **state)
{
    (void)state;
    static const struct {
        const char *name, *other;
        uint64_t count;
    } cases[] = {
        {"dart-130m", "dart-133m", 132699072},     {"dart-370m", "dart-378m", 378223104},
        {"dart-780m", "dart-795m", 794952960},     {"mamba2-130m", "mamba2-129m", 128989632},
        {"mamba2-370m", "mamba2-368m", 368346624}, {"mamba2-780m", "mamba2-780m", 780161280},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dart_model_config config, other;
        assert_int_equal(model_config_preset(cases[i].name, &report, &config), DART_OK);
        assert_int_equal(model_config_preset(cases[i].other, &report, &other), DART_OK);
        assert_memory_equal(&config, &other, sizeof config);
        assert_int_equal(model_config_check(&config, DART_INTERNAL, "preset", &report), DART_OK);
        assert_true(model_config_count(&config) == cases[i].count);
        if (config.sma) {
            config.sma = false; /* what is left is Mamba-2 */
            assert_true(model_config_count(&config) == cases[i + 3].count);
        }
    }
    size_t names = 0;
    while (model_config_preset_name(names) != NULL) names++;
    assert_int_equal(names, COUNT_OF(cases));
    dart_model_config config;
    assert_int_equal(model_config_preset("dart-1b", &report, &config), DART_INVALID_ARGUMENT);
}

static void reads_defaults(void **state)
{
    (void)state;
    dart_model_config m;
    assert_int_equal(parse("{" BASE ",\"n_groups\":2,\"time_step_min\":\"any\",\"dtype\":[{}]}", &m), DART_OK);
    assert_true(m.sma);
    assert_int_equal(m.layers, 3);
    assert_int_equal(m.V, 300);
    assert_int_equal(m.W, 96);
    assert_int_equal(m.H, 6);
    assert_int_equal(m.P, 32);
    assert_int_equal(m.N, 64);
    assert_int_equal(m.G, 2);
    assert_int_equal(m.K, 4);
    assert_int_equal(m.S, 256);
    assert_true(m.eps == 1e-5f && m.sma_eps == 1e-5f);
    assert_true(m.dt_min == 0 && m.dt_max == 0);
    assert_false(m.tied);
    assert_false(m.no_conv_bias);
    assert_int_equal(model_config_inner(&m), 192);
    assert_int_equal(model_config_in_proj(&m), 2 * 192 + 2 * 2 * 64 + 6);
    assert_int_equal(model_config_conv(&m), 192 + 2 * 2 * 64);
    assert_int_equal(model_config_sma_conv(&m), 2 * (64 + 32));
    assert_int_equal(model_config_sma_proj(&m), 200);
}

static void reads_every_spelling_of_the_limits(void **state)
{
    (void)state;
    static const struct {
        const char *limits;
        float low, high; /* high 0: none */
        dart_status status;
    } cases[] = {
        {"[0.0,Infinity]", 0, 0, DART_OK},
        {"[ 0 , Infinity ]", 0, 0, DART_OK},
        {"[0.0,{\"__float__\":\"Infinity\"}]", 0, 0, DART_OK},
        {"null", 0, 0, DART_OK},
        {"[0.001,0.1]", 0.001f, 0.1f, DART_OK},
        {"[0,1]", 0, 1, DART_OK},
        {"[1,1]", 1, 1, DART_OK},
        {"[0,0]", 0, 0, DART_BAD_DATA},
        {"[0.1,0.01]", 0, 0, DART_BAD_DATA},
        {"[-1,1]", 0, 0, DART_BAD_DATA},
        {"[-Infinity,Infinity]", 0, 0, DART_BAD_DATA},
        {"[0,-Infinity]", 0, 0, DART_BAD_DATA},
        {"[0,NaN]", 0, 0, DART_BAD_DATA},
        {"[NaN,1]", 0, 0, DART_BAD_DATA},
        {"[Infinity,Infinity]", 0, 0, DART_BAD_DATA},
        {"[0,1e300]", 0, 0, DART_BAD_DATA},
        {"[0,1e-300]", 0, 0, DART_BAD_DATA},
        {"[0,1e999]", 0, 0, DART_BAD_DATA},
        {"[0]", 0, 0, DART_BAD_DATA},
        {"[0,1,2]", 0, 0, DART_BAD_DATA},
        {"[0,\"Infinity\"]", 0, 0, DART_BAD_DATA},
        {"[0,{\"__float__\":\"x\"}]", 0, 0, DART_BAD_DATA},
        {"[0,{\"__float__\":1}]", 0, 0, DART_BAD_DATA},
        {"[0,{}]", 0, 0, DART_BAD_DATA},
        {"Infinity", 0, 0, DART_BAD_DATA},
        {"{}", 0, 0, DART_BAD_DATA},
        {"[0,+Infinity]", 0, 0, DART_BAD_DATA},
        {"[0,xInfinity]", 0, 0, DART_BAD_DATA},
        {"[0,Infinityx]", 0, 0, DART_BAD_DATA},
        {"[0,1Infinity]", 0, 0, DART_BAD_DATA},
        {"[0,--Infinity]", 0, 0, DART_BAD_DATA},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[512];
        dart_model_config m;
        snprintf(text, sizeof text, "{" BASE ",\"n_groups\":1,\"a\\\"Infinity\":\"NaN\\\\\",\"time_step_limit\":%s}",
                 cases[i].limits);
        const dart_status status = parse(text, &m);
        if (status != cases[i].status) fail_msg("status %d for %s", (int)status, cases[i].limits);
        if (status == DART_OK) assert_true(m.dt_min == cases[i].low && m.dt_max == cases[i].high);
    }
}

static void rejects_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        dart_status status;
        const char *says;
    } cases[] = {
        {"", DART_BAD_DATA, "line"},
        {"[]", DART_BAD_DATA, "not a JSON object"},
        {"{", DART_BAD_DATA, "line 1"},
        {"{Infinity:1}", DART_BAD_DATA, "line 1"},
        {"{" BASE ",\"n_groups\":1} x", DART_BAD_DATA, "line 1"},
        {"{" BASE ",\"n_groups\":1,\"n_groups\":1}", DART_BAD_DATA, "duplicate"},
        {"{" BASE ",\"n_groups\":1,\"a\":\"\xFF\"}", DART_BAD_DATA, "unable to decode"},
        {"{" BASE "}", DART_BAD_DATA, "n_groups is missing"},
        {"{" BASE ",\"n_groups\":null}", DART_BAD_DATA, "n_groups is missing"},
        {"{" BASE ",\"n_groups\":0}", DART_BAD_DATA, "n_groups is 0, allowed are 1 to 65536"},
        {"{" BASE ",\"n_groups\":-1}", DART_BAD_DATA, "n_groups is -1, allowed are 1 to 65536"},
        {"{" BASE ",\"n_groups\":4294967297}", DART_BAD_DATA, "n_groups is 4294967297"},
        {"{" BASE ",\"n_groups\":99999999999999999999}", DART_BAD_DATA, "line 1"},
        {"{" BASE ",\"n_groups\":1.0}", DART_BAD_DATA, "n_groups is not an integer"},
        {"{" BASE ",\"n_groups\":\"1\"}", DART_BAD_DATA, "n_groups is not an integer"},
        {"{" BASE ",\"n_groups\":Infinity}", DART_BAD_DATA, "n_groups is not an integer"},
        {"{" BASE ",\"n_groups\":4}", DART_BAD_DATA, "n_groups 4 does not divide num_heads 6"},
        {"{" BASE ",\"n_groups\":1,\"expand\":3}", DART_BAD_DATA, "expand x hidden_size = 3 x 96"},
        {"{" BASE ",\"n_groups\":1,\"expand\":17}", DART_BAD_DATA, "expand is 17"},
        {"{" BASE ",\"n_groups\":1,\"conv_kernel\":1}", DART_BAD_DATA, "conv_kernel is 1, allowed are 2 to 8"},
        {"{" BASE ",\"n_groups\":1,\"conv_kernel\":9}", DART_BAD_DATA, "conv_kernel is 9"},
        {"{" BASE ",\"n_groups\":1,\"chunk_size\":0}", DART_BAD_DATA, "chunk_size is 0"},
        {"{" BASE ",\"n_groups\":1,\"layer_norm_epsilon\":0}", DART_BAD_DATA, "layer_norm_epsilon is 0"},
        {"{" BASE ",\"n_groups\":1,\"layer_norm_epsilon\":-1e-5}", DART_BAD_DATA, "layer_norm_epsilon is -1e-05"},
        {"{" BASE ",\"n_groups\":1,\"layer_norm_epsilon\":NaN}", DART_BAD_DATA, "layer_norm_epsilon is nan"},
        {"{" BASE ",\"n_groups\":1,\"layer_norm_epsilon\":\"1e-5\"}", DART_BAD_DATA,
         "layer_norm_epsilon is not a number"},
        {"{" BASE ",\"n_groups\":1,\"sma_norm_epsilon\":Infinity}", DART_BAD_DATA, "sma_norm_epsilon is inf"},
        {"{" BASE ",\"n_groups\":1,\"tie_word_embeddings\":1}", DART_BAD_DATA, "tie_word_embeddings is neither"},
        {"{" BASE ",\"n_groups\":1,\"use_bias\":true}", DART_UNSUPPORTED, "use_bias is true"},
        {"{" BASE ",\"n_groups\":1,\"sma_independent_c\":1}", DART_BAD_DATA, "sma_independent_c is neither"},
        {"{\"model_type\":\"mamba2\",\"vocab_size\":3,\"hidden_size\":4,\"state_size\":4,\"num_heads\":2,\"head_dim\":4,"
         "\"num_hidden_layers\":1,\"n_groups\":1,\"sma_independent_c\":true}",
         DART_BAD_DATA, "sma_independent_c is for models of type dart"},
        {"{" BASE ",\"n_groups\":1,\"rms_norm\":false}", DART_UNSUPPORTED, "rms_norm is false"},
        {"{" BASE ",\"n_groups\":1,\"hidden_act\":\"ge\\u001blu\"}", DART_UNSUPPORTED, "hidden_act is ge?lu"},
        {"{\"model_type\":\"gpt2\"}", DART_UNSUPPORTED, "model_type is gpt2"},
        {"{\"model_type\":\"a\\nb\"}", DART_UNSUPPORTED, "model_type is a text of several lines or columns"},
        {"{\"model_type\":\"llama\"}", DART_BAD_DATA, "vocab_size is missing"},
        {"{" LLAMA ",\"num_attention_heads\":0}", DART_BAD_DATA, "num_attention_heads is 0"},
        {"{" LLAMA ",\"num_attention_heads\":97}", DART_BAD_DATA, "hidden_size 96 is below"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"num_key_value_heads\":4}", DART_BAD_DATA, "num_key_value_heads 4 does not divide"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"head_dim\":3}", DART_BAD_DATA, "head_dim 3 is odd"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"head_dim\":130}", DART_BAD_DATA, "head_dim is 130"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"rope_theta\":1}", DART_BAD_DATA, "rope_theta is 1"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"rope_theta\":\"1e4\"}", DART_BAD_DATA, "rope_theta is not a number"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"rms_norm_eps\":0}", DART_BAD_DATA, "rms_norm_eps is 0"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"rope_scaling\":{\"rope_type\":\"llama3\"}}", DART_UNSUPPORTED, "rope_scaling is of type llama3"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"rope_scaling\":{\"factor\":2}}", DART_UNSUPPORTED, "rope_scaling is of type"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"rope_parameters\":{\"rope_type\":\"yarn\"}}", DART_UNSUPPORTED, "rope_parameters is of type yarn"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"attention_bias\":true}", DART_UNSUPPORTED, "attention_bias is true"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"mlp_bias\":true}", DART_UNSUPPORTED, "mlp_bias is true"},
        {"{" LLAMA ",\"num_attention_heads\":6,\"hidden_act\":\"gelu\"}", DART_UNSUPPORTED, "hidden_act is gelu"},
        {"{" NEOX ",\"num_attention_heads\":6,\"hidden_act\":\"silu\"}", DART_UNSUPPORTED, "hidden_act is silu"},
        {"{" NEOX ",\"num_attention_heads\":6,\"attention_bias\":false}", DART_UNSUPPORTED, "attention_bias is false"},
        {"{" NEOX ",\"num_attention_heads\":7}", DART_BAD_DATA, "num_attention_heads 7 does not divide hidden_size 96"},
        {"{" NEOX ",\"num_attention_heads\":8}", DART_BAD_DATA, "leaves 3 rotary elements of 12"},
        {"{" NEOX ",\"num_attention_heads\":6,\"rotary_pct\":0}", DART_BAD_DATA, "rotary_pct is 0"},
        {"{" NEOX ",\"num_attention_heads\":6,\"rotary_emb_base\":1}", DART_BAD_DATA, "rotary_emb_base is 1"},
        {"{\"model_type\":7}", DART_UNSUPPORTED, "model_type is not a string"},
        {"{}", DART_BAD_DATA, "model_type is missing"},
        {"{\"model_type\":\"mamba2\"}", DART_BAD_DATA, "vocab_size is missing"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dart_model_config m;
        memset(&m, 0x5A, sizeof m);
        const dart_status status = parse(cases[i].text, &m);
        if (status != cases[i].status) fail_msg("status %d for %s", (int)status, cases[i].text);
        assert_reported(cases[i].says);
        assert_int_equal(m.V, 0x5A5A5A5A); /* untouched */
    }
    dart_model_config m;
    assert_int_equal(
        parse("{" BASE ",\"n_groups\":1,\"hidden_act\":\"swish\",\"use_conv_bias\":false,\"rms_norm\":true}", &m),
        DART_OK);
    assert_true(m.no_conv_bias);
    enum { DEPTH = 1000000 };
    char *deep = malloc(DEPTH);
    assert_non_null(deep);
    memset(deep, '[', DEPTH);
    assert_int_equal(model_config_parse(deep, DEPTH, "deep", &report, &m), DART_BAD_DATA);
    assert_int_equal(model_config_parse(deep, SIZE_MAX / 8, "long", &report, &m), DART_BAD_DATA);
    free(deep);
}

/* jansson quotes the place where it gives up, and some texts of ours quote values. */
static void keeps_controls_from_the_terminal(void **state)
{
    (void)state;
    static const char *const bad[] = {"\x1b", "\x01", "\r", "\x7f", "\xC2\x80", "\xC2\x9B", "\xC2\x9F", "\x9B", "\xC2", "\xE2\x80", "\xFF"};
    static const char *const texts[] = {"{\"a\":%s[31m}", "{\"a\":\"%s[31m\",}", "{\"a%s\":1,\"a%s\":1}", "%s[31m",
                                        "{\"model_type\":\"%s[31m\"}",
                                        ("{" BASE ",\"n_groups\":1,\"hidden_act\":\"%s[31m\"}")};
    for (size_t t = 0; t < COUNT_OF(texts); t++)
        for (size_t b = 0; b < COUNT_OF(bad); b++) {
            char text[512], said[512];
            dart_model_config m;
            snprintf(text, sizeof text, texts[t], bad[b], bad[b]);
            assert_int_not_equal(parse(text, &m), DART_OK);
            base_report_copy(&report, said, sizeof said);
            assert_true(strlen(said) > 0);
            if (base_has_controls(said)) fail_msg("control characters: text %zu, character %zu", t, b);
        }
    /* Escaped in the file, or in its name. */
    dart_model_config m;
    assert_int_equal(parse("{\"model_type\":\"\\u009b\\u001b\\u007f\\u00e9\"}", &m), DART_UNSUPPORTED);
    assert_reported("model_type is ???\xC3\xA9, supported");
    assert_int_equal(model_config_load("no\x1b[31m such", &report, &m), DART_IO);
    assert_reported("no?[31m such");
}

static void rejects_every_prefix(void **state)
{
    (void)state;
    static const char text[] = "{" BASE ",\"n_groups\":1,\"time_step_limit\":[0.0,Infinity]}";
    dart_model_config m;
    assert_int_equal(parse(text, &m), DART_OK);
    for (size_t length = 0; length + 1 < sizeof text; length++) {
        char *prefix = malloc(length + 1);
        assert_non_null(prefix);
        memcpy(prefix + 1, text, length);
        assert_int_equal(model_config_parse(prefix + 1, length, "prefix", &report, &m), DART_BAD_DATA);
        free(prefix);
    }
}

static void lists_parameters_as_the_fixtures_have_them(void **state)
{
    (void)state;
    static const char *const folders[] = {DART_TEST_DATA "/hf-mamba2", DART_TEST_DATA "/mqar-mamba2",
                                          DART_TEST_DATA "/mqar-dart"};
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        dart_model_config m;
        safetensors *file;
        uint64_t elements = 0;
        uint32_t parameters = 0;
        model_parameter p;
        assert_int_equal(model_config_load(folders[i], &report, &m), DART_OK);
        assert_true(m.sma == (i == 2));
        assert_int_equal(m.S, i == 0 ? 32 : 16);
        assert_true(m.tied == (i == 0) && m.dt_min == 0 && m.dt_max == 0);
        assert_int_equal(safetensors_open(folders[i], &report, &file), DART_OK);
        warnings[0] = '\0';
        assert_int_equal(model_weights_check(&m, file, false, NULL, &report), DART_OK);
        assert_string_equal(warnings, "");
        while (model_config_parameter(&m, parameters, &p)) parameters++;
        assert_int_equal(parameters, safetensors_count(file));
        for (size_t t = 0; t < safetensors_count(file); t++) elements += safetensors_at(file, t)->elements;
        assert_true(model_config_count(&m) == elements);
        safetensors_close(&file);
    }
}

/* As Hugging Face writes it, in both of its spellings, and what it leaves out. */
static void reads_transformers(void **state)
{
    (void)state;
    dart_model_config m;
    model_parameter p;
    uint32_t count = 0;
    assert_int_equal(parse("{" LLAMA ",\"num_attention_heads\":6}", &m), DART_OK);
    assert_true(m.transformer && !m.sma && !m.tied && m.eps == 1e-6f && m.base == 10000);
    assert_int_equal(m.H, 6);
    assert_int_equal(m.G, 6);
    assert_int_equal(m.P, 16);
    assert_int_equal(m.F, 256);
    assert_int_equal(m.N + m.K + m.S, 0);
    assert_int_equal(parse("{" LLAMA ",\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":32,\"rms_norm_eps\":1e-5,"
                           "\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"default\"},\"rope_scaling\":null,"
                           "\"tie_word_embeddings\":true,\"attention_bias\":false}",
                           &m),
                     DART_OK);
    assert_true(m.tied && m.eps == 1e-5f && m.base == 500000);
    assert_int_equal(m.G, 2);
    assert_int_equal(m.P, 32);
    assert_int_equal(model_config_qkv(&m), (6 + 2 * 2) * 32);
    for (; model_config_parameter(&m, count, &p); count++)
        if (p.role == MODEL_K_PROJ && p.layer == 2) assert_string_equal(p.name, "model.layers.2.self_attn.k_proj.weight");
    assert_int_equal(count, 2 + 3 * 9);
    assert_int_equal(model_config_count(&m), 300 * 96 + 96 + 3 * (2 * 96 + 96 * 32 * (6 + 2 + 2 + 6) + 3 * 96 * 256));
    m.sma = true;
    assert_int_equal(model_config_check(&m, DART_INVALID_ARGUMENT, "m", &report), DART_INVALID_ARGUMENT);
}

static void reads_neox(void **state)
{
    (void)state;
    dart_model_config m;
    model_parameter p;
    uint32_t count = 0;
    uint64_t together;
    assert_int_equal(parse("{" NEOX ",\"num_attention_heads\":6}", &m), DART_OK);
    assert_true(m.transformer && m.neox && !m.sequential && !m.gelu_tanh && !m.tied && m.eps == 1e-5f && m.base == 10000);
    assert_int_equal(m.G, 6);
    assert_int_equal(m.P, 16);
    assert_int_equal(m.R, 4);
    for (; model_config_parameter(&m, count, &p); count++) {
        if (p.role != MODEL_K_PROJ || p.layer != 2) continue;
        assert_string_equal(p.name, "gpt_neox.layers.2.attention.query_key_value.weight");
        assert_int_equal(model_parameter_place(&p, 0, &together), 16 * 96);
        assert_int_equal(together, 16 * 96);
        assert_int_equal(model_parameter_place(&p, 5 * 16 * 96 + 7, &together), (5 * 3 + 1) * 16 * 96 + 7);
        assert_int_equal(together, 16 * 96 - 7);
    }
    assert_int_equal(count, 4 + 3 * 16);
    assert_int_equal(model_config_count(&m), 2 * 300 * 96 + 2 * 96 + 3 * (4 * 96 * 96 + 4 * 96 + 2 * 96 * 256 + 256 + 96 + 4 * 96));
    static const struct { const char *name; bool by_tanh; } forms[] = {{"gelu", false}, {"gelu_new", true}, {"gelu_fast", true}};
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        char text[512];
        snprintf(text, sizeof text, "{" NEOX ",\"num_attention_heads\":4,\"use_parallel_residual\":false,\"hidden_act\":\"%s\","
                                    "\"rope_parameters\":{\"rope_theta\":99,\"partial_rotary_factor\":0.5,\"rope_type\":\"default\"}}",
                 forms[i].name);
        assert_int_equal(parse(text, &m), DART_OK);
        assert_true(m.sequential && m.gelu_tanh == forms[i].by_tanh && m.base == 99);
        assert_int_equal(m.R, 12);
    }
    assert_int_equal(model_config_write(&m, ".", &report), DART_UNSUPPORTED);
}

static void skips_convolution_biases(void **state)
{
    (void)state;
    dart_model_config m;
    model_parameter p;
    uint32_t roles[MODEL_ROLE_COUNT] = {0}, count = 0;
    assert_int_equal(model_config_preset("dart-130m", &report, &m), DART_OK);
    m.no_conv_bias = true;
    m.tied = false;
    for (; model_config_parameter(&m, count, &p); count++) roles[p.role]++;
    assert_int_equal(count, 3 + 24 * 10);
    assert_int_equal(roles[MODEL_CONV_BIAS] + roles[MODEL_SMA_CONV_BIAS], 0);
    assert_int_equal(roles[MODEL_HEAD], 1);
    assert_int_equal(roles[MODEL_SMA_CONV_WEIGHT], 24);
    assert_int_equal(p.role, MODEL_HEAD);
    assert_false(model_config_parameter(&m, UINT32_MAX, &p));
    m.independent_c = true;
    assert_int_equal(model_config_sma_conv(&m), 128 + 64 + 128);
    assert_int_equal(model_config_sma_proj(&m), 328);
    m.dt_max = NAN;
    assert_int_equal(model_config_check(&m, DART_INVALID_ARGUMENT, "m", &report), DART_INVALID_ARGUMENT);
}

/* A checkpoint in memory, one tensor a parameter of a very small DART, to be spoilt. */
enum { SMALL = 17 };
static dart_model_config small_config;
static safetensors_tensor small[SMALL];
static char small_names[SMALL][64];
static float numbers[64];

static void make_small(void)
{
    model_parameter p;
    uint32_t i = 0;
    memset(numbers, 0, sizeof numbers);
    small_config = (dart_model_config){.sma = true,
                                  .layers = 1,
                                  .V = 3,
                                  .W = 2,
                                  .H = 2,
                                  .P = 2,
                                  .N = 1,
                                  .G = 1,
                                  .K = 2,
                                  .S = 4,
                                  .eps = 1e-5f,
                                  .sma_eps = 1e-5f,
                                  .tied = true};
    assert_int_equal(model_config_check(&small_config, DART_INTERNAL, "small", &report), DART_OK);
    for (; model_config_parameter(&small_config, i, &p); i++) {
        assert_true(i < SMALL && p.elements <= COUNT_OF(numbers));
        memcpy(small_names[i], p.name, sizeof p.name);
        small[i] =
            (safetensors_tensor){.name = small_names[i], .dtype = SAFETENSORS_F32, .rank = p.rank, .data = numbers};
        memcpy(small[i].shape, p.shape, sizeof p.shape);
    }
    assert_int_equal(i, 14);
}

static dart_status check_small(uint32_t count, bool skip_scan)
{
    static const char path[] = "unit_config.scratch.safetensors";
    safetensors *file;
    warnings[0] = '\0';
    assert_int_equal(safetensors_write(path, small, count, &report), DART_OK);
    assert_int_equal(safetensors_open(path, &report, &file), DART_OK);
    const dart_status status = model_weights_check(&small_config, file, skip_scan, NULL, &report);
    safetensors_close(&file);
    remove(path);
    return status;
}

static void checks_checkpoints(void **state)
{
    (void)state;
    make_small();
    assert_int_equal(check_small(14, false), DART_OK);
    small[0].name = "backbone.embedding.weight"; /* the original code's spelling */
    assert_int_equal(check_small(14, false), DART_OK);
    assert_string_equal(warnings, "");
    small[14] = (safetensors_tensor){
        .name = "lm_head.weight", .dtype = SAFETENSORS_BF16, .rank = 1, .shape = {1}, .data = numbers};
    assert_int_equal(check_small(15, false), DART_OK);
    assert_string_equal(warnings, "tensor lm_head.weight is no parameter of this model and is ignored\n");

    assert_int_equal(check_small(13, false), DART_BAD_DATA);
    assert_reported("tensor backbone.norm_f.weight of shape [2] is missing");
    small[13].dtype = SAFETENSORS_I32;
    assert_int_equal(check_small(14, false), DART_BAD_DATA);
    assert_reported("backbone.norm_f.weight has dtype I32");
    small[13].dtype = SAFETENSORS_BF16;
    assert_int_equal(check_small(14, false), DART_OK);
    small[2].shape[0]++;
    assert_int_equal(check_small(14, false), DART_BAD_DATA);
    assert_reported("backbone.layers.0.mixer.in_proj.weight has shape [13, 2], the configuration asks for [12, 2]");
    small[2].shape[0]--;
    small[3].rank = 2;
    assert_int_equal(check_small(14, false), DART_BAD_DATA);
    assert_reported("backbone.layers.0.mixer.conv1d.weight has shape [6, 1], the configuration asks for [6, 1, 2]");
}

static void finds_numbers_that_are_none(void **state)
{
    (void)state;
    static float bad32[6];
    static uint16_t bad16[6];
    static const struct {
        safetensors_dtype dtype;
        uint32_t bits;
        const char *says; /* NULL: finite */
    } cases[] = {
        {SAFETENSORS_F32, 0x7F800000u, "an infinite value at [2, 1] (element 5)"},
        {SAFETENSORS_F32, 0xFF800000u, "an infinite value"},
        {SAFETENSORS_F32, 0x7F800001u, "NaN at [2, 1]"},
        {SAFETENSORS_F32, 0x7F7FFFFFu, NULL},
        {SAFETENSORS_F16, 0xFC00u, "an infinite value"},
        {SAFETENSORS_F16, 0x7E00u, "NaN"},
        {SAFETENSORS_F16, 0x7BFFu, NULL},
        {SAFETENSORS_BF16, 0x7F80u, "an infinite value"},
        {SAFETENSORS_BF16, 0xFFFFu, "NaN"},
        {SAFETENSORS_BF16, 0x7F7Fu, NULL},
    };
    make_small();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const uint16_t half = (uint16_t)cases[i].bits;
        memcpy(&bad32[5], &cases[i].bits, sizeof bad32[5]);
        memcpy(&bad16[5], &half, sizeof half);
        small[0].dtype = cases[i].dtype;
        small[0].data = cases[i].dtype == SAFETENSORS_F32 ? (const void *)bad32 : (const void *)bad16;
        assert_int_equal(check_small(14, true), DART_OK);
        assert_int_equal(check_small(14, false), cases[i].says != NULL ? DART_BAD_DATA : DART_OK);
        if (cases[i].says != NULL) assert_reported(cases[i].says);
    }
}

/* config.json of mamba2-130m as Mamba-2's own code writes it. */
#define ORIGINAL \
    "\"d_model\":768,\"n_layer\":24,\"vocab_size\":50277,\"rms_norm\":true,\"residual_in_fp32\":true,\"fused_add_norm\":true," \
    "\"pad_vocab_size_multiple\":16"

static void reads_the_original_code_s_files(void **state)
{
    (void)state;
    dart_model_config m, preset;
    assert_int_equal(parse("{" ORIGINAL ",\"d_intermediate\":0,\"attn_layer_idx\":[],\"attn_cfg\":{},\"tie_embeddings\":true,"
                           "\"ssm_cfg\":{\"layer\":\"Mamba2\"}}", &m), DART_OK);
    assert_int_equal(model_config_preset("mamba2-130m", &report, &preset), DART_OK);
    assert_memory_equal(&m, &preset, sizeof m);
    assert_int_equal(parse("{" ORIGINAL ",\"tie_embeddings\":false,\"ssm_cfg\":{\"layer\":\"Mamba2\",\"d_state\":64,\"d_conv\":3,\"expand\":4,"
                           "\"headdim\":32,\"chunk_size\":128,\"conv_bias\":false,\"dt_limit\":[0.001,0.1]}}", &m), DART_OK);
    assert_true(m.N == 64 && m.K == 3 && m.H == 96 && m.P == 32 && m.S == 128 && m.G == 1 && m.V == 50288);
    assert_true(!m.tied && m.no_conv_bias && !m.sma && m.dt_min == 0.001f && m.dt_max == 0.1f && m.eps == 1e-5f);
    static const struct {
        const char *rest, *says;
        dart_status status;
    } cases[] = {
        {"", "ssm_cfg.layer is Mamba1, where it is absent", DART_UNSUPPORTED},
        {",\"ssm_cfg\":{}", "ssm_cfg.layer is Mamba1", DART_UNSUPPORTED},
        {",\"ssm_cfg\":{\"layer\":\"Mamba3\"}", "ssm_cfg.layer is Mamba3", DART_UNSUPPORTED},
        {",\"ssm_cfg\":{\"layer\":2}", "ssm_cfg.layer is not a string", DART_UNSUPPORTED},
        {",\"ssm_cfg\":[]", "ssm_cfg is not an object", DART_BAD_DATA},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\",\"ngroups\":8}", "ngroups is 8, supported is 1", DART_UNSUPPORTED},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\",\"headdim\":7}", "no multiple of headdim 7", DART_BAD_DATA},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\",\"d_state\":1.5}", "d_state is not an integer", DART_BAD_DATA},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\",\"expand\":9223372036854775807}", "expand is 9223372036854775807", DART_BAD_DATA},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\",\"rmsnorm\":false}", "rmsnorm is false", DART_UNSUPPORTED},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\",\"bias\":true}", "bias is true", DART_UNSUPPORTED},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\",\"norm_before_gate\":1}", "norm_before_gate is neither", DART_BAD_DATA},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\",\"d_ssm\":512}", "d_ssm is not supported", DART_UNSUPPORTED},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\"},\"attn_layer_idx\":[9]", "attn_layer_idx", DART_UNSUPPORTED},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\"},\"d_intermediate\":1024", "d_intermediate", DART_UNSUPPORTED},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\"},\"tie_embeddings\":0", "tie_embeddings is neither", DART_BAD_DATA},
        {",\"ssm_cfg\":{\"layer\":\"Mamba2\",\"d_state\":512}", "state_size is 512", DART_BAD_DATA},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, "{" ORIGINAL "%s}", cases[i].rest);
        const dart_status status = parse(text, &m);
        if (status != cases[i].status) fail_msg("%s: %s", dart_status_name(status), cases[i].rest);
        assert_reported(cases[i].says);
    }
    assert_int_equal(parse("{\"d_model\":768,\"ssm_cfg\":{\"layer\":\"Mamba2\"}}", &m), DART_BAD_DATA);
    assert_reported("n_layer is missing");
}

static void says_what_cannot_be_opened(void **state)
{
    (void)state;
    dart_model_config m;
    assert_int_equal(model_config_load("no such folder", &report, &m), DART_IO);
    assert_int_equal(model_config_load(DART_TEST_DATA, &report, &m), DART_IO);
    assert_reported("config.json");
    assert_int_equal(model_config_load(DART_TEST_DATA "/mqar-dart/config.json", &report, &m), DART_OK);
    assert_int_equal(model_config_load(DART_TEST_DATA "/mqar-dart/test.safetensors", &report, &m), DART_BAD_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_what_the_paper_counts),
        cmocka_unit_test(reads_defaults),
        cmocka_unit_test(reads_every_spelling_of_the_limits),
        cmocka_unit_test(rejects_what_is_wrong),
        cmocka_unit_test(keeps_controls_from_the_terminal),
        cmocka_unit_test(rejects_every_prefix),
        cmocka_unit_test(lists_parameters_as_the_fixtures_have_them),
        cmocka_unit_test(reads_transformers), cmocka_unit_test(reads_neox),
        cmocka_unit_test(skips_convolution_biases),
        cmocka_unit_test(checks_checkpoints),
        cmocka_unit_test(finds_numbers_that_are_none),
        cmocka_unit_test(reads_the_original_code_s_files),
        cmocka_unit_test(says_what_cannot_be_opened),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
