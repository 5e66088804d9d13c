/* linear and embed with quantised weights: rows made of random bytes, and read by the definition in runtime.h. */
#include "conform_weights.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32 };

/* A number that bf16 holds. */
static uint16_t bf16_of(double value, double *stored)
{
    const float single = (float)value;
    uint16_t bits;
    float back;
    dart_from_f32(DART_BF16, &bits, &single, 1);
    dart_to_f32(DART_BF16, &back, &bits, 1);
    *stored = back;
    return bits;
}

static void put(unsigned char *row, size_t at, uint16_t bits)
{
    row[at] = (unsigned char)bits;
    row[at + 1] = (unsigned char)(bits >> 8);
}

/* Scales near what numbers of variance 1 have; with CASE_ZERO every fifth block is zero, with CASE_HUGE every seventh 1,000 times as large, its
 * numbers but one 0. */
static double scale_of(conform_data *d, uint64_t block, bool four)
{
    const double usual = (four ? 0.22 : 0.025) * conform_uniform(d, 0.5, 1.5);
    if (conform_has(d, CASE_ZERO) && block % 5 == 2) return 0;
    return conform_has(d, CASE_HUGE) && block % 7 == 3 ? 1000 * usual : usual;
}

conform_quantised conform_quantised_make(conform_data *d, uint32_t rows, uint32_t width, bool four, double size)
{
    const dart_dtype dtype = four ? DART_Q4 : DART_Q8;
    const size_t row_bytes = dart_quantised_row(dtype, width), numbers = four ? width / 2 : width, blocks = width / BLOCK;
    conform_quantised q = {.values = conform_filled((uint64_t)rows * width, 0)};
    unsigned char *all = calloc(rows, row_bytes);
    if (all == NULL) abort();
    for (uint32_t r = 0; r < rows; r++) {
        unsigned char *row = all + r * row_bytes;
        for (size_t b = 0; b < blocks; b++) {
            const uint64_t block = r * blocks + b;
            const bool alone = conform_has(d, CASE_HUGE) && block % 7 == 3;
            double scale, minimum = 0;
            put(row, numbers + 2 * b, bf16_of(size * scale_of(d, block, four), &scale));
            if (four)
                put(row, numbers + 2 * blocks + 2 * b, bf16_of(scale == 0 ? size * conform_normal(d) : -scale * conform_uniform(d, 6, 9), &minimum));
            for (size_t i = 0; i < BLOCK; i++) {
                const int least = four ? 0 : -127, most = four ? 15 : 127;
                int n = (int)floor(conform_uniform(d, least, most + 1));
                if (alone) n = i == block % BLOCK ? most : four ? 7 : 0;
                if (four) row[16 * b + i % 8 * 2 + i / 16] |= (unsigned char)(n << i / 8 % 2 * 4);
                else row[BLOCK * b + i] = (unsigned char)(signed char)n;
                q.values[(uint64_t)r * width + b * BLOCK + i] = scale * n + minimum;
            }
        }
    }
    int32_t *words = malloc(rows * row_bytes);
    if (words == NULL) abort();
    memcpy(words, all, rows * row_bytes);
    q.bytes = conform_ints(d, rows, row_bytes / 4, words);
    q.t = q.bytes->t;
    q.t.dtype = dtype;
    q.t.offset *= 4; /* bytes */
    free(words);
    free(all);
    return q;
}

static void embed(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, V = c->H, W = c->P;
    int32_t *ids = malloc(T * sizeof *ids);
    if (ids == NULL) abort();
    for (uint32_t t = 0; t < T; t++) ids[t] = (int32_t)conform_uniform(d, 0, V);
    conform_tensor *i = conform_ints(d, T, 1, ids);
    const conform_quantised weight = conform_quantised_make(d, V, W, c->S == 4, 1);
    conform_tensor *y = conform_output(d, c->dtype, T, W, true);
    double *want = conform_filled((uint64_t)T * W, 0);
    oracle_embed(want, weight.values, ids, T, V, W);
    while (conform_next(d)) {
        dart_embed(d->stream, &(dart_embed_args){.T = T, .V = V, .W = W, .ids = i->t, .weight = weight.t, .y = y->t});
        if (!conform_execute(d)) continue;
        /* scale n is exact in f32, the sum with a minimum rounds once, relative to terms that are at most twice the largest number. */
        conform_compare_within(d, "y", y, want, &(conform_limits){.bound = c->S == 4 ? 0x1p-23 : 0, .floor = conform_floor(c->dtype)});
    }
    free(weight.values);
    free(want);
    free(ids);
}

static void linear(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, IN = c->N, OUT = c->P;
    const bool add = conform_has(d, CASE_ADD);
    conform_tensor *x = conform_input(d, c->dtype, T, IN, true, conform_unit);
    const conform_quantised weight = conform_quantised_make(d, OUT, IN, c->S == 4, 1);
    conform_tensor *y = add ? conform_input(d, c->dtype, T, OUT, true, conform_unit) : conform_output(d, c->dtype, T, OUT, true);
    double *want = conform_filled((uint64_t)T * OUT, 0), *terms = conform_filled((uint64_t)T * OUT, 0);
    if (conform_has(d, CASE_LARGE)) { /* one number that dwarfs its block */
        double *values = conform_filled((uint64_t)T * IN, 0);
        for (uint64_t i = 0; i < (uint64_t)T * IN; i++) values[i] = i % 97 == 11 ? 300 * x->values[i] : x->values[i];
        conform_set(d, x, values);
        free(values);
    }
    if (!d->plan) oracle_linear(want, x->values, weight.values, add ? y->values : NULL, T, IN, OUT);
    for (uint64_t t = 0; t < T; t++)
        for (uint64_t o = 0; o < OUT; o++) {
            double squares = add ? y->values[t * OUT + o] * y->values[t * OUT + o] : 0;
            for (uint64_t i = 0; i < IN; i++) squares += pow(x->values[t * IN + i] * weight.values[o * IN + i], 2);
            terms[t * OUT + o] = sqrt(squares);
        }
    while (conform_next(d)) {
        dart_linear(d->stream, &(dart_linear_args){.T = T, .IN = IN, .OUT = OUT, .add = add, .x = x->t, .weight = weight.t, .y = y->t});
        if (!conform_execute(d)) continue;
        /* x in steps of its block's largest magnitude m / 32,767 errs by m / 32,767 / sqrt(12), while the 32 numbers of the block have a root mean
         * square of at least m / sqrt(32). The largest of all errors is at most six times their root mean square, that of y, where one number of a
         * block outweighs the others, as little as sqrt(3) times its own: 6 / sqrt(3) more in the largest element. Weights that become
         * 16-bit numbers round as the type of x does. */
        const bool steps = conform_ran(d, "linear_quantised[few_avx2");
        const bool rounds = conform_ran(d, "embed_quantised[") || conform_ran(d, "linear_quantised[matrix");
        /* q4 multiplies numbers and minima apart where x has steps: scale n and the minimum, with root mean squares of 8.8 and 9 scales at most, are
         * what f32 rounds, and they add up to 4.6 scales. */
        const double apart = c->S == 4 ? sqrt(8.8 * 8.8 + 9 * 9) / 4.6 : 1;
        conform_compare_within(d, "y", y, want,
                               &(conform_limits){.bound = apart * conform_tolerance(BOUND_DOT, IN),
                                                 .operands = (steps ? 6 / sqrt(3.0) * sqrt(32.0 / 12) / 32767 : 0) +
                                                             (rounds ? conform_rounding(c->dtype) : 0),
                                                 .floor = conform_floor(c->dtype), .terms = terms});
    }
    free(weight.values);
    free(terms);
    free(want);
}

void conform_weights(conform_data *d)
{
    if (strcmp(d->c->op, "embed_quantised") == 0) embed(d);
    else linear(d);
}
