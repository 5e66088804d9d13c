/* The vector primitives for AVX2, FMA and F16C. Included by cpu_vector.h alone. */
#include <immintrin.h>

static inline __m256i mask_of(size_t count)
{
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(const void *)(ones + (count < 8 ? 8 - count : 0)));
}

static inline __m128i halves(const uint16_t *from) { return _mm_loadu_si128((const __m128i *)(const void *)from); }
static inline __m256 from_f16(const uint16_t *from) { return _mm256_cvtph_ps(halves(from)); }
static inline __m256 from_bf16(const uint16_t *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves(from)), 16));
}

static inline void load_f16(float *to, const uint16_t *from, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, from_f16(from + i));
    for (; i < count; i++) to[i] = base_from_f16(from[i]);
}

static inline void load_bf16(float *to, const uint16_t *from, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, from_bf16(from + i));
    for (; i < count; i++) to[i] = base_from_bf16(from[i]);
}

static inline void store_f16(uint16_t *to, const float *from, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(to + i), half);
    }
    for (; i < count; i++) to[i] = base_to_f16(from[i]);
}

static inline void store_bf16(uint16_t *to, const float *from, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 value = _mm256_loadu_ps(from + i);
        __m256i bits = _mm256_castps_si256(value);
        __m256i high = _mm256_srli_epi32(bits, 16);
        __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))),
                                            16);
        __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
        __m256i result = _mm256_blendv_epi8(rounded, quiet, nan);
        __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
        _mm_storeu_si128((__m128i *)(void *)(to + i), half);
    }
    for (; i < count; i++) to[i] = base_to_bf16(from[i]);
}

static inline void prefetch(const void *at) { _mm_prefetch((const char *)at, _MM_HINT_T1); }

static inline float sum_of(__m256 v)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float dot(const float *a, const float *b, size_t count)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    size_t i = 0;
    for (; i + 32 <= count; i += 32) {
        s0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), s0);
        s1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(b + i + 8), s1);
        s2 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 16), _mm256_loadu_ps(b + i + 16), s2);
        s3 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 24), _mm256_loadu_ps(b + i + 24), s3);
    }
    for (; i < count; i += 8) {
        __m256i mask = mask_of(count - i);
        s0 = _mm256_fmadd_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask), s0);
    }
    return sum_of(_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
}

#define EACH_1(M) M(0)
#define EACH_2(M) EACH_1(M) M(1)
#define EACH_3(M) EACH_2(M) M(2)
#define EACH_4(M) EACH_3(M) M(3)
#define EACH_5(M) EACH_4(M) M(4)
#define EACH_6(M) EACH_5(M) M(5)

/* dots_<type>_<rows>: out[i] = w . x_i. Two sums a row hide the latency of fma. Weights DOTS_AHEAD bytes further on are prefetched. */
enum { DOTS_AHEAD = 4096 }; /* bytes */
#define DOTS_SUMS(i) __m256 s##i = _mm256_setzero_ps(), t##i = _mm256_setzero_ps();
#define DOTS_STEP(i) \
    s##i = _mm256_fmadd_ps(w0, _mm256_loadu_ps(x + (i) * x_row + k), s##i); \
    t##i = _mm256_fmadd_ps(w1, _mm256_loadu_ps(x + (i) * x_row + k + 8), t##i);
#define DOTS_TAIL(i) s##i = _mm256_fmadd_ps(w0, _mm256_maskload_ps(x + (i) * x_row + k, mask), s##i);
#define DOTS_OUT(i) out[i] = sum_of(_mm256_add_ps(s##i, t##i));
#define DOTS(type, element, load, tail, rows) \
    static void dots_##type##_##rows(float *out, const void *weights, size_t index, const float *x, size_t x_row, \
                                     size_t count) \
    { \
        const element *w = (const element *)weights + index; \
        (void)x_row; \
        EACH_##rows(DOTS_SUMS) \
        size_t k = 0; \
        for (; k + 16 <= count; k += 16) { \
            _mm_prefetch((const char *)(w + k) + DOTS_AHEAD, _MM_HINT_T0); \
            const __m256 w0 = load(w + k), w1 = load(w + k + 8); \
            EACH_##rows(DOTS_STEP) \
        } \
        for (; k < count; k += 8) { \
            float last[8] = {0}; \
            const size_t left = count - k < 8 ? count - k : 8; \
            const __m256i mask = mask_of(left); \
            for (size_t i = 0; i < left; i++) last[i] = tail(w[k + i]); \
            const __m256 w0 = _mm256_loadu_ps(last); \
            EACH_##rows(DOTS_TAIL) \
        } \
        EACH_##rows(DOTS_OUT) \
    }
#define AS_IT_IS(value) (value)
#define DOTS_TYPE(type, element, load, tail) \
    DOTS(type, element, load, tail, 1) \
    DOTS(type, element, load, tail, 2) \
    DOTS(type, element, load, tail, 3) \
    DOTS(type, element, load, tail, 4)
DOTS_TYPE(f32, float, _mm256_loadu_ps, AS_IT_IS)
DOTS_TYPE(f16, uint16_t, from_f16, base_from_f16)
DOTS_TYPE(bf16, uint16_t, from_bf16, base_from_bf16)

/* out[i] = weights . x_i for `rows` <= 4 rows of x, weights of any dtype. */
static inline void dots(float *out, const cpu_tensor *weights, size_t index, const float *x, size_t x_row, size_t rows,
                        size_t count, float *scratch)
{
    typedef void (*dots_function)(float *, const void *, size_t, const float *, size_t, size_t);
    static const dots_function functions[3][4] = {
        {dots_f32_1, dots_f32_2, dots_f32_3, dots_f32_4},
        {dots_f16_1, dots_f16_2, dots_f16_3, dots_f16_4},
        {dots_bf16_1, dots_bf16_2, dots_bf16_3, dots_bf16_4},
    };
    (void)scratch;
    functions[weights->dtype][rows - 1](out, weights->data, index, x, x_row, count);
}

/* y += a x */
static inline void axpy(float *y, float a, const float *x, size_t count)
{
    const __m256 v = _mm256_set1_ps(a);
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(v, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < count; i++) y[i] += a * x[i];
}

/* exp(x) for x <= 0, 0 below -87.3: 2^n times the Taylor polynomial of degree 7 of the remainder r, |r| <= ln(2) / 2. Its truncation
 * error is below 2^-27. The order of the operands of min and max lets NaN pass. */
static inline __m256 exp_nonpositive(__m256 x)
{
    const __m256 lowest = _mm256_set1_ps(-87.3f);
    const __m256 below = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ);
    x = _mm256_max_ps(lowest, x);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040.0f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(below, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

static inline __m256 silu(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 e = exp_nonpositive(_mm256_or_ps(x, _mm256_set1_ps(-0.0f)));
    const __m256 top = _mm256_blendv_ps(one, e, x);
    return _mm256_mul_ps(x, _mm256_div_ps(top, _mm256_add_ps(one, e)));
}

/* y = silu(y) */
static inline void silu_row(float *y, size_t count)
{
    for (size_t i = 0; i < count; i += 8) {
        const __m256i mask = mask_of(count - i);
        _mm256_maskstore_ps(y + i, mask, silu(_mm256_maskload_ps(y + i, mask)));
    }
}

/* y = exp(min(y, 0)) */
static inline void exp_row(float *y, size_t count)
{
    for (size_t i = 0; i < count; i += 8) {
        const __m256i mask = mask_of(count - i);
        const __m256 x = _mm256_min_ps(_mm256_setzero_ps(), _mm256_maskload_ps(y + i, mask));
        _mm256_maskstore_ps(y + i, mask, exp_nonpositive(x));
    }
}

/* y[i] = exp(min((high - highs[i]) + (low - lows[i]), 0)) steps[i] factors[i] */
static inline void decay_row(float *y, float high, float low, const float *highs, const float *lows, const float *steps,
                             const float *factors, size_t count)
{
    const __m256 h = _mm256_set1_ps(high), l = _mm256_set1_ps(low);
    for (size_t i = 0; i < count; i += 8) {
        const __m256i mask = mask_of(count - i);
        const __m256 dh = _mm256_sub_ps(h, _mm256_maskload_ps(highs + i, mask));
        const __m256 dl = _mm256_sub_ps(l, _mm256_maskload_ps(lows + i, mask));
        const __m256 decay = exp_nonpositive(_mm256_min_ps(_mm256_setzero_ps(), _mm256_add_ps(dh, dl)));
        const __m256 factor = _mm256_mul_ps(_mm256_maskload_ps(steps + i, mask), _mm256_maskload_ps(factors + i, mask));
        _mm256_maskstore_ps(y + i, mask, _mm256_mul_ps(decay, factor));
    }
}

/* Transposes 8 x 8: to[k 16 + j] = from[j from_row + k]. */
static inline void pack8(float *to, const float *from, size_t from_row)
{
    __m256 a[8], b[8];
    for (size_t j = 0; j < 8; j++) a[j] = _mm256_loadu_ps(from + j * from_row);
    for (size_t j = 0; j < 8; j += 2) {
        b[j] = _mm256_unpacklo_ps(a[j], a[j + 1]);
        b[j + 1] = _mm256_unpackhi_ps(a[j], a[j + 1]);
    }
    for (size_t j = 0; j < 8; j += 4) {
        a[j] = _mm256_shuffle_ps(b[j], b[j + 2], 0x44);
        a[j + 1] = _mm256_shuffle_ps(b[j], b[j + 2], 0xee);
        a[j + 2] = _mm256_shuffle_ps(b[j + 1], b[j + 3], 0x44);
        a[j + 3] = _mm256_shuffle_ps(b[j + 1], b[j + 3], 0xee);
    }
    for (size_t k = 0; k < 4; k++) {
        _mm256_storeu_ps(to + k * 16, _mm256_permute2f128_ps(a[k], a[k + 4], 0x20));
        _mm256_storeu_ps(to + (k + 4) * 16, _mm256_permute2f128_ps(a[k], a[k + 4], 0x31));
    }
}

/* to[k 16 + j] = from[j from_row + k] for j < 16. */
static inline void pack16(float *to, const float *from, size_t from_row, size_t depth)
{
    size_t k = 0;
    for (; k + 8 <= depth; k += 8) {
        pack8(to + k * 16, from + k, from_row);
        pack8(to + k * 16 + 8, from + 8 * from_row + k, from_row);
    }
    for (; k < depth; k++)
        for (size_t j = 0; j < 16; j++) to[k * 16 + j] = from[j * from_row + k];
}

/* product_<kind>_<rows>: c += a b for up to 6 rows and 16 columns, with c in registers. */
#define PRODUCT_FIRST(i) __m256 l##i = _mm256_setzero_ps(), h##i = _mm256_setzero_ps();
#define PRODUCT_STEP(i) \
    { \
        const __m256 v = _mm256_broadcast_ss(a + (i) * a_row); \
        l##i = _mm256_fmadd_ps(v, b0, l##i); \
        h##i = _mm256_fmadd_ps(v, b1, h##i); \
    }
#define PRODUCT_LAST(i) \
    STORE(c + (i) * c_row, m0, _mm256_add_ps(LOAD(c + (i) * c_row, m0), l##i)); \
    STORE(c + (i) * c_row + 8, m1, _mm256_add_ps(LOAD(c + (i) * c_row + 8, m1), h##i));
#define PRODUCT(kind, rows) \
    static void product_##kind##_##rows(size_t columns, size_t depth, const float *a, size_t a_row, size_t a_step, \
                                        const float *b, size_t b_row, float *c, size_t c_row) \
    { \
        const __m256i m0 = mask_of(columns), m1 = mask_of(columns > 8 ? columns - 8 : 0); \
        (void)a_row, (void)c_row, (void)m0, (void)m1; \
        EACH_##rows(PRODUCT_FIRST) \
        for (size_t k = 0; k < depth; k++, a += a_step, b += b_row) { \
            const __m256 b0 = LOAD(b, m0), b1 = LOAD(b + 8, m1); \
            EACH_##rows(PRODUCT_STEP) \
        } \
        EACH_##rows(PRODUCT_LAST) \
    }
#define PRODUCTS(kind) \
    PRODUCT(kind, 1) PRODUCT(kind, 2) PRODUCT(kind, 3) PRODUCT(kind, 4) PRODUCT(kind, 5) PRODUCT(kind, 6)
#define LOAD(at, mask) _mm256_loadu_ps(at)
#define STORE(at, mask, value) _mm256_storeu_ps(at, value)
PRODUCTS(full)
#undef LOAD
#undef STORE
#define LOAD(at, mask) _mm256_maskload_ps(at, mask)
#define STORE(at, mask, value) _mm256_maskstore_ps(at, mask, value)
PRODUCTS(part)
#undef LOAD
#undef STORE

/* c[i, j] += sum_k a[i a_row + k a_step] b[k, j] */
static inline void product(size_t rows, size_t columns, size_t depth, const float *a, size_t a_row, size_t a_step,
                           const float *b, size_t b_row, float *c, size_t c_row)
{
    typedef void (*product_function)(size_t, size_t, const float *, size_t, size_t, const float *, size_t, float *,
                                     size_t);
    static const product_function functions[2][6] = {
        {product_part_1, product_part_2, product_part_3, product_part_4, product_part_5, product_part_6},
        {product_full_1, product_full_2, product_full_3, product_full_4, product_full_5, product_full_6},
    };
    for (size_t j = 0; j < columns; j += 16) {
        const size_t width = columns - j < 16 ? columns - j : 16;
        for (size_t i = 0; i < rows; i += 6) {
            const size_t height = rows - i < 6 ? rows - i : 6;
            functions[width == 16][height - 1](width, depth, a + i * a_row, a_row, a_step, b + j, b_row,
                                               c + i * c_row + j, c_row);
        }
    }
}

/* fold_<type>: two rows times 32 columns of a matrix of any dtype, with the sums in registers. */
#define FOLD_AHEAD(i) if ((i) % FOLD_LINE == 0) prefetch(m + 8 * (i) + next);
#define FOLD_FIRST(i) __m256 k##i = _mm256_setzero_ps(), v##i = _mm256_setzero_ps();
#define FOLD_STEP(i) \
    { \
        const __m256 row = LOAD(m + 8 * (i)); \
        k##i = _mm256_fmadd_ps(a, row, k##i); \
        v##i = _mm256_fmadd_ps(b, row, v##i); \
    }
#define FOLD_LAST(i) \
    _mm256_storeu_ps(found + 8 * (i), k##i); \
    _mm256_storeu_ps(found + P + 8 * (i), v##i);
#define FOLD(type, element, columns) \
    static void fold_##type##_##columns(float *found, const float *key, const float *value, const element *m, \
                                        size_t next, size_t N, size_t P) \
    { \
        EACH_##columns(FOLD_FIRST) \
        for (size_t n = 0; n < N; n++, m += P) { \
            const __m256 a = _mm256_broadcast_ss(key + n), b = _mm256_broadcast_ss(value + n); \
            EACH_##columns(FOLD_AHEAD) \
            EACH_##columns(FOLD_STEP) \
        } \
        EACH_##columns(FOLD_LAST) \
    }
#define FOLD_TYPE(type, element, tail) \
    FOLD(type, element, 4) \
    FOLD(type, element, 1) \
    static void fold_##type(float *found, const float *key, const float *value, const element *m, size_t next, \
                            size_t N, size_t P) \
    { \
        size_t p = 0; \
        for (; p + 32 <= P; p += 32) fold_##type##_4(found + p, key, value, m + p, next, N, P); \
        for (; p + 8 <= P; p += 8) fold_##type##_1(found + p, key, value, m + p, next, N, P); \
        for (; p < P; p++) { \
            found[p] = found[P + p] = 0; \
            for (size_t n = 0; n < N; n++) { \
                found[p] += key[n] * tail(m[n * P + p]); \
                found[P + p] += value[n] * tail(m[n * P + p]); \
            } \
        } \
    }
#define LOAD(at) _mm256_loadu_ps(at)
#define FOLD_LINE 2
FOLD_TYPE(f32, float, AS_IT_IS)
#undef LOAD
#undef FOLD_LINE
#define FOLD_LINE 4
#define LOAD(at) from_f16(at)
FOLD_TYPE(f16, uint16_t, base_from_f16)
#undef LOAD
#define LOAD(at) from_bf16(at)
FOLD_TYPE(bf16, uint16_t, base_from_bf16)
#undef LOAD

/* found[p] = sum_n key[n] m[n, p], found[P + p] = sum_n value[n] m[n, p] for a matrix m of N x P at m_at of any dtype.
 * Prefetches the matrix `next` elements further on. */
static inline void fold(float *found, const float *key, const float *value, const cpu_tensor *m, size_t m_at,
                        size_t next, size_t N, size_t P, float *scratch)
{
    (void)scratch;
    if (m->dtype == DART_F16) fold_f16(found, key, value, (const uint16_t *)m->data + m_at, next, N, P);
    else if (m->dtype == DART_BF16) fold_bf16(found, key, value, (const uint16_t *)m->data + m_at, next, N, P);
    else fold_f32(found, key, value, (const float *)m->data + m_at, next, N, P);
}
