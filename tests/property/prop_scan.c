/* What holds of the scan whatever its result: prop_scan [DEVICE_SPEC]. */
#include "rig.h"

#include <math.h>

enum { B = 2, L = 75, H = 4, G = 2, N = 12, P = 20 };
/* f32 sums of up to 75 x 12 products in another order. */
#define TOLERANCE 3e-6

typedef struct scan {
    uint32_t L, S;
    float *x, *dt, *a_log, *b, *c, *d;
    const float *h_in; /* B H N P or NULL */
    float *y, *h, *dh; /* results */
} scan;

static void make(rig *r, scan *s)
{
    *s = (scan){.L = L, .S = 16};
    s->x = rig_values(r, B * L * H * P, -1, 1);
    s->dt = rig_values(r, B * L * H, -4, 1);
    s->a_log = rig_values(r, H, -1, 1);
    s->b = rig_values(r, B * L * G * N, -1, 1);
    s->c = rig_values(r, B * L * G * N, -1, 1);
    s->d = rig_values(r, H, -1, 1);
}

static void free_results(scan *s)
{
    free(s->y);
    free(s->h);
    free(s->dh);
    s->y = s->h = s->dh = NULL;
}

static void unmake(scan *s)
{
    free_results(s);
    free(s->x);
    free(s->dt);
    free(s->a_log);
    free(s->b);
    free(s->c);
    free(s->d);
}

static void run(rig *r, scan *s)
{
    static const float zero[B * H * N * P] = {0};
    const uint64_t rows = (uint64_t)B * s->L, state = (uint64_t)H * N * P, chunks = (uint64_t)B * dart_ssd_chunks(s->L, s->S, false);
    const uint32_t before = r->buffers_count;
    free_results(s);
    const dart_ssd_args args = {.B = B, .L = s->L, .H = H, .G = G, .N = N, .P = P, .S = s->S, .plan = s->L == 1 ? DART_PLAN_AUTO : DART_PLAN_CHUNKED,
                                .x = rig_tensor(r, DART_F32, rows * H * P, s->x), .dt = rig_tensor(r, DART_F32, rows * H, s->dt),
                                .b = rig_tensor(r, DART_F32, rows * G * N, s->b), .c = rig_tensor(r, DART_F32, rows * G * N, s->c),
                                .a_log = rig_tensor(r, DART_F32, H, s->a_log), .d = rig_tensor(r, DART_F32, H, s->d),
                                .h = rig_tensor(r, DART_F32, B * state, s->h_in != NULL ? s->h_in : zero),
                                .y = rig_tensor(r, DART_F32, rows * H * P, NULL), .dh = rig_tensor(r, DART_F32, chunks * state, NULL)};
    MUST(r, dart_ssd(r->stream, &args));
    rig_run(r);
    s->y = rig_read(&args.y, rows * H * P);
    s->h = rig_read(&args.h, B * state);
    s->dh = rig_read(&args.dh, chunks * state);
    while (r->buffers_count > before) dart_buffer_destroy(&r->buffers[--r->buffers_count]);
}

static float *copy_of(const float *values, size_t count)
{
    float *copy = malloc(count * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, values, count * sizeof *copy);
    return copy;
}

static void chunks_do_not_matter(void **unused)
{
    (void)unused;
    static const uint32_t sizes[] = {1, 3, 8, 64, 75, 200};
    rig r;
    scan s;
    rig_open(&r, rig_spec);
    make(&r, &s);
    s.S = 16;
    run(&r, &s);
    float *y = copy_of(s.y, B * L * H * P), *h = copy_of(s.h, B * H * N * P);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char what[32];
        s.S = sizes[i];
        run(&r, &s);
        snprintf(what, sizeof what, "S %u", s.S);
        rig_close_to(what, s.y, y, B * L * H * P, TOLERANCE);
        rig_close_to(what, s.h, h, B * H * N * P, TOLERANCE);
    }
    free(y);
    free(h);
    unmake(&s);
    rig_close(&r);
}

/* Tokens from .. to - 1 of every sequence, of width elements each. */
static float *part_of(const float *values, uint32_t from, uint32_t to, size_t width)
{
    const size_t n = to - from;
    float *part = malloc(B * n * width * sizeof *part);
    assert_non_null(part);
    for (size_t b = 0; b < B; b++) memcpy(part + b * n * width, values + (b * L + from) * width, n * width * sizeof *part);
    return part;
}

static void splits_anywhere(void **unused)
{
    (void)unused;
    static const uint32_t cuts[] = {1, 15, 16, 17, 40, 74};
    rig r;
    scan s;
    rig_open(&r, rig_spec);
    make(&r, &s);
    run(&r, &s);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        float *h = NULL, *y = malloc(B * L * H * P * sizeof *y);
        assert_non_null(y);
        for (int piece = 0; piece < 2; piece++) {
            const uint32_t from = piece ? cuts[i] : 0, to = piece ? L : cuts[i];
            scan p = {.L = to - from, .S = s.S, .x = part_of(s.x, from, to, H * P), .dt = part_of(s.dt, from, to, H),
                      .b = part_of(s.b, from, to, G * N), .c = part_of(s.c, from, to, G * N), .a_log = copy_of(s.a_log, H), .d = copy_of(s.d, H),
                      .h_in = h};
            run(&r, &p);
            for (size_t b = 0; b < B; b++) memcpy(y + (b * L + from) * H * P, p.y + b * p.L * H * P, (size_t)p.L * H * P * sizeof *y);
            free(h);
            h = copy_of(p.h, B * H * N * P);
            unmake(&p);
        }
        rig_close_to("y of two pieces", y, s.y, B * L * H * P, TOLERANCE);
        rig_close_to("h of two pieces", h, s.h, B * H * N * P, TOLERANCE);
        free(h);
        free(y);
    }
    unmake(&s);
    rig_close(&r);
}

/* y(x1 + 2 x2) = y(x1) + 2 y(x2), and so for h; powers of two are exact. */
static void is_linear_in_x(void **unused)
{
    (void)unused;
    enum { X = B * L * H * P, STATE = B * H * N * P };
    rig r;
    scan s;
    rig_open(&r, rig_spec);
    make(&r, &s);
    run(&r, &s);
    float *x1 = copy_of(s.x, X), *y = copy_of(s.y, X), *h = copy_of(s.h, STATE), *x2 = rig_values(&r, X, -1, 1);
    memcpy(s.x, x2, X * sizeof *x2);
    run(&r, &s);
    for (size_t i = 0; i < X; i++) y[i] += 2 * s.y[i];
    for (size_t i = 0; i < STATE; i++) h[i] += 2 * s.h[i];
    for (size_t i = 0; i < X; i++) s.x[i] = x1[i] + 2 * x2[i];
    run(&r, &s);
    rig_close_to("y", s.y, y, X, TOLERANCE);
    rig_close_to("h", s.h, h, STATE, TOLERANCE);
    for (size_t i = 0; i < X; i++) s.x[i] = 0;
    run(&r, &s);
    for (size_t i = 0; i < X; i++) assert_true(s.y[i] == 0);
    free(x1);
    free(x2);
    free(y);
    free(h);
    unmake(&s);
    rig_close(&r);
}

/* Later tokens, however large, leave earlier outputs and closed memories alone, to the bit. */
static void does_not_look_ahead(void **unused)
{
    (void)unused;
    static const uint32_t cuts[] = {1, 5, 16, 33, 74};
    rig r;
    scan s;
    rig_open(&r, rig_spec);
    make(&r, &s);
    run(&r, &s);
    float *y = copy_of(s.y, B * L * H * P), *dh = copy_of(s.dh, (size_t)B * 5 * H * N * P);
    for (size_t i = sizeof cuts / sizeof cuts[0]; i-- > 0;) {
        for (size_t b = 0; b < B; b++)
            for (size_t t = cuts[i]; t < L; t++) {
                for (size_t k = 0; k < H * P; k++) s.x[(b * L + t) * H * P + k] = 1e6f;
                for (size_t k = 0; k < H; k++) s.dt[(b * L + t) * H + k] = 3;
                for (size_t k = 0; k < G * N; k++) s.b[(b * L + t) * G * N + k] = s.c[(b * L + t) * G * N + k] = -100;
            }
        run(&r, &s);
        for (size_t b = 0; b < B; b++) {
            rig_same_bits("y", s.y + b * L * H * P, y + b * L * H * P, (uint64_t)cuts[i] * H * P);
            rig_same_bits("dh", s.dh + b * 5 * H * N * P, dh + b * 5 * H * N * P, (uint64_t)(cuts[i] / s.S) * H * N * P);
        }
    }
    free(y);
    free(dh);
    unmake(&s);
    rig_close(&r);
}

/* Nor do later tokens that are no numbers: b, c and step sizes anywhere, x where sums are not taken by tiles. */
static void keeps_nan_to_itself(void **unused)
{
    (void)unused;
    static const uint32_t cuts[] = {1, 5, 16, 33, 74};
    static const float bad[] = {NAN, INFINITY};
    rig r;
    scan s;
    rig_open(&r, rig_spec);
    make(&r, &s);
    run(&r, &s);
    float *y = copy_of(s.y, B * L * H * P);
    for (size_t i = sizeof cuts / sizeof cuts[0]; i-- > 0;) {
        for (size_t b = 0; b < B; b++) {
            const size_t token = b * L + cuts[i];
            for (size_t k = 0; k < H * P && r.info.backend == DART_BACKEND_CPU; k++) s.x[token * H * P + k] = bad[i % 2];
            for (size_t k = 0; k < G * N; k++) s.b[token * G * N + k] = s.c[token * G * N + k] = bad[b];
            for (size_t k = 0; k < H; k++) s.dt[token * H + k] = bad[b];
        }
        run(&r, &s);
        for (size_t b = 0; b < B; b++) rig_same_bits("y", s.y + b * L * H * P, y + b * L * H * P, (uint64_t)cuts[i] * H * P);
    }
    free(y);
    unmake(&s);
    rig_close(&r);
}

/* A scan of sizes and dtypes that rows for matrix hardware take. */
enum { LONG = 600, CHUNK = 256, HEADS = 2, STATE = 128, WIDTH = 64, OUT = HEADS * WIDTH };
static const dart_dtype wide_dtypes[] = {DART_F32, DART_F16, DART_BF16};
enum { WIDE_DTYPES = sizeof wide_dtypes / sizeof wide_dtypes[0] };

typedef struct wide {
    float *x, *dt, *b, *c, *a_log;
    dart_ssd_args args;
} wide;

static void make_wide(rig *r, wide *w)
{
    *w = (wide){.x = rig_values(r, LONG * OUT, -1, 1), .dt = rig_values(r, LONG * HEADS, -4, 1), .b = rig_values(r, LONG * STATE, -1, 1),
                .c = rig_values(r, LONG * STATE, -1, 1), .a_log = rig_values(r, HEADS, -1, 1)};
}

static void place_wide(rig *r, wide *w, dart_dtype dtype)
{
    w->args = (dart_ssd_args){.B = 1, .L = LONG, .H = HEADS, .G = 1, .N = STATE, .P = WIDTH, .S = CHUNK, .plan = DART_PLAN_CHUNKED,
                              .x = rig_tensor(r, dtype, LONG * OUT, NULL), .dt = rig_tensor(r, dtype, LONG * HEADS, NULL),
                              .b = rig_tensor(r, dtype, LONG * STATE, NULL), .c = rig_tensor(r, dtype, LONG * STATE, NULL),
                              .a_log = rig_tensor(r, DART_F32, HEADS, w->a_log), .y = rig_tensor(r, dtype, LONG * OUT, NULL)};
}

/* y, for free(). */
static float *run_wide(rig *r, const wide *w)
{
    rig_write(&w->args.x, LONG * OUT, w->x);
    rig_write(&w->args.dt, LONG * HEADS, w->dt);
    rig_write(&w->args.b, LONG * STATE, w->b);
    rig_write(&w->args.c, LONG * STATE, w->c);
    MUST(r, dart_ssd(r->stream, &w->args));
    rig_run(r);
    return rig_read(&w->args.y, LONG * OUT);
}

static void unmake_wide(wide *w)
{
    free(w->x);
    free(w->dt);
    free(w->b);
    free(w->c);
    free(w->a_log);
}

static void set(float *values, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) values[i] = value;
}

/* The same of tokens in the middle of a tile, at its borders and in the last chunk, the later ones bad already: steps alone, which f16
 * weights are counted by, then b and c, too. */
static void keeps_nan_to_itself_in_tiles(void **unused)
{
    (void)unused;
    static const uint32_t cuts[] = {37, 64, 200, 255, 256, 290, 511, 512, 550};
    static const float bad[] = {NAN, INFINITY};
    rig r;
    rig_open(&r, rig_spec);
    for (size_t k = 0; k < WIDE_DTYPES; k++) {
        wide w;
        make_wide(&r, &w);
        place_wide(&r, &w, wide_dtypes[k]);
        float *y = run_wide(&r, &w);
        for (size_t i = sizeof cuts / sizeof cuts[0]; i-- > 0;) {
            const size_t cut = cuts[i];
            set(w.dt + cut * HEADS, HEADS, bad[i % 2]);
            for (int all = 0; all < 2; all++) {
                if (all) {
                    set(w.b + cut * STATE, STATE, bad[i / 2 % 2]);
                    set(w.c + cut * STATE, STATE, bad[i / 2 % 2]);
                }
                float *with = run_wide(&r, &w);
                rig_same_bits("y", with, y, (uint64_t)cut * OUT);
                for (size_t p = 0; p < OUT && all; p++) assert_true(isfinite(with[cut * OUT + p]) == 0);
                free(with);
            }
        }
        free(y);
        unmake_wide(&w);
    }
    rig_close(&r);
}

/* Steps that are not turned into any others: one that is no number reaches every later token of its head, and none before it. */
static void hands_on_bad_steps(void **unused)
{
    (void)unused;
    static const uint32_t cuts[] = {70, 37, 200, 290};
    rig r;
    wide w;
    rig_open(&r, rig_spec);
    for (size_t k = 0; k < WIDE_DTYPES; k++) {
        make_wide(&r, &w);
        place_wide(&r, &w, wide_dtypes[k]);
        w.args.dt_is_step = true;
        for (size_t i = 0; i < LONG * HEADS; i++) w.dt[i] = expf(w.dt[i]);
        float *y = run_wide(&r, &w);
        for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
            float *own = w.dt + cuts[i] * HEADS, kept[HEADS];
            memcpy(kept, own, sizeof kept);
            set(own, HEADS, NAN);
            float *with = run_wide(&r, &w);
            rig_same_bits("y", with, y, (uint64_t)cuts[i] * OUT);
            for (size_t p = (size_t)cuts[i] * OUT; p < LONG * OUT; p++) assert_true(isnan(with[p]));
            memcpy(own, kept, sizeof kept);
            free(with);
        }
        free(y);
        unmake_wide(&w);
    }
    rig_close(&r);
}

/* Where everything before a token is forgotten, y_t = step_t (c_t . b_t) x_t, however many digits the log-decay has lost. */
static void large_steps_keep_their_digits(void **unused)
{
    (void)unused;
    enum { STEP = 2944 }; /* of 8 digits */
    static const double rounding[] = {1e-5, 0x1p-10, 0x1p-7};
    rig r;
    wide w;
    rig_open(&r, rig_spec);
    for (size_t k = 0; k < WIDE_DTYPES; k++) {
        make_wide(&r, &w);
        set(w.dt, LONG * HEADS, STEP);
        set(w.a_log, HEADS, 2.7725887f); /* a = -16 */
        for (size_t i = 0; i < (size_t)LONG * STATE; i++) {
            w.b[i] = i % STATE == 0 ? 0x1p-12f : 0;
            w.c[i] = i % STATE == 0 ? 1 : 0;
        }
        place_wide(&r, &w, wide_dtypes[k]);
        w.args.dt_is_step = true;
        float *y = run_wide(&r, &w);
        for (size_t i = 0; i < LONG * OUT; i++)
            assert_true(fabs(y[i] - (double)STEP / 4096 * w.x[i]) <= 2 * rounding[k] * fabs((double)w.x[i]) + 1e-7);
        free(y);
        unmake_wide(&w);
    }
    rig_close(&r);
}

/* What the header says of x; the token itself shows what it got. */
static void nan_in_x_stays_near(void **unused)
{
    (void)unused;
    enum { NEAR = 63 };
    static const uint32_t cuts[] = {37, 200, 255, 290};
    rig r;
    wide w;
    rig_open(&r, rig_spec);
    make_wide(&r, &w);
    for (size_t k = 0; k < WIDE_DTYPES; k++) {
        place_wide(&r, &w, wide_dtypes[k]);
        float *y = run_wide(&r, &w);
        for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
            const uint32_t cut = cuts[i], begin = cut / CHUNK * CHUNK;
            const uint32_t near = r.info.backend == DART_BACKEND_CPU ? 0 : NEAR;
            float *own = w.x + (size_t)cut * OUT;
            float *kept = copy_of(own, OUT);
            set(own, OUT, i % 2 ? INFINITY : NAN);
            float *with = run_wide(&r, &w);
            rig_same_bits("y", with, y, (uint64_t)(cut > begin + near ? cut - near : begin) * OUT);
            for (size_t p = 0; p < OUT; p++) assert_true(isfinite(with[(size_t)cut * OUT + p]) == 0);
            memcpy(own, kept, OUT * sizeof *own);
            free(kept);
            free(with);
        }
        free(y);
    }
    unmake_wide(&w);
    rig_close(&r);
}

/* Nothing reaches a state and d is 1, so that y is x: numbers at the end of a type's range, which parts of an operand or of y may be
 * moved as: bits of bf16 from 2^121 on are no numbers of f16. */
static void keeps_the_largest_numbers(void **unused)
{
    (void)unused;
    static const float largest[] = {0x1.fep125f, 65504.0f, 0x1.fep125f};
    rig r;
    rig_open(&r, rig_spec);
    for (size_t k = 0; k < WIDE_DTYPES; k++) {
        wide w;
        make_wide(&r, &w);
        set(w.b, LONG * STATE, 0);
        for (size_t i = 0; i < LONG * OUT; i++) w.x[i] = (i % 3 ? 1.0f : -1.0f) * ldexpf(largest[k], -(int)(i % 6));
        const float ones[HEADS] = {1, 1};
        place_wide(&r, &w, wide_dtypes[k]);
        w.args.d = rig_tensor(&r, DART_F32, HEADS, ones);
        float *y = run_wide(&r, &w);
        rig_same_bits("y", y, w.x, LONG * OUT);
        free(y);
        unmake_wide(&w);
    }
    rig_close(&r);
}

/* y of another type than x is the same number, rounded once. */
static void rounds_y_of_another_type(void **unused)
{
    (void)unused;
    static const dart_dtype types[][2] = {{DART_F16, DART_BF16}, {DART_BF16, DART_F16}}; /* of x and of y */
    static const double rounding[] = {0x1p-8, 0x1p-11};
    rig r;
    wide w;
    rig_open(&r, rig_spec);
    make_wide(&r, &w);
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        place_wide(&r, &w, types[k][0]);
        w.args.y = rig_tensor(&r, DART_F32, LONG * OUT, NULL);
        float *exact = run_wide(&r, &w);
        w.args.y = rig_tensor(&r, types[k][1], LONG * OUT, NULL);
        float *y = run_wide(&r, &w);
        for (size_t i = 0; i < LONG * OUT; i++) assert_true(fabs((double)y[i] - exact[i]) <= rounding[k] * fabs((double)exact[i]) + 0x1p-25);
        free(exact);
        free(y);
    }
    unmake_wide(&w);
    rig_close(&r);
}

/* A sequence's and a head's numbers do not depend on where it stands. */
static void permutes(void **unused)
{
    (void)unused;
    enum { X = B * L * H * P, HALF = H / G };
    rig r;
    scan s;
    rig_open(&r, rig_spec);
    make(&r, &s);
    run(&r, &s);
    float *y = copy_of(s.y, X), *h = copy_of(s.h, B * H * N * P);
    scan t = {.L = L, .S = s.S, .x = copy_of(s.x, X), .dt = copy_of(s.dt, B * L * H), .a_log = copy_of(s.a_log, H), .d = copy_of(s.d, H),
              .b = copy_of(s.b, B * L * G * N), .c = copy_of(s.c, B * L * G * N)};
    /* The other sequence, the other group, the heads of a group the other way round. */
    for (size_t b = 0; b < B; b++)
        for (size_t l = 0; l < L; l++) {
            const size_t to = b * L + l, from = (B - 1 - b) * L + l;
            for (size_t k = 0; k < H; k++) {
                const size_t head = H - 1 - k;
                memcpy(t.x + (to * H + k) * P, s.x + (from * H + head) * P, P * sizeof *t.x);
                t.dt[to * H + k] = s.dt[from * H + head];
                t.a_log[k] = s.a_log[head];
                t.d[k] = s.d[head];
            }
            for (size_t g = 0; g < G; g++) {
                memcpy(t.b + (to * G + g) * N, s.b + (from * G + G - 1 - g) * N, N * sizeof *t.b);
                memcpy(t.c + (to * G + g) * N, s.c + (from * G + G - 1 - g) * N, N * sizeof *t.c);
            }
        }
    run(&r, &t);
    for (size_t b = 0; b < B; b++)
        for (size_t k = 0; k < H; k++) {
            const size_t other = B - 1 - b, head = H - 1 - k;
            rig_same_bits("h", t.h + (b * H + k) * N * P, h + (other * H + head) * N * P, N * P);
            for (size_t l = 0; l < L; l++) rig_same_bits("y", t.y + ((b * L + l) * H + k) * P, y + ((other * L + l) * H + head) * P, P);
        }
    free(y);
    free(h);
    unmake(&t);
    unmake(&s);
    rig_close(&r);
}

static void repeats_to_the_bit(void **unused)
{
    (void)unused;
    rig r;
    scan s;
    rig_open(&r, rig_spec);
    make(&r, &s);
    run(&r, &s);
    float *y = copy_of(s.y, B * L * H * P), *h = copy_of(s.h, B * H * N * P);
    for (int i = 0; i < 5; i++) {
        run(&r, &s);
        rig_same_bits("y", s.y, y, B * L * H * P);
        rig_same_bits("h", s.h, h, B * H * N * P);
    }
    free(y);
    free(h);
    unmake(&s);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(chunks_do_not_matter),
    cmocka_unit_test(splits_anywhere),
    cmocka_unit_test(is_linear_in_x),
    cmocka_unit_test(does_not_look_ahead),
    cmocka_unit_test(keeps_nan_to_itself),
    cmocka_unit_test(keeps_nan_to_itself_in_tiles),
    cmocka_unit_test(hands_on_bad_steps),
    cmocka_unit_test(large_steps_keep_their_digits),
    cmocka_unit_test(nan_in_x_stays_near),
    cmocka_unit_test(keeps_the_largest_numbers),
    cmocka_unit_test(rounds_y_of_another_type),
    cmocka_unit_test(permutes),
    cmocka_unit_test(repeats_to_the_bit),
};
RIG_MAIN("prop_scan")
