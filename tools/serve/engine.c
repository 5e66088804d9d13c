#include "serve/engine.h"
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A join interrupts the steps of all slots, by several milliseconds on a GPU whatever joins. Where all slots decode, prompts are gathered so that
 * joins take a ninth of the time, and none waits longer than this; where fewer do, less is lost and the wait is shorter. */
enum { JOIN_SHARE = 8 };
#define LONGEST_WAIT_NS UINT64_C(100000000)

struct engine {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    metrics *counts;
    engine_state state;
    bool quits, at_once;
    job *first, *last; /* the queue */
    uint32_t waiting, most; /* sequences in it */
    bool busy;              /* the batch has sequences */
    bool has_thread, has_batch;
    pthread_t thread;
    batch batch; /* the thread's alone */
};

engine *engine_create(uint32_t queue, metrics *counts)
{
    engine *e = calloc(1, sizeof *e);
    if (e == NULL) return NULL;
    e->counts = counts;
    e->most = queue;
    const bool locked = pthread_mutex_init(&e->lock, NULL) == 0;
    if (locked && pthread_cond_init(&e->changed, NULL) == 0) return e;
    if (locked) pthread_mutex_destroy(&e->lock);
    free(e);
    return NULL;
}

/* ---- The thread; these with the lock held ---- */

static bool has_failed(job *j)
{
    pthread_mutex_lock(&j->lock);
    const bool none = j->failure.status != 0;
    pthread_mutex_unlock(&j->lock);
    return none;
}

static void note_waiting(engine *e, uint32_t waiting)
{
    e->waiting = waiting;
    atomic_store(&e->counts->waiting, waiting);
}

/* Takes a job out; before: the one in front of it, or NULL. */
static void leave_queue(engine *e, job *before, job *j)
{
    if (before != NULL) before->next = j->next;
    else e->first = j->next;
    if (e->last == j) e->last = before;
    j->next = NULL;
    note_waiting(e, e->waiting - (j->count - j->admitted));
    job_release(j);
}

/* Whether prompts should join now. */
static bool is_time(const engine *e)
{
    const batch *b = &e->batch;
    const uint32_t group = b->options.slots / 4 > 0 ? b->options.slots / 4 : 1;
    const uint64_t wait = JOIN_SHARE * b->join_ns * b->running_count / b->options.slots;
    if (b->running_count == 0 || b->filling_count > 0 || e->waiting >= group) return true;
    return base_now_ns() - b->joined_at_ns >= (wait < LONGEST_WAIT_NS ? wait : LONGEST_WAIT_NS);
}

static void admit(engine *e)
{
    if (e->first == NULL || !is_time(e)) return;
    for (job *before = NULL, *j = e->first; j != NULL;) {
        job *next = j->next;
        const bool dropped = has_failed(j);
        while (!dropped && j->admitted < j->count && batch_room(&e->batch, &j->sequences[j->admitted])) {
            batch_add(&e->batch, &j->sequences[j->admitted++]);
            note_waiting(e, e->waiting - 1);
        }
        if (dropped || j->admitted == j->count) leave_queue(e, before, j);
        else before = j;
        if (e->batch.filling_count == e->batch.fill_size) return;
        j = next;
    }
}

static void fail_queue(engine *e, int status, const char *message)
{
    while (e->first != NULL) {
        job_fail(e->first, status, message);
        leave_queue(e, NULL, e->first);
    }
}

static void *run(void *user)
{
    engine *e = user;
    pthread_mutex_lock(&e->lock);
    for (;;) {
        batch *b = &e->batch;
        if (e->at_once) {
            batch_fail(b, 503, "the server is stopping");
            fail_queue(e, 503, "the server is stopping");
        }
        e->busy = b->filling_count + b->running_count > 0;
        if (!e->busy && e->first == NULL) {
            pthread_cond_broadcast(&e->changed);
            if (e->quits) break;
            pthread_cond_wait(&e->changed, &e->lock);
            continue;
        }
        admit(e);
        e->busy = true;
        pthread_mutex_unlock(&e->lock);
        batch_drop_cancelled(b);
        const bool well = batch_prefill(b) && batch_decode(b);
        pthread_mutex_lock(&e->lock);
        if (well) continue;
        e->state = ENGINE_LOST;
        batch_fail(b, 503, b->failure);
        fail_queue(e, 503, "the device is lost");
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- Calls ---- */

dart_status engine_start(engine *e, dart_model *model, dart_tokenizer *tokenizer, const batch_options *options, char *error, size_t error_size)
{
    const dart_status status = batch_create(model, tokenizer, options, e->counts, &e->batch);
    e->has_batch = true;
    snprintf(error, error_size, "%s", e->batch.failure[0] != '\0' ? e->batch.failure : dart_status_name(status));
    if (status != DART_OK) return status;
    e->has_thread = pthread_create(&e->thread, NULL, run, e) == 0;
    if (!e->has_thread) return DART_OUT_OF_MEMORY;
    pthread_mutex_lock(&e->lock);
    if (e->state == ENGINE_LOADING) e->state = ENGINE_READY;
    pthread_mutex_unlock(&e->lock);
    return DART_OK;
}

engine_state engine_state_of(engine *e)
{
    pthread_mutex_lock(&e->lock);
    const engine_state state = e->state;
    pthread_mutex_unlock(&e->lock);
    return state;
}

bool engine_submit(engine *e, job *j, api_error *error)
{
    static const char *const texts[] = {"the model is still being loaded", "", "the server is stopping", "the device is lost"};
    bool done = true;
    pthread_mutex_lock(&e->lock);
    if (e->state != ENGINE_READY) done = api_fail(error, 503, NULL, "%s", texts[e->state]);
    else if (e->waiting > 0 && j->count > e->most - (e->waiting < e->most ? e->waiting : e->most))
        done = api_fail(error, 429, NULL, "%u sequences are waiting, at most %u may; try again later", (unsigned)e->waiting, (unsigned)e->most);
    if (done) {
        job_keep(j);
        if (e->last != NULL) e->last->next = j;
        else e->first = j;
        e->last = j;
        note_waiting(e, e->waiting + j->count);
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    return done;
}

void engine_stop(engine *e, bool at_once)
{
    pthread_mutex_lock(&e->lock);
    if (e->state != ENGINE_LOST) e->state = ENGINE_STOPPING;
    e->at_once = e->at_once || at_once;
    pthread_cond_broadcast(&e->changed);
    while (e->has_thread && (e->busy || e->first != NULL)) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void engine_destroy(engine **engine_)
{
    engine *e = *engine_;
    if (e == NULL) return;
    engine_stop(e, true);
    pthread_mutex_lock(&e->lock);
    e->quits = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (e->has_thread) pthread_join(e->thread, NULL);
    if (e->has_batch) batch_destroy(&e->batch);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
    *engine_ = NULL;
}
