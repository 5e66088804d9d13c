/* Checkpoints of a trainer, and runs that go on from a file. */
#include "trainer.h"

#include "base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN_FORMAT "dartlm-run-1"
#define RUN_FILE "training.safetensors"

static const struct {
    dart_train_values values;
    const char *prefix;
} kept[] = {{DART_TRAIN_WEIGHT, ""}, {DART_TRAIN_MEAN, "mean."}, {DART_TRAIN_SQUARE, "square."}};

/* Names of a file's entries. */
typedef struct entry_name {
    char text[sizeof((model_parameter *)NULL)->name + 8];
} entry_name;

static entry_name name_entry(size_t kind, const model_parameter *parameter)
{
    entry_name name;
    snprintf(name.text, sizeof name.text, "%s%s", kept[kind].prefix, parameter->name);
    return name;
}

/* Values of a kind of all parameters: what a file is written from. */
typedef struct snapshot {
    uint32_t count;
    safetensors_tensor *entries;
    entry_name *names;
    float **values;
} snapshot;

static void drop(snapshot *s)
{
    for (uint32_t i = 0; s->values != NULL && i < s->count; i++) free(s->values[i]);
    free(s->values);
    free(s->names);
    free(s->entries);
}

/* A moment that the ranks have shared out, of all parameters of a kind: segment by segment. */
static dart_status take_sharded(dart_trainer *trainer, size_t kind, const char *call, const snapshot *s)
{
    dart_status status = DART_OK;
    for (uint32_t k = 0; k < trainer->segments_count && status == DART_OK; k++) {
        float *all = device_calloc(trainer->device, (size_t)trainer->segments[k].elements, sizeof *all);
        if (all == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
        status = trainer_gather_moment(trainer, kept[kind].values, &trainer->segments[k], all, call);
        for (uint32_t i = 0; i < trainer->parameters_count && status == DART_OK; i++) {
            const trainer_parameter *p = &trainer->parameters[i];
            if (p->segment == k) memcpy(s->values[kind * trainer->parameters_count + i], all + p->at, (size_t)p->is.elements * sizeof *all);
        }
        free(all);
    }
    return status;
}

/* Of the first `kinds` of `kept`. The caller drops it, also after a failure. */
static dart_status take(dart_trainer *trainer, size_t kinds, base_progress *progress, const char *call, snapshot *s)
{
    s->count = (uint32_t)kinds * trainer->parameters_count;
    progress->of = 2 * (uint64_t)s->count; /* read, then written */
    s->entries = device_calloc(trainer->device, s->count, sizeof *s->entries);
    s->names = device_calloc(trainer->device, s->count, sizeof *s->names);
    s->values = device_calloc(trainer->device, s->count, sizeof *s->values);
    if (s->entries == NULL || s->names == NULL || s->values == NULL) return base_fail(&trainer->report, DART_OUT_OF_MEMORY, "%s: no memory", call);
    for (uint32_t i = 0; i < s->count; i++) {
        const size_t kind = i / trainer->parameters_count;
        const uint32_t index = i % trainer->parameters_count;
        const model_parameter *p = &trainer->parameters[index].is;
        s->values[i] = device_calloc(trainer->device, (size_t)p->elements, sizeof *s->values[i]);
        if (s->values[i] == NULL) return base_fail(&trainer->report, DART_OUT_OF_MEMORY, "%s: no memory", call);
        dart_status status = base_advance(progress, i > 0, &trainer->report, call);
        const bool sharded = kept[kind].values != DART_TRAIN_WEIGHT && trainer_is_sharded(trainer);
        if (status == DART_OK && !sharded) status = dart_trainer_read(trainer, kept[kind].values, index, s->values[i]);
        if (status != DART_OK) return status;
        s->names[i] = name_entry(kind, p);
        s->entries[i] = (safetensors_tensor){.name = s->names[i].text, .data = s->values[i], .rank = p->rank, .dtype = SAFETENSORS_F32,
                                             .bytes = p->elements * sizeof(float)};
        memcpy(s->entries[i].shape, p->shape, sizeof p->shape);
    }
    for (size_t kind = 1; kind < kinds && trainer_is_sharded(trainer); kind++) {
        const dart_status status = take_sharded(trainer, kind, call, s);
        if (status != DART_OK) return status;
    }
    return DART_OK;
}

dart_status dart_trainer_export(dart_trainer *trainer, const char *folder)
{
    static const char call[] = "dart_trainer_export";
    dart_status status;
    snapshot s = {0};
    char *path = NULL;
    if (trainer == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&trainer->report, folder != NULL, "%s: no folder", call);
    const dart_status idle = trainer_idle(trainer, call);
    if (idle != DART_OK) return idle;
    base_progress progress = {.go_on = trainer->options.go_on, .user = trainer->options.user};
    TRY(take(trainer, 1, &progress, call, &s));
    path = file_join(folder, "model.safetensors");
    if (path == NULL) FAIL(&trainer->report, DART_OUT_OF_MEMORY, "%s: no memory", call);
    TRY(model_config_write(&trainer->config, folder, &trainer->report));
    TRY(safetensors_write_with(path, s.entries, s.count, NULL, 0, &progress, &trainer->report));
fail:
    free(path);
    drop(&s);
    return status;
}

/* ---- Runs ---- */

/* Of the bytes before, then these; every bit of them changes about half of its bits. */
static uint64_t digest(uint64_t before, const void *data, uint64_t bytes)
{
    uint64_t sum = base_mix(before ^ bytes);
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        memcpy(&word, (const uint8_t *)data + at, (size_t)base_smaller(8, bytes - at));
        sum = base_mix(sum ^ word);
    }
    return sum;
}

/* Of what stands in config.json, then of the file's metadata. scale: NULL for a run without one, which has the sum it always had. */
static uint64_t digest_head(const dart_model_config *c, const char *steps, const char *scale, const char *note)
{
    const uint32_t sizes[] = {c->sma, c->tied, c->no_conv_bias, c->V, c->W, c->layers, c->H, c->P, c->G, c->N, c->K, c->S};
    const float reals[] = {c->eps, c->sma_eps, c->dt_min, c->dt_max};
    uint64_t sum = digest(digest(0, sizes, sizeof sizes), reals, sizeof reals);
    if (c->independent_c) sum = digest(sum, "c", 1);
    if (c->transformer) {
        const uint32_t F = c->F;
        sum = digest(digest(sum, &F, sizeof F), &c->base, sizeof c->base);
    }
    sum = digest(sum, steps, strlen(steps));
    if (scale != NULL) sum = digest(sum, scale, strlen(scale));
    return digest(sum, note, strlen(note));
}

dart_status dart_trainer_save(dart_trainer *trainer, const char *folder, const char *note)
{
    static const char call[] = "dart_trainer_save";
    dart_status status;
    snapshot s = {0};
    char *path = NULL, steps[24], scale[32], checksum[24];
    if (trainer == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&trainer->report, folder != NULL, "%s: no folder", call);
    const dart_status idle = trainer_idle(trainer, call);
    if (idle != DART_OK) return idle;
    if (note == NULL) note = "";
    base_progress progress = {.go_on = trainer->options.go_on, .user = trainer->options.user};
    TRY(take(trainer, COUNT_OF(kept), &progress, call, &s));
    if (trainer_is_sharded(trainer) && trainer->ranks.rank > 0) goto fail; /* rank 0 writes */
    path = file_join(folder, RUN_FILE);
    if (path == NULL) FAIL(&trainer->report, DART_OUT_OF_MEMORY, "%s: no memory", call);
    snprintf(steps, sizeof steps, "%" PRIu64, trainer->steps);
    snprintf(scale, sizeof scale, "%.0f %" PRIu32, trainer->scale, trainer->good);
    uint64_t sum = digest_head(&trainer->config, steps, trainer->scales ? scale : NULL, note);
    for (uint32_t i = 0; i < s.count; i++) sum = digest(sum, s.entries[i].data, s.entries[i].bytes);
    snprintf(checksum, sizeof checksum, "%016" PRIx64, sum);
    const safetensors_pair pairs[] = {{"run", RUN_FORMAT}, {"steps", steps}, {"note", note}, {"checksum", checksum}, {"scale", scale}};
    TRY(model_config_write(&trainer->config, folder, &trainer->report));
    TRY(safetensors_write_with(path, s.entries, s.count, pairs, COUNT_OF(pairs) - !trainer->scales, &progress, &trainer->report));
fail:
    free(path);
    drop(&s);
    return status;
}

/* "S steps" of the metadata, the steps in a row since S changed. */
static bool read_scale(const char *text, double *scale, uint32_t *good)
{
    char *end;
    *scale = strtod(text, &end);
    if (!trainer_is_scale(*scale) || *end != ' ' || end[1] < '0' || end[1] > '9') return false;
    const unsigned long long count = strtoull(end + 1, &end, 10);
    *good = (uint32_t)count;
    return *end == '\0' && count <= UINT32_MAX;
}

/* A file holds what it should, by its checksum. */
static dart_status check_run(const dart_model_config *config, const safetensors *file, const char *path, base_progress *progress,
                             base_report *report)
{
    const char *format = safetensors_metadata(file, "run"), *steps = safetensors_metadata(file, "steps"),
               *note = safetensors_metadata(file, "note"), *checksum = safetensors_metadata(file, "checksum"),
               *scale = safetensors_metadata(file, "scale");
    if (format == NULL || strcmp(format, RUN_FORMAT) != 0 || steps == NULL || note == NULL || checksum == NULL)
        return base_fail(report, DART_BAD_DATA, "%s: not a run of dartlm", path);
    model_parameter p;
    uint64_t sum = digest_head(config, steps, scale, note);
    for (size_t kind = 0; kind < COUNT_OF(kept); kind++)
        for (uint32_t i = 0; model_config_parameter(config, i, &p); i++) {
            const entry_name name = name_entry(kind, &p);
            const safetensors_tensor *tensor = safetensors_find(file, name.text);
            if (tensor == NULL || tensor->dtype != SAFETENSORS_F32 || tensor->elements != p.elements)
                return base_fail(report, DART_BAD_DATA, "%s: no %s of %" PRIu64 " F32", path, name.text, p.elements);
            sum = digest(sum, tensor->data, tensor->bytes);
            const dart_status status = base_advance(progress, 1, report, path);
            if (status != DART_OK) return status;
        }
    char expected[24], *end;
    double number;
    uint32_t good;
    snprintf(expected, sizeof expected, "%016" PRIx64, sum);
    if (strcmp(checksum, expected) != 0)
        return base_fail(report, DART_BAD_DATA, "%s: it or config.json is damaged: the checksum is %.20s, of what they hold it is %s", path, checksum,
                         expected);
    (void)strtoull(steps, &end, 10);
    if (*steps < '0' || *steps > '9' || *end != '\0') return base_fail(report, DART_BAD_DATA, "%s: %.20s steps", path, steps);
    if (scale != NULL && !read_scale(scale, &number, &good)) return base_fail(report, DART_BAD_DATA, "%s: loss scale %.30s", path, scale);
    return DART_OK;
}

/* Moments, the number of steps, the loss scale and the note of a checked file. */
static dart_status go_on(dart_trainer *trainer, const safetensors *file, base_progress *progress, const char *call)
{
    const char *note = safetensors_metadata(file, "note"), *scale = safetensors_metadata(file, "scale");
    for (uint32_t i = trainer->parameters_count; i < COUNT_OF(kept) * trainer->parameters_count; i++) {
        const size_t kind = i / trainer->parameters_count;
        const uint32_t index = i % trainer->parameters_count;
        const model_parameter *p = &trainer->parameters[index].is;
        const entry_name name = name_entry(kind, p);
        float *values = device_calloc(trainer->device, (size_t)p->elements, sizeof *values);
        if (values == NULL) return DART_OUT_OF_MEMORY;
        safetensors_to_f32(safetensors_find(file, name.text), 0, (size_t)p->elements, values);
        dart_status status = trainer_write_moment(trainer, kept[kind].values, index, values);
        free(values);
        if (status == DART_OK) status = base_advance(progress, 1, &trainer->device->report, call);
        if (status != DART_OK) return status;
    }
    trainer->steps = strtoull(safetensors_metadata(file, "steps"), NULL, 10);
    if (trainer->scales && scale != NULL) (void)read_scale(scale, &trainer->scale, &trainer->good);
    trainer->note = device_calloc(trainer->device, strlen(note) + 1, 1);
    if (trainer->note == NULL) return DART_OUT_OF_MEMORY;
    strcpy(trainer->note, note);
    return DART_OK;
}

dart_status dart_trainer_resume(dart_device *device, const char *folder, const dart_trainer_options *options, dart_trainer **trainer)
{
    static const char call[] = "dart_trainer_resume";
    dart_status status;
    dart_model_config config;
    safetensors *file = NULL;
    dart_trainer *made = NULL;
    char *path = NULL;
    if (device == NULL) return DART_INVALID_ARGUMENT;
    base_report *report = &device->report;
    REQUIRE(report, folder != NULL && options != NULL && trainer != NULL, "%s: needs a folder, options and a place for the trainer", call);
    path = file_join(folder, RUN_FILE);
    if (path == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory", call);
    TRY(model_config_load(folder, report, &config));
    TRY(safetensors_open(path, report, &file));
    base_progress progress = trainer_progress(&config, options, 2 * COUNT_OF(kept)); /* checked, then copied */
    TRY(check_run(&config, file, path, &progress, report));
    TRY(trainer_make(device, &config, file, options, &progress, call, &made));
    TRY(go_on(made, file, &progress, call));
    *trainer = made;
    made = NULL;
fail:
    safetensors_close(&file);
    dart_trainer_destroy(&made);
    free(path);
    return status;
}

const char *dart_trainer_note(const dart_trainer *trainer) { return trainer != NULL ? trainer->note : NULL; }
