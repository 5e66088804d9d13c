/* Probes of matrix hardware when a device is opened: advertised is not the same as right, and some rows of the table rely on what no
 * specification promises. Each probe runs the very operation on numbers whose result is exact; where a result differs, the device
 * goes on without the capabilities that stand for it, so that the next rows of the table are taken. */
#include "probe.h"
#include "op.h"

#include <stdlib.h>
#include <string.h>

enum { SIDE = 16, ELEMENTS = SIDE * SIDE, MOST_BUFFERS = 9 };

/* A launch of one probe, and what it reads and writes. */
typedef struct probe {
    dart_device *device;
    dart_dtype dtype; /* of the matrices */
    dart_stream *stream;
    dart_buffer *buffers[MOST_BUFFERS];
} probe;

static dart_status put(probe *p, uint32_t binding, const void *data, uint64_t bytes)
{
    const dart_status status = dart_buffer_create(p->device, bytes, &p->buffers[binding]);
    return status == DART_OK ? dart_buffer_write(p->buffers[binding], 0, data, bytes) : status;
}

/* Outputs start as 0xFF, which is no number and no result of a probe. */
static dart_status make_output(probe *p, uint32_t binding, uint64_t bytes)
{
    unsigned char ones[ELEMENTS * sizeof(float)];
    memset(ones, 0xff, sizeof ones);
    return put(p, binding, ones, bytes);
}

static dart_status launch(probe *p, kernel_id id)
{
    op_call call;
    struct MatrixCheckArgs k = {.side = SIDE};
    dart_status status = dart_stream_create(p->device, NULL, &p->stream);
    if (status == DART_OK) status = op_begin(&call, p->stream, "probe");
    if (status != DART_OK) return status;
    op_kernel(&call, id, SIDE, p->dtype == DART_BF16 ? FITS_BF16 : FITS_F16);
    op_operand operands[MOST_BUFFERS];
    op_binding bindings[MOST_BUFFERS];
    const uint32_t count = kernel_table[id].bindings_count;
    for (uint32_t i = 0; i < count; i++) {
        operands[i] = (op_operand){.of = {.buffer = p->buffers[i], .dtype = DART_F32}, .rows = 1,
                                   .width = dart_buffer_bytes(p->buffers[i]) / sizeof(float)};
        bindings[i] = (op_binding){.slot = i, .operand = &operands[i]};
    }
    op_launch(&call, &k, 1, bindings, count);
    status = op_end(&call);
    if (status == DART_OK) status = dart_stream_submit(p->stream);
    return status == DART_OK ? dart_stream_wait(p->stream, UINT64_MAX) : status;
}

static void release(probe *p)
{
    dart_stream_destroy(&p->stream);
    for (size_t i = 0; i < COUNT_OF(p->buffers); i++) dart_buffer_destroy(&p->buffers[i]);
}

static bool same(float a, float b) { return a >= b && a <= b; }

/* ---- Products ---- */

/* Small integers of both signs, exact in every type, and different in every row and column. */
static float element_a(int i, int k) { return (float)((5 * i + 3 * k + i * k) % 17 - 8); }
static float element_b(int k, int j) { return (float)((7 * k + 11 * j + 2 * k * j) % 15 - 7); }
/* Where sums start: a 16-bit accumulator could not keep the half. */
static float element_r(int i) { return 4096.5f + (float)i; }

static bool is_product(const float *y)
{
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            float sum = element_r(i);
            for (int k = 0; k < SIDE; k++) sum += element_a(i, k) * element_b(k, j);
            if (!same(y[i * SIDE + j], 2 * sum)) return false;
        }
    return true;
}

/* Capabilities among `kinds` that hold. */
static dart_status check_products(dart_device *device, dart_dtype dtype, uint32_t kinds, uint32_t *right)
{
    probe p = {.device = device, .dtype = dtype};
    float a[ELEMENTS], b[ELEMENTS], r[SIDE], y[ELEMENTS];
    uint16_t a16[ELEMENTS], b16[ELEMENTS];
    dart_status status = DART_OK;
    for (int i = 0; i < ELEMENTS; i++) {
        a[i] = element_a(i / SIDE, i % SIDE);
        b[i] = element_b(i / SIDE, i % SIDE);
    }
    for (int i = 0; i < SIDE; i++) r[i] = element_r(i);
    dart_from_f32(dtype, a16, a, ELEMENTS);
    dart_from_f32(dtype, b16, b, ELEMENTS);
    TRY(put(&p, BINDING_matrix_check_a, a16, sizeof a16));
    TRY(put(&p, BINDING_matrix_check_b, b16, sizeof b16));
    TRY(put(&p, BINDING_matrix_check_r, r, sizeof r));
    TRY(make_output(&p, BINDING_matrix_check_y, sizeof y));
    TRY(launch(&p, KERNEL_matrix_check));
    TRY(dart_buffer_read(p.buffers[BINDING_matrix_check_y], 0, y, sizeof y));
    *right = is_product(y) ? kinds : 0;
fail:
    release(&p);
    return status;
}

/* ---- Matrices as sums, reduced, converted and taken apart ---- */

/* Numbers of 12 binary digits, which bf16 has not: half of them are cut and rounded differently. Sums of a row or column are exact. */
static float element_sum(int i, int j) { return (float)((i * SIDE + j) * 29 % 2048 + 2048) * (j % 2 == 0 ? 1.0f : -1.0f); }

/* The upper half of an f32 that is no NaN; as an f16 every exponent occurs, so zeros, subnormal numbers, infinities and NaNs do. */
static uint32_t pattern(int i)
{
    const uint32_t sign = (uint32_t)i & 1, exponent = (uint32_t)i / 2 % 32, digits = (uint32_t)i * 677 % 1024;
    const uint32_t bits = sign << 15 | exponent << 10 | digits;
    return (bits & 0x7f80) == 0x7f80 ? bits & ~0x80u : bits;
}

static bool is_reduced(const float *y, const float *columns)
{
    for (int i = 0; i < SIDE; i++) {
        float row = 0, column = 0;
        for (int j = 0; j < SIDE; j++) {
            row += element_sum(i, j);
            column += element_sum(j, i);
        }
        for (int j = 0; j < SIDE; j++)
            if (!same(y[i * SIDE + j], row) || !same(columns[j * SIDE + i], column)) return false;
    }
    return true;
}

static bool is_numbered(const float *y)
{
    for (int i = 0; i < ELEMENTS; i++)
        if (!same(y[i], 2 * element_sum(i / SIDE, i % SIDE) + (float)i)) return false;
    return true;
}

static bool is_cut(const uint16_t *y)
{
    for (int i = 0; i < ELEMENTS; i++) {
        const float value = element_sum(i / SIDE, i % SIDE);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (y[i] != bits >> 16) return false;
    }
    return true;
}

/* f16 has 11 digits, so that elements are even or not exact: the neighbours of an inexact one count as right. */
static bool is_placed(const uint16_t *y)
{
    float values[ELEMENTS];
    dart_to_f32(DART_F16, values, y, ELEMENTS);
    for (int i = 0; i < ELEMENTS; i++) {
        const float apart = values[i] - element_sum(i / SIDE, i % SIDE);
        if (!(apart >= -1 && apart <= 1)) return false;
    }
    return true;
}

static bool is_moved(const uint16_t *y)
{
    for (int i = 0; i < ELEMENTS; i++)
        if (y[i] != pattern(i)) return false;
    return true;
}

static bool is_joined(const uint32_t *y)
{
    for (int i = 0; i < ELEMENTS; i++)
        if (y[i] != (pattern(i) | pattern((i + 1) % ELEMENTS) << 16)) return false;
    return true;
}

static dart_status check_sums(dart_device *device, dart_dtype dtype, uint32_t kinds, uint32_t *right)
{
    probe p = {.device = device, .dtype = dtype};
    float a[ELEMENTS], reduced[ELEMENTS], summed[ELEMENTS], numbered[ELEMENTS];
    uint32_t patterns[ELEMENTS], joined[ELEMENTS];
    uint16_t converted[ELEMENTS], placed[ELEMENTS], moved[ELEMENTS];
    const struct { uint32_t binding; void *data; uint64_t bytes; } outputs[] = {
        {BINDING_matrix2_check_reduced, reduced, sizeof reduced}, {BINDING_matrix2_check_summed, summed, sizeof summed},
        {BINDING_matrix2_check_numbered, numbered, sizeof numbered},
        {BINDING_matrix2_check_converted, converted, sizeof converted}, {BINDING_matrix2_check_placed, placed, sizeof placed},
        {BINDING_matrix2_check_moved, moved, sizeof moved}, {BINDING_matrix2_check_joined, joined, sizeof joined}};
    dart_status status = DART_OK;
    for (int i = 0; i < ELEMENTS; i++) {
        a[i] = element_sum(i / SIDE, i % SIDE);
        patterns[i] = pattern(i) << 16;
    }
    TRY(put(&p, BINDING_matrix2_check_a, a, sizeof a));
    TRY(put(&p, BINDING_matrix2_check_patterns, patterns, sizeof patterns));
    for (size_t i = 0; i < COUNT_OF(outputs); i++) TRY(make_output(&p, outputs[i].binding, outputs[i].bytes));
    TRY(launch(&p, KERNEL_matrix2_check));
    for (size_t i = 0; i < COUNT_OF(outputs); i++) TRY(dart_buffer_read(p.buffers[outputs[i].binding], 0, outputs[i].data, outputs[i].bytes));
    *right = kinds;
    if (!is_reduced(reduced, summed) || !is_numbered(numbered)) *right &= ~(uint32_t)DART_CAP_MATRIX2;
    if (dtype == DART_BF16 && !is_cut(converted)) *right &= ~(uint32_t)DART_CAP_MATRIX_CUTS;
    if (!is_placed(placed) || !is_moved(moved) || !is_joined(joined)) *right &= ~(uint32_t)DART_CAP_MATRIX_PLACES;
fail:
    release(&p);
    return status;
}

/* ---- Workgroups that wait for one another ---- */

enum { ROUNDS = 16, MOST_GROUPS = 1024 };

static dart_status check_resident(dart_device *device, dart_dtype dtype, uint32_t kinds, uint32_t *right)
{
    (void)dtype;
    probe p = {.device = device};
    op_call call;
    const uint32_t groups = device->info.multiprocessors != 0 ? device->info.multiprocessors : 1;
    struct ResidentCheckArgs k = {.rounds = ROUNDS};
    float *r = calloc(groups, sizeof *r);
    dart_status status = r != NULL && groups <= MOST_GROUPS ? DART_OK : DART_UNSUPPORTED;
    if (status == DART_OK) status = dart_stream_create(device, NULL, &p.stream);
    if (status == DART_OK) status = op_begin(&call, p.stream, "probe");
    if (status != DART_OK) goto fail;
    const op_operand posts = op_posts(&call, 2 * groups), results = op_scratch(&call, DART_F32, 1, groups);
    op_kernel(&call, KERNEL_resident_check, 1, 0);
    OP_LAUNCH(&call, &k, groups, OP_WHOLE(resident_check, posts, &posts), OP_WHOLE(resident_check, r, &results));
    TRY(op_end(&call));
    TRY(dart_stream_submit(p.stream));
    TRY(dart_stream_wait(p.stream, UINT64_MAX));
    TRY(dart_buffer_read(results.of.buffer, results.of.offset * sizeof *r, r, groups * sizeof *r));
    const uint32_t numbers = groups * (groups - 1) / 2, rounds = 256 * (ROUNDS * (ROUNDS + 1) / 2), all = ROUNDS * numbers + groups * rounds;
    *right = kinds;
    for (uint32_t i = 0; i < groups; i++)
        if (!same(r[i], (float)all)) *right = 0;
fail:
    free(r);
    release(&p);
    return status;
}

/* ---- All of them ---- */

/* Which capabilities a probe decides about, and what the device needs for it to run. */
static const struct {
    dart_status (*check)(dart_device *device, dart_dtype dtype, uint32_t kinds, uint32_t *right);
    dart_dtype dtype;
    uint32_t needs, kinds;
    const char *what;
} probes[] = {
    {check_products, DART_F16, DART_CAP_MATRIX_F16, DART_CAP_MATRIX_F16, "f16 matrix products"},
    {check_products, DART_BF16, DART_CAP_MATRIX_BF16, DART_CAP_MATRIX_BF16, "bf16 matrix products"},
    {check_sums, DART_F16, DART_CAP_MATRIX2 | DART_CAP_MATRIX_F16, DART_CAP_MATRIX2 | DART_CAP_MATRIX_PLACES, "f16 matrices taken apart"},
    {check_sums, DART_BF16, DART_CAP_MATRIX2 | DART_CAP_MATRIX_BF16, DART_CAP_MATRIX2 | DART_CAP_MATRIX_PLACES | DART_CAP_MATRIX_CUTS,
     "bf16 matrices taken apart"},
    {check_resident, DART_F32, DART_CAP_ADDRESSES | DART_CAP_RESIDENT, DART_CAP_RESIDENT, "workgroups that wait for one another"},
};

dart_status device_probe(dart_device *device, uint32_t wrong)
{
    uint32_t *const capabilities = &device->info.capabilities;
    for (size_t i = 0; i < COUNT_OF(probes); i++) {
        if ((*capabilities & probes[i].needs) != probes[i].needs) continue;
        uint32_t right = 0;
        const dart_status status = probes[i].check(device, probes[i].dtype, probes[i].kinds, &right);
        /* A driver that cannot compile or run it goes without; what would fail for other work too is passed on. */
        if (status == DART_DEVICE_LOST || status == DART_OUT_OF_MEMORY) return status;
        if (status != DART_OK) right = 0;
        const uint32_t lost = *capabilities & probes[i].kinds & ~(right & ~wrong);
        if (lost == 0) continue;
        *capabilities &= ~lost;
        if (device->report.log != NULL)
            base_log_line(device->report.log, DART_LOG_WARNING, "%s: %s are wrong or do not run: done without", device->info.name, probes[i].what);
    }
    const uint32_t types = DART_CAP_MATRIX_F16 | DART_CAP_MATRIX_BF16;
    if ((*capabilities & types) == 0) *capabilities &= ~(uint32_t)DART_CAP_MATRIX2;
    if ((*capabilities & DART_CAP_MATRIX2) == 0) *capabilities &= ~(uint32_t)(DART_CAP_MATRIX_CUTS | DART_CAP_MATRIX_PLACES);
    return DART_OK;
}
