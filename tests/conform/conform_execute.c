/* The runs of a case: each in a variant, on the same inputs and against the same expectation. */
#include "conform_data.h"

#include "conform_suite.h"
#include "runtime/stream.h"

#include <stdlib.h>
#include <string.h>

/* ---- From one run to the next ---- */

static void note_variant(void *user, const char *line)
{
    conform_outcome *outcome = user;
    const size_t length = strcspn(line, " "), used = strlen(outcome->variants);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(length < 63 ? length : 63), line);
    if (!conform_lists(outcome->variants, name))
        snprintf(outcome->variants + used, sizeof outcome->variants - used, "%s%s", used > 0 ? " " : "", name);
}

static void begin(conform_data *d, const conform_run *run)
{
    d->outcome = run->outcome;
    memset(d->outcome, 0, sizeof *d->outcome);
    const dart_stream_options options = {.trace = note_variant, .trace_user = d->outcome, .warm = d->plan};
    if (d->status == DART_OK && (d->status = dart_stream_create(d->device, &options, &d->stream)) != DART_OK)
        dart_device_error(d->device, d->text, sizeof d->text);
    if (d->status == DART_OK) d->stream->choice = run->choice;
}

/* Says what came out, and leaves the tensors as the first run found them. */
static void end(conform_data *d)
{
    conform_outcome *outcome = d->outcome;
    dart_stream_destroy(&d->stream);
    if (d->dump != NULL) conform_dump_inputs(d->dump, d);
    outcome->tensors = d->tensors_count;
    outcome->status = d->status;
    snprintf(outcome->text, sizeof outcome->text, "%s", d->text);
    /* Only what a device says that it cannot do was not run; any other status is a failure. */
    outcome->ran = d->status != DART_UNSUPPORTED && d->status != DART_OUT_OF_MEMORY;
    outcome->passed = d->status == DART_OK && outcome->results_count > 0;
    for (uint32_t i = 0; i < outcome->results_count; i++)
        if (outcome->results[i].broken || !(outcome->results[i].share <= 1)) outcome->passed = false;
    conform_forget(d, d->made.tensors);
    for (uint32_t i = 0; i < d->tensors_count; i++) {
        conform_tensor *tensor = d->tensors[i];
        tensor->held = tensor->held && !tensor->changed;
        tensor->changed = false;
        if (tensor->original == NULL) continue;
        free(tensor->initial);
        tensor->initial = tensor->original;
        tensor->original = NULL;
    }
    d->outcome = NULL;
    d->status = d->made.status;
    snprintf(d->text, sizeof d->text, "%s", d->made.text);
}

bool conform_next(conform_data *d)
{
    conform_run run;
    if (d->outcome != NULL) {
        end(d);
    } else {
        d->made.tensors = d->tensors_count;
        d->made.status = d->status;
        snprintf(d->made.text, sizeof d->made.text, "%s", d->text);
    }
    if (!d->take(d->take_user, &run)) return false;
    begin(d, &run);
    return true;
}

/* ---- A run ---- */

static size_t bytes_of(const conform_tensor *tensor) { return (size_t)tensor->total * dart_dtype_size(tensor->t.dtype); }

/* What buffers hold already is not written to them again. */
static dart_status restore(conform_data *d)
{
    for (uint32_t i = 0; i < d->tensors_count; i++) {
        conform_tensor *tensor = d->tensors[i];
        if (tensor->held) continue;
        const dart_status status = dart_buffer_write(tensor->t.buffer, 0, tensor->initial, bytes_of(tensor));
        if (status != DART_OK) return status;
    }
    return DART_OK;
}

/* Runs the recording once; contents of tensor i after it in results[i]. */
static dart_status run_once(conform_data *d, void **results)
{
    dart_status status = restore(d);
    if (status == DART_OK) status = dart_stream_submit(d->stream);
    if (status == DART_OK) status = dart_stream_wait(d->stream, UINT64_C(600000000000));
    if (status == DART_OK) status = dart_stream_elapsed(d->stream, &d->outcome->ns);
    for (uint32_t i = 0; i < d->tensors_count && status == DART_OK; i++) {
        conform_tensor *tensor = d->tensors[i];
        const size_t bytes = bytes_of(tensor);
        results[i] = malloc(bytes);
        if (results[i] == NULL) abort();
        status = dart_buffer_read(tensor->t.buffer, 0, results[i], bytes);
        tensor->held = status == DART_OK && memcmp(results[i], tensor->initial, bytes) == 0;
    }
    return status;
}

/* Of words of 8 bytes: multiplied by an odd number after each, the upper half mixed into the lower one. */
static const uint64_t digest_begin = UINT64_C(0xcbf29ce484222325);

static uint64_t digest(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)bytes + i, size - i < 8 ? size - i : 8);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

/* Of all tensors, those that were made before the first run once for all. */
static uint64_t digest_inputs(conform_data *d)
{
    bool first = true; /* of the run */
    for (uint32_t i = 0; i < d->made.tensors; i++) first = first && d->tensors[i]->original == NULL;
    uint64_t hash = first && d->made.inputs != 0 ? d->made.inputs : digest_begin;
    for (uint32_t i = hash == digest_begin ? 0 : d->made.tensors; i < d->tensors_count; i++) {
        hash = digest(hash, d->tensors[i]->initial, bytes_of(d->tensors[i]));
        if (first && i + 1 == d->made.tensors) d->made.inputs = hash;
    }
    return hash;
}

/* The first of elements from <= at < to that differs; to: none. */
static uint64_t first_change(const void *a, const void *b, uint64_t from, uint64_t to, size_t size)
{
    if (to <= from || memcmp((const char *)a + from * size, (const char *)b + from * size, (size_t)(to - from) * size) == 0) return to;
    while (memcmp((const char *)a + from * size, (const char *)b + from * size, size) == 0) from++;
    return from;
}

/* What the run wrote outside the tensor's rows: before the first one, after each, and after the last one. */
static void check_guards(conform_data *d, uint32_t number, const void *after)
{
    const conform_tensor *tensor = d->tensors[number];
    const size_t size = dart_dtype_size(tensor->t.dtype);
    for (uint64_t r = 0, from = 0; r <= tensor->rows; r++) {
        const uint64_t to = r < tensor->rows ? conform_place(tensor, r, 0) : tensor->total, at = first_change(after, tensor->initial, from, to, size);
        char text[128];
        if (at < to) {
            snprintf(text, sizeof text, "tensor %u: element %lld outside it was written", number, (long long)at - (long long)tensor->t.offset);
            conform_fail(d, DART_INTERNAL, text);
            return;
        }
        from = to + tensor->width;
    }
}

/* Bytes of the device's margins that the runs wrote. */
static void check_margins(conform_data *d)
{
    const buffer_list *scratch = &d->stream->chunks;
    for (uint32_t i = 0; i < d->tensors_count + scratch->count; i++) {
        const bool own = i < d->tensors_count;
        const uint32_t number = own ? i : i - d->tensors_count;
        const dart_buffer *buffer = own ? d->tensors[i]->t.buffer : scratch->buffers[number];
        char text[128];
        int64_t at = INT64_MAX;
        const dart_status status = buffer_check_margins(buffer, &at);
        snprintf(text, sizeof text, "%s %u of %llu bytes: byte %lld was written", own ? "tensor" : "scratch memory", number,
                 (unsigned long long)dart_buffer_bytes(buffer), (long long)at);
        if (status != DART_OK || at != INT64_MAX) conform_fail(d, status != DART_OK ? status : DART_INTERNAL, text);
    }
}

bool conform_execute(conform_data *d)
{
    char text[256];
    if (d->status != DART_OK || d->plan) return false;
    void *first[MAX_TENSORS] = {0}, *second[MAX_TENSORS] = {0};
    d->outcome->inputs = digest_inputs(d);
    dart_status status = run_once(d, first);
    if (status == DART_OK) status = run_once(d, second);
    if (status != DART_OK) {
        dart_stream_error(d->stream, text, sizeof text);
        conform_fail(d, status, text);
    }
    for (uint32_t i = 0; i < d->tensors_count; i++) {
        conform_tensor *tensor = d->tensors[i];
        const size_t bytes = bytes_of(tensor);
        const bool same = status == DART_OK && memcmp(first[i], second[i], bytes) == 0;
        if (status == DART_OK && !same) conform_fail(d, DART_INTERNAL, "two runs from the same bits gave different bits");
        if (status == DART_OK) check_guards(d, i, first[i]);
        tensor->changed = tensor->changed || !tensor->held;
        tensor->held = same;
        /* From here on `initial` is what the device left. */
        if (status == DART_OK) {
            if (i < d->made.tensors && tensor->original == NULL) tensor->original = tensor->initial;
            else free(tensor->initial);
            tensor->initial = first[i];
            tensor->digest = digest(digest_begin, first[i], bytes);
        } else {
            free(first[i]);
        }
        free(second[i]);
    }
    if (status == DART_OK) check_margins(d);
    return d->status == DART_OK;
}
