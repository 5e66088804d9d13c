/* The check of matrix hardware when a device is opened: advertised is not the same as right. */
#include "stream.h"

#include <stdio.h>

enum { SIDE = 16, ELEMENTS = SIDE * SIDE };

/* Small integers of both signs, exact in every type, and different in every row and column. */
static float element_a(int i, int k) { return (float)((5 * i + 3 * k + i * k) % 17 - 8); }
static float element_b(int k, int j) { return (float)((7 * k + 11 * j + 2 * k * j) % 15 - 7); }
/* Where sums start: a 16-bit accumulator could not keep the half. */
static float element_r(int i) { return 4096.5f + (float)i; }

static bool is_right(const float *y)
{
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            float sum = element_r(i);
            for (int k = 0; k < SIDE; k++) sum += element_a(i, k) * element_b(k, j);
            if (!(y[i * SIDE + j] >= sum && y[i * SIDE + j] <= sum)) return false;
        }
    return true;
}

typedef struct check {
    dart_device *device;
    dart_dtype dtype;
    dart_buffer *buffers[4]; /* a, b, r, y */
    dart_stream *stream;
} check;

static dart_status put(check *c, int which, dart_dtype dtype, const float *values, size_t count)
{
    uint32_t bits[ELEMENTS];
    const uint64_t bytes = count * dart_dtype_size(dtype);
    const dart_status status = dart_buffer_create(c->device, bytes, &c->buffers[which]);
    dart_from_f32(dtype, bits, values, count);
    return status == DART_OK ? dart_buffer_write(c->buffers[which], 0, bits, bytes) : status;
}

static dart_status run(check *c, bool *right)
{
    float a[ELEMENTS], b[ELEMENTS], r[SIDE], y[ELEMENTS] = {0};
    op_call call;
    dart_status status = DART_OK;
    for (int i = 0; i < ELEMENTS; i++) {
        a[i] = element_a(i / SIDE, i % SIDE);
        b[i] = element_b(i / SIDE, i % SIDE);
    }
    for (int i = 0; i < SIDE; i++) r[i] = element_r(i);
    TRY(put(c, BINDING_matrix_check_a, c->dtype, a, ELEMENTS));
    TRY(put(c, BINDING_matrix_check_b, c->dtype, b, ELEMENTS));
    TRY(put(c, BINDING_matrix_check_r, DART_F32, r, SIDE));
    TRY(put(c, BINDING_matrix_check_y, DART_F32, y, ELEMENTS));
    TRY(dart_stream_create(c->device, NULL, &c->stream));
    TRY(op_begin(&call, c->stream, "matrix_check"));
    struct MatrixCheckArgs k = {.side = SIDE};
    op_kernel(&call, KERNEL_matrix_check, SIDE, c->dtype == DART_BF16 ? FITS_BF16 : FITS_F16);
    for (uint32_t i = 0; i < COUNT_OF(c->buffers); i++) {
        const dart_tensor tensor = {.buffer = c->buffers[i], .dtype = i < 2 ? c->dtype : DART_F32};
        op_bind(&call, i, &tensor, dart_buffer_bytes(c->buffers[i]) / dart_dtype_size(tensor.dtype));
    }
    op_launch(&call, &k, 1);
    TRY(op_end(&call));
    TRY(dart_stream_submit(c->stream));
    TRY(dart_stream_wait(c->stream, UINT64_MAX));
    TRY(dart_buffer_read(c->buffers[BINDING_matrix_check_y], 0, y, sizeof y));
    *right = is_right(y);
fail:
    dart_stream_destroy(&c->stream);
    for (size_t i = 0; i < COUNT_OF(c->buffers); i++) dart_buffer_destroy(&c->buffers[i]);
    return status;
}

dart_status device_check_matrices(dart_device *device)
{
    static const struct {
        dart_dtype dtype;
        uint32_t capability;
    } kinds[] = {{DART_F16, DART_CAP_MATRIX_F16}, {DART_BF16, DART_CAP_MATRIX_BF16}};
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if ((device->info.capabilities & kinds[i].capability) == 0) continue;
        bool right = false;
        const dart_status status = run(&(check){.device = device, .dtype = kinds[i].dtype}, &right);
        /* A driver that cannot compile or run it goes without; what would fail for other work too is passed on. */
        if (status == DART_DEVICE_LOST || status == DART_OUT_OF_MEMORY) return status;
        if (status == DART_OK && right) continue;
        device->info.capabilities &= ~(uint32_t)kinds[i].capability;
        if (device->report.log != NULL)
            base_log_line(device->report.log, DART_LOG_WARNING, "%s: %s matrix products are wrong or do not run: done without",
                          device->info.name, dart_dtype_name(kinds[i].dtype));
    }
    if ((device->info.capabilities & (DART_CAP_MATRIX_F16 | DART_CAP_MATRIX_BF16)) == 0)
        device->info.capabilities &= ~(uint32_t)DART_CAP_MATRIX2;
    return DART_OK;
}
