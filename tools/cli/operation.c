#include "operation.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const dim_names[DIM_COUNT] = {"B", "L", "H", "G", "N", "P", "S",  "M",
                                                 "W", "V", "K", "C", "D", "T", "I", "IN", "OUT", "R", "PLAN"};

operation_dim operation_dim_of(const char *text, size_t length)
{
    for (int dim = 0; dim < DIM_COUNT; dim++)
        if (strlen(dim_names[dim]) == length && strncmp(dim_names[dim], text, length) == 0) return (operation_dim)dim;
    return DIM_COUNT;
}

/* ---- Shapes ---- */

/* One word of a shape: dims[dim] + add, or add alone when dim is DIM_COUNT. */
typedef struct word {
    operation_dim dim;
    int add;
} word;

/* false at the end of the text. */
static bool next_word(const char **text, word *w)
{
    const char *at = *text;
    while (*at == ' ') at++;
    if (*at == '\0') return false;
    size_t letters = 0;
    while (isupper((unsigned char)at[letters])) letters++;
    w->dim = letters > 0 ? operation_dim_of(at, letters) : DIM_COUNT;
    at += letters;
    char *end = NULL;
    w->add = 0;
    *text = at;
    if (*at != ' ' && *at != '\0') {
        w->add = (int)strtol(at, &end, 10);
        *text = end;
    }
    return true;
}

static uint32_t words_count(const char *shape)
{
    uint32_t count = 0;
    word w;
    while (next_word(&shape, &w)) count++;
    return count;
}

bool operation_mentions(const operation_tensor *tensor, operation_dim dim)
{
    const char *text = tensor->shape;
    word w;
    while (next_word(&text, &w))
        if (w.dim == dim) return true;
    return false;
}

static int misfit(const operation *o, size_t index, const uint64_t *shape, uint32_t rank, const char *where)
{
    const operation_tensor *t = &o->kind->tensors[index];
    char is[160], sizes[160] = "";
    size_t used = 0;
    for (int dim = 0; dim < DIM_COUNT; dim++)
        if (o->dims[dim] != 0 && used < sizeof sizes - 40 && operation_mentions(t, (operation_dim)dim))
            used += (size_t)snprintf(sizes + used, sizeof sizes - used, "%s%s is %" PRIu64, used > 0 ? ", " : " where ",
                                     dim_names[dim], o->dims[dim]);
    return cli_fail("%s: tensor %s has shape %s, %s expects [%s]%s", where, t->name, cli_shape(shape, rank, is),
                    o->kind->name, t->shape, sizes);
}

/* T takes the dimensions that the other words leave. */
static bool learn_lead(operation *o, const uint64_t *shape, uint32_t rank)
{
    uint64_t product = 0;
    if (!base_product(shape, rank, &product) || product == 0) return false;
    if (o->dims[DIM_T] != 0) return o->dims[DIM_T] == product;
    o->dims[DIM_T] = product;
    o->lead_rank = rank;
    memcpy(o->lead, shape, rank * sizeof *shape);
    return true;
}

int operation_learn(operation *o, size_t index, const uint64_t *shape, uint32_t rank, const char *where)
{
    const char *text = o->kind->tensors[index].shape;
    const uint32_t words = words_count(text);
    uint64_t short_shape[3];
    const uint64_t *given = shape;
    const uint32_t given_rank = rank;
    word w;
    /* Checkpoints keep the weights of a depthwise convolution as C x 1 x K. */
    if (strcmp(text, "C K") == 0 && rank == 3 && shape[1] == 1) {
        short_shape[0] = shape[0];
        short_shape[1] = shape[2];
        shape = short_shape;
        rank = 2;
    }
    const bool has_lead = strchr(text, 'T') != NULL && text[0] == 'T';
    if (has_lead ? rank + 1 < words : rank != words) return misfit(o, index, given, given_rank, where);
    uint32_t at = 0;
    while (next_word(&text, &w)) {
        if (w.dim == DIM_T) {
            const uint32_t lead = rank + 1 - words;
            if (!learn_lead(o, shape, lead)) return misfit(o, index, given, given_rank, where);
            at += lead;
            continue;
        }
        const uint64_t size = shape[at++];
        const int64_t value = (int64_t)size - w.add;
        if (size > UINT32_MAX || (w.dim == DIM_COUNT ? value != 0 : value <= 0))
            return misfit(o, index, given, given_rank, where);
        if (w.dim == DIM_COUNT) continue;
        if (o->dims[w.dim] != 0 && o->dims[w.dim] != (uint64_t)value) return misfit(o, index, given, given_rank, where);
        o->dims[w.dim] = (uint64_t)value;
    }
    return CLI_OK;
}

int operation_shape(const operation *o, size_t index, uint64_t shape[SAFETENSORS_MAX_RANK], uint32_t *rank)
{
    const operation_tensor *t = &o->kind->tensors[index];
    const char *text = t->shape;
    uint32_t at = 0;
    word w;
    while (next_word(&text, &w)) {
        if (w.dim != DIM_COUNT && o->dims[w.dim] == 0)
            return cli_fail("%s: the size %s of %s is not known", o->kind->name, dim_names[w.dim], t->name);
        if (w.dim == DIM_T && o->lead_rank > 0) {
            for (uint32_t i = 0; i < o->lead_rank && at < SAFETENSORS_MAX_RANK; i++) shape[at++] = o->lead[i];
        } else if (at < SAFETENSORS_MAX_RANK) {
            shape[at++] = (w.dim == DIM_COUNT ? 0 : o->dims[w.dim]) + (uint64_t)(int64_t)w.add;
        }
    }
    *rank = at;
    return CLI_OK;
}

/* ---- Packed documents ---- */

int operation_pack(operation *o, const int32_t *cu, const char *where)
{
    operation_packing *p = &o->packing;
    const uint32_t T = (uint32_t)o->dims[DIM_L], R = (uint32_t)o->dims[DIM_R], S = o->settings.S;
    const size_t h = operation_index(o->kind, "h");
    if (dart_cu_check(cu, R, T, T) != DART_OK)
        return cli_fail("%s: cu must begin with 0, not fall, and end with at most L, %" PRIu32, where, T);
    if (o->dims[DIM_B] != 1) return cli_fail("%s: with cu B must be 1, not %" PRIu64, where, o->dims[DIM_B]);
    if (h < OPERATION_MAX_TENSORS && o->given[h]) return cli_fail("%s: h and cu exclude each other: a document begins without a state", where);
    p->R = R;
    p->slots = dart_packed_chunks(T, S, R);
    p->slot_of = malloc((size_t)(p->slots + 1) * sizeof *p->slot_of);
    if (p->slot_of == NULL) return cli_fail_memory();
    for (uint32_t r = 0; r < R; r++) {
        const uint32_t tokens = (uint32_t)(cu[r + 1] - cu[r]);
        if (tokens > p->longest) p->longest = tokens;
        for (uint32_t j = 0; j < dart_ssd_chunks(tokens, S, false); j++) p->slot_of[p->chunks++] = (uint32_t)cu[r] / S + r + j;
    }
    if (p->chunks == 0) return cli_fail("%s: the documents of cu are empty", where);
    if (o->dims[DIM_M] != 0 && o->dims[DIM_M] != p->chunks)
        return cli_fail("%s: there are %" PRIu64 " memories; documents of cu have %" PRIu64 " chunks", where, o->dims[DIM_M], p->chunks);
    o->dims[DIM_M] = p->chunks;
    return CLI_OK;
}

/* Rows of a tensor on the device, and where those of the file lie among them. */
typedef struct spread {
    uint64_t rows, file_rows;
    const uint32_t *row_of; /* NULL: at the end */
} spread;

static spread spread_of(const operation *o, size_t index)
{
    const operation_packing *p = &o->packing;
    const char *shape = o->kind->tensors[index].shape;
    if (p->R > 0 && strncmp(shape, "B M ", 4) == 0) return (spread){p->slots, p->chunks, p->slot_of};
    if (p->R > 0 && strcmp(shape, "B H N P") == 0) return (spread){p->R, 1, NULL};
    return (spread){1, 1, NULL};
}

static uint64_t row_of(const spread *s, uint64_t file_row) { return s->row_of != NULL ? s->row_of[file_row] : s->rows - 1; }

/* ---- Buffers ---- */

static dart_dtype stored_dtype(const operation *o, size_t index, dart_dtype dtype)
{
    const int flags = o->kind->tensors[index].flags;
    if ((flags & TENSOR_I32) != 0) return DART_I32;
    const bool raw = (flags & TENSOR_RAW) != 0 && !o->given[index + 1];
    return raw || (flags & TENSOR_F32) != 0 ? DART_F32 : dtype;
}

int32_t operation_setting(const operation_settings *settings, uint64_t i)
{
    enum { WORDS = 8 };
    int32_t words[WORDS] = {0, (int32_t)settings->top_k, (int32_t)(uint32_t)settings->seed, (int32_t)(settings->seed >> 32)};
    memcpy(words, &settings->temperature, sizeof settings->temperature);
    memcpy(words + 4, &settings->top_p, sizeof settings->top_p);
    memcpy(words + 5, &settings->min_p, sizeof settings->min_p);
    return words[i % WORDS];
}

int operation_place(operation *o, const cli_session *session, size_t index, dart_dtype dtype, const void *values)
{
    const operation_tensor *t = &o->kind->tensors[index];
    uint64_t shape[SAFETENSORS_MAX_RANK], count = 0, bytes = 0;
    uint32_t rank = 0;
    const spread s = spread_of(o, index);
    dtype = stored_dtype(o, index, dtype);
    const size_t size = dart_dtype_size(dtype);
    if (operation_shape(o, index, shape, &rank) != CLI_OK) return CLI_FAILED;
    const bool fits = base_product(shape, rank, &count);
    const uint64_t width = count / s.file_rows;
    if (!fits || !base_mul(width, s.rows, &count) || !base_mul(count, size, &bytes) || bytes > SIZE_MAX / 2 || bytes == 0)
        return cli_fail("%s: tensor %s is empty or too large", o->kind->name, t->name);
    dart_status status = dart_buffer_create(session->device, bytes, &o->tensors[index].buffer);
    if (status != DART_OK) return cli_fail_device(session, status);
    o->tensors[index].dtype = dtype;
    o->elements[index] = count;
    void *stored = NULL;
    if (values == NULL || size == 2 || s.rows > 1) {
        stored = calloc(1, (size_t)bytes);
        if (stored == NULL) return cli_fail_memory();
        for (uint64_t i = 0; i < count && values == NULL && (t->flags & TENSOR_SETTINGS) != 0; i++)
            ((int32_t *)stored)[i] = operation_setting(&o->settings, i);
        for (uint64_t i = 0; i < s.file_rows && values != NULL; i++) {
            void *to = (char *)stored + row_of(&s, i) * width * size;
            const char *from = (const char *)values + i * width * sizeof(float);
            if (size == 2) dart_from_f32(dtype, to, (const float *)(const void *)from, (size_t)width);
            else memcpy(to, from, (size_t)width * size);
        }
    }
    status = dart_buffer_write(o->tensors[index].buffer, 0, stored != NULL ? stored : values, bytes);
    free(stored);
    return status == DART_OK ? CLI_OK : cli_fail_device(session, status);
}

int operation_read(const operation *o, const cli_session *session, size_t index, void **values)
{
    const dart_tensor *t = &o->tensors[index];
    const size_t count = (size_t)o->elements[index], size = dart_dtype_size(t->dtype);
    void *stored = malloc(count * size), *wide = size == 2 ? malloc(count * sizeof(float)) : NULL;
    if (stored == NULL || (size == 2 && wide == NULL)) {
        free(stored);
        free(wide);
        return cli_fail_memory();
    }
    const dart_status status = dart_buffer_read(t->buffer, 0, stored, count * size);
    if (status != DART_OK) {
        free(stored);
        free(wide);
        return cli_fail_device(session, status);
    }
    *values = stored;
    if (wide != NULL) {
        dart_to_f32(t->dtype, wide, stored, count);
        free(stored);
        *values = wide;
    }
    const spread s = spread_of(o, index);
    const size_t row = count / (size_t)s.rows * sizeof(float);
    for (uint64_t i = 0; i < s.file_rows && s.rows > 1; i++)
        memmove((char *)*values + i * row, (char *)*values + row_of(&s, i) * row, row);
    return CLI_OK;
}

size_t operation_index(const operation_kind *kind, const char *name)
{
    for (size_t i = 0; i < OPERATION_MAX_TENSORS && kind->tensors[i].name != NULL; i++)
        if (strcmp(kind->tensors[i].name, name) == 0) return i;
    return OPERATION_MAX_TENSORS;
}

bool operation_is_output(const operation *o, size_t index)
{
    return o->kind->tensors[index].name != NULL && (o->kind->tensors[index].flags & TENSOR_OUT) != 0 &&
           o->tensors[index].buffer != NULL;
}

void operation_release(operation *o)
{
    for (size_t i = 0; i < OPERATION_MAX_TENSORS; i++) dart_buffer_destroy(&o->tensors[i].buffer);
    free(o->packing.slot_of);
    o->packing.slot_of = NULL;
}
