/* Batches on the host, made ready while the device may be at work. */
#include "trainer.h"

#include "base/base.h"
#include "dartlm/ops_backward.h"

#include <stdlib.h>
#include <string.h>

void trainer_batch_free(trainer_batch *batch)
{
    free(batch->parts);
    *batch = (trainer_batch){0};
}

static dart_status make_room(dart_trainer *trainer, trainer_batch *to, uint32_t count, const char *call)
{
    if (count <= to->room) return DART_OK;
    trainer_batch_free(to);
    to->parts = device_calloc(trainer->device, (size_t)count * trainer_part_at(trainer, TRAINER_PART_END), sizeof *to->parts);
    if (to->parts == NULL)
        return base_fail(&trainer->report, trainer_failure(trainer->device, DART_OUT_OF_MEMORY), "%s: no host memory for %llu tokens", call,
                         (unsigned long long)count * trainer->T);
    to->room = count;
    return DART_OK;
}

static dart_status check(dart_trainer *trainer, const dart_train_batch *batch, uint64_t tokens, uint64_t *labels, const char *call)
{
    const int64_t V = trainer->config.V;
    *labels = 0;
    for (uint64_t i = 0; i < tokens; i++) {
        REQUIRE(&trainer->report, batch->ids[i] >= 0 && batch->ids[i] < V, "%s: id %d of token %llu, allowed are 0 to %lld", call, batch->ids[i],
                (unsigned long long)i, (long long)V - 1);
        REQUIRE(&trainer->report, batch->targets[i] >= -1 && batch->targets[i] < V, "%s: target %d of token %llu, allowed are -1 to %lld", call,
                batch->targets[i], (unsigned long long)i, (long long)V - 1);
        *labels += batch->targets[i] >= 0;
    }
    REQUIRE(&trainer->report, *labels > 0 && *labels <= INT32_MAX, "%s: %llu targets", call, (unsigned long long)*labels);
    return DART_OK;
}

static dart_status check_sequences(dart_trainer *trainer, const int32_t *cu, uint32_t count, const char *call)
{
    const dart_trainer_options *o = &trainer->options;
    REQUIRE(&trainer->report, (cu != NULL) == (o->documents > 0), "%s: cu comes with the option documents, and only then", call);
    for (uint32_t i = 0; cu != NULL && i < count; i++) {
        const int32_t *own = cu + (size_t)i * (o->documents + (size_t)1);
        REQUIRE(&trainer->report, dart_cu_check(own, o->documents, o->L, trainer->T) == DART_OK && (uint32_t)own[o->documents] == trainer->T,
                "%s: cu of part %u must go from 0 to %u without falling, in steps of at most %u", call, i, trainer->T, o->L);
    }
    return DART_OK;
}

/* The tokens with a target in their order, and their targets. Returns how many there are. */
static uint32_t gather(const int32_t *targets, uint32_t T, int32_t *places, int32_t *chosen)
{
    uint32_t row = 0;
    for (uint32_t t = 0; t < T; t++) {
        if (targets[t] < 0) continue;
        places[row] = (int32_t)t;
        chosen[row++] = targets[t];
    }
    for (uint32_t rest = row; rest < T; rest++) places[rest] = chosen[rest] = -1;
    return row;
}

dart_status trainer_prepare(dart_trainer *trainer, trainer_batch *to, const dart_train_batch *batch, bool planned, const char *call)
{
    if (trainer->broken != DART_OK) return trainer->broken;
    REQUIRE(&trainer->report, batch != NULL && batch->ids != NULL && batch->targets != NULL, "%s: needs ids and targets", call);
    const uint32_t count = batch->count > 0 ? batch->count : 1;
    const uint64_t tokens = (uint64_t)count * trainer->T;
    dart_status status = make_room(trainer, to, count, call);
    to->count = 0;
    to->most = 0;
    to->ahead = 0;
    if (status == DART_OK) status = check(trainer, batch, tokens, &to->labels, call);
    if (status == DART_OK) status = check_sequences(trainer, batch->cu, count, call);
    if (status != DART_OK) return status;
    const uint64_t elements = trainer_part_at(trainer, TRAINER_PART_END), borders = trainer->options.documents + (uint64_t)1;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t first = (uint64_t)i * trainer->T;
        int32_t *part = to->parts + i * elements;
        memcpy(part + trainer_part_at(trainer, TRAINER_IDS), batch->ids + first, trainer->T * sizeof *part);
        if (batch->cu != NULL) memcpy(part + trainer_part_at(trainer, TRAINER_CU), batch->cu + i * borders, borders * sizeof *part);
        const uint32_t labels = gather(batch->targets + first, trainer->T, part + trainer_part_at(trainer, TRAINER_PLACES),
                                       part + trainer_part_at(trainer, TRAINER_TARGETS));
        if (labels > to->most) to->most = labels;
        if (!planned) continue;
        status = dart_embed_plan(batch->ids + first, trainer->T, trainer->config.V, part + trainer_part_at(trainer, TRAINER_PLAN));
        if (status != DART_OK) return base_fail(&trainer->report, status, "%s: no host memory to sort the ids", call);
    }
    to->count = count;
    return DART_OK;
}
