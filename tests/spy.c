#include "spy.h"

#include "runtime/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAUNCHES = 4096, MAX_MEMORIES = 512, RANGES_BEFORE_NEEDLESS = 64 };

typedef struct record {
    void *stream;
    const kernel_info *kernel;
    backend_launch launch;
} record;

static struct spy {
    const backend *real;
    backend fake;
    dart_device *device;
    record records[MAX_LAUNCHES];
    uint32_t records_count;
    struct { void *memory; uint64_t bytes; } memories[MAX_MEMORIES];
    spy_counts counts;
} s;

static void complain(uint32_t *counter, const kernel_info *kernel, const char *what)
{
    if (s.counts.text[0] == '\0') snprintf(s.counts.text, sizeof s.counts.text, "launch %u, %s: %s", s.counts.launches, kernel->name, what);
    (*counter)++;
}

static dart_status create(void *device, uint64_t bytes, void **memory)
{
    const dart_status status = s.real->memory_create(device, bytes, memory);
    for (size_t i = 0; i < MAX_MEMORIES && status == DART_OK; i++)
        if (s.memories[i].memory == NULL) {
            s.memories[i].memory = *memory;
            s.memories[i].bytes = bytes;
            break;
        }
    return status;
}

static void destroy(void *device, void *memory)
{
    for (size_t i = 0; i < MAX_MEMORIES; i++)
        if (s.memories[i].memory == memory) s.memories[i].memory = NULL;
    s.real->memory_destroy(device, memory);
}

static uint64_t bytes_of(const void *memory)
{
    for (size_t i = 0; i < MAX_MEMORIES; i++)
        if (s.memories[i].memory == memory) return s.memories[i].bytes;
    return 0;
}

static bool depends(const record *earlier, const record *later)
{
    for (uint32_t i = 0; i < earlier->kernel->bindings_count; i++)
        for (uint32_t k = 0; k < later->kernel->bindings_count; k++) {
            const backend_binding *a = &earlier->launch.bindings[i], *b = &later->launch.bindings[k];
            const int access = (int)earlier->kernel->bindings[i].access | (int)later->kernel->bindings[k].access;
            if (a->memory != NULL && a->memory == b->memory && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes &&
                (access & ACCESS_WRITE) != 0)
                return true;
        }
    return false;
}

static void check_promises(const record *r)
{
    const backend_launch *launch = &r->launch;
    uint32_t tiles, bound = 0;
    memcpy(&tiles, launch->args, sizeof tiles);
    if (launch->tiles == 0 || tiles != launch->tiles) complain(&s.counts.broken, r->kernel, "tiles");
    if ((launch->row->needs & ~s.device->info.capabilities) != 0) complain(&s.counts.broken, r->kernel, "capabilities");
    for (uint32_t i = 0; i < KERNEL_MAX_BINDINGS; i++) {
        const backend_binding *b = &launch->bindings[i];
        if (b->memory == NULL) {
            const uint32_t type = i < KERNEL_TYPED_BINDINGS ? launch->dtypes >> 2 * i & 3 : 0;
            const bool named = i < r->kernel->bindings_count;
            if (type != 0 && !(type == DART_I32 && named)) complain(&s.counts.broken, r->kernel, "type of an absent binding");
            continue;
        }
        bound++;
        const uint64_t bytes = bytes_of(b->memory);
        if (i >= r->kernel->bindings_count) complain(&s.counts.broken, r->kernel, "too many bindings");
        if (b->offset % BACKEND_ALIGN != 0) complain(&s.counts.broken, r->kernel, "alignment");
        if (b->bytes == 0 || b->offset > bytes || b->bytes > bytes - b->offset) complain(&s.counts.broken, r->kernel, "range outside its memory");
        if (b->bytes > s.device->info.max_binding_bytes) complain(&s.counts.broken, r->kernel, "range above the limit");
    }
    if (bound == 0) complain(&s.counts.broken, r->kernel, "no bindings");
}

static dart_status launch(void *device, void *stream, const backend_launch *made)
{
    const dart_status status = s.real->stream_launch(device, stream, made);
    if (status != DART_OK || s.records_count == MAX_LAUNCHES) return status;
    record *mine = &s.records[s.records_count++];
    *mine = (record){.stream = stream, .kernel = &kernel_table[made->row->id], .launch = *made};
    check_promises(mine);
    /* Back to the last barrier of this stream, or to its beginning. */
    bool needed = false;
    uint32_t ranges = 0;
    for (uint32_t i = s.records_count - 1; i-- > 0;) {
        if (s.records[i].stream != stream) continue;
        needed = needed || depends(&s.records[i], mine);
        ranges += s.records[i].kernel->bindings_count;
        if (s.records[i].launch.barrier) break;
    }
    if (needed && !made->barrier) complain(&s.counts.missing, mine->kernel, "no barrier");
    if (!needed && made->barrier && ranges < RANGES_BEFORE_NEEDLESS) complain(&s.counts.needless, mine->kernel, "needless barrier");
    s.counts.launches++;
    s.counts.barriers += made->barrier;
    return status;
}

static dart_status begin(void *device, void *stream)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s.records_count; i++)
        if (s.records[i].stream != stream) s.records[kept++] = s.records[i];
    s.records_count = kept;
    return s.real->stream_begin(device, stream);
}

void spy_on(dart_device *device)
{
    memset(&s, 0, sizeof s);
    s.real = device->backend;
    s.device = device;
    s.fake = *s.real;
    s.fake.memory_create = create;
    s.fake.memory_destroy = destroy;
    s.fake.stream_begin = begin;
    s.fake.stream_launch = launch;
    device->backend = &s.fake;
}

spy_counts spy_off(dart_device *device)
{
    device->backend = s.real;
    return s.counts;
}
