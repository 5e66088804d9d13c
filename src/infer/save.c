/* States to files and back. */
#include "state_file.h"

#include "base/checksum.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

#define CONVERTED ((uint64_t)1 << 16) /* elements converted at a time */
enum { MOST_CHECKERS = 16 };

/* ---- Between a section and the device ---- */

/* The sequences of a file are those from b on. */
typedef struct transfer {
    dart_state *state;
    const state_file *file;
    uint32_t b, layer;
    bool to_device;
    uint8_t *section;     /* to_device: only read */
    float *values;        /* CONVERTED, scratch of to_device */
    uint8_t *converted;   /* CONVERTED elements */
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
        for (uint64_t done = 0, n; done < elements && status == DART_OK; done += n) {
            n = base_smaller(elements - done, CONVERTED);
            dart_to_f32(dtype, t->values, t->section + at + done * file_size, (size_t)n);
            dart_from_f32(tensor.dtype, t->converted, t->values, (size_t)n);
            status = dart_buffer_write(tensor.buffer, (tensor.offset + done) * size, t->converted, n * size);
        }
    }
    return model_take(&t->state->report, report, status, t->call);
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
    case STATE_FILE_VALUES:
        if (run->elements == 0) return DART_OK;
        return move(t, run->at, run->dtype, model_cache_part(state, t->layer, t->b + run->index, run->kind == STATE_FILE_VALUES), run->elements);
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

/* Zeros between the runs, so that a file depends on the sequences only. */
static void clear_gaps(const state_file *file, uint8_t *section)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < file->runs_count; i++) {
        memset(section + end, 0, (size_t)(file->runs[i].at - end));
        end = file->runs[i].at + file->runs[i].elements * dart_dtype_size(file->runs[i].dtype);
    }
    memset(section + end, 0, (size_t)(file->layer_bytes - end));
}

/* ---- Saving ---- */

/* A section on its way to the file, while the next one is read from the device: one thread writes it, another one sums it. */
typedef struct writing {
    file_writer *writer;
    uint8_t *data;
    uint64_t bytes; /* with the 8 of the checksum, the last ones */
    uint64_t seed, sum;
    dart_status status;
    base_thread writes, sums;
    bool is_writing, is_summing;
    bool under_way;
} writing;

static void write_data(void *argument)
{
    writing *w = argument;
    w->status = file_writer_append(w->writer, w->data, w->bytes - sizeof w->sum);
}

static void sum_data(void *argument)
{
    writing *w = argument;
    w->sum = base_checksum(w->seed, w->data, w->bytes - sizeof w->sum);
}

static void start_writing(writing *w, uint8_t *data, uint64_t bytes, uint64_t seed)
{
    w->data = data;
    w->bytes = bytes;
    w->seed = seed;
    w->under_way = true;
    /* Starting threads takes longer than writing a little. */
    const bool aside = bytes >= (UINT64_C(1) << 18);
    w->is_writing = aside && base_thread_start(&w->writes, write_data, w) == DART_OK;
    w->is_summing = aside && base_thread_start(&w->sums, sum_data, w) == DART_OK;
    if (!w->is_writing) write_data(w);
    if (!w->is_summing) sum_data(w);
}

static dart_status end_writing(writing *w)
{
    if (!w->under_way) return DART_OK;
    if (w->is_writing) base_thread_join(&w->writes);
    if (w->is_summing) base_thread_join(&w->sums);
    w->under_way = false;
    return w->status == DART_OK ? file_writer_append(w->writer, &w->sum, sizeof w->sum) : w->status;
}

/* The header with its tables, for free(). */
static dart_status make_head(dart_state *state, uint32_t b, uint32_t count, state_file *file, uint8_t **head, const char *call)
{
    const dart_model *model = state->model;
    state_file_header *h = &file->header;
    const bool all = count == state->B && !model->config.transformer;
    dart_status status = DART_OK;
    *file = (state_file){.runs = NULL};
    *h = (state_file_header){.version = STATE_FILE_VERSION, .sequences = count, .fingerprint = model->fingerprint, .S = state->S, .sma = state->sma,
                             .activations = (uint32_t)model->activations, .memories = (uint32_t)model->memories,
                             .blocks = all ? state->blocks_count : 0, .cache_tokens = count == state->B ? state->cache_tokens : 0};
    memcpy(h->magic, STATE_FILE_MAGIC, sizeof h->magic);
    state_file_config(&model->config, h->config);
    const uint64_t bytes = state_file_head_bytes(h);
    uint8_t *made = device_calloc(model->device, 1, (size_t)bytes);
    if (made == NULL)
        return model_take(&state->report, &model->device->report, atomic_load(&model->device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY, call);
    int32_t *positions = (int32_t *)(void *)(made + sizeof *h);
    uint32_t *blocks = (uint32_t *)(void *)(made + sizeof *h + 8 * (size_t)count);
    if (state->chosen) TRY(model_state_read(state, WORK_NEXT, b, state->host_next, count, call));
    for (uint32_t i = 0; i < count; i++) {
        positions[2 * i] = state->positions[b + i];
        positions[2 * i + 1] = state->chosen ? state->host_next[i] : -1;
    }
    for (uint32_t i = 0; i < h->blocks; i++) blocks[i] = state->blocks[i].M;
    file->positions = positions;
    file->blocks = blocks;
    TRY(state_file_place(file, state, &h->bytes, &state->report, call));
    memcpy(made, h, sizeof *h);
    h->checksum = state_file_head_checksum(made, bytes);
    memcpy(made, h, sizeof *h);
    *head = made;
    return DART_OK;
fail:
    free(made);
    return status;
}

static dart_status save(dart_state *state, uint32_t b, uint32_t count, const char *path, const char *call)
{
    dart_device *device = state->model->device;
    state_file file = {.runs = NULL};
    uint8_t *head = NULL, *sections[2] = {NULL, NULL};
    file_writer *writer = NULL;
    writing ahead = {.status = DART_OK};
    dart_status status = make_head(state, b, count, &file, &head, call);
    if (status != DART_OK) return status;
    const uint64_t room = base_larger(file.layer_bytes, file.last_bytes);
    for (int i = 0; i < 2; i++) sections[i] = device_calloc(device, 1, (size_t)room);
    if (sections[0] == NULL || sections[1] == NULL)
        TRY(model_take(&state->report, &device->report, atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY, call));
    TRY(file_writer_open(path, &state->report, &writer));
    ahead.writer = writer;
    TRY(file_writer_append(writer, head, file.head_bytes));
    for (uint32_t i = 0; i <= state->model->config.layers; i++) { /* section 0: the last rows and the ids seen; section i: layer i - 1 */
        const transfer t = {.state = state, .file = &file, .b = b, .layer = i > 0 ? i - 1 : 0, .section = sections[i % 2], .call = call};
        const uint64_t bytes = i > 0 ? file.layer_bytes : file.last_bytes;
        TRY(i > 0 ? move_layer(&t) : move_last(&t));
        if (i > 0) clear_gaps(&file, sections[i % 2]);
        TRY(end_writing(&ahead));
        start_writing(&ahead, sections[i % 2], bytes, state_file_seed(&file, i));
    }
    TRY(end_writing(&ahead));
    status = file_writer_close(&writer);
fail:
    (void)end_writing(&ahead);
    file_writer_destroy(&writer);
    free(head);
    free(sections[0]);
    free(sections[1]);
    free(file.runs);
    return status;
}

dart_status dart_state_save(dart_state *state, int32_t b, const char *path)
{
    static const char call[] = "dart_state_save";
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, path != NULL, "%s: no path", call);
    REQUIRE(&state->report, b < 0 || (uint32_t)b < state->B, "%s: sequence %d of %u", call, b, state->B);
    dart_status status = model_state_usable(state, call);
    if (status == DART_OK) status = model_windows_close(state, call);
    return status == DART_OK ? save(state, b < 0 ? 0 : (uint32_t)b, b < 0 ? state->B : 1, path, call) : status;
}

/* ---- Loading ---- */

/* Every `step`-th section from `first` on. */
typedef struct checker {
    const state_file *file;
    const uint8_t *sections;
    uint32_t first, step, end;
    uint32_t wrong; /* the first section whose checksum is wrong; end: none */
    base_thread thread;
    bool started;
} checker;

static const uint8_t *section_at(const state_file *file, const uint8_t *sections, uint32_t i, uint64_t *bytes)
{
    *bytes = i > 0 ? file->layer_bytes : file->last_bytes;
    return i > 0 ? sections + file->last_bytes + (i - 1) * file->layer_bytes : sections;
}

static void check_sections(void *argument)
{
    checker *c = argument;
    c->wrong = c->end;
    for (uint32_t i = c->first; i < c->end && c->wrong == c->end; i += c->step) {
        uint64_t bytes, sum;
        const uint8_t *data = section_at(c->file, c->sections, i, &bytes);
        memcpy(&sum, data + bytes - 8, 8);
        if (sum != base_checksum(state_file_seed(c->file, i), data, bytes - 8)) c->wrong = i;
    }
}

static dart_status check_all_sections(dart_state *state, const state_file *file, const uint8_t *sections, const char *name)
{
    const uint32_t end = state->model->config.layers + 1, cores = base_core_count();
    const uint32_t wanted = end < cores ? end : cores;
    /* Starting threads takes longer than reading a small file. */
    const uint32_t count = file->header.bytes < (UINT64_C(1) << 20) || wanted < 1 ? 1 : wanted < MOST_CHECKERS ? wanted : MOST_CHECKERS;
    checker checkers[MOST_CHECKERS];
    uint32_t wrong = end;
    for (uint32_t i = 0; i < count; i++) {
        checkers[i] = (checker){.file = file, .sections = sections, .first = i, .step = count, .end = end};
        checkers[i].started = i + 1 < count && base_thread_start(&checkers[i].thread, check_sections, &checkers[i]) == DART_OK;
        if (!checkers[i].started) check_sections(&checkers[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (checkers[i].started) base_thread_join(&checkers[i].thread);
        if (checkers[i].wrong < wrong) wrong = checkers[i].wrong;
    }
    if (wrong == end) return DART_OK;
    return base_fail(&state->report, DART_BAD_DATA, "%s is damaged: the checksum of section %u is wrong", name, wrong);
}

/* Room for the sequences; for a whole batch cut as it was where it was saved, unless that would take much more than there is to keep. */
static dart_status make_room(dart_state *state, bool all, const state_file *file, const char *call)
{
    const state_file_header *h = &file->header;
    uint64_t longest = 0, room = 0;
    for (uint32_t i = 0; i < h->sequences; i++) longest = base_larger(longest, (uint64_t)file->positions[2 * i]);
    const uint64_t closed = state->sma ? longest / state->S : 0, block = state->block;
    dart_status status = DART_OK;
    bool plain = true;
    for (uint32_t i = 0; i < h->blocks; i++) {
        room += file->blocks[i];
        plain = plain && (block == 0 || file->blocks[i] <= block);
    }
    const uint64_t most = 2 * closed + base_larger(block, base_ceil_div(1024, state->S)) + 1;
    if (all && state->sma && plain && h->blocks > 0 && room <= most) status = model_memories_shape(state, file->blocks, h->blocks, call);
    if (status == DART_OK) status = model_memories_reserve(state, closed, call);
    if (status != DART_OK || !state->model->config.transformer) return status;
    bool empty = all;
    for (uint32_t b = 0; b < state->B; b++) empty = empty && state->positions[b] == 0;
    uint64_t tokens = longest;
    if (empty && h->cache_tokens > longest && h->cache_tokens <= 2 * longest + base_larger(block, 1024) &&
        h->cache_tokens <= model_cache_most(state)) {
        model_cache_retire(state);
        tokens = h->cache_tokens;
    }
    return model_cache_reserve(state, tokens, call);
}

static dart_status load(dart_state *state, int32_t b, const uint8_t *data, uint64_t bytes, const char *name, const char *call)
{
    dart_device *device = state->model->device;
    const uint32_t first = b < 0 ? 0 : (uint32_t)b, count = b < 0 ? state->B : 1;
    state_file file;
    float *values = NULL;
    uint8_t *converted = NULL;
    dart_status status = state_file_parse(&file, state, count, data, bytes, name);
    if (status != DART_OK) return status;
    const uint8_t *sections = data + file.head_bytes;
    TRY(check_all_sections(state, &file, sections, name));
    values = device_calloc(device, CONVERTED, sizeof *values);
    converted = device_calloc(device, CONVERTED, sizeof(float));
    if (values == NULL || converted == NULL)
        TRY(model_take(&state->report, &device->report, atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY, call));
    TRY(make_room(state, count == state->B, &file, call));
    TRY(model_windows_close(state, call));
    bool chosen = count == state->B || state->chosen;
    for (uint32_t i = 0; i < count; i++) chosen = chosen && file.positions[2 * i + 1] >= 0;
    state->broken = DART_INTERNAL;
    for (uint32_t i = 0; i <= state->model->config.layers; i++) {
        uint64_t section;
        transfer t = {.state = state, .file = &file, .b = first, .layer = i > 0 ? i - 1 : 0, .to_device = true, .values = values,
                      .converted = converted, .call = call};
        /* Not written to: to_device. */
        t.section = (uint8_t *)(uintptr_t)section_at(&file, sections, i, &section);
        TRY(i > 0 ? move_layer(&t) : move_last(&t));
    }
    for (uint32_t i = 0; i < count; i++) state->host_next[i] = file.positions[2 * i + 1];
    if (chosen) TRY(model_state_write(state, WORK_NEXT, first, state->host_next, count, call));
    for (uint32_t i = 0; i < count; i++) model_sequence_replaced(state, first + i, file.positions[2 * i]);
    state->chosen = chosen;
    state->broken = DART_OK;
fail:
    if (state->broken == DART_INTERNAL) state->broken = status;
    free(values);
    free(converted);
    free(file.runs);
    return status;
}

static const char CALL[] = "dart_state_load";

dart_status model_state_load_memory(dart_state *state, int32_t b, const void *data, uint64_t bytes, const char *name)
{
    return load(state, b, data, bytes, name, CALL);
}

dart_status dart_state_load(dart_state *state, int32_t b, const char *path)
{
    file_map map = {.data = NULL};
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, path != NULL, "%s: no path", CALL);
    REQUIRE(&state->report, b < 0 || (uint32_t)b < state->B, "%s: sequence %d of %u", CALL, b, state->B);
    dart_status status = model_state_usable(state, CALL);
    if (status == DART_OK) status = file_map_open(path, &state->report, &map);
    if (status == DART_OK) status = load(state, b, map.data, map.bytes, path, CALL);
    file_map_close(&map);
    return status;
}
