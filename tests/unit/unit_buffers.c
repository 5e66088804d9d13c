/* Memory of a device: unit_buffers [DEVICE_SPEC]. */
#include "rig.h"

static void copies_any_range(void **unused)
{
    (void)unused;
    enum { BYTES = 1009 };
    rig r;
    rig_open(&r, rig_spec);
    dart_buffer *buffer = NULL;
    uint8_t wanted[BYTES], got[BYTES + 2];
    MUST(&r, dart_buffer_create(r.device, BYTES, &buffer));
    assert_int_equal(dart_buffer_bytes(buffer), BYTES);
    assert_int_equal(dart_device_bytes(r.device), BYTES);
    MUST(&r, dart_buffer_read(buffer, 0, got, BYTES));
    for (size_t i = 0; i < BYTES; i++) assert_int_equal(got[i], 0xff); /* poison */
    for (size_t i = 0; i < BYTES; i++) wanted[i] = (uint8_t)(i * 7);
    MUST(&r, dart_buffer_write(buffer, 0, wanted, BYTES));
    static const struct { uint64_t offset, bytes; } ranges[] = {{0, 1}, {1, 1}, {3, 2}, {5, 3}, {7, 64}, {255, 3}, {256, 256}, {1000, 9}, {1008, 1},
                                                                {1009, 0}, {0, BYTES}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        const size_t offset = (size_t)ranges[i].offset, bytes = (size_t)ranges[i].bytes;
        for (size_t k = 0; k < bytes; k++) wanted[offset + k] = (uint8_t)(wanted[offset + k] + 13 + i);
        MUST(&r, dart_buffer_write(buffer, offset, wanted + offset, bytes));
        memset(got, 0x5a, sizeof got);
        MUST(&r, dart_buffer_read(buffer, offset, got + 1, bytes));
        assert_int_equal(got[0], 0x5a);
        assert_int_equal(got[bytes + 1], 0x5a);
        assert_memory_equal(got + 1, wanted + offset, bytes);
        MUST(&r, dart_buffer_read(buffer, 0, got, BYTES));
        assert_memory_equal(got, wanted, BYTES);
    }
    dart_buffer_destroy(&buffer);
    assert_null(buffer);
    assert_int_equal(dart_device_bytes(r.device), 0);
    rig_close(&r);
}

static void refuses_what_lies_outside(void **unused)
{
    (void)unused;
    enum { BYTES = 64 };
    rig r;
    rig_open(&r, rig_spec);
    uint8_t data[BYTES] = {0};
    dart_buffer *buffer = NULL, *none = NULL;
    MUST(&r, dart_buffer_create(r.device, BYTES, &buffer));
    static const struct { uint64_t offset, bytes; } bad[] = {
        {0, BYTES + 1}, {BYTES, 1}, {1, BYTES}, {BYTES + 1, 0}, {UINT64_MAX, 1}, {UINT64_MAX, 0}, {1, UINT64_MAX}, {UINT64_MAX - 1, 3},
        {32, UINT64_MAX - 31}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[256];
        assert_int_equal(dart_buffer_write(buffer, bad[i].offset, data, bad[i].bytes), DART_INVALID_ARGUMENT);
        dart_device_error(r.device, text, sizeof text);
        assert_non_null(strstr(text, "dart_buffer_write"));
        assert_int_equal(dart_buffer_read(buffer, bad[i].offset, data, bad[i].bytes), DART_INVALID_ARGUMENT);
        dart_device_error(r.device, text, sizeof text);
        assert_non_null(strstr(text, "dart_buffer_read"));
    }
    assert_int_equal(dart_buffer_write(buffer, 0, NULL, 1), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_read(buffer, 0, NULL, 1), DART_INVALID_ARGUMENT);
    MUST(&r, dart_buffer_write(buffer, 0, NULL, 0));
    assert_int_equal(dart_buffer_create(r.device, 0, &none), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_create(r.device, 1, NULL), DART_INVALID_ARGUMENT);
    assert_null(none);
    dart_buffer_destroy(&buffer);
    rig_close(&r);
}

static void says_when_memory_is_out(void **unused)
{
    (void)unused;
    static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 255, UINT64_C(1) << 63, UINT64_C(1) << 47};
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec});
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        dart_buffer *buffer = NULL;
        char text[256];
        assert_int_equal(dart_buffer_create(r.device, sizes[i], &buffer), DART_OUT_OF_MEMORY);
        assert_null(buffer);
        dart_device_error(r.device, text, sizeof text);
        assert_true(r.info.backend == DART_BACKEND_NULL || strlen(text) > 0);
    }
    assert_int_equal(dart_device_bytes(r.device), 0);
    const dart_tensor still = rig_tensor(&r, DART_F32, 10, (const float[10]){1});
    float *got = rig_read(&still, 10);
    assert_true(got[0] == 1);
    free(got);
    rig_close(&r);
}

/* Sizes around those of pages and blocks, made and freed in another order. */
static void holds_many_buffers(void **unused)
{
    (void)unused;
    enum { COUNT = 300 };
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec});
    dart_buffer *buffers[COUNT] = {NULL};
    uint64_t sizes[COUNT], total = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            if (buffers[i] != NULL) continue;
            sizes[i] = i % 50 == 0 ? UINT64_C(5000000) + i : 1 + (uint64_t)rig_uniform(&r, 0, i % 3 == 0 ? 70000 : 500);
            const uint32_t mark = (uint32_t)(i * 1000003 + (size_t)round);
            uint8_t bytes[4] = {(uint8_t)mark, (uint8_t)(mark >> 8), (uint8_t)(mark >> 16), (uint8_t)(mark >> 24)};
            MUST(&r, dart_buffer_create(r.device, sizes[i], &buffers[i]));
            const uint64_t n = sizes[i] < 4 ? sizes[i] : 4;
            MUST(&r, dart_buffer_write(buffers[i], sizes[i] - n, bytes, n));
            MUST(&r, dart_buffer_write(buffers[i], 0, bytes, 1));
            total += sizes[i];
        }
        assert_int_equal(dart_device_bytes(r.device), total);
        for (size_t i = 0; i < COUNT; i++) {
            uint8_t first = 0;
            MUST(&r, dart_buffer_read(buffers[i], 0, &first, 1));
            bool matches = false;
            for (int made = 0; made <= round; made++) matches = matches || first == (uint8_t)(i * 1000003 + (size_t)made);
            assert_true(matches);
        }
        for (size_t i = (size_t)round; i < COUNT; i += round == 2 ? 1 : 2) {
            if (buffers[i] == NULL) continue;
            total -= sizes[i];
            dart_buffer_destroy(&buffers[i]);
        }
    }
    for (size_t i = 0; i < COUNT; i++) dart_buffer_destroy(&buffers[i]);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(copies_any_range),
    cmocka_unit_test(refuses_what_lies_outside),
    cmocka_unit_test(says_when_memory_is_out),
    cmocka_unit_test(holds_many_buffers),
};
RIG_MAIN("unit_buffers")
