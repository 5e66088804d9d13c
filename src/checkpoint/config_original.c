#include "config_original.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What Mamba2(d_model, **ssm_cfg) takes for keys that ssm_cfg leaves out. */
static const struct size_key {
    const char *key, *ours;
    json_int_t standard; /* 0: the key is required */
} model_keys[] = {{"d_model", "hidden_size", 0}, {"n_layer", "num_hidden_layers", 0}, {"vocab_size", NULL, 0}, {"pad_vocab_size_multiple", NULL, 8}},
  mixer_keys[] = {{"d_state", "state_size", 128}, {"d_conv", "conv_kernel", 4}, {"expand", "expand", 2}, {"headdim", "head_dim", 64},
                  {"ngroups", "n_groups", 1}, {"chunk_size", "chunk_size", 256}};
enum { D_MODEL, N_LAYER, VOCAB, PAD, MODEL_KEYS };
enum { D_STATE, D_CONV, EXPAND, HEADDIM, NGROUPS, CHUNK, MIXER_KEYS };
/* Far above what config.c allows, and products of two stay within 64 bits. */
#define MAX_SIZE ((json_int_t)1 << 30)

/* Settings of which one value is what this library computes; `standard` is the value where the key is absent. */
typedef struct only {
    const char *key;
    bool computed, standard;
} only;
static const only model_only[] = {{"rms_norm", true, true}};
static const only mixer_only[] = {{"bias", false, false}, {"rmsnorm", true, true}, {"norm_before_gate", false, false}, {"D_has_hdim", false, false}};

static json_t *get(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static dart_status read_sizes(const json_t *object, const struct size_key *keys, size_t count, const char *name, base_report *report,
                              json_int_t *sizes)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *value = get(object, keys[i].key);
        if (value == NULL && keys[i].standard == 0) return base_fail(report, DART_BAD_DATA, "%s: %s is missing", name, keys[i].key);
        if (value != NULL && !json_is_integer(value)) return base_fail(report, DART_BAD_DATA, "%s: %s is not an integer", name, keys[i].key);
        sizes[i] = value != NULL ? json_integer_value(value) : keys[i].standard;
        if (sizes[i] < 1 || sizes[i] > MAX_SIZE)
            return base_fail(report, DART_BAD_DATA, "%s: %s is %lld, allowed are 1 to %lld", name, keys[i].key,
                             sizes[i], MAX_SIZE);
    }
    return DART_OK;
}

static dart_status read_flag(const json_t *object, const char *key, bool standard, const char *name, base_report *report, bool *out)
{
    const json_t *value = get(object, key);
    if (value != NULL && !json_is_boolean(value)) return base_fail(report, DART_BAD_DATA, "%s: %s is neither true nor false", name, key);
    *out = value != NULL ? json_is_true(value) : standard;
    return DART_OK;
}

static dart_status refuse(const json_t *object, const only *settings, size_t count, const char *name, base_report *report)
{
    for (size_t i = 0; i < count; i++) {
        bool given = settings[i].standard;
        const dart_status status = read_flag(object, settings[i].key, settings[i].standard, name, report, &given);
        if (status != DART_OK) return status;
        if (given != settings[i].computed)
            return base_fail(report, DART_UNSUPPORTED, "%s: %s is %s, which is not supported", name, settings[i].key, given ? "true" : "false");
    }
    return DART_OK;
}

/* Parts of a model that is not made of Mamba-2 layers alone. */
static dart_status refuse_parts(const json_t *root, const json_t *mixer, const char *name, base_report *report)
{
    const json_t *layer = get(mixer, "layer"), *attention = get(root, "attn_layer_idx"), *mlp = get(root, "d_intermediate");
    const char *text = layer == NULL ? "Mamba1, where it is absent" : json_is_string(layer) ? json_string_value(layer) : "not a string";
    if (layer == NULL || strcmp(text, "Mamba2") != 0)
        return base_fail(report, DART_UNSUPPORTED, "%s: ssm_cfg.layer is %.48s, supported is Mamba2", name, text);
    if (attention != NULL && json_array_size(attention) > 0)
        return base_fail(report, DART_UNSUPPORTED, "%s: attn_layer_idx names layers, which are not supported", name);
    if (mlp != NULL && !(json_is_integer(mlp) && json_integer_value(mlp) == 0))
        return base_fail(report, DART_UNSUPPORTED, "%s: d_intermediate is not 0: layers of an MLP are not supported", name);
    if (get(mixer, "d_ssm") != NULL) return base_fail(report, DART_UNSUPPORTED, "%s: ssm_cfg.d_ssm is not supported", name);
    return DART_OK;
}

bool config_original_is(const json_t *root) { return get(root, "model_type") == NULL && get(root, "d_model") != NULL; }

dart_status config_original_translate(const json_t *root, const char *name, base_report *report, json_t **translated)
{
    dart_status status;
    json_int_t model[MODEL_KEYS], mixer[MIXER_KEYS];
    bool tied = true, conv_bias = true;
    const json_t *ssm = get(root, "ssm_cfg");
    json_t *made = NULL;
    if (ssm != NULL && !json_is_object(ssm)) FAIL(report, DART_BAD_DATA, "%s: ssm_cfg is not an object", name);
    TRY(refuse_parts(root, ssm, name, report));
    TRY(read_sizes(root, model_keys, MODEL_KEYS, name, report, model));
    TRY(read_sizes(ssm, mixer_keys, MIXER_KEYS, name, report, mixer));
    TRY(refuse(root, model_only, COUNT_OF(model_only), name, report));
    TRY(refuse(ssm, mixer_only, COUNT_OF(mixer_only), name, report));
    TRY(read_flag(root, "tie_embeddings", true, name, report, &tied));
    TRY(read_flag(ssm, "conv_bias", true, name, report, &conv_bias));
    /* Its gated norm takes each group for itself. */
    if (mixer[NGROUPS] != 1)
        FAIL(report, DART_UNSUPPORTED, "%s: ngroups is %lld, supported is 1", name, mixer[NGROUPS]);
    const json_int_t inner = mixer[EXPAND] * model[D_MODEL];
    if (inner % mixer[HEADDIM] != 0)
        FAIL(report, DART_BAD_DATA, "%s: expand x d_model = %lld is no multiple of headdim %lld", name, inner,
             mixer[HEADDIM]);
    const json_int_t vocabulary = (model[VOCAB] + model[PAD] - 1) / model[PAD] * model[PAD];
    made = json_pack("{s:s, s:I, s:I, s:f, s:b, s:b}", "model_type", "mamba2", "vocab_size", vocabulary, "num_heads", inner / mixer[HEADDIM],
                     "layer_norm_epsilon", 1e-5, "tie_word_embeddings", (int)tied, "use_conv_bias", (int)conv_bias);
    int failed = made == NULL;
    for (size_t i = 0; i < MODEL_KEYS && !failed; i++)
        if (model_keys[i].ours != NULL) failed = json_object_set_new(made, model_keys[i].ours, json_integer(model[i]));
    for (size_t i = 0; i < MIXER_KEYS && !failed; i++) failed = json_object_set_new(made, mixer_keys[i].ours, json_integer(mixer[i]));
    json_t *limits = get(ssm, "dt_limit");
    if (!failed && limits != NULL) failed = json_object_set(made, "time_step_limit", limits);
    if (failed) FAIL(report, DART_OUT_OF_MEMORY, "%s: no memory to read it", name);
    *translated = made;
    return DART_OK;
fail:
    json_decref(made);
    return status;
}
