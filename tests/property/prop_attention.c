/* What holds of state-memory attention and of the convolution whatever their results: prop_attention [DEVICE_SPEC]. */
#include "rig.h"

#include <math.h>

enum { B = 2, H = 4, G = 2, N = 12, P = 20, S = 4, M = 9, MEMORY = H * N * P };
#define TOLERANCE 3e-6

typedef struct attention {
    dart_tensor q, e, c, seq, r, lse;
    float *dh; /* B M H N P */
} attention;

/* L tokens of every sequence, which follow M chunks. */
static attention make(rig *r, uint32_t L)
{
    const int32_t seq[2 * B] = {S * M, (int32_t)L, S * M, (int32_t)L};
    const uint64_t rows = (uint64_t)B * L;
    return (attention){.q = rig_random(r, DART_F32, rows * G * N, -3, 3), .e = rig_random(r, DART_F32, rows * G * P, -3, 3),
                       .c = rig_random(r, DART_F32, rows * G * N, -1, 1), .seq = rig_ints(r, 2 * B, seq),
                       .r = rig_tensor(r, DART_F32, rows * H * P, NULL), .lse = rig_tensor(r, DART_F32, rows * H, NULL),
                       .dh = rig_values(r, B * M * MEMORY, -1, 1)};
}

/* Memories first .. first + count - 1 of every sequence in a tensor of their own. */
static dart_memories run_of(rig *r, const attention *a, uint32_t first, uint32_t count)
{
    const dart_memories run = {.first = first, .M = count, .dh = rig_tensor(r, DART_F32, (uint64_t)B * count * MEMORY, NULL)};
    for (uint64_t b = 0; b < B; b++) {
        dart_tensor part = run.dh;
        part.offset = b * count * MEMORY;
        rig_write(&part, (uint64_t)count * MEMORY, a->dh + (b * M + first) * MEMORY);
    }
    return run;
}

static float *attend(rig *r, const attention *a, uint32_t L, const dart_memories *memories, uint32_t count, float **lse)
{
    MUST(r, dart_sma(r->stream, &(dart_sma_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .eps = 1e-5f, .q = a->q, .e = a->e,
                                                 .c = a->c, .seq = a->seq, .memories = memories, .memories_count = count, .r = a->r, .lse = a->lse}));
    rig_run(r);
    *lse = rig_read(&a->lse, (uint64_t)B * L * H);
    return rig_read(&a->r, (uint64_t)B * L * H * P);
}

static void order_does_not_matter(void **unused)
{
    (void)unused;
    static const uint32_t lengths[] = {1, 3};
    rig r;
    rig_open(&r, rig_spec);
    for (size_t i = 0; i < 2; i++) {
        const uint32_t L = lengths[i];
        attention a = make(&r, L);
        float *lse, *other;
        const dart_memories whole = run_of(&r, &a, 0, M);
        float *expected = attend(&r, &a, L, &whole, 1, &lse);
        /* Runs, back to front. */
        const dart_memories runs[] = {run_of(&r, &a, 7, 2), run_of(&r, &a, 0, 3), run_of(&r, &a, 6, 1), run_of(&r, &a, 3, 3)};
        float *got = attend(&r, &a, L, runs, 4, &other);
        rig_close_to("r in runs", got, expected, (uint64_t)B * L * H * P, TOLERANCE);
        rig_close_to("lse in runs", other, lse, (uint64_t)B * L * H, TOLERANCE);
        free(got);
        free(other);
        /* All of them are past, so their numbers do not matter either. */
        for (size_t b = 0; b < B; b++)
            for (size_t m = 0; m < M / 2; m++)
                for (size_t k = 0; k < MEMORY; k++) {
                    float *left = &a.dh[(b * M + m) * MEMORY + k], *right = &a.dh[(b * M + M - 1 - m) * MEMORY + k], kept = *left;
                    *left = *right;
                    *right = kept;
                }
        const dart_memories backwards = run_of(&r, &a, 0, M);
        got = attend(&r, &a, L, &backwards, 1, &other);
        rig_close_to("r of reversed memories", got, expected, (uint64_t)B * L * H * P, TOLERANCE);
        rig_close_to("lse of reversed memories", other, lse, (uint64_t)B * L * H, TOLERANCE);
        free(got);
        free(lse);
        got = attend(&r, &a, L, &backwards, 1, &lse);
        rig_same_bits("second run", lse, other, (uint64_t)B * L * H);
        free(got);
        free(other);
        free(lse);
        free(expected);
        free(a.dh);
    }
    rig_close(&r);
}

/* A token sees the memories of earlier chunks only: what later ones hold changes no bit, be it no number. */
static void does_not_look_ahead(void **unused)
{
    (void)unused;
    enum { L = 14 };
    static const float bad[] = {1e9f, INFINITY, NAN};
    rig r;
    rig_open(&r, rig_spec);
    attention a = make(&r, L);
    float *lse, *other;
    /* Tokens 6 .. 19: of chunks 1, 2, 3 and 4. */
    MUST(&r, dart_buffer_write(a.seq.buffer, 0, (const int32_t[]){6, L, 6, L}, 16));
    dart_memories run = run_of(&r, &a, 0, M);
    float *expected = attend(&r, &a, L, &run, 1, &lse);
    for (uint32_t seen = 4; seen-- > 1;) {
        for (size_t b = 0; b < B; b++)
            for (size_t k = 0; k < (size_t)(M - seen) * MEMORY; k++) a.dh[(b * M + seen) * MEMORY + k] = bad[seen - 1];
        run = run_of(&r, &a, 0, M);
        float *got = attend(&r, &a, L, &run, 1, &other);
        const uint64_t tokens = (seen + 1) * S - 6;
        for (size_t b = 0; b < B; b++) {
            rig_same_bits("r", got + b * L * H * P, expected + b * L * H * P, tokens * H * P);
            rig_same_bits("lse", other + b * L * H, lse + b * L * H, tokens * H);
        }
        free(got);
        free(other);
    }
    free(expected);
    free(lse);
    free(a.dh);
    rig_close(&r);
}

/* Memories of equal content share the weight: r is that of one, lse is log(M) above it. */
static void equal_memories_are_one(void **unused)
{
    (void)unused;
    enum { L = 3 };
    rig r;
    rig_open(&r, rig_spec);
    attention a = make(&r, L);
    for (size_t b = 0; b < B; b++)
        for (size_t m = 1; m < M; m++) memcpy(a.dh + (b * M + m) * MEMORY, a.dh + b * M * MEMORY, MEMORY * sizeof *a.dh);
    float *lse, *one_lse;
    const dart_memories one = run_of(&r, &a, 0, 1), all = run_of(&r, &a, 0, M);
    float *expected = attend(&r, &a, L, &one, 1, &one_lse), *got = attend(&r, &a, L, &all, 1, &lse);
    rig_close_to("r", got, expected, (uint64_t)B * L * H * P, TOLERANCE);
    for (size_t i = 0; i < (size_t)B * L * H; i++) assert_true(fabs((double)lse[i] - (double)one_lse[i] - log(M)) < 1e-5);
    free(got);
    free(lse);
    /* And the first chunk has none. */
    MUST(&r, dart_buffer_write(a.seq.buffer, 0, (const int32_t[]){0, L, 1, L}, 16));
    got = attend(&r, &a, L, &all, 1, &lse);
    for (size_t i = 0; i < (size_t)B * L * H * P; i++) assert_true(got[i] == 0);
    for (size_t i = 0; i < (size_t)B * L * H; i++) assert_true(isinf(lse[i]) && lse[i] < 0);
    free(got);
    free(lse);
    free(expected);
    free(one_lse);
    free(a.dh);
    rig_close(&r);
}

/* A token over so many memories that splits of 8 would be more than MERGE_PARTS. In two runs they are not, and give the same. */
static void takes_long_runs(void **unused)
{
    (void)unused;
    enum { LONG = 1100, SIZE = 8, ELEMENTS = SIZE * SIZE };
    rig r;
    rig_open(&r, rig_spec);
    const int32_t position[2] = {LONG, 1};
    const dart_tensor q = rig_random(&r, DART_F32, SIZE, -3, 3), e = rig_random(&r, DART_F32, SIZE, -3, 3), c = rig_random(&r, DART_F32, SIZE, -1, 1),
                      seq = rig_ints(&r, 2, position), dh = rig_random(&r, DART_F32, LONG * ELEMENTS, -1, 1);
    dart_memories halves[2] = {{.M = LONG / 2, .dh = dh}, {.first = LONG / 2, .M = LONG / 2, .dh = dh}};
    halves[1].dh.offset = LONG / 2 * ELEMENTS;
    const dart_memories whole = {.M = LONG, .dh = dh};
    float *results[2], *sums[2];
    for (uint32_t parts = 1; parts <= 2; parts++) {
        const dart_tensor to = rig_tensor(&r, DART_F32, SIZE, NULL), lse = rig_tensor(&r, DART_F32, 1, NULL);
        MUST(&r, dart_sma(r.stream, &(dart_sma_args){.B = 1, .L = 1, .H = 1, .G = 1, .N = SIZE, .P = SIZE, .S = 1, .eps = 1e-5f, .q = q, .e = e,
                                                     .c = c, .seq = seq, .memories = parts == 1 ? &whole : halves, .memories_count = parts,
                                                     .r = to, .lse = lse}));
        rig_run(&r);
        results[parts - 1] = rig_read(&to, SIZE);
        sums[parts - 1] = rig_read(&lse, 1);
    }
    rig_close_to("r of a long run", results[0], results[1], SIZE, TOLERANCE);
    rig_close_to("lse of a long run", sums[0], sums[1], 1, TOLERANCE);
    for (int i = 0; i < 2; i++) {
        free(results[i]);
        free(sums[i]);
    }
    rig_close(&r);
}

/* Results of 16 bits over several runs are rounded when all runs are in: of the first alone f16 might not hold them. */
static void rounds_when_all_runs_are_in(void **unused)
{
    (void)unused;
    enum { SIZE = 4, ELEMENTS = SIZE * SIZE, LONGEST = 3 };
    rig r;
    rig_open(&r, rig_spec);
    float ones[LONGEST * SIZE], memories[2 * ELEMENTS];
    /* Logits are +-SIZE^1.5: the first memory, of opposite sign and large, weighs exp(-16). */
    for (size_t i = 0; i < LONGEST * SIZE; i++) ones[i] = 1;
    for (size_t i = 0; i < 2 * ELEMENTS; i++) memories[i] = i < ELEMENTS ? -1e6f : 1;
    for (int32_t L = 1; L <= LONGEST; L += 2) {
        const dart_tensor all = rig_tensor(&r, DART_F32, LONGEST * SIZE, ones), dh = rig_tensor(&r, DART_F32, 2 * ELEMENTS, memories),
                          seq = rig_ints(&r, 2, (const int32_t[]){8, L});
        dart_memories runs[2] = {{.M = 1, .dh = dh}, {.first = 1, .M = 1, .dh = dh}};
        runs[1].dh.offset = ELEMENTS;
        const dart_memories whole = {.M = 2, .dh = dh};
        float *results[2];
        for (uint32_t parts = 1; parts <= 2; parts++) {
            const dart_tensor to = rig_tensor(&r, DART_F16, LONGEST * SIZE, NULL);
            MUST(&r, dart_sma(r.stream, &(dart_sma_args){.B = 1, .L = (uint32_t)L, .H = 1, .G = 1, .N = SIZE, .P = SIZE, .S = 4, .eps = 1e-5f,
                                                         .q = all, .e = all, .c = all, .seq = seq, .memories = parts == 1 ? &whole : runs,
                                                         .memories_count = parts, .r = to}));
            rig_run(&r);
            results[parts - 1] = rig_read(&to, (uint64_t)L * SIZE);
        }
        rig_close_to("r in two runs", results[1], results[0], (uint64_t)L * SIZE, 0x1p-10);
        free(results[0]);
        free(results[1]);
    }
    rig_close(&r);
}

/* A convolution of two pieces with a carried tail is that of the whole, and later inputs change no earlier bit. */
static void convolves_in_pieces(void **unused)
{
    (void)unused;
    enum { L = 37, C = 50, K = 4 };
    rig r;
    rig_open(&r, rig_spec);
    const float zero[(K - 1) * C] = {0};
    const dart_tensor weight = rig_random(&r, DART_F32, C * K, -1, 1), x = rig_random(&r, DART_F32, L * C, -1, 1),
                      y = rig_tensor(&r, DART_F32, L * C, NULL), tail = rig_tensor(&r, DART_F32, (K - 1) * C, NULL),
                      z = rig_tensor(&r, DART_F32, L * C, NULL);
    MUST(&r, dart_conv(r.stream, &(dart_conv_args){.B = 1, .L = L, .C = C, .K = K, .x = x, .weight = weight, .y = y}));
    rig_run(&r);
    float *expected = rig_read(&y, L * C);
    for (uint32_t cut = 1; cut < L; cut += cut < 5 ? 1 : 9) {
        dart_tensor later = x, out = z;
        later.offset = out.offset = (uint64_t)cut * C;
        rig_write(&tail, (K - 1) * C, zero);
        MUST(&r, dart_conv(r.stream, &(dart_conv_args){.B = 1, .L = cut, .C = C, .K = K, .x = x, .weight = weight, .tail = tail, .y = z}));
        MUST(&r, dart_conv(r.stream, &(dart_conv_args){.B = 1, .L = L - cut, .C = C, .K = K, .x = later, .weight = weight, .tail = tail, .y = out}));
        rig_run(&r);
        float *got = rig_read(&z, L * C);
        rig_close_to("y of two pieces", got, expected, L * C, 1e-6);
        free(got);
    }
    dart_tensor end = x;
    end.offset = 20 * C;
    float *large = rig_values(&r, (L - 20) * C, 1e5f, 1e6f);
    rig_write(&end, (L - 20) * C, large);
    MUST(&r, dart_conv(r.stream, &(dart_conv_args){.B = 1, .L = L, .C = C, .K = K, .x = x, .weight = weight, .y = y}));
    rig_run(&r);
    float *got = rig_read(&y, L * C);
    rig_same_bits("y", got, expected, 20 * C);
    free(got);
    free(large);
    free(expected);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(order_does_not_matter),
    cmocka_unit_test(does_not_look_ahead),
    cmocka_unit_test(equal_memories_are_one),
    cmocka_unit_test(takes_long_runs),
    cmocka_unit_test(rounds_when_all_runs_are_in),
    cmocka_unit_test(convolves_in_pieces),
};
RIG_MAIN("prop_attention")
