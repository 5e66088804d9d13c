/* Threads that share what may be shared: a context, a device, a model. For ThreadSanitizer; results must be those of one
 * thread alone: thread_devices [DEVICE_SPEC]. */
#include "rig.h"

#include "base/base.h"

#include "dartlm/model.h"
#include "dartlm/train.h"

#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 6, B = 2, L = 19, V = 31, WIDTH = 16, T = 24, W = 40 };

static const dart_model_config config = {.sma = true, .V = V, .W = WIDTH, .layers = 2, .H = 4, .P = 8, .G = 1, .N = 8, .K = 4, .S = 4, .eps = 1e-5f,
                                         .sma_eps = 1e-5f};

/* cmocka's assertions belong to the main thread: the others count, and say where. */
static atomic_uint failures;
static void expect_on(unsigned line, bool condition)
{
    if (condition) return;
    atomic_fetch_add(&failures, 1);
    fprintf(stderr, "thread_devices: the expectation of line %u failed\n", line);
}
#define expect(condition) expect_on(__LINE__, (condition))

/* Results of a thread are those of the first one, alone. */
static void expect_same_on(unsigned line, dart_status status, const float *got, const float *expected, size_t count)
{
    size_t different = 0, first = 0;
    for (size_t i = count; i-- > 0 && status == DART_OK;) {
        if (memcmp(&got[i], &expected[i], sizeof *got) == 0) continue;
        different++;
        first = i;
    }
    if (different > 0)
        fprintf(stderr, "thread_devices: %zu of %zu results differ, the first is [%zu], %.9g, not %.9g\n", different, count, first,
                (double)got[first], (double)expected[first]);
    if (status != DART_OK) fprintf(stderr, "thread_devices: %s\n", dart_status_name(status));
    expect_on(line, status == DART_OK && different == 0);
}
#define expect_same(status, got, expected) expect_same_on(__LINE__, (status), (got), (expected), COUNT_OF(got))

typedef struct shared {
    dart_context *context;
    dart_device *device;
    dart_model *model;
    float linear[T * W], again[T * W], logits[B * V], embedding[V * WIDTH];
    atomic_uint lines, broken; /* lines of the log; those that tell of a capture that was broken off (src/cuda/cu_stream.c) */
    atomic_uint opening;       /* threads that open devices */
} shared;

static void count_line(void *user, dart_log_level level, const char *text)
{
    shared *s = user;
    (void)level;
    atomic_fetch_add(&s->lines, 1);
    if (strstr(text, "during capture") != NULL) atomic_fetch_add(&s->broken, 1);
}

static dart_status do_linear(dart_device *device, float *result)
{
    static const float none[T * W] = {0};
    float x[T * W], weight[W * W];
    dart_buffer *buffers[3] = {NULL};
    dart_stream *stream = NULL;
    for (int i = 0; i < T * W; i++) x[i] = (float)(i % 23) / 8 - 1;
    for (int i = 0; i < W * W; i++) weight[i] = (float)(i % 19) / 16 - 0.5f;
    dart_status status = dart_stream_create(device, NULL, &stream);
    if (status == DART_OK) status = dart_buffer_create(device, sizeof x, &buffers[0]);
    if (status == DART_OK) status = dart_buffer_create(device, sizeof weight, &buffers[1]);
    if (status == DART_OK) status = dart_buffer_create(device, sizeof x, &buffers[2]);
    if (status == DART_OK) status = dart_buffer_write(buffers[0], 0, x, sizeof x);
    if (status == DART_OK) status = dart_buffer_write(buffers[1], 0, weight, sizeof weight);
    if (status == DART_OK) status = dart_buffer_write(buffers[2], 0, none, sizeof none);
    const dart_linear_args args = {.T = T, .IN = W, .OUT = W, .add = true, .x = {.buffer = buffers[0]}, .weight = {.buffer = buffers[1]},
                                   .y = {.buffer = buffers[2]}};
    for (int i = 0; i < 3 && status == DART_OK; i++) status = dart_linear(stream, &args);
    if (status == DART_OK) status = dart_stream_submit(stream);
    if (status == DART_OK) status = dart_stream_wait(stream, UINT64_MAX);
    if (status == DART_OK) status = dart_buffer_read(buffers[2], 0, result, sizeof x);
    dart_stream_destroy(&stream);
    for (int i = 0; i < 3; i++) dart_buffer_destroy(&buffers[i]);
    return status;
}

/* The same recording three times: from the second submission on a backend may replay it. LAUNCHES make a replay's preparation take a while. */
static dart_status do_linear_again(dart_device *device, float *result)
{
    enum { LAUNCHES = 64 };
    float x[T * W], weight[W * W];
    dart_buffer *buffers[3] = {NULL};
    dart_stream *stream = NULL;
    for (int i = 0; i < T * W; i++) x[i] = (float)(i % 29) / 8 - 1;
    for (int i = 0; i < W * W; i++) weight[i] = (float)(i % 17) / 16 - 0.5f;
    dart_status status = dart_stream_create(device, NULL, &stream);
    if (status == DART_OK) status = dart_buffer_create(device, sizeof x, &buffers[0]);
    if (status == DART_OK) status = dart_buffer_create(device, sizeof weight, &buffers[1]);
    if (status == DART_OK) status = dart_buffer_create(device, LAUNCHES * sizeof x, &buffers[2]);
    if (status == DART_OK) status = dart_buffer_write(buffers[0], 0, x, sizeof x);
    if (status == DART_OK) status = dart_buffer_write(buffers[1], 0, weight, sizeof weight);
    for (uint64_t i = 0; i < LAUNCHES && status == DART_OK; i++)
        status = dart_linear(stream, &(dart_linear_args){.T = T, .IN = W, .OUT = W, .x = {.buffer = buffers[0]}, .weight = {.buffer = buffers[1]},
                                                         .y = {.buffer = buffers[2], .offset = i * T * W}});
    for (int i = 0; i < 3 && status == DART_OK; i++) {
        status = dart_stream_submit(stream);
        if (status == DART_OK) status = dart_stream_wait(stream, UINT64_MAX);
    }
    if (status == DART_OK) status = dart_buffer_read(buffers[2], (LAUNCHES - 1) * sizeof x, result, sizeof x);
    dart_stream_destroy(&stream);
    for (int i = 0; i < 3; i++) dart_buffer_destroy(&buffers[i]);
    return status;
}

static dart_status feed(dart_model *model, float *logits)
{
    int32_t ids[B * L];
    dart_state *state = NULL;
    for (int i = 0; i < B * L; i++) ids[i] = (i * 7 + 3) % V;
    dart_status status = dart_state_create(model, &(dart_state_options){.B = B, .memory_block = 2}, &state);
    if (status == DART_OK) status = dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = L, .sampling = &(dart_sampling){0}});
    if (status == DART_OK) status = dart_generate(state, &(dart_generate_args){.n = 9});
    if (status == DART_OK) status = dart_decode(state, &(dart_decode_args){.ids = ids, .logits = logits});
    dart_state_destroy(&state);
    return status;
}

/* The embedding after two steps of a new trainer. */
static dart_status train(dart_device *device, float embedding[V * WIDTH])
{
    int32_t ids[B * L];
    dart_trainer *trainer = NULL;
    for (int i = 0; i < B * L; i++) ids[i] = (i * 5 + 2) % V;
    const dart_train_batch batch = {.ids = ids, .targets = ids};
    dart_status status = dart_trainer_create(device, &config, &(dart_trainer_options){.B = B, .L = L, .keep = 1, .seed = 9}, &trainer);
    for (int i = 0; i < 2 && status == DART_OK; i++) status = dart_trainer_step(trainer, &batch, 1e-2, NULL);
    if (status == DART_OK) status = dart_trainer_read(trainer, DART_TRAIN_WEIGHT, 0, embedding);
    dart_trainer_destroy(&trainer);
    return status;
}

/* A device, a stream, a state and a trainer of one's own beside the shared ones, and wrong calls in between. */
static void live(void *argument)
{
    shared *s = argument;
    for (int i = 0; i < ROUNDS; i++) {
        float linear[T * W], logits[B * V], embedding[V * WIDTH];
        char text[128];
        dart_device *device = NULL;
        dart_buffer *none = NULL;
        dart_device_info info;
        expect_same(do_linear(s->device, linear), linear, s->linear);
        expect_same(feed(s->model, logits), logits, s->logits);
        if (i % 3 == 0) expect_same(train(s->device, embedding), embedding, s->embedding);
        expect(dart_buffer_create(s->device, 0, &none) == DART_INVALID_ARGUMENT);
        expect(dart_device_error(s->device, text, sizeof text) > 0);
        expect(dart_device_open(s->context, &(dart_device_options){.spec = "no such thing"}, &device) == DART_INVALID_ARGUMENT);
        expect(dart_context_error(s->context, text, sizeof text) > 0);
        expect(dart_context_device_info(s->context, 0, &info) == DART_OK && dart_device_describe(s->device, &info) == DART_OK);
        dart_device_bytes(s->device);
        if (i % 3 != 0) continue;
        expect(dart_device_open(s->context, &(dart_device_options){.spec = rig_spec, .threads = 2}, &device) == DART_OK);
        expect_same(do_linear(device, linear), linear, s->linear);
        dart_device_destroy(&device);
    }
}

/* Everything of one's own, down to the context. */
static void live_apart(void *argument)
{
    const shared *s = argument;
    for (int i = 0; i < 2; i++) {
        dart_context *context = NULL;
        dart_device *device = NULL;
        float linear[T * W];
        expect(dart_context_create(&(dart_context_options){.with_null = true}, &context) == DART_OK);
        expect(dart_device_open(context, &(dart_device_options){.spec = rig_spec, .threads = 2}, &device) == DART_OK);
        expect_same(do_linear(device, linear), linear, s->linear);
        dart_device_destroy(&device);
        dart_context_destroy(&context);
    }
}

/* Recordings that are submitted again, as long as others open and close devices. */
static void live_again(void *argument)
{
    shared *s = argument;
    float again[T * W];
    do expect_same(do_linear_again(s->device, again), again, s->again);
    while (atomic_load(&s->opening) > 0);
}

static void live_opening(void *argument)
{
    shared *s = argument;
    live_apart(s);
    atomic_fetch_sub(&s->opening, 1);
}

static void open_shared(shared *s)
{
    memset(s, 0, sizeof *s);
    assert_int_equal(dart_context_create(&(dart_context_options){.log = count_line, .log_user = s, .log_level = DART_LOG_TRACE, .with_null = true},
                                         &s->context), DART_OK);
    assert_int_equal(dart_device_open(s->context, &(dart_device_options){.spec = rig_spec, .threads = 3}, &s->device), DART_OK);
}

static void threads_share(void **unused)
{
    (void)unused;
    base_thread threads[2 * THREADS];
    static shared s;
    open_shared(&s);
    assert_int_equal(dart_model_random(s.device, &config, 3, NULL, &s.model), DART_OK);
    assert_int_equal(do_linear(s.device, s.linear), DART_OK);
    assert_int_equal(feed(s.model, s.logits), DART_OK);
    assert_int_equal(train(s.device, s.embedding), DART_OK);
    const uint64_t bytes = dart_device_bytes(s.device);
    for (int i = 0; i < 2 * THREADS; i++) assert_int_equal(base_thread_start(&threads[i], i < THREADS ? live : live_apart, &s), DART_OK);
    for (int i = 0; i < 2 * THREADS; i++) base_thread_join(&threads[i]);
    assert_int_equal(atomic_load(&failures), 0);
    assert_true(atomic_load(&s.lines) >= 2 * THREADS * ROUNDS);
    assert_int_equal(dart_device_bytes(s.device), bytes);
    dart_model_destroy(&s.model);
    dart_device_destroy(&s.device);
    dart_context_destroy(&s.context);
}

static void recordings_beside_opening(void **unused)
{
    (void)unused;
    base_thread threads[2 * THREADS];
    static shared s;
    open_shared(&s);
    assert_int_equal(do_linear(s.device, s.linear), DART_OK);
    assert_int_equal(do_linear_again(s.device, s.again), DART_OK);
    atomic_store(&s.opening, THREADS);
    for (int i = 0; i < 2 * THREADS; i++) assert_int_equal(base_thread_start(&threads[i], i < THREADS ? live_again : live_opening, &s), DART_OK);
    for (int i = 0; i < 2 * THREADS; i++) base_thread_join(&threads[i]);
    assert_int_equal(atomic_load(&failures), 0);
    assert_int_equal(atomic_load(&s.broken), 0);
    dart_device_destroy(&s.device);
    dart_context_destroy(&s.context);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share), cmocka_unit_test(recordings_beside_opening)};
RIG_MAIN("thread_devices")
