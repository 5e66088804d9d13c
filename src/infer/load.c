/* States from files. */
#include "sections.h"

#include "base/checksum.h"

#include <stdlib.h>
#include <string.h>

static dart_status check_section(sections_crew *c, uint32_t i, uint8_t *scratch)
{
    (void)scratch;
    uint64_t bytes, sum;
    const uint8_t *data = c->sections + sections_at(c->file, i, &bytes);
    memcpy(&sum, data + bytes - 8, 8);
    return sum == base_checksum(state_file_seed(c->file, i), data, bytes - 8) ? DART_OK : DART_BAD_DATA;
}

static dart_status load_section(sections_crew *c, uint32_t i, uint8_t *scratch)
{
    uint64_t bytes;
    /* Not written to. */
    return sections_move(c, i, true, (uint8_t *)(uintptr_t)(c->sections + sections_at(c->file, i, &bytes)), scratch);
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
    return status == DART_OK ? model_cache_reserve(state, longest, call) : status;
}

static dart_status load(dart_state *state, int32_t b, const uint8_t *data, uint64_t bytes, const char *name, base_progress *progress,
                        const char *call)
{
    const uint32_t first = b < 0 ? 0 : (uint32_t)b, count = b < 0 ? state->B : 1;
    state_file file;
    dart_status status = state_file_parse(&file, state, count, data, bytes, name);
    if (status != DART_OK) return status;
    sections_crew c = {.state = state, .file = &file, .b = first, .call = call, .sections = data + file.head_bytes, .section = check_section,
              .count = state->model->config.layers + 1, .progress = progress};
    progress->of = c.count;
    status = sections_run(&c, SECTIONS_WORKERS, 0);
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
    TRY(sections_run(&c, SECTIONS_WORKERS, SECTIONS_SCRATCH));
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
    file_leftover_wait(&state->left_loaded); /* what saving left takes longer than a load, and is not waited for */
    file_map_close_leaving(&map, &state->left_loaded);
    return status;
}
