/* Blocks of memories of closed chunks: how they are made and grow. */
#include "state.h"

#include <stdlib.h>

/* The first block grows with the sequences until it has room for so many tokens. A block of its own for each growth would be a launch of the
 * attention a layer and step (docs/lab/2026-11-25-small-blocks.md). */
enum { FIRST_BLOCK_TOKENS = 1024 };

static void destroy_block(dart_state *state, memory_block *block)
{
    if (block->buffers != NULL)
        for (uint32_t l = 0; l < state->model->config.layers; l++) dart_buffer_destroy(&block->buffers[l]);
    free(block->buffers);
    block->buffers = NULL;
}

/* The smallest of the kept blocks that has room for M memories; blocks_held when there is none. */
static uint32_t find_kept(const dart_state *state, uint32_t M)
{
    uint32_t best = state->blocks_held;
    for (uint32_t i = state->blocks_count; i < state->blocks_held; i++)
        if (state->blocks[i].capacity >= M && (best == state->blocks_held || state->blocks[i].capacity < state->blocks[best].capacity))
            best = i;
    return best;
}

/* A new block behind those in use. */
static dart_status make_block(dart_state *state, uint32_t M)
{
    dart_device *device = state->model->device;
    const dart_model_config *c = &state->model->config;
    const uint32_t had = state->blocks_count;
    const uint64_t memories = (uint64_t)state->B * M, size = dart_dtype_size(state->model->memories);
    const uint64_t dh_bytes = base_round_up(memories * model_config_memory(c) * size, BACKEND_ALIGN);
    memory_block block = {.capacity = M, .scale_at = dh_bytes / 4};
    dart_status status = device_fault(device);
    if (status != DART_OK) return status;
    memory_block *blocks = realloc(state->blocks, (had + 1) * sizeof *blocks);
    if (blocks == NULL) return base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory for %u blocks", had + 1);
    state->blocks = blocks;
    dart_memories *runs = realloc(state->runs, 2 * (size_t)(had + 1) * sizeof *runs);
    if (runs == NULL) return base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory for %u blocks", had + 1);
    state->runs = runs;
    block.buffers = device_calloc(device, c->layers, sizeof *block.buffers);
    if (block.buffers == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    for (uint32_t l = 0; l < c->layers && status == DART_OK; l++)
        status = dart_buffer_create(device, dh_bytes + memories * c->H * c->N * 4, &block.buffers[l]);
    if (status != DART_OK) {
        destroy_block(state, &block);
        return status;
    }
    state->blocks[had] = block;
    state->blocks_held = had + 1;
    return DART_OK;
}

uint64_t model_memories_room(const dart_state *state)
{
    if (state->blocks_count == 0) return 0;
    const memory_block *last = &state->blocks[state->blocks_count - 1];
    return (uint64_t)last->first + last->M;
}

dart_memories model_memories_of(const dart_state *state, uint32_t layer, uint32_t b, uint32_t block)
{
    const memory_block *from = &state->blocks[block];
    const dart_model_config *c = &state->model->config;
    const uint64_t before = (uint64_t)b * from->M;
    dart_buffer *buffer = from->buffers[layer];
    return (dart_memories){
        .first = from->first, .M = from->M,
        .dh = {.buffer = buffer, .dtype = state->model->memories, .offset = before * model_config_memory(c)},
        .scale = {.buffer = buffer, .dtype = DART_F32, .offset = from->scale_at + before * c->H * c->N}};
}

/* Gives back the blocks that are not in use. */
static void drop_kept(dart_state *state)
{
    while (state->blocks_held > state->blocks_count) destroy_block(state, &state->blocks[--state->blocks_held]);
}

/* Which memories a block holds depends on what the sequences need, never on which buffers are there: where blocks end, sums are
 * cut, and a state that was reset gives the bits of a new one. Kept blocks that are all too small make room for a new one. */
static dart_status add_block(dart_state *state, uint32_t M)
{
    const uint32_t had = state->blocks_count, first = (uint32_t)model_memories_room(state);
    const uint32_t found = find_kept(state, M);
    if (found < state->blocks_held) {
        const memory_block block = state->blocks[found];
        state->blocks[found] = state->blocks[had];
        state->blocks[had] = block;
    } else {
        drop_kept(state);
        const dart_status status = make_block(state, M);
        if (status != DART_OK) return status;
    }
    state->blocks[had].first = first;
    state->blocks[had].M = M;
    state->blocks_count++;
    return DART_OK;
}

void model_memories_retire(dart_state *state)
{
    state->blocks_count = 0;
    state->recorded = false; /* a step names the blocks that it reads */
}

static bool has_memories(const dart_state *state)
{
    for (uint32_t b = 0; b < state->B; b++)
        if ((uint64_t)state->positions[b] >= state->S) return true;
    return false;
}

void model_memories_shrink(dart_state *state)
{
    if (!has_memories(state)) model_memories_retire(state);
    drop_kept(state);
}

/* The most memories of a block. */
static uint64_t largest_block(const dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t widest = base_larger(model_config_memory(c) * dart_dtype_size(state->model->memories), (uint64_t)c->H * c->N * 4);
    return state->limit / (widest * state->B);
}

uint64_t model_memories_grown(const dart_state *state)
{
    const uint64_t wanted = state->block != 0 ? state->block : base_ceil_div(FIRST_BLOCK_TOKENS, state->S);
    return base_larger(1, base_smaller(wanted, largest_block(state)));
}

uint64_t model_memories_most_blocks(const dart_state *state, uint64_t count) { return base_ceil_div(count, model_memories_grown(state)); }

/* The first M memories of every sequence, from one block to another. */
static dart_status move_memories(dart_state *state, const memory_block *from, const memory_block *to, uint32_t M, const char *call)
{
    const dart_model_config *c = &state->model->config;
    const dart_dtype dtype = state->model->memories;
    const uint64_t memory = model_config_memory(c), scales = (uint64_t)c->H * c->N, size = dart_dtype_size(dtype);
    const uint64_t most = base_smaller(M, model_copy_rows(state, state->B * memory, size));
    dart_stream *stream = state->prefill;
    dart_status status = model_begin_paced(state, stream, 1, call);
    for (uint32_t l = 0; l < c->layers && status == DART_OK; l++)
        for (uint64_t m = 0, n; m < M; m += n) { /* a launch takes memories m .. m + n - 1 of all sequences */
            n = base_smaller(most, M - m);
            model_pace_bytes(state, stream, 2 * state->B * n * (memory * size + 4 * scales), 2);
            dart_convert(stream, &(dart_convert_args){
                .T = state->B, .W = (uint32_t)(n * memory),
                .x = {.buffer = from->buffers[l], .dtype = dtype, .offset = m * memory, .row = from->M * memory},
                .y = {.buffer = to->buffers[l], .dtype = dtype, .offset = m * memory, .row = to->M * memory}});
            dart_convert(stream, &(dart_convert_args){
                .T = state->B, .W = (uint32_t)(n * scales),
                .x = {.buffer = from->buffers[l], .dtype = DART_F32, .offset = from->scale_at + m * scales, .row = from->M * scales},
                .y = {.buffer = to->buffers[l], .dtype = DART_F32, .offset = to->scale_at + m * scales, .row = to->M * scales}});
        }
    return status == DART_OK ? model_state_run_parts(state, stream, NULL, NULL, NULL, NULL, call) : status;
}

/* A block of M memories in the place of the first and only one, with what that holds. After a failure that one is still there. */
static dart_status grow_first_block(dart_state *state, uint32_t M, const char *call)
{
    uint32_t found = find_kept(state, M), closed = 0;
    if (found == state->blocks_held) {
        drop_kept(state);
        const dart_status status = make_block(state, M);
        if (status != DART_OK) return model_take(&state->report, &state->model->device->report, status, call);
        found = state->blocks_count;
    }
    memory_block grown = state->blocks[found];
    grown.first = 0;
    grown.M = M;
    for (uint32_t b = 0; b < state->B; b++) closed = (uint32_t)base_larger(closed, (uint64_t)state->positions[b] / state->S);
    const dart_status status = move_memories(state, &state->blocks[0], &grown, closed, call);
    if (status != DART_OK) return status;
    memory_block *left = &state->blocks[found];
    *left = state->blocks[0];
    state->blocks[0] = grown;
    state->recorded = false; /* a step names the blocks that it reads */
    if (left->capacity >= model_memories_grown(state)) return DART_OK;
    destroy_block(state, left);
    *left = state->blocks[--state->blocks_held];
    return DART_OK;
}

/* One more block, or the first one grown, for sequences that have or are about to have `count` memories. */
static dart_status add_room(dart_state *state, uint64_t count, const char *call)
{
    const uint64_t have = model_memories_room(state), grown = model_memories_grown(state);
    /* By twice at least, so that a sequence is moved a few times only. A file brings several small blocks from a state that has a memory_block. */
    if (state->block == 0 && state->blocks_count == 1 && have < grown)
        return grow_first_block(state, (uint32_t)base_smaller(grown, base_larger(2 * have, count)), call);
    const uint64_t growth = have > 0 ? base_larger(grown, have / 2) : 1;
    const uint64_t wanted = state->block != 0 ? state->block : base_larger(growth, count - have);
    const dart_status status = add_block(state, (uint32_t)base_larger(1, base_smaller(wanted, largest_block(state))));
    return status == DART_OK ? DART_OK : model_take(&state->report, &state->model->device->report, status, call);
}

dart_status model_memories_reserve(dart_state *state, uint64_t count, const char *call)
{
    dart_status status = DART_OK;
    if (model_memories_room(state) >= count) return DART_OK;
    /* Blocks without memories give way to one that holds all: every block is a launch of the attention, and needs r merged. */
    if (!has_memories(state)) model_memories_retire(state);
    while (status == DART_OK && model_memories_room(state) < count) status = add_room(state, count, call);
    return status;
}

dart_status model_memories_shape(dart_state *state, const uint32_t *M, uint32_t count, const char *call)
{
    const uint64_t most = largest_block(state);
    if (has_memories(state)) return DART_OK;
    for (uint32_t i = 0; i < count; i++)
        if (M[i] > most) return DART_OK;
    model_memories_retire(state);
    for (uint32_t i = 0; i < count; i++) {
        const dart_status status = add_block(state, M[i]);
        if (status != DART_OK) return model_take(&state->report, &state->model->device->report, status, call);
    }
    return DART_OK;
}

uint64_t model_raw_bytes(const dart_state *state, uint32_t T, uint32_t B)
{
    return dart_packed_chunks(T, state->S, B) * model_config_memory(&state->model->config) * 4;
}

dart_status model_raw_reserve(dart_state *state, uint32_t T, uint32_t B, const char *call)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t slots = dart_packed_chunks(T, state->S, B);
    dart_buffer *made = NULL;
    if (!state->sma || slots <= state->raw_slots) return DART_OK;
    const uint64_t bytes = 2 * base_round_up(slots * model_config_memory(c) * 4, BACKEND_ALIGN) + (slots + state->B) * c->H * 4;
    const dart_status status = dart_buffer_create(state->model->device, bytes, &made);
    if (status != DART_OK) return model_take(&state->report, &state->model->device->report, status, call);
    dart_buffer_destroy(&state->raw);
    state->raw = made;
    state->raw_slots = slots;
    return DART_OK;
}

void model_memories_destroy(dart_state *state)
{
    for (uint32_t i = 0; i < state->blocks_held; i++) destroy_block(state, &state->blocks[i]);
    dart_buffer_destroy(&state->raw);
    free(state->blocks);
    free(state->runs);
}
