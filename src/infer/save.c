/* States to files. */
#include "sections.h"

#include "base/checksum.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_WRITERS = 8 /* each has memory for a section */ };

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

static dart_status save_section(sections_crew *c, uint32_t i, uint8_t *scratch)
{
    uint64_t bytes;
    uint8_t *section = scratch;
    const uint64_t at = c->file->head_bytes + sections_at(c->file, i, &bytes);
    dart_status status = scratch == NULL ? file_writer_place(c->writer, at, bytes, &section) : DART_OK;
    if (status == DART_OK) status = sections_move(c, i, false, section, NULL);
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
                             .blocks = all ? state->blocks_count : 0};
    memcpy(h->magic, STATE_FILE_MAGIC, sizeof h->magic);
    state_file_config(&model->config, h->config);
    const uint64_t bytes = state_file_head_bytes(h);
    uint8_t *made = device_calloc(model->device, 1, (size_t)bytes);
    if (made == NULL) return sections_no_memory(state, call);
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

/* ---- Room found ahead ---- */

void model_prepared_drop(dart_state *state)
{
    file_writer_destroy(&state->prepared);
    free(state->prepared_path);
    state->prepared_path = NULL;
}

/* The writer that was prepared for this path and as many bytes or more; NULL: none. It is the caller's then. */
static file_writer *take_prepared(dart_state *state, const char *path, uint64_t bytes)
{
    if (state->prepared == NULL || strcmp(path, state->prepared_path) != 0) return NULL;
    /* A smaller file is not written as memory, and would keep the length of this one. */
    file_writer *taken = bytes >= SECTIONS_SMALL && bytes <= state->prepared_bytes ? state->prepared : NULL;
    if (taken != NULL) state->prepared = NULL;
    model_prepared_drop(state);
    return taken;
}

static dart_status find_room(sections_crew *c, uint32_t i, uint8_t *scratch)
{
    uint64_t bytes;
    uint8_t *place;
    (void)scratch;
    const uint64_t at = c->file->head_bytes + sections_at(c->file, i, &bytes);
    return file_writer_place(c->writer, at, bytes, &place);
}

/* Blocks that a file of all sequences may name once one of them has so many tokens: its header grows with them. */
static uint32_t most_blocks(const dart_state *state, uint32_t count, uint64_t tokens, uint32_t blocks)
{
    if (count < state->B || !state->sma) return blocks;
    return (uint32_t)base_smaller(blocks + model_memories_most_blocks(state, tokens / state->S), UINT32_MAX);
}

dart_status dart_state_prepare_save(dart_state *state, int32_t b, const char *path, uint64_t tokens)
{
    return dart_state_prepare_save_while(state, b, path, tokens, NULL, NULL);
}

dart_status dart_state_prepare_save_while(dart_state *state, int32_t b, const char *path, uint64_t tokens,
                                          bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user)
{
    static const char call[] = "dart_state_prepare_save";
    base_progress progress = {.go_on = go_on, .user = user};
    if (state == NULL) return DART_INVALID_ARGUMENT;
    state_file file = {.runs = NULL};
    uint8_t *head = NULL;
    int32_t *longest = NULL;
    dart_status status = DART_OK;
    REQUIRE(&state->report, path != NULL, "%s: no path", call);
    REQUIRE(&state->report, b < 0 || (uint32_t)b < state->B, "%s: sequence %d of %u", call, b, state->B);
    REQUIRE(&state->report, tokens <= INT32_MAX, "%s: %llu tokens", call, (unsigned long long)tokens);
    TRY(model_state_usable(state, call));
    const uint32_t first = b < 0 ? 0 : (uint32_t)b, count = b < 0 ? state->B : 1;
    model_prepared_drop(state);
    TRY(make_head(state, first, count, &file, &head, call));
    longest = device_calloc(state->model->device, 2 * (size_t)count, sizeof *longest);
    state->prepared_path = file_join("", path);
    if (longest == NULL || state->prepared_path == NULL) TRY(sections_no_memory(state, call));
    for (uint32_t i = 0; i < count; i++) longest[2 * i] = (int32_t)base_larger(tokens, (uint64_t)file.positions[2 * i]);
    free(file.runs);
    file.positions = longest;
    file.header.blocks = most_blocks(state, count, tokens, file.header.blocks);
    TRY(state_file_place(&file, state, &state->prepared_bytes, &state->report, call));
    TRY(file_writer_open(path, &state->report, &state->prepared));
    if (state->prepared_bytes < SECTIONS_SMALL || !file_writer_maps(state->prepared, state->prepared_bytes)) model_prepared_drop(state);
    else {
        sections_crew c = {.state = state, .file = &file, .b = first, .call = call, .writer = state->prepared, .section = find_room,
                  .count = state->model->config.layers + 1, .progress = &progress};
        progress.of = c.count;
        file.header.bytes = state->prepared_bytes;
        TRY(sections_run(&c, SECTIONS_WORKERS, 0));
    }
    progress.done = progress.of;
    TRY(base_advance(&progress, 0, &state->report, call));
fail:
    if (status != DART_OK) model_prepared_drop(state);
    free(longest);
    free(head);
    free(file.runs);
    return status;
}

/* ---- The file ---- */

static dart_status save(dart_state *state, uint32_t b, uint32_t count, const char *path, base_progress *progress, const char *call)
{
    state_file file = {.runs = NULL};
    uint8_t *head = NULL;
    file_writer *writer = NULL;
    dart_status status = make_head(state, b, count, &file, &head, call);
    if (status != DART_OK) return status;
    writer = take_prepared(state, path, file.header.bytes);
    if (writer == NULL) TRY(file_writer_open(path, &state->report, &writer));
    TRY(file_writer_put(writer, 0, head, file.head_bytes));
    sections_crew c = {.state = state, .file = &file, .b = b, .call = call, .writer = writer, .section = save_section,
              .count = state->model->config.layers + 1, .progress = progress};
    progress->of = c.count;
    /* A pipe takes the sections in order. */
    if (file.header.bytes >= SECTIONS_SMALL && file_writer_maps(writer, file.header.bytes)) TRY(sections_run(&c, SECTIONS_WORKERS, 0));
    else TRY(sections_run(&c, file_writer_has_places(writer) ? MOST_WRITERS : 1, base_larger(file.layer_bytes, file.last_bytes)));
    progress->done = c.count;
    TRY(base_advance(progress, 0, &state->report, call));
    file_leftover_wait(&state->left_saved);
    status = file_writer_close_leaving(&writer, &state->left_saved);
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
