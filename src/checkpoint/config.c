#include "config.h"

#include "config_reader.h"
#include "base/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const config_integer integers[] = {
    {"vocab_size", offsetof(dart_model_config, V), 1, 1u << 24, 0},
    {"hidden_size", offsetof(dart_model_config, W), 1, 1u << 16, 0},
    {"num_hidden_layers", offsetof(dart_model_config, layers), 1, 1024, 0},
    {"num_heads", offsetof(dart_model_config, H), 1, 1u << 16, 0},
    {"head_dim", offsetof(dart_model_config, P), 1, 256, 0},
    {"state_size", offsetof(dart_model_config, N), 1, 256, 0},
    {"n_groups", offsetof(dart_model_config, G), 1, 1u << 16, 0},
    {"conv_kernel", offsetof(dart_model_config, K), 2, 8, 4},
    {"chunk_size", offsetof(dart_model_config, S), 1, 1u << 16, 256},
}, transformer_integers[] = {
    {"vocab_size", offsetof(dart_model_config, V), 1, 1u << 24, 0},
    {"hidden_size", offsetof(dart_model_config, W), 1, 1u << 16, 0},
    {"num_hidden_layers", offsetof(dart_model_config, layers), 1, 1024, 0},
    {"intermediate_size", offsetof(dart_model_config, F), 1, 1u << 18, 0},
    {"num_attention_heads", offsetof(dart_model_config, H), 1, 1u << 12, 0},
};
/* Follow from others where a file leaves them out. */
static const config_integer groups_field = {.key = "num_key_value_heads", .at = offsetof(dart_model_config, G), .min = 1, .max = 1u << 12},
                            head_field = {.key = "head_dim", .at = offsetof(dart_model_config, P), .min = 2, .max = 128},
                            neox_head_field = {.key = "hidden_size / num_attention_heads", .at = offsetof(dart_model_config, P), .min = 2,
                                               .max = 256};
/* Follows from other sizes: a file that gives it must agree with them. */
static const config_integer expand_field = {.key = "expand", .min = 1, .max = 16, .standard = 2};

static uint32_t *integer_of(dart_model_config *config, const config_integer *field)
{
    return (uint32_t *)(void *)((char *)config + field->at);
}

/* ---- Checks --------------------------------------------------------------------------------------------------- */

static dart_status check_integers(const dart_model_config *config, const config_integer *fields, size_t count, dart_status fault,
                                  const char *name, base_report *report)
{
    dart_model_config copy = *config;
    for (size_t i = 0; i < count; i++) {
        const config_integer *f = &fields[i];
        const uint32_t value = *integer_of(&copy, f);
        if (value < f->min || value > f->max)
            return base_fail(report, fault, "%s: %s is %" PRIu32 ", allowed are %" PRIu32 " to %" PRIu32, name, f->key,
                             value, f->min, f->max);
    }
    return DART_OK;
}

static dart_status check_transformer(const dart_model_config *m, dart_status fault, const char *name, base_report *report)
{
    dart_status status = check_integers(m, transformer_integers, COUNT_OF(transformer_integers), fault, name, report);
    if (status == DART_OK) status = check_integers(m, &groups_field, 1, fault, name, report);
    if (status == DART_OK) status = check_integers(m, m->neox ? &neox_head_field : &head_field, 1, fault, name, report);
    if (status != DART_OK) return status;
    if (m->sma || m->independent_c || m->no_conv_bias)
        return base_fail(report, fault, "%s: a Transformer has neither state-memory attention nor convolutions", name);
    if (m->P % 2 != 0) return base_fail(report, fault, "%s: head_dim %" PRIu32 " is odd", name, m->P);
    if (!m->neox && (m->sequential || m->gelu_tanh || m->R != 0))
        return base_fail(report, fault, "%s: a residual, a GELU and rotary elements to choose are GPT-NeoX's", name);
    if (m->neox && m->G != m->H)
        return base_fail(report, fault, "%s: GPT-NeoX has as many keys as queries, not %" PRIu32 " to %" PRIu32, name, m->G, m->H);
    if (m->neox && (m->R < 2 || m->R % 2 != 0 || m->R > m->P))
        return base_fail(report, fault, "%s: rotary_pct leaves %" PRIu32 " rotary elements of %" PRIu32 ", allowed are even numbers from 2", name,
                         m->R, m->P);
    if (m->H % m->G != 0)
        return base_fail(report, fault, "%s: num_key_value_heads %" PRIu32 " does not divide num_attention_heads %" PRIu32, name, m->G, m->H);
    if (!(m->eps > 0 && m->eps <= 1))
        return base_fail(report, fault, "%s: %s is %g, allowed is above 0 to 1", name, m->neox ? "layer_norm_eps" : "rms_norm_eps", (double)m->eps);
    if (!(m->base > 1 && isfinite(m->base)))
        return base_fail(report, fault, "%s: %s is %g, allowed is above 1", name, m->neox ? "rotary_emb_base" : "rope_theta", (double)m->base);
    return DART_OK;
}

dart_status model_config_check(const dart_model_config *config, dart_status fault, const char *name, base_report *report)
{
    const dart_model_config *m = config;
    if (m->transformer) return check_transformer(m, fault, name, report);
    if (m->neox || m->sequential || m->gelu_tanh) return base_fail(report, fault, "%s: only a Transformer can be a GPT-NeoX", name);
    const dart_status status = check_integers(m, integers, COUNT_OF(integers), fault, name, report);
    if (status != DART_OK) return status;
    const uint32_t inner = m->H * m->P;
    if (inner % m->W != 0 || inner / m->W < expand_field.min || inner / m->W > expand_field.max)
        return base_fail(report, fault,
                         "%s: num_heads x head_dim = %" PRIu32 " x %" PRIu32 " is not hidden_size %" PRIu32
                         " times an integer of %" PRIu32 " to %" PRIu32,
                         name, m->H, m->P, m->W, expand_field.min, expand_field.max);
    if (m->independent_c && !m->sma) return base_fail(report, fault, "%s: sma_independent_c is for models of type dart", name);
    if (m->H % m->G != 0)
        return base_fail(report, fault, "%s: n_groups %" PRIu32 " does not divide num_heads %" PRIu32, name, m->G,
                         m->H);
    if (!(m->eps > 0 && m->eps <= 1))
        return base_fail(report, fault, "%s: layer_norm_epsilon is %g, allowed is above 0 to 1", name, (double)m->eps);
    if (!(m->sma_eps > 0 && m->sma_eps <= 1))
        return base_fail(report, fault, "%s: sma_norm_epsilon is %g, allowed is above 0 to 1", name,
                         (double)m->sma_eps);
    if (!(m->dt_min >= 0 && isfinite(m->dt_min) && isfinite(m->dt_max) && (m->dt_max == 0 || m->dt_max >= m->dt_min)))
        return base_fail(report, fault, "%s: time_step_limit is %g to %g, allowed is 0 <= first <= second", name,
                         (double)m->dt_min, (double)m->dt_max);
    return DART_OK;
}

/* ---- config.json ---------------------------------------------------------------------------------------------- */

static dart_status refuse_features(const config_reader *r, const config_feature *features, size_t count)
{
    const json_t *act = config_get(r, "hidden_act");
    const char *act_name = json_string_value(act);
    if (act != NULL && (act_name == NULL || (strcmp(act_name, "silu") != 0 && strcmp(act_name, "swish") != 0)))
        return base_fail(r->report, DART_UNSUPPORTED, "%s: hidden_act is %.48s, supported are silu and swish", r->name,
                         config_text(act));
    return config_check_features(r, features, count);
}

/* Sets the flags of the type: none for a Mamba-2. */
static dart_status read_type(const config_reader *r, dart_model_config *m)
{
    const json_t *type = config_get(r, "model_type");
    const char *name = json_string_value(type);
    if (type == NULL) return base_fail(r->report, DART_BAD_DATA, "%s: model_type is missing", r->name);
    m->sma = name != NULL && strcmp(name, "dart") == 0;
    m->neox = name != NULL && strcmp(name, "gpt_neox") == 0;
    m->transformer = m->neox || (name != NULL && strcmp(name, "llama") == 0);
    if (m->sma || m->transformer || (name != NULL && strcmp(name, "mamba2") == 0)) return DART_OK;
    return base_fail(r->report, DART_UNSUPPORTED, "%s: model_type is %.48s, supported are mamba2, dart, llama and gpt_neox", r->name,
                     config_text(type));
}

/* rope_theta under the key of older files, or what newer ones have: rope_parameters with it and rope_type default. */
static dart_status read_positions(const config_reader *r, const char *key, float *base)
{
    static const char *const places[] = {"rope_parameters", "rope_scaling"};
    dart_status status;
    double standard = 10000;
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const json_t *given = config_get(r, places[i]);
        if (given == NULL) continue;
        const json_t *type = json_object_get(given, "rope_type");
        if (type == NULL) type = json_object_get(given, "type");
        if ((type != NULL || i > 0) && strcmp(config_text(type), "default") != 0)
            return base_fail(r->report, DART_UNSUPPORTED, "%s: %s is of type %.48s, supported is default", r->name, places[i], config_text(type));
        const json_t *theta = json_object_get(given, "rope_theta");
        if (theta != NULL && !config_real_of(theta, &standard))
            return base_fail(r->report, DART_BAD_DATA, "%s: rope_theta is not a number", r->name);
    }
    TRY(config_read_real(r, key, standard, base));
fail:
    return status;
}

static dart_status read_transformer(const config_reader *r, dart_model_config *config)
{
    static const config_feature features[] = {{"attention_bias", true}, {"mlp_bias", true}};
    dart_status status;
    dart_model_config m = {.transformer = true};
    TRY(refuse_features(r, features, COUNT_OF(features)));
    for (size_t i = 0; i < COUNT_OF(transformer_integers); i++)
        TRY(config_read_integer(r, &transformer_integers[i], integer_of(&m, &transformer_integers[i])));
    config_integer groups = groups_field, head = head_field;
    groups.standard = m.H;
    head.standard = m.W / m.H;
    if (head.standard == 0) FAIL(r->report, DART_BAD_DATA, "%s: hidden_size %" PRIu32 " is below num_attention_heads %" PRIu32, r->name, m.W, m.H);
    TRY(config_read_integer(r, &groups, &m.G));
    TRY(config_read_integer(r, &head, &m.P));
    TRY(config_read_real(r, "rms_norm_eps", 1e-6, &m.eps));
    TRY(read_positions(r, "rope_theta", &m.base));
    TRY(config_read_boolean(r, "tie_word_embeddings", false, &m.tied));
    TRY(model_config_check(&m, DART_BAD_DATA, r->name, r->report));
    *config = m;
fail:
    return status;
}

/* The form of GELU. */
static dart_status read_gelu(const config_reader *r, bool *by_tanh)
{
    static const char *const names[] = {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"}; /* all but the first by tanh */
    const json_t *act = config_get(r, "hidden_act");
    *by_tanh = false;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (act != NULL && strcmp(config_text(act), names[i]) != 0) continue;
        *by_tanh = i > 0;
        return DART_OK;
    }
    return base_fail(r->report, DART_UNSUPPORTED, "%s: hidden_act is %.48s, supported are gelu, gelu_new, gelu_fast and gelu_pytorch_tanh", r->name,
                     config_text(act));
}

static dart_status read_neox(const config_reader *r, dart_model_config *config)
{
    static const config_feature features[] = {{"attention_bias", false}};
    dart_status status;
    dart_model_config m = {.transformer = true, .neox = true};
    bool parallel = true;
    double share = 0.25;
    float given;
    TRY(config_check_features(r, features, COUNT_OF(features)));
    for (size_t i = 0; i < COUNT_OF(transformer_integers); i++)
        TRY(config_read_integer(r, &transformer_integers[i], integer_of(&m, &transformer_integers[i])));
    m.G = m.H;
    if (m.W % m.H != 0)
        FAIL(r->report, DART_BAD_DATA, "%s: num_attention_heads %" PRIu32 " does not divide hidden_size %" PRIu32, r->name, m.H, m.W);
    m.P = m.W / m.H;
    TRY(read_gelu(r, &m.gelu_tanh));
    TRY(config_read_real(r, "layer_norm_eps", 1e-5, &m.eps));
    TRY(read_positions(r, "rotary_emb_base", &m.base));
    const json_t *newer = json_object_get(config_get(r, "rope_parameters"), "partial_rotary_factor");
    if (newer != NULL && !config_real_of(newer, &share)) FAIL(r->report, DART_BAD_DATA, "%s: partial_rotary_factor is not a number", r->name);
    TRY(config_read_real(r, "rotary_pct", share, &given));
    if (!(given > 0 && given <= 1)) FAIL(r->report, DART_BAD_DATA, "%s: rotary_pct is %g, allowed is above 0 to 1", r->name, (double)given);
    m.R = (uint32_t)((double)m.P * (double)given + 1e-4); /* the largest whole number, but for the rounding of the share */
    TRY(config_read_boolean(r, "use_parallel_residual", true, &parallel));
    m.sequential = !parallel;
    TRY(config_read_boolean(r, "tie_word_embeddings", false, &m.tied));
    TRY(model_config_check(&m, DART_BAD_DATA, r->name, r->report));
    *config = m;
fail:
    return status;
}

static dart_status read_config(const config_reader *r, dart_model_config *config)
{
    static const config_feature features[] = {{"use_bias", true}, {"rms_norm", false}};
    dart_status status;
    dart_model_config m = {0};
    uint32_t expand = 0;
    bool conv_bias = true;
    TRY(read_type(r, &m));
    if (m.neox) return read_neox(r, config);
    if (m.transformer) return read_transformer(r, config);
    TRY(refuse_features(r, features, COUNT_OF(features)));
    for (size_t i = 0; i < COUNT_OF(integers); i++) TRY(config_read_integer(r, &integers[i], integer_of(&m, &integers[i])));
    TRY(config_read_integer(r, &expand_field, &expand));
    TRY(config_read_real(r, "layer_norm_epsilon", 1e-5, &m.eps));
    TRY(config_read_real(r, "sma_norm_epsilon", 1e-5, &m.sma_eps));
    TRY(config_read_limits(r, &m.dt_min, &m.dt_max));
    TRY(config_read_boolean(r, "tie_word_embeddings", false, &m.tied));
    TRY(config_read_boolean(r, "use_conv_bias", true, &conv_bias));
    TRY(config_read_boolean(r, "sma_independent_c", false, &m.independent_c));
    m.no_conv_bias = !conv_bias;
    if (expand * m.W != m.H * m.P)
        FAIL(r->report, DART_BAD_DATA,
             "%s: expand x hidden_size = %" PRIu32 " x %" PRIu32 " differs from num_heads x head_dim = %" PRIu32 " x %" PRIu32,
             r->name, expand, m.W, m.H, m.P);
    TRY(model_config_check(&m, DART_BAD_DATA, r->name, r->report));
    *config = m;
fail:
    return status;
}

dart_status model_config_parse(const char *text, size_t bytes, const char *name, base_report *report,
                               dart_model_config *config)
{
    config_reader r = {.root = NULL};
    dart_status status = config_reader_open(text, bytes, name, report, &r);
    if (status == DART_OK) status = read_config(&r, config);
    config_reader_close(&r);
    return status;
}

dart_status model_config_load(const char *path, base_report *report, dart_model_config *config)
{
    dart_status status;
    file_map map = {NULL, 0};
    char *inner = file_is_folder(path) ? file_join(path, "config.json") : file_join("", path);
    if (inner == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory to open it", path);
    TRY(file_map_open(inner, report, &map));
    TRY(model_config_parse(map.bytes > 0 ? (const char *)map.data : "", (size_t)map.bytes, inner, report, config));
fail:
    file_map_close(&map);
    free(inner);
    return status;
}

/* The shortest text that reads as the same f32. */
static void real_text(float value, char text[24])
{
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, 24, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) return;
    }
}

/* As model_config_load reads it. */
static int mixer_text(const dart_model_config *config, char *text, size_t size)
{
    dart_model_config m = *config;
    char eps[24], sma_eps[24], low[24], high[24] = "Infinity";
    int used = snprintf(text, size, "{\n  \"model_type\": \"%s\",\n%s", m.sma ? "dart" : "mamba2",
                        m.independent_c ? "  \"sma_independent_c\": true,\n" : "");
    for (size_t i = 0; i < COUNT_OF(integers); i++)
        used += snprintf(text + used, size - (size_t)used, "  \"%s\": %" PRIu32 ",\n", integers[i].key, *integer_of(&m, &integers[i]));
    real_text(m.eps, eps);
    real_text(m.sma_eps, sma_eps);
    real_text(m.dt_min, low);
    if (m.dt_max > 0) real_text(m.dt_max, high);
    return used + snprintf(text + used, size - (size_t)used,
                           "  \"expand\": %" PRIu32 ",\n  \"layer_norm_epsilon\": %s,\n  \"sma_norm_epsilon\": %s,\n"
                           "  \"time_step_limit\": [%s, %s],\n  \"tie_word_embeddings\": %s,\n  \"use_conv_bias\": %s,\n"
                           "  \"use_bias\": false,\n  \"hidden_act\": \"silu\"\n}\n",
                           m.H * m.P / m.W, eps, sma_eps, low, high, m.tied ? "true" : "false", m.no_conv_bias ? "false" : "true");
}

static int transformer_text(const dart_model_config *config, char *text, size_t size)
{
    dart_model_config m = *config;
    char eps[24], base[24];
    int used = snprintf(text, size, "{\n  \"model_type\": \"llama\",\n");
    for (size_t i = 0; i < COUNT_OF(transformer_integers); i++)
        used += snprintf(text + used, size - (size_t)used, "  \"%s\": %" PRIu32 ",\n", transformer_integers[i].key,
                         *integer_of(&m, &transformer_integers[i]));
    real_text(m.eps, eps);
    real_text(m.base, base);
    return used + snprintf(text + used, size - (size_t)used,
                           "  \"num_key_value_heads\": %" PRIu32 ",\n  \"head_dim\": %" PRIu32 ",\n  \"rms_norm_eps\": %s,\n"
                           "  \"rope_theta\": %s,\n  \"tie_word_embeddings\": %s,\n  \"attention_bias\": false,\n"
                           "  \"mlp_bias\": false,\n  \"hidden_act\": \"silu\"\n}\n",
                           m.G, m.P, eps, base, m.tied ? "true" : "false");
}

dart_status model_config_write(const dart_model_config *config, const char *folder, base_report *report)
{
    dart_status status;
    file_writer *file = NULL;
    char text[1024];
    if (config->neox) return base_fail(report, DART_UNSUPPORTED, "%s: GPT-NeoX is read only", folder);
    const int used = config->transformer ? transformer_text(config, text, sizeof text) : mixer_text(config, text, sizeof text);
    char *path = file_join(folder, "config.json");
    if (path == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory to write config.json", folder);
    assert(used > 0 && (size_t)used < sizeof text);
    TRY(file_writer_open(path, report, &file));
    TRY(file_writer_append(file, text, (uint64_t)used));
    TRY(file_writer_close(&file));
fail:
    file_writer_destroy(&file);
    free(path);
    return status;
}
