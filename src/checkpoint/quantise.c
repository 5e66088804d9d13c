/* A checkpoint with quantised matrices from one without. */
#include "base/checksum.h"
#include "base/file.h"
#include "base/quantised.h"
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PARTS 4 /* tensors that a quantised one becomes: numbers, scales, minima, rest */
/* Elements between two questions: milliseconds. */
#define ASK_AFTER ((uint64_t)1 << 19)

typedef struct writing {
    base_report *report;
    base_progress *progress;
    const char *folder;
    safetensors_tensor *entries;
    size_t count;
    void **memory; /* of the entries; NULL: the source's */
    char (*names)[128];
    uint64_t checksum; /* of the source's tensors */
} writing;

/* The parameter whose tensor this is and that can be quantised; of several in one tensor the first. */
static bool find_parameter(const dart_model_config *config, const safetensors *file, const safetensors_tensor *tensor, model_parameter *found)
{
    for (uint32_t i = 0; model_config_parameter(config, i, found); i++)
        if (model_weights_find(file, found) == tensor) return model_quantised_dtype(found, DART_Q8) != DART_F32;
    return false;
}

static safetensors_tensor *add(writing *w, const safetensors_tensor *like, const char *suffix)
{
    safetensors_tensor *entry = &w->entries[w->count];
    *entry = *like;
    snprintf(w->names[w->count], sizeof w->names[0], "%s%s", like->name, suffix);
    entry->name = w->names[w->count++];
    return entry;
}

/* An entry of rows x width with memory of its own. */
static uint8_t *add_made(writing *w, const safetensors_tensor *like, const char *suffix, safetensors_dtype dtype, uint64_t rows, uint64_t width)
{
    safetensors_tensor *entry = add(w, like, suffix);
    uint64_t bytes = 0;
    entry->dtype = dtype;
    entry->rank = 2;
    entry->shape[0] = rows;
    entry->shape[1] = width;
    if (!base_mul(rows * safetensors_dtype_size(dtype), width, &bytes) || bytes > SIZE_MAX) return NULL;
    uint8_t *memory = malloc((size_t)bytes);
    w->memory[w->count - 1] = memory;
    entry->data = memory;
    return memory;
}

static dart_status quantise(writing *w, const model_parameter *p, const safetensors_tensor *tensor, dart_dtype wanted)
{
    const dart_dtype dtype = model_quantised_dtype(p, wanted);
    const uint32_t width = (uint32_t)p->shape[1];
    const uint64_t rows = (p->shape[0] - p->rest) * p->parts;
    const size_t numbers = quantised_numbers(dtype, width), scales = quantised_scales(width), bytes = dart_quantised_row(dtype, width);
    uint8_t *n = add_made(w, tensor, "", dtype == DART_Q8 ? SAFETENSORS_I8 : SAFETENSORS_U8, rows, numbers);
    uint8_t *s = add_made(w, tensor, ".scale", SAFETENSORS_BF16, rows, width / QUANTISED_BLOCK), *m = NULL;
    if (dtype == DART_Q4) m = add_made(w, tensor, ".minimum", SAFETENSORS_BF16, rows, width / QUANTISED_BLOCK);
    float *values = malloc(width * sizeof *values);
    uint8_t *row = malloc(bytes);
    const bool room = n != NULL && s != NULL && (m != NULL || dtype == DART_Q8) && values != NULL && row != NULL;
    const uint64_t together = base_larger(1, ASK_AFTER / width), row_bytes = width * safetensors_dtype_size(tensor->dtype);
    dart_status status = DART_OK;
    for (uint64_t r = 0; room && r < rows && status == DART_OK; r++) {
        safetensors_to_f32(tensor, r * width, width, values);
        dart_quantise(dtype, width, 1, values, row);
        memcpy(n + r * numbers, row, numbers);
        memcpy(s + r * scales, row + numbers, scales);
        if (m != NULL) memcpy(m + r * scales, row + numbers + scales, scales);
        if ((r + 1) % together == 0) status = base_advance(w->progress, together * row_bytes, w->report, w->folder);
    }
    free(values);
    free(row);
    if (!room) return base_fail(w->report, DART_OUT_OF_MEMORY, "no memory to quantise %s", tensor->name);
    if (status != DART_OK) return status;
    if (p->rest > 0) {
        safetensors_tensor *rest = add(w, tensor, ".rest");
        rest->shape[0] = p->rest;
        rest->data = (const uint8_t *)tensor->data + rows * width * safetensors_dtype_size(tensor->dtype);
    }
    return DART_OK;
}

static dart_status take(writing *w, const dart_model_config *config, const safetensors *file, dart_dtype dtype, model_quantised_counts *counts)
{
    dart_status status = DART_OK;
    for (size_t i = 0; i < safetensors_count(file) && status == DART_OK; i++) {
        const safetensors_tensor *tensor = safetensors_at(file, i);
        model_parameter p;
        const size_t first = w->count;
        const uint64_t before = w->progress != NULL ? w->progress->done : 0;
        w->checksum = base_checksum(w->checksum + (uint64_t)tensor->dtype, tensor->data, tensor->bytes);
        if (find_parameter(config, file, tensor, &p)) {
            const model_source source = model_source_find(file, &p);
            if (model_source_is_quantised(&source))
                return base_fail(w->report, DART_INVALID_ARGUMENT, "tensor %s is quantised already (%s)", tensor->name,
                                 dart_dtype_name(source.dtype));
            status = quantise(w, &p, tensor, dtype);
            counts->matrices++;
        } else {
            add(w, tensor, "");
        }
        if (w->progress != NULL && status == DART_OK) /* what rows have not */
            status = base_advance(w->progress, tensor->bytes - (w->progress->done - before), w->report, w->folder);
        counts->bytes_before += tensor->bytes;
        for (size_t k = first; k < w->count; k++)
            counts->bytes_after += w->entries[k].shape[0] * safetensors_dtype_size(w->entries[k].dtype) *
                                   (w->entries[k].rank > 1 ? w->entries[k].shape[1] : 1) * (w->entries[k].rank > 2 ? w->entries[k].shape[2] : 1);
    }
    if (status == DART_OK && counts->matrices == 0)
        return base_fail(w->report, DART_UNSUPPORTED, "no matrix of this model has a width that is a multiple of %u", QUANTISED_BLOCK);
    return status;
}

dart_status model_quantise(const char *folder, dart_dtype dtype, const char *path, base_progress *progress, base_report *report,
                           model_quantised_counts *counts)
{
    dart_status status;
    dart_model_config config;
    safetensors *file = NULL;
    writing w = {.report = report, .progress = progress, .folder = folder};
    *counts = (model_quantised_counts){0};
    TRY(model_config_load(folder, report, &config));
    TRY(safetensors_open(folder, report, &file));
    TRY(model_weights_check(&config, file, false, NULL, report));
    const size_t most = PARTS * safetensors_count(file);
    w.entries = calloc(most, sizeof *w.entries);
    w.memory = calloc(most, sizeof *w.memory);
    w.names = calloc(most, sizeof *w.names);
    if (w.entries == NULL || w.memory == NULL || w.names == NULL) FAIL(report, DART_OUT_OF_MEMORY, "no memory to quantise %s", folder);
    for (size_t i = 0; progress != NULL && i < safetensors_count(file); i++) progress->of += safetensors_at(file, i)->bytes;
    TRY(take(&w, &config, file, dtype, counts));
    if (progress != NULL) progress->of = progress->done + w.count;
    char source[17];
    snprintf(source, sizeof source, "%016" PRIx64, w.checksum);
    const safetensors_pair pairs[] = {{"dartlm.quantised", dart_dtype_name(dtype)}, {"dartlm.source", source}};
    status = safetensors_write_with(path, w.entries, w.count, pairs, COUNT_OF(pairs), progress, report);
fail:
    for (size_t i = 0; w.memory != NULL && i < w.count; i++) free(w.memory[i]);
    free(w.memory);
    free(w.entries);
    free(w.names);
    safetensors_close(&file);
    return status;
}
