/* Sequences that begin anew, empty or as others. */
#include "state.h"

dart_status model_clear_sequences(dart_state *state, uint32_t b, uint32_t B, bool *ran, const char *call)
{
    const dart_model_config *c = &state->model->config;
    dart_stream *stream = state->prefill;
    model_part parts[MODEL_PARTS];
    const uint32_t count = model_parts(state, parts);
    dart_status status = model_begin_paced(state, stream, 1, call);
    if (status != DART_OK) return status;
    /* Of all sequences the parts of a layer lie behind one another: zeros of one launch, whatever their types. */
    const bool whole = B == state->B && count > 0 && state->layer_bytes <= state->limit;
    for (uint32_t l = 0; l < c->layers && whole; l++) {
        model_pace_bytes(state, stream, state->layer_bytes, 1);
        model_record_clear(stream, state->layers[l], 0, DART_F32, 0, 1, state->layer_bytes / 4);
    }
    for (uint32_t l = 0; l < c->layers && !whole; l++)
        for (uint32_t i = 0; i < count; i++) {
            model_pace_bytes(state, stream, B * parts[i].width * dart_dtype_size(parts[i].dtype), 1);
            model_record_clear(stream, state->layers[l], parts[i].at, parts[i].dtype, b, B, parts[i].width);
        }
    if (state->in_windows) model_windows_clear(state, stream, b, B);
    model_record_clear(stream, state->work[WORK_LAST], 0, state->model->activations, b, B, c->W);
    model_record_clear(stream, state->work[WORK_SEEN], 0, DART_F32, b, B, base_ceil_div(c->V, 32));
    /* A recording that failed says so here, before anything runs. */
    return model_state_run_parts(state, stream, NULL, ran, NULL, NULL, call);
}

void model_sequence_replaced(dart_state *state, uint32_t b, int32_t position)
{
    state->positions[b] = position;
    state->queries_at[b] = -1;
    state->ended[b] = false;
    state->judged = false;
    state->seq_current = false;
    model_marks_drop(state, b, -1);
}

dart_status dart_state_reset(dart_state *state, int32_t b)
{
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, b < 0 || (uint32_t)b < state->B, "dart_state_reset: sequence %d of %u", b, state->B);
    if (state->B == 1) b = -1; /* the only one is all */
    dart_status status = b >= 0 ? model_state_usable(state, "dart_state_reset") : DART_OK;
    if (status != DART_OK) return status;
    if (b < 0) {
        /* A step or a slice that timed out may still run. */
        state->recorded = false;
        status = model_take_stream(state, state->decode, dart_stream_begin(state->decode), "dart_state_reset");
        if (status == DART_OK)
            status = model_take_stream(state, state->ahead, dart_stream_begin(state->ahead), "dart_state_reset");
    }
    const uint32_t first = b < 0 ? 0 : (uint32_t)b, count = b < 0 ? state->B : 1;
    bool ran = false;
    if (status == DART_OK) status = model_clear_sequences(state, first, count, &ran, "dart_state_reset");
    if (status != DART_OK) {
        if (ran) state->broken = status;
        return status;
    }
    state->chosen = false;
    for (uint32_t i = first; i < first + count; i++) model_sequence_replaced(state, i, 0);
    if (b < 0) state->broken = DART_OK;
    if (b < 0) state->in_windows = false;
    if (b < 0) model_memories_retire(state);
    if (b < 0) model_cache_retire(state);
    return DART_OK;
}
