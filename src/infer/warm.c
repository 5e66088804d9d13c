/* Makes ready all code that a state will need, before the first token. */
#include "state.h"

#define CALL "dart_state_warm"

/* Pieces whose kernels differ: a token, a handful, a part of a chunk, a whole workspace. */
static const uint32_t lengths[] = {1, 4, 64, UINT32_MAX};

/* As if memories were stored and read, or as if none were. */
static void record(dart_state *state, dart_stream *stream, uint32_t L, bool memories)
{
    const dart_tensor last = model_work_tensor(state, WORK_LAST), ends = model_work_tensor(state, WORK_ENDS);
    const model_span span = {.runs = memories, .close_to = memories};
    const uint32_t room = model_piece_rows(state, state->rows) / state->B;
    if (L > room) L = room > 0 ? room : 1;
    const model_pass pass = {.B = state->B, .L = L, .span = span};
    model_record_embedding(state, stream, &pass, L == 1 ? WORK_NEXT : WORK_IDS);
    if (L > 1) model_record_seen(state, stream, &pass);
    model_record_layers(state, stream, &pass, 0, state->model->config.layers);
    if (L == 1 && state->windowed && (memories || !state->sma)) { /* its fold always has a run that a chunk may close into */
        const model_pass step = {.B = state->B, .L = 1, .windowed = true, .span = span};
        model_record_layers(state, stream, &step, 0, state->model->config.layers);
        model_record_fold(state, stream, DART_WINDOW_OPEN);
    }
    model_record_norm(state, stream, state->B, L == 1 ? NULL : &ends, &last);
    model_record_head(state, stream, state->B, &last);
    if (state->fused) model_record_norm_head(state, stream);
    model_record_choice(state, stream, L == 1);
    model_record_advance(state, stream);
}

dart_status dart_state_warm(dart_state *state) { return dart_state_warm_while(state, NULL, NULL); }

dart_status dart_state_warm_while(dart_state *state, bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user)
{
    if (state == NULL) return DART_INVALID_ARGUMENT;
    dart_status status = model_state_usable(state, CALL);
    if (status == DART_OK && state->sma) status = model_memories_reserve(state, 1, CALL);
    if (status == DART_OK) status = model_cache_reserve(state, 1, CALL);
    if (status == DART_OK) status = model_windows_reserve(state, CALL);
    if (status != DART_OK) return status;
    dart_stream *stream = NULL;
    const dart_stream_options options = {.warm = true, .go_on = go_on, .go_on_user = user};
    status = dart_stream_create(state->model->device, &options, &stream);
    if (status != DART_OK) return model_take(&state->report, &state->model->device->report, status, CALL);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) record(state, stream, lengths[i], false);
    for (size_t i = 0; i < COUNT_OF(lengths) && state->blocks_count > 0; i++) record(state, stream, lengths[i], true);
    status = model_take_stream(state, stream, dart_stream_submit(stream), CALL);
    dart_stream_destroy(&stream);
    return status;
}
