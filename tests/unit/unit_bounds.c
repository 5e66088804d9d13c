/* A product of odd sizes by a row with matrices, for checks inside shaders: unit_bounds [DEVICE_SPEC]. What is read past the last output
 * or row is dropped, so that only such checks tell. They cost minutes where a shader unrolls more than this row does. */
#include "rig.h"

static void multiplies_odd_sizes(void **unused)
{
    (void)unused;
    enum { T = 11, IN = 272, OUT = 45 };
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .variant = "matrix_few16_f16", .unchecked = true});
    const dart_tensor x = rig_random(&r, DART_F16, T * IN, -1, 1), weight = rig_random(&r, DART_F16, IN * OUT, -1, 1),
                      y = rig_tensor(&r, DART_F32, T * OUT, NULL);
    MUST(&r, dart_linear(r.stream, &(dart_linear_args){.T = T, .IN = IN, .OUT = OUT, .x = x, .weight = weight, .y = y}));
    if (strstr(r.lines[0], "matrix_few16_f16") == NULL) {
        print_message("NOT RUN: the device has no row matrix_few16_f16\n");
        rig_close(&r);
        skip();
    }
    rig_run(&r);
    float *a = rig_read(&x, T * IN), *b = rig_read(&weight, IN * OUT), *got = rig_read(&y, T * OUT), expected[T * OUT] = {0};
    for (size_t i = 0; i < T * OUT; i++)
        for (size_t k = 0; k < IN; k++) expected[i] += a[i / OUT * IN + k] * b[i % OUT * IN + k];
    rig_close_to("y", got, expected, T * OUT, 2e-6);
    free(a);
    free(b);
    free(got);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(multiplies_odd_sizes)};
RIG_MAIN("unit_bounds")
