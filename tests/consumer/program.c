/* What a stranger's program does first. */
#include <dartlm/dartlm.h>
#include <dartlm/model.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", DART_VERSION_MAJOR, DART_VERSION_MINOR, DART_VERSION_PATCH);
    if (strcmp(version, dart_version()) != 0) return 1;

    dart_context *context = NULL;
    dart_device *device = NULL;
    dart_buffer *buffer = NULL;
    dart_stream *stream = NULL;
    dart_model_config config;
    float got[4] = {0};
    const dart_device_options options = {.spec = "cpu"};
    dart_status status = dart_context_create(NULL, &context);
    if (status == DART_OK) status = dart_device_open(context, &options, &device);
    if (status == DART_OK) status = dart_buffer_create(device, sizeof got, &buffer);
    if (status == DART_OK) status = dart_stream_create(device, NULL, &stream);
    const dart_fill_args fill = {.T = 1, .W = 4, .value = 2.5f, .y = {.buffer = buffer}};
    if (status == DART_OK) status = dart_fill(stream, &fill);
    if (status == DART_OK) status = dart_stream_submit(stream);
    if (status == DART_OK) status = dart_stream_wait(stream, UINT64_MAX);
    if (status == DART_OK) status = dart_buffer_read(buffer, 0, got, sizeof got);
    dart_stream_destroy(&stream);
    dart_buffer_destroy(&buffer);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    if (status == DART_OK) status = dart_config_preset("dart-130m", &config);
    const bool right = got[0] == 2.5f && got[3] == 2.5f && dart_config_parameters(&config) == 132699072;
    printf("dartlm %s: %s\n", dart_version(), status == DART_OK && right ? "works" : dart_status_name(status));
    return status == DART_OK && right ? 0 : 1;
}
