/* Quantised weights for AVX2. Included by loops_quantised.h alone. */

static inline __m256i quads(const void *from) { return _mm256_loadu_si256((const __m256i *)from); }
static inline __m128i sixteen(const uint8_t *from) { return _mm_loadu_si128((const __m128i *)(const void *)from); }

/* The 16-bit numbers 0 to 15 and 16 to 31 of a block. */
static inline void numbers_of_q8(const uint8_t *from, __m256i *low, __m256i *high)
{
    *low = _mm256_cvtepi8_epi16(sixteen(from));
    *high = _mm256_cvtepi8_epi16(sixteen(from + 16));
}
static inline void numbers_of_q4(const uint8_t *from, __m256i *low, __m256i *high)
{
    const __m256i both = _mm256_broadcastsi128_si256(sixteen(from)), four = _mm256_set1_epi16(15);
    const __m256i first = _mm256_set_epi32(4, 4, 4, 4, 0, 0, 0, 0), second = _mm256_set_epi32(12, 12, 12, 12, 8, 8, 8, 8);
    *low = _mm256_and_si256(_mm256_srlv_epi32(both, first), four);
    *high = _mm256_and_si256(_mm256_srlv_epi32(both, second), four);
}

/* to = `count` numbers of a quantised row of `width` from number `first` on. */
static inline void unpack_row(float *to, dart_dtype dtype, const uint8_t *row, size_t width, size_t first, size_t count)
{
    const uint8_t *scales = row + quantised_numbers(dtype, width), *minima = scales + quantised_scales(width);
    for (size_t i = 0; i < count; i += QUANTISED_BLOCK) {
        const size_t block = (first + i) / QUANTISED_BLOCK;
        const __m256 scale = _mm256_set1_ps(quantised_from_bf16(scales + 2 * block));
        __m256 minimum = _mm256_setzero_ps();
        __m256i parts[2];
        if (dtype == DART_Q4) {
            numbers_of_q4(row + 16 * block, &parts[0], &parts[1]);
            minimum = _mm256_set1_ps(quantised_from_bf16(minima + 2 * block));
        } else {
            numbers_of_q8(row + QUANTISED_BLOCK * block, &parts[0], &parts[1]);
        }
        for (size_t k = 0; k < 2; k++) {
            const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(parts[k])));
            const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(parts[k], 1)));
            _mm256_storeu_ps(to + i + 16 * k, _mm256_fmadd_ps(scale, low, minimum));
            _mm256_storeu_ps(to + i + 16 * k + 8, _mm256_fmadd_ps(scale, high, minimum));
        }
    }
}

static inline float largest_of(__m256 v)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Each block of x as 16-bit numbers times a scale, and the sum of those numbers times the scale; scales and sums are filled up with zeros to a
 * multiple of eight. A block with NaN or infinity gets the scale NaN; one below 2^-90,
 * whose reciprocal scale would overflow, counts as zeros. */
static inline void round_blocks(int16_t *numbers, float *scales, float *sums, const float *x, size_t count)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (size_t i = 0; i < count; i += QUANTISED_BLOCK, x += QUANTISED_BLOCK, numbers += QUANTISED_BLOCK) {
        const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8), c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
        const __m256 ab = _mm256_max_ps(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b));
        const __m256 cd = _mm256_max_ps(_mm256_andnot_ps(sign, c), _mm256_andnot_ps(sign, d));
        const float largest = largest_of(_mm256_max_ps(ab, cd));
        const __m256 zero = _mm256_setzero_ps();
        /* 0 times NaN or infinity is NaN. */
        const __m256 nothing = _mm256_add_ps(_mm256_add_ps(_mm256_mul_ps(a, zero), _mm256_mul_ps(b, zero)),
                                             _mm256_add_ps(_mm256_mul_ps(c, zero), _mm256_mul_ps(d, zero)));
        const float scale = largest > 0x1p-90f ? largest * (1.0f / 32767.0f) : 0.0f;
        const __m256 inverse = _mm256_set1_ps(largest > 0x1p-90f ? 32767.0f / largest : 0.0f);
        /* Packing works within halves of 128 bits, which the permutation puts in order. */
        const __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(a, inverse)), _mm256_cvtps_epi32(_mm256_mul_ps(b, inverse)));
        const __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(c, inverse)), _mm256_cvtps_epi32(_mm256_mul_ps(d, inverse)));
        const __m256i ones = _mm256_set1_epi16(1);
        const __m256 sum = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones)));
        _mm256_storeu_si256((__m256i *)(void *)numbers, _mm256_permute4x64_epi64(low, 0xd8));
        _mm256_storeu_si256((__m256i *)(void *)(numbers + 16), _mm256_permute4x64_epi64(high, 0xd8));
        scales[i / QUANTISED_BLOCK] = scale + sum_of(nothing);
        sums[i / QUANTISED_BLOCK] = scales[i / QUANTISED_BLOCK] * sum_of(sum);
    }
    for (size_t b = count / QUANTISED_BLOCK; b % 8 != 0; b++) scales[b] = sums[b] = 0;
}

/* quantised_dots_<type>_<rows>: `rows` <= 4 rows of rounded x times numbers first .. first + count - 1 of a quantised row. The scales of eight
 * blocks are multiplied at a time. */
enum { QUANTISED_AHEAD = 2048 }; /* bytes that are prefetched */
#define QUANTISED_FIRST(i) __m256 s##i = _mm256_setzero_ps();
#define QUANTISED_SCALES(i) \
    _mm256_storeu_ps(factors + 8 * (i), _mm256_mul_ps(scale, _mm256_loadu_ps(scales + (i) * part + b))); \
    if (minima != NULL) s##i = _mm256_fmadd_ps(minimum, _mm256_loadu_ps(sums + (i) * part + b), s##i);
#define QUANTISED_STEP(i) \
    { \
        const int16_t *v = x + (i) * x_row + (b + k) * QUANTISED_BLOCK; \
        const __m256i products = _mm256_add_epi32(_mm256_madd_epi16(low, quads(v)), _mm256_madd_epi16(high, quads(v + 16))); \
        s##i = _mm256_fmadd_ps(_mm256_broadcast_ss(factors + 8 * (i) + k), _mm256_cvtepi32_ps(products), s##i); \
    }
#define QUANTISED_OUT(i) out[i] = sum_of(s##i);
/* Up to eight bf16 numbers, zeros behind them. */
static inline __m256 eight_bf16(const uint8_t *from, size_t count)
{
    uint16_t some[8] = {0};
    if (count >= 8) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(sixteen(from)), 16));
    memcpy(some, from, 2 * count);
    return from_bf16(some);
}
#define QUANTISED_DOTS(type, bytes, rows) \
    static void quantised_dots_##type##_##rows(float *out, const uint8_t *w, const uint8_t *w_scales, const uint8_t *minima, size_t count, \
                                            const int16_t *x, size_t x_row, const float *scales, const float *sums, size_t part) \
    { \
        float factors[8 * 4]; \
        (void)x_row, (void)part, (void)sums; \
        EACH_##rows(QUANTISED_FIRST) \
        for (size_t b = 0; b < count; b += 8) { \
            const size_t blocks = count - b < 8 ? count - b : 8; \
            const __m256 scale = eight_bf16(w_scales + 2 * b, blocks); \
            const __m256 minimum = minima != NULL ? eight_bf16(minima + 2 * b, blocks) : _mm256_setzero_ps(); \
            (void)minimum; \
            EACH_##rows(QUANTISED_SCALES) \
            for (size_t k = 0; k < blocks; k++) { \
                const uint8_t *block = w + (b + k) * (bytes); \
                __m256i low, high; \
                _mm_prefetch((const char *)block + QUANTISED_AHEAD, _MM_HINT_T0); \
                numbers_of_##type(block, &low, &high); \
                EACH_##rows(QUANTISED_STEP) \
            } \
        } \
        EACH_##rows(QUANTISED_OUT) \
    }
#define QUANTISED_TYPE(type, bytes) \
    QUANTISED_DOTS(type, bytes, 1) \
    QUANTISED_DOTS(type, bytes, 2) \
    QUANTISED_DOTS(type, bytes, 3) \
    QUANTISED_DOTS(type, bytes, 4)
QUANTISED_TYPE(q8, 32)
QUANTISED_TYPE(q4, 16)

/* out[i] = row i of x times numbers first .. first + count - 1 of a quantised row of `width`. Rows of x lie x_row apart, those of scales and sums,
 * which hold count / 32 and room for seven more, `part`. */
static inline void quantised_dots(float *out, dart_dtype dtype, const uint8_t *row, size_t width, size_t first, size_t count, const int16_t *x,
                               size_t x_row, const float *scales, const float *sums, size_t part, size_t rows)
{
    typedef void (*dots_function)(float *, const uint8_t *, const uint8_t *, const uint8_t *, size_t, const int16_t *, size_t, const float *,
                                  const float *, size_t);
    static const dots_function functions[2][4] = {{quantised_dots_q8_1, quantised_dots_q8_2, quantised_dots_q8_3, quantised_dots_q8_4},
                                                  {quantised_dots_q4_1, quantised_dots_q4_2, quantised_dots_q4_3, quantised_dots_q4_4}};
    const size_t block = first / QUANTISED_BLOCK;
    const uint8_t *w_scales = row + quantised_numbers(dtype, width) + 2 * block;
    functions[dtype == DART_Q4][rows - 1](out, row + quantised_numbers(dtype, first), w_scales,
                                          dtype == DART_Q4 ? w_scales + quantised_scales(width) : NULL, count / QUANTISED_BLOCK, x, x_row, scales,
                                          sums, part);
}
