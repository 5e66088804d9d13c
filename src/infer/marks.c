/* Sequences on the device as values: copies from slot to slot, marks, and going back. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

/* ---- What a layer keeps of a sequence ---- */

uint32_t model_parts(const dart_state *state, model_part *parts)
{
    const dart_model_config *c = &state->model->config;
    const dart_dtype dtype = state->model->activations;
    const uint64_t memory = model_config_memory(c), tail = model_config_tail(c);
    uint32_t count = 0;
    if (c->transformer) return 0; /* what it keeps lies in its cache */
    parts[count++] = (model_part){.at = state->h_at, .width = memory, .dtype = DART_F32};
    if (tail > 0) parts[count++] = (model_part){.at = state->tail_at, .width = tail * model_config_conv(c), .dtype = dtype, .tail = true};
    if (!state->sma) return count;
    parts[count++] = (model_part){.at = state->open_at, .width = memory, .dtype = DART_F32};
    parts[count++] = (model_part){.at = state->decay_at, .width = c->H, .dtype = DART_F32};
    if (tail > 0) parts[count++] = (model_part){.at = state->sma_tail_at, .width = tail * model_config_sma_conv(c), .dtype = dtype, .tail = true};
    return count;
}

dart_tensor model_part_tensor(const model_part *part, dart_buffer *layer, uint32_t b)
{
    return (dart_tensor){.buffer = layer, .dtype = part->dtype, .offset = part->at / dart_dtype_size(part->dtype) + b * part->width};
}

void model_sequence_replaced(dart_state *state, uint32_t b, int32_t position)
{
    state->positions[b] = position;
    state->queries_at[b] = -1;
    state->ended[b] = false;
    state->judged = false;
    state->seq_current = false;
    model_marks_drop(state, b, -1);
}

static void record_copy(dart_stream *stream, dart_tensor from, dart_tensor to, uint64_t T, uint64_t W)
{
    dart_convert(stream, &(dart_convert_args){.T = (uint32_t)T, .W = (uint32_t)W, .x = from, .y = to});
}

static dart_tensor last_row(const dart_state *state, uint32_t b)
{
    dart_tensor row = model_work_tensor(state, WORK_LAST);
    row.offset = (uint64_t)b * state->model->config.W;
    return row;
}

/* The row of WORK_SEEN of sequence b goes through the host: dart_convert moves numbers, which bits need not be. */
static uint64_t seen_words(const dart_state *state) { return base_ceil_div(state->model->config.V, 32); }

static dart_status read_seen(dart_state *state, uint32_t b, uint32_t B, int32_t *seen, const char *call)
{
    return model_state_read(state, WORK_SEEN, b * seen_words(state), seen, B * seen_words(state), call);
}

static dart_status write_seen(dart_state *state, uint32_t b, const int32_t *seen, const char *call)
{
    return model_state_write(state, WORK_SEEN, b * seen_words(state), seen, seen_words(state), call);
}

static dart_status make_seen(dart_state *state, uint32_t B, int32_t **seen, const char *call)
{
    dart_device *device = state->model->device;
    *seen = device_calloc(device, (size_t)(B * seen_words(state)), sizeof **seen);
    if (*seen != NULL) return DART_OK;
    return model_take(&state->report, &device->report, atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY, call);
}

/* ---- From slot to slot ---- */

static void record_memories(dart_stream *stream, const dart_state *to, uint32_t to_b, const dart_state *from, uint32_t from_b, uint32_t layer)
{
    const dart_model_config *c = &from->model->config;
    const uint64_t memory = model_config_memory(c), scales = (uint64_t)c->H * c->N;
    const uint32_t closed = from->sma ? (uint32_t)from->positions[from_b] / from->S : 0;
    for (uint32_t m = 0, i = 0, k = 0; m < closed;) { /* a run within one block of either */
        const memory_block *a = &from->blocks[i], *b = &to->blocks[k];
        const uint32_t a_end = a->first + a->M, b_end = b->first + b->M;
        if (m >= a_end) {
            i++;
            continue;
        }
        if (m >= b_end) {
            k++;
            continue;
        }
        const uint32_t fit = (uint32_t)base_smaller(model_copy_rows(to, memory, dart_dtype_size(from->model->memories)), closed - m);
        const uint32_t end = (uint32_t)base_smaller(m + fit, base_smaller(a_end, b_end));
        const uint64_t x = (uint64_t)from_b * a->M + m - a->first, y = (uint64_t)to_b * b->M + m - b->first;
        const dart_dtype dtype = from->model->memories;
        model_pace_bytes(to, stream, 2 * (end - m) * (memory * dart_dtype_size(dtype) + 4 * scales), 2);
        record_copy(stream, (dart_tensor){.buffer = a->buffers[layer], .dtype = dtype, .offset = x * memory},
                    (dart_tensor){.buffer = b->buffers[layer], .dtype = dtype, .offset = y * memory}, end - m, memory);
        record_copy(stream, (dart_tensor){.buffer = a->buffers[layer], .dtype = DART_F32, .offset = a->scale_at + x * scales},
                    (dart_tensor){.buffer = b->buffers[layer], .dtype = DART_F32, .offset = b->scale_at + y * scales}, end - m, scales);
        m = end;
    }
}

/* All but memories and keys. pairs: WORK_PAIRS has {from_b, to_b} of so many sequences, which are copied together; 0: only these two. */
static void record_parts(dart_stream *stream, const dart_state *to, uint32_t to_b, const dart_state *from, uint32_t from_b, uint32_t pairs)
{
    const uint32_t layers = from->model->config.layers, x_b = pairs > 0 ? 0 : from_b, y_b = pairs > 0 ? 0 : to_b;
    model_part parts[MODEL_PARTS] = {{0}}, places[MODEL_PARTS] = {{0}};
    const uint32_t count = model_parts(from, parts);
    dart_convert_args copy = {.T = 1};
    if (pairs > 0) copy = (dart_convert_args){.T = pairs, .X = from->B, .Y = to->B, .pairs = model_work_tensor(to, WORK_PAIRS)};
    model_parts(to, places);
    for (uint32_t l = 0; l < layers; l++)
        for (uint32_t i = 0; i < count; i++) {
            model_pace_bytes(to, stream, 2 * (uint64_t)(pairs > 0 ? pairs : 1) * parts[i].width * dart_dtype_size(parts[i].dtype), 1);
            copy.W = (uint32_t)parts[i].width;
            copy.x = model_part_tensor(&parts[i], from->layers[l], x_b);
            copy.y = model_part_tensor(&places[i], to->layers[l], y_b);
            dart_convert(stream, &copy);
        }
    copy.W = from->model->config.W;
    copy.x = last_row(from, x_b);
    copy.y = last_row(to, y_b);
    dart_convert(stream, &copy);
}

static void record_grown(dart_stream *stream, const dart_state *to, uint32_t to_b, const dart_state *from, uint32_t from_b)
{
    const dart_model_config *c = &from->model->config;
    const uint64_t width = (uint64_t)c->G * c->P, size = dart_dtype_size(from->model->memories), tokens = (uint64_t)from->positions[from_b];
    const uint64_t most = model_copy_rows(to, width, size);
    for (uint32_t l = 0; l < c->layers; l++) {
        record_memories(stream, to, to_b, from, from_b, l);
        for (uint64_t t = 0, n; t < tokens && c->transformer; t += n) { /* a run within one block of either */
            const uint32_t i = model_cache_block(from, t), k = model_cache_block(to, t);
            const cache_block *a = &from->cache[i], *b = &to->cache[k];
            const dart_key_block x = model_cache_part(from, l, from_b, i), y = model_cache_part(to, l, to_b, k);
            const uint64_t x_at = (t - a->first) * width, y_at = (t - b->first) * width;
            n = base_smaller(base_smaller(most, tokens - t), base_smaller(a->first + (uint64_t)a->C, b->first + (uint64_t)b->C) - t);
            model_pace_bytes(to, stream, 4 * n * width * size, 2);
            record_copy(stream, model_columns(x.k, x_at, 0), model_columns(y.k, y_at, 0), n, width);
            record_copy(stream, model_columns(x.v, x_at, 0), model_columns(y.v, y_at, 0), n, width);
        }
    }
}

static bool go_together(const dart_state *to, const uint32_t *to_b, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (to_b[i] <= to_b[i - 1]) return false;
    return count > 1 && count <= to->B;
}

/* A launch copies a part of several sequences, whose places must differ: one by one they are launches by the hundred. */
static dart_status record_sequences(dart_state *to, const uint32_t *to_b, const dart_state *from, const uint32_t *from_b, uint32_t count,
                                    const char *call)
{
    const bool together = go_together(to, to_b, count);
    for (uint32_t i = 0; i < count && together; i++) {
        to->host_seq[2 * i] = (int32_t)from_b[i];
        to->host_seq[2 * i + 1] = (int32_t)to_b[i];
    }
    const dart_status status = together ? model_state_write(to, WORK_PAIRS, 0, to->host_seq, 2 * (uint64_t)count, call) : DART_OK;
    if (together) record_parts(to->prefill, to, 0, from, 0, count);
    for (uint32_t i = 0; i < count; i++) {
        if (!together) record_parts(to->prefill, to, to_b[i], from, from_b[i], 0);
        record_grown(to->prefill, to, to_b[i], from, from_b[i]);
    }
    return status;
}

/* Submits what was recorded and waits. From the first submission on a failure breaks the state. */
static dart_status run_recorded(dart_state *state, dart_stream *stream, const char *call)
{
    bool ran = false;
    const dart_status status = model_state_run_parts(state, stream, NULL, &ran, NULL, NULL, call);
    if (status != DART_OK && ran) state->broken = status;
    return status;
}

/* The copies of record_sequences. Sequences that the caller does not want any more, half of them copied, are emptied. */
static dart_status run_copies(dart_state *to, const uint32_t *to_b, uint32_t count, base_progress *progress, const char *call)
{
    bool ran = false;
    dart_status status = model_state_run_parts(to, to->prefill, progress, &ran, NULL, NULL, call);
    if (status == DART_OK || !ran) return status;
    if (status != DART_CANCELLED) {
        to->broken = status;
        return status;
    }
    to->chosen = false;
    for (uint32_t i = 0; i < count; i++) {
        const dart_status cleared = model_clear_sequences(to, to_b[i], 1, &ran, call);
        if (cleared != DART_OK) {
            to->broken = cleared;
            return cleared;
        }
        model_sequence_replaced(to, to_b[i], 0);
    }
    return base_fail(&to->report, DART_CANCELLED, "%s: ended by go_on", call);
}

/* What can be said of the arguments before anything is done. */
static dart_status check_copies(dart_state *to, const uint32_t *to_b, dart_state *from, const uint32_t *from_b, uint32_t count, const char *call)
{
    base_report *report = &to->report;
    REQUIRE(report, from != NULL, "%s: no state to copy from", call);
    REQUIRE(report, to->model == from->model, "%s: the states are of two models", call);
    REQUIRE(report, count == 0 || (to_b != NULL && from_b != NULL), "%s: no list of sequences", call);
    REQUIRE(report, count <= 1 || to != from, "%s: several sequences are copied between two states", call);
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE(report, to_b[i] < to->B, "%s: sequence %u of %u", call, to_b[i], to->B);
        REQUIRE(report, from_b[i] < from->B, "%s: sequence %u of %u to copy from", call, from_b[i], from->B);
    }
    REQUIRE(report, to->S == from->S, "%s: chunks of %u and of %u tokens", call, to->S, from->S);
    REQUIRE(report, to->sma == from->sma, "%s: one state has memories, the other has none", call);
    const dart_status status = model_state_usable(to, call);
    if (status != DART_OK || from->broken == DART_OK) return status;
    return base_fail(report, from->broken, "%s: an earlier call on the state to copy from failed half-way", call);
}

/* Windows of no tokens: one launch a layer where there are pairs. */
static void record_empty_windows(const dart_state *to, const uint32_t *to_b, const dart_state *from, uint32_t count, uint32_t layer)
{
    const uint64_t width = model_window_elements(&to->model->config);
    const dart_dtype dtype = to->model->activations;
    dart_buffer *windows = to->windows[layer];
    for (uint32_t i = 0; i < count && !go_together(to, to_b, count); i++)
        model_record_clear(to->prefill, windows, to->rows_at, dtype, to_b[i], 1, width);
    if (!go_together(to, to_b, count)) return;
    model_pace_bytes(to, to->prefill, 2 * count * width * dart_dtype_size(dtype), 1);
    dart_convert(to->prefill, &(dart_convert_args){
        .T = count, .W = (uint32_t)width, .X = from->B, .Y = to->B, .x = {.buffer = to->zeros, .dtype = dtype},
        .y = {.buffer = windows, .dtype = dtype, .offset = to->rows_at / dart_dtype_size(dtype)}, .pairs = model_work_tensor(to, WORK_PAIRS)});
}

/* Where the state to copy to is in windows, only the windows of the sequences that come are made, and the others go on with theirs. */
static dart_status record_joining(dart_state *to, const uint32_t *to_b, const dart_state *from, const uint32_t *from_b, uint32_t count,
                                  const char *call)
{
    const dart_model_config *c = &to->model->config;
    dart_stream *stream = to->prefill;
    for (uint32_t b = 0; b < to->B; b++) {
        to->host_seq[2 * b] = to->positions[b];
        to->host_seq[2 * b + 1] = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        to->host_seq[2 * to_b[i]] = from->positions[from_b[i]];
        to->host_seq[2 * to_b[i] + 1] = 1;
    }
    for (uint32_t l = 0; l < c->layers; l++) record_empty_windows(to, to_b, from, count, l);
    to->seq_current = false;
    const dart_status status = model_state_write(to, WORK_SEQ, 0, to->host_seq, 2 * (uint64_t)to->B, call);
    return status == DART_OK ? model_take_stream(to, stream, model_record_fold(to, stream, DART_WINDOW_JOIN), call) : status;
}

static dart_status copy_sequences(dart_state *to, const uint32_t *to_b, dart_state *from, const uint32_t *from_b, uint32_t count,
                                  base_progress *progress, const char *call)
{
    base_report *report = &to->report;
    dart_status status = DART_OK;
    int32_t *seen = NULL;
    uint64_t longest = 0;
    TRY(check_copies(to, to_b, from, from_b, count, call));
    if (count == 0 || (to == from && to_b[0] == from_b[0])) return DART_OK;
    for (uint32_t i = 0; i < count; i++) longest = base_larger(longest, (uint64_t)from->positions[from_b[i]]);
    const bool chosen = from->chosen && (to->chosen || to->B == 1), joins = to->in_windows && from != to;
    TRY(make_seen(to, from->B, &seen, call));
    TRY(model_memories_reserve(to, to->sma ? longest / to->S : 0, call));
    TRY(model_cache_reserve(to, longest, call));
    if (!joins) TRY(model_windows_close(to, call));
    else if (go_together(to, to_b, count)) TRY(model_zeros_reserve(to, from->B, call));
    if (from != to) TRY(model_take(report, &from->report, model_windows_close(from, call), call));
    if (chosen) TRY(model_take(report, &from->report, model_state_read(from, WORK_NEXT, 0, from->host_next, from->B, call), call));
    TRY(model_take(report, &from->report, read_seen(from, 0, from->B, seen, call), call));
    TRY(model_begin_paced(to, to->prefill, 1, call));
    TRY(record_sequences(to, to_b, from, from_b, count, call));
    if (joins) TRY(record_joining(to, to_b, from, from_b, count, call));
    TRY(run_copies(to, to_b, count, progress, call));
    to->chosen = false;
    for (uint32_t i = 0; i < count; i++) {
        const bool ended = from->ended[from_b[i]];
        model_sequence_replaced(to, to_b[i], from->positions[from_b[i]]);
        to->ended[to_b[i]] = ended;
        if (status == DART_OK) status = write_seen(to, to_b[i], &seen[from_b[i] * seen_words(to)], call);
        if (chosen && status == DART_OK) status = model_state_write(to, WORK_NEXT, to_b[i], &from->host_next[from_b[i]], 1, call);
    }
    if (status != DART_OK) to->broken = status; /* a sequence without what it has seen */
    else to->chosen = chosen;
fail:
    free(seen);
    return status;
}

dart_status dart_state_copy(dart_state *to, uint32_t to_b, dart_state *from, uint32_t from_b)
{
    if (to == NULL) return DART_INVALID_ARGUMENT;
    return copy_sequences(to, &to_b, from, &from_b, 1, NULL, "dart_state_copy");
}

dart_status dart_state_copy_several(dart_state *to, const uint32_t *to_b, dart_state *from, const uint32_t *from_b, uint32_t count)
{
    if (to == NULL) return DART_INVALID_ARGUMENT;
    return copy_sequences(to, to_b, from, from_b, count, NULL, "dart_state_copy_several");
}

dart_status dart_state_copy_while(dart_state *to, const uint32_t *to_b, dart_state *from, const uint32_t *from_b, uint32_t count,
                                  bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user)
{
    base_progress progress = {.go_on = go_on, .user = user};
    if (to == NULL) return DART_INVALID_ARGUMENT;
    return copy_sequences(to, to_b, from, from_b, count, &progress, "dart_state_copy_while");
}

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
            record_copy(stream, back ? there : here, back ? here : there, 1, parts[i].width);
        }
    const dart_tensor row = last_row(state, b);
    const dart_tensor kept = {.buffer = mark->buffers[0], .dtype = row.dtype, .offset = bytes / dart_dtype_size(row.dtype)};
    record_copy(stream, back ? kept : row, back ? row : kept, 1, state->model->config.W);
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
    if (mark->seen == NULL) TRY(make_seen(state, 1, &mark->seen, call));
    TRY(model_windows_close(state, call));
    TRY(model_begin_paced(state, state->prefill, 1, call));
    record_mark(state, b, mark, false);
    mark->kept = false;
    TRY(run_recorded(state, state->prefill, call));
    TRY(read_seen(state, b, 1, mark->seen, call));
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
            record_copy(stream, back ? there : here, back ? here : there, state->B, parts[i].width);
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
        TRY(run_recorded(state, state->prefill, call));
        status = write_seen(state, b, mark->seen, call);
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
