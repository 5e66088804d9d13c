#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IN_FLIGHT = 128, MIN_CHUNK = 1 << 20, MIN_TICKETS = 1 << 12, MAX_COMPILERS = 16, MAX_TIMES = 1 << 16 };

/* A range that launches since the last barrier read or write. */
typedef struct hazard {
    const void *memory;
    uint64_t begin, end;
    kernel_access access;
} hazard;

/* Code that a warming stream was told of. */
typedef struct need {
    const kernel_row *row;
    uint32_t dtypes;
} need;

/* What was launched, for whoever wants to know how long it took. */
typedef struct launch_note {
    const kernel_row *row;
    uint32_t tiles, dtypes;
    bool barrier;
} launch_note;

struct dart_stream {
    dart_device *device;
    void *handle;
    base_report report;
    dart_stream_options options;
    dart_status status; /* sticky */
    bool submitted;     /* and not known to be done */
    bool closed;        /* submitted once: nothing more can be recorded */
    bool timed;         /* elapsed_ns is that of a finished submission */
    uint64_t elapsed_ns;
    uint32_t launches;
    hazard hazards[MAX_IN_FLIGHT];
    uint32_t hazards_count;
    launch_note *notes; /* launches of them, on a device that is profiled */
    uint64_t *times;    /* as many */
    uint32_t notes_capacity;
    /* Scratch: a list of buffers filled one after another, all given back between ops. */
    dart_buffer **chunks;
    uint32_t chunks_count;
    uint32_t chunk;
    uint64_t used; /* of chunks[chunk] */
    dart_buffer **tickets; /* zeros; launches recorded earlier may use any of them, later ones use the last and largest */
    uint32_t tickets_count;
    need *needs;   /* each once */
    uint32_t needs_count;
};

dart_status dart_stream_create(dart_device *device, const dart_stream_options *options, dart_stream **stream)
{
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, stream != NULL, "dart_stream_create: no place for the stream");
    dart_stream *made = device_calloc(device, 1, sizeof *made);
    if (made == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    dart_status status = base_report_init(&made->report, device->report.log);
    if (status != DART_OK) {
        free(made);
        return status;
    }
    made->device = device;
    if (options != NULL) made->options = *options;
    TRY(device_fault(device));
    TRY(device_note(device, device->backend->stream_create(device->handle, &made->handle)));
    TRY(dart_stream_begin(made));
    *stream = made;
    return DART_OK;
fail:
    dart_stream_destroy(&made);
    return status;
}

void dart_stream_destroy(dart_stream **stream)
{
    if (stream == NULL || *stream == NULL) return;
    dart_stream *s = *stream;
    dart_device *device = s->device;
    if (s->handle != NULL) {
        if (s->submitted && !atomic_load(&device->lost)) device->backend->stream_wait(device->handle, s->handle, UINT64_MAX);
        device->backend->stream_destroy(device->handle, s->handle);
    }
    for (uint32_t i = 0; i < s->chunks_count; i++) dart_buffer_destroy(&s->chunks[i]);
    free(s->chunks);
    for (uint32_t i = 0; i < s->tickets_count; i++) dart_buffer_destroy(&s->tickets[i]);
    free(s->tickets);
    free(s->needs);
    free(s->notes);
    free(s->times);
    base_report_destroy(&s->report);
    free(s);
    *stream = NULL;
}

size_t dart_stream_error(const dart_stream *stream, char *text, size_t size)
{
    return stream != NULL ? base_report_copy(&stream->report, text, size) : 0;
}

uint32_t dart_stream_launches(const dart_stream *stream) { return stream != NULL ? stream->launches : 0; }

/* A failure of the backend, whose text lies in the device's report. */
static dart_status take_failure(dart_stream *stream, dart_status status, const char *call)
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
    dart_device *device = stream->device;
    dart_status status = stream->submitted ? dart_stream_wait(stream, UINT64_MAX) : DART_OK;
    if (status == DART_OK) status = take_failure(stream, device_fault(device), "dart_stream_begin");
    if (status == DART_OK)
        status = take_failure(stream, device->backend->stream_begin(device->handle, stream->handle), "dart_stream_begin");
    if (status != DART_OK) return status;
    stream->status = DART_OK;
    stream->closed = false;
    stream->launches = 0;
    stream->hazards_count = 0;
    stream->chunk = 0;
    stream->used = 0;
    return DART_OK;
}

/* ---- Making code ready ---- */

static dart_status note_need(dart_stream *stream, const backend_launch *launch)
{
    for (uint32_t i = 0; i < stream->needs_count; i++)
        if (stream->needs[i].row == launch->row && stream->needs[i].dtypes == launch->dtypes) return DART_OK;
    need *grown = realloc(stream->needs, (stream->needs_count + 1) * sizeof *grown);
    if (grown == NULL) return base_fail(&stream->device->report, DART_OUT_OF_MEMORY, "no host memory");
    stream->needs = grown;
    stream->needs[stream->needs_count++] = (need){launch->row, launch->dtypes};
    return DART_OK;
}

typedef struct compiler {
    const dart_stream *stream;
    atomic_uint next;
    atomic_int status; /* of the first that failed */
} compiler;

static void compile_needs(void *argument)
{
    compiler *c = argument;
    const dart_device *device = c->stream->device;
    for (;;) {
        const uint32_t i = atomic_fetch_add(&c->next, 1);
        if (i >= c->stream->needs_count || atomic_load(&c->status) != DART_OK) return;
        const dart_status status = device->backend->warm(device->handle, c->stream->needs[i].row, c->stream->needs[i].dtypes);
        int none = DART_OK;
        if (status != DART_OK) atomic_compare_exchange_strong(&c->status, &none, (int)status);
    }
}

static dart_status warm_up(dart_stream *stream)
{
    compiler c = {.stream = stream};
    base_thread threads[MAX_COMPILERS];
    uint32_t started = 0, wanted = base_core_count();
    if (wanted > MAX_COMPILERS) wanted = MAX_COMPILERS;
    if (wanted > stream->needs_count) wanted = stream->needs_count;
    atomic_init(&c.next, 0);
    atomic_init(&c.status, DART_OK);
    /* This thread is one of them; fewer than wanted are no failure. */
    while (started + 1 < wanted && base_thread_start(&threads[started], compile_needs, &c) == DART_OK) started++;
    compile_needs(&c);
    while (started > 0) base_thread_join(&threads[--started]);
    return (dart_status)atomic_load(&c.status);
}

dart_status dart_stream_submit(dart_stream *stream) { return dart_stream_submit_times(stream, 1); }

dart_status dart_stream_submit_times(dart_stream *stream, uint32_t times)
{
    if (stream == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&stream->report, times > 0 && times <= MAX_TIMES, "dart_stream_submit_times: %u runs, must be 1 to %d", times, MAX_TIMES);
    if (stream->status != DART_OK) return stream->status;
    REQUIRE(&stream->report, !stream->submitted, "dart_stream_submit: the last submission has not been waited for");
    dart_device *device = stream->device;
    dart_status status = take_failure(stream, device_fault(device), "dart_stream_submit");
    if (status == DART_OK && stream->options.warm)
        return take_failure(stream, warm_up(stream), "dart_stream_submit");
    if (status == DART_OK)
        status = take_failure(stream, device->backend->stream_submit(device->handle, stream->handle, times), "dart_stream_submit");
    stream->submitted = status == DART_OK;
    stream->closed = true;
    return status;
}

enum { LINE = 160 };

static void describe(const launch_note *note, char line[LINE])
{
    snprintf(line, LINE, "%s[%s] tiles=%u dtypes=%x%s", kernel_table[note->row->id].name, note->row->variant, note->tiles,
             note->dtypes, note->barrier ? " barrier" : "");
}

/* Keeps the note of the next launch. */
static dart_status note_launch(dart_stream *stream, const launch_note *note)
{
    if (stream->launches == stream->notes_capacity) {
        const uint32_t capacity = stream->notes_capacity > 0 ? 2 * stream->notes_capacity : 512;
        launch_note *notes = realloc(stream->notes, capacity * sizeof *notes);
        if (notes != NULL) stream->notes = notes;
        uint64_t *times = realloc(stream->times, capacity * sizeof *times);
        if (times != NULL) stream->times = times;
        if (notes == NULL || times == NULL)
            return base_fail(&stream->device->report, DART_OUT_OF_MEMORY, "no host memory for notes of %u launches", capacity);
        stream->notes_capacity = capacity;
    }
    stream->notes[stream->launches] = *note;
    return DART_OK;
}

static dart_status report_times(dart_stream *stream)
{
    dart_device *device = stream->device;
    uint32_t count = stream->launches;
    const dart_status status = device->backend->stream_times(device->handle, stream->handle, stream->times, &count);
    for (uint32_t i = 0; i < count && status == DART_OK; i++) {
        char line[LINE];
        describe(&stream->notes[i], line);
        device->profile(device->profile_user, line, stream->times[i]);
    }
    return status;
}

dart_status dart_stream_wait(dart_stream *stream, uint64_t timeout_ns)
{
    if (stream == NULL) return DART_INVALID_ARGUMENT;
    dart_device *device = stream->device;
    if (!stream->submitted) return stream->status;
    dart_status status = device->backend->stream_wait(device->handle, stream->handle, timeout_ns);
    if (status == DART_OK || device_note(device, status) == DART_DEVICE_LOST) stream->submitted = false;
    if (status == DART_OK) status = device->backend->stream_elapsed(device->handle, stream->handle, &stream->elapsed_ns);
    stream->timed = stream->timed || status == DART_OK;
    if (status == DART_OK && device->profile != NULL && stream->launches > 0) status = report_times(stream);
    return take_failure(stream, status, "dart_stream_wait");
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

/* ---- What ops are made of ---- */

dart_status op_status(const op_call *call) { return call->stream->status; }

dart_status op_fail(op_call *call, dart_status code, const char *format, ...)
{
    if (call->stream->status != DART_OK) return call->stream->status;
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return call->stream->status = base_fail(&call->stream->report, code, "%s: %s", call->op, text);
}

dart_status op_begin(op_call *call, dart_stream *stream, const char *op)
{
    memset(call, 0, sizeof *call);
    call->stream = stream;
    call->op = op;
    if (stream->status != DART_OK) return stream->status;
    if (stream->closed) return op_fail(call, DART_INVALID_ARGUMENT, "the recording was submitted already: dart_stream_begin first");
    return DART_OK;
}

dart_status op_end(op_call *call)
{
    call->stream->chunk = 0;
    call->stream->used = 0;
    return call->stream->status;
}

bool op_check(op_call *call, const char *name, const dart_tensor *tensor, int kinds, uint64_t rows, uint64_t width)
{
    if (call->stream->status != DART_OK) return false;
    if (tensor->buffer == NULL) {
        if ((kinds & OP_OPTIONAL) == 0) op_fail(call, DART_INVALID_ARGUMENT, "%s is missing", name);
        return call->stream->status == DART_OK;
    }
    if (tensor->buffer->device != call->stream->device) {
        op_fail(call, DART_INVALID_ARGUMENT, "%s lies on another device", name);
        return false;
    }
    if ((unsigned)tensor->dtype > DART_I32 || (kinds & 1 << tensor->dtype) == 0) {
        op_fail(call, DART_INVALID_ARGUMENT, "%s cannot be %s", name, dart_dtype_name(tensor->dtype));
        return false;
    }
    const uint64_t row = tensor->row != 0 ? tensor->row : width;
    if (row < width || (row != width && (kinds & OP_VIEW) == 0) || row > UINT32_MAX) {
        op_fail(call, DART_INVALID_ARGUMENT, "%s: rows of %llu elements cannot lie %llu apart", name,
                (unsigned long long)width, (unsigned long long)row);
        return false;
    }
    if ((kinds & OP_ALIGNED) != 0 && tensor->offset % 64 != 0) {
        op_fail(call, DART_INVALID_ARGUMENT, "%s starts at element %llu, not at a multiple of 64", name,
                (unsigned long long)tensor->offset);
        return false;
    }
    uint64_t end = 0;
    const uint64_t size = dart_dtype_size(tensor->dtype);
    const bool fits = base_mul(rows - 1, row, &end) && base_add(end, width, &end) && base_add(end, tensor->offset, &end) &&
                      base_mul(end, size, &end) && end <= tensor->buffer->bytes;
    if (!fits)
        op_fail(call, DART_INVALID_ARGUMENT, "%s: %llu rows of %llu %s elements, %llu apart, from element %llu exceed a buffer of %llu bytes",
                name, (unsigned long long)rows, (unsigned long long)width, dart_dtype_name(tensor->dtype),
                (unsigned long long)row, (unsigned long long)tensor->offset, (unsigned long long)tensor->buffer->bytes);
    return fits;
}

static bool add_chunk(op_call *call, uint64_t bytes)
{
    dart_stream *stream = call->stream;
    dart_buffer **grown = realloc(stream->chunks, (stream->chunks_count + 1) * sizeof *grown);
    if (grown == NULL) {
        op_fail(call, DART_OUT_OF_MEMORY, "no host memory");
        return false;
    }
    stream->chunks = grown;
    dart_buffer *chunk = NULL;
    const dart_status status = dart_buffer_create(stream->device, bytes < MIN_CHUNK ? MIN_CHUNK : bytes, &chunk);
    if (status != DART_OK) {
        op_fail(call, status, "%llu bytes of scratch memory", (unsigned long long)bytes);
        return false;
    }
    stream->chunks[stream->chunks_count++] = chunk;
    return true;
}

dart_tensor op_scratch(op_call *call, uint64_t elements)
{
    const dart_tensor absent = {0};
    dart_stream *stream = call->stream;
    uint64_t bytes = 0;
    if (stream->status != DART_OK) return absent;
    if (!base_mul(elements, 4, &bytes) || bytes > UINT64_MAX / 2) {
        op_fail(call, DART_OUT_OF_MEMORY, "scratch memory of %llu elements", (unsigned long long)elements);
        return absent;
    }
    bytes = base_round_up(bytes, BACKEND_ALIGN);
    while (stream->chunk < stream->chunks_count && stream->used + bytes > stream->chunks[stream->chunk]->bytes) {
        stream->chunk++;
        stream->used = 0;
    }
    if (stream->chunk == stream->chunks_count && !add_chunk(call, bytes)) return absent;
    const dart_tensor scratch = {.buffer = stream->chunks[stream->chunk], .dtype = DART_F32, .offset = stream->used / 4};
    stream->used += bytes;
    return scratch;
}

/* Zeros from the host, once: a launch that fills them would cost every token what the tickets are there to save. */
static bool add_tickets(op_call *call, uint64_t bytes)
{
    dart_stream *stream = call->stream;
    void *zeros = calloc(1, (size_t)bytes);
    dart_buffer **grown = realloc(stream->tickets, (stream->tickets_count + 1) * sizeof *grown);
    if (grown != NULL) stream->tickets = grown;
    dart_buffer *made = NULL;
    dart_status status = zeros != NULL && grown != NULL ? DART_OK : base_fail(&stream->device->report, DART_OUT_OF_MEMORY, "no host memory");
    if (status == DART_OK) status = dart_buffer_create(stream->device, bytes, &made);
    if (status == DART_OK) status = dart_buffer_write(made, 0, zeros, bytes);
    free(zeros);
    if (status == DART_OK) {
        stream->tickets[stream->tickets_count++] = made;
        return true;
    }
    dart_buffer_destroy(&made);
    op_fail(call, status, "%llu bytes of tickets", (unsigned long long)bytes);
    return false;
}

dart_tensor op_tickets(op_call *call, uint64_t elements)
{
    const dart_tensor absent = {0};
    dart_stream *stream = call->stream;
    if (stream->status != DART_OK) return absent;
    const uint64_t bytes = base_round_up(4 * (elements < MIN_TICKETS ? MIN_TICKETS : elements), BACKEND_ALIGN);
    const bool enough = stream->tickets_count > 0 && stream->tickets[stream->tickets_count - 1]->bytes >= bytes;
    if (!enough && !add_tickets(call, bytes)) return absent;
    return (dart_tensor){.buffer = stream->tickets[stream->tickets_count - 1], .dtype = DART_I32};
}

dart_tensor op_kept(op_call *call, const dart_tensor *tensor, uint64_t elements)
{
    return op_has(tensor) ? *tensor : op_scratch(call, elements);
}

uint32_t op_fits_half(const dart_tensor *a, const dart_tensor *b)
{
    if (a->dtype != b->dtype) return 0;
    return a->dtype == DART_F16 ? FITS_F16 : a->dtype == DART_BF16 ? FITS_BF16 : 0;
}

bool op_fits_rows(const dart_tensor *tensor, uint64_t width)
{
    return tensor->offset % 8 == 0 && op_row(tensor, width) % 8 == 0;
}

void op_kernel(op_call *call, kernel_id id, uint32_t rows, uint32_t traits)
{
    static const kernel_row none = {.variant = "none", .T0 = 1, .T1 = 1};
    const dart_device *device = call->stream->device;
    memset(&call->launch, 0, sizeof call->launch);
    call->row = kernel_pick(device->backend->rows, id, device->info.capabilities, traits, rows, device->variant[0] != '\0' ? device->variant : NULL);
    if (call->row == NULL) {
        call->row = &none;
        op_fail(call, DART_UNSUPPORTED, "no variant of kernel %s runs on %s", kernel_table[id].name, device->info.name);
    }
    call->launch.row = call->row;
}

bool op_prefers(const op_call *call, kernel_id one, kernel_id other, uint32_t rows, uint32_t traits)
{
    const dart_device *device = call->stream->device;
    const char *variant = device->variant[0] != '\0' ? device->variant : NULL;
    const kernel_row *row = kernel_pick(device->backend->rows, one, device->info.capabilities, traits, rows, variant);
    const kernel_row *beside = kernel_pick(device->backend->rows, other, device->info.capabilities, traits, rows, variant);
    if (row == NULL || variant == NULL || beside == NULL) return row != NULL;
    return strcmp(row->variant, variant) == 0 || strcmp(beside->variant, variant) != 0;
}

uint64_t op_binding_limit(const op_call *call) { return call->stream->device->info.max_binding_bytes - BACKEND_ALIGN; }

uint32_t op_bind(op_call *call, uint32_t slot, const dart_tensor *tensor, uint64_t elements)
{
    if (call->stream->status != DART_OK || tensor->buffer == NULL) return 0;
    const uint64_t size = dart_dtype_size(tensor->dtype);
    const uint64_t begin = tensor->offset * size;
    const uint64_t aligned = begin - begin % BACKEND_ALIGN;
    const uint64_t bytes = begin - aligned + elements * size;
    if (bytes > call->stream->device->info.max_binding_bytes) {
        op_fail(call, DART_UNSUPPORTED, "%s of kernel %s would be %llu bytes, the device binds at most %llu: use smaller pieces",
                kernel_table[call->row->id].bindings[slot].name, kernel_table[call->row->id].name,
                (unsigned long long)bytes, (unsigned long long)call->stream->device->info.max_binding_bytes);
        return 0;
    }
    call->launch.bindings[slot] = (backend_binding){.memory = tensor->buffer->memory, .offset = aligned, .bytes = bytes};
    call->launch.dtypes |= (uint32_t)tensor->dtype << (2 * slot);
    return (uint32_t)((begin - aligned) / size);
}

uint32_t op_bind_rows(op_call *call, uint32_t slot, const dart_tensor *tensor, uint64_t rows, uint64_t width)
{
    return op_bind(call, slot, tensor, (rows - 1) * op_row(tensor, width) + width);
}

/* Does the launch depend on one since the last barrier? Notes its own ranges. */
static bool needs_barrier(dart_stream *stream, const backend_launch *launch)
{
    const kernel_info *kernel = &kernel_table[launch->row->id];
    bool barrier = stream->hazards_count + kernel->bindings_count > MAX_IN_FLIGHT;
    for (uint32_t i = 0; i < kernel->bindings_count && !barrier; i++) {
        const backend_binding *mine = &launch->bindings[i];
        for (uint32_t k = 0; k < stream->hazards_count && !barrier && mine->memory != NULL; k++) {
            const hazard *other = &stream->hazards[k];
            barrier = other->memory == mine->memory && other->begin < mine->offset + mine->bytes &&
                      mine->offset < other->end && ((other->access | kernel->bindings[i].access) & ACCESS_WRITE) != 0;
        }
    }
    if (barrier) stream->hazards_count = 0;
    for (uint32_t i = 0; i < kernel->bindings_count; i++) {
        const backend_binding *mine = &launch->bindings[i];
        if (mine->memory == NULL) continue;
        stream->hazards[stream->hazards_count++] =
            (hazard){mine->memory, mine->offset, mine->offset + mine->bytes, kernel->bindings[i].access};
    }
    return barrier;
}

void op_launch(op_call *call, void *args, uint64_t tiles)
{
    dart_stream *stream = call->stream;
    if (stream->status != DART_OK || tiles == 0) return;
    if (tiles > INT32_MAX) {
        op_fail(call, DART_UNSUPPORTED, "%llu tiles of kernel %s in one launch: use smaller pieces",
                (unsigned long long)tiles, kernel_table[call->row->id].name);
        return;
    }
    const uint32_t count = (uint32_t)tiles;
    memcpy(args, &count, sizeof count);
    call->launch.tiles = count;
    call->launch.args = args;
    call->launch.barrier = needs_barrier(stream, &call->launch);
    const launch_note note = {call->row, count, call->launch.dtypes, call->launch.barrier};
    dart_status status = device_fault(stream->device);
    if (status == DART_OK && stream->device->profile != NULL) status = note_launch(stream, &note);
    if (status == DART_OK)
        status = stream->options.warm ? note_need(stream, &call->launch)
                                      : stream->device->backend->stream_launch(stream->device->handle, stream->handle, &call->launch);
    if (take_failure(stream, status, call->op) != DART_OK) return;
    stream->launches++;
    if (stream->options.trace == NULL) return;
    char line[LINE];
    describe(&note, line);
    stream->options.trace(stream->options.trace_user, line);
}
