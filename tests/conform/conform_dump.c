#include "conform_dump.h"

#include "conform_data.h"

#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

static void keep(conform_dump *dump, const char *kind, const char *name, const conform_tensor *tensor, const double *values)
{
    const uint64_t count = tensor->rows * tensor->width;
    if (dump->count == CONFORM_MOST_DUMPED) abort();
    conform_dumped *entry = &dump->entries[dump->count++];
    snprintf(entry->name, sizeof entry->name, "%s.%s", kind, name);
    entry->rows = tensor->rows;
    entry->width = tensor->width;
    entry->values = calloc((size_t)count + 1, sizeof *entry->values);
    if (entry->values == NULL) abort();
    memcpy(entry->values, values, (size_t)count * sizeof *values);
}

void conform_dump_result(conform_dump *dump, const char *name, const conform_tensor *tensor, const double *got, const double *expected)
{
    keep(dump, "expected", name, tensor, expected);
    keep(dump, "got", name, tensor, got);
}

void conform_dump_ints(conform_dump *dump, const char *name, const conform_tensor *tensor, const int32_t *expected)
{
    const uint64_t row = tensor->t.row != 0 ? tensor->t.row : tensor->width, count = tensor->rows * tensor->width;
    double *got = calloc(2 * (size_t)count + 1, sizeof *got);
    if (got == NULL) abort();
    for (uint64_t i = 0; i < count; i++) {
        int32_t value;
        memcpy(&value, (const char *)tensor->initial + (tensor->t.offset + i / tensor->width * row + i % tensor->width) * sizeof value, sizeof value);
        got[i] = value;
        got[count + i] = expected[i];
    }
    conform_dump_result(dump, name, tensor, got, got + count);
    free(got);
}

void conform_dump_inputs(conform_dump *dump, const conform_data *d)
{
    for (uint32_t i = 0; i < d->tensors_count; i++) {
        const conform_tensor *tensor = d->tensors[i];
        char name[16];
        if (tensor->values == NULL) continue;
        snprintf(name, sizeof name, "%02u", i + 1);
        keep(dump, "input", name, tensor, tensor->values);
    }
}

bool conform_dump_write(conform_dump *dump, const char *path)
{
    safetensors_tensor entries[CONFORM_MOST_DUMPED];
    base_report report;
    if (base_report_init(&report, NULL) != DART_OK) abort();
    for (uint32_t i = 0; i < dump->count; i++)
        entries[i] = (safetensors_tensor){.name = dump->entries[i].name, .data = dump->entries[i].values, .dtype = SAFETENSORS_F64, .rank = 2,
                                          .shape = {dump->entries[i].rows, dump->entries[i].width}};
    const bool written = safetensors_write(path, entries, dump->count, &report) == DART_OK;
    base_report_destroy(&report);
    return written;
}

void conform_dump_free(conform_dump *dump)
{
    while (dump->count > 0) free(dump->entries[--dump->count].values);
}
