/* Listing devices and choosing one by text: unit_devices [DEVICE_SPEC]. */
#include "rig.h"

#include "runtime/kernel.h"

#include <ctype.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static dart_context *context_of(const dart_context_options *options)
{
    dart_context *context = NULL;
    assert_int_equal(dart_context_create(options, &context), DART_OK);
    return context;
}

static int rank(dart_device_type type)
{
    static const int ranks[] = {[DART_DEVICE_CPU] = 3, [DART_DEVICE_DISCRETE] = 0, [DART_DEVICE_INTEGRATED] = 1,
                                [DART_DEVICE_VIRTUAL] = 2, [DART_DEVICE_OTHER] = 4};
    return ranks[type];
}

static void lists_devices(void **unused)
{
    (void)unused;
    static const int order[] = {[DART_BACKEND_VULKAN] = 0, [DART_BACKEND_CUDA] = 1, [DART_BACKEND_CPU] = 2, [DART_BACKEND_NULL] = 3};
    dart_context *context = context_of(&(dart_context_options){.with_null = true});
    const uint32_t count = dart_context_device_count(context);
    assert_true(count >= 2);
    dart_device_info info, before = {.index = 0};
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(dart_context_device_info(context, i, &info), DART_OK);
        assert_true(strlen(info.name) > 0 && strlen(info.name) < sizeof info.name);
        assert_true(info.usable == (info.why_not[0] == '\0'));
        if (info.usable)
            assert_true(info.capabilities != 0 && info.max_binding_bytes >= UINT64_C(1) << 27 && info.shared_bytes >= 16384 && info.subgroup >= 1);
        if (i > 0) {
            assert_true(order[before.backend] <= order[info.backend]);
            if (before.backend == info.backend) {
                assert_true(rank(before.type) <= rank(info.type));
                assert_int_equal(info.index, before.index + 1);
            } else {
                assert_int_equal(info.index, 0);
            }
        }
        before = info;
    }
    assert_int_equal(before.backend, DART_BACKEND_NULL);
    assert_int_equal(dart_context_device_info(context, count, &info), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_context_device_info(context, UINT32_MAX, &info), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_context_device_info(context, 0, NULL), DART_INVALID_ARGUMENT);
    dart_context_destroy(&context);
    assert_null(context);
    /* Only what is asked for. */
    context = context_of(&(dart_context_options){.without_vulkan = true, .without_cuda = true});
    assert_int_equal(dart_context_device_count(context), 1);
    dart_context_destroy(&context);
}

static void refuses_bad_specs(void **unused)
{
    (void)unused;
    static const struct { const char *spec; dart_status status; } bad[] = {
        {"gpu", DART_INVALID_ARGUMENT}, {"CPU", DART_INVALID_ARGUMENT}, {"cp", DART_INVALID_ARGUMENT}, {"cpux", DART_INVALID_ARGUMENT},
        {":0", DART_INVALID_ARGUMENT}, {" cpu", DART_INVALID_ARGUMENT}, {"vulkan 0", DART_INVALID_ARGUMENT}, {"cpu,0", DART_INVALID_ARGUMENT},
        {"cpu:1", DART_UNSUPPORTED}, {"cpu:99999999999999999999", DART_UNSUPPORTED}, {"cpu:-1", DART_UNSUPPORTED},
        {"cpu:no such name", DART_UNSUPPORTED},
        {"cpu:0:0", DART_UNSUPPORTED}, {"cpu:0123456789abcdef0123456789abcdef", DART_UNSUPPORTED},
        {"cpu:01234567-89ab-cdef-0123-456789abcdef0", DART_UNSUPPORTED}, {"vulkan", DART_UNSUPPORTED}, {"cuda:0", DART_UNSUPPORTED},
        {"null", DART_UNSUPPORTED},
    };
    dart_context *context = context_of(&(dart_context_options){.without_vulkan = true, .without_cuda = true});
    for (size_t i = 0; i < COUNT(bad); i++) {
        dart_device *device = NULL;
        char text[512];
        if (dart_device_open(context, &(dart_device_options){.spec = bad[i].spec}, &device) != bad[i].status) fail_msg("'%s'", bad[i].spec);
        assert_null(device);
        dart_context_error(context, text, sizeof text);
        if (strstr(text, bad[i].spec) == NULL) fail_msg("'%s' does not name '%s'", text, bad[i].spec);
    }
    dart_device *device = NULL;
    assert_int_equal(dart_device_open(context, NULL, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_device_open(NULL, NULL, &device), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_device_open(context, &(dart_device_options){.spec = "cpu", .backwards = 3}, &device), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_device_open(context, &(dart_device_options){.spec = "cpu", .variant = "a name of more than thirty-one characters"},
                                      &device),
                     DART_INVALID_ARGUMENT);
    assert_null(device);
    dart_context_destroy(&context);
}

static void must_open(dart_context *context, const char *spec, const dart_device_info *expected)
{
    dart_device *device = NULL;
    dart_device_info info;
    char text[512] = "";
    const dart_status status = dart_device_open(context, &(dart_device_options){.spec = spec}, &device);
    dart_context_error(context, text, sizeof text);
    if (status != DART_OK) fail_msg("'%s': %s", spec, text);
    assert_int_equal(dart_device_describe(device, &info), DART_OK);
    if (info.backend != expected->backend || info.index != expected->index) fail_msg("'%s' opened %s", spec, info.name);
    dart_device_destroy(&device);
    assert_null(device);
}

static void chooses_by_index_name_and_uuid(void **unused)
{
    (void)unused;
    dart_context *context = context_of(&(dart_context_options){.with_null = true});
    for (uint32_t i = 0; i < dart_context_device_count(context); i++) {
        static const uint8_t none[16] = {0};
        dart_device_info info;
        char spec[600];
        assert_int_equal(dart_context_device_info(context, i, &info), DART_OK);
        if (!info.usable) continue;
        const char *backend = dart_backend_name(info.backend);
        snprintf(spec, sizeof spec, "%s:%u", backend, info.index);
        must_open(context, spec, &info);
        if (info.index != 0) continue;
        snprintf(spec, sizeof spec, "%s:%s", backend, info.name);
        for (size_t k = strlen(backend); spec[k] != '\0'; k++)
            spec[k] = (char)(k % 2 ? toupper((unsigned char)spec[k]) : tolower((unsigned char)spec[k]));
        must_open(context, spec, &info);
        must_open(context, backend, &info);
        snprintf(spec, sizeof spec, "%s:", backend);
        must_open(context, spec, &info);
        if (memcmp(info.uuid, none, sizeof none) == 0) continue;
        for (int dashes = 0; dashes < 2; dashes++) {
            int used = snprintf(spec, sizeof spec, "%s:", backend);
            for (size_t k = 0; k < 16; k++)
                used += snprintf(spec + used, sizeof spec - (size_t)used, dashes && (k == 4 || k == 6 || k == 8 || k == 10) ? "-%02X" : "%02x",
                                 info.uuid[k]);
            must_open(context, spec, &info);
        }
    }
    dart_context_destroy(&context);
}

static void prefers_real_gpus(void **unused)
{
    (void)unused;
    dart_context *context = context_of(NULL);
    dart_device_info expected = {.backend = DART_BACKEND_CPU}, info;
    for (uint32_t i = dart_context_device_count(context); i-- > 0;) {
        assert_int_equal(dart_context_device_info(context, i, &info), DART_OK);
        if (info.usable && info.backend != DART_BACKEND_CPU && info.type != DART_DEVICE_CPU) expected = info;
    }
    must_open(context, NULL, &expected);
    must_open(context, "", &expected);
    dart_context_destroy(&context);
}

static void opens_as_asked(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    const dart_device_info whole = r.info;
    rig_close(&r);
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .max_binding_bytes = 65536,
                                             .without_capabilities = DART_CAP_AVX2 | DART_CAP_STORE16 | DART_CAP_SUBGROUP});
    assert_int_equal(r.info.max_binding_bytes, 65536);
    assert_int_equal(r.info.capabilities, whole.capabilities & ~(uint32_t)(DART_CAP_AVX2 | DART_CAP_STORE16 | DART_CAP_SUBGROUP));
    dart_tensor y = rig_tensor(&r, DART_F16, 100, NULL);
    MUST(&r, dart_fill(r.stream, &(dart_fill_args){.T = 1, .W = 100, .value = 1, .y = y}));
    if (r.info.backend == DART_BACKEND_VULKAN) assert_non_null(strstr(r.lines[0], "fill[base]"));
    rig_run(&r);
    rig_close(&r);
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .minimum_limits = true});
    const bool vulkan = r.info.backend == DART_BACKEND_VULKAN;
    assert_int_equal(r.info.max_binding_bytes, UINT64_C(1) << 27);
    assert_int_equal(r.info.shared_bytes, vulkan ? 16384 : whole.shared_bytes);
    assert_int_equal(r.info.max_bindings, vulkan ? kernel_needed_buffers(DART_BACKEND_VULKAN) : whole.max_bindings);
    assert_int_equal(r.info.capabilities, whole.capabilities & ~(uint32_t)(DART_CAP_LARGE | DART_CAP_SHARED48));
    rig_close(&r);
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .minimum_limits = true, .max_binding_bytes = 65536});
    assert_int_equal(r.info.max_binding_bytes, 65536);
    rig_close(&r);
    /* A limit above the device's changes nothing. */
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .max_binding_bytes = UINT64_MAX});
    assert_int_equal(r.info.max_binding_bytes, whole.max_binding_bytes);
    rig_close(&r);
}

static void fill_and_check(rig *r, float value)
{
    enum { N = 100 };
    dart_tensor y = rig_tensor(r, DART_F16, N, NULL);
    MUST(r, dart_fill(r->stream, &(dart_fill_args){.T = 1, .W = N, .value = value, .y = y}));
    rig_run(r);
    float *got = rig_read(&y, N);
    for (size_t i = 0; i < N; i++) assert_true(got[i] == value);
    free(got);
}

typedef struct heard {
    unsigned lines, errors, warnings, loudest;
} heard;

static void hear(void *user, dart_log_level level, const char *text)
{
    heard *h = user;
    assert_true(strlen(text) > 0);
    h->lines++;
    h->errors += level == DART_LOG_ERROR;
    h->warnings += level == DART_LOG_WARNING;
    if ((unsigned)level > h->loudest) h->loudest = (unsigned)level;
}

/* The device works with it, and a warning says if the cache is none. */
static void opens_with_cache(const void *code, size_t bytes, bool damaged)
{
    heard h = {0};
    dart_device *device = NULL;
    dart_context *context = context_of(&(dart_context_options){.log = hear, .log_user = &h, .log_level = DART_LOG_WARNING});
    const dart_device_options options = {.spec = rig_spec, .cache = code, .cache_bytes = bytes};
    const unsigned before = h.warnings;
    assert_int_equal(dart_device_open(context, &options, &device), DART_OK);
    assert_int_equal(h.warnings - before, damaged);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    rig r;
    rig_open_with(&r, &options);
    fill_and_check(&r, 2);
    rig_close(&r);
}

/* Code that was compiled goes out and comes back; damaged bytes count as none. */
static void keeps_compiled_code(void **unused)
{
    (void)unused;
    rig r;
    size_t bytes = 0;
    rig_open(&r, rig_spec);
    fill_and_check(&r, 1);
    assert_int_equal(dart_device_cache(NULL, NULL, &bytes), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_device_cache(r.device, NULL, NULL), DART_INVALID_ARGUMENT);
    MUST(&r, dart_device_cache(r.device, NULL, &bytes));
    assert_int_equal(bytes > 0, r.info.backend == DART_BACKEND_VULKAN);
    if (bytes == 0) {
        rig_close(&r);
        return;
    }
    unsigned char *code = malloc(bytes);
    size_t room = 8;
    assert_non_null(code);
    assert_int_equal(dart_device_cache(r.device, code, &room), DART_INVALID_ARGUMENT);
    MUST(&r, dart_device_cache(r.device, code, &bytes));
    rig_close(&r);
    /* Of the header and of what follows it. */
    const size_t damage[] = {0, 9, 17, 30, bytes / 2, bytes - 1};
    for (size_t i = 0; i <= sizeof damage / sizeof damage[0]; i++) {
        if (i > 0) code[damage[i - 1]] ^= 0x5a;
        opens_with_cache(code, bytes, i > 0);
        if (i > 0) code[damage[i - 1]] ^= 0x5a;
    }
    for (size_t cut = 0; cut < bytes; cut = 2 * cut + 1) opens_with_cache(code, cut, cut > 0);
    free(code);
}

/* A warming stream writes nothing, and compiles what the ops need. */
static void warms_up(void **unused)
{
    (void)unused;
    enum { N = 100 };
    rig r;
    dart_stream *stream = NULL;
    float before[N];
    rig_open(&r, rig_spec);
    for (size_t i = 0; i < N; i++) before[i] = (float)i;
    dart_tensor y = rig_tensor(&r, DART_F32, N, before);
    MUST(&r, dart_stream_create(r.device, &(dart_stream_options){.warm = true}, &stream));
    MUST(&r, dart_fill(stream, &(dart_fill_args){.T = 1, .W = N, .value = 7, .y = y}));
    MUST(&r, dart_fill(stream, &(dart_fill_args){.T = 2, .W = N / 2, .value = 8, .y = y}));
    MUST(&r, dart_stream_submit(stream));
    MUST(&r, dart_stream_wait(stream, UINT64_MAX));
    float *got = rig_read(&y, N);
    rig_same_bits("y", got, before, N);
    free(got);
    dart_stream_destroy(&stream);
    fill_and_check(&r, 4);
    rig_close(&r);
}

/* Contexts and devices do not know of one another. */
static void keeps_devices_apart(void **unused)
{
    (void)unused;
    enum { COUNT_OF_RIGS = 4, N = 300 };
    rig rigs[COUNT_OF_RIGS];
    dart_tensor tensors[COUNT_OF_RIGS];
    for (uint32_t i = 0; i < COUNT_OF_RIGS; i++) {
        rig_open(&rigs[i], i % 2 ? "cpu" : rig_spec);
        tensors[i] = rig_tensor(&rigs[i], DART_F32, N, NULL);
        MUST(&rigs[i], dart_fill(rigs[i].stream, &(dart_fill_args){.T = 3, .W = N / 3, .value = (float)i + 1, .y = tensors[i]}));
    }
    for (uint32_t i = 0; i < COUNT_OF_RIGS; i++) MUST(&rigs[i], dart_stream_submit(rigs[i].stream));
    /* A buffer of another device is refused, there and only there. */
    rig_begin(&rigs[0]);
    assert_int_equal(dart_fill(rigs[0].stream, &(dart_fill_args){.T = 1, .W = 1, .y = tensors[1]}), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_submit(rigs[0].stream), DART_INVALID_ARGUMENT);
    rig_begin(&rigs[0]);
    for (uint32_t i = 0; i < COUNT_OF_RIGS; i++) {
        MUST(&rigs[i], dart_stream_wait(rigs[i].stream, UINT64_MAX));
        float *got = rig_read(&tensors[i], N);
        for (size_t k = 0; k < N; k++) assert_true(got[k] == (float)i + 1);
        free(got);
    }
    rig_close(&rigs[2]);
    rig_close(&rigs[0]);
    rig_begin(&rigs[3]);
    MUST(&rigs[3], dart_fill(rigs[3].stream, &(dart_fill_args){.T = 1, .W = N, .value = 9, .y = tensors[3]}));
    rig_run(&rigs[3]);
    rig_close(&rigs[1]);
    rig_close(&rigs[3]);
}

/* Several streams of one device, in flight together. */
static void runs_several_streams(void **unused)
{
    (void)unused;
    enum { STREAMS = 5, N = 5000 };
    rig r;
    rig_open(&r, rig_spec);
    dart_stream *streams[STREAMS] = {NULL};
    dart_tensor tensors[STREAMS];
    for (uint32_t i = 0; i < STREAMS; i++) {
        tensors[i] = rig_tensor(&r, DART_F32, N, NULL);
        MUST(&r, dart_stream_create(r.device, NULL, &streams[i]));
        MUST(&r, dart_fill(streams[i], &(dart_fill_args){.T = 1, .W = N, .value = (float)i, .y = tensors[i]}));
        MUST(&r, dart_stream_submit(streams[i]));
    }
    for (uint32_t i = STREAMS; i-- > 0;) {
        MUST(&r, dart_stream_wait(streams[i], UINT64_MAX));
        float *got = rig_read(&tensors[i], N);
        for (size_t k = 0; k < N; k++) assert_true(got[k] == (float)i);
        free(got);
        dart_stream_destroy(&streams[i]);
        assert_null(streams[i]);
    }
    rig_close(&r);
}

static void takes_null(void **unused)
{
    (void)unused;
    dart_context *context = NULL;
    dart_device *device = NULL;
    dart_buffer *buffer = NULL;
    dart_stream *stream = NULL;
    dart_device_info info;
    char text[4] = "abc";
    uint64_t ns;
    dart_context_destroy(NULL);
    dart_context_destroy(&context);
    dart_device_destroy(NULL);
    dart_device_destroy(&device);
    dart_buffer_destroy(NULL);
    dart_buffer_destroy(&buffer);
    dart_stream_destroy(NULL);
    dart_stream_destroy(&stream);
    assert_int_equal(dart_context_create(NULL, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_context_device_count(NULL), 0);
    assert_int_equal(dart_context_device_info(NULL, 0, &info), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_context_error(NULL, text, sizeof text), 0);
    assert_int_equal(dart_device_describe(NULL, &info), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_device_error(NULL, text, sizeof text), 0);
    assert_int_equal(dart_device_bytes(NULL), 0);
    assert_int_equal(dart_buffer_create(NULL, 4, &buffer), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_bytes(NULL), 0);
    assert_int_equal(dart_buffer_write(NULL, 0, text, 1), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_read(NULL, 0, text, 1), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_create(NULL, NULL, &stream), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_begin(NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_submit(NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_wait(NULL, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_elapsed(NULL, &ns), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_launches(NULL), 0);
    assert_int_equal(dart_stream_error(NULL, text, sizeof text), 0);
    rig r;
    rig_open(&r, rig_spec);
    assert_int_equal(dart_device_describe(r.device, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_create(r.device, NULL, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_elapsed(r.stream, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_fill(r.stream, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_fill(NULL, &(dart_fill_args){.T = 1}), DART_INVALID_ARGUMENT);
    rig_close(&r);
}

static void logs_what_is_asked_for(void **unused)
{
    (void)unused;
    for (int level = DART_LOG_ERROR; level <= DART_LOG_TRACE; level++) {
        heard h = {0};
        dart_device *device = NULL;
        dart_context *context = context_of(&(dart_context_options){.log = hear, .log_user = &h, .log_level = (dart_log_level)level});
        const unsigned before = h.errors;
        assert_int_equal(dart_device_open(context, &(dart_device_options){.spec = "no such device"}, &device), DART_INVALID_ARGUMENT);
        assert_int_equal(h.errors, before + 1);
        assert_true(h.loudest <= (unsigned)level);
        dart_context_destroy(&context);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(lists_devices),
    cmocka_unit_test(refuses_bad_specs),
    cmocka_unit_test(chooses_by_index_name_and_uuid),
    cmocka_unit_test(prefers_real_gpus),
    cmocka_unit_test(opens_as_asked),
    cmocka_unit_test(keeps_compiled_code),
    cmocka_unit_test(warms_up),
    cmocka_unit_test(keeps_devices_apart),
    cmocka_unit_test(runs_several_streams),
    cmocka_unit_test(takes_null),
    cmocka_unit_test(logs_what_is_asked_for),
};
RIG_MAIN("unit_devices")
