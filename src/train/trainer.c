/* Trainers: how one begins and ends, and its steps. */
#include "trainer.h"

#include "dartlm/ops_backward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Errors ---- */

static dart_status take_text(dart_trainer *trainer, dart_status status, const char *text, const char *call)
{
    trainer->broken = trainer_failure(trainer->device, status);
    return base_fail(&trainer->report, trainer->broken, "%s: %s", call, text);
}

dart_status trainer_failure(const dart_device *device, dart_status status) { return atomic_load(&device->lost) ? DART_DEVICE_LOST : status; }

dart_status trainer_take(dart_trainer *trainer, dart_status status, const char *call)
{
    char text[400] = "";
    if (status == DART_OK) return status;
    dart_device_error(trainer->device, text, sizeof text);
    return take_text(trainer, status, text, call);
}

dart_status trainer_take_stream(dart_trainer *trainer, const dart_stream *stream, dart_status status, const char *call)
{
    char text[400] = "";
    if (status == DART_OK) return status;
    if (status == DART_TIMEOUT)
        snprintf(text, sizeof text, "not done in %llu ns", (unsigned long long)trainer->options.timeout_ns);
    else if (dart_stream_error(stream, text, sizeof text) == 0)
        dart_device_error(trainer->device, text, sizeof text);
    return take_text(trainer, status, text, call);
}

/* ---- Life ---- */

#define LARGEST_SCALE 4294967296.0 /* 2^32: the square of a gradient of 1e5 is still far from the end of f32 */

bool trainer_is_scale(double scale)
{
    int exponent;
    return scale >= 1 && scale <= LARGEST_SCALE && frexp(scale, &exponent) == 0.5;
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

uint64_t dart_trainer_steps(const dart_trainer *trainer) { return trainer != NULL ? trainer->steps : 0; }

/* ---- Steps ---- */

static dart_status put(dart_trainer *trainer, trainer_shared shared, const void *data, uint64_t elements, const char *call)
{
    return trainer_take(trainer, dart_buffer_write(trainer->shared[shared], 0, data, elements * 4), call);
}

static dart_status get(dart_trainer *trainer, trainer_shared shared, void *data, uint64_t elements, const char *call)
{
    return trainer_take(trainer, dart_buffer_read(trainer->shared[shared], 0, data, elements * 4), call);
}

/* Rounded up so that batches with about as many targets use the same recordings. */
static void choose_rows(dart_trainer *trainer, uint32_t most)
{
    const uint32_t unit = (uint32_t)base_round_up(base_ceil_div(trainer->T, 16), 64);
    const uint32_t rows = (uint32_t)base_smaller(base_round_up(most, unit), trainer->T);
    if (rows == trainer->rows) return;
    trainer->rows = rows;
    trainer->recorded[TRAINER_PASSES] = trainer->recorded[TRAINER_EVALUATE] = false;
}

/* The targets of all ranks' batches. */
static dart_status count_labels(dart_trainer *trainer, const trainer_batch *batch, uint64_t *labels, const char *call)
{
    uint64_t *all = device_calloc(trainer->device, trainer_ranks(trainer), sizeof *all);
    if (all == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    const dart_status status = trainer_gather(trainer, &batch->labels, sizeof batch->labels, all, call);
    *labels = 0;
    for (uint32_t i = 0; i < trainer_ranks(trainer); i++) *labels += all[i];
    free(all);
    return status;
}

/* Writes a part beside the passes that are under way, where that can be. */
static dart_status put_ahead(dart_trainer *trainer, trainer_batch *batch, uint32_t part, const char *call)
{
    dart_status status;
    const uint64_t elements = trainer_part_at(trainer, TRAINER_PART_END);
    if (trainer->shared[TRAINER_AHEAD] == NULL) return DART_OK;
    TRY(trainer_wait_for(trainer, TRAINER_TAKE, call)); /* of what was there before: the device does that first */
    trainer->next.ahead = trainer->aside.ahead = 0; /* that of another batch is written over */
    TRY(put(trainer, TRAINER_AHEAD, batch->parts + part * elements, elements, call));
    batch->ahead = 1 + part;
fail:
    return status;
}

/* A part becomes the one that the passes read. None are under way. */
static dart_status bring(dart_trainer *trainer, trainer_batch *batch, uint32_t part, const char *call)
{
    const uint64_t elements = trainer_part_at(trainer, TRAINER_PART_END);
    const bool ahead = batch->ahead == 1 + part;
    batch->ahead = 0;
    return ahead ? trainer_submit(trainer, TRAINER_TAKE, false, call)
                 : put(trainer, TRAINER_PART, batch->parts + part * elements, elements, call);
}

/* The passes of all rows with S = scale, one micro-batch after another; the last one is still under way. labels: targets that the loss is the
 * mean over. */
static dart_status run_passes(dart_trainer *trainer, trainer_recording passes, trainer_batch *batch, uint64_t labels, double scale,
                              const char *call)
{
    dart_status status;
    const float share[2] = {(float)(scale / (double)labels), (float)(1 / scale)};
    choose_rows(trainer, batch->most);
    if (passes == TRAINER_PASSES) trainer->scaled = scale;
    TRY(put(trainer, TRAINER_SHARE, share, COUNT_OF(share), call));
    trainer->of = (uint64_t)batch->count * trainer->T;
    for (uint32_t i = 0; i < batch->count; i++) {
        const uint64_t first = (uint64_t)i * trainer->T;
        if (i > 0) TRY(trainer_wait(trainer, call));
        TRY(bring(trainer, batch, i, call));
        if (i == 0) TRY(trainer_submit(trainer, TRAINER_BEGIN, false, call));
        trainer->done = first;
        trainer->adding = passes == TRAINER_PASSES && trainer->buckets_count > 0 && i + 1 == batch->count;
        trainer->added = 0;
        TRY(trainer_submit(trainer, passes, true, call));
        if (i + 1 < batch->count) TRY(put_ahead(trainer, batch, i + 1, call));
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

/* Behind the passes: the gradients of all ranks, and their norm, which is under way. */
static dart_status add_and_norm(dart_trainer *trainer, const char *call)
{
    dart_status status = DART_OK;
    if (trainer->adding) {
        TRY(trainer_wait(trainer, call));
        TRY(trainer_end_sums(trainer, call));
    }
    TRY(trainer_submit(trainer, TRAINER_NORM, false, call));
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
static dart_status read_result(dart_trainer *trainer, uint64_t labels, bool norm, double by, dart_train_result *result, const char *call)
{
    dart_status status;
    float loss, scale[4] = {0, 1, 1, 0};
    int32_t count;
    TRY(get(trainer, TRAINER_LOSS, &loss, 1, call));
    TRY(get(trainer, TRAINER_CORRECT, &count, 1, call));
    uint64_t correct = (uint64_t)count;
    if (norm) TRY(get(trainer, TRAINER_SCALE, scale, 4, call));
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
    if (gradient) TRY(count_labels(trainer, &trainer->aside, &labels, call));
    double scale = gradient ? 2 * trainer->scale : 2;
    do {
        scale /= 2;
        TRY(run_passes(trainer, passes, &trainer->aside, labels, scale, call));
        if (gradient) TRY(add_and_norm(trainer, call));
        TRY(trainer_wait(trainer, call));
        TRY(read_result(trainer, labels, gradient, scale, result, call));
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

static dart_status start(dart_trainer *trainer, double lr, const char *call)
{
    dart_status status;
    const dart_trainer_options *o = &trainer->options;
    const double n = (double)(trainer->steps + 1);
    const float hyper[8] = {(float)lr, o->beta1, o->beta2, o->eps, (float)-expm1(n * log((double)o->beta1)),
                            (float)-expm1(n * log((double)o->beta2)), o->weight_decay, 0};
    REQUIRE(&trainer->report, lr >= 0 && lr < 1e6, "%s: lr %g", call, lr);
    TRY(trainer_idle(trainer, call));
    REQUIRE(&trainer->report, trainer->next.count > 0, "%s: no batch is prepared", call);
    uint64_t labels = 0;
    TRY(count_labels(trainer, &trainer->next, &labels, call));
    TRY(put(trainer, TRAINER_HYPER, hyper, COUNT_OF(hyper), call));
    TRY(run_passes(trainer, TRAINER_PASSES, &trainer->next, labels, trainer->scale, call));
    TRY(add_and_norm(trainer, call));
    TRY(trainer_submit(trainer, TRAINER_UPDATE, false, call));
    TRY(trainer_share(trainer, call));
    trainer->stepping = labels;
    trainer->next.count = 0;
fail:
    return after(trainer, status, call);
}

/* The S of the next step. Source: Micikevicius et al. 2018. */
static void adapt(dart_trainer *trainer, bool skipped)
{
    if (!trainer->scales) return;
    trainer->good = skipped ? 0 : trainer->good + 1;
    if (skipped && trainer->scale > 1) trainer->scale /= 2;
    if (trainer->good < trainer->options.scale_steps) return;
    trainer->good = 0;
    if (trainer->scale < LARGEST_SCALE) trainer->scale *= 2;
}

static dart_status finish(dart_trainer *trainer, dart_train_result *result, const char *call)
{
    dart_status status;
    dart_train_result own;
    const uint64_t labels = trainer->stepping;
    if (result == NULL) result = &own;
    REQUIRE(&trainer->report, labels > 0, "%s: no step is under way", call);
    trainer->stepping = 0;
    TRY(trainer_wait(trainer, call));
    TRY(trainer_end_share(trainer, call));
    TRY(read_result(trainer, labels, true, trainer->scaled, result, call));
    adapt(trainer, result->skipped);
    if (!result->skipped) trainer->steps++;
fail:
    return status;
}

dart_status dart_trainer_prepare(dart_trainer *trainer, const dart_train_batch *batch)
{
    static const char call[] = "dart_trainer_prepare";
    dart_status status;
    if (trainer == NULL) return DART_INVALID_ARGUMENT;
    TRY(trainer_prepare(trainer, &trainer->next, batch, true, call));
    if (trainer->stepping > 0) TRY(put_ahead(trainer, &trainer->next, 0, call));
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
    if (trainer->stepping == 0) trainer->next.count = 0;
    return status;
}
