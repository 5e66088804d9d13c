/* How recordings of a state run: cut into submissions, submitted, waited for. And what calls say of failures on the way. */
#include "state.h"

#include "runtime/stream.h"

#include <stdio.h>

/* ---- Failures ---- */

dart_status model_take(base_report *to, const base_report *from, dart_status status, const char *what)
{
    if (status == DART_OK) return status;
    char text[400];
    base_report_copy(from, text, sizeof text);
    base_lock(&to->mutex);
    snprintf(to->text, sizeof to->text, "%s: %s", what, text);
    base_unlock(&to->mutex);
    return status;
}

dart_status model_take_stream(dart_state *state, const dart_stream *stream, dart_status status, const char *what)
{
    if (status == DART_OK) return status;
    if (status == DART_TIMEOUT)
        return base_fail(&state->report, status, "%s: not done in %llu ns", what,
                         (unsigned long long)state->timeout_ns);
    char text[400] = "";
    dart_stream_error(stream, text, sizeof text);
    base_lock(&state->report.mutex);
    snprintf(state->report.text, sizeof state->report.text, "%s: %s", what, text);
    base_unlock(&state->report.mutex);
    return status;
}

dart_status model_state_usable(dart_state *state, const char *call)
{
    if (state->broken == DART_OK) return DART_OK;
    return base_fail(&state->report, state->broken, "%s: an earlier call failed half-way: reset all sequences first",
                     call);
}

/* ---- Recordings that are cut ---- */

static double slice_work(const dart_state *state) { return DEVICE_SLICE_SHARE * (double)state->slice_ns; }

dart_status model_begin_paced(dart_state *state, dart_stream *stream, double ratio, const char *call)
{
    /* Launches that are profiled are timed in one submission. */
    const bool whole = state->slice_ns == UINT64_MAX || state->model->device->profile != NULL;
    stream->parts.most_work = whole ? 0 : slice_work(state) / ratio;
    return model_take_stream(state, stream, dart_stream_begin(stream), call);
}

dart_status model_begin_layers(dart_state *state, dart_stream *stream, bool known, const char *call)
{
    const double work_ns = known ? state->layer_work_ns : 1e9 / device_assumed_rate(&state->model->device->info);
    return model_begin_paced(state, stream, work_ns, call);
}

void model_pace_bytes(const dart_state *state, dart_stream *stream, uint64_t bytes, uint32_t launches)
{
    stream_pace(stream, (double)bytes * 1e9 / device_assumed_bytes(&state->model->device->info), launches);
}

uint64_t model_copy_rows(const dart_state *state, uint64_t width, uint64_t size)
{
    if (state->slice_ns == UINT64_MAX) return UINT64_MAX;
    const double bytes = 2 * (double)width * (double)size; /* read and written */
    const double rows = slice_work(state) * 1e-9 * device_assumed_bytes(&state->model->device->info) / bytes;
    return rows > 1 ? (uint64_t)rows : 1;
}

static dart_status wait_part(dart_state *state, dart_stream *stream, uint64_t *ns, uint64_t *slowest, const char *call)
{
    uint64_t took = 0;
    dart_status status;
    if (state->model->device->profile != NULL) { /* one part: reports its launches */
        status = dart_stream_wait(stream, state->timeout_ns);
        if (status == DART_OK) status = dart_stream_elapsed(stream, &took);
    } else status = stream_wait_part(stream, state->timeout_ns, &took);
    *ns += took;
    *slowest = base_larger(*slowest, took);
    if (status == DART_OK) state->longest_ns = base_larger(state->longest_ns, took);
    return model_take_stream(state, stream, status, call);
}

dart_status model_state_run_parts(dart_state *state, dart_stream *stream, base_progress *progress, bool *ran, uint64_t *ns, uint64_t *slowest,
                                  const char *call)
{
    enum { AHEAD = 2 };
    uint64_t all = 0, most = 0;
    dart_status status = model_take_stream(state, stream, stream->status, call);
    if (progress != NULL) progress->of = stream->parts.count;
    for (uint32_t i = 0; i < stream->parts.count && status == DART_OK; i++) {
        if (i >= AHEAD) status = wait_part(state, stream, &all, &most, call);
        if (progress != NULL) progress->done = i;
        if (status == DART_OK) status = base_advance(progress, 0, &state->report, call);
        if (status == DART_OK) status = model_take_stream(state, stream, stream_submit_part(stream, i), call);
        if (status == DART_OK && ran != NULL) *ran = true;
    }
    while (stream->submitted && (status == DART_OK || status == DART_CANCELLED)) {
        const dart_status waited = wait_part(state, stream, &all, &most, call);
        if (waited != DART_OK) status = waited;
    }
    if (ns != NULL) *ns = all;
    if (slowest != NULL) *slowest = most;
    return status;
}

dart_status model_run_recorded(dart_state *state, dart_stream *stream, const char *call)
{
    bool ran = false;
    const dart_status status = model_state_run_parts(state, stream, NULL, &ran, NULL, NULL, call);
    if (status != DART_OK && ran) state->broken = status;
    return status;
}

dart_status model_state_run(dart_state *state, dart_stream *stream, uint32_t times, uint64_t *ns, const char *call)
{
    if (stream->parts.count > 1) return model_state_run_parts(state, stream, NULL, NULL, ns, NULL, call);
    const dart_status status = dart_stream_submit_times(stream, times);
    return status == DART_OK ? model_state_wait(state, stream, ns, call) : model_take_stream(state, stream, status, call);
}

dart_status model_state_wait(dart_state *state, dart_stream *stream, uint64_t *ns, const char *call)
{
    uint64_t took = 0;
    dart_status status = dart_stream_wait(stream, state->timeout_ns);
    if (status == DART_OK) status = dart_stream_elapsed(stream, &took);
    if (status == DART_OK && ns != NULL) *ns = took;
    if (status == DART_OK) state->longest_ns = base_larger(state->longest_ns, took);
    return model_take_stream(state, stream, status, call);
}
