/* Names, versions, checked arithmetic, reports, and the conversion of storage types. */
#include "base/base.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void names_everything(void **unused)
{
    (void)unused;
    static const char *const statuses[] = {"ok", "invalid argument", "unsupported", "out of memory", "device lost",
                                           "time-out", "input/output error", "bad data", "internal error", "cancelled"};
    for (size_t i = 0; i < COUNT_OF(statuses); i++) assert_string_equal(dart_status_name((dart_status)i), statuses[i]);
    assert_string_equal(dart_status_name((dart_status)10), "unknown status");
    static const char *const backends[] = {"cpu", "vulkan", "cuda", "null"};
    for (size_t i = 0; i < COUNT_OF(backends); i++) assert_string_equal(dart_backend_name((dart_backend_kind)i), backends[i]);
    assert_non_null(dart_backend_name((dart_backend_kind)4));
    static const char *const dtypes[] = {"f32", "f16", "bf16", "i32", "q8", "q4"};
    static const size_t sizes[] = {4, 2, 2, 4, 1, 1};
    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        assert_string_equal(dart_dtype_name((dart_dtype)i), dtypes[i]);
        assert_int_equal(dart_dtype_size((dart_dtype)i), sizes[i]);
    }
    assert_non_null(dart_dtype_name((dart_dtype)6));
    assert_int_equal(dart_dtype_size((dart_dtype)6), 0);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", DART_VERSION_MAJOR, DART_VERSION_MINOR, DART_VERSION_PATCH);
    assert_string_equal(dart_version(), version);
}

static void checks_arithmetic(void **unused)
{
    (void)unused;
    uint64_t out = 7;
    assert_false(base_mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
    assert_false(base_add(UINT64_MAX, 1, &out));
    assert_false(base_product((const uint64_t[]){UINT64_C(1) << 31, UINT64_C(1) << 31, 5}, 3, &out));
    assert_int_equal(out, 7);
    assert_true(base_mul(UINT64_MAX, 1, &out) && out == UINT64_MAX);
    assert_true(base_mul(UINT64_MAX, 0, &out) && out == 0);
    assert_true(base_add(UINT64_MAX - 3, 3, &out) && out == UINT64_MAX);
    assert_true(base_product((const uint64_t[]){3, 5, 7}, 3, &out) && out == 105);
    assert_true(base_product(NULL, 0, &out) && out == 1);
    assert_int_equal(base_ceil_div(UINT64_MAX, 2), UINT64_C(1) << 63);
    assert_int_equal(base_ceil_div(0, 5), 0);
    assert_int_equal(base_round_up(1, 256), 256);
    assert_int_equal(base_round_up(512, 256), 512);
}

static char logged[600];
static unsigned lines;
static void keep(void *user, dart_log_level level, const char *text)
{
    (void)level;
    assert_ptr_equal(user, &lines);
    snprintf(logged, sizeof logged, "%s", text);
    lines++;
}

static void reports_failures(void **unused)
{
    (void)unused;
    base_log log = {.function = keep, .user = &lines, .level = DART_LOG_WARNING};
    base_report report;
    char text[16];
    assert_int_equal(base_mutex_init(&log.mutex), DART_OK);
    assert_int_equal(base_report_init(&report, &log), DART_OK);
    assert_int_equal(base_report_copy(&report, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(base_fail(&report, DART_TIMEOUT, "%s and %d more", "twelve bytes", 7), DART_TIMEOUT);
    assert_int_equal(lines, 1);
    assert_string_equal(logged, "time-out: twelve bytes and 7 more");
    assert_int_equal(base_report_copy(&report, text, sizeof text), 23);
    assert_string_equal(text, "twelve bytes an");
    text[0] = 'x';
    assert_int_equal(base_report_copy(&report, NULL, 0), 23);
    assert_int_equal(base_report_copy(&report, NULL, sizeof text), 23);
    assert_int_equal(base_report_copy(&report, text, 1), 23);
    assert_string_equal(text, "");
    base_log_line(&log, DART_LOG_INFO, "too quiet");
    assert_int_equal(lines, 1);
    /* Longer than a report: cut, terminated. */
    char longer[2000];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    base_fail(&report, DART_INTERNAL, "%s", longer);
    assert_int_equal(base_report_copy(&report, longer, sizeof longer), sizeof report.text - 1);
    base_report_destroy(&report);
    base_mutex_destroy(&log.mutex);
}

/* ---- Storage types ----
 * The reference knows a type by its bits of fraction and its exponents and computes in double, where all of this is
 * exact; rint rounds to nearest even. */
typedef struct format {
    dart_dtype dtype;
    int fraction, lowest, highest; /* exponents of the smallest and the largest normal number */
} format;
static const format formats[] = {{DART_F16, 10, -14, 15}, {DART_BF16, 7, -126, 127}};

static double decoded(const format *f, uint16_t bits)
{
    const int exponent = bits >> f->fraction & ((1 << (15 - f->fraction)) - 1);
    const int fraction = bits & ((1 << f->fraction) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << (15 - f->fraction)) - 1) return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, f->lowest - f->fraction);
    return sign * ldexp(fraction + (1 << f->fraction), exponent - 1 + f->lowest - f->fraction);
}

static double rounded(const format *f, double x)
{
    int exponent;
    if (x == 0 || !isfinite(x)) return x;
    frexp(x, &exponent);
    exponent = exponent - 1 < f->lowest ? f->lowest : exponent - 1;
    const double step = ldexp(1, exponent - f->fraction), y = rint(x / step) * step;
    return fabs(y) >= ldexp(1, f->highest + 1) ? copysign((double)INFINITY, x) : y;
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check_rounding(const format *f, float x)
{
    uint16_t bits;
    dart_from_f32(f->dtype, &bits, &x, 1);
    const double got = decoded(f, bits), want = rounded(f, (double)x);
    if (isnan(x) ? !isnan(got) : got != want || signbit(got) != signbit(want))
        fail_msg("%s of %.9g: %.9g, expected %.9g", dart_dtype_name(f->dtype), (double)x, got, want);
}

static void reads_every_half(void **unused)
{
    (void)unused;
    static uint16_t all[65536], back[65536];
    static float values[65536];
    for (uint32_t i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    for (size_t k = 0; k < COUNT_OF(formats); k++) {
        const format *f = &formats[k];
        dart_to_f32(f->dtype, values, all, 65536);
        dart_from_f32(f->dtype, back, values, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            const double want = decoded(f, all[i]);
            if (isnan(want)) {
                assert_true(isnan(values[i]) && isnan(decoded(f, back[i])));
                continue;
            }
            if ((double)values[i] != want || !signbit(values[i]) != !signbit(want)) fail_msg("%s %04x", dart_dtype_name(f->dtype), i);
            assert_int_equal(back[i], all[i]);
        }
    }
}

/* Around each pair of neighbours: the tie, and the floats on both sides of it. */
static void rounds_to_nearest_even(void **unused)
{
    (void)unused;
    for (size_t k = 0; k < COUNT_OF(formats); k++) {
        const format *f = &formats[k];
        for (uint32_t bits = 0; bits < 0x8000; bits++) {
            const double low = decoded(f, (uint16_t)bits), high = decoded(f, (uint16_t)(bits + 1));
            if (!isfinite(low)) break;
            /* The largest number's upper neighbour is where infinity starts to be nearer. */
            const double middle = isfinite(high) ? (low + high) / 2 : low + ldexp(1, f->highest - f->fraction - 1);
            const float tie = (float)middle;
            for (int sign = 0; sign < 2; sign++) {
                const float x = sign ? -tie : tie;
                check_rounding(f, x);
                check_rounding(f, nextafterf(x, 0));
                check_rounding(f, nextafterf(x, x < 0 ? -FLT_MAX : FLT_MAX));
            }
        }
        uint32_t x = 1;
        for (uint32_t i = 0; i < 2000000; i++) {
            x = x * 1664525u + 1013904223u;
            check_rounding(f, of_bits(x ^ x >> 15));
        }
        static const uint32_t special[] = {0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffffffffu, 0x7f800000u, 0xff800000u, 0x7f7fffffu, 0u, 0x80000000u,
                                           1u, 0x80000001u};
        for (size_t i = 0; i < COUNT_OF(special); i++) check_rounding(f, of_bits(special[i]));
    }
}

static void copies_f32(void **unused)
{
    (void)unused;
    const float from[] = {1, -0.0f, FLT_MIN / 2, INFINITY, 3.25f};
    float to[5] = {0}, back[5] = {0};
    dart_from_f32(DART_F32, to, from, 5);
    dart_to_f32(DART_F32, back, to, 5);
    assert_memory_equal(back, from, sizeof from);
    dart_from_f32(DART_F16, to, from, 0);
    assert_memory_equal(to, from, sizeof from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_everything),
        cmocka_unit_test(checks_arithmetic),
        cmocka_unit_test(reports_failures),
        cmocka_unit_test(reads_every_half),
        cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(copies_f32),
    };
    return cmocka_run_group_tests_name("unit_base", tests, NULL, NULL);
}
