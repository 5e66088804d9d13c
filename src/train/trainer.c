/* Trainers: how one begins and ends. */
#include "trainer.h"

#include <math.h>
#include <stdlib.h>

bool trainer_is_scale(double scale)
{
    int exponent;
    return scale >= 1 && scale <= TRAINER_LARGEST_SCALE && frexp(scale, &exponent) == 0.5;
}

static float beta(float given, float usual) { return given == 0 ? usual : given == DART_BETA_ZERO ? 0 : given; }

static dart_status take_options(dart_trainer *trainer, const dart_trainer_options *options, const char *call)
{
    base_report *report = &trainer->device->report;
    dart_trainer_options *o = &trainer->options;
    static const dart_dtype dtypes[] = {[DART_STORAGE_DEFAULT] = DART_F32, [DART_STORAGE_F32] = DART_F32, [DART_STORAGE_F16] = DART_F16,
                                        [DART_STORAGE_BF16] = DART_BF16};
    *o = *options;
    REQUIRE(report, o->weights != DART_STORAGE_Q8 && o->weights != DART_STORAGE_Q4, "%s: quantised weights cannot be trained", call);
    REQUIRE(report, (unsigned)o->weights < COUNT_OF(dtypes) && (unsigned)o->activations < COUNT_OF(dtypes),
            "%s: weights and activations are f32, f16 or bf16", call);
    trainer->weights_dtype = dtypes[o->weights];
    trainer->activations = dtypes[o->activations != DART_STORAGE_DEFAULT ? o->activations : o->weights];
    if (o->B == 0) o->B = 1;
    o->beta1 = beta(o->beta1, 0.9f);
    o->beta2 = beta(o->beta2, 0.999f);
    if (o->eps == 0) o->eps = 1e-8f;
    if (o->loss_scale == 0) o->loss_scale = 65536;
    if (o->scale_steps == 0) o->scale_steps = 2000;
    if (o->timeout_ns == 0) o->timeout_ns = UINT64_MAX;
    REQUIRE(report, o->L > 0 && (uint64_t)o->B * o->L <= INT32_MAX, "%s: B %u rows of L %u tokens", call, o->B, o->L);
    REQUIRE(report, o->documents <= 1u << 24, "%s: documents %u, allowed are 0 to 2^24", call, o->documents);
    REQUIRE(report, o->keep <= 3, "%s: keep %u, allowed are 0 to 3", call, o->keep);
    REQUIRE(report, o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1, "%s: beta1 %g, beta2 %g: allowed is 0 to 1", call,
            (double)o->beta1, (double)o->beta2);
    REQUIRE(report, o->eps > 0 && isfinite(o->eps), "%s: eps %g", call, (double)o->eps);
    REQUIRE(report, o->weight_decay >= 0 && isfinite(o->weight_decay), "%s: weight_decay %g", call, (double)o->weight_decay);
    REQUIRE(report, o->clip >= 0, "%s: clip %g", call, (double)o->clip);
    REQUIRE(report, trainer_is_scale((double)o->loss_scale), "%s: loss_scale %g is no power of two from 1 to 2^32", call, (double)o->loss_scale);
    if (o->ranks != NULL) {
        trainer->ranks = *o->ranks;
        o->ranks = NULL;
        const dart_ranks *r = &trainer->ranks;
        REQUIRE(report, r->count > 0 && r->rank < r->count && r->count <= 65536, "%s: rank %u of %u", call, r->rank, r->count);
        REQUIRE(report, r->gather != NULL, "%s: ranks need gather", call);
        if (r->timeout_ns == 0) trainer->ranks.timeout_ns = UINT64_C(45000000000);
    }
    for (uint32_t i = 0; o->decays != NULL && i < o->decays_count; i++)
        REQUIRE(report, o->decays[i] != NULL, "%s: decays %u is NULL", call, i);
    trainer->T = o->B * o->L;
    trainer->scales = trainer->weights_dtype == DART_F16 || trainer->activations == DART_F16;
    trainer->scale = trainer->scales ? (double)o->loss_scale : 1;
    trainer->scaled = 1;
    trainer->sma = trainer->config.sma && !o->no_sma && o->L > trainer->config.S;
    return DART_OK;
}

/* Values of the file where it has them, else initial ones. */
static dart_status fill_from(dart_trainer *trainer, const safetensors *file, base_progress *progress, const char *call)
{
    dart_status status = base_advance(progress, 0, &trainer->device->report, call);
    for (uint32_t i = 0; i < trainer->parameters_count && status == DART_OK; i++) {
        const model_parameter *p = &trainer->parameters[i].is;
        const safetensors_tensor *tensor = file != NULL ? model_weights_find(file, p) : NULL;
        float *values = device_calloc(trainer->device, (size_t)p->elements, sizeof *values);
        if (values == NULL) return DART_OUT_OF_MEMORY;
        if (tensor != NULL) safetensors_to_f32(tensor, 0, (size_t)p->elements, values);
        else trainer_initial(trainer, i, values);
        status = trainer_write(trainer, i, values);
        free(values);
        if (status == DART_OK) status = base_advance(progress, 1, &trainer->device->report, call);
    }
    return status;
}

/* Moments, and what lies between parameters. New buffers may hold anything. */
static dart_status clear(dart_trainer *trainer)
{
    dart_stream *stream = NULL;
    dart_status status = dart_stream_create(trainer->device, NULL, &stream);
    /* Each in a submission of its own: that of all of a large model would be long. */
    for (uint32_t i = 0; i < trainer->segments_count && status == DART_OK; i++) {
        const trainer_segment *s = &trainer->segments[i];
        const struct { dart_buffer *buffer; uint64_t elements; } all[] = {
            {s->w, s->elements}, {s->m, s->own}, {s->v, s->own}, {s->grad, s->elements}};
        for (size_t k = 0; k < COUNT_OF(all) && status == DART_OK; k++) {
            if (all[k].elements == 0) continue;
            status = dart_stream_begin(stream);
            if (status == DART_OK)
                status = dart_fill(stream, &(dart_fill_args){.T = (uint32_t)(all[k].elements / 64), .W = 64,
                                                             .y = {.buffer = all[k].buffer, .dtype = DART_F32}});
            if (status == DART_OK) status = dart_stream_submit(stream);
            if (status == DART_OK) status = dart_stream_wait(stream, trainer->options.timeout_ns);
        }
    }
    dart_stream_destroy(&stream);
    return status;
}

base_progress trainer_progress(const dart_model_config *config, const dart_trainer_options *options, uint32_t times)
{
    base_progress progress = {.go_on = options->go_on, .user = options->user};
    model_parameter parameter;
    for (uint32_t i = 0; model_config_parameter(config, i, &parameter); i++) progress.of += times;
    return progress;
}

dart_status trainer_make(dart_device *device, const dart_model_config *config, const safetensors *file, const dart_trainer_options *options,
                         base_progress *progress, const char *call, dart_trainer **trainer)
{
    dart_status status;
    if (config->neox) return base_fail(&device->report, DART_UNSUPPORTED, "%s: GPT-NeoX has no backward pass here, it is for inference only", call);
    dart_trainer *made = device_calloc(device, 1, sizeof *made);
    if (made == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    if (base_report_init(&made->report, device->report.log) != DART_OK) {
        free(made);
        return base_fail(&device->report, DART_OUT_OF_MEMORY, "%s: no lock for a trainer", call);
    }
    made->device = device;
    made->config = *config;
    TRY(take_options(made, options, call));
    TRY(trainer_place(made));
    TRY(trainer_allocate(made));
    TRY(clear(made));
    trainer_limit(made);
    TRY(fill_from(made, file, progress, call));
    TRY(trainer_join(made, call));
    made->options.decays = NULL;
    *trainer = made;
    made = NULL;
fail:
    if (status != DART_OK) status = trainer_failure(device, status);
    dart_trainer_destroy(&made);
    return status;
}

static dart_status refuse_quantised(dart_device *device, const dart_model_config *config, const safetensors *file, const char *call)
{
    model_parameter p;
    for (uint32_t i = 0; model_config_parameter(config, i, &p); i++) {
        const model_source source = model_source_find(file, &p);
        if (model_source_is_quantised(&source))
            return base_fail(&device->report, DART_UNSUPPORTED,
                             "%s: tensor %s is quantised (%s): training starts from the checkpoint that was quantised", call, p.name,
                             dart_dtype_name(source.dtype));
    }
    return DART_OK;
}

dart_status dart_trainer_open(dart_device *device, const char *folder, const dart_trainer_options *options, dart_trainer **trainer)
{
    static const char call[] = "dart_trainer_open";
    dart_status status;
    dart_model_config config;
    safetensors *file = NULL;
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, folder != NULL && options != NULL && trainer != NULL, "%s: needs a folder, options and a place for the trainer", call);
    TRY(model_config_load(folder, &device->report, &config));
    TRY(safetensors_open(folder, &device->report, &file));
    TRY(model_weights_check(&config, file, false, NULL, &device->report));
    TRY(refuse_quantised(device, &config, file, call));
    if (options->add_sma && config.transformer) FAIL(&device->report, DART_INVALID_ARGUMENT, "%s: add_sma is for a Mamba-2", call);
    if (options->add_sma) config.sma = true;
    base_progress progress = trainer_progress(&config, options, 1);
    TRY(trainer_make(device, &config, file, options, &progress, call, trainer));
fail:
    safetensors_close(&file);
    return status;
}

dart_status dart_trainer_create(dart_device *device, const dart_model_config *config, const dart_trainer_options *options,
                                dart_trainer **trainer)
{
    static const char call[] = "dart_trainer_create";
    if (device == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&device->report, config != NULL && options != NULL && trainer != NULL,
            "%s: needs a configuration, options and a place for the trainer", call);
    const dart_status status = model_config_check(config, DART_INVALID_ARGUMENT, call, &device->report);
    base_progress progress = trainer_progress(config, options, 1);
    return status == DART_OK ? trainer_make(device, config, NULL, options, &progress, call, trainer) : status;
}

void dart_trainer_destroy(dart_trainer **trainer)
{
    if (trainer == NULL || *trainer == NULL) return;
    dart_trainer *t = *trainer;
    trainer_leave(t);
    for (int i = 0; i < TRAINER_RECORDING_COUNT; i++) dart_stream_destroy(&t->streams[i]);
    for (int w = 0; w < TRAINER_WORK_COUNT; w++) {
        for (uint32_t i = 0; i < t->work_count[w]; i++) dart_buffer_destroy(&t->work[w][i]);
        free(t->work[w]);
    }
    for (int s = 0; s < TRAINER_SHARED_COUNT; s++) dart_buffer_destroy(&t->shared[s]);
    trainer_forget_slices(t);
    trainer_unplace(t);
    trainer_batch_free(&t->next);
    trainer_batch_free(&t->aside);
    free(t->note);
    base_report_destroy(&t->report);
    free(t);
    *trainer = NULL;
}

size_t dart_trainer_error(const dart_trainer *trainer, char *text, size_t size)
{
    return trainer != NULL ? base_report_copy(&trainer->report, text, size) : 0;
}

uint64_t dart_trainer_steps(const dart_trainer *trainer)
{
    if (trainer == NULL) return 0;
    const trainer_step *oldest = &trainer->begun[0];
    return trainer->steps - (trainer->begun_count > 0 && oldest->done && !oldest->result.skipped); /* which dart_trainer_finish has not given yet */
}
