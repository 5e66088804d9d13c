/* The vector primitives in portable C. Included by cpu_vector.h alone. */

static inline void load_f16(float *to, const uint16_t *from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = base_from_f16(from[i]);
}

static inline void load_bf16(float *to, const uint16_t *from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = base_from_bf16(from[i]);
}

static inline void store_f16(uint16_t *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = base_to_f16(from[i]);
}

static inline void store_bf16(uint16_t *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = base_to_bf16(from[i]);
}

static inline void prefetch(const void *at) { (void)at; }

/* a . b by eight sums in a fixed order. Compilers can vectorise the loop without reordering additions. */
static inline float dot(const float *a, const float *b, size_t count)
{
    float sums[8] = {0};
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (size_t k = 0; k < 8; k++) sums[k] += a[i + k] * b[i + k];
    for (; i < count; i++) sums[i % 8] += a[i] * b[i];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* out[i] = weights . x_i for `rows` <= 4 rows of x, weights of any dtype; `scratch` takes their conversion. */
static inline void dots(float *out, const cpu_tensor *weights, size_t index, const float *x, size_t x_row, size_t rows,
                        size_t count, float *scratch)
{
    const float *w = weights->dtype == DART_F32 ? (const float *)weights->data + index : scratch;
    if (weights->dtype == DART_F16) load_f16(scratch, (const uint16_t *)weights->data + index, count);
    if (weights->dtype == DART_BF16) load_bf16(scratch, (const uint16_t *)weights->data + index, count);
    for (size_t i = 0; i < rows; i++) out[i] = dot(w, x + i * x_row, count);
}

/* y += a x */
static inline void axpy(float *y, float a, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) y[i] += a * x[i];
}

/* y = silu(y) */
static inline void silu_row(float *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float e = expf(y[i] > 0.0f ? -y[i] : y[i]);
        y[i] *= (y[i] > 0.0f ? 1.0f : e) / (1.0f + e);
    }
}

/* y = exp(min(y, 0)) */
static inline void exp_row(float *y, size_t count)
{
    for (size_t i = 0; i < count; i++) y[i] = expf(y[i] > 0.0f ? 0.0f : y[i]);
}

/* y[i] = exp(min((high - highs[i]) + (low - lows[i]), 0)) steps[i] factors[i] */
static inline void decay_row(float *y, float high, float low, const float *highs, const float *lows, const float *steps,
                             const float *factors, size_t count)
{
    for (size_t i = 0; i < count; i++) y[i] = (high - highs[i]) + (low - lows[i]);
    exp_row(y, count);
    for (size_t i = 0; i < count; i++) y[i] *= steps[i] * factors[i];
}

/* to[k 16 + j] = from[j from_row + k] for j < 16. */
static inline void pack16(float *to, const float *from, size_t from_row, size_t depth)
{
    for (size_t k = 0; k < depth; k++)
        for (size_t j = 0; j < 16; j++) to[k * 16 + j] = from[j * from_row + k];
}

/* c[j] += sum_k a[k a_step] b[k, j] for 16 columns, 4 steps of the depth between a load and a store of c. */
static inline void product_16(size_t depth, const float *restrict a, size_t a_step, const float *restrict b,
                              size_t b_row, float *restrict c)
{
    size_t k = 0;
    for (; k + 4 <= depth; k += 4, a += 4 * a_step, b += 4 * b_row) {
        const float a0 = a[0], a1 = a[a_step], a2 = a[2 * a_step], a3 = a[3 * a_step];
        const float *b1 = b + b_row, *b2 = b1 + b_row, *b3 = b2 + b_row;
        for (size_t j = 0; j < 16; j++) c[j] = (((c[j] + a0 * b[j]) + a1 * b1[j]) + a2 * b2[j]) + a3 * b3[j];
    }
    for (; k < depth; k++, a += a_step, b += b_row)
        for (size_t j = 0; j < 16; j++) c[j] += a[0] * b[j];
}

/* c[i, j] += sum_k a[i a_row + k a_step] b[k, j] */
static inline void product(size_t rows, size_t columns, size_t depth, const float *a, size_t a_row, size_t a_step,
                           const float *b, size_t b_row, float *c, size_t c_row)
{
    const size_t whole = columns - columns % 16;
    for (size_t j = 0; j < whole; j += 16)
        for (size_t i = 0; i < rows; i++) product_16(depth, a + i * a_row, a_step, b + j, b_row, c + i * c_row + j);
    if (whole == columns) return;
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < depth; k++)
            axpy(c + i * c_row + whole, a[i * a_row + k * a_step], b + k * b_row + whole, columns - whole);
}

/* found[p] = sum_n key[n] m[n, p], found[P + p] = sum_n value[n] m[n, p] for a matrix m of N x P at m_at of any dtype;
 * scratch takes a converted row. next is not used. */
static inline void fold(float *found, const float *key, const float *value, const cpu_tensor *m, size_t m_at,
                        size_t next, size_t N, size_t P, float *scratch)
{
    (void)next;
    memset(found, 0, 2 * P * sizeof(float));
    for (size_t n = 0; n < N; n++) {
        const float *row = m->dtype == DART_F32 ? (const float *)m->data + m_at + n * P : scratch;
        if (m->dtype == DART_F16) load_f16(scratch, (const uint16_t *)m->data + m_at + n * P, P);
        if (m->dtype == DART_BF16) load_bf16(scratch, (const uint16_t *)m->data + m_at + n * P, P);
        axpy(found, key[n], row, P);
        axpy(found + P, value[n], row, P);
    }
}
