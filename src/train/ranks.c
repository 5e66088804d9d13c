/* Several processes that train one model: what they exchange. */
#include "trainer.h"

#include "base/checksum.h"

#include <stdlib.h>
#include <string.h>

/* ---- Joining ---- */

/* What all ranks must have in common, and what decides where sums are made. */
typedef struct introduction {
    uint64_t model; /* checksum of the configuration, the options that determine numbers */
    uint32_t count, offers; /* offers: the rank's device can be a member of a group */
    uint8_t device[16];     /* UUID */
    uint8_t key[BACKEND_GROUP_KEY]; /* of rank 0 */
} introduction;

static uint64_t model_of(const dart_trainer *trainer)
{
    const dart_trainer_options *o = &trainer->options;
    const dart_model_config *c = &trainer->config;
    const float reals[] = {o->beta1, o->beta2, o->eps, o->weight_decay, o->clip, c->eps, c->sma_eps};
    uint64_t words[24] = {c->layers, c->W, c->H, c->G, c->N, c->P, c->S, c->V, c->K, c->F, c->sma, c->transformer, c->independent_c,
                          trainer->weights_dtype, trainer->activations, trainer->sma, trainer->parameters_count, o->scale_steps};
    memcpy(&words[18], &trainer->scale, sizeof trainer->scale);
    uint64_t sum = base_checksum(0, words, sizeof words);
    sum = base_checksum(sum, reals, sizeof reals);
    for (uint32_t i = 0; i < trainer->parameters_count; i++)
        sum = base_mix(sum ^ (trainer->parameters[i].is.elements << 1 | trainer->parameters[i].decays));
    return sum;
}

static bool on_devices(const introduction *all, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (all[i].offers == 0) return false;
        for (uint32_t k = 0; k < i; k++)
            if (memcmp(all[i].device, all[k].device, sizeof all[i].device) == 0) return false;
    }
    return count > 1;
}

dart_status trainer_join(dart_trainer *trainer, const char *call)
{
    dart_device *device = trainer->device;
    const backend *b = device->backend;
    const dart_ranks *r = &trainer->ranks;
    dart_status status = DART_OK;
    if (r->count == 0) return DART_OK;
    introduction *all = device_calloc(device, r->count, sizeof *all);
    if (all == NULL) return DART_OUT_OF_MEMORY;
    introduction own = {.model = model_of(trainer), .count = r->count};
    memcpy(own.device, device->info.uuid, sizeof own.device);
    if (b->group_key != NULL && !r->host_sums) own.offers = b->group_key(device->handle, own.key) == DART_OK;
    status = r->gather(r->user, &own, sizeof own, all);
    if (status != DART_OK) FAIL(&device->report, status, "%s: the ranks could not exchange what they are", call);
    for (uint32_t i = 0; i < r->count; i++)
        if (all[i].count != r->count || all[i].model != own.model)
            FAIL(&device->report, DART_INVALID_ARGUMENT, "%s: rank %u has another model, other options or another number of ranks than rank %u", call,
                 i, r->rank);
    if (on_devices(all, r->count)) TRY(device_note(device, b->group_create(device->handle, all[0].key, r->rank, r->count, &trainer->group)));
fail:
    free(all);
    return status;
}

void trainer_leave(dart_trainer *trainer)
{
    if (trainer->group != NULL) trainer->device->backend->group_destroy(trainer->device->handle, trainer->group);
    trainer->group = NULL;
}

/* ---- Sums ---- */

dart_status trainer_gather(dart_trainer *trainer, const void *own, size_t bytes, void *all, const char *call)
{
    const dart_ranks *r = &trainer->ranks;
    if (r->count == 0) {
        memcpy(all, own, bytes);
        return DART_OK;
    }
    const dart_status status = r->gather(r->user, own, bytes, all);
    if (status == DART_OK) return DART_OK;
    trainer->broken = status;
    return base_fail(&trainer->report, status, "%s: rank %u and the others could not exchange data", call, r->rank);
}

static dart_status add_on_devices(dart_trainer *trainer, const char *call)
{
    dart_device *device = trainer->device;
    backend_binding *parts = device_calloc(device, trainer->segments_count, sizeof *parts);
    if (parts == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    for (uint32_t i = 0; i < trainer->segments_count; i++)
        parts[i] = (backend_binding){.memory = trainer->segments[i].grad->memory, .bytes = trainer->segments[i].elements * sizeof(float)};
    const dart_status status =
        device->backend->group_sum(device->handle, trainer->group, parts, trainer->segments_count, trainer->ranks.timeout_ns);
    free(parts);
    return trainer_take(trainer, device_note(device, status), call);
}

/* values of each rank one after another; the sum takes the place of the first. */
static void add_in_order(float *values, uint64_t elements, uint32_t ranks)
{
    for (uint32_t rank = 1; rank < ranks; rank++)
        for (uint64_t i = 0; i < elements; i++) values[i] += values[rank * elements + i];
}

static dart_status add_on_host(dart_trainer *trainer, const char *call)
{
    enum { PIECE = 1 << 20 }; /* elements at a time */
    dart_status status = DART_OK;
    float *own = device_calloc(trainer->device, PIECE, sizeof *own), *all = NULL;
    if (own != NULL) all = device_calloc(trainer->device, (size_t)PIECE * trainer->ranks.count, sizeof *all);
    if (all == NULL) TRY(trainer_take(trainer, DART_OUT_OF_MEMORY, call));
    for (uint32_t s = 0; s < trainer->segments_count; s++) {
        const trainer_segment *segment = &trainer->segments[s];
        for (uint64_t at = 0; at < segment->elements; at += PIECE) {
            const uint64_t elements = base_smaller(segment->elements - at, PIECE), bytes = elements * sizeof(float);
            TRY(trainer_take(trainer, dart_buffer_read(segment->grad, at * sizeof(float), own, bytes), call));
            TRY(trainer_gather(trainer, own, (size_t)bytes, all, call));
            add_in_order(all, elements, trainer->ranks.count);
            TRY(trainer_take(trainer, dart_buffer_write(segment->grad, at * sizeof(float), all, bytes), call));
        }
    }
fail:
    free(own);
    free(all);
    return status;
}

dart_status trainer_add_gradients(dart_trainer *trainer, const char *call)
{
    /* All are here: the limit of a sum's time is not for slower ranks, and one that has ended is noticed at once. */
    const uint8_t here = 1;
    if (trainer->ranks.count == 0) return DART_OK;
    uint8_t *all = device_calloc(trainer->device, trainer->ranks.count, sizeof *all);
    if (all == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    const dart_status met = trainer_gather(trainer, &here, sizeof here, all, call);
    free(all);
    if (met != DART_OK) return met;
    return trainer->group != NULL ? add_on_devices(trainer, call) : add_on_host(trainer, call);
}
