/* Models: weights on a device. */
#include "model.h"
#include "base/checksum.h"
#include "base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Weights share buffers of about this size: few allocations, none so large that a device would refuse it. */
#define POOL_BYTES (UINT64_C(64) << 20)
/* Elements that are converted or written at a time. */
#define PIECE ((size_t)1 << 20)

/* ---- Where weights come from ---- */

typedef struct source {
    const safetensors *file; /* NULL: random */
    uint64_t seed;
    base_progress *progress;
    float *values;   /* PIECE, scratch */
    uint8_t *stored; /* PIECE elements, scratch */
} source;

/* Mean 0, variance 1, within 3.5: four uniform numbers added. */
static float normal(uint64_t bits)
{
    uint32_t sum = 0;
    for (int shift = 0; shift < 64; shift += 16) sum += (uint32_t)(bits >> shift & 0xFFFF);
    return ((float)sum / 65536.0f - 2.0f) * 1.7320508f;
}

/* Sizes that keep activations near 1; step sizes 0.001 to 0.1 and A 1 to 16 as in Mamba-2. */
static float random_weight(const dart_model_config *c, const model_parameter *parameter, uint64_t element, uint64_t bits)
{
    const float n = normal(bits);
    switch (parameter->role) {
    case MODEL_NORM:
    case MODEL_MIXER_NORM:
    case MODEL_FINAL_NORM:
    case MODEL_MLP_NORM:
    case MODEL_D: return 1.0f + 0.1f * n;
    case MODEL_EMBEDDING:
    case MODEL_HEAD:
    case MODEL_Q_PROJ:
    case MODEL_K_PROJ:
    case MODEL_V_PROJ:
    case MODEL_GATE_PROJ:
    case MODEL_UP_PROJ:
    case MODEL_IN_PROJ: return n / sqrtf((float)c->W);
    case MODEL_SMA_PROJ: {
        const uint64_t used = (uint64_t)model_config_sma_conv(c) + 1;
        return element / c->W < used ? n / sqrtf((float)c->W) : 0.0f;
    }
    case MODEL_OUT_PROJ: return n / sqrtf((float)model_config_inner(c) * 2.0f * (float)c->layers);
    case MODEL_DOWN_PROJ: return n / sqrtf((float)c->F * 2.0f * (float)c->layers);
    case MODEL_CONV_WEIGHT:
    case MODEL_SMA_CONV_WEIGHT: return n / sqrtf((float)c->K);
    case MODEL_CONV_BIAS:
    case MODEL_SMA_CONV_BIAS: return 0.2f * n;
    case MODEL_NORM_BIAS:
    case MODEL_Q_BIAS:
    case MODEL_K_BIAS:
    case MODEL_V_BIAS:
    case MODEL_OUT_BIAS:
    case MODEL_MLP_NORM_BIAS:
    case MODEL_UP_BIAS:
    case MODEL_DOWN_BIAS:
    case MODEL_FINAL_NORM_BIAS: return 0.1f * n;
    case MODEL_DT_BIAS: {
        const double step = exp(base_uniform(bits) * (log(0.1) - log(0.001)) + log(0.001));
        return (float)(step + log(-expm1(-step)));
    }
    case MODEL_A_LOG: return (float)log(1.0 + 15.0 * base_uniform(bits));
    case MODEL_ROLE_COUNT: break;
    }
    return 0.0f;
}

static void fetch(const dart_model *model, const source *from, const model_parameter *parameter,
                  const model_source *stored, uint64_t key, uint64_t first, uint64_t place, size_t count)
{
    if (stored->tensor != NULL) {
        model_source_to_f32(stored, place, count, from->values);
        return;
    }
    for (size_t i = 0; i < count; i++)
        from->values[i] = random_weight(&model->config, parameter, first + i,
                                        base_mix(key + (first + i) * UINT64_C(0x9E3779B97F4A7C15)));
}

/* ---- Placing weights ---- */

static dart_dtype stored_as(dart_storage storage, dart_dtype otherwise)
{
    switch (storage) {
    case DART_STORAGE_F32: return DART_F32;
    case DART_STORAGE_F16: return DART_F16;
    case DART_STORAGE_BF16: return DART_BF16;
    case DART_STORAGE_Q8:
    case DART_STORAGE_Q4:
    case DART_STORAGE_DEFAULT: break;
    }
    return otherwise;
}

/* Of a parameter as this model keeps it. */
static dart_dtype kept_as(dart_storage storage, const model_parameter *parameter, const model_source *stored)
{
    if (!model_role_is_matrix(parameter->role)) return DART_F32;
    if (storage == DART_STORAGE_DEFAULT) return stored->dtype;
    const dart_dtype wanted = storage == DART_STORAGE_Q8 ? DART_Q8 : storage == DART_STORAGE_Q4 ? DART_Q4 : DART_F32;
    const dart_dtype quantised = wanted != DART_F32 ? model_quantised_dtype(parameter, wanted) : DART_F32;
    return quantised != DART_F32 ? quantised : stored_as(storage, stored->rest_dtype);
}

/* Fills buffers one after another; the same walk gives the same places. */
typedef struct pool {
    uint32_t index;
    uint64_t used;
    uint64_t most; /* bytes of a buffer with several tensors; 0: each has a buffer, and so margins, of its own */
} pool;

static uint64_t pool_place(pool *p, uint64_t bytes)
{
    if (p->used > 0 && p->used + bytes > p->most) {
        p->index++;
        p->used = 0;
    }
    const uint64_t at = p->used;
    p->used += base_round_up(bytes, BACKEND_ALIGN);
    return at;
}

/* A part of a parameter on its way to the device: elements from `first` to `end`. */
typedef struct part {
    const model_parameter *parameter;
    const model_source *stored;
    uint64_t key, first, end;
    const dart_tensor *to;
} part;

/* The checkpoint's elements as they lie there, from `place` on; NULL where they are quantised or random. */
static const uint8_t *bytes_of(const model_source *stored, uint64_t place, const safetensors_tensor **tensor)
{
    const uint64_t before = model_source_is_quantised(stored) ? stored->rows * stored->width : 0;
    *tensor = before > 0 ? stored->rest : stored->tensor;
    if (*tensor == NULL || place < before) return NULL;
    return (const uint8_t *)(*tensor)->data + (place - before) * safetensors_dtype_size((*tensor)->dtype);
}

/* Tells the caller that `count` elements more are on the device. */
static dart_status advance(const dart_model *model, const source *from, size_t count)
{
    return base_advance(from->progress, count, &model->device->report, from->file != NULL ? "dart_model_open" : "dart_model_random");
}

static dart_status upload(dart_model *model, const source *from, const part *p)
{
    const model_parameter *parameter = p->parameter;
    const size_t size = dart_dtype_size(p->to->dtype), piece = PIECE - (model_source_is_quantised(p->stored) ? PIECE % p->stored->width : 0);
    size_t count;
    for (uint64_t first = p->first; first < p->end; first += count) {
        uint64_t together;
        const safetensors_tensor *tensor;
        const uint64_t place = model_parameter_place(parameter, first, &together); /* in the tensor */
        together = base_smaller(together, p->end - first);
        count = together < piece ? (size_t)together : piece;
        const uint8_t *bytes = bytes_of(p->stored, place, &tensor);
        const size_t stored = bytes != NULL ? safetensors_dtype_size(tensor->dtype) : 0;
        dart_dtype dtype = DART_I32;
        if (bytes != NULL) safetensors_dtype_to_dart(tensor->dtype, &dtype);
        const void *data = bytes;
        if (dtype != p->to->dtype) {
            fetch(model, from, parameter, p->stored, p->key, first, place, count);
            dart_from_f32(p->to->dtype, from->stored, from->values, count);
            data = from->stored;
        }
        /* Of the source, so that it does not depend on how this model stores its weights. */
        if (bytes != NULL) model->fingerprint = base_checksum(model->fingerprint + (uint64_t)tensor->dtype, bytes, count * stored);
        else model->fingerprint = base_checksum(model->fingerprint, from->values, count * sizeof *from->values);
        dart_status status = dart_buffer_write(p->to->buffer, (p->to->offset + first - p->first) * size, data, count * size);
        if (status == DART_OK) status = advance(model, from, count);
        if (status != DART_OK) return status;
        if (bytes != NULL && parameter->parts == 1) file_map_forget(bytes, count * stored); /* the pages of others come by again */
    }
    return DART_OK;
}

/* The same with whole rows, which become quantised ones. They, not their source, make the fingerprint: a model that was quantised when it was
 * loaded and one that was loaded from quantised files are the same. */
static dart_status upload_quantised(dart_model *model, const source *from, const part *p)
{
    const model_parameter *parameter = p->parameter;
    const model_source *stored = p->stored;
    const uint32_t width = (uint32_t)parameter->shape[1];
    const dart_dtype dtype = p->to->dtype;
    const size_t bytes = dart_quantised_row(dtype, width);
    size_t count;
    for (uint64_t first = p->first; first < p->end; first += count) {
        uint64_t together;
        const uint64_t place = model_parameter_place(parameter, first, &together);
        const uint64_t most = base_smaller(PIECE / width * width, base_smaller(together, p->end - first));
        count = (size_t)most;
        const size_t rows = count / width;
        if (stored->dtype == dtype) {
            model_source_rows(stored, place / width, rows, from->stored);
        } else {
            fetch(model, from, parameter, stored, p->key, first, place, count);
            dart_quantise(dtype, width, rows, from->values, from->stored);
        }
        model->fingerprint = base_checksum(model->fingerprint + (uint64_t)dtype, from->stored, rows * bytes);
        dart_status status = dart_buffer_write(p->to->buffer, p->to->offset + (first - p->first) / width * bytes, from->stored, rows * bytes);
        if (status == DART_OK) status = advance(model, from, count);
        if (status != DART_OK) return status;
    }
    return DART_OK;
}

/* Gives every parameter its dtype and place, and fills it. With `from` NULL the buffers are only sized. */
static dart_status place_weights(dart_model *model, dart_storage storage, const safetensors *file, const source *from,
                                 uint64_t *pool_bytes)
{
    pool p = {.most = model->device->margin > 0 ? 0 : POOL_BYTES};
    model_parameter parameter;
    for (uint32_t i = 0; model_config_parameter(&model->config, i, &parameter); i++) {
        const model_source stored = file != NULL ? model_source_find(file, &parameter) : (model_source){.dtype = DART_F32};
        const dart_dtype dtype = kept_as(storage, &parameter, &stored);
        const bool quantised = dtype == DART_Q8 || dtype == DART_Q4;
        const uint64_t whole = quantised ? (parameter.shape[0] - parameter.rest) * parameter.shape[1] : parameter.elements;
        const size_t size = dart_dtype_size(dtype), rest_size = dart_dtype_size(stored.rest_dtype);
        const uint64_t bytes = quantised ? whole / parameter.shape[1] * dart_quantised_row(dtype, (uint32_t)parameter.shape[1]) : whole * size;
        const size_t place = (size_t)parameter.layer * MODEL_ROLE_COUNT + parameter.role;
        const uint64_t at = pool_place(&p, bytes);
        const part all = {.parameter = &parameter, .stored = &stored, .key = from != NULL ? base_mix(from->seed ^ base_mix(i)) : 0, .end = whole,
                           .to = &model->weights[place]};
        dart_status status = DART_OK;
        model->quantised = model->quantised || quantised;
        pool_bytes[p.index] = p.used;
        if ((parameter.role == MODEL_IN_PROJ || parameter.role == MODEL_Q_PROJ) && parameter.layer == 0) {
            model->weights_dtype = dtype;
            model->rest_dtype = stored.rest_dtype;
        }
        if (from != NULL) {
            model->weights[place] = (dart_tensor){.buffer = model->buffers[p.index], .dtype = dtype, .offset = at / size};
            status = quantised ? upload_quantised(model, from, &all) : upload(model, from, &all);
        }
        if (whole < parameter.elements) {
            const uint64_t rest_at = pool_place(&p, (parameter.elements - whole) * rest_size);
            part rest = all;
            pool_bytes[p.index] = p.used;
            rest.first = whole;
            rest.end = parameter.elements;
            rest.to = &model->rest[place];
            if (from != NULL && status == DART_OK) {
                model->rest[place] = (dart_tensor){.buffer = model->buffers[p.index], .dtype = stored.rest_dtype, .offset = rest_at / rest_size};
                status = upload(model, from, &rest);
            }
        }
        if (status != DART_OK) return status;
    }
    model->buffers_count = p.index + 1;
    return DART_OK;
}

/* Matrix hardware multiplies operands of one 16-bit type: with such weights activations are of it too. */
static dart_dtype natural_activations(const dart_device *device, dart_dtype weights)
{
    return device_has_matrices(device, weights) && device->info.type != DART_DEVICE_CPU ? weights : DART_F32;
}

/* How the model stores activations and memories. Quantised weights become 16-bit numbers of the activations' type where many rows are
 * multiplied; f32 tensors beside them do not ask for f32 activations. */
static void choose_storage(dart_model *model, const dart_model_options *options)
{
    if (!model->quantised) {
        model->activations = stored_as(options->activations, natural_activations(model->device, model->weights_dtype));
        model->memories = stored_as(options->memories, model->weights_dtype);
        return;
    }
    const dart_dtype rest = model->rest_dtype;
    model->activations = stored_as(options->activations, natural_activations(model->device, rest == DART_F32 ? DART_BF16 : rest));
    model->memories = stored_as(options->memories, rest == DART_F32 ? model->activations : rest);
}

static dart_status build(dart_device *device, const dart_model_config *config, const dart_model_options *options,
                         const safetensors *file, uint64_t seed, base_progress *progress, dart_model **model)
{
    dart_status status = DART_OUT_OF_MEMORY;
    source from = {.file = file, .seed = seed, .progress = progress};
    uint64_t *pool_bytes = NULL;
    uint32_t parameters = 0;
    model_parameter parameter;
    while (model_config_parameter(config, parameters, &parameter)) parameters++;
    dart_model *made = device_calloc(device, 1, sizeof *made);
    if (made == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    if (base_report_init(&made->report, device->report.log) != DART_OK) {
        free(made);
        return base_fail(&device->report, DART_OUT_OF_MEMORY, "no lock for a model");
    }
    made->device = device;
    made->config = *config;
    made->weights = device_calloc(device, (size_t)config->layers * MODEL_ROLE_COUNT, sizeof *made->weights);
    made->rest = device_calloc(device, (size_t)config->layers * MODEL_ROLE_COUNT, sizeof *made->rest);
    made->buffers = device_calloc(device, 2 * (size_t)parameters, sizeof *made->buffers);
    pool_bytes = device_calloc(device, 2 * (size_t)parameters, sizeof *pool_bytes);
    from.values = device_calloc(device, PIECE, sizeof *from.values);
    from.stored = device_calloc(device, PIECE, sizeof(float));
    if (made->weights == NULL || made->rest == NULL || made->buffers == NULL || pool_bytes == NULL || from.values == NULL ||
        from.stored == NULL)
        goto fail;
    TRY(place_weights(made, options->weights, file, NULL, pool_bytes));
    for (uint32_t i = 0; i < made->buffers_count; i++) {
        TRY(dart_buffer_create(device, pool_bytes[i], &made->buffers[i]));
        made->bytes += pool_bytes[i];
    }
    TRY(place_weights(made, options->weights, file, &from, pool_bytes));
    choose_storage(made, options);
    free(pool_bytes);
    free(from.values);
    free(from.stored);
    *model = made;
    return DART_OK;
fail:
    free(pool_bytes);
    free(from.values);
    free(from.stored);
    dart_model_destroy(&made);
    return atomic_load(&device->lost) ? DART_DEVICE_LOST : status;
}

static dart_status check_options(dart_device *device, const dart_model_options *options, const char *call)
{
    const bool known = (unsigned)options->weights <= DART_STORAGE_Q4 &&
                       (unsigned)options->activations <= DART_STORAGE_BF16 &&
                       (unsigned)options->memories <= DART_STORAGE_BF16;
    REQUIRE(&device->report, known, "%s: weights %d, activations %d, memories %d: unknown storage", call,
            (int)options->weights, (int)options->activations, (int)options->memories);
    return DART_OK;
}

dart_status dart_model_open(dart_device *device, const char *folder, const dart_model_options *options,
                            dart_model **model)
{
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, folder != NULL && model != NULL,
            "dart_model_open: needs a folder and a place for the model");
    const dart_model_options defaults = {0};
    if (options == NULL) options = &defaults;
    dart_status status = check_options(device, options, "dart_model_open");
    dart_model_config config;
    safetensors *file = NULL;
    if (status != DART_OK) return status;
    if (file_exists(folder))
        FAIL(&device->report, DART_IO, "%s is a file; a model is a folder with config.json and model.safetensors", folder);
    TRY(model_config_load(folder, &device->report, &config));
    TRY(safetensors_open(folder, &device->report, &file));
    base_progress progress = {.go_on = options->go_on, .user = options->user,
                              .of = model_config_count(&config) * (options->skip_nan_check ? 1 : 2)}; /* read, then copied */
    TRY(model_weights_check(&config, file, options->skip_nan_check, &progress, &device->report));
    TRY(build(device, &config, options, file, 0, &progress, model));
fail:
    safetensors_close(&file);
    return status;
}

dart_status dart_model_random(dart_device *device, const dart_model_config *config, uint64_t seed,
                              const dart_model_options *options, dart_model **model)
{
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, config != NULL && model != NULL,
            "dart_model_random: needs a configuration and a place for the model");
    const dart_model_options defaults = {0};
    if (options == NULL) options = &defaults;
    dart_status status = check_options(device, options, "dart_model_random");
    if (status == DART_OK) status = model_config_check(config, DART_INVALID_ARGUMENT, "dart_model_random", &device->report);
    if (status != DART_OK) return status;
    base_progress progress = {.go_on = options->go_on, .user = options->user, .of = model_config_count(config)};
    return build(device, config, options, NULL, seed, &progress, model);
}

void dart_model_destroy(dart_model **model)
{
    if (model == NULL || *model == NULL) return;
    dart_model *m = *model;
    for (uint32_t i = 0; i < m->buffers_count; i++) dart_buffer_destroy(&m->buffers[i]);
    free(m->buffers);
    free(m->weights);
    free(m->rest);
    base_report_destroy(&m->report);
    free(m);
    *model = NULL;
}

dart_status dart_model_describe(const dart_model *model, dart_model_info *info)
{
    if (model == NULL || info == NULL) return DART_INVALID_ARGUMENT;
    *info = (dart_model_info){
        .config = model->config, .weights = model->weights_dtype, .activations = model->activations,
        .memories = model->memories, .parameters = model_config_count(&model->config), .bytes = model->bytes};
    return DART_OK;
}

size_t dart_model_error(const dart_model *model, char *text, size_t size)
{
    return model != NULL ? base_report_copy(&model->report, text, size) : 0;
}

const dart_tensor *model_head(const dart_model *model)
{
    return model_weight(model, 0, model->config.tied ? MODEL_EMBEDDING : MODEL_HEAD);
}

model_block_weights model_layer_weights(const dart_model *model, uint32_t layer)
{
    const dart_tensor *w = model_weight(model, layer, (model_role)0), *rest = &model->rest[(size_t)layer * MODEL_ROLE_COUNT];
    return (model_block_weights){
        .in_proj_rest = rest[MODEL_IN_PROJ], .sma_proj_rest = rest[MODEL_SMA_PROJ],
        .norm = w[MODEL_NORM], .in_proj = w[MODEL_IN_PROJ], .conv_weight = w[MODEL_CONV_WEIGHT], .conv_bias = w[MODEL_CONV_BIAS],
        .dt_bias = w[MODEL_DT_BIAS], .a_log = w[MODEL_A_LOG], .d = w[MODEL_D], .mixer_norm = w[MODEL_MIXER_NORM],
        .out_proj = w[MODEL_OUT_PROJ], .sma_proj = w[MODEL_SMA_PROJ], .sma_conv_weight = w[MODEL_SMA_CONV_WEIGHT],
        .sma_conv_bias = w[MODEL_SMA_CONV_BIAS]};
}

model_transformer_weights model_transformer_layer_weights(const dart_model *model, uint32_t layer)
{
    return model_transformer_places(model_weight(model, layer, (model_role)0));
}
