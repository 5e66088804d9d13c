/* Sections of a state file: each between the file and the device, all of them on several threads. */
#include "sections.h"

#include <stdlib.h>
#include <string.h>

/* ---- Between a section and the device ---- */

/* The sequences of a file are those from b on. */
typedef struct transfer {
    dart_state *state;
    const state_file *file;
    uint32_t b, layer;
    bool to_device;
    uint8_t *section;     /* to_device: only read */
    uint8_t *scratch;     /* of to_device: SECTIONS_CONVERTED f32, then as many converted elements */
    const char *call;
} transfer;

/* Elements at byte `at` of the section, in `dtype`, from or to `tensor`, in its own dtype. */
static dart_status move(const transfer *t, uint64_t at, dart_dtype dtype, dart_tensor tensor, uint64_t elements)
{
    const uint64_t size = dart_dtype_size(tensor.dtype), file_size = dart_dtype_size(dtype);
    base_report *report = &t->state->model->device->report;
    dart_status status = DART_OK;
    if (!t->to_device) status = dart_buffer_read(tensor.buffer, tensor.offset * size, t->section + at, elements * size);
    else if (dtype == tensor.dtype) status = dart_buffer_write(tensor.buffer, tensor.offset * size, t->section + at, elements * size);
    else {
        float *values = (float *)(void *)t->scratch;
        uint8_t *converted = t->scratch + SECTIONS_CONVERTED * sizeof *values;
        for (uint64_t done = 0, n; done < elements && status == DART_OK; done += n) {
            n = base_smaller(elements - done, SECTIONS_CONVERTED);
            dart_to_f32(dtype, values, t->section + at + done * file_size, (size_t)n);
            dart_from_f32(tensor.dtype, converted, values, (size_t)n);
            status = dart_buffer_write(tensor.buffer, (tensor.offset + done) * size, converted, n * size);
        }
    }
    return model_take(&t->state->report, report, status, t->call);
}

/* Keys or values: a piece for each block. */
static dart_status move_cache(const transfer *t, const state_file_run *run)
{
    const dart_state *state = t->state;
    const uint64_t width = (uint64_t)state->model->config.G * state->model->config.P, tokens = run->elements / width;
    dart_status status = DART_OK;
    for (uint32_t i = 0; i < state->cache_count && state->cache[i].first < tokens && status == DART_OK; i++) {
        const cache_block *block = &state->cache[i];
        const dart_key_block part = model_cache_part(state, t->layer, t->b + run->index, i);
        status = move(t, run->at + block->first * width * dart_dtype_size(run->dtype), run->dtype, run->kind == STATE_FILE_VALUES ? part.v : part.k,
                      base_smaller(block->C, tokens - block->first) * width);
    }
    return status;
}

/* Memories or their scales: a piece for each block. */
static dart_status move_memories(const transfer *t, const state_file_run *run)
{
    const dart_state *state = t->state;
    const dart_model_config *c = &state->model->config;
    const bool scales = run->kind == STATE_FILE_SCALES;
    const uint64_t width = scales ? (uint64_t)c->H * c->N : model_config_memory(c), closed = run->elements / width;
    const uint64_t b = t->b + run->index, size = dart_dtype_size(run->dtype);
    dart_status status = DART_OK;
    for (uint32_t i = 0; i < state->blocks_count && status == DART_OK; i++) {
        const memory_block *block = &state->blocks[i];
        if (block->first >= closed) break;
        const uint64_t count = base_smaller(block->M, closed - block->first);
        const dart_tensor tensor = {.buffer = block->buffers[t->layer], .dtype = scales ? DART_F32 : state->model->memories,
                                    .offset = (scales ? block->scale_at : 0) + b * block->M * width};
        status = move(t, run->at + block->first * width * size, run->dtype, tensor, count * width);
    }
    return status;
}

static dart_status move_run(const transfer *t, const state_file_run *run)
{
    const dart_state *state = t->state;
    model_part parts[MODEL_PARTS] = {{0}};
    switch (run->kind) {
    case STATE_FILE_PART:
        model_parts(state, parts);
        return move(t, run->at, run->dtype, model_part_tensor(&parts[run->index], state->layers[t->layer], t->b), run->elements);
    case STATE_FILE_MEMORIES:
    case STATE_FILE_SCALES: return move_memories(t, run);
    case STATE_FILE_KEYS:
    case STATE_FILE_VALUES: return move_cache(t, run);
    }
    return DART_INTERNAL;
}

/* Parts lie in a section as they lie in a layer's buffer, if the file has all sequences in the same dtypes. */
static bool parts_at_once(const transfer *t)
{
    const state_file_header *h = &t->file->header;
    return h->sequences == t->state->B && h->activations == (uint32_t)t->state->model->activations && t->state->layer_bytes > 0;
}

static dart_status move_layer(const transfer *t)
{
    const bool at_once = parts_at_once(t);
    dart_status status = DART_OK;
    if (at_once) {
        const dart_tensor all = {.buffer = t->state->layers[t->layer], .dtype = DART_F32};
        status = move(t, 0, DART_F32, all, t->state->layer_bytes / 4);
    }
    for (uint32_t i = 0; i < t->file->runs_count && status == DART_OK; i++)
        if (!at_once || t->file->runs[i].kind != STATE_FILE_PART) status = move_run(t, &t->file->runs[i]);
    return status;
}

static dart_status move_last(const transfer *t)
{
    dart_tensor rows = model_work_tensor(t->state, WORK_LAST);
    const uint64_t W = t->state->model->config.W;
    rows.offset = t->b * W;
    const dart_status status = move(t, 0, (dart_dtype)t->file->header.activations, rows, t->file->header.sequences * W);
    if (status != DART_OK) return status;
    const uint64_t words = base_ceil_div(t->state->model->config.V, 32), n = t->file->header.sequences;
    int32_t *seen = (int32_t *)(void *)(t->section + t->file->seen_at);
    if (t->to_device) return model_state_write(t->state, WORK_SEEN, t->b * words, seen, n * words, t->call);
    return model_state_read(t->state, WORK_SEEN, t->b * words, seen, n * words, t->call);
}

/* ---- Section by section, on several threads ---- */

typedef struct worker {
    sections_crew *crew;
    bool asks;
    uint8_t *scratch;
    base_thread thread;
    bool started;
} worker;

/* Sections are handed out in order, so that all before one that fails are done, too: which is the first does not depend on the threads. */
static void work(void *argument)
{
    const worker *w = argument;
    sections_crew *c = w->crew;
    for (uint32_t i = atomic_fetch_add(&c->next, 1); i < c->count; i = atomic_fetch_add(&c->next, 1)) {
        dart_status status = DART_OK;
        if (w->asks && c->progress != NULL) {
            c->progress->done = atomic_load(&c->done);
            status = base_advance(c->progress, 0, &c->state->report, c->call);
        }
        if (status == DART_OK) status = c->section(c, i, w->scratch);
        atomic_fetch_add(&c->done, 1);
        if (status == DART_OK) continue;
        base_lock(&c->lock);
        if (i < c->failed) {
            c->failed = i;
            c->status = status;
        }
        base_unlock(&c->lock);
        atomic_store(&c->next, c->count);
        return;
    }
}

dart_status sections_no_memory(dart_state *state, const char *call)
{
    dart_device *device = state->model->device;
    return model_take(&state->report, &device->report, atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY, call);
}

dart_status sections_run(sections_crew *c, uint32_t most, uint64_t scratch_bytes)
{
    const uint32_t cores = base_core_count();
    worker workers[SECTIONS_WORKERS];
    uint32_t count = most < c->count ? most : c->count;
    if (count > cores) count = cores;
    if (count < 1 || c->file->header.bytes < SECTIONS_SMALL) count = 1;
    c->failed = c->count;
    c->status = DART_OK;
    atomic_init(&c->next, 0);
    atomic_init(&c->done, 0);
    if (base_mutex_init(&c->lock) != DART_OK) return base_fail(&c->state->report, DART_OUT_OF_MEMORY, "%s: no lock", c->call);
    for (uint32_t i = 0; i < count; i++) {
        workers[i] = (worker){.crew = c, .asks = i == 0};
        if (scratch_bytes == 0) continue;
        workers[i].scratch = device_calloc(c->state->model->device, 1, (size_t)scratch_bytes);
        if (workers[i].scratch != NULL) continue;
        if (i == 0) c->status = sections_no_memory(c->state, c->call);
        count = i; /* fewer will do */
    }
    for (uint32_t i = 1; i < count; i++) workers[i].started = base_thread_start(&workers[i].thread, work, &workers[i]) == DART_OK;
    if (count > 0) work(&workers[0]);
    for (uint32_t i = 0; i < count; i++) {
        if (workers[i].started) base_thread_join(&workers[i].thread);
        free(workers[i].scratch);
    }
    base_mutex_destroy(&c->lock);
    return c->status;
}

uint64_t sections_at(const state_file *file, uint32_t i, uint64_t *bytes)
{
    *bytes = i > 0 ? file->layer_bytes : file->last_bytes;
    return i > 0 ? file->last_bytes + (i - 1) * file->layer_bytes : 0;
}

dart_status sections_move(const sections_crew *c, uint32_t i, bool to_device, uint8_t *section, uint8_t *scratch)
{
    const transfer t = {.state = c->state, .file = c->file, .b = c->b, .layer = i > 0 ? i - 1 : 0, .to_device = to_device, .section = section,
                        .scratch = scratch, .call = c->call};
    return i > 0 ? move_layer(&t) : move_last(&t);
}
