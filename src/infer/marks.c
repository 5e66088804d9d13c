/* Marks of sequences, and going back to them. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

/* ---- Marks ---- */

/* The places of the parts of one sequence in a mark's buffer; *bytes: all of them. */
static uint32_t mark_parts(const dart_state *state, model_part *parts, uint64_t *bytes)
{
    const uint32_t count = model_parts(state, parts);
    *bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        parts[i].at = *bytes;
        *bytes += base_round_up(parts[i].width * dart_dtype_size(parts[i].dtype), BACKEND_ALIGN);
    }
    return count;
}

/* The last row of a mark lies behind the parts of its first layer. */
static uint64_t mark_bytes(const dart_state *state, uint32_t layer)
{
    model_part parts[MODEL_PARTS] = {{0}};
    uint64_t bytes;
    mark_parts(state, parts, &bytes);
    return bytes + (layer == 0 ? state->model->config.W * dart_dtype_size(state->model->activations) : 0);
}

static void record_mark(const dart_state *state, uint32_t b, const model_mark *mark, bool back)
{
    dart_stream *stream = state->prefill;
    model_part parts[MODEL_PARTS] = {{0}}, places[MODEL_PARTS] = {{0}};
    uint64_t bytes;
    const uint32_t count = model_parts(state, parts);
    mark_parts(state, places, &bytes);
    for (uint32_t l = 0; l < state->model->config.layers; l++)
        for (uint32_t i = 0; i < count; i++) {
            const dart_tensor here = model_part_tensor(&parts[i], state->layers[l], b), there = model_part_tensor(&places[i], mark->buffers[l], 0);
            model_pace_bytes(state, stream, 2 * parts[i].width * dart_dtype_size(parts[i].dtype), 1);
            model_record_copy(stream, back ? there : here, back ? here : there, 1, parts[i].width);
        }
    const dart_tensor row = model_last_row(state, b);
    const dart_tensor kept = {.buffer = mark->buffers[0], .dtype = row.dtype, .offset = bytes / dart_dtype_size(row.dtype)};
    model_record_copy(stream, back ? kept : row, back ? row : kept, 1, state->model->config.W);
}

static model_mark *mark_of(const dart_state *state, uint32_t b, uint32_t i) { return &state->marks[(size_t)b * state->marks_most + i]; }

void model_marks_drop(dart_state *state, uint32_t b, int32_t position)
{
    for (uint32_t i = 0; i < state->marks_most && state->marks != NULL; i++)
        if (mark_of(state, b, i)->position > position) mark_of(state, b, i)->kept = false;
}

/* One a layer: of a mark, or like the layers' own. */
static dart_status make_buffers(dart_state *state, bool of_mark, dart_buffer ***buffers, const char *call)
{
    dart_device *device = state->model->device;
    const uint32_t layers = state->model->config.layers;
    dart_status status = DART_OK;
    dart_buffer **made = device_calloc(device, layers, sizeof *made);
    if (made == NULL) status = atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    for (uint32_t l = 0; l < layers && status == DART_OK; l++)
        status = dart_buffer_create(device, of_mark ? mark_bytes(state, l) : state->layer_bytes, &made[l]);
    if (status == DART_OK) {
        *buffers = made;
        return DART_OK;
    }
    for (uint32_t l = 0; made != NULL && l < layers; l++) dart_buffer_destroy(&made[l]);
    free(made);
    return model_take(&state->report, &device->report, status, call);
}

static void destroy_buffers(dart_buffer **buffers, uint32_t layers)
{
    for (uint32_t l = 0; buffers != NULL && l < layers; l++) dart_buffer_destroy(&buffers[l]);
    free(buffers);
}

void model_marks_destroy(dart_state *state)
{
    const uint32_t layers = state->model->config.layers;
    for (size_t i = 0; state->marks != NULL && i < (size_t)state->B * state->marks_most; i++) {
        destroy_buffers(state->marks[i].buffers, layers);
        free(state->marks[i].seen);
    }
    destroy_buffers(state->backup, layers);
    free(state->marks);
}

uint64_t model_marks_bytes(const dart_state *state)
{
    uint64_t marks = 0, bytes = state->backup != NULL ? state->layer_bytes * state->model->config.layers : 0;
    for (size_t i = 0; state->marks != NULL && i < (size_t)state->B * state->marks_most; i++) marks += state->marks[i].buffers != NULL;
    for (uint32_t l = 0; l < state->model->config.layers && marks > 0; l++) bytes += marks * mark_bytes(state, l);
    return bytes;
}

/* A free place for a mark of sequence b, or that of its oldest. */
static model_mark *place_for_mark(const dart_state *state, uint32_t b)
{
    model_mark *best = mark_of(state, b, 0);
    for (uint32_t i = 1; i < state->marks_most && best->kept; i++) {
        model_mark *mark = mark_of(state, b, i);
        if (!mark->kept || mark->order < best->order) best = mark;
    }
    return best;
}

/* The last mark of sequence b up to a position; NULL when there is none. */
static const model_mark *mark_before(const dart_state *state, uint32_t b, uint64_t position)
{
    const model_mark *best = NULL;
    for (uint32_t i = 0; i < state->marks_most && state->marks != NULL; i++) {
        const model_mark *mark = mark_of(state, b, i);
        if (mark->kept && (uint64_t)mark->position <= position && (best == NULL || mark->position > best->position)) best = mark;
    }
    return best;
}

dart_status dart_state_mark(dart_state *state, uint32_t b)
{
    static const char call[] = "dart_state_mark";
    if (state == NULL) return DART_INVALID_ARGUMENT;
    dart_status status = DART_OK;
    REQUIRE(&state->report, b < state->B, "%s: sequence %u of %u", call, b, state->B);
    TRY(model_state_usable(state, call));
    const int32_t position = state->positions[b];
    if (position == 0 || state->model->config.transformer) return DART_OK;
    const model_mark *last = mark_before(state, b, (uint64_t)position);
    if (last != NULL && last->position == position) return DART_OK;
    if (state->marks == NULL) {
        state->marks = device_calloc(state->model->device, (size_t)state->B * state->marks_most, sizeof *state->marks);
        if (state->marks == NULL)
            return model_take(&state->report, &state->model->device->report,
                              atomic_load(&state->model->device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY, call);
    }
    model_mark *mark = place_for_mark(state, b);
    if (mark->buffers == NULL) TRY(make_buffers(state, true, &mark->buffers, call));
    if (mark->seen == NULL) TRY(model_seen_make(state, 1, &mark->seen, call));
    TRY(model_windows_close(state, call));
    TRY(model_begin_paced(state, state->prefill, 1, call));
    record_mark(state, b, mark, false);
    mark->kept = false;
    TRY(model_run_recorded(state, state->prefill, call));
    TRY(model_seen_read(state, b, 1, mark->seen, call));
    mark->kept = true;
    mark->position = position;
    mark->order = state->marks_made++;
fail:
    return status;
}

/* ---- Before a piece that may be cancelled ---- */

static dart_status backup(dart_state *state, bool back, const char *call)
{
    model_part parts[MODEL_PARTS] = {{0}};
    const uint32_t count = model_parts(state, parts);
    dart_stream *stream = state->prefill;
    dart_status status = DART_OK;
    if (count == 0) return DART_OK; /* a cache keeps its rows up to the position, whatever stands behind */
    if (state->backup == NULL) TRY(make_buffers(state, false, &state->backup, call));
    TRY(model_begin_paced(state, stream, 1, call));
    for (uint32_t l = 0; l < state->model->config.layers; l++)
        for (uint32_t i = 0; i < count; i++) {
            model_pace_bytes(state, stream, 2 * state->B * parts[i].width * dart_dtype_size(parts[i].dtype), 1);
            const dart_tensor here = model_part_tensor(&parts[i], state->layers[l], 0), there = model_part_tensor(&parts[i], state->backup[l], 0);
            model_record_copy(stream, back ? there : here, back ? here : there, state->B, parts[i].width);
        }
    TRY(model_state_run(state, stream, 1, NULL, call));
fail:
    return status;
}

dart_status model_backup_take(dart_state *state, const char *call) { return backup(state, false, call); }
dart_status model_backup_return(dart_state *state, const char *call) { return backup(state, true, call); }

/* ---- Going back ---- */

static bool ask_replay(void *user)
{
    const base_progress *progress = user;
    return progress->go_on(progress->user, progress->done, progress->of);
}

/* Tokens from .. to - 1 of sequence b again, in pieces that `rows`, b + 1 rows of `row` ids, has room for. */
static dart_status replay(dart_state *state, uint32_t b, uint64_t from, uint64_t to, const int32_t *ids, int32_t *rows, uint32_t row,
                          uint32_t *counts, base_progress *progress)
{
    dart_status status = DART_OK;
    progress->of = to - from;
    for (uint64_t t = from; t < to && status == DART_OK; t += counts[b]) {
        counts[b] = (uint32_t)base_smaller(row, to - t);
        memcpy(&rows[(size_t)b * row], &ids[t], counts[b] * sizeof *ids);
        progress->done = t - from;
        TRY(base_advance(progress, 0, &state->report, "dart_state_truncate")); /* a piece does not ask before its first submission */
        TRY(dart_prefill(state, &(dart_prefill_args){.ids = rows, .ids_row = row, .L = counts[b], .counts = counts,
                                                     .go_on = progress->go_on != NULL ? ask_replay : NULL, .user = progress}));
    }
fail:
    return status;
}

/* Sequence b as it was at the mark, or without one empty; a Transformer's keeps its keys and values. */
static dart_status return_to(dart_state *state, uint32_t b, const model_mark *mark, uint64_t position, const char *call)
{
    dart_status status = DART_OK;
    bool ran = false;
    if (mark != NULL) {
        TRY(model_begin_paced(state, state->prefill, 1, call));
        record_mark(state, b, mark, true);
        TRY(model_run_recorded(state, state->prefill, call));
        status = model_seen_write(state, b, mark->seen, call);
        if (status != DART_OK) state->broken = status;
    } else {
        status = model_clear_sequences(state, b, 1, &ran, call);
        if (status != DART_OK && ran) state->broken = status;
    }
    if (status != DART_OK) goto fail;
    state->positions[b] = (int32_t)position;
    state->ended[b] = false;
    state->judged = false;
    state->seq_current = false;
    state->chosen = false;
    model_marks_drop(state, b, (int32_t)position);
fail:
    return status;
}

dart_status dart_state_truncate(dart_state *state, uint32_t b, uint64_t position, const int32_t *ids)
{
    return dart_state_truncate_while(state, b, position, ids, NULL, NULL);
}

dart_status dart_state_truncate_while(dart_state *state, uint32_t b, uint64_t position, const int32_t *ids,
                                      bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user)
{
    static const char call[] = "dart_state_truncate";
    base_progress progress = {.go_on = go_on, .user = user};
    if (state == NULL) return DART_INVALID_ARGUMENT;
    dart_status status = DART_OK;
    int32_t *rows = NULL;
    uint32_t *counts = NULL;
    base_report *report = &state->report;
    dart_device *device = state->model->device;
    const bool transformer = state->model->config.transformer;
    const uint32_t V = state->model->config.V;
    REQUIRE(report, b < state->B, "%s: sequence %u of %u", call, b, state->B);
    TRY(model_state_usable(state, call));
    REQUIRE(report, position <= (uint64_t)state->positions[b], "%s: sequence %u has %d tokens, not %llu", call, b, state->positions[b],
            (unsigned long long)position);
    if (position == (uint64_t)state->positions[b]) return DART_OK;
    const model_mark *mark = mark_before(state, b, position);
    const uint64_t base = transformer ? position - (ids != NULL && position > 0) : mark != NULL ? (uint64_t)mark->position : 0;
    REQUIRE(report, base == position || ids != NULL, "%s: the last mark of sequence %u up to token %llu is at %llu: the ids of the tokens are needed",
            call, b, (unsigned long long)position, (unsigned long long)base);
    for (uint64_t t = base; t < position; t++)
        REQUIRE(report, ids[t] >= 0 && (uint32_t)ids[t] < V, "%s: id %d of token %llu is not within 0 to %u", call, ids[t], (unsigned long long)t,
                V - 1);
    const uint32_t row = (uint32_t)base_smaller(base_larger(state->rows, 1), base_larger(position - base, 1));
    rows = device_calloc(device, ((size_t)b + 1) * row, sizeof *rows);
    counts = device_calloc(device, state->B, sizeof *counts);
    if (rows == NULL || counts == NULL)
        TRY(model_take(report, &device->report, atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY, call));
    TRY(model_windows_close(state, call));
    TRY(return_to(state, b, mark, base, call));
    TRY(replay(state, b, base, position, ids, rows, row, counts, &progress));
fail:
    free(rows);
    free(counts);
    return status;
}
