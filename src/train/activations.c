/* The activations of a trainer: what each layer keeps of them, and what all layers share. */
#include "trainer.h"

#include "dartlm/ops_backward.h"

typedef struct work_kind {
    uint32_t level; /* the highest at which each layer keeps its own */
    bool f32, sma;
} work_kind;

static const work_kind mixer_work[TRAINER_WORK_COUNT] = {
    [TRAINER_X] = {3, true, false},      [TRAINER_INPUT] = {0, false, false},    [TRAINER_PROJ] = {1, false, false},
    [TRAINER_CONV] = {0, false, false},  [TRAINER_SMA_PROJ] = {1, false, true},  [TRAINER_SMA_CONV] = {0, false, true},
    [TRAINER_R] = {1, true, true},       [TRAINER_Y] = {1, false, false},        [TRAINER_NORMED] = {0, false, false},
    [TRAINER_DH] = {1, false, true},     [TRAINER_DH_SCALE] = {1, true, true},   [TRAINER_LSE] = {1, true, true},
};
static const work_kind transformer_work[TRAINER_WORK_COUNT] = {
    [TRAINER_X] = {3, true, false},      [TRAINER_INPUT] = {0, false, false}, [TRAINER_PROJ] = {1, false, false},
    [TRAINER_Y] = {2, false, false},     [TRAINER_LSE] = {2, true, false},    [TRAINER_MIDDLE] = {2, true, false},
    [TRAINER_NORMED] = {0, false, false}, [TRAINER_MLP] = {1, false, false},  [TRAINER_HIDDEN] = {0, false, false},
};

static const work_kind *kind_of(const dart_trainer *trainer, trainer_work work)
{
    return trainer->config.transformer ? &transformer_work[work] : &mixer_work[work];
}

bool trainer_layer_keeps(const dart_trainer *trainer, trainer_work work, uint32_t layer)
{
    const bool attention = !trainer->config.transformer && (work == TRAINER_R || work == TRAINER_LSE);
    const uint32_t keep = trainer->options.keep;
    return keep <= kind_of(trainer, work)->level || (attention && keep == 2 && layer % 3 == 0);
}

/* Layers before `layer` that keep their own. */
static uint32_t keepers(const dart_trainer *trainer, trainer_work work, uint32_t layer)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < layer; l++) count += trainer_layer_keeps(trainer, work, l);
    return count;
}

static uint64_t memories(const dart_trainer *trainer)
{
    const dart_trainer_options *o = &trainer->options;
    const uint64_t chunks = o->documents > 0 ? dart_packed_chunks(trainer->T, trainer->config.S, o->documents)
                                             : o->B * base_ceil_div(o->L, trainer->config.S);
    return chunks * model_config_memory(&trainer->config);
}

/* Elements of a row. 0: the model has no such tensor. */
static uint64_t transformer_width(const dart_model_config *c, trainer_work work)
{
    switch (work) {
    case TRAINER_X:
    case TRAINER_INPUT:
    case TRAINER_NORMED:
    case TRAINER_MIDDLE: return c->W;
    case TRAINER_PROJ: return model_config_qkv(c);
    case TRAINER_Y: return model_config_inner(c);
    case TRAINER_LSE: return c->H;
    case TRAINER_MLP: return 2 * (uint64_t)c->F;
    case TRAINER_HIDDEN: return c->F;
    default: return 0;
    }
}

static uint64_t work_elements(const dart_trainer *trainer, trainer_work work)
{
    const dart_model_config *c = &trainer->config;
    const uint64_t T = trainer->T;
    if (c->transformer) return T * transformer_width(c, work);
    switch (work) {
    case TRAINER_X:
    case TRAINER_INPUT: return T * c->W;
    case TRAINER_PROJ: return T * model_config_in_proj_row(c);
    case TRAINER_CONV: return T * model_config_conv(c);
    case TRAINER_SMA_PROJ: return T * model_config_sma_proj(c);
    case TRAINER_SMA_CONV: return T * model_config_sma_conv(c);
    case TRAINER_R:
    case TRAINER_Y:
    case TRAINER_NORMED: return T * model_config_inner(c);
    case TRAINER_DH: return memories(trainer);
    case TRAINER_DH_SCALE: return trainer->activations == DART_F32 ? 0 : memories(trainer) / c->P;
    case TRAINER_LSE: return T * c->H;
    case TRAINER_MIDDLE:
    case TRAINER_MLP:
    case TRAINER_HIDDEN:
    case TRAINER_WORK_COUNT: break;
    }
    return 0;
}

uint64_t trainer_part_at(const dart_trainer *trainer, trainer_part member)
{
    const uint64_t T = trainer->T, documents = trainer->options.documents;
    const uint64_t elements[TRAINER_PART_END] = {
        [TRAINER_IDS] = T, [TRAINER_PLAN] = dart_embed_plan_elements(trainer->T, trainer->config.V), [TRAINER_CU] = documents > 0 ? documents + 1 : 0,
        [TRAINER_PLACES] = T, [TRAINER_ROW_OF] = T, [TRAINER_TARGETS] = T,
        [TRAINER_SEQ] = 2 * (uint64_t)trainer->options.B, [TRAINER_SHARE] = 2};
    uint64_t at = 0;
    for (int m = 0; m < (int)member; m++) at += base_round_up(elements[m], 64);
    return at;
}

dart_tensor trainer_part_tensor(const dart_trainer *trainer, trainer_part member)
{
    if (member == TRAINER_CU && trainer->options.documents == 0) return (dart_tensor){0};
    return (dart_tensor){.buffer = trainer->shared[TRAINER_PART], .dtype = member == TRAINER_SHARE ? DART_F32 : DART_I32,
                         .offset = trainer_part_at(trainer, member)};
}

dart_tensor trainer_sum_tensor(const dart_trainer *trainer, trainer_sum sum)
{
    return (dart_tensor){.buffer = trainer->shared[TRAINER_SUMS], .dtype = sum == TRAINER_CORRECT ? DART_I32 : DART_F32,
                         .offset = (uint64_t)sum * TRAINER_SUM};
}

static uint64_t shared_elements(const dart_trainer *trainer, trainer_shared shared, dart_dtype *dtype)
{
    *dtype = trainer->activations;
    switch (shared) {
    case TRAINER_SLOPE_X: *dtype = DART_F32; return work_elements(trainer, TRAINER_X);
    case TRAINER_SLOPE_INPUT: return work_elements(trainer, TRAINER_INPUT);
    case TRAINER_SLOPE_PROJ: return work_elements(trainer, TRAINER_PROJ);
    case TRAINER_SLOPE_CONV: return work_elements(trainer, TRAINER_CONV);
    case TRAINER_SLOPE_SMA_PROJ: return trainer->sma ? work_elements(trainer, TRAINER_SMA_PROJ) : 0;
    case TRAINER_SLOPE_SMA_CONV: return trainer->sma ? work_elements(trainer, TRAINER_SMA_CONV) : 0;
    case TRAINER_SLOPE_NORMED: return trainer->config.transformer ? 0 : work_elements(trainer, TRAINER_Y);
    case TRAINER_SLOPE_Y: return work_elements(trainer, TRAINER_Y);
    case TRAINER_SLOPE_MLP: return work_elements(trainer, TRAINER_MLP);
    case TRAINER_SLOPE_HIDDEN: return work_elements(trainer, TRAINER_HIDDEN);
    case TRAINER_SLOPE_R: return trainer->sma ? work_elements(trainer, TRAINER_R) : 0;
    case TRAINER_SLOPE_DH: *dtype = DART_F32; return trainer->sma ? memories(trainer) : 0;
    case TRAINER_PART:
    case TRAINER_AHEAD: *dtype = DART_I32; return trainer_part_at(trainer, TRAINER_PART_END);
    case TRAINER_SUMS:
    case TRAINER_RESULT: *dtype = DART_F32; return (uint64_t)TRAINER_SUM_COUNT * TRAINER_SUM;
    case TRAINER_HYPER: *dtype = DART_F32; return 8;
    case TRAINER_SHARED_COUNT: break;
    }
    return 0;
}

dart_status trainer_allocate(dart_trainer *trainer)
{
    for (int w = 0; w < TRAINER_WORK_COUNT; w++) {
        const work_kind *kind = kind_of(trainer, (trainer_work)w);
        const uint64_t elements = work_elements(trainer, (trainer_work)w), size = kind->f32 ? 4 : dart_dtype_size(trainer->activations);
        const uint32_t layers = trainer->config.layers, own = keepers(trainer, (trainer_work)w, layers);
        const uint32_t count = own + (own < layers || w == TRAINER_X ? 1 : 0); /* the last one is that of all layers that keep none */
        if (elements == 0 || (kind->sma && !trainer->sma)) continue;
        trainer->work[w] = device_calloc(trainer->device, count, sizeof *trainer->work[w]);
        if (trainer->work[w] == NULL) return DART_OUT_OF_MEMORY;
        trainer->work_count[w] = count;
        for (uint32_t i = 0; i < count; i++) {
            const dart_status status = dart_buffer_create(trainer->device, elements * size, &trainer->work[w][i]);
            if (status != DART_OK) return status;
        }
    }
    for (int s = 0; s < TRAINER_SHARED_COUNT; s++) {
        dart_dtype dtype;
        const uint64_t elements = shared_elements(trainer, (trainer_shared)s, &dtype);
        if (elements == 0) continue;
        const uint64_t bytes = elements * dart_dtype_size(dtype);
        bool beside = true;
        const dart_status status = s == TRAINER_AHEAD ? buffer_create_written(trainer->device, bytes, &beside, &trainer->shared[s])
                                                      : dart_buffer_create(trainer->device, bytes, &trainer->shared[s]);
        if (status != DART_OK) return status;
        if (!beside) dart_buffer_destroy(&trainer->shared[s]);
    }
    return DART_OK;
}

dart_tensor trainer_work_tensor(const dart_trainer *trainer, trainer_work work, uint32_t layer)
{
    const uint32_t layers = trainer->config.layers;
    if (trainer->work_count[work] == 0) return (dart_tensor){0};
    const bool own = layer < layers && trainer_layer_keeps(trainer, work, layer);
    return (dart_tensor){.buffer = trainer->work[work][keepers(trainer, work, own ? layer : layers)],
                         .dtype = kind_of(trainer, work)->f32 ? DART_F32 : trainer->activations};
}

dart_tensor trainer_shared_tensor(const dart_trainer *trainer, trainer_shared shared)
{
    dart_tensor tensor = {.buffer = trainer->shared[shared]};
    shared_elements(trainer, shared, &tensor.dtype);
    return tensor;
}
