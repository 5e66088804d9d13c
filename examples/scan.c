/* Tier 1: one op on one device. Four tokens, one head: with a_log = 0 and steps of 1 the state keeps 1 / e of
 * itself at every token: h_t = h_{t-1} / e + x_t, y_t = h_t. */
#include <dartlm/dartlm.h>

#include <stdio.h>

enum { L = 4, N = 1, P = 2 };

static dart_tensor tensor(dart_device *device, const float *values, size_t count)
{
    dart_tensor t = {.dtype = DART_F32};
    if (dart_buffer_create(device, count * sizeof(float), &t.buffer) == DART_OK && values != NULL)
        dart_buffer_write(t.buffer, 0, values, count * sizeof(float));
    return t;
}

int main(void)
{
    const float x[L * P] = {1, 2, 0, 0, 0, 0, 1, 1}, ones[L * N] = {1, 1, 1, 1}, zero[1] = {0};
    float y[L * P] = {0};
    char error[256] = "no context";
    dart_context *context = NULL;
    dart_device *device = NULL;
    dart_stream *stream = NULL;

    if (dart_context_create(NULL, &context) != DART_OK || dart_device_open(context, NULL, &device) != DART_OK) {
        dart_context_error(context, error, sizeof error);
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    dart_ssd_args args = {.B = 1,
                          .L = L,
                          .H = 1,
                          .G = 1,
                          .N = N,
                          .P = P,
                          .S = 2,
                          .dt_is_step = true,
                          .x = tensor(device, x, L * P),
                          .dt = tensor(device, ones, L),
                          .b = tensor(device, ones, L * N),
                          .c = tensor(device, ones, L * N),
                          .a_log = tensor(device, zero, 1),
                          .y = tensor(device, NULL, L * P)};
    dart_stream_create(device, NULL, &stream);
    dart_stream_begin(stream);
    dart_ssd(stream, &args);
    dart_stream_submit(stream);
    const dart_status status = dart_stream_wait(stream, UINT64_MAX); /* the first failure sticks */
    if (status == DART_OK) {
        dart_buffer_read(args.y.buffer, 0, y, sizeof y);
        for (int t = 0; t < L; t++) printf("y_%d = %.4f %.4f\n", t, (double)y[t * P], (double)y[t * P + 1]);
    } else {
        dart_stream_error(stream, error, sizeof error);
        fprintf(stderr, "%s: %s\n", dart_status_name(status), error);
    }

    dart_tensor *all[] = {&args.x, &args.dt, &args.b, &args.c, &args.a_log, &args.y};
    dart_stream_destroy(&stream);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) dart_buffer_destroy(&all[i]->buffer);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    return status == DART_OK ? 0 : 1;
}
