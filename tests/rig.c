#include "rig.h"

#include <math.h>

const char *rig_spec = "cpu";

static void keep_line(void *user, const char *line)
{
    rig *r = user;
    if (r->lines_count < RIG_MAX_LINES) snprintf(r->lines[r->lines_count++], sizeof r->lines[0], "%s", line);
}

void rig_must(rig *r, dart_status status, const char *what)
{
    char text[3][512] = {"", "", ""};
    if (status == DART_OK) return;
    dart_context_error(r->context, text[0], sizeof text[0]);
    dart_device_error(r->device, text[1], sizeof text[1]);
    dart_stream_error(r->stream, text[2], sizeof text[2]);
    fail_msg("%s: %s (context: %s; device: %s; stream: %s)", what, dart_status_name(status), text[0], text[1], text[2]);
}

/* The device of rig_open, open from test to test: drivers on the CPU take seconds for a pipeline. */
static struct {
    dart_context *context;
    dart_device *device;
    char spec[300];
    bool used; /* by a rig that is open, or by a test that failed */
} kept;

static void close_kept(void)
{
    if (kept.used) return;
    dart_device_destroy(&kept.device);
    dart_context_destroy(&kept.context);
}

static void begin_with(rig *r)
{
    MUST(r, dart_device_describe(r->device, &r->info));
    MUST(r, dart_stream_create(r->device, &(dart_stream_options){.trace = keep_line, .trace_user = r}, &r->stream));
}

void rig_open_with(rig *r, const dart_device_options *options)
{
    memset(r, 0, sizeof *r);
    r->random = 1;
    MUST(r, dart_context_create(&(dart_context_options){.with_null = true}, &r->context));
    MUST(r, dart_device_open(r->context, options, &r->device));
    begin_with(r);
}

void rig_open(rig *r, const char *spec)
{
    const dart_device_options options = {.spec = spec, .poison = true};
    if (kept.used) {
        rig_open_with(r, &options);
        return;
    }
    if (kept.device != NULL && strcmp(kept.spec, spec) != 0) close_kept();
    if (kept.device == NULL) {
        rig_open_with(r, &options);
        kept.context = r->context;
        kept.device = r->device;
        snprintf(kept.spec, sizeof kept.spec, "%s", spec);
    } else {
        memset(r, 0, sizeof *r);
        r->random = 1;
        r->context = kept.context;
        r->device = kept.device;
        begin_with(r);
    }
    kept.used = true;
}

void rig_close(rig *r)
{
    dart_stream_destroy(&r->stream);
    while (r->buffers_count > 0) dart_buffer_destroy(&r->buffers[--r->buffers_count]);
    assert_int_equal(dart_device_bytes(r->device), 0);
    if (r->device == kept.device) {
        kept.used = false;
        return;
    }
    dart_device_destroy(&r->device);
    dart_context_destroy(&r->context);
}

float rig_uniform(rig *r, float low, float high)
{
    uint64_t z = r->random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return low + (high - low) * ((float)((z ^ z >> 31) >> 40) * 0x1p-24f);
}

float *rig_values(rig *r, uint64_t count, float low, float high)
{
    float *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (uint64_t i = 0; i < count; i++) values[i] = rig_uniform(r, low, high);
    return values;
}

void rig_write(const dart_tensor *tensor, uint64_t count, const float *values)
{
    const uint64_t size = dart_dtype_size(tensor->dtype);
    void *stored = malloc((size_t)(count * size));
    assert_non_null(stored);
    dart_from_f32(tensor->dtype, stored, values, (size_t)count);
    assert_int_equal(dart_buffer_write(tensor->buffer, tensor->offset * size, stored, count * size), DART_OK);
    free(stored);
}

dart_tensor rig_tensor(rig *r, dart_dtype dtype, uint64_t count, const float *values)
{
    dart_tensor tensor = {.dtype = dtype};
    assert_true(r->buffers_count < RIG_MAX_BUFFERS);
    MUST(r, dart_buffer_create(r->device, count * dart_dtype_size(dtype), &tensor.buffer));
    r->buffers[r->buffers_count++] = tensor.buffer;
    if (values != NULL) rig_write(&tensor, count, values);
    return tensor;
}

dart_tensor rig_random(rig *r, dart_dtype dtype, uint64_t count, float low, float high)
{
    float *values = rig_values(r, count, low, high);
    const dart_tensor tensor = rig_tensor(r, dtype, count, values);
    free(values);
    return tensor;
}

dart_tensor rig_ints(rig *r, uint64_t count, const int32_t *values)
{
    const dart_tensor tensor = rig_tensor(r, DART_I32, count, NULL);
    if (values != NULL) MUST(r, dart_buffer_write(tensor.buffer, 0, values, count * sizeof *values));
    return tensor;
}

float *rig_read(const dart_tensor *tensor, uint64_t count)
{
    const uint64_t size = dart_dtype_size(tensor->dtype);
    void *stored = malloc((size_t)(count * size));
    float *values = malloc((size_t)count * sizeof *values);
    assert_true(stored != NULL && values != NULL);
    assert_int_equal(dart_buffer_read(tensor->buffer, tensor->offset * size, stored, count * size), DART_OK);
    dart_to_f32(tensor->dtype, values, stored, (size_t)count);
    free(stored);
    return values;
}

void rig_begin(rig *r)
{
    MUST(r, dart_stream_begin(r->stream));
    r->lines_count = 0;
}

void rig_run(rig *r)
{
    MUST(r, dart_stream_submit(r->stream));
    MUST(r, dart_stream_wait(r->stream, UINT64_MAX));
    rig_begin(r);
}

double rig_distance(const float *got, const float *expected, uint64_t count)
{
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < count; i++) {
        const double d = (double)got[i] - (double)expected[i];
        difference += d * d;
        norm += (double)expected[i] * (double)expected[i];
    }
    const double distance = sqrt(difference / norm);
    return distance < 1e30 ? distance : INFINITY;
}

void rig_close_to(const char *what, const float *got, const float *expected, uint64_t count, double tolerance)
{
    const double distance = rig_distance(got, expected, count);
    if (!(distance <= tolerance)) fail_msg("%s: relative L2 distance %.3e above %.1e", what, distance, tolerance);
}

void rig_same_bits(const char *what, const float *got, const float *expected, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (memcmp(&got[i], &expected[i], sizeof got[i]) != 0)
            fail_msg("%s: element %llu is %.9g, expected the bits of %.9g", what, (unsigned long long)i, (double)got[i], (double)expected[i]);
}

static bool device_is_there(const char *spec)
{
    char text[512];
    dart_context *context = NULL;
    dart_device *device = NULL;
    if (dart_context_create(&(dart_context_options){.with_null = true}, &context) != DART_OK) return true;
    const dart_status status = dart_device_open(context, &(dart_device_options){.spec = spec}, &device);
    dart_context_error(context, text, sizeof text);
    if (status == DART_UNSUPPORTED) printf("NOT RUN: %s\n", text);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    return status != DART_UNSUPPORTED;
}

int rig_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t count)
{
    if (argc > 2) {
        fprintf(stderr, "usage: %s [DEVICE_SPEC]\n", argv[0]);
        return 2;
    }
    if (argc == 2) rig_spec = argv[1];
    if (!device_is_there(rig_spec)) return RIG_SKIPPED;
    const int failed = _cmocka_run_group_tests(name, tests, count, NULL, NULL);
    close_kept();
    return failed;
}
