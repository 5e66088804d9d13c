/* What holds of softmax attention over a cache whatever its results: prop_softmax [DEVICE_SPEC]. */
#include "rig.h"

#include <math.h>

enum { B = 2, L = 45, H = 4, C = 48 };

/* Types and widths that take different rows of the table. */
static const struct shape { dart_dtype dtype; uint32_t G, D; double tolerance; } shapes[] = {
    {DART_F32, 2, 20, 3e-6}, {DART_F32, 4, 128, 3e-6}, {DART_F16, 2, 64, 1e-3}, {DART_F16, 1, 96, 1e-3}, {DART_BF16, 2, 64, 8e-3},
    {DART_BF16, 4, 128, 8e-3},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct attention {
    const struct shape *s;
    dart_tensor q, k, v, to_k, to_v, seq, o, lse;
} attention;

static attention make(rig *r, const struct shape *s)
{
    const uint64_t q = (uint64_t)B * L * H * s->D, k = (uint64_t)B * L * s->G * s->D, cache = (uint64_t)B * C * s->G * s->D;
    return (attention){.s = s, .q = rig_random(r, s->dtype, q, -2, 2), .k = rig_random(r, s->dtype, k, -2, 2), .v = rig_random(r, s->dtype, k, -1, 1),
                       .to_k = rig_tensor(r, s->dtype, cache, NULL), .to_v = rig_tensor(r, s->dtype, cache, NULL),
                       .seq = rig_ints(r, 2 * B, (const int32_t[2 * B]){0}), .o = rig_tensor(r, s->dtype, q, NULL),
                       .lse = rig_tensor(r, DART_F32, (uint64_t)B * L * H, NULL)};
}

/* The piece as its own cache. */
static float *attend(rig *r, const attention *a, float **lse)
{
    MUST(r, dart_attention(r->stream, &(dart_attention_args){.B = B, .L = L, .H = H, .G = a->s->G, .D = a->s->D, .C = L, .q = a->q, .k = a->k,
                                                             .v = a->v, .o = a->o, .lse = a->lse}));
    rig_run(r);
    *lse = rig_read(&a->lse, (uint64_t)B * L * H);
    return rig_read(&a->o, (uint64_t)B * L * H * a->s->D);
}

/* In pieces over a cache that starts as NaN, token by token among them, it is the same function. */
static void pieces_are_the_whole(void **unused)
{
    (void)unused;
    static const uint32_t lengths[] = {1, 20, 1, 1, 3, 16, 2, 1};
    for (size_t i = 0; i < SHAPES; i++) {
        rig r;
        rig_open(&r, rig_spec);
        attention a = make(&r, &shapes[i]);
        float *lse, *expected = attend(&r, &a, &lse);
        const uint64_t width = (uint64_t)H * a.s->D, k_width = (uint64_t)a.s->G * a.s->D;
        float *got = malloc(B * L * width * sizeof *got), *got_lse = malloc((size_t)B * L * H * sizeof *got_lse);
        uint32_t t = 0;
        for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; t += lengths[n++]) {
            const uint32_t part = lengths[n];
            const dart_tensor q = rig_tensor(&r, a.s->dtype, B * part * width, NULL), k = rig_tensor(&r, a.s->dtype, B * part * k_width, NULL),
                              v = rig_tensor(&r, a.s->dtype, B * part * k_width, NULL), o = rig_tensor(&r, a.s->dtype, B * part * width, NULL),
                              piece_lse = rig_tensor(&r, DART_F32, (uint64_t)B * part * H, NULL);
            const int32_t seq[2 * B] = {(int32_t)t, (int32_t)part, (int32_t)t, (int32_t)part};
            MUST(&r, dart_buffer_write(a.seq.buffer, 0, seq, sizeof seq));
            const struct { const dart_tensor *from, *to; uint64_t width; } copies[] = {{&a.q, &q, width}, {&a.k, &k, k_width}, {&a.v, &v, k_width}};
            for (size_t c = 0; c < 3; c++)
                for (uint64_t b = 0; b < B; b++) {
                    dart_tensor from = *copies[c].from, to = *copies[c].to;
                    from.offset += (b * L + t) * copies[c].width;
                    to.offset += b * part * copies[c].width;
                    float *values = rig_read(&from, part * copies[c].width);
                    rig_write(&to, part * copies[c].width, values);
                    free(values);
                }
            MUST(&r, dart_kv_append(r.stream, &(dart_kv_append_args){.B = B, .L = part, .G = a.s->G, .D = a.s->D, .C = C, .k = k, .v = v,
                                                                     .seq = a.seq, .to_k = a.to_k, .to_v = a.to_v}));
            MUST(&r, dart_attention(r.stream, &(dart_attention_args){.B = B, .L = part, .H = H, .G = a.s->G, .D = a.s->D, .C = C, .q = q, .k = a.to_k,
                                                                     .v = a.to_v, .seq = a.seq, .o = o, .lse = piece_lse}));
            rig_run(&r);
            float *values = rig_read(&o, B * part * width), *some = rig_read(&piece_lse, (uint64_t)B * part * H);
            for (uint64_t b = 0; b < B; b++) {
                memcpy(got + (b * L + t) * width, values + b * part * width, part * width * sizeof *got);
                memcpy(got_lse + (b * L + t) * H, some + b * part * H, (size_t)part * H * sizeof *got_lse);
            }
            free(values);
            free(some);
        }
        assert_int_equal(t, L);
        rig_close_to("o in pieces", got, expected, B * L * width, a.s->tolerance);
        rig_close_to("lse in pieces", got_lse, lse, (uint64_t)B * L * H, 3e-6);
        free(got);
        free(got_lse);
        free(expected);
        free(lse);
        rig_close(&r);
    }
}

/* A token sees itself and earlier ones: what later ones hold, NaN and infinities included, changes no bit. */
static void does_not_look_ahead(void **unused)
{
    (void)unused;
    static const float wild[] = {3e4f, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < SHAPES; i++) {
        rig r;
        rig_open(&r, rig_spec);
        attention a = make(&r, &shapes[i]);
        float *lse, *expected = attend(&r, &a, &lse), *other;
        const uint64_t k_width = (uint64_t)a.s->G * a.s->D, width = (uint64_t)H * a.s->D;
        for (uint32_t n = 0; n < 4; n++) {
            const uint32_t seen = L - 1 - 11 * n;
            float *values = malloc((L - seen) * k_width * sizeof *values);
            for (uint64_t k = 0; k < (L - seen) * k_width; k++) values[k] = wild[(n + k / k_width) % 4];
            for (uint64_t b = 0; b < B; b++) {
                dart_tensor k = a.k, v = a.v;
                k.offset = v.offset = (b * L + seen) * k_width;
                rig_write(&k, (L - seen) * k_width, values);
                rig_write(&v, (L - seen) * k_width, values);
            }
            free(values);
            float *got = attend(&r, &a, &other);
            for (uint64_t b = 0; b < B; b++) {
                rig_same_bits("o", got + b * L * width, expected + b * L * width, seen * width);
                rig_same_bits("lse", other + b * L * H, lse + b * L * H, (uint64_t)seen * H);
            }
            /* And the token that sees NaN or infinity does not hide it. */
            if (n > 0) assert_true(!isfinite(got[seen * width]));
            free(got);
            free(other);
        }
        free(expected);
        free(lse);
        rig_close(&r);
    }
}

/* Keys of equal content share the weight: o is the mean of the values seen, lse is log(their number) above the score. */
static void equal_keys_give_the_mean(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SHAPES; i++) {
        rig r;
        rig_open(&r, rig_spec);
        attention a = make(&r, &shapes[i]);
        const uint64_t D = a.s->D, G = a.s->G, k_width = G * D;
        float *k = rig_read(&a.k, B * L * k_width), *v = rig_read(&a.v, B * L * k_width), *q = rig_read(&a.q, B * L * H * D);
        for (uint64_t row = 1; row < B * L; row++) memcpy(k + row * k_width, k, k_width * sizeof *k);
        rig_write(&a.k, B * L * k_width, k);
        float *lse, *got = attend(&r, &a, &lse), *expected = malloc(B * L * H * D * sizeof *expected), *sums = calloc(B * H * D, sizeof *sums);
        for (uint64_t row = 0; row < B * L * H; row++) {
            const uint64_t t = row / H % L, h = row % H, b = row / H / L, g = h / (H / G);
            double score = 0;
            for (uint64_t d = 0; d < D; d++) {
                sums[(b * H + h) * D + d] += v[((b * L + t) * G + g) * D + d];
                expected[row * D + d] = sums[(b * H + h) * D + d] / (float)(t + 1);
                score += (double)q[row * D + d] * (double)k[g * D + d];
            }
            score = score / sqrt((double)D) + log((double)(t + 1));
            assert_true(fabs((double)lse[row] - score) < 1e-5 * (1 + fabs(score)));
        }
        rig_close_to("o", got, expected, B * L * H * D, a.s->tolerance);
        free(k);
        free(v);
        free(q);
        free(got);
        free(lse);
        free(expected);
        free(sums);
        rig_close(&r);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pieces_are_the_whole),
    cmocka_unit_test(does_not_look_ahead),
    cmocka_unit_test(equal_keys_give_the_mean),
};
RIG_MAIN("prop_softmax")
