/* A variant that is wrong is found, and leaves what is needed to see why: unit_dump. */
#define _POSIX_C_SOURCE 200809L
#include "conform/conform.h"

#include "checkpoint/safetensors.h"
#include "runtime/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CASE "norm B1 L9 H1 G1 N1 P768 S1 f32"
enum { ROWS = 9, WIDTH = 768 };

static const backend *real;
static backend fake;

/* norm[plain] has another eps than it was asked for. */
static dart_status wrong_launch(void *device, void *stream, const backend_launch *launch)
{
    struct NormArgs args;
    backend_launch changed = *launch;
    if (launch->row->id == KERNEL_norm && strcmp(launch->row->variant, "plain") == 0) {
        memcpy(&args, launch->args, sizeof args);
        args.eps += 1;
        changed.args = &args;
        return real->stream_launch(device, stream, &changed);
    }
    return real->stream_launch(device, stream, launch);
}

static void make_wrong(dart_device *device)
{
    real = device->backend;
    fake = *real;
    fake.stream_launch = wrong_launch;
    device->backend = &fake;
}

static const double *values_of(const safetensors *file, const char *name, uint64_t rows)
{
    const safetensors_tensor *tensor = safetensors_find(file, name);
    if (tensor == NULL) fail_msg("no %s", name);
    assert_int_equal(tensor->dtype, SAFETENSORS_F64);
    assert_int_equal(tensor->rank, 2);
    assert_int_equal(tensor->shape[0], rows);
    assert_int_equal(tensor->shape[1], WIDTH);
    return tensor->data;
}

static void a_wrong_variant_is_dumped(void **unused)
{
    (void)unused;
    char folder[] = "unit_dump.XXXXXX", text[4096] = "", path[300];
    const char *const devices[] = {"cpu"};
    dart_context *context = NULL;
    base_report report;
    safetensors *file = NULL;
    FILE *out = tmpfile();
    assert_true(out != NULL && mkdtemp(folder) != NULL);
    assert_int_equal(base_report_init(&report, NULL), DART_OK);
    assert_int_equal(dart_context_create(&(dart_context_options){.without_vulkan = true, .without_cuda = true}, &context), DART_OK);
    const conform_options options = {.devices = devices, .devices_count = 1, .filter = CASE, .seed = 5, .dump = folder, .opened = make_wrong};
    assert_int_equal(conform_all(context, &options, out), 1);
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    if (strstr(text, "FAILED   plain") == NULL || strstr(text, "repeat with: dartlm conform --device 'cpu' --seed 5 --case '" CASE "'") == NULL)
        fail_msg("%s", text);
    snprintf(path, sizeof path, "%s/001_cpu_plain_norm_B1_L9_H1_G1_N1_P768_S1_f32.safetensors", folder);
    if (strstr(text, path) == NULL) fail_msg("%s", text);
    if (safetensors_open(path, &report, &file) != DART_OK) fail_msg("%s cannot be opened", path);
    const double *x = values_of(file, "input.01", ROWS), *weight = values_of(file, "input.02", 1);
    const double *expected = values_of(file, "expected.y", ROWS), *got = values_of(file, "got.y", ROWS);
    double worst = 0;
    for (int r = 0; r < ROWS; r++) {
        double squares = 0;
        for (int i = 0; i < WIDTH; i++) squares += x[r * WIDTH + i] * x[r * WIDTH + i];
        const double scale = 1 / sqrt(squares / WIDTH + 1e-5), wrong = 1 / sqrt(squares / WIDTH + 1 + 1e-5);
        for (int i = 0; i < WIDTH; i++) {
            const double y = x[r * WIDTH + i] * weight[i];
            worst = fmax(worst, fabs(y * scale - expected[r * WIDTH + i]));
            worst = fmax(worst, fabs(y * wrong - got[r * WIDTH + i]));
        }
    }
    if (!(worst < 1e-4)) fail_msg("the file's inputs do not give its results: %g", worst);
    safetensors_close(&file);
    dart_context_destroy(&context);
    base_report_destroy(&report);
    fclose(out);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_wrong_variant_is_dumped)};
    return cmocka_run_group_tests_name("unit_dump", tests, NULL, NULL);
}
