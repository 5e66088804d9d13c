/* Windows: the newest tokens of sequences that take steps, and the turn from pieces to steps and back. */
#include "state.h"

#include "runtime/stream.h"

#include <stdlib.h>

dart_status model_windows_reserve(dart_state *state, const char *call)
{
    dart_device *device = state->model->device;
    const dart_model_config *c = &state->model->config;
    if (!state->windowed || state->windows != NULL) return DART_OK;
    dart_status status = DART_OK;
    dart_buffer **made = device_calloc(device, c->layers, sizeof *made);
    if (made == NULL) status = atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    for (uint32_t l = 0; l < c->layers && status == DART_OK; l++) status = dart_buffer_create(device, state->window_bytes, &made[l]);
    if (status == DART_OK) {
        state->windows = made;
        return DART_OK;
    }
    for (uint32_t l = 0; made != NULL && l < c->layers; l++) dart_buffer_destroy(&made[l]);
    free(made);
    return model_take(&state->report, &device->report, status, call);
}

void model_windows_destroy(dart_state *state)
{
    for (uint32_t l = 0; state->windows != NULL && l < state->model->config.layers; l++) dart_buffer_destroy(&state->windows[l]);
    free(state->windows);
    dart_buffer_destroy(&state->zeros);
}

void model_windows_clear(const dart_state *state, dart_stream *stream, uint32_t b, uint32_t B)
{
    const dart_model_config *c = &state->model->config;
    const dart_dtype dtype = state->model->activations;
    /* Steps of the window need not be cleared: slots of a sequence at its start are taken before they count. What is not finite
     * must go, as it would be multiplied by zero. */
    for (uint32_t l = 0; l < c->layers; l++) {
        model_pace_bytes(state, stream, B * state->window_bytes / state->B, 3);
        dart_buffer *window = state->windows[l];
        model_record_clear(stream, window, state->rows_at, dtype, b, B, model_window_elements(c));
        model_record_clear(stream, window, state->hin_at, dtype, b, B, model_config_memory(c));
        if (dart_dtype_size(dtype) < 4) model_record_clear(stream, window, state->hin_scale_at, DART_F32, b, B, (uint64_t)c->H * c->N);
    }
}

dart_status model_zeros_reserve(dart_state *state, uint32_t rows, const char *call)
{
    const dart_dtype dtype = state->model->activations;
    const uint64_t width = model_window_elements(&state->model->config);
    dart_buffer *made = NULL;
    dart_status status = DART_OK;
    if (rows <= state->zero_rows) return DART_OK;
    status = dart_buffer_create(state->model->device, rows * width * dart_dtype_size(dtype), &made);
    if (status != DART_OK) return model_take(&state->report, &state->model->device->report, status, call);
    TRY(model_begin_paced(state, state->prefill, 1, call));
    model_pace_bytes(state, state->prefill, rows * width * dart_dtype_size(dtype), 1);
    model_record_clear(state->prefill, made, 0, dtype, 0, rows, width);
    TRY(model_state_run(state, state->prefill, 1, NULL, call));
    dart_buffer_destroy(&state->zeros);
    state->zeros = made;
    state->zero_rows = rows;
    return DART_OK;
fail:
    dart_stream_begin(state->prefill); /* waits for what has timed out */
    dart_buffer_destroy(&made);
    return status;
}

/* seq is the state's own then. */
static dart_status fold_windows(dart_state *state, dart_window_mode mode, const char *call)
{
    const dart_model_config *c = &state->model->config;
    dart_stream *stream = state->prefill;
    dart_status status = DART_OK;
    TRY(model_write_seq(state, call));
    TRY(model_begin_paced(state, stream, 1, call));
    for (uint32_t l = 0; l < c->layers && mode == DART_WINDOW_OPEN; l++) {
        model_pace_bytes(state, stream, state->window_bytes, 1);
        model_record_clear(stream, state->windows[l], state->rows_at, state->model->activations, 0, state->B,
                           model_window_elements(c));
    }
    TRY(model_take_stream(state, stream, model_record_fold(state, stream, mode), call));
    state->broken = DART_INTERNAL;
    TRY(model_state_run(state, stream, 1, NULL, call));
    state->broken = DART_OK;
    state->in_windows = mode == DART_WINDOW_OPEN;
fail:
    if (state->broken == DART_INTERNAL) state->broken = status;
    return status;
}

dart_status model_windows_open(dart_state *state, const char *call)
{
    if (!state->windowed || state->in_windows) return DART_OK;
    const dart_status status = model_windows_reserve(state, call);
    return status == DART_OK ? fold_windows(state, DART_WINDOW_OPEN, call) : status;
}

dart_status model_windows_close(dart_state *state, const char *call)
{
    return state->in_windows ? fold_windows(state, DART_WINDOW_CLOSE, call) : DART_OK;
}
