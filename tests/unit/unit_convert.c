/* Storage types on a device, bit by bit: unit_convert [DEVICE_SPEC]. */
#include "rig.h"

#include <math.h>

enum { COUNT = 65536 };

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void convert(rig *r, dart_tensor x, dart_tensor y)
{
    MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = 16, .W = COUNT / 16, .x = x, .y = y}));
    rig_run(r);
}

static bool is_nan(dart_dtype dtype, uint16_t bits)
{
    return dtype == DART_F16 ? (bits & 0x7fff) > 0x7c00 : (bits & 0x7fff) > 0x7f80;
}

static bool is_subnormal(dart_dtype dtype, uint16_t bits)
{
    const uint16_t exponent = dtype == DART_F16 ? 0x7c00 : 0x7f80;
    return (bits & exponent) == 0 && (bits & 0x7fff) != 0;
}

/* All of a type to f32 and back. bf16's subnormals are f32's, which a device may flush. */
static void reads_every_half(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    static uint16_t all[COUNT], back[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) all[i] = (uint16_t)i;
    for (dart_dtype dtype = DART_F16; dtype <= DART_BF16; dtype = (dart_dtype)(dtype + 1)) {
        const dart_tensor half = rig_tensor(&r, dtype, COUNT, NULL), single = rig_tensor(&r, DART_F32, COUNT, NULL),
                          again = rig_tensor(&r, dtype, COUNT, NULL);
        MUST(&r, dart_buffer_write(half.buffer, 0, all, sizeof all));
        convert(&r, half, single);
        convert(&r, single, again);
        float *got = rig_read(&single, COUNT), expected[1];
        MUST(&r, dart_buffer_read(again.buffer, 0, back, sizeof back));
        for (uint32_t i = 0; i < COUNT; i++) {
            dart_to_f32(dtype, expected, &all[i], 1);
            if (is_nan(dtype, all[i])) {
                if (!isnan(got[i]) || !is_nan(dtype, back[i]))
                    fail_msg("%s %04x: NaN became %g, %04x", dart_dtype_name(dtype), i, (double)got[i], back[i]);
            } else if (dtype == DART_BF16 && is_subnormal(dtype, all[i])) {
                if (got[i] != 0 && got[i] != expected[0]) fail_msg("bf16 %04x became %g", i, (double)got[i]);
            } else if (memcmp(&got[i], expected, 4) != 0 || back[i] != all[i]) {
                fail_msg("%s %04x became %.9g, %04x", dart_dtype_name(dtype), i, (double)got[i], back[i]);
            }
        }
        free(got);
    }
    rig_close(&r);
}

/* f32 of every size to 16 bits as dart_from_f32 does it, which unit_base checks. */
static void rounds_alike(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    float *values = malloc(COUNT * sizeof *values);
    uint16_t *expected = malloc(COUNT * sizeof *expected), *got = malloc(COUNT * sizeof *got);
    assert_true(values != NULL && expected != NULL && got != NULL);
    for (uint32_t i = 0; i < COUNT; i++) {
        const float half = of_bits(i << 16); /* every sign and exponent */
        /* A quarter each: ties of f16 and of bf16, anything, anything in f16's range. */
        values[i] = i % 4 == 0 ? of_bits((i << 16) | 0x8000)
                    : i % 4 == 1 ? of_bits((i << 16) | 0x1000)
                    : i % 4 == 2 ? of_bits(i * 2654435761u)
                    : rig_uniform(&r, -70000, 70000);
        if (isnan(half) || isnan(values[i]) || fabsf(values[i]) < 0x1p-126f) values[i] = rig_uniform(&r, -1e-4f, 1e-4f);
    }
    const dart_tensor x = rig_tensor(&r, DART_F32, COUNT, values);
    for (dart_dtype dtype = DART_F16; dtype <= DART_BF16; dtype = (dart_dtype)(dtype + 1)) {
        const dart_tensor y = rig_tensor(&r, dtype, COUNT, NULL);
        convert(&r, x, y);
        dart_from_f32(dtype, expected, values, COUNT);
        MUST(&r, dart_buffer_read(y.buffer, 0, got, COUNT * sizeof *got));
        for (uint32_t i = 0; i < COUNT; i++)
            if (got[i] != expected[i]) fail_msg("%s of %.9g is %04x, expected %04x", dart_dtype_name(dtype), (double)values[i], got[i], expected[i]);
    }
    free(values);
    free(expected);
    free(got);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(reads_every_half),
    cmocka_unit_test(rounds_alike),
};
RIG_MAIN("unit_convert")
