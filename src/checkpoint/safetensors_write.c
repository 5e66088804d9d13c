#include "safetensors.h"

#include "json.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_ALIGN 8u /* the largest element: data behind the header then is aligned in a mapping */

/* Larger elements first, so that every tensor starts at a multiple of its element's size. */
static int compare_sizes(const void *a, const void *b)
{
    const safetensors_tensor *s = a, *t = b;
    const size_t from = safetensors_dtype_size(s->dtype), to = safetensors_dtype_size(t->dtype);
    if (from != to) return from > to ? -1 : 1;
    return strcmp(s->name, t->name);
}

static dart_status check_entry(safetensors_tensor *t, const json_t *header, const char *path, base_report *report)
{
    const char *name = t->name;
    REQUIRE(report, base_is_utf8(name), "%s: a tensor's name is not UTF-8", path);
    REQUIRE(report, !base_has_controls(name), "%s: a tensor's name holds a control character", path);
    REQUIRE(report, strcmp(name, "__metadata__") != 0, "%s: a tensor cannot be called %s", path, name);
    REQUIRE(report, json_object_get(header, name) == NULL, "%s: tensor %.200s stands twice", path, name);
    const size_t size = safetensors_dtype_size(t->dtype);
    REQUIRE(report, size > 0, "%s: tensor %.200s has an unknown dtype", path, name);
    REQUIRE(report, t->rank <= SAFETENSORS_MAX_RANK, "%s: tensor %.200s has more than %d dimensions", path, name,
            SAFETENSORS_MAX_RANK);
    for (uint32_t i = 0; i < t->rank; i++)
        REQUIRE(report, t->shape[i] <= INT64_MAX, "%s: the shape of tensor %.200s overflows", path, name);
    REQUIRE(report, base_product(t->shape, t->rank, &t->elements) && base_mul(t->elements, size, &t->bytes),
            "%s: the shape of tensor %.200s overflows", path, name);
    REQUIRE(report, t->data != NULL || t->bytes == 0, "%s: tensor %.200s has no data", path, name);
    return DART_OK;
}

/* Adds the description of t to the header, its data at *end. */
static dart_status describe(json_t *header, const safetensors_tensor *t, uint64_t *end, const char *path,
                            base_report *report)
{
    uint64_t next;
    REQUIRE(report, base_add(*end, t->bytes, &next) && next <= INT64_MAX, "%s: the tensors are too large", path);
    json_t *shape = json_array();
    for (uint32_t i = 0; i < t->rank; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)t->shape[i])) != 0) goto fail;
    json_t *entry = json_pack("{s:s, s:O, s:[I, I]}", "dtype", safetensors_dtype_name(t->dtype), "shape", shape,
                              "data_offsets", (json_int_t)*end, (json_int_t)next);
    if (json_object_set_new(header, t->name, entry) != 0) goto fail;
    json_decref(shape);
    *end = next;
    return DART_OK;
fail:
    json_decref(shape);
    return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory for the header", path);
}

/* For free(); NULL without memory. Into a buffer of the right size: json_dumps leaves out keys that it finds no memory for. */
static char *text_of(const json_t *header, size_t *length)
{
    *length = json_dumpb(header, NULL, 0, JSON_COMPACT);
    char *text = *length > 0 ? malloc(*length) : NULL;
    if (text != NULL && json_dumpb(header, text, *length, JSON_COMPACT) == *length) return text;
    free(text);
    return NULL;
}

dart_status safetensors_write(const char *path, const safetensors_tensor *entries, size_t count, base_report *report)
{
    return safetensors_write_with(path, entries, count, NULL, 0, NULL, report);
}

dart_status safetensors_write_with(const char *path, const safetensors_tensor *entries, size_t count, const safetensors_pair *pairs,
                                   size_t pairs_count, base_progress *progress, base_report *report)
{
    dart_status status;
    safetensors_tensor *sorted = NULL;
    file_writer *writer = NULL;
    char *text = NULL;
    uint64_t end = 0;
    size_t length;
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    if (header == NULL || count > SIZE_MAX / sizeof *sorted - 1)
        FAIL(report, DART_OUT_OF_MEMORY, "%s: no memory for the header", path);
    for (size_t i = 0; i < pairs_count; i++) {
        if (!base_is_utf8(pairs[i].value)) FAIL(report, DART_INVALID_ARGUMENT, "%s: %.100s of the metadata is not UTF-8", path, pairs[i].key);
        if (json_object_set_new(json_object_get(header, "__metadata__"), pairs[i].key, json_string(pairs[i].value)) != 0)
            FAIL(report, DART_OUT_OF_MEMORY, "%s: no memory for the header", path);
    }
    sorted = malloc((count + 1) * sizeof *sorted);
    if (sorted == NULL) FAIL(report, DART_OUT_OF_MEMORY, "%s: no memory for the header", path);
    if (count > 0) memcpy(sorted, entries, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_sizes);
    for (size_t i = 0; i < count; i++) {
        TRY(check_entry(&sorted[i], header, path, report));
        TRY(describe(header, &sorted[i], &end, path, report));
    }

    text = text_of(header, &length);
    if (text == NULL) FAIL(report, DART_OUT_OF_MEMORY, "%s: no memory for the header", path);
    const uint64_t padded = base_round_up(length, HEADER_ALIGN);
    if (padded > CHECKPOINT_MAX_JSON) FAIL(report, DART_INVALID_ARGUMENT, "%s: too many tensors for one file", path);
    uint8_t prefix[8];
    for (unsigned i = 0; i < 8; i++) prefix[i] = (uint8_t)(padded >> 8 * i);
    TRY(file_writer_open(path, report, &writer));
    TRY(file_writer_append(writer, prefix, sizeof prefix));
    TRY(file_writer_append(writer, text, length));
    TRY(file_writer_append(writer, "        ", padded - length));
    for (size_t i = 0; i < count; i++) {
        if (sorted[i].bytes > 0) TRY(file_writer_append(writer, sorted[i].data, sorted[i].bytes));
        TRY(base_advance(progress, 1, report, path));
    }
    status = file_writer_close(&writer);
fail:
    file_writer_destroy(&writer);
    free(text);
    free(sorted);
    json_decref(header);
    return status;
}
