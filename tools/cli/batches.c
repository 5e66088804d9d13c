#include "batches.h"

#include "base/platform.h"

#include <stdlib.h>

/* Step s lies in place s % 2, so that one place is read while the other one is filled. */
struct batches {
    const training_task *task;
    int32_t *ids[2], *targets[2];
    base_thread thread;
    base_mutex mutex; /* guards all below */
    base_condition changed;
    uint32_t made, given, end; /* the next step to make, to give; behind the last one */
    bool ends;
    bool has_mutex, has_changed, has_thread;
};

static bool is_wanted(const batches *b) { return b->made == b->given && b->made < b->end; }

static void make(void *argument)
{
    batches *b = argument;
    base_lock(&b->mutex);
    while (!b->ends) {
        if (!is_wanted(b)) {
            base_condition_wait(&b->changed, &b->mutex);
            continue;
        }
        const uint32_t step = b->made;
        base_unlock(&b->mutex);
        b->task->fill(b->task->user, step, b->ids[step % 2], b->targets[step % 2]);
        base_lock(&b->mutex);
        b->made++;
        base_condition_broadcast(&b->changed);
    }
    base_unlock(&b->mutex);
}

int batches_open(const training_task *task, uint32_t first, uint32_t end, batches **made)
{
    const size_t tokens = (size_t)task->batch * task->L;
    batches *b = calloc(1, sizeof *b);
    *made = b;
    if (b == NULL) return cli_fail_memory();
    b->task = task;
    b->made = b->given = first;
    b->end = end;
    for (int i = 0; i < 2; i++) {
        b->ids[i] = malloc(tokens * sizeof **b->ids);
        b->targets[i] = malloc(tokens * sizeof **b->targets);
        if (b->ids[i] == NULL || b->targets[i] == NULL) return cli_fail_memory();
    }
    b->has_mutex = base_mutex_init(&b->mutex) == DART_OK;
    b->has_changed = base_condition_init(&b->changed) == DART_OK;
    b->has_thread = b->has_mutex && b->has_changed && base_thread_start(&b->thread, make, b) == DART_OK;
    return b->has_thread ? CLI_OK : cli_fail("a thread for batches could not be started");
}

void batches_next(batches *made, const int32_t **ids, const int32_t **targets)
{
    base_lock(&made->mutex);
    while (is_wanted(made)) base_condition_wait(&made->changed, &made->mutex);
    *ids = made->ids[made->given % 2];
    *targets = made->targets[made->given % 2];
    made->given++;
    base_condition_broadcast(&made->changed);
    base_unlock(&made->mutex);
}

void batches_rest(batches *made)
{
    base_lock(&made->mutex);
    while (is_wanted(made)) base_condition_wait(&made->changed, &made->mutex);
    base_unlock(&made->mutex);
}

void batches_close(batches **made)
{
    batches *b = *made;
    if (b == NULL) return;
    if (b->has_thread) {
        base_lock(&b->mutex);
        b->ends = true;
        base_condition_broadcast(&b->changed);
        base_unlock(&b->mutex);
        base_thread_join(&b->thread);
    }
    if (b->has_changed) base_condition_destroy(&b->changed);
    if (b->has_mutex) base_mutex_destroy(&b->mutex);
    for (int i = 0; i < 2; i++) {
        free(b->ids[i]);
        free(b->targets[i]);
    }
    free(b);
    *made = NULL;
}
