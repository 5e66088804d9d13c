/* Sums over the devices of several processes, by NCCL. The library is opened when a group is made. Its kernels run in a queue of the group's, beside
 * the device's: those of one bucket of gradients while the passes make the next. */
#include "cu.h"

#include <stdlib.h>
#include <string.h>

/* Values of the library's interface, as in its version 2. */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_UINT8 = 1, NCCL_FLOAT32 = 7, NCCL_SUM = 0 };
typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId { char internal[BACKEND_GROUP_KEY]; } ncclUniqueId;
/* As in version 2.14; later ones give the rest its defaults. blocking 0: calls return before they are done, so that none waits without a limit for
 * a member that is gone. */
typedef struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking, unused;
} ncclConfig_t;
#define NCCL_CONFIG {sizeof(ncclConfig_t), 0xcafebeef, 21400, 0, 0}

#define NCCL_FUNCTIONS(X) \
    X(ncclGetUniqueId, "ncclGetUniqueId", (ncclUniqueId *id)) \
    X(ncclCommInitRankConfig, "ncclCommInitRankConfig", (ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)) \
    X(ncclCommAbort, "ncclCommAbort", (ncclComm_t comm)) \
    X(ncclCommGetAsyncError, "ncclCommGetAsyncError", (ncclComm_t comm, int *error)) \
    X(ncclGroupStart, "ncclGroupStart", (void)) \
    X(ncclGroupEnd, "ncclGroupEnd", (void)) \
    X(ncclAllReduce, "ncclAllReduce", (const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, CUstream stream)) \
    X(ncclBroadcast, "ncclBroadcast", (const void *from, void *to, size_t count, int type, int owner, ncclComm_t comm, CUstream stream))

typedef struct nccl {
    void *library;
#define CU_MEMBER(member, symbol, parameters) int (*member) parameters; /* NOLINT(bugprone-macro-parentheses): a declaration */
    NCCL_FUNCTIONS(CU_MEMBER)
#undef CU_MEMBER
    const char *(*ncclGetErrorString)(int error);
} nccl;

typedef struct cu_group {
    nccl library;
    ncclComm_t comm; /* NULL: ended */
    uint64_t timeout_ns;
    CUstream queue;        /* beside the device's, and before it where both have something to run */
    CUevent behind, done;  /* what was submitted to the device; what has begun here */
    bool busy;             /* something has begun */
} cu_group;

static void unload(nccl *n)
{
    if (n->library != NULL) base_library_close(n->library);
    n->library = NULL;
}

static dart_status load(const cu_device *device, nccl *n)
{
    memset(n, 0, sizeof *n);
    n->library = base_library_open("libnccl.so.2");
    if (n->library == NULL) {
        base_note(device->report, DART_LOG_INFO, "cuda: NCCL (libnccl.so.2) was not found");
        return DART_UNSUPPORTED;
    }
#define CU_FIND(member, symbol, parameters) \
    if (!base_library_find(n->library, symbol, &n->member, sizeof n->member)) goto fail;
    NCCL_FUNCTIONS(CU_FIND)
#undef CU_FIND
    if (!base_library_find(n->library, "ncclGetErrorString", &n->ncclGetErrorString, sizeof n->ncclGetErrorString)) goto fail;
    return DART_OK;
fail:
    unload(n);
    return base_fail(device->report, DART_UNSUPPORTED, "cuda: NCCL lacks a function that is needed");
}

static dart_status check(const cu_device *device, const nccl *n, int result, const char *function)
{
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return DART_OK;
    return base_fail(device->report, DART_INTERNAL, "%s: %s (NCCL error %d)", function, n->ncclGetErrorString(result), result);
}
#define NCCL(device, n, function, ...) check((device), (n), (n)->function(__VA_ARGS__), #function)

dart_status cu_group_key(void *device, uint8_t key[BACKEND_GROUP_KEY])
{
    const cu_device *d = device;
    nccl n;
    ncclUniqueId id;
    dart_status status = load(d, &n);
    if (status != DART_OK) return status;
    status = NCCL(d, &n, ncclGetUniqueId, &id);
    memcpy(key, id.internal, sizeof id.internal);
    unload(&n); /* the library has threads, and stays loaded by itself */
    return status;
}

/* A wait looks without pause for so long: the last sum of a step ends soon after its passes. */
#define SPIN_NS 2000000u

static dart_status pause_until(const cu_device *d, const cu_group *g, uint64_t begin, const char *what)
{
    const uint64_t waited = base_now_ns() - begin;
    if (waited > g->timeout_ns)
        return base_fail(d->report, DART_TIMEOUT, "cuda: %s was not done in %.0f s: a rank is gone, or slow", what, (double)g->timeout_ns / 1e9);
    if (waited > SPIN_NS) base_pause_ns(50000);
    return DART_OK;
}

/* Until the calls before have taken their way to the queue: only then does an event there stand behind them. A group's first sum connects to the
 * others in such a call. */
static dart_status settle(const cu_device *d, const cu_group *g, const char *what)
{
    const uint64_t begin = base_now_ns();
    for (;;) {
        int error = NCCL_SUCCESS;
        dart_status status = NCCL(d, &g->library, ncclCommGetAsyncError, g->comm, &error);
        if (status == DART_OK) status = check(d, &g->library, error, what);
        if (status != DART_OK || error == NCCL_SUCCESS) return status;
        status = pause_until(d, g, begin, what);
        if (status != DART_OK) return status;
    }
}

/* Waits for no other member, and takes kernels of NCCL's off the device: where none is left to wait for, that is all there is to end. */
static void end(cu_group *g)
{
    if (g->comm != NULL) g->library.ncclCommAbort(g->comm);
    g->comm = NULL;
}

dart_status cu_group_create(void *device, const uint8_t key[BACKEND_GROUP_KEY], uint32_t rank, uint32_t count, uint64_t timeout_ns, void **group)
{
    enum { FIRST = -5 }; /* the driver takes the nearest priority that it has */
    cu_device *d = device;
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG;
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    cu_group *made = calloc(1, sizeof *made);
    if (made == NULL) FAIL(d->report, DART_OUT_OF_MEMORY, "cuda: no host memory");
    made->timeout_ns = timeout_ns;
    memcpy(id.internal, key, sizeof id.internal);
    TRY(load(d, &made->library));
    TRY(CU(d, cuStreamCreateWithPriority, &made->queue, CU_STREAM_NON_BLOCKING, FIRST));
    TRY(CU(d, cuEventCreate, &made->behind, CU_EVENT_DEFAULT));
    TRY(CU(d, cuEventCreate, &made->done, CU_EVENT_DEFAULT));
    TRY(NCCL(d, &made->library, ncclCommInitRankConfig, &made->comm, (int)count, id, (int)rank, &config));
    TRY(settle(d, made, "the connection of all ranks"));
    *group = made;
    made = NULL;
fail:
    cu_leave(d);
    cu_group_destroy(d, made);
    return status;
}

void cu_group_destroy(void *device, void *group)
{
    cu_device *d = device;
    cu_group *g = group;
    if (g == NULL) return;
    if (d->driver->cuCtxPushCurrent(d->context) == CUDA_SUCCESS) {
        end(g);
        if (g->done != NULL) d->driver->cuEventDestroy(g->done);
        if (g->behind != NULL) d->driver->cuEventDestroy(g->behind);
        if (g->queue != NULL) d->driver->cuStreamDestroy(g->queue);
        cu_leave(d);
    }
    unload(&g->library);
    free(g);
}

/* What follows in the group's queue stands behind all that was submitted to the device. */
static dart_status stand_behind(cu_device *d, const cu_group *g)
{
    base_lock(&d->submitting);
    dart_status status = CU(d, cuEventRecord, g->behind, d->queue);
    base_unlock(&d->submitting);
    return status == DART_OK ? CU(d, cuStreamWaitEvent, g->queue, g->behind, 0) : status;
}

/* One of the calls on every part; owners NULL: their sums. */
static dart_status call_all(cu_device *d, const cu_group *g, const backend_binding *parts, const uint32_t *owners, uint32_t count)
{
    const nccl *n = &g->library;
    dart_status status = check(d, n, n->ncclGroupStart(), "ncclGroupStart");
    for (uint32_t i = 0; i < count && status == DART_OK; i++) {
        void *const at = (void *)(uintptr_t)(((const cu_memory *)parts[i].memory)->address + parts[i].offset);
        const size_t bytes = (size_t)parts[i].bytes;
        if (owners == NULL) status = NCCL(d, n, ncclAllReduce, at, at, bytes / sizeof(float), NCCL_FLOAT32, NCCL_SUM, g->comm, g->queue);
        else status = NCCL(d, n, ncclBroadcast, at, at, bytes, NCCL_UINT8, (int)owners[i], g->comm, g->queue);
    }
    const dart_status ended = check(d, n, n->ncclGroupEnd(), "ncclGroupEnd");
    return status == DART_OK ? ended : status;
}

static dart_status begin(cu_device *d, cu_group *g, const backend_binding *parts, const uint32_t *owners, uint32_t count)
{
    if (g->comm == NULL) return base_fail(d->report, DART_INTERNAL, "cuda: the group of ranks has ended");
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    TRY(stand_behind(d, g));
    TRY(call_all(d, g, parts, owners, count));
    TRY(settle(d, g, owners == NULL ? "the sum over all ranks" : "the exchange of all ranks"));
    TRY(CU(d, cuEventRecord, g->done, g->queue));
    g->busy = true;
fail:
    if (status != DART_OK) end(g);
    cu_leave(d);
    return status;
}

dart_status cu_group_sum(void *device, void *group, const backend_binding *parts, uint32_t count) { return begin(device, group, parts, NULL, count); }

dart_status cu_group_share(void *device, void *group, const backend_binding *parts, const uint32_t *owners, uint32_t count)
{
    return begin(device, group, parts, owners, count);
}

/* A member that died leaves its call unfinished, with or without an error of the library's. */
static dart_status wait_until_done(cu_device *d, const cu_group *g)
{
    const uint64_t since = base_now_ns();
    for (;;) {
        const CUresult result = d->driver->cuEventQuery(g->done);
        int error = NCCL_SUCCESS;
        if (result != CUDA_ERROR_NOT_READY) return cu_check(d, result, "cuEventQuery");
        dart_status status = NCCL(d, &g->library, ncclCommGetAsyncError, g->comm, &error);
        if (status == DART_OK) status = check(d, &g->library, error, "ncclCommGetAsyncError");
        if (status == DART_OK) status = pause_until(d, g, since, "what all ranks do together");
        if (status != DART_OK) return status;
    }
}

dart_status cu_group_wait(void *device, void *group)
{
    cu_device *d = device;
    cu_group *g = group;
    if (!g->busy) return DART_OK;
    if (g->comm == NULL) return base_fail(d->report, DART_INTERNAL, "cuda: the group of ranks has ended");
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    status = wait_until_done(d, g);
    g->busy = false;
    if (status != DART_OK) end(g);
    cu_leave(d);
    return status;
}
