/* Sequences copied from slot to slot, of one state or from another one of the model. */
#include "state.h"

#include <stdlib.h>

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
        model_record_copy(stream, (dart_tensor){.buffer = a->buffers[layer], .dtype = dtype, .offset = x * memory},
                    (dart_tensor){.buffer = b->buffers[layer], .dtype = dtype, .offset = y * memory}, end - m, memory);
        model_record_copy(stream, (dart_tensor){.buffer = a->buffers[layer], .dtype = DART_F32, .offset = a->scale_at + x * scales},
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
    copy.x = model_last_row(from, x_b);
    copy.y = model_last_row(to, y_b);
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
            model_record_copy(stream, model_columns(x.k, x_at, 0), model_columns(y.k, y_at, 0), n, width);
            model_record_copy(stream, model_columns(x.v, x_at, 0), model_columns(y.v, y_at, 0), n, width);
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
    TRY(model_seen_make(to, from->B, &seen, call));
    TRY(model_memories_reserve(to, to->sma ? longest / to->S : 0, call));
    TRY(model_cache_reserve(to, longest, call));
    if (!joins) TRY(model_windows_close(to, call));
    else if (go_together(to, to_b, count)) TRY(model_zeros_reserve(to, from->B, call));
    if (from != to) TRY(model_take(report, &from->report, model_windows_close(from, call), call));
    if (chosen) TRY(model_take(report, &from->report, model_state_read(from, WORK_NEXT, 0, from->host_next, from->B, call), call));
    TRY(model_take(report, &from->report, model_seen_read(from, 0, from->B, seen, call), call));
    TRY(model_begin_paced(to, to->prefill, 1, call));
    TRY(record_sequences(to, to_b, from, from_b, count, call));
    if (joins) TRY(record_joining(to, to_b, from, from_b, count, call));
    TRY(run_copies(to, to_b, count, progress, call));
    to->chosen = false;
    for (uint32_t i = 0; i < count; i++) {
        const bool ended = from->ended[from_b[i]];
        model_sequence_replaced(to, to_b[i], from->positions[from_b[i]]);
        to->ended[to_b[i]] = ended;
        if (status == DART_OK) status = model_seen_write(to, to_b[i], &seen[from_b[i] * model_seen_words(to)], call);
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
