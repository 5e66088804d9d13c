/* The recordings of a trainer: the passes through the model, the norm of the gradients and the update. */
#include "trainer.h"

#include "dartlm/ops_backward.h"

#include <math.h>
#include <stdlib.h>

/* ---- The passes ----
 * Gradients of the residual stream lie in TRAINER_SLOPE_X from the last norm on down to the embedding. TRAINER_SLOPE_INPUT is used by every
 * layer, and by the last norm before them. */

static model_block_weights places_of(const dart_tensor *of, uint32_t layer)
{
    const dart_tensor *t = &of[(size_t)layer * MODEL_ROLE_COUNT];
    return (model_block_weights){
        .norm = t[MODEL_NORM], .in_proj = t[MODEL_IN_PROJ], .conv_weight = t[MODEL_CONV_WEIGHT], .conv_bias = t[MODEL_CONV_BIAS],
        .dt_bias = t[MODEL_DT_BIAS], .a_log = t[MODEL_A_LOG], .d = t[MODEL_D], .mixer_norm = t[MODEL_MIXER_NORM],
        .out_proj = t[MODEL_OUT_PROJ], .sma_proj = t[MODEL_SMA_PROJ], .sma_conv_weight = t[MODEL_SMA_CONV_WEIGHT],
        .sma_conv_bias = t[MODEL_SMA_CONV_BIAS]};
}

/* Sequences that are computed together, packed or not. */
static uint32_t sequences(const dart_trainer *trainer)
{
    return trainer->options.documents > 0 ? trainer->options.documents : trainer->options.B;
}

static dart_tensor behind(dart_tensor tensor, uint64_t elements)
{
    tensor.offset += elements;
    return tensor;
}

static model_labelled labelled(const dart_trainer *trainer)
{
    return (model_labelled){.rows = trainer->rows.count, .tokens = trainer_part_tensor(trainer, TRAINER_PLACES),
                            .row_of = trainer_part_tensor(trainer, TRAINER_ROW_OF)};
}

/* The gradient of the last layer's rows lies behind them, where only labelled tokens have any. */
static dart_tensor slope_of_rows(const dart_trainer *trainer)
{
    return behind(trainer_work_tensor(trainer, TRAINER_X, trainer->config.layers), (uint64_t)trainer->rows.count * trainer->config.W);
}

/* Copies of rows lie where later gradients of all tokens will, until the backward pass of the layer writes those. */
static model_block_labelled block_labelled(const dart_trainer *trainer, uint32_t layer)
{
    const trainer_rows *rows = &trainer->rows;
    const dart_model_config *c = &trainer->config;
    const uint64_t copy = (uint64_t)rows->count * model_config_inner(c), queries = (uint64_t)rows->count * model_config_sma_conv(c);
    const dart_tensor of_queries = trainer_shared_tensor(trainer, TRAINER_SLOPE_SMA_CONV);
    const dart_tensor free = trainer_shared_tensor(trainer, TRAINER_SLOPE_NORMED);
    dart_tensor r = trainer_shared_tensor(trainer, TRAINER_SLOPE_R);
    if (layer + 1 < c->layers || !trainer_is_labelled(trainer)) return (model_block_labelled){0};
    r.dtype = DART_F32; /* twice the bytes at most, and half the rows */
    return (model_block_labelled){
        .quiet = rows->quiet, .L = rows->count / trainer->options.B, .S = rows->of_chunk, .seq = trainer_part_tensor(trainer, TRAINER_SEQ),
        .queries = of_queries, .c = behind(of_queries, queries), .slope_queries = free, .slope_c = behind(free, queries),
        .of = labelled(trainer), .y = trainer_shared_tensor(trainer, TRAINER_SLOPE_Y), .z = trainer_shared_tensor(trainer, TRAINER_SLOPE_PROJ),
        .r = r, .gate = trainer_shared_tensor(trainer, TRAINER_SLOPE_SMA_PROJ), .slope_out = slope_of_rows(trainer),
        .slope_y = trainer_shared_tensor(trainer, TRAINER_SLOPE_CONV),
        .slope_z = behind(trainer_shared_tensor(trainer, TRAINER_SLOPE_CONV), copy),
        .slope_r = behind(trainer_work_tensor(trainer, TRAINER_NORMED, layer), copy),
        .slope_gate = behind(free, copy), .input = free, .slope_input = behind(free, (uint64_t)rows->count * c->W)};
}

static model_transformer_labelled transformer_labelled(const dart_trainer *trainer, uint32_t layer)
{
    if (layer + 1 < trainer->config.layers || !trainer_is_labelled(trainer)) return (model_transformer_labelled){0};
    return (model_transformer_labelled){.of = labelled(trainer), .o = trainer_shared_tensor(trainer, TRAINER_SLOPE_Y),
                                        .slope_o = trainer_shared_tensor(trainer, TRAINER_SLOPE_PROJ), .slope_out = slope_of_rows(trainer)};
}

static model_block_args block_args(const dart_trainer *trainer, uint32_t layer)
{
    const dart_trainer_options *o = &trainer->options;
    return (model_block_args){
        .config = &trainer->config, .B = sequences(trainer), .L = o->L, .T = o->documents > 0 ? trainer->T : 0,
        .S = trainer->config.S, .sma = trainer->sma, .cu = trainer_part_tensor(trainer, TRAINER_CU),
        .x = trainer_work_tensor(trainer, TRAINER_X, layer), .weights = places_of(trainer->weights, layer),
        .work = {.input = trainer_work_tensor(trainer, TRAINER_INPUT, layer), .proj = trainer_work_tensor(trainer, TRAINER_PROJ, layer),
                 .conv = trainer_work_tensor(trainer, TRAINER_CONV, layer), .sma_proj = trainer_work_tensor(trainer, TRAINER_SMA_PROJ, layer),
                 .sma_conv = trainer_work_tensor(trainer, TRAINER_SMA_CONV, layer), .r = trainer_work_tensor(trainer, TRAINER_R, layer),
                 .y = trainer_work_tensor(trainer, TRAINER_Y, layer), .normed = trainer_work_tensor(trainer, TRAINER_NORMED, layer)},
        .kept = {.dh = trainer_work_tensor(trainer, TRAINER_DH, layer), .dh_scale = trainer_work_tensor(trainer, TRAINER_DH_SCALE, layer),
                 .lse = trainer_work_tensor(trainer, TRAINER_LSE, layer),
                 .out = trainer_work_tensor(trainer, TRAINER_X, layer + 1)},
        .labelled = block_labelled(trainer, layer)};
}

/* The parts of a block that the backward pass computes again. The last norm has taken the place of the input of layer 0, or of all layers; whatever
 * else the last layer made is still there. */
static unsigned parts_again(const dart_trainer *trainer, uint32_t layer)
{
    const uint32_t keep = trainer->options.keep;
    unsigned parts = keep >= 1 || layer == 0 ? MODEL_BLOCK_NORM : 0;
    if (layer + 1 == trainer->config.layers) return parts;
    if (keep >= 1) parts |= MODEL_BLOCK_CONVOLVE | MODEL_BLOCK_GATE;
    if (keep >= 2) parts |= MODEL_BLOCK_PROJECT | MODEL_BLOCK_SCAN;
    if (!trainer_layer_keeps(trainer, TRAINER_R, layer)) parts |= MODEL_BLOCK_ATTEND;
    return parts;
}

static model_transformer_args transformer_args(const dart_trainer *trainer, uint32_t layer)
{
    const dart_trainer_options *o = &trainer->options;
    return (model_transformer_args){
        .config = &trainer->config, .B = sequences(trainer), .L = o->L, .T = o->documents > 0 ? trainer->T : 0,
        .cu = trainer_part_tensor(trainer, TRAINER_CU), .x = trainer_work_tensor(trainer, TRAINER_X, layer),
        .weights = model_transformer_places(&trainer->weights[(size_t)layer * MODEL_ROLE_COUNT]),
        .work = {.input = trainer_work_tensor(trainer, TRAINER_INPUT, layer), .qkv = trainer_work_tensor(trainer, TRAINER_PROJ, layer),
                 .o = trainer_work_tensor(trainer, TRAINER_Y, layer), .mlp_input = trainer_work_tensor(trainer, TRAINER_NORMED, layer),
                 .mlp = trainer_work_tensor(trainer, TRAINER_MLP, layer), .hidden = trainer_work_tensor(trainer, TRAINER_HIDDEN, layer)},
        .kept = {.lse = trainer_work_tensor(trainer, TRAINER_LSE, layer), .middle = trainer_work_tensor(trainer, TRAINER_MIDDLE, layer),
                 .out = trainer_work_tensor(trainer, TRAINER_X, layer + 1)},
        .labelled = transformer_labelled(trainer, layer)};
}

static unsigned transformer_parts_again(const dart_trainer *trainer, uint32_t layer)
{
    const uint32_t keep = trainer->options.keep;
    unsigned parts = keep >= 1 || layer == 0 ? MODEL_TRANSFORMER_NORM : 0;
    if (layer + 1 == trainer->config.layers) return parts;
    if (keep >= 1) parts |= MODEL_TRANSFORMER_MLP_NORM | MODEL_TRANSFORMER_GATE;
    if (keep >= 2) parts |= MODEL_TRANSFORMER_PROJECT | MODEL_TRANSFORMER_MLP;
    if (keep >= 3) parts |= MODEL_TRANSFORMER_ATTEND | MODEL_TRANSFORMER_MIDDLE;
    return parts;
}

static void record_layer(const dart_trainer *trainer, dart_stream *stream, uint32_t layer)
{
    trainer_pace_layer(trainer, stream, false);
    if (trainer->config.transformer) {
        const model_transformer_args args = transformer_args(trainer, layer);
        model_transformer_train(stream, &args, MODEL_TRANSFORMER_ALL);
    } else {
        const model_block_args args = block_args(trainer, layer);
        model_block_train(stream, &args, MODEL_BLOCK_ALL);
    }
}

static const dart_tensor *head_of(const dart_trainer *trainer, bool gradient)
{
    const model_role role = trainer->config.tied ? MODEL_EMBEDDING : MODEL_HEAD;
    return gradient ? trainer_gradient(trainer, 0, role) : trainer_weight(trainer, 0, role);
}

/* Those rows of the last layer's stream that have a target; absent where it has no others. */
static dart_tensor rows_of_stream(const dart_trainer *trainer)
{
    return trainer_is_labelled(trainer) ? (dart_tensor){0} : trainer_part_tensor(trainer, TRAINER_PLACES);
}

/* The input of layer 0 gives its place to the last norm's output. */
static dart_status record_forward(const dart_trainer *trainer, dart_stream *stream, bool backward)
{
    const dart_model_config *c = &trainer->config;
    const dart_tensor normed = trainer_work_tensor(trainer, TRAINER_INPUT, 0);
    dart_embed(stream, &(dart_embed_args){.T = trainer->T, .V = c->V, .W = c->W, .ids = trainer_part_tensor(trainer, TRAINER_IDS),
                                          .weight = *trainer_weight(trainer, 0, MODEL_EMBEDDING),
                                          .y = trainer_work_tensor(trainer, TRAINER_X, 0)});
    for (uint32_t l = 0; l < c->layers; l++) record_layer(trainer, stream, l);
    trainer_pace_head(trainer, stream);
    dart_rms_norm(stream, &(dart_rms_norm_args){.T = trainer->rows.count, .W = c->W, .eps = c->eps,
                                                .x = trainer_work_tensor(trainer, TRAINER_X, c->layers),
                                                .weight = *trainer_weight(trainer, 0, MODEL_FINAL_NORM), .rows = rows_of_stream(trainer),
                                                .y = normed});
    dart_cross_entropy_args loss = {
        .T = trainer->rows.count, .V = c->V, .W = c->W, .x = normed, .weight = *head_of(trainer, false),
        .targets = trainer_part_tensor(trainer, TRAINER_TARGETS), .share = trainer_part_tensor(trainer, TRAINER_SHARE),
        .loss = trainer_sum_tensor(trainer, TRAINER_LOSS), .correct = trainer_sum_tensor(trainer, TRAINER_CORRECT)};
    if (backward) {
        loss.grad_x = trainer_shared_tensor(trainer, TRAINER_SLOPE_INPUT);
        loss.grad_weight = *head_of(trainer, true);
    }
    return dart_cross_entropy(stream, &loss);
}

/* The gradient of the stream lies in TRAINER_SLOPE_X before and after. */
static void record_layer_backward(const dart_trainer *trainer, dart_stream *stream, uint32_t layer)
{
    const model_block_slopes slopes = {
        .x = trainer_shared_tensor(trainer, TRAINER_SLOPE_X), .input = trainer_shared_tensor(trainer, TRAINER_SLOPE_INPUT),
        .proj = trainer_shared_tensor(trainer, TRAINER_SLOPE_PROJ), .conv = trainer_shared_tensor(trainer, TRAINER_SLOPE_CONV),
        .sma_proj = trainer_shared_tensor(trainer, TRAINER_SLOPE_SMA_PROJ), .sma_conv = trainer_shared_tensor(trainer, TRAINER_SLOPE_SMA_CONV),
        .normed = trainer_shared_tensor(trainer, TRAINER_SLOPE_NORMED), .y = trainer_shared_tensor(trainer, TRAINER_SLOPE_Y),
        .r = trainer_shared_tensor(trainer, TRAINER_SLOPE_R), .dh = trainer_shared_tensor(trainer, TRAINER_SLOPE_DH),
        .copied = layer + 1 < trainer->config.layers, .copies = layer > 0};
    const model_block_args args = block_args(trainer, layer);
    const model_block_gradients gradients = places_of(trainer->gradients, layer);
    model_block_train(stream, &args, parts_again(trainer, layer));
    model_block_backward(stream, &args, &gradients, &slopes);
}

static void record_transformer_backward(const dart_trainer *trainer, dart_stream *stream, uint32_t layer)
{
    const model_transformer_slopes slopes = {
        .x = trainer_shared_tensor(trainer, TRAINER_SLOPE_X), .input = trainer_shared_tensor(trainer, TRAINER_SLOPE_INPUT),
        .qkv = trainer_shared_tensor(trainer, TRAINER_SLOPE_PROJ), .o = trainer_shared_tensor(trainer, TRAINER_SLOPE_Y),
        .mlp = trainer_shared_tensor(trainer, TRAINER_SLOPE_MLP), .hidden = trainer_shared_tensor(trainer, TRAINER_SLOPE_HIDDEN)};
    const model_transformer_args args = transformer_args(trainer, layer);
    const model_transformer_gradients gradients = model_transformer_places(&trainer->gradients[(size_t)layer * MODEL_ROLE_COUNT]);
    model_transformer_train(stream, &args, transformer_parts_again(trainer, layer));
    model_transformer_backward(stream, &args, &gradients, &slopes);
}

static dart_status record_backward(const dart_trainer *trainer, dart_stream *stream)
{
    const dart_model_config *c = &trainer->config;
    const dart_tensor slope = trainer_shared_tensor(trainer, TRAINER_SLOPE_X);
    const bool few = trainer_is_labelled(trainer);
    if (!few) dart_fill(stream, &(dart_fill_args){.T = trainer->T, .W = c->W, .y = slope});
    dart_rms_norm_backward(stream, &(dart_rms_norm_backward_args){
        .T = trainer->rows.count, .W = c->W, .eps = c->eps, .x = trainer_work_tensor(trainer, TRAINER_X, c->layers),
        .weight = *trainer_weight(trainer, 0, MODEL_FINAL_NORM), .rows = rows_of_stream(trainer),
        .up_y = trainer_shared_tensor(trainer, TRAINER_SLOPE_INPUT), .grad_x = few ? slope_of_rows(trainer) : slope,
        .grad_weight = *trainer_gradient(trainer, 0, MODEL_FINAL_NORM)});
    trainer_end_stage(trainer, stream, c->layers + 1);
    for (uint32_t l = c->layers; l-- > 0;) {
        trainer_pace_layer(trainer, stream, true);
        if (c->transformer) record_transformer_backward(trainer, stream, l);
        else record_layer_backward(trainer, stream, l);
        trainer_end_stage(trainer, stream, l + 1);
    }
    const dart_status status = dart_embed_backward(stream, &(dart_embed_backward_args){
        .T = trainer->T, .V = c->V, .W = c->W, .plan = trainer_part_tensor(trainer, TRAINER_PLAN), .up_y = slope,
        .grad_weight = *trainer_gradient(trainer, 0, MODEL_EMBEDDING)});
    trainer_end_stage(trainer, stream, 0);
    return status;
}

/* ---- Gradients and the update ---- */

static dart_tensor segment_tensor(dart_buffer *buffer) { return (dart_tensor){.buffer = buffer, .dtype = DART_F32}; }
static dart_tensor own_tensor(const trainer_segment *s, dart_buffer *buffer, dart_dtype dtype)
{
    return (dart_tensor){.buffer = buffer, .dtype = dtype, .offset = s->first};
}

/* Numbers of 32 bits, a multiple of 64 of them, pass as f32: what only moves keeps its bits. */
static dart_status record_copy(const dart_trainer *trainer, dart_stream *stream, trainer_shared from, trainer_shared to, uint64_t elements)
{
    return dart_convert(stream, &(dart_convert_args){.T = (uint32_t)(elements / 64), .W = 64, .x = segment_tensor(trainer->shared[from]),
                                                     .y = segment_tensor(trainer->shared[to])});
}

static dart_status record_take(const dart_trainer *trainer, dart_stream *stream)
{
    return record_copy(trainer, stream, TRAINER_AHEAD, TRAINER_PART, trainer_part_at(trainer, TRAINER_PART_END));
}

static dart_status record_begin(const dart_trainer *trainer, dart_stream *stream)
{
    if (trainer->shared[TRAINER_AHEAD] != NULL) record_take(trainer, stream);
    for (uint32_t i = 0; i < trainer->segments_count; i++) {
        trainer_pace_bytes(trainer, stream, 4 * trainer->segments[i].elements, 1);
        dart_fill(stream, &(dart_fill_args){.T = (uint32_t)(trainer->segments[i].elements / 64), .W = 64,
                                            .y = segment_tensor(trainer->segments[i].grad)});
    }
    return dart_fill(stream, &(dart_fill_args){.T = TRAINER_SUM_COUNT, .W = TRAINER_SUM, .y = trainer_shared_tensor(trainer, TRAINER_SUMS)});
}

static dart_status record_norm(const dart_trainer *trainer, dart_stream *stream)
{
    dart_gradient *list = device_calloc(trainer->device, trainer->segments_count, sizeof *list);
    if (list == NULL) return DART_OUT_OF_MEMORY;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < trainer->segments_count; i++) {
        list[i] = (dart_gradient){.elements = trainer->segments[i].elements, .grad = segment_tensor(trainer->segments[i].grad)};
        elements += list[i].elements;
    }
    trainer_pace_bytes(trainer, stream, 4 * elements, trainer->segments_count);
    dart_grad_norm_args args = {.count = trainer->segments_count, .clip = trainer->options.clip > 0 ? trainer->options.clip : INFINITY,
                                .gradients = list, .scale = trainer_sum_tensor(trainer, TRAINER_SCALE)};
    if (trainer->scales) {
        args.factor = trainer_part_tensor(trainer, TRAINER_SHARE);
        args.factor.offset++;
    }
    const dart_status status = dart_grad_norm(stream, &args);
    free(list);
    return status;
}

static dart_status record_update(const dart_trainer *trainer, dart_stream *stream)
{
    dart_status status = record_norm(trainer, stream);
    for (uint32_t i = 0; i < trainer->segments_count && status == DART_OK; i++) {
        const trainer_segment *s = &trainer->segments[i];
        if (s->own == 0) continue;
        trainer_pace_bytes(trainer, stream, 30 * s->own, 1); /* w, m, v twice, the gradient, a copy */
        dart_adamw_args args = {.elements = s->own, .decays = s->decays, .w = own_tensor(s, s->w, DART_F32), .m = segment_tensor(s->m),
                                .v = segment_tensor(s->v), .grad = own_tensor(s, s->grad, DART_F32),
                                .scale = trainer_sum_tensor(trainer, TRAINER_SCALE),
                                .hyper = trainer_shared_tensor(trainer, TRAINER_HYPER)};
        if (s->copied) args.copy = own_tensor(s, s->copy, trainer->weights_dtype);
        status = dart_adamw(stream, &args);
    }
    return status == DART_OK ? record_copy(trainer, stream, TRAINER_SUMS, TRAINER_RESULT, TRAINER_SUM_COUNT * TRAINER_SUM) : status;
}

static dart_status record(const dart_trainer *trainer, trainer_recording recording, dart_stream *stream)
{
    switch (recording) {
    case TRAINER_TAKE: return record_take(trainer, stream);
    case TRAINER_BEGIN: return record_begin(trainer, stream);
    case TRAINER_PASSES: {
        const dart_status status = record_forward(trainer, stream, true);
        if (trainer_halves(trainer)) stream_end_part(stream);
        return status == DART_OK ? record_backward(trainer, stream) : status;
    }
    case TRAINER_NORM: return record_norm(trainer, stream);
    case TRAINER_UPDATE: return record_update(trainer, stream);
    case TRAINER_EVALUATE: return record_forward(trainer, stream, false);
    case TRAINER_RECORDING_COUNT: break;
    }
    return DART_INVALID_ARGUMENT;
}

dart_status trainer_record(dart_trainer *trainer, trainer_recording recording, const char *call)
{
    dart_stream **stream = &trainer->streams[recording];
    if (trainer->recorded[recording]) return DART_OK;
    dart_status status = *stream != NULL ? DART_OK : dart_stream_create(trainer->device, NULL, stream);
    if (status != DART_OK) return trainer_take(trainer, status, call);
    trainer_cut(trainer, recording);
    status = dart_stream_begin(*stream);
    if (status == DART_OK) status = record(trainer, recording, *stream);
    trainer->recorded[recording] = status == DART_OK;
    return trainer_take_stream(trainer, *stream, status, call);
}
