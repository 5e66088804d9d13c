#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMA_PROJ_ALIGN 8u
#define ROW_ALIGN 16u
#define MAX_WARNINGS 8u
#define SHAPE_TEXT 256

uint32_t model_config_inner(const dart_model_config *config) { return config->H * config->P; }

uint32_t model_config_in_proj(const dart_model_config *config)
{
    return 2 * model_config_inner(config) + 2 * config->G * config->N + config->H;
}

uint32_t model_config_in_proj_row(const dart_model_config *config)
{
    return (uint32_t)base_round_up(model_config_in_proj(config), ROW_ALIGN);
}

uint32_t model_config_conv(const dart_model_config *config)
{
    return model_config_inner(config) + 2 * config->G * config->N;
}
uint32_t model_config_sma_conv(const dart_model_config *config)
{
    return config->G * (config->N + config->P + (config->independent_c ? config->N : 0));
}

uint32_t model_config_sma_proj(const dart_model_config *config)
{
    return (uint32_t)base_round_up(model_config_sma_conv(config) + 1, SMA_PROJ_ALIGN);
}

double model_config_work(const dart_model_config *c, uint32_t S, bool sma, double *context)
{
    const double W = c->W, I = (double)model_config_inner(c), memory = (double)model_config_memory(c), H = c->H;
    *context = 0;
    if (c->transformer) {
        *context = 4 * I;
        return 2 * (W * model_config_qkv(c) + I * W + (c->neox ? 2.0 : 3.0) * W * c->F);
    }
    double work = 2 * (W * model_config_in_proj_row(c) + I * W) + 4 * memory + S * (2.0 * c->G * c->N + 2 * H * c->P);
    if (sma) work += 2 * W * model_config_sma_proj(c);
    if (sma) *context = 4 * memory / S;
    return work;
}

uint64_t model_config_memory(const dart_model_config *config) { return (uint64_t)config->H * config->N * config->P; }

uint32_t model_config_tail(const dart_model_config *config) { return config->transformer ? 0 : config->K - 1; }
uint32_t model_config_mlp(const dart_model_config *config) { return (config->neox ? 1 : 2) * config->F; }
uint32_t model_config_qkv(const dart_model_config *config) { return (config->H + 2 * config->G) * config->P; }

enum { ALWAYS = 0, WITH_SMA = 1, WITH_CONV_BIAS = 2 };

typedef struct layer_entry {
    model_role role;
    unsigned when;
    const char *suffix;
} layer_entry;

static const layer_entry mixer_entries[] = {
    {MODEL_NORM, ALWAYS, "norm.weight"},
    {MODEL_IN_PROJ, ALWAYS, "mixer.in_proj.weight"},
    {MODEL_CONV_WEIGHT, ALWAYS, "mixer.conv1d.weight"},
    {MODEL_CONV_BIAS, WITH_CONV_BIAS, "mixer.conv1d.bias"},
    {MODEL_DT_BIAS, ALWAYS, "mixer.dt_bias"},
    {MODEL_A_LOG, ALWAYS, "mixer.A_log"},
    {MODEL_D, ALWAYS, "mixer.D"},
    {MODEL_MIXER_NORM, ALWAYS, "mixer.norm.weight"},
    {MODEL_OUT_PROJ, ALWAYS, "mixer.out_proj.weight"},
    {MODEL_SMA_PROJ, WITH_SMA, "mixer.sma_proj.weight"},
    {MODEL_SMA_CONV_WEIGHT, WITH_SMA, "mixer.sma_conv1d.weight"},
    {MODEL_SMA_CONV_BIAS, WITH_SMA | WITH_CONV_BIAS, "mixer.sma_conv1d.bias"},
}, transformer_entries[] = {
    {MODEL_NORM, ALWAYS, "input_layernorm.weight"},
    {MODEL_Q_PROJ, ALWAYS, "self_attn.q_proj.weight"},
    {MODEL_K_PROJ, ALWAYS, "self_attn.k_proj.weight"},
    {MODEL_V_PROJ, ALWAYS, "self_attn.v_proj.weight"},
    {MODEL_OUT_PROJ, ALWAYS, "self_attn.o_proj.weight"},
    {MODEL_MLP_NORM, ALWAYS, "post_attention_layernorm.weight"},
    {MODEL_GATE_PROJ, ALWAYS, "mlp.gate_proj.weight"},
    {MODEL_UP_PROJ, ALWAYS, "mlp.up_proj.weight"},
    {MODEL_DOWN_PROJ, ALWAYS, "mlp.down_proj.weight"},
}, neox_entries[] = {
    {MODEL_NORM, ALWAYS, "input_layernorm.weight"},
    {MODEL_NORM_BIAS, ALWAYS, "input_layernorm.bias"},
    {MODEL_Q_PROJ, ALWAYS, "attention.query_key_value.weight"},
    {MODEL_K_PROJ, ALWAYS, "attention.query_key_value.weight"},
    {MODEL_V_PROJ, ALWAYS, "attention.query_key_value.weight"},
    {MODEL_Q_BIAS, ALWAYS, "attention.query_key_value.bias"},
    {MODEL_K_BIAS, ALWAYS, "attention.query_key_value.bias"},
    {MODEL_V_BIAS, ALWAYS, "attention.query_key_value.bias"},
    {MODEL_OUT_PROJ, ALWAYS, "attention.dense.weight"},
    {MODEL_OUT_BIAS, ALWAYS, "attention.dense.bias"},
    {MODEL_MLP_NORM, ALWAYS, "post_attention_layernorm.weight"},
    {MODEL_MLP_NORM_BIAS, ALWAYS, "post_attention_layernorm.bias"},
    {MODEL_UP_PROJ, ALWAYS, "mlp.dense_h_to_4h.weight"},
    {MODEL_UP_BIAS, ALWAYS, "mlp.dense_h_to_4h.bias"},
    {MODEL_DOWN_PROJ, ALWAYS, "mlp.dense_4h_to_h.weight"},
    {MODEL_DOWN_BIAS, ALWAYS, "mlp.dense_4h_to_h.bias"},
};

/* Names in a kind of checkpoint. */
static const struct naming {
    const char *embedding, *layer, *norm, *norm_bias, *head; /* norm_bias NULL: none */
    const layer_entry *entries;
    size_t entries_count;
} mixer_naming = {"backbone.embeddings.weight", "backbone.layers", "backbone.norm_f.weight", NULL, "lm_head.weight", mixer_entries,
                  COUNT_OF(mixer_entries)},
  transformer_naming = {"model.embed_tokens.weight", "model.layers", "model.norm.weight", NULL, "lm_head.weight", transformer_entries,
                        COUNT_OF(transformer_entries)},
  neox_naming = {"gpt_neox.embed_in.weight", "gpt_neox.layers", "gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias",
                 "embed_out.weight", neox_entries, COUNT_OF(neox_entries)};

static const struct naming *naming_of(const dart_model_config *config)
{
    return config->neox ? &neox_naming : config->transformer ? &transformer_naming : &mixer_naming;
}

static bool is_present(const dart_model_config *config, const layer_entry *entry)
{
    if ((entry->when & WITH_SMA) != 0 && !config->sma) return false;
    return (entry->when & WITH_CONV_BIAS) == 0 || !config->no_conv_bias;
}

static void give_shape(model_parameter *p, uint32_t rank, uint64_t a, uint64_t b, uint64_t c)
{
    p->rank = rank;
    p->shape[0] = a;
    p->shape[1] = b;
    p->shape[2] = c;
    p->elements = a * b * c;
    p->parts = 1;
    p->part = 0;
    p->run = p->elements;
    p->rest = 0;
}

/* The heads of q, k and v take turns in one tensor of GPT-NeoX. */
static void take_turns(const dart_model_config *m, model_parameter *p, uint32_t part)
{
    if (!m->neox) return;
    p->parts = 3;
    p->part = part;
    p->run = p->elements / m->H;
}

uint64_t model_parameter_place(const model_parameter *parameter, uint64_t first, uint64_t *together)
{
    const uint64_t inside = first % parameter->run;
    *together = parameter->run - inside;
    return (first / parameter->run * parameter->parts + parameter->part) * parameter->run + inside;
}

static void describe(const dart_model_config *m, model_parameter *p)
{
    const uint32_t I = model_config_inner(m);
    switch (p->role) {
    case MODEL_EMBEDDING:
    case MODEL_HEAD: give_shape(p, 2, m->V, m->W, 1); break;
    case MODEL_NORM:
    case MODEL_FINAL_NORM: give_shape(p, 1, m->W, 1, 1); break;
    case MODEL_IN_PROJ:
        give_shape(p, 2, model_config_in_proj(m), m->W, 1);
        p->rest = m->H;
        break;
    case MODEL_CONV_WEIGHT: give_shape(p, 3, model_config_conv(m), 1, m->K); break;
    case MODEL_CONV_BIAS: give_shape(p, 1, model_config_conv(m), 1, 1); break;
    case MODEL_DT_BIAS:
    case MODEL_A_LOG:
    case MODEL_D: give_shape(p, 1, m->H, 1, 1); break;
    case MODEL_MIXER_NORM: give_shape(p, 1, I, 1, 1); break;
    case MODEL_OUT_PROJ: give_shape(p, 2, m->W, I, 1); break;
    case MODEL_SMA_PROJ:
        give_shape(p, 2, model_config_sma_proj(m), m->W, 1);
        p->rest = p->shape[0] - model_config_sma_conv(m);
        break;
    case MODEL_SMA_CONV_WEIGHT: give_shape(p, 3, model_config_sma_conv(m), 1, m->K); break;
    case MODEL_SMA_CONV_BIAS: give_shape(p, 1, model_config_sma_conv(m), 1, 1); break;
    case MODEL_Q_PROJ: give_shape(p, 2, I, m->W, 1); take_turns(m, p, 0); break;
    case MODEL_K_PROJ:
    case MODEL_V_PROJ: give_shape(p, 2, (uint64_t)m->G * m->P, m->W, 1); take_turns(m, p, p->role == MODEL_K_PROJ ? 1 : 2); break;
    case MODEL_Q_BIAS:
    case MODEL_K_BIAS:
    case MODEL_V_BIAS: give_shape(p, 1, I, 1, 1); take_turns(m, p, (uint32_t)(p->role - MODEL_Q_BIAS)); break;
    case MODEL_NORM_BIAS:
    case MODEL_OUT_BIAS:
    case MODEL_MLP_NORM_BIAS:
    case MODEL_DOWN_BIAS:
    case MODEL_FINAL_NORM_BIAS:
    case MODEL_MLP_NORM: give_shape(p, 1, m->W, 1, 1); break;
    case MODEL_UP_BIAS: give_shape(p, 1, m->F, 1, 1); break;
    case MODEL_GATE_PROJ:
    case MODEL_UP_PROJ: give_shape(p, 2, m->F, m->W, 1); break;
    case MODEL_DOWN_PROJ: give_shape(p, 2, m->W, m->F, 1); break;
    case MODEL_ROLE_COUNT: assert(false); break;
    }
}

bool model_config_parameter(const dart_model_config *config, uint32_t index, model_parameter *parameter)
{
    const struct naming *names = naming_of(config);
    model_parameter p = {.layer = 0};
    uint32_t per_layer = 0;
    for (size_t i = 0; i < names->entries_count; i++) per_layer += is_present(config, &names->entries[i]);
    const uint32_t inside = per_layer * config->layers, biases = names->norm_bias != NULL;
    if (index == 0) {
        p.role = MODEL_EMBEDDING;
        snprintf(p.name, sizeof p.name, "%s", names->embedding);
    } else if (index - 1 < inside) {
        uint32_t skip = (index - 1) % per_layer;
        size_t i = 0;
        p.layer = (index - 1) / per_layer;
        for (; skip > 0 || !is_present(config, &names->entries[i]); i++) skip -= is_present(config, &names->entries[i]);
        p.role = names->entries[i].role;
        snprintf(p.name, sizeof p.name, "%s.%" PRIu32 ".%s", names->layer, p.layer, names->entries[i].suffix);
    } else if (index - 1 == inside) {
        p.role = MODEL_FINAL_NORM;
        snprintf(p.name, sizeof p.name, "%s", names->norm);
    } else if (index - 2 == inside && biases > 0) {
        p.role = MODEL_FINAL_NORM_BIAS;
        snprintf(p.name, sizeof p.name, "%s", names->norm_bias);
    } else if (index - 2 == inside + biases && !config->tied) {
        p.role = MODEL_HEAD;
        snprintf(p.name, sizeof p.name, "%s", names->head);
    } else {
        return false;
    }
    describe(config, &p);
    *parameter = p;
    return true;
}

uint64_t model_config_count(const dart_model_config *config)
{
    uint64_t count = 0;
    model_parameter p;
    for (uint32_t i = 0; model_config_parameter(config, i, &p); i++) count += p.elements;
    return count;
}

/* ---- Checkpoints ---------------------------------------------------------------------------------------------- */

static bool is_float(const safetensors_tensor *t)
{
    return t->dtype == SAFETENSORS_F32 || t->dtype == SAFETENSORS_F16 || t->dtype == SAFETENSORS_BF16;
}

static const char *list_text(const uint64_t *list, uint32_t count, char text[SHAPE_TEXT])
{
    size_t used = 0;
    text[used++] = '[';
    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, SHAPE_TEXT - used, i > 0 ? ", %" PRIu64 : "%" PRIu64, list[i]);
    snprintf(text + used, SHAPE_TEXT - used, "]");
    return text;
}

/* The first element whose exponent is all ones. */
static bool find_not_finite(const safetensors_tensor *t, uint64_t *index, bool *is_nan)
{
    const uint8_t *data = t->data;
    if (t->dtype == SAFETENSORS_F32) {
        for (uint64_t i = 0; i < t->elements; i++) {
            uint32_t bits;
            memcpy(&bits, data + 4 * i, sizeof bits);
            if ((bits & 0x7F800000u) != 0x7F800000u) continue;
            *index = i;
            *is_nan = (bits & 0x007FFFFFu) != 0;
            return true;
        }
        return false;
    }
    const unsigned exponent = t->dtype == SAFETENSORS_F16 ? 0x7C00u : 0x7F80u;
    for (uint64_t i = 0; i < t->elements; i++) {
        uint16_t bits;
        memcpy(&bits, data + 2 * i, sizeof bits);
        if ((bits & exponent) != exponent) continue;
        *index = i;
        *is_nan = (bits & (0x7FFFu ^ exponent)) != 0;
        return true;
    }
    return false;
}

static dart_status check_numbers(const safetensors_tensor *t, base_report *report)
{
    char text[SHAPE_TEXT];
    uint64_t flat, at[SAFETENSORS_MAX_RANK] = {0};
    bool is_nan;
    if (!find_not_finite(t, &flat, &is_nan)) return DART_OK;
    uint64_t rest = flat;
    for (uint32_t i = t->rank; i-- > 0;) {
        at[i] = rest % t->shape[i];
        rest /= t->shape[i];
    }
    return base_fail(report, DART_BAD_DATA, "tensor %s holds %s at %s (element %" PRIu64 ")", t->name,
                     is_nan ? "NaN" : "an infinite value", list_text(at, t->rank, text), flat);
}

static dart_status check_shape(const safetensors_tensor *t, uint32_t rank, const uint64_t *shape, base_report *report)
{
    char is[SHAPE_TEXT], wanted[SHAPE_TEXT];
    if (t->rank == rank && memcmp(t->shape, shape, rank * sizeof *shape) == 0) return DART_OK;
    return base_fail(report, DART_BAD_DATA, "tensor %s has shape %s, the configuration asks for %s", t->name, list_text(t->shape, t->rank, is),
                     list_text(shape, rank, wanted));
}

static dart_status check_tensor(const model_parameter *p, const safetensors_tensor *t, base_report *report)
{
    char wanted[SHAPE_TEXT];
    const uint64_t shape[] = {p->shape[0] * p->parts, p->shape[1], p->shape[2]};
    if (t == NULL)
        return base_fail(report, DART_BAD_DATA, "tensor %s of shape %s is missing", p->name, list_text(shape, p->rank, wanted));
    const dart_status status = check_shape(t, p->rank, shape, report);
    if (status == DART_OK && !is_float(t))
        return base_fail(report, DART_BAD_DATA, "tensor %s has dtype %s, weights are F32, F16 or BF16", t->name,
                         safetensors_dtype_name(t->dtype));
    return status;
}

/* One of the tensors beside a quantised one. */
static dart_status check_beside(const model_parameter *p, const char *suffix, const safetensors_tensor *t, uint64_t rows, uint64_t width,
                                base_report *report)
{
    const uint64_t shape[] = {rows, width};
    if (t == NULL) return base_fail(report, DART_BAD_DATA, "tensor %s is quantised, but %s%s is missing", p->name, p->name, suffix);
    return check_shape(t, 2, shape, report);
}

static dart_status check_quantised(const model_parameter *p, const model_source *s, base_report *report)
{
    const uint64_t width = p->shape[1], rows = (p->shape[0] - p->rest) * p->parts, shape[] = {rows, s->dtype == DART_Q4 ? width / 2 : width};
    if (model_quantised_dtype(p, s->dtype) == DART_F32)
        return base_fail(report, DART_BAD_DATA, "tensor %s has dtype %s, but a tensor of this kind or of this width cannot be quantised", p->name,
                         safetensors_dtype_name(s->tensor->dtype));
    dart_status status = check_shape(s->tensor, 2, shape, report);
    if (status == DART_OK) status = check_beside(p, ".scale", s->scales, rows, width / 32, report);
    if (status == DART_OK && s->dtype == DART_Q4) status = check_beside(p, ".minimum", s->minima, rows, width / 32, report);
    if (status == DART_OK && p->rest > 0) status = check_beside(p, ".rest", s->rest, p->rest, width, report);
    if (status != DART_OK) return status;
    if (s->scales->dtype != SAFETENSORS_BF16 || (s->dtype == DART_Q4 && s->minima->dtype != SAFETENSORS_BF16))
        return base_fail(report, DART_BAD_DATA, "tensor %s: scales and minima of quantised weights must be BF16", p->name);
    if (p->rest > 0 && !is_float(s->rest))
        return base_fail(report, DART_BAD_DATA, "tensor %s has dtype %s, weights are F32, F16 or BF16", s->rest->name,
                         safetensors_dtype_name(s->rest->dtype));
    return DART_OK;
}

/* Finite scales, none of them negative, and numbers within -127 to 127. */
static dart_status check_quantised_numbers(const model_source *s, base_report *report)
{
    dart_status status = check_numbers(s->scales, report);
    if (status == DART_OK && s->minima != NULL) status = check_numbers(s->minima, report);
    if (status == DART_OK && s->rest != NULL) status = check_numbers(s->rest, report);
    const uint8_t *scales = s->scales->data, *numbers = s->tensor->data;
    for (uint64_t i = 0; status == DART_OK && i < s->scales->elements; i++)
        if ((scales[2 * i + 1] & 0x80u) != 0)
            return base_fail(report, DART_BAD_DATA, "tensor %s holds a negative scale at element %" PRIu64, s->scales->name, i);
    if (status == DART_OK && s->dtype == DART_Q8 && memchr(numbers, 0x80, (size_t)s->tensor->elements) != NULL)
        return base_fail(report, DART_BAD_DATA, "tensor %s holds -128, quantised numbers are -127 to 127", s->tensor->name);
    return status;
}

/* Tables that GPT-NeoX's code kept in its files: masks, and the rates of rotary positions. */
static bool is_table(const char *name)
{
    static const char *const ends[] = {".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq"};
    const size_t length = strlen(name);
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        if (length > strlen(ends[i]) && strcmp(name + length - strlen(ends[i]), ends[i]) == 0) return true;
    return false;
}

static void warn_of_others(const safetensors *file, const bool *used, base_report *report)
{
    size_t others = 0;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        if (used[i] || is_table(safetensors_at(file, i)->name)) continue;
        if (others++ < MAX_WARNINGS)
            base_log_line(report->log, DART_LOG_WARNING, "tensor %.200s is no parameter of this model and is ignored",
                          safetensors_at(file, i)->name);
    }
    if (others > MAX_WARNINGS)
        base_log_line(report->log, DART_LOG_WARNING, "so are %" PRIu64 " more", (uint64_t)(others - MAX_WARNINGS));
}

dart_status model_weights_check(const dart_model_config *config, const safetensors *file, bool skip_scan, base_progress *progress,
                                base_report *report)
{
    dart_status status = DART_OK;
    model_parameter p;
    bool *used = calloc(safetensors_count(file) + 1, sizeof *used);
    if (used == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "no memory to check the checkpoint");
    for (uint32_t i = 0; model_config_parameter(config, i, &p); i++) {
        const model_source source = model_source_find(file, &p);
        const safetensors_tensor *const all[] = {source.tensor, source.scales, source.minima, source.rest};
        if (model_source_is_quantised(&source)) {
            TRY(check_quantised(&p, &source, report));
            if (!skip_scan) TRY(check_quantised_numbers(&source, report));
        } else {
            TRY(check_tensor(&p, source.tensor, report));
            if (!skip_scan) TRY(check_numbers(source.tensor, report));
        }
        if (!skip_scan) TRY(base_advance(progress, p.elements, report, "dart_model_open"));
        for (size_t k = 0; k < COUNT_OF(all); k++)
            if (all[k] != NULL) used[all[k] - safetensors_at(file, 0)] = true;
    }
    warn_of_others(file, used, report);
fail:
    free(used);
    return status;
}
