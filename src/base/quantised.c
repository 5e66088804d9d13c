/* Rounding numbers to blocks of small whole ones. */
#include "quantised.h"

#include <math.h>

#define MOST_Q8 127.0
#define MOST_Q4 15.0

size_t dart_quantised_row(dart_dtype dtype, uint32_t width)
{
    if ((dtype != DART_Q8 && dtype != DART_Q4) || width == 0 || width % QUANTISED_BLOCK != 0 || width > 1u << 30) return 0;
    const size_t minima = dtype == DART_Q4 ? quantised_scales(width) : 0;
    return (size_t)base_round_up(quantised_numbers(dtype, width) + quantised_scales(width) + minima, 16);
}

/* The bf16 number next to the value, at or above it (up) or at or below it. NaN stays NaN. */
static uint16_t cut(double value, bool up)
{
    const float nearest = (float)value;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    if (!(fabsf(nearest) <= 3.4028235e38f)) return nearest != nearest ? 0x7FC0u : (uint16_t)(bits >> 16);
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits >> 31;
    /* Away from 0 where that is the wanted direction, else towards it. The conversion to float may have gone the wrong way. */
    const bool away = up == (sign == 0);
    const bool short_of = up ? (double)nearest < value : (double)nearest > value;
    if (short_of && away) magnitude++;
    if (short_of && !away && magnitude > 0) magnitude--;
    if (away) magnitude += 0xFFFFu;
    return (uint16_t)(sign << 15 | magnitude >> 16);
}

static void put(uint8_t *to, uint16_t bits)
{
    to[0] = (uint8_t)bits;
    to[1] = (uint8_t)(bits >> 8);
}

static double nearest(double value, double least, double most)
{
    const double whole = nearbyint(value);
    return whole < least ? least : whole > most ? most : whole;
}

/* The smallest and the largest of a block; false: not all are finite. */
static bool range_of(const float *from, double *least, double *most)
{
    bool finite = true;
    *least = *most = (double)from[0];
    for (size_t i = 0; i < QUANTISED_BLOCK; i++) {
        finite = finite && fabsf(from[i]) <= 3.4028235e38f;
        if ((double)from[i] < *least) *least = (double)from[i];
        if ((double)from[i] > *most) *most = (double)from[i];
    }
    return finite;
}

static void round_q8(const float *from, uint8_t *numbers, uint8_t *scales)
{
    double least, most;
    const bool finite = range_of(from, &least, &most);
    const double largest = most > -least ? most : -least;
    put(scales, finite ? cut(largest / MOST_Q8, true) : 0x7FC0u);
    const double scale = (double)quantised_from_bf16(scales);
    for (size_t i = 0; i < QUANTISED_BLOCK; i++)
        numbers[i] = scale > 0 ? (uint8_t)(int8_t)nearest((double)from[i] / scale, -MOST_Q8, MOST_Q8) : 0;
}

/* A way to write a block in four bits, and the sum of its squared errors. */
typedef struct four_bits {
    uint16_t scale, minimum; /* bf16 */
    float n[QUANTISED_BLOCK];
    float error;
} four_bits;

static float value_of(uint16_t bits)
{
    const uint8_t at[2] = {(uint8_t)bits, (uint8_t)(bits >> 8)};
    return quantised_from_bf16(at);
}

/* Eight sums in a fixed order, so that compilers can vectorise the loop. */
static void choose_numbers(const float *from, four_bits *way)
{
    const float scale = value_of(way->scale), minimum = value_of(way->minimum), divisor = scale > 0 ? scale : 1;
    float sums[8] = {0};
    for (size_t i = 0; i < QUANTISED_BLOCK; i += 8)
        for (size_t k = 0; k < 8; k++) {
            const float place = (from[i + k] - minimum) / divisor;
            const float above = place > 0.0f ? place : 0.0f, within = above < (float)MOST_Q4 ? above : (float)MOST_Q4;
            const float n = (float)(int32_t)(within + 0.5f), off = scale * n + minimum - from[i + k];
            way->n[i + k] = n;
            sums[k] += off * off;
        }
    way->error = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* Scale and minimum that fit the numbers of a way best: a line through (n, from). */
static bool fit(const float *from, const four_bits *way, four_bits *fitted)
{
    double sn = 0, snn = 0, sx = 0, snx = 0;
    for (size_t i = 0; i < QUANTISED_BLOCK; i++) {
        const double n = (double)way->n[i], x = (double)from[i];
        sn += n;
        snn += n * n;
        sx += x;
        snx += n * x;
    }
    const double count = QUANTISED_BLOCK, spread = count * snn - sn * sn, slope = spread > 0 ? (count * snx - sn * sx) / spread : 0;
    if (!(slope > 0)) return false;
    fitted->scale = cut(slope, true);
    const double scale = (double)value_of(fitted->scale);
    fitted->minimum = cut((sx - scale * sn) / count, false);
    return scale <= 3.4e38;
}

/* The range from the smallest to the largest, or one that is shorter by a sixteenth or an eighth at both ends, whichever errs least; each also with
 * the line that fits its numbers best. */
static void round_q4(const float *from, uint8_t *numbers, uint8_t *scales, uint8_t *minima)
{
    double least, most;
    four_bits best = {.scale = 0x7FC0u, .minimum = 0x7FC0u};
    if (range_of(from, &least, &most)) {
        for (int step = 0; step <= 4; step += 2) {
            const double end = (most - least) * step / 32;
            four_bits way = {.minimum = cut(least + end, false)}, fitted;
            way.scale = cut((most - end - (double)value_of(way.minimum)) / MOST_Q4, true);
            choose_numbers(from, &way);
            if (step == 0 || way.error < best.error) best = way;
            if (!fit(from, &way, &fitted)) continue;
            choose_numbers(from, &fitted);
            if (fitted.error < best.error) best = fitted;
        }
    }
    put(minima, best.minimum);
    put(scales, best.scale);
    memset(numbers, 0, 16);
    for (size_t i = 0; i < QUANTISED_BLOCK; i++) numbers[i % 8 * 2 + i / 16] |= (uint8_t)((unsigned)best.n[i] << i / 8 % 2 * 4);
}

dart_status dart_quantise(dart_dtype dtype, uint32_t width, size_t rows, const float *from, void *to)
{
    const size_t bytes = dart_quantised_row(dtype, width), blocks = width / QUANTISED_BLOCK;
    if (bytes == 0 || from == NULL || to == NULL) return DART_INVALID_ARGUMENT;
    for (size_t r = 0; r < rows; r++) {
        uint8_t *numbers = (uint8_t *)to + r * bytes, *scales = numbers + quantised_numbers(dtype, width), *minima = scales + quantised_scales(width);
        memset(scales, 0, bytes - quantised_numbers(dtype, width));
        for (size_t b = 0; b < blocks; b++) {
            const float *block = from + r * width + b * QUANTISED_BLOCK;
            if (dtype == DART_Q8) round_q8(block, numbers + QUANTISED_BLOCK * b, scales + 2 * b);
            else round_q4(block, numbers + 16 * b, scales + 2 * b, minima + 2 * b);
        }
    }
    return DART_OK;
}

dart_status dart_dequantise(dart_dtype dtype, uint32_t width, size_t rows, const void *from, float *to)
{
    const size_t bytes = dart_quantised_row(dtype, width);
    if (bytes == 0 || from == NULL || to == NULL) return DART_INVALID_ARGUMENT;
    for (size_t r = 0; r < rows; r++) quantised_read(dtype, (const uint8_t *)from + r * bytes, width, 0, width, to + r * width);
    return DART_OK;
}
