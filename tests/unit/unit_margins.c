/* dart_device_options.margin: launches that go beyond their tensors are seen. unit_margins [DEVICE_SPEC]. */
#include "rig.h"

#include "runtime/op.h"

#include <math.h>

enum { COUNT = 32, BEYOND = 16, BEFORE = 4, MARGIN = 4096 };

static void open_with_margins(rig *r) { rig_open_with(r, &(dart_device_options){.spec = rig_spec, .margin = MARGIN}); }

/* y = x, `width` elements from `before` elements ahead of x on, however many x and y have. */
static void convert(rig *r, dart_tensor x, dart_tensor y, uint32_t before, uint32_t width)
{
    const op_operand from = {"x", x, OP_FLOAT, 1, COUNT}, to = {"y", y, OP_FLOAT, 1, COUNT};
    struct ConvertArgs k = {.rows = 1, .width = width, .x_at = MARGIN / 4 - before};
    uint32_t unused = 0;
    op_call call;
    MUST(r, op_begin(&call, r->stream, "convert"));
    op_kernel(&call, KERNEL_convert, 1, 0);
    OP_LAUNCH(&call, &k, base_ceil_div(width, call.T0), {BINDING_convert_x, &from, &unused, &k.x_row}, OP_ROWS(convert, y, &to, k));
    MUST(r, op_end(&call));
    rig_run(r);
}

static int64_t change_of(rig *r, dart_tensor tensor)
{
    int64_t at = 0;
    MUST(r, buffer_check_margins(tensor.buffer, &at));
    return at;
}

static void reads_outside_give_nan(void **unused)
{
    (void)unused;
    rig r;
    open_with_margins(&r);
    const dart_tensor x = rig_random(&r, DART_F32, COUNT, -1, 1), y = rig_tensor(&r, DART_F32, BEFORE + COUNT + BEYOND, NULL);
    convert(&r, x, y, BEFORE, BEFORE + COUNT + BEYOND);
    float *given = rig_read(&x, COUNT), *got = rig_read(&y, BEFORE + COUNT + BEYOND);
    for (int i = 0; i < BEFORE; i++) assert_true(isnan(got[i]));
    rig_same_bits("inside", got + BEFORE, given, COUNT);
    for (int i = 0; i < BEYOND; i++) assert_true(isnan(got[BEFORE + COUNT + i]));
    assert_true(change_of(&r, x) == INT64_MAX && change_of(&r, y) == INT64_MAX);
    free(got);
    free(given);
    rig_close(&r);
}

static void writes_outside_are_found(void **unused)
{
    (void)unused;
    rig r;
    open_with_margins(&r);
    const dart_tensor x = rig_random(&r, DART_F32, COUNT + BEYOND, -1, 1), y = rig_tensor(&r, DART_F32, COUNT, NULL);
    convert(&r, x, y, 0, COUNT);
    assert_true(change_of(&r, y) == INT64_MAX);
    convert(&r, x, y, 0, COUNT + BEYOND);
    assert_true(change_of(&r, y) == COUNT * 4);
    float zero = 0;
    MUST(&r, r.device->backend->memory_write(r.device->handle, y.buffer->memory, MARGIN - 4, &zero, 4));
    assert_true(change_of(&r, y) == -4);
    assert_int_equal(atomic_load(&r.device->strays), 0);
    dart_buffer_destroy(&r.buffers[--r.buffers_count]); /* y's */
    assert_int_equal(atomic_load(&r.device->strays), 1);
    rig_close(&r);
}

/* Scratch memory of an op holds nothing of an earlier one, not even when the stream begins anew. */
static void scratch_memory_is_new(void **unused)
{
    (void)unused;
    rig r;
    open_with_margins(&r);
    const dart_tensor x = rig_random(&r, DART_F32, COUNT, -1, 1);
    for (int turn = 0; turn < 2; turn++) {
        op_call call;
        MUST(&r, op_begin(&call, r.stream, "scratch"));
        const op_operand a = op_scratch(&call, DART_F32, 1, COUNT), b = op_scratch(&call, DART_F32, 1, COUNT);
        assert_true(a.of.buffer != b.of.buffer);
        float *held = rig_read(&a.of, COUNT);
        for (int i = 0; i < COUNT; i++) assert_true(isnan(held[i]));
        free(held);
        convert(&r, x, a.of, 0, COUNT);
    }
    rig_close(&r);
}

/* Ops of one recording share no scratch memory, and it ends where its tensor ends: what lies behind is the margin. */
static void scratch_memory_is_an_ops_own(void **unused)
{
    (void)unused;
    rig r;
    open_with_margins(&r);
    dart_buffer *before = NULL;
    for (int i = 0; i < 2; i++) {
        op_call call;
        MUST(&r, op_begin(&call, r.stream, "scratch"));
        const op_operand a = op_scratch(&call, DART_F32, 1, 3);
        assert_true(a.of.buffer != before);
        assert_int_equal(a.of.buffer->bytes, 3 * 4);
        before = a.of.buffer;
        MUST(&r, op_end(&call));
    }
    rig_close(&r);
}

/* NaN as a float of any type, and as an id far beyond any table. */
static void margins_lead_far_away(void **unused)
{
    (void)unused;
    rig r;
    open_with_margins(&r);
    const dart_tensor x = rig_random(&r, DART_F32, COUNT, -1, 1);
    const uint64_t at[] = {0, MARGIN - 4, MARGIN + COUNT * 4, 2 * MARGIN + COUNT * 4 - 4};
    for (size_t i = 0; i < COUNT_OF(at); i++) {
        int32_t word = 0;
        float value;
        MUST(&r, r.device->backend->memory_read(r.device->handle, x.buffer->memory, at[i], &word, sizeof word));
        memcpy(&value, &word, sizeof value);
        assert_true(isnan(value) && (word & 0x7fff) > 0x7f80 && word > 1 << 30);
    }
    rig_close(&r);
}

static void margins_are_whole(void **unused)
{
    (void)unused;
    rig r;
    dart_device *device = NULL;
    open_with_margins(&r);
    assert_int_equal(dart_device_open(r.context, &(dart_device_options){.spec = rig_spec, .margin = MARGIN + 4}, &device), DART_INVALID_ARGUMENT);
    assert_null(device);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(reads_outside_give_nan), cmocka_unit_test(writes_outside_are_found),
                                          cmocka_unit_test(scratch_memory_is_new), cmocka_unit_test(scratch_memory_is_an_ops_own),
                                          cmocka_unit_test(margins_lead_far_away), cmocka_unit_test(margins_are_whole)};
RIG_MAIN("unit_margins")
