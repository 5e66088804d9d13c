/* The keys and values of a Transformer: blocks of tokens, in which every sequence has room, and which are never moved. */
#include "state.h"

#include <stdlib.h>

enum { FIRST_CACHE_TOKENS = 1024, MOST_CACHE_TOKENS = 1 << 30 };

static uint64_t row_width(const dart_state *state) { return (uint64_t)state->model->config.G * state->model->config.P; }

dart_key_block model_cache_part(const dart_state *state, uint32_t layer, uint32_t b, uint32_t block)
{
    const cache_block *from = &state->cache[block];
    const uint64_t width = row_width(state), before = (uint64_t)b * from->C * width;
    const dart_tensor keys = {.buffer = from->buffers[layer], .dtype = state->model->memories, .offset = before};
    dart_tensor values = keys;
    values.offset += (uint64_t)state->B * from->C * width;
    return (dart_key_block){.C = from->C, .k = keys, .v = values};
}

uint32_t model_cache_block(const dart_state *state, uint64_t token)
{
    uint32_t i = 0;
    while (i + 1 < state->cache_count && state->cache[i + 1].first <= token) i++;
    return i;
}

uint64_t model_cache_room(const dart_state *state)
{
    if (state->cache_count == 0) return 0;
    const cache_block *last = &state->cache[state->cache_count - 1];
    return (uint64_t)last->first + last->C;
}

/* Of what every layer's buffer has. */
static uint64_t block_bytes(const dart_state *state, uint32_t C)
{
    return 2 * (uint64_t)state->B * C * row_width(state) * dart_dtype_size(state->model->memories);
}

uint64_t model_cache_bytes(const dart_state *state)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < state->cache_held; i++) bytes += block_bytes(state, state->cache[i].C) * state->model->config.layers;
    return bytes;
}

static void destroy_buffers(dart_buffer **buffers, uint32_t layers)
{
    for (uint32_t l = 0; buffers != NULL && l < layers; l++) dart_buffer_destroy(&buffers[l]);
    free(buffers);
}

void model_cache_destroy(dart_state *state)
{
    for (uint32_t i = 0; i < state->cache_held; i++) destroy_buffers(state->cache[i].buffers, state->model->config.layers);
    free(state->cache);
    free(state->key_blocks);
}

/* Another block behind those that are held. */
static dart_status make_block(dart_state *state, uint32_t first, uint32_t C)
{
    dart_device *device = state->model->device;
    const uint32_t layers = state->model->config.layers, had = state->cache_held;
    dart_status status = device_fault(device);
    if (status != DART_OK) return status;
    cache_block *blocks = realloc(state->cache, (had + 1) * sizeof *blocks);
    if (blocks != NULL) state->cache = blocks;
    dart_key_block *key_blocks = blocks != NULL ? realloc(state->key_blocks, (had + 1) * sizeof *key_blocks) : NULL;
    if (key_blocks == NULL) return base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory for %u blocks", had + 1);
    state->key_blocks = key_blocks;
    dart_buffer **made = device_calloc(device, layers, sizeof *made);
    if (made == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    for (uint32_t l = 0; l < layers && status == DART_OK; l++) status = dart_buffer_create(device, block_bytes(state, C), &made[l]);
    if (status != DART_OK) {
        destroy_buffers(made, layers);
        return status;
    }
    state->cache[had] = (cache_block){.first = first, .C = C, .buffers = made};
    state->cache_held = had + 1;
    return DART_OK;
}

/* Tokens of the block behind `have`: as many as there are before it. Where blocks end depends on nothing else, and so a sum is cut alike in a state
 * that grew, in one that was reset, and in one that was loaded. */
static uint64_t next_tokens(const dart_state *state, uint64_t have)
{
    const uint64_t most = state->limit / (state->B * row_width(state) * dart_dtype_size(state->model->memories));
    const uint64_t wanted = state->block != 0 ? state->block : base_larger(FIRST_CACHE_TOKENS, have);
    return base_smaller(wanted, base_smaller(most, MOST_CACHE_TOKENS - have));
}

dart_status model_cache_reserve(dart_state *state, uint64_t tokens, const char *call)
{
    if (!state->model->config.transformer) return DART_OK;
    for (uint64_t have = model_cache_room(state); have < tokens; have = model_cache_room(state)) {
        const uint64_t next = next_tokens(state, have);
        if (next == 0)
            return base_fail(&state->report, DART_UNSUPPORTED, "%s: %llu tokens: keys of %u sequences on %s have room for %llu each", call,
                             (unsigned long long)tokens, state->B, state->model->device->info.name, (unsigned long long)have);
        if (state->cache_count == state->cache_held) {
            const dart_status status = make_block(state, (uint32_t)have, (uint32_t)next);
            if (status != DART_OK) return model_take(&state->report, &state->model->device->report, status, call);
        }
        state->cache_count++;
    }
    return DART_OK;
}

void model_cache_retire(dart_state *state)
{
    state->cache_count = 0;
    state->recorded = false; /* a step names the blocks that it reads */
}
