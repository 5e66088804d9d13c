/* Makes ready all code that a state will need, before the first token. */
#include "state.h"

#define CALL "dart_state_warm"

/* Pieces whose kernels differ: a token, a handful, a part of a chunk, a whole workspace. */
static const uint32_t lengths[] = {1, 4, 64, UINT32_MAX};
/* Prefills of some of many sequences: fewer rows than a piece of all of them has, and longer ones. */
static const uint32_t some[] = {1, 4}, some_lengths[] = {16, 128, 256, 1024, UINT32_MAX};

/* As if memories were stored and read, or as if none were. */
static dart_status record(dart_state *state, dart_stream *stream, uint32_t B, uint32_t L, bool memories)
{
    const dart_tensor last = model_work_tensor(state, WORK_LAST), ends = model_work_tensor(state, WORK_ENDS);
    const bool blocks = memories || state->model->config.transformer; /* whose tokens see at least themselves */
    const model_span span = {.runs = blocks, .close_to = blocks};
    const uint32_t room = model_piece_rows(state, state->rows) / B;
    if (L > room) L = room > 0 ? room : 1;
    const model_pass pass = {.B = B, .L = L, .span = span};
    model_record_embedding(state, stream, &pass, L == 1 ? WORK_NEXT : WORK_IDS);
    if (L > 1) model_record_seen(state, stream, &pass);
    dart_status status = model_record_layers(state, stream, &pass, 0, state->model->config.layers);
    if (L == 1 && state->windowed && status == DART_OK) {
        const model_pass step = {.B = state->B, .L = 1, .windowed = true, .span = span};
        status = model_record_layers(state, stream, &step, 0, state->model->config.layers);
        model_record_fold(state, stream, DART_WINDOW_OPEN);
    }
    model_record_norm(state, stream, state->B, L == 1 ? NULL : &ends, &last);
    model_record_head(state, stream, state->B, &last);
    if (state->fused) model_record_norm_head(state, stream);
    model_record_choice(state, stream, L == 1);
    model_record_advance(state, stream);
    return model_take_stream(state, stream, status, CALL);
}

/* What copies sequences between states. */
static void record_copies(dart_state *state, dart_stream *stream)
{
    model_part parts[MODEL_PARTS];
    const uint32_t count = model_parts(state, parts);
    const dart_tensor last = model_work_tensor(state, WORK_LAST);
    for (uint32_t i = 0; i < count; i++) {
        const dart_tensor part = model_part_tensor(&parts[i], state->layers[0], 0);
        dart_convert(stream, &(dart_convert_args){.T = 1, .W = (uint32_t)parts[i].width, .x = part, .y = part});
    }
    dart_convert(stream, &(dart_convert_args){.T = 1, .W = state->model->config.W, .x = last, .y = last});
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
    for (int memories = 0; memories <= (state->blocks_count > 0); memories++) {
        for (size_t i = 0; i < COUNT_OF(lengths) && status == DART_OK; i++) status = record(state, stream, state->B, lengths[i], memories != 0);
        for (size_t i = 0; i < COUNT_OF(some) * COUNT_OF(some_lengths) && status == DART_OK; i++) {
            const uint32_t B = some[i / COUNT_OF(some_lengths)];
            if (B < state->B) status = record(state, stream, B, some_lengths[i % COUNT_OF(some_lengths)], memories != 0);
        }
    }
    if (status == DART_OK) record_copies(state, stream);
    /* Steps choose their rows by how many memories there may be. */
    if (status == DART_OK && state->sma) status = model_memories_reserve(state, model_memories_grown(state), CALL);
    if (status == DART_OK && state->blocks_count > 0) status = record(state, stream, state->B, 1, true);
    if (status == DART_OK) status = model_take_stream(state, stream, dart_stream_submit(stream), CALL);
    dart_stream_destroy(&stream);
    model_memories_shrink(state);
    return status;
}
