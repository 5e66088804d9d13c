#include "safetensors.h"

#include "json.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SHARDS 4096u

typedef struct shard {
    file_map map;
    json_t *header; /* names and metadata point into it */
} shard;

struct safetensors {
    shard *shards;
    uint32_t shards_count;
    safetensors_tensor *tensors;
    size_t count, capacity;
};

static const struct {
    const char *name;
    size_t size;
} dtypes[SAFETENSORS_DTYPE_COUNT] = {
    [SAFETENSORS_F32] = {"F32", 4},         [SAFETENSORS_F16] = {"F16", 2},
    [SAFETENSORS_BF16] = {"BF16", 2},       [SAFETENSORS_F64] = {"F64", 8},
    [SAFETENSORS_C64] = {"C64", 8},         [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1},
    [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1}, [SAFETENSORS_F8_E8M0] = {"F8_E8M0", 1},
    [SAFETENSORS_I64] = {"I64", 8},         [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_I16] = {"I16", 2},         [SAFETENSORS_I8] = {"I8", 1},
    [SAFETENSORS_U64] = {"U64", 8},         [SAFETENSORS_U32] = {"U32", 4},
    [SAFETENSORS_U16] = {"U16", 2},         [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_BOOL] = {"BOOL", 1},
};

const char *safetensors_dtype_name(safetensors_dtype dtype)
{
    return (size_t)dtype < COUNT_OF(dtypes) ? dtypes[dtype].name : "unknown dtype";
}

size_t safetensors_dtype_size(safetensors_dtype dtype)
{
    return (size_t)dtype < COUNT_OF(dtypes) ? dtypes[dtype].size : 0;
}

bool safetensors_dtype_to_dart(safetensors_dtype dtype, dart_dtype *out)
{
    switch (dtype) {
    case SAFETENSORS_F32: *out = DART_F32; return true;
    case SAFETENSORS_F16: *out = DART_F16; return true;
    case SAFETENSORS_BF16: *out = DART_BF16; return true;
    case SAFETENSORS_I32: *out = DART_I32; return true;
    default: return false;
    }
}

/* ---- The header ----------------------------------------------------------------------------------------------- */

static bool grow(void **array, size_t count, size_t *capacity, size_t item)
{
    if (count < *capacity) return true;
    const size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    if (wanted > SIZE_MAX / 2 / item) return false;
    void *grown = realloc(*array, wanted * item);
    if (grown == NULL) return false;
    *array = grown;
    *capacity = wanted;
    return true;
}

static dart_status check_metadata(json_t *metadata, const char *name, base_report *report)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) return base_fail(report, DART_BAD_DATA, "%s: __metadata__ is not an object", name);
    json_object_foreach (metadata, key, value)
        if (!json_is_string(value))
            return base_fail(report, DART_BAD_DATA, "%s: key %.100s of __metadata__ is not a string", name,
                             strpbrk(key, "\n\t") != NULL ? "of several lines or columns" : key);
    return DART_OK;
}

/* ---- Tensors -------------------------------------------------------------------------------------------------- */

static bool name_is_usable(const char *name) { return !base_has_controls(name); }

/* Fills elements and bytes from shape and dtype. */
static bool measure(safetensors_tensor *t)
{
    return base_product(t->shape, t->rank, &t->elements) &&
           base_mul(t->elements, safetensors_dtype_size(t->dtype), &t->bytes);
}

/* {"dtype": ..., "shape": [...], "data_offsets": [begin, end]} in any order. NULL, or what is wrong with it. */
static const char *take_tensor(const json_t *entry, safetensors_tensor *t, const uint8_t *data, uint64_t data_bytes)
{
    uint64_t offsets[2] = {0, 0};
    uint32_t offsets_count = 0;
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape"),
                 *places = json_object_get(entry, "data_offsets");
    if (!json_is_object(entry)) return "its description is not an object";
    if (dtype == NULL || shape == NULL || places == NULL) return "dtype, shape or data_offsets is missing";
    if (json_object_size(entry) != 3) return "its description has a key besides dtype, shape and data_offsets";
    if (!json_is_string(dtype)) return "dtype is not a string";
    size_t i = 0;
    while (i < COUNT_OF(dtypes) && strcmp(dtypes[i].name, json_string_value(dtype)) != 0) i++;
    if (i == COUNT_OF(dtypes)) return "dtype is unknown";
    t->dtype = (safetensors_dtype)i;
    if (!checkpoint_json_sizes(shape, t->shape, SAFETENSORS_MAX_RANK, &t->rank)) return "shape is not an array of sizes, or of too many";
    if (!checkpoint_json_sizes(places, offsets, 2, &offsets_count) || offsets_count != 2)
        return "data_offsets is not an array of two sizes";
    if (offsets[0] > offsets[1]) return "data_offsets are reversed";
    if (offsets[1] > data_bytes) return "data_offsets lie past the end of the file";
    if (!measure(t)) return "shape overflows";
    if (offsets[1] - offsets[0] != t->bytes) return "data_offsets do not match shape and dtype";
    t->data = data + offsets[0];
    return NULL;
}

static int compare_places(const void *a, const void *b)
{
    const safetensors_tensor *s = a, *t = b;
    const uintptr_t from = (uintptr_t)s->data, to = (uintptr_t)t->data;
    if (from != to) return from < to ? -1 : 1;
    return (s->bytes > t->bytes) - (s->bytes < t->bytes);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const safetensors_tensor *)a)->name, ((const safetensors_tensor *)b)->name);
}

/* Reads one file as shard number `index` and appends its tensors. */
static dart_status read_shard(safetensors *file, uint32_t index, const uint8_t *bytes, uint64_t size, const char *name,
                              base_report *report)
{
    uint64_t header = 0;
    if (size < 8) return base_fail(report, DART_BAD_DATA, "%s: too short for a safetensors file", name);
    for (unsigned i = 8; i-- > 0;) header = header << 8 | bytes[i];
    if (header > CHECKPOINT_MAX_JSON)
        return base_fail(report, DART_BAD_DATA, "%s: the header's length %" PRIu64 " exceeds %u", name, header, CHECKPOINT_MAX_JSON);
    if (header > size - 8)
        return base_fail(report, DART_BAD_DATA, "%s: the header's length %" PRIu64 " reaches past the end of the file",
                         name, header);
    if (header == 0 || bytes[8] != '{')
        return base_fail(report, DART_BAD_DATA, "%s: the header does not begin with {", name);
    const uint8_t *data = bytes + 8 + header;
    const uint64_t data_bytes = size - 8 - header;
    const size_t first = file->count;
    dart_status status = checkpoint_json_parse((const char *)bytes + 8, (size_t)header, name, report, &file->shards[index].header);
    if (status != DART_OK) return status;
    const char *key;
    json_t *value;
    json_object_foreach (file->shards[index].header, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            status = check_metadata(value, name, report);
            if (status != DART_OK) return status;
            continue;
        }
        if (!name_is_usable(key)) return base_fail(report, DART_BAD_DATA, "%s: a tensor's name holds a control character", name);
        void *array = file->tensors;
        const bool grown = grow(&array, file->count, &file->capacity, sizeof *file->tensors);
        file->tensors = array;
        if (!grown) return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory for the list of tensors", name);
        safetensors_tensor *t = &file->tensors[file->count];
        *t = (safetensors_tensor){.name = key, .shard = index};
        const char *wrong = take_tensor(value, t, data, data_bytes);
        if (wrong != NULL) return base_fail(report, DART_BAD_DATA, "%s: tensor %.200s: %s", name, key, wrong);
        file->count++;
    }

    qsort(file->tensors + first, file->count - first, sizeof *file->tensors, compare_places);
    const uint8_t *end = data;
    for (size_t i = first; i < file->count; i++) {
        const safetensors_tensor *t = &file->tensors[i];
        if (t->data != end)
            return base_fail(report, DART_BAD_DATA, "%s: tensor %.200s overlaps another one or follows a hole", name,
                             t->name);
        end += t->bytes;
    }
    if (end != data + data_bytes)
        return base_fail(report, DART_BAD_DATA, "%s: %" PRIu64 " bytes at the end belong to no tensor", name,
                         (uint64_t)(data + data_bytes - end));
    return DART_OK;
}

static dart_status sort_names(safetensors *file, const char *name, base_report *report)
{
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_names);
    for (size_t i = 1; i < file->count; i++)
        if (compare_names(&file->tensors[i - 1], &file->tensors[i]) == 0)
            return base_fail(report, DART_BAD_DATA, "%s: tensor %.200s stands twice", name, file->tensors[i].name);
    return DART_OK;
}

/* ---- Opening -------------------------------------------------------------------------------------------------- */

static dart_status make(uint32_t shards, const char *name, base_report *report, safetensors **out)
{
    safetensors *file = calloc(1, sizeof *file);
    shard *list = calloc(shards, sizeof *list);
    /* One place at once: an empty list is sorted and searched, too. */
    safetensors_tensor *tensors = malloc(sizeof *tensors);
    if (file == NULL || list == NULL || tensors == NULL) {
        free(file);
        free(list);
        free(tensors);
        return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory to open it", name);
    }
    file->shards = list;
    file->shards_count = shards;
    file->tensors = tensors;
    file->capacity = 1;
    *out = file;
    return DART_OK;
}

static dart_status map_shard(safetensors *file, uint32_t index, const char *path, base_report *report)
{
    file_map *map = &file->shards[index].map;
    dart_status status = file_map_open(path, report, map);
    return status == DART_OK ? read_shard(file, index, map->data, map->bytes, path, report) : status;
}

dart_status safetensors_open_memory(const void *data, uint64_t bytes, const char *name, base_report *report,
                                    safetensors **out)
{
    safetensors *file = NULL;
    dart_status status;
    TRY(make(1, name, report, &file));
    TRY(read_shard(file, 0, data, bytes, name, report));
    TRY(sort_names(file, name, report));
    *out = file;
    return DART_OK;
fail:
    safetensors_close(&file);
    return status;
}

static dart_status open_file(const char *path, base_report *report, safetensors **out)
{
    safetensors *file = NULL;
    dart_status status;
    TRY(make(1, path, report, &file));
    TRY(map_shard(file, 0, path, report));
    TRY(sort_names(file, path, report));
    *out = file;
    return DART_OK;
fail:
    safetensors_close(&file);
    return status;
}

/* A shard lies in the folder of its index: nothing in an index may point elsewhere. */
static bool shard_name_is_usable(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && strpbrk(name, "/\\:") == NULL && name_is_usable(name);
}

/* Numbers the files that weight_map names: *numbers maps a file's name to its shard. */
static dart_status number_shards(json_t *weight_map, const char *path, base_report *report, json_t *numbers)
{
    const char *tensor;
    json_t *value;
    json_object_foreach (weight_map, tensor, value) {
        const char *name = json_string_value(value);
        if (name == NULL)
            return base_fail(report, DART_BAD_DATA, "%s: the file of tensor %.200s is not a string", path, tensor);
        if (!shard_name_is_usable(name))
            return base_fail(report, DART_BAD_DATA, "%s: the file of tensor %.200s is not a plain file name", path,
                             tensor);
        if (json_object_get(numbers, name) != NULL) continue;
        const size_t number = json_object_size(numbers);
        if (number == MAX_SHARDS) return base_fail(report, DART_BAD_DATA, "%s: more than %u files", path, MAX_SHARDS);
        if (json_object_set_new(numbers, name, json_integer((json_int_t)number)) != 0)
            return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory for the list of files", path);
    }
    return DART_OK;
}

static dart_status open_index(const char *path, const char *folder, base_report *report, safetensors **out)
{
    safetensors *file = NULL;
    dart_status status;
    json_t *root = NULL, *numbers = json_object(), *value;
    char *shard_path = NULL;
    const char *name;
    file_map map = {NULL, 0};
    if (numbers == NULL) FAIL(report, DART_OUT_OF_MEMORY, "%s: no memory to open it", path);
    TRY(file_map_open(path, report, &map));
    if (map.bytes > CHECKPOINT_MAX_JSON) FAIL(report, DART_BAD_DATA, "%s: longer than %u bytes", path, CHECKPOINT_MAX_JSON);
    TRY(checkpoint_json_parse(map.bytes > 0 ? (const char *)map.data : "", (size_t)map.bytes, path, report, &root));
    json_t *weight_map = json_object_get(root, "weight_map");
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0)
        FAIL(report, DART_BAD_DATA, "%s: no weight_map", path);
    TRY(number_shards(weight_map, path, report, numbers));

    TRY(make((uint32_t)json_object_size(numbers), path, report, &file));
    json_object_foreach (numbers, name, value) {
        free(shard_path);
        shard_path = file_join(folder, name);
        if (shard_path == NULL) FAIL(report, DART_OUT_OF_MEMORY, "%s: no memory to open its files", path);
        TRY(map_shard(file, (uint32_t)json_integer_value(value), shard_path, report));
    }
    TRY(sort_names(file, path, report));
    json_object_foreach (weight_map, name, value) {
        const safetensors_tensor *t = safetensors_find(file, name);
        const json_int_t wanted = json_integer_value(json_object_get(numbers, json_string_value(value)));
        if (t == NULL || t->shard != (uint32_t)wanted)
            FAIL(report, DART_BAD_DATA, "%s: tensor %.200s is not in %.200s", path, name, json_string_value(value));
    }
    if (json_object_size(weight_map) != file->count)
        FAIL(report, DART_BAD_DATA, "%s: the files hold tensors that weight_map does not list", path);
    *out = file;
    file = NULL;
    status = DART_OK;
fail:
    safetensors_close(&file);
    free(shard_path);
    json_decref(root);
    json_decref(numbers);
    file_map_close(&map);
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

dart_status safetensors_open(const char *path, base_report *report, safetensors **out)
{
    const bool is_folder = file_is_folder(path), is_index = !is_folder && ends_with(path, ".json");
    dart_status status;
    if (!is_folder && !is_index) return open_file(path, report, out);
    char *folder = is_folder ? file_join(path, "") : file_folder(path);
    char *single = folder != NULL ? file_join(folder, "model.safetensors") : NULL;
    char *index = folder != NULL ? file_join(folder, "model.safetensors.index.json") : NULL;
    char *pickled = folder != NULL ? file_join(folder, "pytorch_model.bin") : NULL;
    if (single == NULL || index == NULL || pickled == NULL)
        status = base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory to open it", path);
    else if (is_index) status = open_index(path, folder, report, out);
    else if (file_exists(single)) status = open_file(single, report, out);
    else if (file_exists(index)) status = open_index(index, folder, report, out);
    else if (file_exists(pickled))
        status = base_fail(report, DART_UNSUPPORTED, "%s: pytorch_model.bin can hold programs and is not read; tools/to_safetensors.py makes "
                           "model.safetensors of it", path);
    else
        status =
            base_fail(report, DART_IO, "%s: neither model.safetensors nor model.safetensors.index.json is there", path);
    free(folder);
    free(single);
    free(index);
    free(pickled);
    return status;
}

void safetensors_close(safetensors **file)
{
    if (file == NULL || *file == NULL) return;
    for (uint32_t i = 0; i < (*file)->shards_count; i++) {
        file_map_close(&(*file)->shards[i].map);
        json_decref((*file)->shards[i].header);
    }
    free((*file)->shards);
    free((*file)->tensors);
    free(*file);
    *file = NULL;
}

size_t safetensors_count(const safetensors *file) { return file->count; }
const safetensors_tensor *safetensors_at(const safetensors *file, size_t index) { return &file->tensors[index]; }

const safetensors_tensor *safetensors_find(const safetensors *file, const char *name)
{
    const safetensors_tensor wanted = {.name = name};
    return bsearch(&wanted, file->tensors, file->count, sizeof *file->tensors, compare_names);
}

const char *safetensors_metadata(const safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->shards[0].header, "__metadata__"), key));
}

void safetensors_to_f32(const safetensors_tensor *tensor, uint64_t first, size_t count, float *to)
{
    union {
        float f32[256];
        uint16_t b16[256];
    } aligned;
    dart_dtype dtype;
    if (!safetensors_dtype_to_dart(tensor->dtype, &dtype)) return;
    const size_t size = dart_dtype_size(dtype);
    const uint8_t *from = (const uint8_t *)tensor->data + first * size;
    while (count > 0) {
        const size_t piece = count < COUNT_OF(aligned.f32) ? count : COUNT_OF(aligned.f32);
        memcpy(&aligned, from, piece * size);
        dart_to_f32(dtype, to, &aligned, piece);
        from += piece * size;
        to += piece;
        count -= piece;
    }
}
