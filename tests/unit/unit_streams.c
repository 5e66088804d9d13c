/* Recording: barriers, sticky errors, submissions: unit_streams [DEVICE_SPEC]. */
#include "rig.h"
#include "spy.h"

#include "dartlm/model.h"
#include "runtime/device.h"
#include "runtime/op.h"
#ifdef DARTLM_VULKAN
#include "vulkan/vk.h"
#endif

enum { N = 1024 };

static void fill(rig *r, dart_tensor y, float value) { MUST(r, dart_fill(r->stream, &(dart_fill_args){.T = 1, .W = N, .value = value, .y = y})); }
static void copy(rig *r, dart_tensor x, dart_tensor y) { MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = 1, .W = N, .x = x, .y = y})); }

/* "-b" for a launch without and one with a barrier. */
static void expect_barriers(rig *r, const char *pattern)
{
    char got[RIG_MAX_LINES + 1];
    for (uint32_t i = 0; i < r->lines_count; i++) got[i] = strstr(r->lines[i], " barrier") != NULL ? 'b' : '-';
    got[r->lines_count] = '\0';
    assert_string_equal(got, pattern);
    assert_int_equal(dart_stream_launches(r->stream), r->lines_count);
    rig_begin(r);
}

static void separates_what_depends(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    dart_tensor t[6], pair[2];
    for (size_t i = 0; i < 6; i++) t[i] = rig_random(&r, DART_F32, N, 0, 1);
    pair[0] = pair[1] = rig_tensor(&r, DART_F32, 2 * N, NULL);
    pair[1].offset = N;
    fill(&r, t[0], 1); /* nothing in common */
    fill(&r, t[1], 1);
    copy(&r, t[2], t[3]);
    expect_barriers(&r, "---");
    fill(&r, t[0], 1); /* read after write */
    copy(&r, t[0], t[1]);
    expect_barriers(&r, "-b");
    copy(&r, t[0], t[1]); /* two readers */
    copy(&r, t[0], t[2]);
    expect_barriers(&r, "--");
    copy(&r, t[0], t[1]); /* write after read */
    fill(&r, t[0], 1);
    expect_barriers(&r, "-b");
    fill(&r, t[0], 1); /* write after write */
    fill(&r, t[0], 2);
    expect_barriers(&r, "-b");
    fill(&r, t[0], 1); /* what a barrier has separated stays separated */
    fill(&r, t[1], 1);
    copy(&r, t[0], t[2]);
    copy(&r, t[0], t[3]);
    copy(&r, t[1], t[4]);
    expect_barriers(&r, "--b--");
    fill(&r, t[0], 1); /* a later barrier covers all that came before */
    fill(&r, t[1], 1);
    copy(&r, t[0], t[2]);
    copy(&r, t[2], t[3]);
    copy(&r, t[1], t[4]);
    expect_barriers(&r, "--bb-");
    fill(&r, pair[0], 1); /* two halves of a buffer */
    fill(&r, pair[1], 1);
    copy(&r, pair[0], t[1]);
    fill(&r, pair[1], 2);
    copy(&r, pair[1], t[2]);
    expect_barriers(&r, "--b-b");
    pair[1].offset = N / 2; /* that overlap */
    fill(&r, pair[0], 1);
    fill(&r, pair[1], 1);
    expect_barriers(&r, "-b");
    /* Interleaved rows of one buffer lie in one range. */
    const dart_fill_args left = {.T = 4, .W = 100, .y = {.buffer = pair[0].buffer, .row = 256}};
    dart_fill_args right = left;
    right.y.offset = 128;
    MUST(&r, dart_fill(r.stream, &left));
    MUST(&r, dart_fill(r.stream, &right));
    expect_barriers(&r, "-b");
    /* A recording begins as if it were alone. */
    fill(&r, t[0], 1);
    rig_run(&r);
    copy(&r, t[0], t[1]);
    expect_barriers(&r, "-");
    rig_close(&r);
}

static void keeps_order(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    dart_tensor t[3];
    for (size_t i = 0; i < 3; i++) t[i] = rig_tensor(&r, DART_F32, N, NULL);
    for (int i = 0; i < 40; i++) {
        fill(&r, t[i % 3], (float)i);
        copy(&r, t[i % 3], t[(i + 1) % 3]);
        copy(&r, t[(i + 1) % 3], t[(i + 2) % 3]);
    }
    rig_run(&r);
    for (size_t i = 0; i < 3 && r.info.backend != DART_BACKEND_NULL; i++) {
        float *got = rig_read(&t[i], N);
        for (size_t k = 0; k < N; k++) assert_true(got[k] == 39);
        free(got);
    }
    rig_close(&r);
}

/* More ranges than a stream keeps in mind. */
static void forgets_safely(void **unused)
{
    (void)unused;
    enum { TENSORS = 300 };
    rig r;
    rig_open(&r, rig_spec);
    dart_tensor all = rig_tensor(&r, DART_F32, (uint64_t)N * TENSORS, NULL), one = all;
    uint32_t barriers = 0;
    for (uint32_t i = 0; i < TENSORS; i++) {
        one.offset = (uint64_t)i * N;
        fill(&r, one, (float)i);
    }
    copy(&r, one, all);
    for (uint32_t i = 0; i < r.lines_count; i++) barriers += strstr(r.lines[i], " barrier") != NULL;
    assert_in_range(barriers, 1, 8);
    assert_non_null(strstr(r.lines[r.lines_count - 1], " barrier"));
    rig_run(&r);
    /* Three a launch, which do not fill the room to the last one. */
    const dart_tensor x = rig_random(&r, DART_F32, N, -1, 1);
    for (uint32_t i = 0; i < TENSORS; i++) {
        one.offset = (uint64_t)i * N;
        MUST(&r, dart_rms_norm(r.stream, &(dart_rms_norm_args){.T = 1, .W = N, .eps = 1, .x = x, .weight = x, .y = one}));
    }
    rig_run(&r);
    rig_close(&r);
}

static dart_memories memories_of(rig *r, uint32_t first, uint32_t M, uint64_t elements)
{
    return (dart_memories){.first = first, .M = M, .dh = rig_random(r, DART_F32, M * elements, -1, 1)};
}

/* The step of SMA finds out by tickets which workgroup is done last. They must be there for the next run, for the next op of
 * the recording, and for one of more heads than any before. */
static void takes_tickets(void **unused)
{
    (void)unused;
    enum { H = 2, SN = 128, P = 64, M = 61, MANY = 2500 };
    rig r;
    rig_open(&r, rig_spec);
    const int32_t position[2] = {M - 3, 1};
    const dart_tensor q = rig_random(&r, DART_F16, SN, -1, 1), e = rig_random(&r, DART_F16, P, -1, 1), c = rig_random(&r, DART_F16, SN, -1, 1),
                      seq = rig_ints(&r, 2, position), one = rig_tensor(&r, DART_F32, H * P, NULL), two = rig_tensor(&r, DART_F32, H * P, NULL);
    const dart_memories run = {.M = M, .dh = rig_random(&r, DART_F16, M * H * SN * P, -1, 1), .scale = rig_random(&r, DART_F32, M * H * SN, 0.5f, 2)};
    dart_sma_args sma = {.B = 1, .L = 1, .H = H, .G = 1, .N = SN, .P = P, .S = 1, .eps = 1e-5f, .q = q, .e = e, .c = c, .seq = seq,
                         .memories = &run, .memories_count = 1, .r = one};
    float *small = rig_values(&r, (uint64_t)MANY * 2, -1, 1);
    float *cubes = malloc(2 * MANY * sizeof *cubes); /* with one memory of one number r = c dh scale */
    const dart_tensor many = rig_tensor(&r, DART_F32, (uint64_t)MANY * 2, small), wide = rig_tensor(&r, DART_F32, (uint64_t)MANY * 2, NULL);
    int32_t *positions = malloc(2 * MANY * sizeof *positions);
    assert_true(positions != NULL && cubes != NULL);
    for (int i = 0; i < 2 * MANY; i++) {
        positions[i] = 1;
        cubes[i] = small[i] * small[i] * small[i];
    }
    const dart_memories each = {.M = 1, .dh = many, .scale = many};
    const dart_sma_args heads = {.B = MANY, .L = 1, .H = 2, .G = 2, .N = 1, .P = 1, .S = 1, .eps = 1e-5f, .q = many, .e = many, .c = many,
                                 .seq = rig_ints(&r, 2 * MANY, positions), .memories = &each, .memories_count = 1, .r = wide};
    MUST(&r, dart_sma(r.stream, &sma));
    MUST(&r, dart_sma(r.stream, &heads));
    sma.r = two;
    MUST(&r, dart_sma(r.stream, &sma));
    float *first = NULL;
    for (uint32_t run_times = 1; run_times <= 7 && r.info.backend != DART_BACKEND_NULL; run_times += 3) {
        rig_write(&one, H * P, small);
        rig_write(&two, H * P, small);
        MUST(&r, dart_stream_submit_times(r.stream, run_times));
        MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
        float *got = rig_read(&one, H * P), *again = rig_read(&two, H * P), *far = rig_read(&wide, (uint64_t)MANY * 2);
        rig_same_bits("the same op later", again, got, H * P);
        if (first != NULL) rig_same_bits("the same run again", got, first, H * P);
        rig_close_to("many heads", far, cubes, (uint64_t)MANY * 2, 1e-5);
        free(first);
        first = got;
        free(again);
        free(far);
    }
    free(first);
    free(small);
    free(cubes);
    free(positions);
    rig_close(&r);
}

/* Every op, and a model in use: no launch without the barrier that it needs, none with one that it does not. */
static void plans_are_ordered(void **unused)
{
    (void)unused;
    enum { B = 2, L = 50, H = 4, G = 2, SN = 16, P = 32, S = 16, M = 4, I = H * P };
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec});
    dart_stream_destroy(&r.stream);
    spy_on(r.device);
    MUST(&r, dart_stream_create(r.device, NULL, &r.stream));
    const int32_t seq_values[2 * B] = {0, L, 5, L - 3};
    const dart_tensor x = rig_random(&r, DART_F32, B * L * I, -1, 1), y = rig_tensor(&r, DART_F32, B * L * I, NULL),
                      dt = rig_random(&r, DART_F32, B * L * H, -1, 1), bc = rig_random(&r, DART_F32, B * L * G * SN, -1, 1),
                      h_wide = rig_random(&r, DART_F32, H, -1, 1), seq = rig_ints(&r, 2 * B, seq_values),
                      h = rig_random(&r, DART_F32, B * H * SN * P, -1, 1), open = rig_random(&r, DART_F32, B * H * SN * P, -1, 1),
                      open_decay = rig_random(&r, DART_F32, B * H, -1, 0), e = rig_random(&r, DART_F32, B * L * G * P, -1, 1),
                      dh = rig_random(&r, DART_F16, B * 5 * H * SN * P, -1, 1), r_out = rig_tensor(&r, DART_F16, B * L * I, NULL),
                      dh_scale = rig_tensor(&r, DART_F32, B * 5 * H * SN, NULL), tail = rig_random(&r, DART_F32, B * 3 * I, -1, 1),
                      taps = rig_random(&r, DART_F32, 4 * I, -1, 1);
    dart_ssd_args ssd = {.B = B, .L = L, .H = H, .G = G, .N = SN, .P = P, .S = S, .x = x, .dt = dt, .b = bc, .c = bc, .a_log = h_wide,
                         .seq = seq, .h = h, .open = open, .open_decay = open_decay, .y = y, .dh = dh, .dh_scale = dh_scale};
    const dart_memories written[2] = {{.M = 2, .dh = dh, .scale = dh_scale}, {.first = 2, .M = 3, .dh = {.buffer = dh.buffer, .dtype = DART_F16,
                                      .offset = B * 2 * H * SN * P}, .scale = {.buffer = dh_scale.buffer, .offset = B * 2 * H * SN}}};
    MUST(&r, dart_conv(r.stream, &(dart_conv_args){.B = B, .L = L, .C = I, .K = 4, .x = x, .weight = taps, .tail = tail, .seq = seq, .y = y}));
    MUST(&r, dart_ssd(r.stream, &ssd));
    MUST(&r, dart_ssd(r.stream, &ssd));
    ssd.dh.buffer = ssd.dh_scale.buffer = NULL;
    ssd.memories = written;
    for (int step = 0; step < 2; step++) {
        ssd.L = step ? 1 : L;
        for (ssd.memories_count = 0; ssd.memories_count <= 2; ssd.memories_count++) MUST(&r, dart_ssd(r.stream, &ssd));
    }
    const dart_memories runs[2] = {memories_of(&r, 0, M, B * H * SN * P), memories_of(&r, M, 3, B * H * SN * P)};
    dart_sma_args sma = {.B = B, .L = L, .H = H, .G = G, .N = SN, .P = P, .S = S, .eps = 1e-5f, .q = bc, .e = e, .c = bc, .seq = seq,
                         .memories = runs, .memories_count = 2, .r = r_out};
    MUST(&r, dart_sma(r.stream, &sma));
    sma.L = 1;
    MUST(&r, dart_sma(r.stream, &sma));
    MUST(&r, dart_advance(r.stream, &(dart_advance_args){.B = B, .seq = seq}));
    rig_run(&r);
    const dart_model_config config = {.sma = true, .V = 50, .W = 64, .layers = 3, .H = H, .P = P, .G = G, .N = SN, .K = 4, .S = S, .eps = 1e-5f,
                                      .sma_eps = 1e-5f};
    dart_model *model = NULL;
    dart_state *state = NULL;
    MUST(&r, dart_model_random(r.device, &config, 1, NULL, &model));
    MUST(&r, dart_state_create(model, &(dart_state_options){.B = B, .memory_block = 2}, &state));
    int32_t ids[B * L] = {0};
    float logits[B * 50];
    MUST(&r, dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = L, .want = DART_LOGITS_LAST, .logits = logits}));
    MUST(&r, dart_decode(state, &(dart_decode_args){.ids = ids, .sampling = &(dart_sampling){.temperature = 1}, .logits = logits}));
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    dart_stream_destroy(&r.stream);
    const spy_counts counts = spy_off(r.device);
    print_message("  %u launches, %u barriers\n", counts.launches, counts.barriers);
    if (counts.missing + counts.needless + counts.broken > 0)
        fail_msg("%u barriers are missing, %u needless, %u launches broken; first: %s", counts.missing, counts.needless, counts.broken, counts.text);
    assert_true(counts.launches > 60 && counts.barriers > 20);
    rig_close(&r);
}

static void errors_stick(void **unused)
{
    (void)unused;
    rig r;
    char text[256];
    rig_open(&r, rig_spec);
    const dart_tensor y = rig_tensor(&r, DART_F32, N, (const float[N]){0});
    fill(&r, y, 3);
    assert_int_equal(dart_fill(r.stream, &(dart_fill_args){.T = 1, .W = N + 1, .value = 4, .y = y}), DART_INVALID_ARGUMENT);
    dart_stream_error(r.stream, text, sizeof text);
    assert_non_null(strstr(text, "dart_fill"));
    assert_non_null(strstr(text, "1025"));
    const dart_fill_args good = {.T = 1, .W = N, .value = 5, .y = y};
    assert_int_equal(dart_fill(r.stream, &good), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_advance(r.stream, &(dart_advance_args){0}), DART_INVALID_ARGUMENT);
    char later[256];
    dart_stream_error(r.stream, later, sizeof later);
    assert_string_equal(later, text); /* the first failure stays */
    assert_int_equal(dart_stream_launches(r.stream), 1);
    assert_int_equal(dart_stream_submit(r.stream), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_wait(r.stream, 0), DART_INVALID_ARGUMENT);
    rig_begin(&r);
    assert_int_equal(dart_stream_launches(r.stream), 0);
    fill(&r, y, 7);
    rig_run(&r);
    if (r.info.backend != DART_BACKEND_NULL) {
        float *got = rig_read(&y, N);
        for (size_t i = 0; i < N; i++) assert_true(got[i] == 7);
        free(got);
    }
    rig_close(&r);
}

static void replays(void **unused)
{
    (void)unused;
    enum { B = 3 };
    rig r;
    rig_open(&r, rig_spec);
    const int32_t start[2 * B] = {0, 1, 10, 5, 100, 0};
    const dart_tensor seq = rig_ints(&r, 2 * B, start);
    MUST(&r, dart_advance(r.stream, &(dart_advance_args){.B = B, .seq = seq}));
    for (int i = 0; i < 20; i++) {
        uint64_t ns = UINT64_MAX;
        MUST(&r, dart_stream_submit(r.stream));
        MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
        MUST(&r, dart_stream_elapsed(r.stream, &ns));
        assert_true(ns < UINT64_C(60000000000));
    }
    /* Seven runs in one submission. */
    MUST(&r, dart_stream_submit_times(r.stream, 7));
    MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
    MUST(&r, dart_stream_submit_times(r.stream, 1));
    MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
    /* So many that a backend may put several runs into one graph, with some left over; then fewer again. */
    static const uint32_t runs[] = {11, 8, 3};
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        MUST(&r, dart_stream_submit_times(r.stream, runs[i]));
        MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
    }
    assert_int_equal(dart_stream_submit_times(r.stream, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_submit_times(r.stream, 65537), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_submit_times(NULL, 1), DART_INVALID_ARGUMENT);
    int32_t got[2 * B];
    MUST(&r, dart_buffer_read(seq.buffer, 0, got, sizeof got));
    for (int b = 0; b < B && r.info.backend != DART_BACKEND_NULL; b++) {
        assert_int_equal(got[2 * b], start[2 * b] + 50 * start[2 * b + 1]);
        assert_int_equal(got[2 * b + 1], start[2 * b + 1]);
    }
    /* What is recorded next runs in place of it, as often. */
    const dart_tensor other = rig_ints(&r, 2 * B, start);
    rig_begin(&r);
    MUST(&r, dart_advance(r.stream, &(dart_advance_args){.B = B, .seq = other}));
    MUST(&r, dart_advance(r.stream, &(dart_advance_args){.B = B, .seq = other}));
    MUST(&r, dart_stream_submit_times(r.stream, 9));
    MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
    int32_t now[2 * B], still[2 * B];
    MUST(&r, dart_buffer_read(other.buffer, 0, now, sizeof now));
    MUST(&r, dart_buffer_read(seq.buffer, 0, still, sizeof still));
    assert_memory_equal(still, got, sizeof got);
    for (int b = 0; b < B && r.info.backend != DART_BACKEND_NULL; b++) assert_int_equal(now[2 * b], start[2 * b] + 18 * start[2 * b + 1]);
    /* An empty recording is one too. */
    rig_begin(&r);
    rig_run(&r);
    rig_close(&r);
}

/* A second stream, submitted while the first one runs, reads what that one writes last. */
static void streams_follow_one_another(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    dart_stream *second = NULL;
    MUST(&r, dart_stream_create(r.device, NULL, &second));
    const dart_tensor a = rig_tensor(&r, DART_F32, N, NULL), b = rig_tensor(&r, DART_F32, N, NULL), c = rig_tensor(&r, DART_F32, N, NULL);
    for (int run = 1; run <= 5; run++) {
        rig_begin(&r);
        for (int i = 0; i < 100; i++) {
            fill(&r, a, (float)(i + 1000 * run));
            copy(&r, a, b);
        }
        MUST(&r, dart_stream_begin(second));
        MUST(&r, dart_convert(second, &(dart_convert_args){.T = 1, .W = N, .x = b, .y = c}));
        MUST(&r, dart_stream_submit(r.stream));
        MUST(&r, dart_stream_submit(second));
        MUST(&r, dart_stream_wait(second, UINT64_MAX));
        float *got = rig_read(&c, N);
        for (size_t k = 0; k < N && r.info.backend != DART_BACKEND_NULL; k++) assert_true(got[k] == (float)(99 + 1000 * run));
        free(got);
        MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
    }
    dart_stream_destroy(&second);
    rig_close(&r);
}

static void waits_before_it_goes_on(void **unused)
{
    (void)unused;
    enum { T = 64, W = 256 };
    rig r;
    char text[256];
    uint64_t ns;
    rig_open(&r, rig_spec);
    const dart_tensor x = rig_random(&r, DART_F32, T * W, -1, 1), weight = rig_random(&r, DART_F32, W * W, -0.06f, 0.06f),
                      y = rig_tensor(&r, DART_F32, T * W, NULL);
    const dart_linear_args linear = {.T = T, .IN = W, .OUT = W, .x = x, .weight = weight, .y = y};
    for (int i = 0; i < 10; i++) MUST(&r, dart_linear(r.stream, &linear));
    const uint32_t launches = dart_stream_launches(r.stream);
    MUST(&r, dart_stream_submit(r.stream));
    assert_int_equal(dart_stream_submit(r.stream), DART_INVALID_ARGUMENT);
    dart_stream_error(r.stream, text, sizeof text);
    assert_non_null(strstr(text, "dart_stream_submit"));
    assert_int_equal(dart_stream_elapsed(r.stream, &ns), DART_INVALID_ARGUMENT);
    /* Looking does not end the wait, and neither does a time-out. */
    uint32_t looks = 0;
    dart_status status;
    while ((status = dart_stream_wait(r.stream, looks++ < 3 ? 0 : 1000000)) == DART_TIMEOUT)
        assert_int_equal(dart_stream_submit(r.stream), DART_INVALID_ARGUMENT);
    MUST(&r, status);
    MUST(&r, dart_stream_wait(r.stream, 0)); /* done stays done */
    MUST(&r, dart_stream_elapsed(r.stream, &ns));
    assert_int_equal(dart_stream_launches(r.stream), launches);
    /* What was submitted is closed, running or not; beginning waits, and clears the error. */
    rig_begin(&r);
    MUST(&r, dart_fill(r.stream, &(dart_fill_args){.T = T, .W = W, .value = 2, .y = y}));
    const dart_fill_args late = {.T = T, .W = W, .value = 3, .y = y};
    MUST(&r, dart_stream_submit(r.stream));
    assert_int_equal(dart_fill(r.stream, &late), DART_INVALID_ARGUMENT);
    rig_begin(&r);
    MUST(&r, dart_fill(r.stream, &(dart_fill_args){.T = T, .W = W, .value = 2, .y = y}));
    MUST(&r, dart_stream_submit(r.stream));
    MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
    assert_int_equal(dart_fill(r.stream, &late), DART_INVALID_ARGUMENT);
    dart_stream_error(r.stream, text, sizeof text);
    assert_non_null(strstr(text, "dart_stream_begin first"));
    rig_begin(&r);
    if (r.info.backend != DART_BACKEND_NULL) {
        float *got = rig_read(&y, T * W);
        for (size_t i = 0; i < T * W; i++) assert_true(got[i] == 2);
        free(got);
    }
    /* Destroyed in flight. */
    for (int i = 0; i < 10; i++) MUST(&r, dart_linear(r.stream, &linear));
    MUST(&r, dart_stream_submit(r.stream));
    rig_close(&r);
}

typedef struct times {
    uint32_t count, other_lines;
    uint64_t ns;
    const rig *r;
} times;

static void take_time(void *user, const char *line, uint64_t ns)
{
    times *t = user;
    if (t->r == NULL) return; /* launches of the opening */
    if (t->count >= t->r->lines_count || strcmp(line, t->r->lines[t->count]) != 0) t->other_lines++;
    t->count++;
    t->ns += ns;
}

/* Every launch of every run is timed, under its own name, and all of them take no longer than the run. */
static void times_launches(void **unused)
{
    (void)unused;
    enum { T = 40, W = 64 };
    times t = {.r = NULL};
    const dart_device_options options = {.spec = rig_spec, .profile = take_time, .profile_user = &t};
    dart_context *context = NULL;
    dart_device *device = NULL;
    assert_int_equal(dart_context_create(&(dart_context_options){.with_null = true}, &context), DART_OK);
    const dart_status status = dart_device_open(context, &options, &device);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    if (strncmp(rig_spec, "vulkan", 6) != 0 && strncmp(rig_spec, "cuda", 4) != 0) {
        assert_int_equal(status, DART_UNSUPPORTED);
        return;
    }
    assert_int_equal(status, DART_OK);
    rig r;
    rig_open_with(&r, &options);
    const dart_tensor x = rig_random(&r, DART_F32, T * W, -1, 1), y = rig_tensor(&r, DART_F16, T * W, NULL);
    rig_begin(&r);
    for (int i = 0; i < 3; i++) MUST(&r, dart_convert(r.stream, &(dart_convert_args){.T = T, .W = W, .x = x, .y = y}));
    MUST(&r, dart_fill(r.stream, &(dart_fill_args){.T = T, .W = W, .value = 1, .y = x}));
    t.r = &r;
    for (uint32_t run = 1; run <= 3; run++) {
        uint64_t all = 0;
        t.count = 0;
        t.ns = 0;
        MUST(&r, dart_stream_submit(r.stream));
        MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
        MUST(&r, dart_stream_elapsed(r.stream, &all));
        assert_int_equal(t.count, 4);
        assert_int_equal(t.other_lines, 0);
        assert_true(t.ns > 0 && t.ns <= all);
    }
    rig_close(&r);
}

static struct warmed {
    atomic_uint heads; /* bits: numbers of heads a workgroup that code was made for */
    atomic_uint count;
    dart_status gives;
} warmed;

static dart_status note_code(void *device, const backend_code *code)
{
    (void)device;
    atomic_fetch_add(&warmed.count, 1);
    if (code->row->T1 == 0) atomic_fetch_or(&warmed.heads, 1u << code->T1);
    return warmed.gives;
}

/* The null backend stands for one with matrices: each code is asked for once, another tile size is another code, and what the backend
 * answers reaches the caller. */
static void warms_every_code_once(void **unused)
{
    (void)unused;
    enum { LONGEST = 8192, H = 24, SN = 128, P = 64 };
    static const uint32_t lengths[] = {512, LONGEST, 512};
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = "null", .multiprocessors = 132});
    backend fake = *r.device->backend;
    const backend *const real = r.device->backend;
    fake.warm = note_code;
    r.device->backend = &fake;
    r.device->info.capabilities |= DART_CAP_LARGE | DART_CAP_SHARED48 | DART_CAP_MATRIX_F16 | DART_CAP_MATRIX2;
    const dart_tensor x = rig_tensor(&r, DART_F16, (uint64_t)LONGEST * H * P, NULL), dt = rig_tensor(&r, DART_F16, LONGEST * H, NULL),
                      b = rig_tensor(&r, DART_F16, LONGEST * SN, NULL), a_log = rig_tensor(&r, DART_F32, H, NULL);
    for (int fails = 0; fails < 2; fails++) {
        dart_stream *stream = NULL;
        uint32_t first = 0;
        atomic_store(&warmed.heads, 0);
        warmed.gives = fails ? DART_UNSUPPORTED : DART_OK;
        MUST(&r, dart_stream_create(r.device, &(dart_stream_options){.warm = true}, &stream));
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            MUST(&r, dart_ssd(stream, &(dart_ssd_args){.B = 1, .L = lengths[i], .H = H, .G = 1, .N = SN, .P = P, .S = 256, .x = x, .dt = dt,
                                                       .b = b, .c = b, .a_log = a_log, .y = x}));
            if (i == 1) first = dart_stream_launches(stream);
        }
        assert_true(dart_stream_launches(stream) > first);
        atomic_store(&warmed.count, 0);
        assert_int_equal(dart_stream_submit(stream), warmed.gives);
        if (!fails) {
            assert_int_equal(atomic_load(&warmed.heads), 1u << 2 | 1u << 6);
            assert_in_range(warmed.count, 2, first);
        }
        dart_stream_destroy(&stream);
    }
    r.device->backend = real;
    rig_close(&r);
}

#ifdef DARTLM_VULKAN
static PFN_vkCreateComputePipelines create_pipelines;
static atomic_uint pipelines;
static uint32_t failing; /* the first so many */
static uint64_t delay_ns;

static VKAPI_ATTR VkResult VKAPI_CALL count_pipelines(VkDevice device, VkPipelineCache cache, uint32_t count, const VkComputePipelineCreateInfo *info,
                                                      const VkAllocationCallbacks *by, VkPipeline *made)
{
    const uint32_t before = atomic_fetch_add(&pipelines, count);
    base_pause_ns(delay_ns);
    if (before < failing) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return create_pipelines(device, cache, count, info, by, made);
}

/* Opens a device that has compiled nothing yet, and counts what it compiles. */
static vk_device *count_on(rig *r)
{
    rig_open_with(r, &(dart_device_options){.spec = rig_spec});
    if (r->info.backend != DART_BACKEND_VULKAN) {
        rig_close(r);
        skip();
    }
    vk_device *device = r->device->handle;
    create_pipelines = device->vk.vkCreateComputePipelines;
    device->vk.vkCreateComputePipelines = count_pipelines;
    atomic_store(&pipelines, 0);
    failing = 0;
    delay_ns = 0;
    return device;
}

static void keeps_pipelines_apart(void **unused)
{
    (void)unused;
    rig r;
    vk_device *device = count_on(&r);
    const kernel_row *row = kernel_pick(DART_BACKEND_VULKAN, KERNEL_fill, (kernel_capabilities){0}, 0, 1, NULL);
    const backend_code codes[] = {{row, DART_F32, 256, 1, false}, {row, DART_F32, 256, 2, false}, {row, DART_F32, 128, 1, false},
                                  {row, DART_F16, 256, 1, false}};
    for (size_t i = 0; i < 2 * COUNT_OF(codes); i++) {
        assert_int_equal(r.device->backend->warm(device, &codes[i % COUNT_OF(codes)]), DART_OK);
        assert_int_equal(atomic_load(&pipelines), i < COUNT_OF(codes) ? i + 1 : COUNT_OF(codes));
    }
    rig_close(&r);
}

/* A stream that was warmed has made the pipelines that launches of the same code take. */
static void launches_what_was_warmed(void **unused)
{
    (void)unused;
    rig r;
    count_on(&r);
    const dart_tensor x = rig_random(&r, DART_F32, 64, -1, 1), y = rig_tensor(&r, DART_F16, 64, NULL);
    const dart_convert_args args = {.T = 4, .W = 16, .x = x, .y = y};
    dart_stream *stream = NULL;
    MUST(&r, dart_stream_create(r.device, &(dart_stream_options){.warm = true}, &stream));
    MUST(&r, dart_convert(stream, &args));
    MUST(&r, dart_stream_submit(stream));
    dart_stream_destroy(&stream);
    const uint32_t warmed_for = atomic_load(&pipelines);
    assert_true(warmed_for > 0);
    MUST(&r, dart_convert(r.stream, &args));
    rig_run(&r);
    assert_int_equal(atomic_load(&pipelines), warmed_for);
    rig_close(&r);
}

typedef struct warmer {
    dart_device *device;
    backend_code code;
    dart_status status;
    base_thread thread;
} warmer;

static void warm_one(void *argument)
{
    warmer *w = argument;
    w->status = w->device->backend->warm(w->device->handle, &w->code);
}

/* Threads that need the same code at the same time have it compiled once; where that fails, by the next of them. */
static void compiles_once_for_all_threads(void **unused)
{
    (void)unused;
    rig r;
    count_on(&r);
    delay_ns = 30000000;
    for (uint32_t T1 = 5; T1 < 7; T1++) {
        warmer warmers[4];
        uint32_t failed = 0;
        atomic_store(&pipelines, 0);
        failing = T1 - 5;
        for (size_t i = 0; i < COUNT_OF(warmers); i++) {
            const kernel_row *row = kernel_pick(DART_BACKEND_VULKAN, KERNEL_fill, (kernel_capabilities){0}, 0, 1, NULL);
            warmers[i] = (warmer){r.device, {row, DART_F32, 64, T1, false}, DART_OK, {0}};
            assert_int_equal(base_thread_start(&warmers[i].thread, warm_one, &warmers[i]), DART_OK);
        }
        for (size_t i = 0; i < COUNT_OF(warmers); i++) {
            base_thread_join(&warmers[i].thread);
            failed += warmers[i].status != DART_OK;
        }
        assert_int_equal(failed, failing);
        assert_int_equal(atomic_load(&pipelines), 1 + failing);
    }
    rig_close(&r);
}
#endif

/* What a kernel leaves one of whose workgroups has waited in vain for another. */
static void tells_of_a_wait_in_vain(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    const dart_tensor y = rig_tensor(&r, DART_F32, N, NULL);
    const int32_t one = 1;
    char text[256];
    op_call call;
    assert_int_equal(op_begin(&call, r.stream, "test"), DART_OK);
    const op_operand stuck = op_stuck(&call), posts = op_posts(&call, 64);
    assert_int_equal(op_end(&call), DART_OK);
    fill(&r, y, 1);
    assert_int_equal(dart_stream_submit(r.stream), DART_OK);
    assert_int_equal(dart_stream_wait(r.stream, UINT64_MAX), DART_OK);
    assert_int_equal(dart_buffer_write(posts.of.buffer, 0, &one, sizeof one), DART_OK);
    assert_int_equal(dart_buffer_write(stuck.of.buffer, 0, &one, sizeof one), DART_OK);
    assert_int_equal(dart_stream_submit(r.stream), DART_OK);
    assert_int_equal(dart_stream_wait(r.stream, UINT64_MAX), DART_INTERNAL);
    dart_stream_error(r.stream, text, sizeof text);
    if (strstr(text, "side by side") == NULL) fail_msg("%s", text);
    /* The next recording begins with words that nobody has written. */
    rig_begin(&r);
    assert_int_equal(op_begin(&call, r.stream, "test"), DART_OK);
    const op_operand fresh[] = {op_stuck(&call), op_posts(&call, 64)};
    assert_int_equal(op_end(&call), DART_OK);
    fill(&r, y, 2);
    for (size_t i = 0; i < COUNT_OF(fresh); i++) {
        int32_t word = -1;
        assert_int_equal(dart_buffer_read(fresh[i].of.buffer, 0, &word, sizeof word), DART_OK);
        assert_int_equal(word, 0);
    }
    assert_int_equal(dart_stream_submit(r.stream), DART_OK);
    assert_int_equal(dart_stream_wait(r.stream, UINT64_MAX), DART_OK);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(separates_what_depends),
    cmocka_unit_test(keeps_order),
    cmocka_unit_test(forgets_safely),
    cmocka_unit_test(plans_are_ordered),
    cmocka_unit_test(errors_stick),
    cmocka_unit_test(replays),
    cmocka_unit_test(streams_follow_one_another),
    cmocka_unit_test(takes_tickets),
    cmocka_unit_test(waits_before_it_goes_on),
    cmocka_unit_test(times_launches),
    cmocka_unit_test(warms_every_code_once),
    cmocka_unit_test(tells_of_a_wait_in_vain),
#ifdef DARTLM_VULKAN
    cmocka_unit_test(keeps_pipelines_apart),
    cmocka_unit_test(launches_what_was_warmed),
    cmocka_unit_test(compiles_once_for_all_threads),
#endif
};
RIG_MAIN("unit_streams")
