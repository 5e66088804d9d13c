/* What a batch of sequences keeps: how a state begins, ends and is asked. */
#include "state.h"

#include <stdlib.h>

/* ---- Life ---- */

static dart_status allocate(dart_state *state)
{
    dart_device *device = state->model->device;
    const uint32_t layers = state->model->config.layers;
    state->positions = device_calloc(device, state->B, sizeof *state->positions);
    state->layers = device_calloc(device, layers, sizeof *state->layers);
    state->host_ids = device_calloc(device, state->rows, sizeof *state->host_ids);
    state->host_log = device_calloc(device, state->B, MODEL_LOG * sizeof *state->host_log);
    state->host_steps = device_calloc(device, state->B, MODEL_LOG * sizeof *state->host_steps);
    state->host_seq = device_calloc(device, state->B, 2 * sizeof *state->host_seq);
    state->host_cu = device_calloc(device, (size_t)state->B + 1, sizeof *state->host_cu);
    state->host_next = device_calloc(device, state->B, sizeof *state->host_next);
    state->host_settings = device_calloc(device, state->B, SETTING_WORDS * sizeof *state->host_settings);
    state->host_stops = device_calloc(device, state->B, STOP_WORDS * sizeof *state->host_stops);
    state->ended = device_calloc(device, state->B, sizeof *state->ended);
    state->idle = device_calloc(device, state->B, sizeof *state->idle);
    state->taken = device_calloc(device, state->B, sizeof *state->taken);
    state->queries_at = device_calloc(device, state->B, sizeof *state->queries_at);
    state->host_ends = device_calloc(device, state->B, sizeof *state->host_ends);
    state->host_rows = device_calloc(device, state->logits_rows, sizeof *state->host_rows);
    state->host_places = device_calloc(device, state->logits_rows, sizeof *state->host_places);
    if (state->host_cu == NULL || state->positions == NULL || state->layers == NULL || state->host_ids == NULL || state->host_log == NULL ||
        state->host_steps == NULL || state->host_seq == NULL || state->host_next == NULL || state->host_settings == NULL ||
        state->host_stops == NULL || state->ended == NULL || state->idle == NULL || state->taken == NULL || state->queries_at == NULL ||
        state->host_ends == NULL || state->host_rows == NULL || state->host_places == NULL)
        return DART_OUT_OF_MEMORY;
    dart_status status = DART_OK;
    for (uint32_t l = 0; l < layers && status == DART_OK && state->layer_bytes > 0; l++)
        status = dart_buffer_create(device, state->layer_bytes, &state->layers[l]);
    for (int w = 0; w < WORK_COUNT && status == DART_OK; w++) {
        const uint64_t bytes = model_work_bytes(state, (model_work)w);
        if (bytes > 0) status = dart_buffer_create(device, bytes, &state->work[w]);
        state->work_bytes += bytes;
    }
    if (status == DART_OK) status = model_queries_reserve(state);
    if (status == DART_OK) status = dart_stream_create(device, NULL, &state->prefill);
    if (status == DART_OK) status = dart_stream_create(device, NULL, &state->ahead);
    if (status == DART_OK) status = dart_stream_create(device, NULL, &state->decode);
    return status;
}

dart_status dart_state_create(dart_model *model, const dart_state_options *options, dart_state **state)
{
    if (model == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&model->report, state != NULL, "dart_state_create: no place for the state");
    const dart_state_options defaults = {0};
    if (options == NULL) options = &defaults;
    dart_state *made = device_calloc(model->device, 1, sizeof *made);
    if (made == NULL) {
        const dart_status lost = atomic_load(&model->device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
        return model_take(&model->report, &model->device->report, lost, "dart_state_create");
    }
    if (base_report_init(&made->report, model->report.log) != DART_OK) {
        free(made);
        return base_fail(&model->report, DART_OUT_OF_MEMORY, "dart_state_create: no lock for a state");
    }
    made->model = model;
    const base_report *from = &made->report;
    dart_status status = DART_OK;
    TRY(model_state_plan(made, options));
    from = &model->device->report;
    TRY(allocate(made));
    from = &made->report;
    TRY(dart_state_reset(made, -1));
    *state = made;
    return DART_OK;
fail:
    if (atomic_load(&model->device->lost)) status = DART_DEVICE_LOST;
    model_take(&model->report, from, status, "dart_state_create");
    dart_state_destroy(&made);
    return status;
}

void dart_state_destroy(dart_state **state)
{
    if (state == NULL || *state == NULL) return;
    dart_state *s = *state;
    file_leftover_wait(&s->left_saved);
    file_leftover_wait(&s->left_loaded);
    model_prepared_drop(s);
    dart_stream_destroy(&s->prefill);
    dart_stream_destroy(&s->ahead);
    dart_stream_destroy(&s->decode);
    model_memories_destroy(s);
    model_cache_destroy(s);
    model_marks_destroy(s);
    model_windows_destroy(s);
    if (s->layers != NULL)
        for (uint32_t l = 0; l < s->model->config.layers; l++) dart_buffer_destroy(&s->layers[l]);
    for (int w = 0; w < WORK_COUNT; w++) dart_buffer_destroy(&s->work[w]);
    dart_buffer_destroy(&s->queries);
    free(s->layers);
    free(s->positions);
    free(s->host_ids);
    free(s->host_log);
    free(s->host_steps);
    free(s->host_seq);
    free(s->host_cu);
    free(s->host_next);
    free(s->host_settings);
    free(s->host_stops);
    free(s->ended);
    free(s->idle);
    free(s->taken);
    free(s->queries_at);
    free(s->host_ends);
    free(s->host_rows);
    free(s->host_places);
    base_report_destroy(&s->report);
    free(s);
    *state = NULL;
}

size_t dart_state_error(const dart_state *state, char *text, size_t size)
{
    return state != NULL ? base_report_copy(&state->report, text, size) : 0;
}

/* ---- Queries ---- */

uint64_t dart_state_position(const dart_state *state, uint32_t b)
{
    return state != NULL && b < state->B ? (uint64_t)state->positions[b] : 0;
}

uint64_t dart_state_longest(const dart_state *state) { return state != NULL ? state->longest_ns : 0; }

uint64_t dart_state_bytes(const dart_state *state, dart_state_kind kind)
{
    if (state == NULL) return 0;
    const dart_model_config *c = &state->model->config;
    const uint64_t memory = model_config_memory(c), activation = dart_dtype_size(state->model->activations);
    const uint64_t stored = dart_dtype_size(state->model->memories), B = state->B;
    const uint64_t one_memory = (memory * stored + (uint64_t)c->H * c->N * 4) * c->layers;
    uint64_t tokens = 0, closed = 0, room = 0;
    for (uint32_t b = 0; b < state->B; b++) {
        tokens += (uint64_t)state->positions[b];
        closed += (uint64_t)state->positions[b] / state->S;
    }
    for (uint32_t i = 0; i < state->blocks_held; i++) room += B * state->blocks[i].capacity;
    const uint64_t token = c->transformer ? 2 * (uint64_t)c->G * c->P * stored * c->layers : 0; /* its keys and values */
    switch (kind) {
    case DART_STATE_CONVOLUTION:
        return B * model_config_tail(c) * ((uint64_t)model_config_conv(c) + (state->sma ? model_config_sma_conv(c)
                                                                   : 0)) * activation * c->layers;
    case DART_STATE_RECURRENT:
        return (B * (state->sma ? 2 * memory + c->H : memory) * 4 + (state->windows != NULL ? state->window_bytes : 0)) * c->layers;
    case DART_STATE_MEMORIES: return room * one_memory + model_cache_bytes(state);
    case DART_STATE_MEMORIES_USED: return (state->sma ? closed * one_memory : 0) + tokens * token;
    case DART_STATE_WORKSPACE:
        return state->work_bytes + (state->raw != NULL ? state->raw->bytes : 0) + (state->zeros != NULL ? state->zeros->bytes : 0);
    case DART_STATE_MARKS: return model_marks_bytes(state);
    case DART_STATE_KV_CACHE: return tokens * 2 * model_config_inner(c) * stored * c->layers;
    }
    return 0;
}
