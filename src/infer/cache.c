/* The keys and values of a Transformer: rooms of as many tokens for every sequence, made anew where they grow. */
#include "state.h"

#include <stdlib.h>

enum { FIRST_CACHE_TOKENS = 1024, MOST_CACHE_TOKENS = 1 << 30 };

static uint64_t row_bytes(const dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    return (uint64_t)c->G * c->P * dart_dtype_size(state->model->memories);
}

uint64_t model_cache_bytes(const dart_state *state, uint64_t tokens) { return 2 * state->B * tokens * row_bytes(state); }

static dart_tensor part_of(const dart_state *state, dart_buffer *buffer, uint32_t tokens, uint32_t b, bool values)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t before = (values ? (uint64_t)state->B * tokens : 0) + (uint64_t)b * tokens;
    return (dart_tensor){.buffer = buffer, .dtype = state->model->memories, .offset = before * c->G * c->P};
}

dart_tensor model_cache_part(const dart_state *state, uint32_t layer, uint32_t b, bool values)
{
    return part_of(state, state->cache[layer], state->cache_tokens, b, values);
}

static void destroy_buffers(dart_buffer **buffers, uint32_t layers)
{
    for (uint32_t l = 0; buffers != NULL && l < layers; l++) dart_buffer_destroy(&buffers[l]);
    free(buffers);
}

void model_cache_destroy(dart_state *state) { destroy_buffers(state->cache, state->model->config.layers); }

/* What the sequences have so far, from a cache of state->cache_tokens to one of `tokens`. */
static dart_status copy(dart_state *state, dart_buffer **to, uint32_t tokens, const char *call)
{
    const dart_model_config *c = &state->model->config;
    dart_stream *stream = state->prefill;
    dart_status status = dart_stream_begin(stream);
    for (uint32_t l = 0; l < c->layers; l++)
        for (uint32_t b = 0; b < state->B; b++)
            for (int values = 0; values < 2 && state->positions[b] > 0; values++)
                dart_convert(stream, &(dart_convert_args){.T = (uint32_t)state->positions[b], .W = c->G * c->P,
                                                          .x = part_of(state, state->cache[l], state->cache_tokens, b, values != 0),
                                                          .y = part_of(state, to[l], tokens, b, values != 0)});
    return status == DART_OK ? model_state_run(state, stream, 1, NULL, call) : model_take_stream(state, stream, status, call);
}

/* Room for exactly that many tokens: what a step splits its sums by depends on it, and so it depends on what the sequences need only. */
static dart_status grow(dart_state *state, uint32_t tokens, const char *call)
{
    dart_device *device = state->model->device;
    const uint32_t layers = state->model->config.layers;
    bool any = false;
    for (uint32_t b = 0; b < state->B; b++) any = any || state->positions[b] > 0;
    state->recorded = false; /* a step names the cache */
    if (!any && tokens <= state->cache_room) {
        state->cache_tokens = tokens;
        return DART_OK;
    }
    dart_status status = DART_OK;
    dart_buffer **made = device_calloc(device, layers, sizeof *made);
    if (made == NULL) status = atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    for (uint32_t l = 0; l < layers && status == DART_OK; l++)
        status = dart_buffer_create(device, model_cache_bytes(state, tokens), &made[l]);
    status = model_take(&state->report, &device->report, status, call);
    if (status == DART_OK && any) status = copy(state, made, tokens, call);
    if (status != DART_OK) {
        dart_stream_begin(state->prefill); /* waits for a copy that has timed out */
        destroy_buffers(made, layers);
        return status;
    }
    destroy_buffers(state->cache, layers);
    state->cache = made;
    state->cache_tokens = state->cache_room = tokens;
    return DART_OK;
}

uint64_t model_cache_most(const dart_state *state)
{
    return base_smaller(state->limit / (state->B * row_bytes(state)), MOST_CACHE_TOKENS);
}

dart_status model_cache_reserve(dart_state *state, uint64_t tokens, const char *call)
{
    const uint64_t have = state->cache_tokens;
    if (!state->model->config.transformer || tokens <= have) return DART_OK;
    const uint64_t most = model_cache_most(state);
    if (tokens > most)
        return base_fail(&state->report, DART_UNSUPPORTED, "%s: %llu tokens: keys of %u sequences on %s have room for %llu each", call,
                         (unsigned long long)tokens, state->B, state->model->device->info.name, (unsigned long long)most);
    const uint64_t growth = state->block != 0 ? base_round_up(tokens - have, state->block)
                                              : base_larger(tokens - have, base_larger(FIRST_CACHE_TOKENS, have / 2));
    return grow(state, (uint32_t)base_smaller(have + growth, most), call);
}

void model_cache_retire(dart_state *state)
{
    state->cache_tokens = 0;
    state->recorded = false;
}
