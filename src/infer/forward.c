/* The model recorded for a piece of some sequences: the tensors of the state go to the blocks, and what stands before and after
 * them. */
#include "state.h"

#include "ops/mixer/mixer.h"
#include "ops/window/window.h"
#include "runtime/stream.h"

#include <stdlib.h>
#include <string.h>

/* ---- The state's tensors ---- */

/* A tensor of the layer's carried state, from sequence b on. */
static dart_tensor carried(const dart_state *state, uint32_t layer, uint64_t bytes_at, dart_dtype dtype, uint32_t b, uint64_t width)
{
    return (dart_tensor){.buffer = state->layers[layer], .dtype = dtype, .offset = bytes_at / dart_dtype_size(dtype) + b * width};
}

static model_block_carried carried_by(const dart_state *state, uint32_t layer, uint32_t b)
{
    const dart_model_config *c = &state->model->config;
    const dart_dtype dtype = state->model->activations;
    const uint64_t memory = model_config_memory(c), kept = model_config_tail(c);
    model_block_carried all = {.h = carried(state, layer, state->h_at, DART_F32, b, memory),
                               .tail = carried(state, layer, state->tail_at, dtype, b, kept * model_config_conv(c))};
    if (state->sma) {
        all.open = carried(state, layer, state->open_at, DART_F32, b, memory);
        all.open_decay = carried(state, layer, state->decay_at, DART_F32, b, c->H);
        all.sma_tail = carried(state, layer, state->sma_tail_at, dtype, b, kept * model_config_sma_conv(c));
    }
    return all;
}

static model_block_window window_of(const dart_state *state, uint32_t layer)
{
    const dart_dtype dtype = state->model->activations;
    const uint32_t size = (uint32_t)dart_dtype_size(dtype);
    dart_buffer *buffer = state->windows[layer];
    model_block_window window = {.rows = {.buffer = buffer, .dtype = dtype, .offset = state->rows_at / size},
                                 .steps = {.buffer = buffer, .dtype = DART_F32, .offset = state->steps_at / 4},
                                 .hin = {.buffer = buffer, .dtype = dtype, .offset = state->hin_at / size}};
    if (size < 4) window.hin_scale = (dart_tensor){.buffer = buffer, .dtype = DART_F32, .offset = state->hin_scale_at / 4};
    return window;
}

/* The arguments of one layer. The lists of runs lie in state->runs until the next call. */
static model_block_args block_args(dart_state *state, const model_pass *pass, uint32_t layer)
{
    const model_span *span = &pass->span;
    dart_tensor seq = model_work_tensor(state, WORK_SEQ);
    seq.offset = 2 * (uint64_t)pass->b;
    const uint32_t closing_count = span->close_to - span->close_from;
    dart_memories *closing = closing_count > 0 ? &state->runs[span->runs] : NULL;
    for (uint32_t i = 0; i < span->runs; i++) {
        dart_memories *run = &state->runs[i];
        *run = model_memories_of(state, layer, pass->b, i);
        if (span->seen > 0) run->M = (uint32_t)base_smaller(run->M, span->seen - run->first);
    }
    for (uint32_t i = 0; i < closing_count; i++) closing[i] = model_memories_of(state, layer, pass->b, span->close_from + i);
    model_block_args args = {
        .config = &state->model->config, .B = pass->B, .L = pass->L, .S = state->S, .sma = state->sma,
        .x = model_work_tensor(state, WORK_STREAM), .seq = seq, .weights = model_layer_weights(state->model, layer),
        .carried = carried_by(state, layer, pass->b),
        .work = {.input = model_work_tensor(state, WORK_INPUT), .proj = model_work_tensor(state, WORK_PROJ),
                 .conv = model_work_tensor(state, WORK_CONV), .sma_proj = model_work_tensor(state, WORK_SMA_PROJ),
                 .sma_conv = model_work_tensor(state, WORK_SMA_CONV), .r = model_work_tensor(state, WORK_R),
                 .y = model_work_tensor(state, WORK_Y)},
        .read = state->runs, .read_count = span->runs, .closing = closing, .closing_count = closing_count};
    if (pass->windowed) args.window = window_of(state, layer);
    if (pass->step && state->keeps_queries) args.work.sma_conv = model_queries_of(state, layer);
    if (pass->T > 0) {
        const uint64_t room = base_round_up(state->raw_slots * model_config_memory(&state->model->config) * 4, BACKEND_ALIGN) / 4;
        const dart_tensor raw = {.buffer = state->raw, .dtype = DART_F32};
        args.T = pass->T;
        args.cu = model_work_tensor(state, WORK_CU);
        args.seq = (dart_tensor){0};
        if (state->sma) args.kept = (model_block_kept){.dh = raw, .hin = model_columns(raw, room, 0), .decay = model_columns(raw, 2 * room, 0)};
    }
    return args;
}

/* The list of blocks lies in state->key_blocks until the next call. */
static model_transformer_args transformer_args(const dart_state *state, const model_pass *pass, uint32_t layer)
{
    const model_span *span = &pass->span;
    for (uint32_t i = 0; i < span->runs; i++) state->key_blocks[i] = model_cache_part(state, layer, pass->b, i);
    dart_tensor seq = model_work_tensor(state, WORK_SEQ);
    const dart_tensor input = model_work_tensor(state, WORK_INPUT);
    seq.offset = 2 * (uint64_t)pass->b;
    return (model_transformer_args){
        .config = &state->model->config, .B = pass->B, .L = pass->L, .T = pass->T, .x = model_work_tensor(state, WORK_STREAM),
        .seq = pass->T > 0 ? (dart_tensor){0} : seq, .cu = pass->T > 0 ? model_work_tensor(state, WORK_CU) : (dart_tensor){0},
        .weights = model_transformer_layer_weights(state->model, layer),
        .work = {.input = input, .qkv = model_work_tensor(state, WORK_PROJ), .o = model_work_tensor(state, WORK_Y), .mlp_input = input,
                 .mlp = model_work_tensor(state, WORK_MLP), .hidden = model_work_tensor(state, WORK_HIDDEN)},
        .cache = state->key_blocks, .cache_count = span->runs, .append_from = span->close_from};
}

/* ---- Recording ---- */

enum { STEP_LAUNCHES = 8, PIECE_LAUNCHES = 12 }; /* of a layer of a step, of a piece, about */

/* The runs of a layer, which the next one's take the place of, in a list of its own; returns those that close. */
static const dart_memories *keep_runs(const dart_state *state, const model_span *span, dart_memories *own)
{
    const size_t count = span->runs + (span->close_to - span->close_from);
    if (count > 0) memcpy(own, state->runs, count * sizeof *own);
    return own + span->runs;
}

/* Nothing in a step waits for its folds: those of all layers are one launch behind the last layer, or launches that stand beside one another, so that
 * the many that find nothing to do cost next to nothing, and a few sequences' fold side by side. */
static dart_status record_folds(dart_state *state, dart_stream *stream, const model_pass *pass, uint32_t first, uint32_t end, dart_window_mode mode)
{
    dart_device *device = state->model->device;
    const size_t count = end - first, lists = (size_t)pass->span.runs + (pass->span.close_to - pass->span.close_from);
    const uint64_t bytes = state->window_bytes + 2 * state->layer_bytes;
    dart_window_args *layers = device_calloc(device, count, sizeof *layers);
    dart_memories *runs = device_calloc(device, count * lists + 1, sizeof *runs);
    dart_status status = DART_OK;
    if (layers == NULL || runs == NULL) status = atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < count && status == DART_OK; i++) {
        const model_block_args args = block_args(state, pass, first + i);
        layers[i] = model_block_fold_args(&args, mode);
        layers[i].closing = keep_runs(state, &pass->span, &runs[i * lists]);
    }
    if (status == DART_OK && window_folds_fit(stream, layers, (uint32_t)count)) {
        model_pace_bytes(state, stream, count * bytes, 1);
        status = window_folds(stream, layers, (uint32_t)count);
    } else {
        for (size_t i = 0; i < count && status == DART_OK; i++) {
            model_pace_bytes(state, stream, bytes, 1);
            status = dart_window_fold(stream, &layers[i]);
        }
    }
    free(layers);
    free(runs);
    return status;
}

static dart_status record_window_steps(dart_state *state, dart_stream *stream, const model_pass *pass, uint32_t first, uint32_t end)
{
    dart_status status = DART_OK;
    for (uint32_t layer = first; status == DART_OK && layer < end; layer++) {
        stream_pace(stream, model_step_layer(state), STEP_LAUNCHES);
        const model_block_args args = block_args(state, pass, layer);
        status = model_block_window_begin(stream, &args);
        if (status == DART_OK) status = model_block_window_end(stream, &args);
    }
    return status;
}

/* The steps of layers, their runs and, of many sequences, their windows. */
typedef struct step_list {
    uint32_t count;
    dart_mixer_step_args *steps;
    mixer_window *windows;
    dart_memories *runs;
} step_list;

static void free_steps(step_list *list)
{
    free(list->steps);
    free(list->windows);
    free(list->runs);
}

static dart_status list_steps(dart_state *state, const model_pass *pass, uint32_t first, uint32_t end, step_list *list)
{
    dart_device *device = state->model->device;
    const size_t count = list->count = end - first, lists = (size_t)pass->span.runs + (pass->span.close_to - pass->span.close_from);
    list->steps = device_calloc(device, count, sizeof *list->steps);
    list->windows = pass->windowed ? device_calloc(device, count, sizeof *list->windows) : NULL;
    list->runs = lists > 0 ? device_calloc(device, count * lists, sizeof *list->runs) : NULL;
    if (list->steps == NULL || (pass->windowed && list->windows == NULL) || (lists > 0 && list->runs == NULL)) {
        free_steps(list);
        return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        const model_block_args args = block_args(state, pass, first + i);
        list->steps[i] = model_block_step_args(&args);
        if (pass->windowed)
            list->windows[i] = (mixer_window){.rows = args.window.rows, .steps = args.window.steps, .hin = args.window.hin,
                                              .hin_scale = args.window.hin_scale};
        if (lists == 0) continue;
        list->steps[i].memories = &list->runs[i * lists];
        list->steps[i].closing = keep_runs(state, &pass->span, &list->runs[i * lists]);
    }
    return DART_OK;
}

/* Steps of layers first .. end - 1: in one launch where they fit. */
static dart_status record_steps(dart_state *state, dart_stream *stream, const model_pass *pass, uint32_t first, uint32_t end)
{
    step_list list = {0};
    dart_status status = list_steps(state, pass, first, end, &list);
    if (status != DART_OK) return status;
    if (mixer_layers_fit(stream, list.steps, list.count)) {
        stream_pace(stream, list.count * model_step_layer(state), 1);
        status = mixer_layers(stream, list.steps, list.count);
    } else {
        for (uint32_t i = 0; i < list.count && status == DART_OK; i++) {
            stream_pace(stream, model_step_layer(state), STEP_LAUNCHES);
            status = dart_mixer_step(stream, &list.steps[i]);
        }
    }
    free_steps(&list);
    return status;
}

/* The same through windows. */
static dart_status record_windowed(dart_state *state, dart_stream *stream, const model_pass *pass, uint32_t first, uint32_t end)
{
    step_list list = {0};
    bool fit = !state->keeps_queries && !(state->sma && state->model->config.independent_c);
    dart_status status = fit ? list_steps(state, pass, first, end, &list) : DART_OK;
    if (status != DART_OK) return status;
    const bool folds = fit && mixer_windows_fit(stream, list.steps, list.windows, list.count);
    fit = folds || (fit && mixer_window_layers_fit(stream, list.steps, list.windows, list.count));
    if (fit) stream_pace(stream, list.count * model_step_layer(state), 1);
    if (folds) status = mixer_windows(stream, list.steps, list.windows, list.count);
    else if (fit) status = mixer_window_layers(stream, list.steps, list.windows, list.count);
    free_steps(&list);
    if (!fit) status = record_window_steps(state, stream, pass, first, end);
    return folds || status != DART_OK ? status : record_folds(state, stream, pass, first, end, DART_WINDOW_STEP);
}

dart_status model_record_embedding(dart_state *state, dart_stream *stream, const model_pass *pass, model_work ids)
{
    const dart_model_config *c = &state->model->config;
    return dart_embed(stream, &(dart_embed_args){
        .T = pass->T > 0 ? pass->T : pass->B * pass->L, .V = c->V, .W = c->W, .ids = model_work_tensor(state, ids),
        .weight = *model_weight(state->model, 0, MODEL_EMBEDDING), .y = model_work_tensor(state, WORK_STREAM)});
}

dart_status model_record_layers(dart_state *state, dart_stream *stream, const model_pass *pass, uint32_t first, uint32_t end)
{
    dart_status status = DART_OK;
    if (pass->windowed) return record_windowed(state, stream, pass, first, end);
    if (pass->L == 1 && pass->T == 0 && state->fused) return record_steps(state, stream, pass, first, end);
    const uint64_t rows = pass->T > 0 ? pass->T : (uint64_t)pass->B * pass->L;
    for (uint32_t layer = first; status == DART_OK && layer < end; layer++) {
        if (pass->step) stream_pace(stream, model_step_layer(state), STEP_LAUNCHES);
        else stream_pace(stream, model_piece_work(state, rows, pass->context), PIECE_LAUNCHES);
        if (state->model->config.transformer) {
            const model_transformer_args args = transformer_args(state, pass, layer);
            status = pass->T > 0 ? model_transformer_packed(stream, &args, state->host_cu) : model_transformer_piece(stream, &args);
            continue;
        }
        const model_block_args args = block_args(state, pass, layer);
        if (pass->T > 0) status = model_block_packed(stream, &args, state->host_cu);
        else status = model_block_piece(stream, &args);
    }
    return status;
}

dart_status model_record_fold(dart_state *state, dart_stream *stream, dart_window_mode mode)
{
    const model_pass pass = {.B = state->B, .L = 1, .windowed = true};
    return record_folds(state, stream, &pass, 0, state->model->config.layers, mode);
}

dart_status model_record_norm(dart_state *state, dart_stream *stream, uint32_t T, const dart_tensor *rows,
                              const dart_tensor *y)
{
    const dart_model_config *c = &state->model->config;
    const dart_tensor bias = *model_weight(state->model, 0, MODEL_FINAL_NORM_BIAS);
    if (bias.buffer != NULL)
        return dart_layer_norm(stream, &(dart_layer_norm_args){
            .T = T, .W = c->W, .eps = c->eps, .x = model_work_tensor(state, WORK_STREAM), .weight = *model_weight(state->model, 0, MODEL_FINAL_NORM),
            .bias = bias, .rows = rows != NULL ? *rows : (dart_tensor){0}, .y = *y});
    dart_rms_norm_args args = {.T = T, .W = c->W, .eps = c->eps, .x = model_work_tensor(state, WORK_STREAM),
                               .weight = *model_weight(state->model, 0, MODEL_FINAL_NORM), .y = *y};
    if (rows != NULL) args.rows = *rows;
    return dart_rms_norm(stream, &args);
}

dart_status model_record_head(dart_state *state, dart_stream *stream, uint32_t T, const dart_tensor *x)
{
    const dart_model_config *c = &state->model->config;
    return dart_linear(stream, &(dart_linear_args){
        .T = T, .IN = c->W, .OUT = c->V, .x = *x, .weight = *model_head(state->model),
        .y = model_work_tensor(state, WORK_LOGITS)});
}

static dart_norm_linear_args norm_head(const dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    return (dart_norm_linear_args){.T = state->B, .IN = c->W, .OUT = c->V, .eps = c->eps, .x = model_work_tensor(state, WORK_STREAM),
                                   .norm = *model_weight(state->model, 0, MODEL_FINAL_NORM), .weight = *model_head(state->model),
                                   .y = model_work_tensor(state, WORK_LOGITS)};
}

dart_status model_record_norm_head(dart_state *state, dart_stream *stream)
{
    const dart_norm_linear_args args = norm_head(state);
    return dart_norm_linear(stream, &args);
}

bool model_norm_head_pays(const dart_state *state)
{
    const dart_norm_linear_args args = norm_head(state);
    return mixer_norm_linear_pays(state->model->device, &args);
}

dart_status model_record_choice(dart_state *state, dart_stream *stream, bool step)
{
    return dart_sample(stream, &(dart_sample_args){
        .T = state->B, .V = state->model->config.V, .keep_ended = step, .mark_ids = step, .logits = model_work_tensor(state, WORK_LOGITS),
        .seen = model_work_tensor(state, WORK_SEEN), .settings = model_work_tensor(state, WORK_SETTINGS),
        .seq = model_work_tensor(state, WORK_SEQ), .ids = model_work_tensor(state, WORK_NEXT)});
}

dart_status model_record_seen(dart_state *state, dart_stream *stream, const model_pass *pass)
{
    const uint32_t V = state->model->config.V;
    dart_mark_ids_args args = {.B = pass->B, .L = pass->L, .T = pass->T, .V = V, .ids = model_work_tensor(state, WORK_IDS),
                               .seen = model_work_tensor(state, WORK_SEEN)};
    args.seen.offset = pass->b * base_ceil_div(V, 32);
    if (pass->T > 0) args.cu = model_work_tensor(state, WORK_CU);
    else {
        args.seq = model_work_tensor(state, WORK_SEQ);
        args.seq.offset = 2 * (uint64_t)pass->b;
    }
    return dart_mark_ids(stream, &args);
}

dart_status model_record_advance(dart_state *state, dart_stream *stream)
{
    return dart_advance(stream, &(dart_advance_args){
        .B = state->B, .slots = MODEL_LOG, .seq = model_work_tensor(state, WORK_SEQ),
        .ids = model_work_tensor(state, WORK_NEXT), .log = model_work_tensor(state, WORK_LOG),
        .stops = model_work_tensor(state, WORK_STOPS), .live = model_work_tensor(state, WORK_LIVE)});
}

/* ---- Which blocks a piece touches ---- */

/* Blocks have room for more memories than there are, and the step's attention is shared out by room. Where there is one sequence, whose memories lie
 * one after another, a recording counts no more of them than it may see, rounded up: it is made again once in so many tokens. */
enum { TOKENS_OF_A_RECORDING = 2048 };

static uint32_t block_of(const dart_state *state, uint64_t memory)
{
    uint32_t i = 0;
    while (i + 1 < state->blocks_count && state->blocks[i + 1].first <= memory) i++;
    return i;
}

/* Every token sees its own keys. */
static model_span cache_span_of(const dart_state *state, uint32_t b, uint32_t B, const int32_t *seq)
{
    uint64_t first = UINT64_MAX, end = 0;
    for (uint32_t i = b; i < b + B; i++) {
        const uint64_t position = (uint64_t)seq[2 * i], count = (uint64_t)seq[2 * i + 1];
        if (count == 0) continue;
        first = base_smaller(first, position);
        end = base_larger(end, position + count);
    }
    if (end == 0) return (model_span){.runs = 1, .close_to = 1};
    const uint32_t last = model_cache_block(state, end - 1);
    return (model_span){.runs = last + 1, .close_from = model_cache_block(state, first), .close_to = last + 1};
}

model_span model_span_of(const dart_state *state, uint32_t b, uint32_t B, const int32_t *seq, bool steps)
{
    model_span span = {0};
    if (state->model->config.transformer) return cache_span_of(state, b, B, seq);
    const uint64_t S = state->S;
    uint64_t first = UINT64_MAX, end = 0, seen = 0; /* memories that may close, memories that are read */
    const uint64_t room = model_memories_room(state);
    if (!state->sma) return span;
    for (uint32_t i = b; i < b + B; i++) {
        const uint64_t position = (uint64_t)seq[2 * i], count = (uint64_t)seq[2 * i + 1];
        if (count == 0) continue;
        const uint64_t closing = (position + count) / S, stop = steps ? base_smaller(position / S + 1, room) : closing;
        if (stop > position / S && position / S < first) first = position / S;
        if (stop > end) end = stop;
        if ((position + count - 1) / S > seen) seen = (position + count - 1) / S;
    }
    if (first < end) {
        span.close_from = block_of(state, first);
        span.close_to = block_of(state, end - 1) + 1;
    }
    if (seen > 0) span.runs = block_of(state, seen - 1) + 1;
    if (steps && state->B == 1) span.seen = base_round_up(seen, base_ceil_div(TOKENS_OF_A_RECORDING, S));
    return span;
}
