/* What decoding steps ask of memories, kept for programs that show it. */
#include "state.h"

dart_tensor model_queries_of(const dart_state *state, uint32_t layer)
{
    const dart_dtype dtype = state->model->activations;
    return (dart_tensor){.buffer = state->queries, .dtype = dtype, .offset = layer * state->queries_bytes / dart_dtype_size(dtype)};
}

dart_status model_queries_reserve(dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    if (!state->keeps_queries) return DART_OK;
    const uint64_t row = model_config_sma_conv(c) * dart_dtype_size(state->model->activations);
    state->queries_bytes = base_round_up(state->B * row, BACKEND_ALIGN);
    state->work_bytes += c->layers * state->queries_bytes;
    return dart_buffer_create(state->model->device, c->layers * state->queries_bytes, &state->queries);
}

dart_status dart_state_queries(dart_state *state, uint32_t b, uint32_t layer, dart_queries *queries)
{
    static const char call[] = "dart_state_queries";
    if (state == NULL) return DART_INVALID_ARGUMENT;
    const dart_model_config *c = &state->model->config;
    REQUIRE(&state->report, queries != NULL, "%s: no place for the queries", call);
    REQUIRE(&state->report, b < state->B, "%s: sequence %u of %u", call, b, state->B);
    REQUIRE(&state->report, layer < c->layers, "%s: layer %u of %u", call, layer, c->layers);
    REQUIRE(&state->report, state->sma, "%s: the state has no state-memory attention", call);
    REQUIRE(&state->report, state->keeps_queries, "%s: the state was made without keep_queries", call);
    const dart_status status = model_state_usable(state, call);
    if (status != DART_OK) return status;
    REQUIRE(&state->report, state->queries_at[b] >= 0 && state->queries_at[b] == state->positions[b],
            "%s: no decoding step has consumed the newest token of sequence %u", call, b);
    dart_tensor q = model_queries_of(state, layer);
    q.offset += (uint64_t)b * model_config_sma_conv(c);
    dart_tensor e = q;
    e.offset += (uint64_t)c->G * c->N;
    const uint32_t M = (uint32_t)(state->positions[b] - 1) / state->S;
    uint32_t runs = 0;
    for (; runs < state->blocks_count && state->blocks[runs].first < M; runs++) state->runs[runs] = model_memories_of(state, layer, b, runs);
    *queries = (dart_queries){.M = M, .q = q, .e = e, .runs = state->runs, .runs_count = runs};
    return DART_OK;
}
