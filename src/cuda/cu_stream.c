/* Streams: a list of launches. The first submission launches them one by one, as most recordings run once and a graph costs more than
 * that; the second captures them into a graph, which is replayed from then on: decoding submits the same recording once a token. Both
 * run in the device's one queue, in the order of submission, as in Vulkan: the slices of a prefill are two recordings under way, the
 * second reads what the first writes. Launches up to a barrier stand side by side; those of cuBLASLt follow one another, since they
 * share a workspace.
 * A capture is broken off when another thread of the program unloads code or waits for the whole context, which it may do at any time. Threads
 * of this library do not (cu_code), but those of the host program may. A submission that is not captured for either reason launches one by one, and
 * the next one captures again. */
#include "cu.h"

#include <stdlib.h>
#include <string.h>

/* Between two graphs a device does nothing for 3 to 5 us (H200, driver 580), between two launches of one for 0.5. A recording of at most so many
 * launches that is to run at least so often runs as a graph of copies of it. */
enum { CU_COPIES = 4, CU_COPIED_LAUNCHES = 32, CU_COPIED_TIMES = 8 };

/* A wait with a limit looks without pause for so long, since a token of a small model takes no longer. */
#define CU_SPIN_NS 2000000u

static void release_graph(const cu_device *device, cu_stream *stream)
{
    if (stream->exec != NULL) device->driver->cuGraphExecDestroy(stream->exec);
    if (stream->copied != NULL) device->driver->cuGraphExecDestroy(stream->copied);
    stream->exec = stream->copied = NULL;
}

dart_status cu_stream_create(void *device, void **stream)
{
    cu_device *d = device;
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    cu_stream *made = calloc(1, sizeof *made);
    if (made == NULL) FAIL(d->report, DART_OUT_OF_MEMORY, "cuda: no host memory");
    TRY(CU(d, cuStreamCreate, &made->handle, CU_STREAM_NON_BLOCKING));
    TRY(CU(d, cuEventCreate, &made->start, CU_EVENT_DEFAULT));
    TRY(CU(d, cuEventCreate, &made->end, CU_EVENT_DEFAULT));
    TRY(CU(d, cuEventCreate, &made->fork, CU_EVENT_DEFAULT));
    for (int k = 0; k < CU_SIDES; k++) {
        TRY(CU(d, cuStreamCreate, &made->sides[k], CU_STREAM_NON_BLOCKING));
        TRY(CU(d, cuEventCreate, &made->joins[k], CU_EVENT_DEFAULT));
    }
    cu_leave(d);
    *stream = made;
    return DART_OK;
fail:
    cu_leave(d);
    cu_stream_destroy(d, made);
    return status;
}

void cu_stream_destroy(void *device, void *stream)
{
    cu_device *d = device;
    cu_stream *s = stream;
    if (s == NULL) return;
    if (d->driver->cuCtxPushCurrent(d->context) == CUDA_SUCCESS) {
        release_graph(d, s);
        if (s->start != NULL) d->driver->cuEventDestroy(s->start);
        if (s->workspace != 0) d->driver->cuMemFree(s->workspace);
        if (s->end != NULL) d->driver->cuEventDestroy(s->end);
        if (s->fork != NULL) d->driver->cuEventDestroy(s->fork);
        for (int k = 0; k < CU_SIDES; k++) {
            if (s->joins[k] != NULL) d->driver->cuEventDestroy(s->joins[k]);
            if (s->sides[k] != NULL) d->driver->cuStreamDestroy(s->sides[k]);
        }
        for (uint32_t i = 0; i < s->marks_count; i++) d->driver->cuEventDestroy(s->marks[i]);
        if (s->handle != NULL) d->driver->cuStreamDestroy(s->handle);
        cu_leave(d);
    }
    free(s->marks);
    free(s->launches);
    free(s);
}

dart_status cu_stream_begin(void *device, void *stream)
{
    cu_device *d = device;
    cu_stream *s = stream;
    const dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    release_graph(d, s);
    cu_leave(d);
    s->launches_count = 0;
    s->ran = false;
    return DART_OK;
}

/* A product for cuBLASLt or, where the library has no algorithm, for the fallback that the CUDA_BLAS_ROW names: it has the same
 * tiles, and runs on every device and for every call. */
static dart_status choose(cu_device *device, cu_stream *stream, cu_launch *to, const backend_launch *launch)
{
    dart_status status = cu_enter(device);
    if (status != DART_OK) return status;
    TRY(cu_blas_choose(device, to, &to->choice));
    if (!to->choice.found) {
        to->kernel = &device->kernels[to->kernel->fallback];
        to->grid = launch->tiles < to->kernel->max_grid ? launch->tiles : to->kernel->max_grid;
    } else if (to->choice.workspace_bytes > stream->workspace_bytes) {
        CUdeviceptr larger = 0;
        TRY(CU(device, cuMemAlloc, &larger, to->choice.workspace_bytes));
        if (stream->workspace != 0) device->driver->cuMemFree(stream->workspace);
        stream->workspace = larger;
        stream->workspace_bytes = to->choice.workspace_bytes;
    }
fail:
    cu_leave(device);
    return status;
}

/* See CudaMap. The driver wants it on 64 bytes, which a list of launches does not promise. */
static dart_status make_map(cu_device *device, cu_launch *launch, uint64_t bytes)
{
    _Alignas(64) struct CudaMap map;
    void *address = (void *)(uintptr_t)launch->bindings.address[launch->kernel->map_binding];
    const uint64_t row_bytes = 2 * CUDA_MAP_WIDTH, sizes[] = {CUDA_MAP_WIDTH, bytes / row_bytes};
    const uint32_t box[] = {CUDA_MAP_WIDTH, launch->kernel->map_rows}, steps[] = {1, 1};
    dart_status status = cu_enter(device);
    if (status != DART_OK) return status;
    status = CU(device, cuTensorMapEncodeTiled, &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, address, sizes, &row_bytes, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    cu_leave(device);
    if (status == DART_OK) launch->map = map;
    return status;
}

dart_status cu_stream_launch(void *device, void *stream, const backend_launch *launch)
{
    cu_device *d = device;
    cu_stream *s = stream;
    const kernel_info *info = &kernel_table[launch->row->id];
    if (atomic_load(&d->lost)) return base_fail(d->report, DART_DEVICE_LOST, "cuda: the device was lost before");
    if (s->launches_count == s->launches_capacity) {
        const uint32_t capacity = s->launches_capacity == 0 ? 64 : 2 * s->launches_capacity;
        cu_launch *grown = realloc(s->launches, capacity * sizeof *grown);
        if (grown == NULL) return base_fail(d->report, DART_OUT_OF_MEMORY, "cuda: no host memory");
        s->launches = grown;
        s->launches_capacity = capacity;
    }
    cu_launch *to = &s->launches[s->launches_count++];
    memset(to, 0, sizeof *to);
    to->kernel = &d->kernels[launch->row->slot];
    to->id = (int)launch->row->id;
    to->grid = launch->tiles < to->kernel->max_grid ? launch->tiles : to->kernel->max_grid;
    to->dtypes = launch->dtypes;
    to->barrier = launch->barrier;
    memcpy(&to->args, launch->args, info->args_size);
    for (uint32_t i = 0; i < info->bindings_count; i++) {
        const cu_memory *memory = launch->bindings[i].memory;
        if (memory != NULL) to->bindings.address[i] = memory->address + launch->bindings[i].offset;
        to->bytes[i] = launch->bindings[i].bytes;
    }
    if (to->kernel->map_rows > 0 && to->bindings.address[to->kernel->map_binding] != 0)
        return make_map(d, to, launch->bindings[to->kernel->map_binding].bytes);
    return to->kernel->function == NULL ? choose(d, s, to, launch) : DART_OK;
}

/* Where launches since the last barrier stand. */
typedef struct fan {
    uint32_t count;
    bool forked[CU_SIDES];
} fan;

static dart_status join(cu_device *device, const cu_stream *stream, CUstream first, fan *f)
{
    dart_status status = DART_OK;
    for (int k = 0; k < CU_SIDES && status == DART_OK; k++) {
        if (!f->forked[k]) continue;
        status = CU(device, cuEventRecord, stream->joins[k], stream->sides[k]);
        if (status == DART_OK) status = CU(device, cuStreamWaitEvent, first, stream->joins[k], 0);
    }
    *f = (fan){0};
    return status;
}

/* The stream that launch i goes to: `first`, or one beside it. */
static dart_status spread(cu_device *device, const cu_stream *stream, uint32_t i, CUstream first, fan *f, CUstream *to)
{
    const cu_launch *launch = &stream->launches[i];
    const bool forks = i + 1 < stream->launches_count && !launch[1].barrier;
    dart_status status = launch->barrier ? join(device, stream, first, f) : DART_OK;
    if (status == DART_OK && f->count == 0 && forks) status = CU(device, cuEventRecord, stream->fork, first);
    const uint32_t k = (f->count + CU_SIDES - 1) % CU_SIDES;
    const bool beside = f->count++ > 0 && !launch->choice.found;
    *to = beside ? stream->sides[k] : first;
    if (!beside || f->forked[k] || status != DART_OK) return status;
    f->forked[k] = true;
    return CU(device, cuStreamWaitEvent, stream->sides[k], stream->fork, 0);
}

/* `early`: CUDA_OVERLAP. */
static dart_status launch_on(cu_device *device, const cu_stream *stream, cu_launch *launch, CUstream to, bool early)
{
    if (launch->choice.found) return cu_blas_run(device, launch, &launch->choice, stream, to);
    void *parameters[] = {&launch->args, &launch->bindings, &launch->dtypes, &launch->map};
    const cu_kernel *kernel = launch->kernel;
    CUlaunchAttribute attributes[2];
    unsigned count = 0;
    if (early) attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, .value.value = 1};
    if (kernel->together) attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.value = 1};
    const CUlaunchConfig config = {launch->grid, 1, 1, kernel->threads, 1, 1, kernel->shared_bytes, to, attributes, count};
    return CU(device, cuLaunchKernelEx, &config, kernel->function, parameters, NULL);
}

/* All launches, to `first` and the streams beside it, which it waits for. */
static dart_status launch_all(cu_device *device, cu_stream *stream, CUstream first)
{
    fan f = {0};
    cu_set before = {0};
    dart_status status = DART_OK;
    for (uint32_t i = 0; i < stream->launches_count && status == DART_OK; i += before.count) {
        const cu_set set = cu_set_at(device, stream, i);
        const bool early = cu_set_begins_early(&before, &set);
        if (set.merged != NULL) {
            status = join(device, stream, first, &f);
            const cu_set next = cu_set_at(device, stream, i + set.count), soon = cu_set_at(device, stream, i + set.count + next.count);
            if (status == DART_OK) status = cu_set_launch(device, &set, &soon, first, early);
        }
        for (uint32_t k = i; k < i + set.count && set.merged == NULL && status == DART_OK; k++) {
            CUstream to = NULL;
            status = spread(device, stream, k, first, &f, &to);
            if (status == DART_OK) status = launch_on(device, stream, &stream->launches[k], to, early || cu_launch_overlaps(stream, k));
        }
        before = set;
    }
    return status == DART_OK ? join(device, stream, first, &f) : status;
}

/* The launches, `copies` times, as *exec. With cu_code held. */
static dart_status capture(cu_device *device, cu_stream *stream, uint32_t copies, CUgraphExec *exec)
{
    CUgraph graph = NULL;
    /* Relaxed: other threads of the program go on with whatever they do. */
    dart_status status = CU(device, cuStreamBeginCapture, stream->handle, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (status != DART_OK) return status;
    stream->capturing = true;
    for (uint32_t i = 0; i < copies && status == DART_OK; i++) status = launch_all(device, stream, stream->handle);
    stream->capturing = false;
    if (status == DART_OK) {
        status = CU(device, cuStreamEndCapture, stream->handle, &graph);
    } else {
        device->driver->cuStreamEndCapture(stream->handle, &graph);
    }
    if (status == DART_OK) status = CU(device, cuGraphInstantiateWithFlags, exec, graph, 0);
    if (status != DART_OK) *exec = NULL;
    if (graph != NULL) device->driver->cuGraphDestroy(graph);
    return status;
}

/* Where nobody loads code: that may take long, and without a graph the recording runs as well. */
static void try_to_capture(cu_device *device, cu_stream *stream, uint32_t copies, CUgraphExec *exec)
{
    dart_status status = DART_INTERNAL;
    if (base_lock_if_free(&cu_code)) {
        status = capture(device, stream, copies, exec);
        base_unlock(&cu_code);
    }
    if (status != DART_OK) base_note(device->report, DART_LOG_INFO, "cuda: a recording was not captured; it runs in smaller pieces");
}

/* ---- A device that is profiled: launches one by one, with an event after each ---- */

static dart_status make_marks(cu_device *d, cu_stream *s)
{
    if (s->marks_count >= s->launches_count) return DART_OK;
    CUevent *grown = realloc(s->marks, s->launches_count * sizeof *grown);
    if (grown == NULL) return base_fail(d->report, DART_OUT_OF_MEMORY, "cuda: no host memory");
    s->marks = grown;
    dart_status status = DART_OK;
    while (s->marks_count < s->launches_count && status == DART_OK) {
        status = CU(d, cuEventCreate, &s->marks[s->marks_count], CU_EVENT_DEFAULT);
        if (status == DART_OK) s->marks_count++;
    }
    return status;
}

/* In the stream's own queue, behind the device's, which then waits for it. */
static dart_status run_marked(cu_device *d, cu_stream *s)
{
    dart_status status = DART_OK;
    TRY(make_marks(d, s));
    TRY(CU(d, cuEventRecord, s->fork, d->queue));
    TRY(CU(d, cuStreamWaitEvent, s->handle, s->fork, 0));
    for (uint32_t i = 0; i < s->launches_count; i++) {
        TRY(launch_on(d, s, &s->launches[i], s->handle, false));
        s->submitted = true;
        TRY(CU(d, cuEventRecord, s->marks[i], s->handle));
    }
    TRY(CU(d, cuEventRecord, s->joins[0], s->handle));
    TRY(CU(d, cuStreamWaitEvent, d->queue, s->joins[0], 0));
fail:
    if (status != DART_OK && s->submitted) d->driver->cuStreamSynchronize(s->handle);
    return status;
}

dart_status cu_stream_times(void *device, void *stream, uint64_t *ns, uint32_t *count)
{
    cu_device *d = device;
    cu_stream *s = stream;
    if (!s->measured) return base_fail(d->report, DART_INVALID_ARGUMENT, "cuda: nothing was submitted");
    if (*count > s->launches_count) *count = s->launches_count;
    if (!d->profiled) *count = 0;
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    for (uint32_t i = 0; i < *count && status == DART_OK; i++) {
        float milliseconds = 0.0f;
        status = CU(d, cuEventElapsedTime, &milliseconds, i == 0 ? s->fork : s->marks[i - 1], s->marks[i]);
        ns[i] = (uint64_t)((double)milliseconds * 1e6 + 0.5);
    }
    cu_leave(d);
    return status;
}

static dart_status run(cu_device *d, cu_stream *s, uint32_t times, const backend_order *order)
{
    dart_status status = DART_OK;
    s->measured = false;
    TRY(cu_order_waits(d, order, d->queue));
    TRY(CU(d, cuEventRecord, s->start, d->queue));
    for (uint32_t i = 0; i < times && d->profiled; i++) TRY(run_marked(d, s));
    for (uint32_t i = 0; i < times && s->exec == NULL && s->launches_count > 0 && !d->profiled; i++) {
        s->submitted = true;
        TRY(launch_all(d, s, d->queue));
    }
    for (uint32_t i = 0; i < times && s->exec != NULL;) {
        const bool copied = s->copied != NULL && times - i >= CU_COPIES;
        TRY(CU(d, cuGraphLaunch, copied ? s->copied : s->exec, d->queue));
        i += copied ? CU_COPIES : 1;
        /* From here something is in flight, which a failure to go on or to mark its end must not hide. */
        s->submitted = true;
    }
    s->submitted = true;
    TRY(cu_order_signals(d, order, d->queue));
    TRY(CU(d, cuEventRecord, s->end, d->queue));
    s->measured = true;
    return DART_OK;
fail:
    for (int k = 0; k < CU_SIDES && s->submitted; k++) d->driver->cuStreamSynchronize(s->sides[k]);
    if (s->submitted) d->driver->cuStreamSynchronize(d->queue);
    s->submitted = false;
    return status;
}

dart_status cu_stream_submit(void *device, void *stream, uint32_t times, const backend_order *order)
{
    cu_device *d = device;
    cu_stream *s = stream;
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    /* Behind a wait that is not met launches one by one could fill the driver's queue, and this call would wait. */
    const bool waits = order != NULL && order->waits_count > 0;
    const bool runs = s->launches_count > 0 && !d->profiled;
    if (s->exec == NULL && runs && (s->ran || times > 1 || waits)) try_to_capture(d, s, 1, &s->exec);
    const bool copies = s->exec != NULL && runs && s->launches_count <= CU_COPIED_LAUNCHES && times >= CU_COPIED_TIMES;
    if (s->copied == NULL && copies) try_to_capture(d, s, CU_COPIES, &s->copied);
    s->ran = true;
    base_lock(&d->submitting);
    status = run(d, s, times, order);
    base_unlock(&d->submitting);
    cu_leave(d);
    return status;
}

dart_status cu_stream_wait(void *device, void *stream, uint64_t timeout_ns)
{
    cu_device *d = device;
    cu_stream *s = stream;
    if (!s->submitted) return DART_OK;
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    CUresult result = CUDA_ERROR_NOT_READY;
    if (timeout_ns == UINT64_MAX) {
        result = d->driver->cuEventSynchronize(s->end);
    } else {
        const uint64_t start = base_now_ns();
        for (;;) {
            result = d->driver->cuEventQuery(s->end);
            const uint64_t waited = base_now_ns() - start;
            if (result != CUDA_ERROR_NOT_READY || waited >= timeout_ns) break;
            if (waited >= CU_SPIN_NS) base_pause_ns(50000);
        }
    }
    cu_leave(d);
    if (result == CUDA_ERROR_NOT_READY) return DART_TIMEOUT;
    s->submitted = false;
    return cu_check(d, result, "waiting for a submission");
}

dart_status cu_stream_elapsed(void *device, void *stream, uint64_t *ns)
{
    cu_device *d = device;
    cu_stream *s = stream;
    if (!s->measured) return base_fail(d->report, DART_INVALID_ARGUMENT, "cuda: nothing was submitted");
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    float milliseconds = 0.0f;
    status = CU(d, cuEventElapsedTime, &milliseconds, s->start, s->end);
    cu_leave(d);
    if (status == DART_OK) *ns = (uint64_t)((double)milliseconds * 1e6 + 0.5);
    return status;
}
