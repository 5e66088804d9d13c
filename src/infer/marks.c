/* Marks of sequences, and what a cancelled piece goes back to. */
#include "state.h"

#include <stdlib.h>

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

void model_mark_record(const dart_state *state, uint32_t b, const model_mark *mark, bool back)
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

const model_mark *model_mark_before(const dart_state *state, uint32_t b, uint64_t position)
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
    const model_mark *last = model_mark_before(state, b, (uint64_t)position);
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
    model_mark_record(state, b, mark, false);
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
