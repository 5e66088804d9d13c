/* Going back: a sequence as it was at its last mark, and from there on the tokens again. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

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
        model_mark_record(state, b, mark, true);
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
    const model_mark *mark = model_mark_before(state, b, position);
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
