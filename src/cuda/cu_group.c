/* Sums over the devices of several processes, by NCCL. The library is opened when a group is made. */
#include "cu.h"

#include <stdlib.h>
#include <string.h>

/* Values of the library's interface, as in its version 2. */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_FLOAT32 = 7, NCCL_SUM = 0 };
typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId { char internal[BACKEND_GROUP_KEY]; } ncclUniqueId;

#define NCCL_FUNCTIONS(X) \
    X(ncclGetUniqueId, "ncclGetUniqueId", (ncclUniqueId *id)) \
    X(ncclCommInitRank, "ncclCommInitRank", (ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)) \
    X(ncclCommDestroy, "ncclCommDestroy", (ncclComm_t comm)) \
    X(ncclCommAbort, "ncclCommAbort", (ncclComm_t comm)) \
    X(ncclCommGetAsyncError, "ncclCommGetAsyncError", (ncclComm_t comm, int *error)) \
    X(ncclGroupStart, "ncclGroupStart", (void)) \
    X(ncclGroupEnd, "ncclGroupEnd", (void)) \
    X(ncclAllReduce, "ncclAllReduce", (const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, CUstream stream))

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
    CUevent done;
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
    if (result == NCCL_SUCCESS) return DART_OK;
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

dart_status cu_group_create(void *device, const uint8_t key[BACKEND_GROUP_KEY], uint32_t rank, uint32_t count, void **group)
{
    cu_device *d = device;
    ncclUniqueId id;
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    cu_group *made = calloc(1, sizeof *made);
    if (made == NULL) FAIL(d->report, DART_OUT_OF_MEMORY, "cuda: no host memory");
    memcpy(id.internal, key, sizeof id.internal);
    TRY(load(d, &made->library));
    TRY(CU(d, cuEventCreate, &made->done, CU_EVENT_DEFAULT));
    TRY(NCCL(d, &made->library, ncclCommInitRank, &made->comm, (int)count, id, (int)rank));
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
        if (g->comm != NULL) g->library.ncclCommDestroy(g->comm);
        if (g->done != NULL) d->driver->cuEventDestroy(g->done);
        cu_leave(d);
    }
    unload(&g->library);
    free(g);
}

static dart_status start(cu_device *d, const cu_group *g, const backend_binding *parts, uint32_t count)
{
    dart_status status = check(d, &g->library, g->library.ncclGroupStart(), "ncclGroupStart");
    for (uint32_t i = 0; i < count && status == DART_OK; i++) {
        void *const at = (void *)(uintptr_t)(((const cu_memory *)parts[i].memory)->address + parts[i].offset);
        status = NCCL(d, &g->library, ncclAllReduce, at, at, (size_t)(parts[i].bytes / sizeof(float)), NCCL_FLOAT32, NCCL_SUM, g->comm, d->queue);
    }
    const dart_status ended = check(d, &g->library, g->library.ncclGroupEnd(), "ncclGroupEnd");
    if (status == DART_OK) status = ended;
    return status == DART_OK ? CU(d, cuEventRecord, g->done, d->queue) : status;
}

/* A member that died leaves the sum unfinished, with or without an error of the library's. */
static dart_status finish(cu_device *d, const cu_group *g, uint64_t timeout_ns)
{
    const uint64_t begin = base_now_ns();
    for (;;) {
        const CUresult result = d->driver->cuEventQuery(g->done);
        int error = NCCL_SUCCESS;
        if (result != CUDA_ERROR_NOT_READY) return cu_check(d, result, "cuEventQuery");
        dart_status status = NCCL(d, &g->library, ncclCommGetAsyncError, g->comm, &error);
        if (status == DART_OK && error != NCCL_IN_PROGRESS) status = check(d, &g->library, error, "ncclAllReduce");
        if (status != DART_OK) return status;
        if (base_now_ns() - begin > timeout_ns)
            return base_fail(d->report, DART_TIMEOUT, "cuda: the sum over all ranks was not done in %.0f s: one of them is gone, or slow",
                             (double)timeout_ns / 1e9);
        base_pause_ns(50000);
    }
}

dart_status cu_group_sum(void *device, void *group, const backend_binding *parts, uint32_t count, uint64_t timeout_ns)
{
    cu_device *d = device;
    cu_group *g = group;
    if (g->comm == NULL) return base_fail(d->report, DART_INTERNAL, "cuda: the group of ranks has ended");
    dart_status status = cu_enter(d);
    if (status != DART_OK) return status;
    base_lock(&d->submitting);
    status = start(d, g, parts, count);
    base_unlock(&d->submitting);
    if (status == DART_OK) status = finish(d, g, timeout_ns);
    if (status != DART_OK) {
        g->library.ncclCommAbort(g->comm); /* also takes its kernels off the device */
        g->comm = NULL;
    }
    cu_leave(d);
    return status;
}
