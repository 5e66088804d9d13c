/* Several processes that train one model: what they exchange. */
#include "trainer.h"

#include "base/checksum.h"
#include "runtime/stream.h"

#include <stdlib.h>
#include <string.h>

/* ---- What the ranks tell each other ---- */

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
    words[17] = words[17] << 1 | trainer_is_sharded(trainer);
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

/* ---- Buckets ---- */

/* In the backward pass's order from the last to 0. */
static uint32_t stage_of(const dart_trainer *trainer, uint32_t index)
{
    const model_parameter *p = &trainer->parameters[index].is;
    if (p->role == MODEL_EMBEDDING) return 0;
    return p->role == MODEL_FINAL_NORM || p->role == MODEL_HEAD ? trainer->config.layers + 1 : p->layer + 1;
}

/* From the last parameter on, at borders of stages: 64 MiB, which take longer than it takes to begin a sum, and no more than a quarter of all. Where
 * launches are timed, a recording has one part. */
static dart_status plan_buckets(dart_trainer *trainer)
{
    enum { MOST = 1 << 24, LEAST_COUNT = 4 };
    uint64_t all = 0, held = 0;
    if (trainer->ranks.count <= 1) return DART_OK;
    trainer->buckets = device_calloc(trainer->device, trainer->config.layers + (size_t)2, sizeof *trainer->buckets);
    if (trainer->buckets == NULL) return DART_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < trainer->parameters_count; i++) all += trainer->parameters[i].is.elements;
    const uint64_t most = trainer->device->profile != NULL ? UINT64_MAX : base_smaller(MOST, all / LEAST_COUNT);
    uint32_t end = trainer->parameters_count;
    for (uint32_t i = end; i-- > 0;) {
        held += trainer->parameters[i].is.elements;
        if (i > 0 && (held < most || stage_of(trainer, i - 1) == stage_of(trainer, i))) continue;
        trainer->buckets[trainer->buckets_count++] = (trainer_bucket){.first = i, .end = end};
        end = i;
        held = 0;
    }
    return DART_OK;
}

void trainer_end_stage(const dart_trainer *trainer, dart_stream *stream, uint32_t stage)
{
    for (uint32_t i = 0; i < trainer->buckets_count; i++) {
        trainer_bucket *bucket = &trainer->buckets[i];
        if (stage_of(trainer, bucket->first) != stage) continue;
        bucket->part = stage > 0 ? stream_end_part(stream) : stream->parts.count - 1;
    }
}

/* ---- Joining ---- */

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
    TRY(plan_buckets(trainer));
    if (on_devices(all, r->count))
        TRY(device_note(device, b->group_create(device->handle, all[0].key, r->rank, r->count, r->timeout_ns, &trainer->group)));
fail:
    free(all);
    return status;
}

void trainer_leave(dart_trainer *trainer)
{
    if (trainer->group != NULL) trainer->device->backend->group_destroy(trainer->device->handle, trainer->group);
    trainer->group = NULL;
    free(trainer->buckets);
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

/* Elements of a segment. */
typedef struct range {
    uint32_t segment;
    uint64_t at, elements;
} range;

/* Parameters that follow one another lie so in their segments. ranges has room for one a segment; returns how many there are. */
static uint32_t ranges_of(const dart_trainer *trainer, const trainer_bucket *bucket, range *ranges)
{
    uint32_t count = 0;
    for (uint32_t i = bucket->first; i < bucket->end; i++) {
        const trainer_parameter *p = &trainer->parameters[i];
        uint32_t k = 0;
        while (k < count && ranges[k].segment != p->segment) k++;
        if (k == count) ranges[count++] = (range){.segment = p->segment, .at = p->at};
        ranges[k].elements = p->at + p->is.elements - ranges[k].at;
    }
    return count;
}

static dart_status add_on_devices(dart_trainer *trainer, const range *ranges, uint32_t count, const char *call)
{
    dart_device *device = trainer->device;
    backend_binding *parts = device_calloc(device, count, sizeof *parts);
    if (parts == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    for (uint32_t i = 0; i < count; i++)
        parts[i] = (backend_binding){.memory = trainer->segments[ranges[i].segment].grad->memory,
                                     .offset = trainer->segments[ranges[i].segment].grad->margin + ranges[i].at * sizeof(float),
                                     .bytes = ranges[i].elements * sizeof(float)};
    const dart_status status = device->backend->group_sum(device->handle, trainer->group, parts, count);
    free(parts);
    return trainer_take(trainer, device_note(device, status), call);
}

/* values of each rank one after another; the sum takes the place of the first. */
static void add_in_order(float *values, uint64_t elements, uint32_t ranks)
{
    for (uint32_t rank = 1; rank < ranks; rank++)
        for (uint64_t i = 0; i < elements; i++) values[i] += values[rank * elements + i];
}

static dart_status add_on_host(dart_trainer *trainer, const range *ranges, uint32_t count, const char *call)
{
    enum { PIECE = 1 << 20 }; /* elements at a time */
    dart_status status = DART_OK;
    float *own = device_calloc(trainer->device, PIECE, sizeof *own), *all = NULL;
    if (own != NULL) all = device_calloc(trainer->device, (size_t)PIECE * trainer->ranks.count, sizeof *all);
    if (all == NULL) TRY(trainer_take(trainer, DART_OUT_OF_MEMORY, call));
    for (uint32_t i = 0; i < count; i++) {
        dart_buffer *grad = trainer->segments[ranges[i].segment].grad;
        const uint64_t end = ranges[i].at + ranges[i].elements;
        for (uint64_t at = ranges[i].at; at < end; at += PIECE) {
            const uint64_t elements = base_smaller(end - at, PIECE), bytes = elements * sizeof(float);
            TRY(trainer_take(trainer, dart_buffer_read(grad, at * sizeof(float), own, bytes), call));
            TRY(trainer_gather(trainer, own, (size_t)bytes, all, call));
            add_in_order(all, elements, trainer->ranks.count);
            TRY(trainer_take(trainer, dart_buffer_write(grad, at * sizeof(float), all, bytes), call));
        }
    }
fail:
    free(own);
    free(all);
    return status;
}

dart_status trainer_add(dart_trainer *trainer, uint32_t parts, const char *call)
{
    dart_status status = DART_OK;
    if (!trainer->adding || trainer->added == trainer->buckets_count) return DART_OK;
    range *ranges = device_calloc(trainer->device, trainer->segments_count, sizeof *ranges);
    if (ranges == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    while (trainer->added < trainer->buckets_count && trainer->buckets[trainer->added].part < parts) {
        const uint32_t count = ranges_of(trainer, &trainer->buckets[trainer->added++], ranges);
        TRY(trainer->group != NULL ? add_on_devices(trainer, ranges, count, call) : add_on_host(trainer, ranges, count, call));
    }
fail:
    free(ranges);
    return status;
}

/* Until all ranks are here: the limit of the device's waits is not for slower ranks, and one that has ended is noticed at once. */
static dart_status meet(dart_trainer *trainer, const char *call)
{
    const uint8_t here = 1;
    uint8_t *all = device_calloc(trainer->device, trainer->ranks.count, sizeof *all);
    if (all == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    const dart_status status = trainer_gather(trainer, &here, sizeof here, all, call);
    free(all);
    return status;
}

dart_status trainer_end_sums(dart_trainer *trainer, const char *call)
{
    dart_device *device = trainer->device;
    dart_status status = DART_OK;
    if (!trainer->adding) return DART_OK;
    TRY(trainer_add(trainer, UINT32_MAX, call));
    trainer->adding = false;
    if (trainer->group == NULL) return DART_OK;
    TRY(meet(trainer, call));
    TRY(trainer_take(trainer, device_note(device, device->backend->group_wait(device->handle, trainer->group)), call));
fail:
    return status;
}

/* ---- Shares ---- */

/* Elements of rank `rank`, from rank x share on. */
static uint64_t count_of(const trainer_segment *s, uint32_t rank)
{
    return rank * s->share < s->elements ? base_smaller(s->share, s->elements - rank * s->share) : 0;
}

/* Elements of `size` bytes: those of this rank, which lie in `from` from element `at` on, to all ranks, whose go to their places in `to`, or in
 * `buffer`, where those of this rank lie already. */
static dart_status gather_shares(dart_trainer *trainer, const trainer_segment *s, uint64_t size, const dart_buffer *from, uint64_t at, void *to,
                                 dart_buffer *buffer, const char *call)
{
    enum { PIECE = 1 << 20 }; /* elements at a time */
    const uint32_t ranks = trainer->ranks.count;
    const uint64_t most = base_smaller(s->share, PIECE);
    dart_status status = DART_OK;
    char *own = device_calloc(trainer->device, (size_t)most, (size_t)size), *all = NULL;
    if (own != NULL) all = device_calloc(trainer->device, (size_t)(most * ranks), (size_t)size);
    if (all == NULL) TRY(trainer_take(trainer, DART_OUT_OF_MEMORY, call));
    for (uint64_t piece = 0; piece < s->share; piece += most) {
        const uint64_t elements = base_smaller(most, s->share - piece);
        if (piece < s->own)
            TRY(trainer_take(trainer, dart_buffer_read(from, (at + piece) * size, own, base_smaller(elements, s->own - piece) * size), call));
        TRY(trainer_gather(trainer, own, (size_t)(elements * size), all, call));
        for (uint32_t k = 0; k < ranks; k++) {
            const uint64_t count = count_of(s, k), place = (k * s->share + piece) * size;
            if (piece >= count) continue;
            const uint64_t bytes = base_smaller(elements, count - piece) * size;
            const char *theirs = all + k * elements * size;
            if (to != NULL) memcpy((char *)to + place, theirs, (size_t)bytes);
            else if (k != trainer->ranks.rank) TRY(trainer_take(trainer, dart_buffer_write(buffer, place, theirs, bytes), call));
        }
    }
fail:
    free(own);
    free(all);
    return status;
}

dart_status trainer_gather_moment(dart_trainer *trainer, dart_train_values values, const trainer_segment *segment, float *to, const char *call)
{
    return gather_shares(trainer, segment, sizeof(float), values == DART_TRAIN_MEAN ? segment->m : segment->v, 0, to, NULL, call);
}

/* Masters and copies of a segment, of every rank that has some. Returns how many there are. */
static uint32_t list_shares(const dart_trainer *trainer, const trainer_segment *s, backend_binding *parts, uint32_t *owners)
{
    const uint64_t size = dart_dtype_size(trainer->weights_dtype);
    uint32_t count = 0;
    for (uint32_t k = 0; k < trainer->ranks.count && count_of(s, k) > 0; k++) {
        const uint64_t at = k * s->share, elements = count_of(s, k);
        owners[count] = k;
        parts[count++] = (backend_binding){.memory = s->w->memory, .offset = s->w->margin + at * sizeof(float), .bytes = elements * sizeof(float)};
        if (!s->copied) continue;
        owners[count] = k;
        parts[count++] = (backend_binding){.memory = s->copy->memory, .offset = s->copy->margin + at * size, .bytes = elements * size};
    }
    return count;
}

dart_status trainer_share(dart_trainer *trainer, const char *call)
{
    dart_device *device = trainer->device;
    dart_status status = DART_OK;
    uint32_t count = 0;
    if (!trainer_is_sharded(trainer) || trainer->group == NULL) return DART_OK;
    const size_t room = (size_t)trainer->segments_count * trainer->ranks.count * 2;
    backend_binding *parts = device_calloc(device, room, sizeof *parts);
    uint32_t *owners = device_calloc(device, room, sizeof *owners);
    if (parts == NULL || owners == NULL) status = DART_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < trainer->segments_count && status == DART_OK; i++)
        count += list_shares(trainer, &trainer->segments[i], parts + count, owners + count);
    if (status == DART_OK) status = device_note(device, device->backend->group_share(device->handle, trainer->group, parts, owners, count));
    free(parts);
    free(owners);
    return trainer_take(trainer, status, call);
}

dart_status trainer_end_share(dart_trainer *trainer, const char *call)
{
    dart_device *device = trainer->device;
    dart_status status = DART_OK;
    if (!trainer_is_sharded(trainer)) return DART_OK;
    if (trainer->group != NULL) return trainer_take(trainer, device_note(device, device->backend->group_wait(device->handle, trainer->group)), call);
    for (uint32_t i = 0; i < trainer->segments_count; i++) {
        const trainer_segment *s = &trainer->segments[i];
        TRY(gather_shares(trainer, s, sizeof(float), s->w, s->first, NULL, s->w, call));
        if (s->copied) TRY(gather_shares(trainer, s, dart_dtype_size(trainer->weights_dtype), s->copy, s->first, NULL, s->copy, call));
    }
fail:
    return status;
}
