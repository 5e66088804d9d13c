#include "safetensors.h"

#include "cursor.h"
#include "base/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_INDEX_BYTES 16777216u
#define MAX_SHARDS 4096u

typedef struct pair {
    const char *key, *value;
} pair;

typedef struct shard {
    file_map map;
    char *header; /* copy of the JSON, decoded in place: names and metadata point into it */
} shard;

struct safetensors {
    shard *shards;
    uint32_t shards_count;
    safetensors_tensor *tensors;
    size_t count, capacity;
    pair *metadata;
    size_t metadata_count;
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

static int compare_pairs(const void *a, const void *b)
{
    return strcmp(((const pair *)a)->key, ((const pair *)b)->key);
}

static dart_status take_metadata(cursor *c, safetensors *file, bool keep)
{
    dart_status status = DART_OK;
    pair *pairs = NULL;
    size_t count = 0, capacity = 0;
    if (!cursor_take(c, '{')) return cursor_fail(c, "__metadata__ is not an object");
    if (cursor_take(c, '}')) return DART_OK;
    do {
        void *array = pairs;
        const bool grown = grow(&array, count, &capacity, sizeof *pairs);
        pairs = array;
        if (!grown) FAIL(c->report, DART_OUT_OF_MEMORY, "%s: no memory for the metadata", c->file);
        TRY(cursor_string(c, &pairs[count].key));
        if (!cursor_take(c, ':')) {
            status = cursor_fail(c, "expected :");
            goto fail;
        }
        TRY(cursor_string(c, &pairs[count].value));
        count++;
    } while (cursor_take(c, ','));
    if (!cursor_take(c, '}')) {
        status = cursor_fail(c, "expected , or } in __metadata__");
        goto fail;
    }
    qsort(pairs, count, sizeof *pairs, compare_pairs);
    for (size_t i = 1; i < count; i++)
        if (strcmp(pairs[i - 1].key, pairs[i].key) == 0)
            FAIL(c->report, DART_BAD_DATA, "%s: key %.100s stands twice in __metadata__", c->file, pairs[i].key);
    if (keep) {
        file->metadata = pairs;
        file->metadata_count = count;
        return DART_OK;
    }
fail:
    free(pairs);
    return status;
}

/* ---- Tensors -------------------------------------------------------------------------------------------------- */

static bool name_is_usable(const char *name)
{
    for (; *name != '\0'; name++)
        if ((unsigned char)*name < 0x20 || *name == 0x7F) return false;
    return true;
}

/* Fills elements and bytes from shape and dtype. */
static bool measure(safetensors_tensor *t)
{
    return base_product(t->shape, t->rank, &t->elements) &&
           base_mul(t->elements, safetensors_dtype_size(t->dtype), &t->bytes);
}

/* {"dtype": ..., "shape": [...], "data_offsets": [begin, end]} in any order. */
static dart_status take_tensor(cursor *c, safetensors_tensor *t, const uint8_t *data, uint64_t data_bytes)
{
    enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };
    unsigned has = 0;
    uint64_t offsets[2] = {0, 0};
    uint32_t offsets_count = 0;
    dart_status status;
    if (!cursor_take(c, '{')) return cursor_fail(c, "expected the description of a tensor");
    do {
        const char *key, *dtype;
        unsigned bit;
        TRY(cursor_string(c, &key));
        if (!cursor_take(c, ':')) return cursor_fail(c, "expected :");
        if (strcmp(key, "dtype") == 0) {
            bit = HAS_DTYPE;
            TRY(cursor_string(c, &dtype));
            size_t i = 0;
            while (i < COUNT_OF(dtypes) && strcmp(dtypes[i].name, dtype) != 0) i++;
            if (i == COUNT_OF(dtypes)) return cursor_fail(c, "unknown dtype");
            t->dtype = (safetensors_dtype)i;
        } else if (strcmp(key, "shape") == 0) {
            bit = HAS_SHAPE;
            TRY(cursor_sizes(c, t->shape, SAFETENSORS_MAX_RANK, &t->rank));
        } else if (strcmp(key, "data_offsets") == 0) {
            bit = HAS_OFFSETS;
            TRY(cursor_sizes(c, offsets, 2, &offsets_count));
            if (offsets_count != 2) return cursor_fail(c, "data_offsets needs two integers");
        } else {
            return cursor_fail(c, "unknown key in the description of a tensor");
        }
        if ((has & bit) != 0) return cursor_fail(c, "a key stands twice");
        has |= bit;
    } while (cursor_take(c, ','));
    if (!cursor_take(c, '}')) return cursor_fail(c, "expected , or }");
    if (has != HAS_ALL) return cursor_fail(c, "a tensor lacks dtype, shape or data_offsets");
    if (offsets[0] > offsets[1]) return cursor_fail(c, "data_offsets are reversed");
    if (offsets[1] > data_bytes) return cursor_fail(c, "data_offsets lie past the end of the file");
    if (!measure(t)) return cursor_fail(c, "a shape overflows");
    if (offsets[1] - offsets[0] != t->bytes) return cursor_fail(c, "data_offsets do not match shape and dtype");
    t->data = data + offsets[0];
    return DART_OK;
fail:
    return status;
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
    if (header > SAFETENSORS_MAX_HEADER)
        return base_fail(report, DART_BAD_DATA, "%s: the header's length %" PRIu64 " exceeds %u", name, header,
                         SAFETENSORS_MAX_HEADER);
    if (header > size - 8)
        return base_fail(report, DART_BAD_DATA, "%s: the header's length %" PRIu64 " reaches past the end of the file",
                         name, header);
    if (header == 0 || bytes[8] != '{')
        return base_fail(report, DART_BAD_DATA, "%s: the header does not begin with {", name);
    char *text = malloc((size_t)header + 1);
    if (text == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory for the header", name);
    file->shards[index].header = text;
    memcpy(text, bytes + 8, (size_t)header);
    text[header] = '\0';

    const uint8_t *data = bytes + 8 + header;
    const uint64_t data_bytes = size - 8 - header;
    const size_t first = file->count;
    cursor cursor_at = {text, text, name, report}, *c = &cursor_at;
    bool has_metadata = false;
    dart_status status;
    (void)cursor_take(c, '{');
    if (!cursor_take(c, '}')) {
        do {
            const char *key;
            TRY(cursor_string(c, &key));
            if (!cursor_take(c, ':')) return cursor_fail(c, "expected :");
            if (strcmp(key, "__metadata__") == 0) {
                if (has_metadata) return cursor_fail(c, "__metadata__ stands twice");
                has_metadata = true;
                TRY(take_metadata(c, file, index == 0));
                continue;
            }
            if (!name_is_usable(key)) return cursor_fail(c, "a tensor's name holds a control character");
            void *array = file->tensors;
            const bool grown = grow(&array, file->count, &file->capacity, sizeof *file->tensors);
            file->tensors = array;
            if (!grown) return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory for the list of tensors", name);
            safetensors_tensor *t = &file->tensors[file->count];
            *t = (safetensors_tensor){.name = key, .shard = index};
            TRY(take_tensor(c, t, data, data_bytes));
            file->count++;
        } while (cursor_take(c, ','));
        if (!cursor_take(c, '}')) return cursor_fail(c, "expected , or }");
    }
    cursor_skip_space(c);
    if (c->at != text + header) return cursor_fail(c, "something follows the closing brace");

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
fail:
    return status;
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
    json_error_t error;
    json_t *root = NULL, *numbers = json_object(), *value;
    char *shard_path = NULL;
    const char *name;
    file_map map = {NULL, 0};
    if (numbers == NULL) FAIL(report, DART_OUT_OF_MEMORY, "%s: no memory to open it", path);
    TRY(file_map_open(path, report, &map));
    if (map.bytes > MAX_INDEX_BYTES) FAIL(report, DART_BAD_DATA, "%s: longer than %u bytes", path, MAX_INDEX_BYTES);
    root = json_loadb(map.bytes > 0 ? (const char *)map.data : "", (size_t)map.bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        FAIL(report, json_error_code(&error) == json_error_out_of_memory ? DART_OUT_OF_MEMORY : DART_BAD_DATA,
             "%s: line %d: %s", path, error.line, error.text);
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
    if (single == NULL || index == NULL)
        status = base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory to open it", path);
    else if (is_index) status = open_index(path, folder, report, out);
    else if (file_exists(single)) status = open_file(single, report, out);
    else if (file_exists(index)) status = open_index(index, folder, report, out);
    else
        status =
            base_fail(report, DART_IO, "%s: neither model.safetensors nor model.safetensors.index.json is there", path);
    free(folder);
    free(single);
    free(index);
    return status;
}

void safetensors_close(safetensors **file)
{
    if (file == NULL || *file == NULL) return;
    for (uint32_t i = 0; i < (*file)->shards_count; i++) {
        file_map_close(&(*file)->shards[i].map);
        free((*file)->shards[i].header);
    }
    free((*file)->shards);
    free((*file)->tensors);
    free((*file)->metadata);
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
    const pair wanted = {key, NULL};
    const pair *found = file->metadata_count > 0
                            ? bsearch(&wanted, file->metadata, file->metadata_count, sizeof wanted, compare_pairs)
                            : NULL;
    return found != NULL ? found->value : NULL;
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
