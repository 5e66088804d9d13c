/* Threads that work through the launches of one run at a time.
 *
 * The launches of a run fall into segments, one from each barrier to the next. Every thread walks the segments in
 * order: it takes tiles off the launches of a segment, and when none is left waits until the last of them is done.
 * A thread that comes late finds nothing to do and catches up, so that nobody waits for a thread that sleeps. */
#include "cpu.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(DARTLM_AVX2)
#include <immintrin.h>
#define cpu_pause() _mm_pause()
#else
#define cpu_pause() ((void)0)
#endif

/* A wait of about 20 us on current processors before the first system call: launches of a decoding step follow one
 * another faster than a sleeping thread wakes up. */
#define SPINS 512
#define YIELDS 16

struct cpu_progress {
    atomic_ullong next; /* first tile that nobody took */
    atomic_ullong left; /* on the first launch of a segment: tiles of the segment that are not done */
};

typedef struct worker {
    struct cpu_pool *pool;
    base_thread thread;
    float *scratch;
    bool started;
} worker;

struct cpu_pool {
    base_mutex run_mutex; /* one run at a time */
    base_mutex mutex;     /* guards the fields down to `sleepers` */
    base_condition wake;  /* a run has come, or the pool ends */
    base_condition done;  /* a segment is done, or a worker has left the run */
    bool has_run_mutex, has_mutex, has_wake, has_done;
    bool ends;
    uint64_t run; /* number of the run, so that a worker joins each run once */
    bool open;    /* workers may join */
    uint32_t inside;
    const cpu_launch *launches;
    cpu_progress *progress;
    size_t count;
    atomic_uint sleepers; /* threads that wait on `done` for a segment */
    atomic_ullong run_seen; /* `run`, for workers that look before they sleep */
    uint32_t threads;
    worker *workers; /* [threads], the first one is the caller of cpu_pool_run */
};

size_t cpu_progress_bytes(size_t count) { return count * sizeof(cpu_progress); }

static void wait_for_segment(cpu_pool *pool, cpu_progress *first)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&first->left, memory_order_acquire) == 0) return;
        cpu_pause();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(&first->left, memory_order_acquire) == 0) return;
        base_thread_yield();
    }
    base_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&first->left) != 0) base_condition_wait(&pool->done, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    base_unlock(&pool->mutex);
}

static void walk(cpu_pool *pool, float *scratch, const cpu_launch *launches, cpu_progress *progress, size_t count)
{
    for (size_t begin = 0, end; begin < count; begin = end) {
        uint64_t finished = 0;
        for (end = begin; end < count && (end == begin || !launches[end].barrier); end++) {
            const cpu_launch *launch = &launches[end];
            /* A few tiles at a time, but enough rounds left to even out threads of different speed. */
            uint32_t grain = (launch->end - launch->first) / (16 * pool->threads);
            if (grain == 0) grain = 1;
            cpu_task task = {launch->args, launch->bindings, launch->T0, launch->T1, 0, scratch};
            while (atomic_load_explicit(&progress[end].next, memory_order_relaxed) < launch->end) {
                const uint64_t taken = atomic_fetch_add_explicit(&progress[end].next, grain, memory_order_relaxed);
                if (taken >= launch->end) break;
                const uint32_t first = (uint32_t)taken,
                               last = launch->end - first < grain ? launch->end : first + grain;
                for (uint32_t tile = first; tile < last; tile++) {
                    task.tile = launch->backwards ? launch->first + (launch->end - 1 - tile) : tile;
                    launch->kernel(&task);
                }
                finished += last - first;
            }
        }
        if (finished != 0 && atomic_fetch_sub(&progress[begin].left, finished) == finished) {
            if (atomic_load(&pool->sleepers) != 0) {
                base_lock(&pool->mutex);
                base_condition_broadcast(&pool->done);
                base_unlock(&pool->mutex);
            }
        } else {
            wait_for_segment(pool, &progress[begin]);
        }
    }
}

static void work(void *argument)
{
    worker *self = argument;
    cpu_pool *pool = self->pool;
    uint64_t seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS; i++) {
            if (atomic_load_explicit(&pool->run_seen, memory_order_relaxed) != seen) break;
            cpu_pause();
        }
        base_lock(&pool->mutex);
        while (!pool->ends && (!pool->open || pool->run == seen)) base_condition_wait(&pool->wake, &pool->mutex);
        if (pool->ends) {
            base_unlock(&pool->mutex);
            return;
        }
        seen = pool->run;
        pool->inside++;
        const cpu_launch *launches = pool->launches;
        cpu_progress *progress = pool->progress;
        size_t count = pool->count;
        base_unlock(&pool->mutex);

        walk(pool, self->scratch, launches, progress, count);

        base_lock(&pool->mutex);
        pool->inside--;
        if (!pool->open && pool->inside == 0) base_condition_broadcast(&pool->done);
        base_unlock(&pool->mutex);
    }
}

void cpu_pool_run(cpu_pool *pool, const cpu_launch *launches, cpu_progress *progress, size_t count)
{
    if (count == 0) return;
    base_lock(&pool->run_mutex);
    for (size_t begin = 0, end; begin < count; begin = end) {
        uint64_t tiles = 0;
        for (end = begin; end < count && (end == begin || !launches[end].barrier); end++) {
            atomic_init(&progress[end].next, launches[end].first);
            tiles += launches[end].end - launches[end].first;
        }
        atomic_init(&progress[begin].left, tiles);
    }
    if (pool->threads > 1) {
        base_lock(&pool->mutex);
        pool->launches = launches;
        pool->progress = progress;
        pool->count = count;
        pool->run++;
        pool->open = true;
        atomic_store_explicit(&pool->run_seen, pool->run, memory_order_relaxed);
        base_condition_broadcast(&pool->wake);
        base_unlock(&pool->mutex);
    }
    walk(pool, pool->workers[0].scratch, launches, progress, count);
    if (pool->threads > 1) {
        base_lock(&pool->mutex);
        pool->open = false;
        while (pool->inside != 0) base_condition_wait(&pool->done, &pool->mutex);
        base_unlock(&pool->mutex);
    }
    base_unlock(&pool->run_mutex);
}

dart_status cpu_pool_create(uint32_t threads, base_report *report, cpu_pool **out)
{
    dart_status status = DART_OK;
    cpu_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return base_fail(report, DART_OUT_OF_MEMORY, "no memory for the thread pool");
    atomic_init(&pool->sleepers, 0);
    atomic_init(&pool->run_seen, 0);
    pool->threads = threads;
    pool->workers = calloc(threads, sizeof *pool->workers);
    if (!pool->workers) FAIL(report, DART_OUT_OF_MEMORY, "no memory for %u threads", (unsigned)threads);
    TRY(base_mutex_init(&pool->run_mutex));
    pool->has_run_mutex = true;
    TRY(base_mutex_init(&pool->mutex));
    pool->has_mutex = true;
    TRY(base_condition_init(&pool->wake));
    pool->has_wake = true;
    TRY(base_condition_init(&pool->done));
    pool->has_done = true;
    for (uint32_t i = 0; i < threads; i++) {
        worker *w = &pool->workers[i];
        w->pool = pool;
        w->scratch = cpu_aligned_alloc(CPU_SCRATCH * sizeof(float));
        if (!w->scratch) FAIL(report, DART_OUT_OF_MEMORY, "no memory for the scratch of thread %u", (unsigned)i);
    }
    for (uint32_t i = 1; i < threads; i++) {
        TRY(base_thread_start(&pool->workers[i].thread, work, &pool->workers[i]));
        pool->workers[i].started = true;
    }
    *out = pool;
    return DART_OK;
fail:
    base_fail(report, status, "cannot start %u threads", (unsigned)threads);
    cpu_pool_destroy(pool);
    return status;
}

void cpu_pool_destroy(cpu_pool *pool)
{
    if (!pool) return;
    if (pool->has_mutex && pool->has_wake) {
        base_lock(&pool->mutex);
        pool->ends = true;
        base_condition_broadcast(&pool->wake);
        base_unlock(&pool->mutex);
    }
    if (pool->workers) {
        for (uint32_t i = 0; i < pool->threads; i++) {
            if (pool->workers[i].started) base_thread_join(&pool->workers[i].thread);
            cpu_aligned_free(pool->workers[i].scratch);
        }
    }
    free(pool->workers);
    if (pool->has_done) base_condition_destroy(&pool->done);
    if (pool->has_wake) base_condition_destroy(&pool->wake);
    if (pool->has_mutex) base_mutex_destroy(&pool->mutex);
    if (pool->has_run_mutex) base_mutex_destroy(&pool->run_mutex);
    free(pool);
}
