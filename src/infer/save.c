/* States to files and back. */
#include "state_file.h"

#include "base/checksum.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

#define SMALL ((uint64_t)1 << 20) /* starting threads takes longer than moving less */
#define CONVERTED ((uint64_t)1 << 16) /* elements converted at a time */
enum { MOST_WORKERS = 16, MOST_WRITERS = 8 /* each has memory for a section */ };

/* ---- Between a section and the device ---- */

/* The sequences of a file are those from b on. */
typedef struct transfer {
    dart_state *state;
    const state_file *file;
    uint32_t b, layer;
    bool to_device;
    uint8_t *section;     /* to_device: only read */
    uint8_t *scratch;     /* of to_device: CONVERTED f32, then as many converted elements */
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
        uint8_t *converted = t->scratch + CONVERTED * sizeof *values;
        for (uint64_t done = 0, n; done < elements && status == DART_OK; done += n) {
            n = base_smaller(elements - done, CONVERTED);
            dart_to_f32(dtype, values, t->section + at + done * file_size, (size_t)n);
            dart_from_f32(tensor.dtype, converted, values, (size_t)n);
            status = dart_buffer_write(tensor.buffer, (tensor.offset + done) * size, converted, n * size);
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

/* ---- Section by section, on several threads ---- */

typedef struct crew crew;
struct crew {
    dart_state *state;
    const state_file *file;
    uint32_t b; /* the sequences of the file are those from b on */
    const char *call;
    file_writer *writer;     /* saving */
    const uint8_t *sections; /* checking and loading */
    /* Section i, with memory of the worker's own. */
    dart_status (*section)(crew *c, uint32_t i, uint8_t *scratch);
    uint32_t count;
    atomic_uint next;
    base_mutex lock; /* of what follows, and of the writer */
    uint32_t failed; /* the first section that failed; count: none */
    dart_status status;
    base_progress *progress; /* asked by the caller's thread; NULL: nobody is */
    atomic_uint done;
};

typedef struct worker {
    crew *crew;
    bool asks;
    uint8_t *scratch;
    base_thread thread;
    bool started;
} worker;

/* Sections are handed out in order, so that all before one that fails are done, too: which is the first does not depend on the threads. */
static void work(void *argument)
{
    const worker *w = argument;
    crew *c = w->crew;
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

static dart_status no_memory(dart_state *state, const char *call)
{
    dart_device *device = state->model->device;
    return model_take(&state->report, &device->report, atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY, call);
}

/* All sections, on at most `most` threads with this many bytes of scratch each. The status of the first section that failed. */
static dart_status for_sections(crew *c, uint32_t most, uint64_t scratch_bytes)
{
    const uint32_t cores = base_core_count();
    worker workers[MOST_WORKERS];
    uint32_t count = most < c->count ? most : c->count;
    if (count > cores) count = cores;
    if (count < 1 || c->file->header.bytes < SMALL) count = 1;
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
        if (i == 0) c->status = no_memory(c->state, c->call);
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

static uint64_t section_at(const state_file *file, uint32_t i, uint64_t *bytes)
{
    *bytes = i > 0 ? file->layer_bytes : file->last_bytes;
    return i > 0 ? file->last_bytes + (i - 1) * file->layer_bytes : 0;
}

/* Section 0: the last rows and the ids seen; section i: layer i - 1. */
static dart_status move_section(const crew *c, uint32_t i, bool to_device, uint8_t *section, uint8_t *scratch)
{
    const transfer t = {.state = c->state, .file = c->file, .b = c->b, .layer = i > 0 ? i - 1 : 0, .to_device = to_device, .section = section,
                        .scratch = scratch, .call = c->call};
    return i > 0 ? move_layer(&t) : move_last(&t);
}

/* ---- Saving ---- */

static dart_status save_section(crew *c, uint32_t i, uint8_t *scratch)
{
    uint64_t bytes;
    uint8_t *section = scratch;
    const uint64_t at = c->file->head_bytes + section_at(c->file, i, &bytes);
    dart_status status = scratch == NULL ? file_writer_place(c->writer, at, bytes, &section) : DART_OK;
    if (status == DART_OK) status = move_section(c, i, false, section, NULL);
    if (status != DART_OK) return status;
    if (i > 0) clear_gaps(c->file, section); /* section 0 is the first in its scratch or place, which is zeros */
    const uint64_t sum = base_checksum(state_file_seed(c->file, i), section, bytes - sizeof sum);
    memcpy(section + bytes - sizeof sum, &sum, sizeof sum);
    if (scratch == NULL) return DART_OK;
    /* In turn: the system holds the file for each of them anyway, and threads that meet there lose a quarter of the time. */
    base_lock(&c->lock);
    status = file_writer_put(c->writer, at, section, bytes);
    base_unlock(&c->lock);
    return status;
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
    if (made == NULL) return no_memory(state, call);
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

static dart_status save(dart_state *state, uint32_t b, uint32_t count, const char *path, base_progress *progress, const char *call)
{
    state_file file = {.runs = NULL};
    uint8_t *head = NULL;
    file_writer *writer = NULL;
    dart_status status = make_head(state, b, count, &file, &head, call);
    if (status != DART_OK) return status;
    TRY(file_writer_open(path, &state->report, &writer));
    TRY(file_writer_put(writer, 0, head, file.head_bytes));
    crew c = {.state = state, .file = &file, .b = b, .call = call, .writer = writer, .section = save_section,
              .count = state->model->config.layers + 1, .progress = progress};
    progress->of = c.count;
    /* A pipe takes the sections in order. */
    if (file.header.bytes >= SMALL && file_writer_maps(writer, file.header.bytes)) TRY(for_sections(&c, MOST_WORKERS, 0));
    else TRY(for_sections(&c, file_writer_has_places(writer) ? MOST_WRITERS : 1, base_larger(file.layer_bytes, file.last_bytes)));
    progress->done = c.count;
    TRY(base_advance(progress, 0, &state->report, call));
    file_leftover_wait(&state->left);
    status = file_writer_close_leaving(&writer, &state->left);
fail:
    file_writer_destroy(&writer);
    free(head);
    free(file.runs);
    return status;
}

dart_status dart_state_save(dart_state *state, int32_t b, const char *path) { return dart_state_save_while(state, b, path, NULL, NULL); }

dart_status dart_state_save_while(dart_state *state, int32_t b, const char *path, bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user)
{
    static const char call[] = "dart_state_save";
    base_progress progress = {.go_on = go_on, .user = user};
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, path != NULL, "%s: no path", call);
    REQUIRE(&state->report, b < 0 || (uint32_t)b < state->B, "%s: sequence %d of %u", call, b, state->B);
    dart_status status = model_state_usable(state, call);
    if (status == DART_OK) status = model_windows_close(state, call);
    return status == DART_OK ? save(state, b < 0 ? 0 : (uint32_t)b, b < 0 ? state->B : 1, path, &progress, call) : status;
}

/* ---- Loading ---- */

static dart_status check_section(crew *c, uint32_t i, uint8_t *scratch)
{
    (void)scratch;
    uint64_t bytes, sum;
    const uint8_t *data = c->sections + section_at(c->file, i, &bytes);
    memcpy(&sum, data + bytes - 8, 8);
    return sum == base_checksum(state_file_seed(c->file, i), data, bytes - 8) ? DART_OK : DART_BAD_DATA;
}

static dart_status load_section(crew *c, uint32_t i, uint8_t *scratch)
{
    uint64_t bytes;
    /* Not written to. */
    return move_section(c, i, true, (uint8_t *)(uintptr_t)(c->sections + section_at(c->file, i, &bytes)), scratch);
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

static dart_status load(dart_state *state, int32_t b, const uint8_t *data, uint64_t bytes, const char *name, base_progress *progress,
                        const char *call)
{
    const uint32_t first = b < 0 ? 0 : (uint32_t)b, count = b < 0 ? state->B : 1;
    state_file file;
    dart_status status = state_file_parse(&file, state, count, data, bytes, name);
    if (status != DART_OK) return status;
    crew c = {.state = state, .file = &file, .b = first, .call = call, .sections = data + file.head_bytes, .section = check_section,
              .count = state->model->config.layers + 1, .progress = progress};
    progress->of = c.count;
    status = for_sections(&c, MOST_WORKERS, 0);
    if (status == DART_BAD_DATA) base_fail(&state->report, status, "%s is damaged: the checksum of section %u is wrong", name, c.failed);
    TRY(status);
    progress->done = c.count;
    TRY(base_advance(progress, 0, &state->report, call)); /* the last time: from here on the state changes */
    c.progress = NULL;
    TRY(make_room(state, count == state->B, &file, call));
    TRY(model_windows_close(state, call));
    bool chosen = count == state->B || state->chosen;
    for (uint32_t i = 0; i < count; i++) chosen = chosen && file.positions[2 * i + 1] >= 0;
    state->broken = DART_INTERNAL;
    c.section = load_section;
    TRY(for_sections(&c, MOST_WORKERS, 2 * CONVERTED * sizeof(float)));
    for (uint32_t i = 0; i < count; i++) state->host_next[i] = file.positions[2 * i + 1];
    if (chosen) TRY(model_state_write(state, WORK_NEXT, first, state->host_next, count, call));
    for (uint32_t i = 0; i < count; i++) model_sequence_replaced(state, first + i, file.positions[2 * i]);
    state->chosen = chosen;
    state->broken = DART_OK;
fail:
    if (state->broken == DART_INTERNAL) state->broken = status;
    free(file.runs);
    return status;
}

static const char CALL[] = "dart_state_load";

dart_status model_state_load_memory(dart_state *state, int32_t b, const void *data, uint64_t bytes, const char *name)
{
    return load(state, b, data, bytes, name, &(base_progress){.go_on = NULL}, CALL);
}

dart_status dart_state_load(dart_state *state, int32_t b, const char *path) { return dart_state_load_while(state, b, path, NULL, NULL); }

dart_status dart_state_load_while(dart_state *state, int32_t b, const char *path, bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user)
{
    base_progress progress = {.go_on = go_on, .user = user};
    file_map map = {.data = NULL};
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, path != NULL, "%s: no path", CALL);
    REQUIRE(&state->report, b < 0 || (uint32_t)b < state->B, "%s: sequence %d of %u", CALL, b, state->B);
    dart_status status = model_state_usable(state, CALL);
    if (status == DART_OK) status = file_map_open(path, &state->report, &map);
    if (status == DART_OK) status = load(state, b, map.data, map.bytes, path, &progress, CALL);
    file_leftover_wait(&state->left);
    file_map_close_leaving(&map, &state->left);
    return status;
}
