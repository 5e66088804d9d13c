#include "stream.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* UNEVEN: a launch may take that many times the average of the launches that it is paced with. */
enum { MAX_COMPILERS = 16, MAX_TIMES = 1 << 16, UNEVEN = 8 };

/* Launches that take this part of most_work together stay together: within a submission's time still (DEVICE_SLICE_SHARE), and cut by their number
 * most parts would be far shorter. */
#define UNCUT 1.4

/* ---- Parts ---- */

/* Begins another part of the recording, which the backend's stream of an earlier recording serves. */
static dart_status begin_part(dart_stream *stream)
{
    dart_device *device = stream->device;
    stream_parts *p = &stream->parts;
    dart_status status = DART_OK;
    if (p->count == p->made) {
        void **handles = realloc(p->handles, (p->made + (size_t)1) * sizeof *handles);
        if (handles != NULL) p->handles = handles;
        uint32_t *ends = handles != NULL ? realloc(p->ends, (p->made + (size_t)1) * sizeof *ends) : NULL;
        if (ends == NULL) return base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory");
        p->ends = ends;
        TRY(device_fault(device));
        TRY(device->backend->stream_create(device->handle, &p->handles[p->made]));
        p->made++;
    }
    TRY(device_fault(device));
    TRY(device->backend->stream_begin(device->handle, p->handles[p->count]));
    stream->handle = p->handles[p->count];
    p->ends[p->count++] = stream->launches;
    p->work = 0;
    p->filled = 0;
    p->now = p->always = false;
    /* A submission sees what earlier ones wrote. */
    stream->hazards_count = 0;
    stream->crowded = false;
fail:
    return status;
}

/* Does the next launch begin a part? */
static bool is_cut(dart_stream *stream)
{
    stream_parts *p = &stream->parts;
    if (p->filled == 0) p->always = false;
    if (p->filled == 0) return false;
    if (p->always) return true;
    if (p->cuts_count > 0) return p->next < p->cuts_count && stream->launches == p->cuts[p->next].launch;
    return p->now || (p->every > 0 && p->filled >= p->every);
}

void stream_pace(dart_stream *stream, double work, uint32_t launches)
{
    stream_parts *p = &stream->parts;
    p->every = 0;
    p->ranges = 1;
    if (!(p->most_work > 0)) return;
    p->now = p->now || p->work + work > p->most_work;
    p->work = p->now ? work : p->work + work;
    if (work <= UNCUT * p->most_work) return;
    const double every = (double)launches * p->most_work / work / UNEVEN;
    p->every = every > 1 ? (uint32_t)every : 1;
    const double launch = launches > UNEVEN ? UNEVEN * work / launches : work, ranges = ceil(launch / p->most_work);
    const uint32_t room = p->count < STREAM_PARTS ? STREAM_PARTS - p->count : 1;
    p->ranges = ranges < room ? (uint32_t)ranges : room;
}

static void empty(buffer_list *list)
{
    while (list->count > 0) dart_buffer_destroy(&list->buffers[--list->count]);
}

/* A workgroup has waited in vain for another of its launch. What they wrote is lost. The words that they pass to one another begin anew with the next
 * recording, when nothing is in flight. */
static dart_status check_stuck(dart_stream *stream)
{
    int32_t stuck = 0;
    dart_status status = dart_buffer_read(stream->stuck.buffers[stream->stuck.count - 1], 0, &stuck, sizeof stuck);
    if (status != DART_OK || stuck == 0) return status;
    stream->renews = true;
    return base_fail(&stream->device->report, DART_INTERNAL,
                     "the workgroups of a launch did not run side by side: open the device without DART_CAP_RESIDENT");
}

uint32_t stream_end_part(dart_stream *stream)
{
    stream->parts.always = true;
    return stream->parts.count - 1;
}

dart_status stream_submit_part(dart_stream *stream, uint32_t part)
{
    stream_parts *p = &stream->parts;
    dart_device *device = stream->device;
    if (stream->status != DART_OK) return stream->status;
    assert(p->in_flight < p->count && part == (p->in_flight > 0 ? (p->from + p->in_flight) % p->count : part));
    dart_status status = stream_take_failure(stream, device_fault(device), "dart_stream_submit");
    if (status == DART_OK)
        status = stream_take_failure(stream, device->backend->stream_submit(device->handle, p->handles[part], 1, NULL), "dart_stream_submit");
    stream->closed = true;
    if (status != DART_OK) return status;
    if (p->in_flight++ == 0) p->from = part;
    stream->submitted = true;
    return DART_OK;
}

dart_status stream_wait_part(dart_stream *stream, uint64_t timeout_ns, uint64_t *ns)
{
    stream_parts *p = &stream->parts;
    dart_device *device = stream->device;
    *ns = 0;
    if (!stream->submitted) return stream->status;
    void *handle = p->handles[p->from];
    dart_status status = device->backend->stream_wait(device->handle, handle, timeout_ns);
    if (status == DART_OK) {
        p->from = (p->from + 1) % p->count;
        p->in_flight--;
    } else if (device_note(device, status) == DART_DEVICE_LOST) p->in_flight = 0;
    stream->submitted = p->in_flight > 0;
    if (status == DART_OK) status = device->backend->stream_elapsed(device->handle, handle, ns);
    if (status == DART_OK && stream->waits) status = check_stuck(stream);
    return stream_take_failure(stream, status, "dart_stream_wait");
}

/* ---- Life ---- */

dart_status dart_stream_create(dart_device *device, const dart_stream_options *options, dart_stream **stream)
{
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, stream != NULL, "dart_stream_create: no place for the stream");
    dart_stream *made = device_calloc(device, 1, sizeof *made);
    if (made == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    dart_status status = base_report_init(&made->report, device->report.log);
    if (status != DART_OK) {
        free(made);
        return base_fail(&device->report, status, "dart_stream_create: no lock for a stream");
    }
    made->device = device;
    if (options != NULL) made->options = *options;
    TRY(dart_stream_begin(made));
    *stream = made;
    return DART_OK;
fail:
    dart_stream_destroy(&made);
    return status;
}

static void release(buffer_list *list)
{
    empty(list);
    free(list->buffers);
}

void dart_stream_destroy(dart_stream **stream)
{
    if (stream == NULL || *stream == NULL) return;
    dart_stream *s = *stream;
    dart_device *device = s->device;
    for (uint32_t i = 0; i < s->parts.in_flight && !atomic_load(&device->lost); i++)
        device->backend->stream_wait(device->handle, s->parts.handles[(s->parts.from + i) % s->parts.count], UINT64_MAX);
    for (uint32_t i = 0; i < s->parts.made; i++) device->backend->stream_destroy(device->handle, s->parts.handles[i]);
    free(s->parts.handles);
    free(s->parts.ends);
    release(&s->chunks);
    release(&s->tickets);
    release(&s->posts);
    release(&s->stuck);
    release(&s->tables);
    free(s->needs);
    trace_release(&s->notes);
    base_report_destroy(&s->report);
    free(s);
    *stream = NULL;
}

size_t dart_stream_error(const dart_stream *stream, char *text, size_t size)
{
    return stream != NULL ? base_report_copy(&stream->report, text, size) : 0;
}

uint32_t dart_stream_launches(const dart_stream *stream) { return stream != NULL ? stream->launches : 0; }

dart_status stream_take_failure(dart_stream *stream, dart_status status, const char *call)
{
    if (status == DART_OK || status == DART_TIMEOUT) return status;
    char text[256];
    base_report_copy(&stream->device->report, text, sizeof text);
    stream->status = device_note(stream->device, status);
    base_lock(&stream->report.mutex);
    snprintf(stream->report.text, sizeof stream->report.text, "%s: %s", call, text);
    base_unlock(&stream->report.mutex);
    return status;
}

dart_status dart_stream_begin(dart_stream *stream)
{
    if (stream == NULL) return DART_INVALID_ARGUMENT;
    dart_status status = DART_OK;
    while (stream->submitted && status == DART_OK) status = dart_stream_wait(stream, UINT64_MAX);
    if (status != DART_OK) return status;
    stream->launches = 0;
    stream->parts.count = stream->parts.every = stream->parts.next = stream->parts.ranges = 0;
    status = stream_take_failure(stream, begin_part(stream), "dart_stream_begin");
    if (status != DART_OK) return status;
    stream->status = DART_OK;
    stream->closed = false;
    if (stream->device->margin > 0) empty(&stream->chunks);
    stream->chunk = 0;
    stream->used = 0;
    stream->tables_used = 0;
    stream->waits = false;
    if (stream->renews) {
        empty(&stream->posts);
        empty(&stream->stuck);
        stream->renews = false;
    }
    return DART_OK;
}

/* ---- Making code ready ---- */

static dart_status note_need(dart_stream *stream, const backend_launch *launch)
{
    for (uint32_t i = 0; i < stream->needs_count; i++) {
        const backend_code *need = &stream->needs[i];
        if (need->row == launch->row && need->dtypes == launch->dtypes && need->T0 == launch->T0 && need->T1 == launch->T1) return DART_OK;
    }
    backend_code *grown = realloc(stream->needs, (stream->needs_count + 1) * sizeof *grown);
    if (grown == NULL) return base_fail(&stream->device->report, DART_OUT_OF_MEMORY, "no host memory");
    stream->needs = grown;
    stream->needs[stream->needs_count++] = (backend_code){launch->row, launch->dtypes, launch->T0, launch->T1, false};
    base_log_line(stream->device->report.log, DART_LOG_TRACE, "needs %s[%s]", kernel_table[launch->row->id].name, launch->row->variant);
    return DART_OK;
}

typedef struct compiler {
    const dart_stream *stream;
    atomic_uint next, done;
    atomic_int status; /* of the first that failed */
} compiler;

/* One of the needs; false: there are no more. */
static bool compile_one(compiler *c)
{
    const dart_device *device = c->stream->device;
    const uint32_t i = atomic_fetch_add(&c->next, 1);
    if (i >= c->stream->needs_count || atomic_load(&c->status) != DART_OK) return false;
    const dart_status status = device->backend->warm(device->handle, &c->stream->needs[i]);
    int none = DART_OK;
    if (status != DART_OK) atomic_compare_exchange_strong(&c->status, &none, (int)status);
    atomic_fetch_add(&c->done, 1);
    return true;
}

static void compile_needs(void *argument)
{
    while (compile_one(argument)) {
    }
}

/* The thread that submits, which asks its caller. */
static void compile_and_ask(compiler *c)
{
    const dart_stream_options *o = &c->stream->options;
    base_progress progress = {.go_on = o->go_on, .user = o->go_on_user, .of = c->stream->needs_count};
    do {
        progress.done = atomic_load(&c->done);
        const dart_status status = base_advance(&progress, 0, &c->stream->device->report, "warming");
        int none = DART_OK;
        if (status != DART_OK) atomic_compare_exchange_strong(&c->status, &none, (int)status);
    } while (compile_one(c));
}

static dart_status warm_up(dart_stream *stream)
{
    compiler c = {.stream = stream};
    base_thread threads[MAX_COMPILERS];
    uint32_t started = 0, wanted = base_core_count();
    if (wanted > MAX_COMPILERS) wanted = MAX_COMPILERS;
    if (wanted > stream->needs_count) wanted = stream->needs_count;
    atomic_init(&c.next, 0);
    atomic_init(&c.done, 0);
    atomic_init(&c.status, DART_OK);
    /* This thread is one of them; fewer than wanted are no failure. */
    while (started + 1 < wanted && base_thread_start(&threads[started], compile_needs, &c) == DART_OK) started++;
    compile_and_ask(&c);
    while (started > 0) base_thread_join(&threads[--started]);
    return (dart_status)atomic_load(&c.status);
}

dart_status dart_stream_submit(dart_stream *stream) { return dart_stream_submit_times(stream, 1); }

dart_status dart_stream_submit_times(dart_stream *stream, uint32_t times)
{
    if (stream == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&stream->report, times > 0 && times <= MAX_TIMES, "dart_stream_submit_times: %u runs, must be 1 to %d", times, MAX_TIMES);
    return stream_submit(stream, times, NULL);
}

dart_status stream_submit(dart_stream *stream, uint32_t times, const backend_order *order)
{
    if (stream->status != DART_OK) return stream->status;
    REQUIRE(&stream->report, !stream->submitted, "dart_stream_submit: the last submission has not been waited for");
    dart_device *device = stream->device;
    dart_status status = stream_take_failure(stream, device_fault(device), "dart_stream_submit");
    if (status == DART_OK && stream->options.warm)
        return stream_take_failure(stream, warm_up(stream), "dart_stream_submit");
    assert(stream->parts.count == 1); /* others go part by part */
    if (status == DART_OK)
        status = stream_take_failure(stream, device->backend->stream_submit(device->handle, stream->handle, times, order), "dart_stream_submit");
    stream->submitted = status == DART_OK;
    stream->parts.from = 0;
    stream->parts.in_flight = stream->submitted;
    stream->closed = true;
    return status;
}

dart_status dart_stream_wait(dart_stream *stream, uint64_t timeout_ns)
{
    if (stream == NULL) return DART_INVALID_ARGUMENT;
    dart_device *device = stream->device;
    if (!stream->submitted) return stream->status;
    dart_status status = stream_wait_part(stream, timeout_ns, &stream->elapsed_ns);
    stream->timed = stream->timed || status == DART_OK;
    if (status == DART_OK && device->profile != NULL && stream->launches > 0)
        status = trace_report(device, stream->handle, &stream->notes, stream->launches);
    return stream_take_failure(stream, status, "dart_stream_wait");
}

dart_status dart_stream_elapsed(dart_stream *stream, uint64_t *ns)
{
    if (stream == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&stream->report, ns != NULL, "dart_stream_elapsed: no place for the time");
    REQUIRE(&stream->report, !stream->submitted, "dart_stream_elapsed: the last submission has not been waited for");
    REQUIRE(&stream->report, stream->timed, "dart_stream_elapsed: nothing has run yet");
    *ns = stream->elapsed_ns;
    return DART_OK;
}

/* ---- Launches ---- */

/* Does the launch depend on one since the last barrier, or has it no room beside it? Notes its own ranges. */
static bool needs_barrier(dart_stream *stream, const backend_launch *launch)
{
    const kernel_info *kernel = &kernel_table[launch->row->id];
    const bool crowds = launch->tiles >= STREAM_CROWDED || kernel->by_address;
    bool barrier = crowds || stream->crowded || stream->hazards_count + kernel->bindings_count > STREAM_IN_FLIGHT;
    for (uint32_t i = 0; i < kernel->bindings_count && !barrier; i++) {
        const backend_binding *mine = &launch->bindings[i];
        for (uint32_t k = 0; k < stream->hazards_count && !barrier && mine->memory != NULL; k++) {
            const hazard *other = &stream->hazards[k];
            barrier = other->memory == mine->memory && other->begin < mine->offset + mine->bytes &&
                      mine->offset < other->end && ((other->access | kernel->bindings[i].access) & ACCESS_WRITE) != 0;
        }
    }
    stream->crowded = crowds;
    if (barrier) stream->hazards_count = 0;
    for (uint32_t i = 0; i < kernel->bindings_count; i++) {
        const backend_binding *mine = &launch->bindings[i];
        if (mine->memory == NULL) continue;
        stream->hazards[stream->hazards_count++] =
            (hazard){mine->memory, mine->offset, mine->offset + mine->bytes, kernel->bindings[i].access};
    }
    return barrier;
}

/* How many parts the next launch goes in: by the cuts that the caller has made, else by the pace. */
static uint32_t ranges_wanted(dart_stream *stream)
{
    stream_parts *p = &stream->parts;
    while (p->next < p->cuts_count && p->cuts[p->next].launch < stream->launches) p->next++;
    if (p->cuts_count == 0) return p->ranges;
    return p->next < p->cuts_count && p->cuts[p->next].launch == stream->launches ? p->cuts[p->next].ranges : 1;
}

/* Neighbouring tiles that stay in one range. */
static uint32_t tiles_together(const backend_launch *launch)
{
    uint32_t together = 1;
    const uint32_t at = kernel_table[launch->row->id].together_at;
    if (at > 0) memcpy(&together, (const char *)launch->args + at, sizeof together);
    return together;
}

/* How many ranges of tiles it goes in. */
static uint32_t ranges_of(const dart_stream *stream, const backend_launch *launch, uint32_t wanted)
{
    const dart_device *device = stream->device;
    if (wanted <= 1 || !device->backend->ranges || stream->options.warm || device->profile != NULL) return 1;
    if (!kernel_has_ranges(launch->row)) return 1;
    const uint32_t most = launch->tiles / tiles_together(launch);
    return wanted < most ? wanted : most;
}

static void launch_range(dart_stream *stream, backend_launch *launch, bool begins, const char *call)
{
    dart_device *device = stream->device;
    dart_status status = begins ? begin_part(stream) : DART_OK;
    launch->barrier = needs_barrier(stream, launch);
    launch->backwards = device->backwards == 1 || (device->backwards == 2 && stream->launches % 2 == 1);
    const launch_note note = trace_note(launch);
    if (status == DART_OK) status = device_fault(device);
    if (status == DART_OK && device->profile != NULL) status = trace_keep(device, &stream->notes, stream->launches, &note);
    if (status == DART_OK)
        status = stream->options.warm ? note_need(stream, launch) : device->backend->stream_launch(device->handle, stream->handle, launch);
    if (stream_take_failure(stream, status, call) != DART_OK) return;
    if (launch->first == 0) stream->launches++;
    stream->parts.ends[stream->parts.count - 1] = stream->launches;
    stream->parts.filled++;
    if (stream->options.trace == NULL) return;
    char line[TRACE_LINE];
    trace_describe(&note, line);
    stream->options.trace(stream->options.trace_user, line);
}

void stream_launch(dart_stream *stream, backend_launch *launch, const char *call)
{
    const uint32_t cut = stream->device->cut, wanted = ranges_wanted(stream), ranges = ranges_of(stream, launch, cut > 0 ? cut : wanted);
    const uint32_t together = tiles_together(launch);
    const uint64_t units = launch->tiles / together;
    for (uint32_t i = 0; i < ranges && stream->status == DART_OK; i++) {
        launch->first = (uint32_t)(units * i / ranges) * together;
        launch->end = (uint32_t)(units * (i + 1) / ranges) * together;
        launch_range(stream, launch, i > 0 ? wanted > 1 : is_cut(stream), call);
    }
    if (ranges > 1 && wanted > 1) stream->parts.now = true; /* the last range ends its part: a measured time is this launch's alone */
}
