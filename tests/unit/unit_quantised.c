/* Quantised rows: sizes, rounding, what a row of bytes stands for. */
#include "dartlm/dartlm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 32, WIDTH = 96, ROWS = 200, MOST_BYTES = 160 };

static void has_rows_of_whole_blocks(void **unused)
{
    (void)unused;
    assert_int_equal(dart_quantised_row(DART_Q8, 32), 48);  /* 32 + 2, in 16s */
    assert_int_equal(dart_quantised_row(DART_Q8, 768), 816);
    assert_int_equal(dart_quantised_row(DART_Q4, 32), 32);  /* 16 + 2 + 2 */
    assert_int_equal(dart_quantised_row(DART_Q4, 768), 480);
    const uint32_t bad[] = {0, 1, 31, 33, 48, 767, (1u << 30) + 32, UINT32_MAX};
    float one = 0;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(dart_quantised_row(DART_Q8, bad[i]), 0);
        assert_int_equal(dart_quantised_row(DART_Q4, bad[i]), 0);
        assert_int_equal(dart_quantise(DART_Q8, bad[i], 1, &one, &one), DART_INVALID_ARGUMENT);
        assert_int_equal(dart_dequantise(DART_Q4, bad[i], 1, &one, &one), DART_INVALID_ARGUMENT);
    }
    for (int dtype = -1; dtype < 8; dtype++)
        if (dtype != DART_Q8 && dtype != DART_Q4) assert_int_equal(dart_quantised_row((dart_dtype)dtype, 64), 0);
}

static uint32_t state = 1;
static float uniform(void) /* -1 to 1 */
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

/* Blocks of every kind: zeros, one large number, all the same, all of one sign, tiny, huge. */
static float element(size_t kind, size_t i)
{
    switch (kind) {
    case 0: return 0;
    case 1: return i == 17 ? 1000.0f : uniform();
    case 2: return 0.37f;
    case 3: return -5.0f + 0.01f * uniform();
    case 4: return 1e-38f * uniform();
    case 5: return 1e37f * uniform();
    case 6: return i % 2 == 0 ? 1.0f : -1.0f;
    default: return 0.02f * uniform();
    }
}

static double bf16_at(const unsigned char *at)
{
    const uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* Errors of a block at most those of sixteen steps from the smallest to the largest, whose ends bf16 moves by 1 / 128 of themselves at most, or by
 * 1e-40. Squares of numbers below 1e-22 are none in f32, so that the first way is taken, whose scale is that. */
static void check_q4(const float *from, const float *back, double least, double most, size_t b)
{
    const double step = (most - least + (fabs(least) + fabs(most)) / 128) / 15 * (1 + 1.0 / 128);
    double squares = 0, steps = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        squares += pow((double)back[i] - (double)from[i], 2);
        steps += step * step / 4;
    }
    if (most < 1e-20 && least > -1e-20) steps += BLOCK * pow(15 * 1e-40, 2);
    if (!(squares <= steps * (1 + 1e-5) + 1e-80)) fail_msg("q4, block %zu: squared errors %g above %g", b, squares, steps);
}

/* q8: within half a scale of every number, and scales no larger than their definition asks for (bf16 has eight digits). */
static void rounds_to_the_nearest(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++) {
        const dart_dtype dtype = d == 0 ? DART_Q8 : DART_Q4;
        const size_t bytes = dart_quantised_row(dtype, WIDTH), numbers = dtype == DART_Q8 ? WIDTH : WIDTH / 2;
        static float from[ROWS * WIDTH], back[ROWS * WIDTH];
        static unsigned char rows[ROWS * MOST_BYTES];
        for (size_t i = 0; i < ROWS * WIDTH; i++) from[i] = element(i / BLOCK % 9, i % BLOCK);
        memset(rows, 0xaa, sizeof rows);
        assert_int_equal(dart_quantise(dtype, WIDTH, ROWS, from, rows), DART_OK);
        assert_int_equal(dart_dequantise(dtype, WIDTH, ROWS, rows, back), DART_OK);
        assert_int_equal(rows[ROWS * bytes], 0xaa);
        for (size_t b = 0; b < ROWS * WIDTH / BLOCK; b++) {
            const unsigned char *row = rows + b / (WIDTH / BLOCK) * bytes, *scales = row + numbers + 2 * (b % (WIDTH / BLOCK));
            const double scale = bf16_at(scales);
            double least = (double)from[b * BLOCK], most = least;
            for (size_t i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
                least = fmin(least, (double)from[i]);
                most = fmax(most, (double)from[i]);
            }
            if (dtype == DART_Q4) {
                check_q4(&from[b * BLOCK], &back[b * BLOCK], least, most, b);
                continue;
            }
            const double wanted = fmax(most, -least) / 127;
            if (!(scale >= wanted && scale <= wanted * (1 + 1.0 / 128) + 1e-40)) fail_msg("block %zu: scale %g, not %g", b, scale, wanted);
            for (size_t i = b * BLOCK; i < (b + 1) * BLOCK; i++)
                if (!(fabs((double)back[i] - (double)from[i]) <= scale / 2 + 1e-44))
                    fail_msg("q8, block %zu: %g became %g, scale %g", b, (double)from[i], (double)back[i], scale);
        }
    }
}

/* The bf16 number next to a value, at or above it or at or below it. */
static double bf16_beside(double value, bool above)
{
    const double step = value == 0 ? 0 : ldexp(1, ilogb(value) - 7);
    return value == 0 ? 0 : (above ? ceil(value / step) : floor(value / step)) * step;
}

/* Squared errors of a block in sixteen steps over its range less a share of it at both ends. */
static double squares_of_range(const float *from, double least, double most, double share)
{
    const double end = (most - least) * share, minimum = bf16_beside(least + end, false), scale = bf16_beside((most - end - minimum) / 15, true);
    double squares = 0;
    for (size_t i = 0; i < BLOCK; i++)
        squares += pow(scale * fmin(fmax(floor(((double)from[i] - minimum) / scale + 0.5), 0), 15) + minimum - (double)from[i], 2);
    return squares;
}

/* Never worse than the whole range or the one that is shorter by a sixteenth at both ends; either is the better one for some block. */
static void takes_the_best_range(void **unused)
{
    (void)unused;
    uint32_t best_of[2] = {0};
    for (size_t b = 0; b < 400; b++) {
        float from[BLOCK], back[BLOCK];
        unsigned char row[48];
        double least, most, squares = 0, of[2];
        for (size_t i = 0; i < BLOCK; i++) {
            const float u = uniform();
            from[i] = b % 2 == 0 ? u * u * u : u + 0.3f * uniform();
        }
        least = most = (double)from[0];
        for (size_t i = 0; i < BLOCK; i++) {
            least = fmin(least, (double)from[i]);
            most = fmax(most, (double)from[i]);
        }
        assert_int_equal(dart_quantise(DART_Q4, BLOCK, 1, from, row), DART_OK);
        assert_int_equal(dart_dequantise(DART_Q4, BLOCK, 1, row, back), DART_OK);
        for (size_t i = 0; i < BLOCK; i++) squares += pow((double)back[i] - (double)from[i], 2);
        size_t best = 0;
        for (size_t k = 0; k < 2; k++) {
            of[k] = squares_of_range(from, least, most, (double)k / 16);
            if (of[k] < of[best]) best = k;
        }
        best_of[best]++;
        /* f32 computes numbers of about 1 to within 2^-23 and their sums of squares to a few of these; numbers amid two steps may fall to either. */
        if (!(squares <= of[best] * (1 + 1e-4))) fail_msg("block %zu: squared errors %g, range %zu has %g", b, squares, best, of[best]);
    }
    print_message("  best: %u whole, %u shorter\n", best_of[0], best_of[1]);
    assert_true(best_of[0] > 0 && best_of[1] > 0);
}

/* The bytes as the header describes them. */
static void lays_numbers_out(void **unused)
{
    (void)unused;
    float from[BLOCK], back[BLOCK];
    unsigned char row[48] = {0};
    for (int i = 0; i < BLOCK; i++) from[i] = (float)(i * 8 - 127);
    from[31] = 127;
    assert_int_equal(dart_quantise(DART_Q8, BLOCK, 1, from, row), DART_OK);
    for (int i = 0; i < BLOCK; i++) assert_int_equal((signed char)row[i], (int)from[i]);
    assert_int_equal(row[32] | row[33] << 8, 0x3f80); /* 1 */
    for (int i = 34; i < 48; i++) assert_int_equal(row[i], 0);
    for (int i = 0; i < BLOCK; i++) from[i] = (float)((i * 7 + 3) % 16) - 4;
    assert_int_equal(dart_quantise(DART_Q4, BLOCK, 1, from, row), DART_OK);
    for (int k = 0; k < 8; k++)
        for (int j = 0; j < 4; j++) {
            const unsigned word = (unsigned)row[2 * k] | (unsigned)row[2 * k + 1] << 8;
            assert_int_equal(word >> (4 * j) & 15, (int)from[8 * j + k] + 4);
        }
    assert_int_equal(row[16] | row[17] << 8, 0x3f80);
    assert_int_equal(row[18] | row[19] << 8, 0xc080); /* -4 */
    assert_int_equal(dart_dequantise(DART_Q4, BLOCK, 1, row, back), DART_OK);
    assert_memory_equal(back, from, sizeof from);
}

static void keeps_what_is_no_number(void **unused)
{
    (void)unused;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t k = 0; k < 3; k++)
        for (int d = 0; d < 2; d++) {
            const dart_dtype dtype = d == 0 ? DART_Q8 : DART_Q4;
            float from[2 * BLOCK] = {0}, back[2 * BLOCK];
            unsigned char row[96];
            from[40] = bad[k];
            from[3] = 1;
            assert_int_equal(dart_quantise(dtype, 2 * BLOCK, 1, from, row), DART_OK);
            assert_int_equal(dart_dequantise(dtype, 2 * BLOCK, 1, row, back), DART_OK);
            assert_true(fabsf(back[3] - 1) < 0.01f);
            for (int i = BLOCK; i < 2 * BLOCK; i++) assert_true(isnan(back[i]));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_rows_of_whole_blocks), cmocka_unit_test(rounds_to_the_nearest), cmocka_unit_test(takes_the_best_range),
        cmocka_unit_test(lays_numbers_out),
        cmocka_unit_test(keeps_what_is_no_number)};
    return cmocka_run_group_tests_name("unit_quantised", tests, NULL, NULL);
}
