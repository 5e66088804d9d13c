/* The steps of a trainer: passes over the micro-batches of a batch, the norm of the gradients, the update. */
#include "trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static dart_status put(dart_trainer *trainer, trainer_shared shared, uint64_t at, const void *data, uint64_t elements, const char *call)
{
    return trainer_take(trainer, dart_buffer_write(trainer->shared[shared], at * 4, data, elements * 4), call);
}

/* from: TRAINER_SUMS or TRAINER_RESULT. */
static dart_status get(dart_trainer *trainer, trainer_shared from, trainer_sum sum, void *data, uint64_t elements, const char *call)
{
    return trainer_take(trainer, dart_buffer_read(trainer->shared[from], (uint64_t)sum * TRAINER_SUM * 4, data, elements * 4), call);
}

/* Makes recordings anew where they are of other rows than the batch has. */
static dart_status use_rows(dart_trainer *trainer, trainer_rows rows, const char *call)
{
    if (trainer_same_rows(&rows, &trainer->rows)) return DART_OK;
    const dart_status status = trainer_wait_for(trainer, TRAINER_PASSES, call);
    trainer->rows = rows;
    trainer->recorded[TRAINER_PASSES] = trainer->recorded[TRAINER_EVALUATE] = false;
    return status;
}

/* The targets of all ranks' batches: how many there are, and rows that suit them. */
static dart_status share_labels(dart_trainer *trainer, trainer_batch *batch, uint64_t *labels, const char *call)
{
    typedef struct share { uint64_t labels; trainer_spread spread; uint32_t rest; } share;
    const share own = {.labels = batch->labels, .spread = batch->spread};
    trainer_spread spread = batch->spread;
    share *all = device_calloc(trainer->device, trainer_ranks(trainer), sizeof *all);
    if (all == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    dart_status status = trainer_gather(trainer, &own, sizeof own, all, call);
    *labels = 0;
    for (uint32_t i = 0; i < trainer_ranks(trainer) && status == DART_OK; i++) {
        *labels += all[i].labels;
        if (all[i].spread.part > spread.part) spread.part = all[i].spread.part;
        if (all[i].spread.chunk > spread.chunk) spread.chunk = all[i].spread.chunk;
        if (all[i].spread.first < spread.first) spread.first = all[i].spread.first;
    }
    free(all);
    return status == DART_OK ? trainer_share_rows(trainer, batch, &spread, call) : status;
}

/* Writes a part beside the passes that are under way, where that can be. */
static dart_status put_ahead(dart_trainer *trainer, trainer_batch *batch, uint32_t part, const char *call)
{
    dart_status status;
    const uint64_t elements = trainer_part_at(trainer, TRAINER_PART_END);
    if (trainer->shared[TRAINER_AHEAD] == NULL) return DART_OK;
    TRY(trainer_wait_for(trainer, TRAINER_TAKE, call)); /* of what was there before: the device does that first */
    TRY(trainer_wait_for(trainer, TRAINER_BEGIN, call));
    trainer->next.ahead = trainer->aside.ahead = 0; /* that of another batch is written over */
    TRY(put(trainer, TRAINER_AHEAD, 0, batch->parts + part * elements, elements, call));
    batch->ahead = 1 + part;
fail:
    return status;
}

/* Submits what makes a part the one that the passes read; with the first one, gradients and sums become 0. share: TRAINER_SHARE. */
static dart_status bring(dart_trainer *trainer, trainer_batch *batch, uint32_t part, const float share[2], const char *call)
{
    dart_status status = DART_OK;
    const uint64_t elements = trainer_part_at(trainer, TRAINER_PART_END), share_at = trainer_part_at(trainer, TRAINER_SHARE);
    int32_t *data = batch->parts + part * elements;
    memcpy(data + share_at, share, 2 * sizeof *share);
    if (trainer->shared[TRAINER_AHEAD] == NULL) {
        TRY(trainer_wait(trainer, call));
        TRY(put(trainer, TRAINER_PART, 0, data, elements, call));
        if (part > 0) return DART_OK;
    } else if (batch->ahead == 1 + part) TRY(put(trainer, TRAINER_AHEAD, share_at, share, 2, call)); /* was not known when the part was written */
    else TRY(put_ahead(trainer, batch, part, call));
    batch->ahead = 0;
    TRY(trainer_submit(trainer, part == 0 ? TRAINER_BEGIN : TRAINER_TAKE, false, call));
fail:
    return status;
}

/* The passes of all rows with S = scale, one micro-batch after another; the last ones are still under way. labels: targets that the loss is the
 * mean over. */
static dart_status run_passes(dart_trainer *trainer, trainer_recording passes, trainer_batch *batch, uint64_t labels, double scale,
                              const char *call)
{
    dart_status status;
    const float share[2] = {(float)(scale / (double)labels), (float)(1 / scale)};
    TRY(use_rows(trainer, batch->rows, call));
    if (passes == TRAINER_PASSES) trainer->scaled = scale;
    trainer->of = (uint64_t)batch->count * trainer->T;
    for (uint32_t i = 0; i < batch->count; i++) {
        const uint64_t first = (uint64_t)i * trainer->T;
        if (!trainer_is_settled(trainer, passes)) TRY(trainer_wait_for(trainer, passes, call));
        TRY(bring(trainer, batch, i, share, call));
        trainer->done = first;
        trainer->adding = passes == TRAINER_PASSES && trainer->buckets_count > 0 && i + 1 == batch->count;
        trainer->added = 0;
        TRY(trainer_submit(trainer, passes, true, call));
    }
fail:
    return status;
}

/* A call that go_on ends waits for what is under way, and leaves the trainer as it was but for the gradients. */
static dart_status after(dart_trainer *trainer, dart_status status, const char *call)
{
    const dart_status waited = status == DART_CANCELLED ? trainer_wait(trainer, call) : DART_OK;
    trainer->adding = false;
    return waited != DART_OK ? waited : status;
}

/* Behind the passes: the gradients of all ranks. */
static dart_status add_gradients(dart_trainer *trainer, const char *call)
{
    dart_status status = DART_OK;
    if (!trainer->adding) return DART_OK;
    TRY(trainer_wait(trainer, call));
    TRY(trainer_end_sums(trainer, call));
fail:
    return status;
}

/* The sums of all ranks, in their order. */
static dart_status add_results(dart_trainer *trainer, float *loss, uint64_t *correct, const char *call)
{
    typedef struct sums { double loss; uint64_t correct; } sums;
    const sums own = {(double)*loss, *correct};
    sums *all = device_calloc(trainer->device, trainer_ranks(trainer), sizeof *all);
    if (all == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    const dart_status status = trainer_gather(trainer, &own, sizeof own, all, call);
    *loss = 0;
    *correct = 0;
    for (uint32_t i = 0; i < trainer_ranks(trainer); i++) {
        *loss += (float)all[i].loss;
        *correct += all[i].correct;
    }
    free(all);
    return status;
}

/* The loss on the device is S times the loss, to the bit: a power of two changes no rounding. norm: of gradients, hence of all ranks. */
static dart_status read_result(dart_trainer *trainer, trainer_shared from, uint64_t labels, bool norm, double by, dart_train_result *result,
                               const char *call)
{
    dart_status status;
    float loss, scale[4] = {0, 1, 1, 0};
    int32_t count;
    TRY(get(trainer, from, TRAINER_LOSS, &loss, 1, call));
    TRY(get(trainer, from, TRAINER_CORRECT, &count, 1, call));
    uint64_t correct = (uint64_t)count;
    if (norm) TRY(get(trainer, from, TRAINER_SCALE, scale, 4, call));
    if (norm) TRY(add_results(trainer, &loss, &correct, call));
    *result = (dart_train_result){.loss = (double)loss / by, .labels = labels, .correct = correct, .norm = (double)scale[0],
                                  .skipped = scale[2] == 0, .scale = by};
fail:
    return status;
}

/* A batch between the steps, its results in *result. */
static dart_status run_aside(dart_trainer *trainer, trainer_recording passes, const dart_train_batch *batch, dart_train_result *result,
                             const char *call)
{
    dart_status status;
    const bool gradient = passes == TRAINER_PASSES;
    REQUIRE(&trainer->report, result != NULL, "%s: no place for the result", call);
    TRY(trainer_idle(trainer, call));
    TRY(trainer_prepare(trainer, &trainer->aside, batch, gradient, call));
    uint64_t labels = trainer->aside.labels;
    if (gradient) TRY(share_labels(trainer, &trainer->aside, &labels, call));
    double scale = gradient ? 2 * trainer->scale : 2;
    do {
        scale /= 2;
        TRY(run_passes(trainer, passes, &trainer->aside, labels, scale, call));
        if (gradient) TRY(add_gradients(trainer, call));
        if (gradient) TRY(trainer_submit(trainer, TRAINER_NORM, false, call));
        TRY(trainer_wait(trainer, call));
        TRY(read_result(trainer, TRAINER_SUMS, labels, gradient, scale, result, call));
    } while (result->skipped && scale > 1 && isfinite(result->loss));
fail:
    return after(trainer, status, call);
}

dart_status dart_trainer_gradient(dart_trainer *trainer, const dart_train_batch *batch, dart_train_result *result)
{
    return trainer != NULL ? run_aside(trainer, TRAINER_PASSES, batch, result, "dart_trainer_gradient") : DART_INVALID_ARGUMENT;
}

dart_status dart_trainer_evaluate(dart_trainer *trainer, const dart_train_batch *batch, dart_train_result *result)
{
    return trainer != NULL ? run_aside(trainer, TRAINER_EVALUATE, batch, result, "dart_trainer_evaluate") : DART_INVALID_ARGUMENT;
}

/* ---- Steps ----
 * Passes of a second step may be submitted before the first step is done; its update follows when the first is known to be skipped or not. */

/* The S of the next step. Source: Micikevicius et al. 2018. */
static void adapt(dart_trainer *trainer, bool skipped)
{
    if (!trainer->scales) return;
    trainer->good = skipped ? 0 : trainer->good + 1;
    if (skipped && trainer->scale > 1) trainer->scale /= 2;
    if (trainer->good < trainer->options.scale_steps) return;
    trainer->good = 0;
    if (trainer->scale < TRAINER_LARGEST_SCALE) trainer->scale *= 2;
}

/* The settings of a step's update. All steps before it are done. */
static dart_status put_settings(dart_trainer *trainer, const trainer_step *step, const char *call)
{
    const dart_trainer_options *o = &trainer->options;
    const double n = (double)(trainer->steps + 1);
    const float hyper[8] = {(float)step->lr, o->beta1, o->beta2, o->eps, (float)-expm1(n * log((double)o->beta1)),
                            (float)-expm1(n * log((double)o->beta2)), o->weight_decay, 0};
    return put(trainer, TRAINER_HYPER, 0, hyper, COUNT_OF(hyper), call);
}

static dart_status update(dart_trainer *trainer, trainer_step *step, const char *call)
{
    dart_status status;
    TRY(trainer_submit(trainer, TRAINER_UPDATE, false, call));
    TRY(trainer_share(trainer, call));
    step->updates = true;
fail:
    return status;
}

/* Waits for the oldest step, which updates. */
static dart_status complete(dart_trainer *trainer, const char *call)
{
    dart_status status = DART_OK;
    trainer_step *step = &trainer->begun[0];
    if (step->done) return DART_OK;
    TRY(trainer->begun_count > 1 ? trainer_wait_for(trainer, TRAINER_UPDATE, call) : trainer_wait(trainer, call));
    TRY(trainer_end_share(trainer, call));
    TRY(read_result(trainer, TRAINER_RESULT, step->labels, true, step->scale, &step->result, call));
    adapt(trainer, step->result.skipped);
    if (!step->result.skipped) trainer->steps++;
    step->done = true;
fail:
    return status;
}

/* Whether passes may be submitted while the step before is under way: they depend on its result in no way, no recording is to be cut anew, and all
 * parts of the update can be submitted without a wait for these passes. */
static bool can_overlap(const dart_trainer *trainer)
{
    static const trainer_recording all[] = {TRAINER_BEGIN, TRAINER_PASSES, TRAINER_UPDATE};
    const dart_stream *last = trainer->streams[TRAINER_UPDATE];
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (!trainer_is_settled(trainer, all[i])) return false;
    return trainer->shared[TRAINER_AHEAD] != NULL && !trainer->scales && trainer_ranks(trainer) == 1 &&
           last != NULL && last->parts.count <= TRAINER_IN_FLIGHT;
}

static dart_status start(dart_trainer *trainer, double lr, const char *call)
{
    dart_status status = trainer->broken;
    trainer_step step = {.lr = lr};
    if (status != DART_OK) return status;
    REQUIRE(&trainer->report, lr >= 0 && lr < 1e6, "%s: lr %g", call, lr);
    REQUIRE(&trainer->report, trainer->begun_count < TRAINER_STEPS, "%s: %d steps are under way, dart_trainer_finish comes first", call,
            TRAINER_STEPS);
    REQUIRE(&trainer->report, trainer->next.count > 0, "%s: no batch is prepared", call);
    if (trainer->begun_count > 0 && !can_overlap(trainer)) TRY(complete(trainer, call));
    step.scale = trainer->scale;
    TRY(share_labels(trainer, &trainer->next, &step.labels, call));
    const bool alone = trainer->begun_count == 0 || trainer->begun[0].done;
    if (alone) TRY(put_settings(trainer, &step, call)); /* where the host cannot write beside the passes, before them */
    TRY(run_passes(trainer, TRAINER_PASSES, &trainer->next, step.labels, step.scale, call));
    TRY(add_gradients(trainer, call));
    if (alone) TRY(update(trainer, &step, call));
    trainer->begun[trainer->begun_count++] = step;
    trainer->next.count = 0;
fail:
    return after(trainer, status, call);
}

static dart_status finish(dart_trainer *trainer, dart_train_result *result, const char *call)
{
    dart_status status = trainer->broken;
    trainer_step *begun = trainer->begun;
    if (status != DART_OK) return status;
    REQUIRE(&trainer->report, trainer->begun_count > 0, "%s: no step is under way", call);
    TRY(complete(trainer, call));
    if (result != NULL) *result = begun[0].result;
    trainer->begun_count--;
    begun[0] = begun[1];
    if (trainer->begun_count == 0 || begun[0].updates) return DART_OK;
    TRY(put_settings(trainer, &begun[0], call));
    TRY(update(trainer, &begun[0], call));
fail:
    return status;
}

dart_status dart_trainer_prepare(dart_trainer *trainer, const dart_train_batch *batch)
{
    static const char call[] = "dart_trainer_prepare";
    dart_status status;
    if (trainer == NULL) return DART_INVALID_ARGUMENT;
    TRY(trainer_prepare(trainer, &trainer->next, batch, true, call));
    if (trainer->begun_count == 1) TRY(put_ahead(trainer, &trainer->next, 0, call)); /* of two, the second's batch is there until the first is done */
fail:
    return status;
}

dart_status dart_trainer_start(dart_trainer *trainer, double lr)
{
    return trainer != NULL ? start(trainer, lr, "dart_trainer_start") : DART_INVALID_ARGUMENT;
}

dart_status dart_trainer_finish(dart_trainer *trainer, dart_train_result *result)
{
    return trainer != NULL ? finish(trainer, result, "dart_trainer_finish") : DART_INVALID_ARGUMENT;
}

dart_status dart_trainer_step(dart_trainer *trainer, const dart_train_batch *batch, double lr, dart_train_result *result)
{
    static const char call[] = "dart_trainer_step";
    dart_status status;
    if (trainer == NULL) return DART_INVALID_ARGUMENT;
    TRY(trainer_idle(trainer, call));
    TRY(trainer_prepare(trainer, &trainer->next, batch, true, call));
    TRY(start(trainer, lr, call));
    TRY(finish(trainer, result, call));
fail:
    if (trainer->begun_count == 0) trainer->next.count = 0;
    return status;
}
