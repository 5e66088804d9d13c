/* Parameters of a trainer: places in segments, masters, copies. */
#include "trainer.h"

#include "runtime/op.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNED_ELEMENTS 64u
#define SHARE_ELEMENTS 128u /* 256 bytes of a copy in 16 bits */
#define SEGMENT_ELEMENTS (UINT64_C(1) << 28)
#define PIECE ((size_t)1 << 20)

static bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), wanted = strlen(end);
    return length >= wanted && strcmp(name + length - wanted, end) == 0;
}

static bool decays(const dart_trainer_options *options, const model_parameter *parameter)
{
    static const char *const usual[] = {"in_proj.weight", "sma_proj.weight",  "out_proj.weight", "conv1d.weight", "lm_head.weight", "q_proj.weight",
                                        "k_proj.weight",  "v_proj.weight",    "o_proj.weight",   "gate_proj.weight", "up_proj.weight",
                                        "down_proj.weight"};
    const char *const *ends = options->decays != NULL ? options->decays : usual;
    const size_t count = options->decays != NULL ? options->decays_count : COUNT_OF(usual);
    for (size_t i = 0; i < count; i++)
        if (ends_with(parameter->name, ends[i])) return true;
    return false;
}

/* The open segment of such parameters, or a new one. */
static uint32_t segment_for(dart_trainer *trainer, const trainer_parameter *parameter, bool copied, uint64_t room)
{
    uint32_t found = trainer->segments_count;
    for (uint32_t i = 0; i < trainer->segments_count; i++)
        if (trainer->segments[i].decays == parameter->decays && trainer->segments[i].copied == copied) found = i;
    if (found == trainer->segments_count || trainer->segments[found].elements + parameter->is.elements > room) {
        found = trainer->segments_count++;
        trainer->segments[found] = (trainer_segment){.decays = parameter->decays, .copied = copied};
    }
    return found;
}

static dart_status allocate_segment(dart_trainer *trainer, trainer_segment *segment)
{
    const dart_ranks *r = &trainer->ranks;
    const bool sharded = trainer_is_sharded(trainer);
    segment->share = sharded ? base_round_up(base_ceil_div(segment->elements, r->count), SHARE_ELEMENTS) : segment->elements;
    segment->first = sharded ? base_smaller(r->rank * segment->share, segment->elements) : 0;
    segment->own = base_smaller(segment->share, segment->elements - segment->first);
    const uint64_t bytes = segment->elements * 4, own = (segment->own > 0 ? segment->own : ALIGNED_ELEMENTS) * 4;
    const struct { dart_buffer **buffer; uint64_t bytes; } all[] = {
        {&segment->w, bytes}, {&segment->m, own}, {&segment->v, own}, {&segment->grad, bytes}};
    dart_status status = DART_OK;
    for (size_t i = 0; i < COUNT_OF(all) && status == DART_OK; i++) status = dart_buffer_create(trainer->device, all[i].bytes, all[i].buffer);
    if (status == DART_OK && segment->copied)
        status = dart_buffer_create(trainer->device, segment->elements * dart_dtype_size(trainer->weights_dtype), &segment->copy);
    return status;
}

dart_status trainer_place(dart_trainer *trainer)
{
    const dart_model_config *c = &trainer->config;
    const uint64_t limit = base_smaller(trainer->device->info.max_binding_bytes / 4, SEGMENT_ELEMENTS);
    const size_t places = (size_t)c->layers * MODEL_ROLE_COUNT;
    model_parameter parameter;
    while (model_config_parameter(c, trainer->parameters_count, &parameter)) trainer->parameters_count++;
    trainer->parameters = device_calloc(trainer->device, trainer->parameters_count, sizeof *trainer->parameters);
    trainer->segments = device_calloc(trainer->device, trainer->parameters_count, sizeof *trainer->segments);
    trainer->weights = device_calloc(trainer->device, places, sizeof *trainer->weights);
    trainer->gradients = device_calloc(trainer->device, places, sizeof *trainer->gradients);
    if (trainer->parameters == NULL || trainer->segments == NULL || trainer->weights == NULL || trainer->gradients == NULL)
        return DART_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < trainer->parameters_count; i++) {
        trainer_parameter *p = &trainer->parameters[i];
        model_config_parameter(c, i, &p->is);
        p->decays = decays(&trainer->options, &p->is);
        if (p->is.elements > trainer->device->info.max_binding_bytes / 4)
            return base_fail(&trainer->device->report, DART_UNSUPPORTED, "%s has %llu bytes in f32, %s binds at most %llu", p->is.name,
                             (unsigned long long)p->is.elements * 4, trainer->device->info.name,
                             (unsigned long long)trainer->device->info.max_binding_bytes);
        p->segment = segment_for(trainer, p, trainer->weights_dtype != DART_F32 && model_role_is_matrix(p->is.role), limit);
        trainer_segment *segment = &trainer->segments[p->segment];
        p->at = segment->elements;
        segment->elements = base_round_up(p->at + p->is.elements, ALIGNED_ELEMENTS);
    }
    for (uint32_t i = 0; i < trainer->segments_count; i++) {
        const dart_status status = allocate_segment(trainer, &trainer->segments[i]);
        if (status != DART_OK) return status;
    }
    for (uint32_t i = 0; i < trainer->parameters_count; i++) {
        const trainer_parameter *p = &trainer->parameters[i];
        const trainer_segment *segment = &trainer->segments[p->segment];
        const size_t place = (size_t)p->is.layer * MODEL_ROLE_COUNT + p->is.role;
        trainer->weights[place] = (dart_tensor){.buffer = segment->copied ? segment->copy : segment->w, .offset = p->at,
                                                .dtype = segment->copied ? trainer->weights_dtype : DART_F32};
        trainer->gradients[place] = (dart_tensor){.buffer = segment->grad, .dtype = DART_F32, .offset = p->at};
    }
    return DART_OK;
}

void trainer_unplace(dart_trainer *trainer)
{
    for (uint32_t i = 0; trainer->segments != NULL && i < trainer->segments_count; i++) {
        trainer_segment *s = &trainer->segments[i];
        dart_buffer **const all[] = {&s->w, &s->m, &s->v, &s->grad, &s->copy};
        for (size_t k = 0; k < COUNT_OF(all); k++) dart_buffer_destroy(all[k]);
    }
    free(trainer->segments);
    free(trainer->parameters);
    free(trainer->weights);
    free(trainer->gradients);
}

const dart_tensor *trainer_weight(const dart_trainer *trainer, uint32_t layer, model_role role)
{
    return &trainer->weights[(size_t)layer * MODEL_ROLE_COUNT + role];
}

const dart_tensor *trainer_gradient(const dart_trainer *trainer, uint32_t layer, model_role role)
{
    return &trainer->gradients[(size_t)layer * MODEL_ROLE_COUNT + role];
}

dart_status trainer_write(dart_trainer *trainer, uint32_t index, const float *values)
{
    const trainer_parameter *p = &trainer->parameters[index];
    const trainer_segment *segment = &trainer->segments[p->segment];
    const size_t size = dart_dtype_size(trainer->weights_dtype);
    dart_status status = dart_buffer_write(segment->w, p->at * 4, values, p->is.elements * 4);
    if (status != DART_OK || !segment->copied) return status;
    void *stored = device_calloc(trainer->device, PIECE, size);
    if (stored == NULL) return DART_OUT_OF_MEMORY;
    for (uint64_t first = 0; first < p->is.elements && status == DART_OK; first += PIECE) {
        const size_t count = (size_t)base_smaller(PIECE, p->is.elements - first);
        dart_from_f32(trainer->weights_dtype, stored, values + first, count);
        status = dart_buffer_write(segment->copy, (p->at + first) * size, stored, count * size);
    }
    free(stored);
    return status;
}

dart_status trainer_write_moment(dart_trainer *trainer, dart_train_values values, uint32_t index, const float *from)
{
    const trainer_parameter *p = &trainer->parameters[index];
    const trainer_segment *segment = &trainer->segments[p->segment];
    const uint64_t begin = base_larger(p->at, segment->first), end = base_smaller(p->at + p->is.elements, segment->first + segment->own);
    if (begin >= end) return DART_OK;
    return dart_buffer_write(values == DART_TRAIN_MEAN ? segment->m : segment->v, (begin - segment->first) * 4, from + (begin - p->at),
                             (end - begin) * 4);
}

bool dart_trainer_parameter(const dart_trainer *trainer, uint32_t index, dart_train_parameter *parameter)
{
    if (trainer == NULL || parameter == NULL || index >= trainer->parameters_count) return false;
    const trainer_parameter *p = &trainer->parameters[index];
    *parameter = (dart_train_parameter){.name = p->is.name, .rank = p->is.rank, .elements = p->is.elements, .decays = p->decays};
    memcpy(parameter->shape, p->is.shape, sizeof parameter->shape);
    return true;
}

static dart_status read_sharded(dart_trainer *trainer, dart_train_values values, const trainer_parameter *p, float *to)
{
    static const char call[] = "dart_trainer_read";
    const trainer_segment *segment = &trainer->segments[p->segment];
    float *all = device_calloc(trainer->device, (size_t)segment->elements, sizeof *all);
    if (all == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    const dart_status status = trainer_gather_moment(trainer, values, segment, all, call);
    if (status == DART_OK) memcpy(to, all + p->at, (size_t)p->is.elements * sizeof *to);
    free(all);
    return status;
}

dart_status dart_trainer_read(dart_trainer *trainer, dart_train_values values, uint32_t index, float *to)
{
    if (trainer == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&trainer->report, (unsigned)values <= DART_TRAIN_SQUARE && index < trainer->parameters_count && to != NULL,
            "dart_trainer_read: values %d of parameter %u of %u, or no place for them", (int)values, index, trainer->parameters_count);
    const dart_status idle = trainer_idle(trainer, "dart_trainer_read");
    if (idle != DART_OK) return idle;
    const trainer_parameter *p = &trainer->parameters[index];
    const trainer_segment *segment = &trainer->segments[p->segment];
    if (values >= DART_TRAIN_MEAN && trainer_is_sharded(trainer)) return read_sharded(trainer, values, p, to);
    const dart_buffer *const from[] = {segment->w, segment->grad, segment->m, segment->v};
    const dart_status status = trainer_take(trainer, dart_buffer_read(from[values], p->at * 4, to, p->is.elements * 4), "dart_trainer_read");
    if (status != DART_OK || values != DART_TRAIN_GRADIENT || trainer->scaled == 1) return status;
    const float factor = (float)(1 / trainer->scaled);
    for (uint64_t i = 0; i < p->is.elements; i++) to[i] *= factor;
    return DART_OK;
}
