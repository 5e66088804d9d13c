/* Inputs of an op that were not given: random, or a whole file as an example. */
#include "operation.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double uniform(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (double)((x ^ x >> 31) >> 11) / 9007199254740992.0;
}

static double value_of(const operation_tensor *t, uint64_t *random, double fan_in)
{
    const double u = uniform(random);
    if (strcmp(t->name, "a_log") == 0) return log(1 + 15 * u);
    if (strcmp(t->name, "dt") == 0) return 0.001 * pow(100, u);
    if (strcmp(t->name, "open_decay") == 0) return -u;
    if ((t->flags & TENSOR_POSITIVE) != 0) return u;
    const double normal = (u + uniform(random) + uniform(random) + uniform(random) - 2) * 1.7320508;
    if (strcmp(t->name, "weight") == 0 && fan_in > 0) return normal / sqrt(fan_in);
    return normal;
}

static void fill_integers(const operation *o, const operation_tensor *t, uint64_t *random, uint64_t count, int32_t *values)
{
    const bool is_seq = strcmp(t->name, "seq") == 0;
    for (uint64_t i = 0; i < count; i++) {
        if ((t->flags & TENSOR_SETTINGS) != 0) values[i] = operation_setting(&o->settings, i);
        else if (!is_seq) values[i] = (int32_t)(uniform(random) * (double)o->dims[DIM_V]);
        else if (i % 2 == 0)
            values[i] = strcmp(o->kind->name, "sma") == 0         ? (int32_t)(o->dims[DIM_M] * o->settings.S)
                        : strcmp(o->kind->name, "attention") == 0 ? (int32_t)(o->dims[DIM_C] - o->dims[DIM_L])
                                                                  : 0;
        else values[i] = (int32_t)(strcmp(o->kind->name, "sample") == 0 ? 1 : o->dims[DIM_L]);
    }
}

int operation_values(const operation *o, size_t index, uint64_t seed, void **values)
{
    const operation_tensor *t = &o->kind->tensors[index];
    uint64_t shape[SAFETENSORS_MAX_RANK], count = 0, random = seed * 1000 + index;
    uint32_t rank = 0;
    if (operation_shape(o, index, shape, &rank) != CLI_OK) return CLI_FAILED;
    if (!base_product(shape, rank, &count) || count > SIZE_MAX / 8) return cli_fail("%s: tensor %s is too large", o->kind->name, t->name);
    *values = malloc((size_t)count * 4);
    if (*values == NULL) return cli_fail_memory();
    if ((t->flags & TENSOR_I32) != 0) {
        fill_integers(o, t, &random, count, *values);
    } else {
        const double fan_in = rank > 1 ? (double)shape[rank - 1] : 0;
        for (uint64_t i = 0; i < count; i++) ((float *)*values)[i] = (float)value_of(t, &random, fan_in);
    }
    return CLI_OK;
}

static const struct {
    operation_dim dim;
    uint32_t size;
} example_sizes[] = {{DIM_B, 2},  {DIM_L, 40}, {DIM_H, 2}, {DIM_G, 1},  {DIM_N, 8},   {DIM_P, 8}, {DIM_T, 6}, {DIM_W, 16},
                     {DIM_V, 32}, {DIM_I, 16}, {DIM_IN, 16}, {DIM_OUT, 24}, {DIM_C, 24}, {DIM_K, 4}, {DIM_D, 8}};

int operation_example(operation *o, cli_session *session, const char *path)
{
    enum { CHUNK = 16 };
    safetensors_tensor entries[OPERATION_MAX_TENSORS];
    size_t count = 0;
    char S[16];
    int result = CLI_OK;
    for (size_t i = 0; i < COUNT_OF(example_sizes); i++) o->dims[example_sizes[i].dim] = example_sizes[i].size;
    if (o->settings.S == 0) o->settings.S = CHUNK;
    o->dims[DIM_S] = o->settings.S;
    o->dims[DIM_M] = base_ceil_div(o->dims[DIM_L], o->settings.S);
    if (o->kind->derive != NULL) o->kind->derive(o);
    for (size_t i = 0; o->kind->tensors[i].name != NULL && result == CLI_OK; i++) {
        const operation_tensor *t = &o->kind->tensors[i];
        void *values = NULL;
        if ((t->flags & TENSOR_IN) == 0 || (t->flags & (TENSOR_OPTIONAL | TENSOR_ZERO | TENSOR_SETTINGS)) != 0) continue;
        safetensors_tensor *entry = &entries[count];
        *entry = (safetensors_tensor){.name = t->name, .dtype = (t->flags & TENSOR_I32) != 0 ? SAFETENSORS_I32 : SAFETENSORS_F32};
        result = operation_shape(o, i, entry->shape, &entry->rank);
        if (result == CLI_OK) result = operation_values(o, i, o->settings.seed, &values);
        entry->data = values;
        if (result == CLI_OK) count++;
    }
    snprintf(S, sizeof S, "%" PRIu32, o->settings.S);
    if (result == CLI_OK) {
        const safetensors_pair pair = {"S", S};
        const dart_status status = safetensors_write_with(path, entries, count, &pair, 1, NULL, &session->report);
        if (status != DART_OK) result = cli_fail_file(session, status);
    }
    for (size_t i = 0; i < count; i++) free((void *)(uintptr_t)entries[i].data);
    return result;
}
