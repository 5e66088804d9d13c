/* Buffers that two devices see, by file descriptor: unit_shared SPEC [SPEC]. The first device exports, by default each to itself opened again. */
#define _POSIX_C_SOURCE 200809L
#include "dartlm/dartlm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { T = 100, W = 40, NUMBERS = T * W, BYTES = NUMBERS * sizeof(float) };

static const char *specs[2];
static dart_context *contexts[2];
static dart_device *devices[2];

static void must(dart_device *device, dart_status status, const char *what)
{
    char text[512] = "";
    if (status == DART_OK) return;
    dart_device_error(device, text, sizeof text);
    fail_msg("%s: %s (%s)", what, dart_status_name(status), text);
}

static int open_devices(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        if (dart_context_create(&(dart_context_options){.with_null = true}, &contexts[i]) != DART_OK) return -1;
        if (dart_device_open(contexts[i], &(dart_device_options){.spec = specs[i]}, &devices[i]) != DART_OK) return -1;
    }
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        bytes += dart_device_bytes(devices[i]);
        dart_device_destroy(&devices[i]);
        dart_context_destroy(&contexts[i]);
    }
    return bytes != 0 ? -1 : 0;
}

static bool can(void)
{
    dart_buffer *buffer = NULL;
    const dart_status status = dart_buffer_create_shared(devices[0], BYTES, &buffer);
    assert_true(status == DART_OK || status == DART_UNSUPPORTED);
    assert_true((status == DART_OK) == (buffer != NULL));
    dart_buffer_destroy(&buffer);
    if (status == DART_UNSUPPORTED) {
        char text[512];
        dart_device_error(devices[0], text, sizeof text);
        print_message("  not run: %s\n", text);
        assert_true(strlen(text) > 20);
    }
    return status == DART_OK;
}

/* What one device writes, by copies and by a kernel, the other reads, in both directions; whoever goes first. */
static void both_see_it(void **unused)
{
    (void)unused;
    static float sent[NUMBERS], got[NUMBERS];
    if (!can()) return;
    for (int first = 0; first < 2; first++) {
        dart_buffer *ours = NULL, *theirs = NULL;
        int fd = -1;
        uint64_t allocated = 0;
        for (int i = 0; i < NUMBERS; i++) sent[i] = (float)(i + first);
        must(devices[0], dart_buffer_create_shared(devices[0], BYTES, &ours), "dart_buffer_create_shared");
        must(devices[0], dart_buffer_export(ours, &fd, &allocated), "dart_buffer_export");
        assert_true(fd >= 0 && allocated >= BYTES);
        must(devices[1], dart_buffer_import(devices[1], fd, allocated, BYTES, &theirs), "dart_buffer_import");
        assert_int_equal(dart_buffer_bytes(theirs), BYTES);
        assert_int_equal(dart_device_bytes(devices[1]), 0);
        must(devices[0], dart_buffer_write(ours, 0, sent, BYTES), "write");
        must(devices[1], dart_buffer_read(theirs, 0, got, BYTES), "read");
        assert_memory_equal(got, sent, BYTES);
        /* A kernel of the other device makes zeros of the first rows. */
        dart_stream *stream = NULL;
        must(devices[1], dart_stream_create(devices[1], NULL, &stream), "dart_stream_create");
        const dart_tensor y = {.buffer = theirs, .dtype = DART_F32};
        dart_fill(stream, &(dart_fill_args){.T = T / 2, .W = W, .y = y});
        must(devices[1], dart_stream_submit(stream), "submit");
        must(devices[1], dart_stream_wait(stream, UINT64_MAX), "wait");
        dart_stream_destroy(&stream);
        must(devices[0], dart_buffer_read(ours, 0, got, BYTES), "read");
        for (int i = 0; i < NUMBERS; i++) assert_true(got[i] == (i < T / 2 * W ? 0 : sent[i]));
        /* The memory lives as long as someone has it. */
        dart_buffer_destroy(first == 0 ? &ours : &theirs);
        dart_buffer *left = first == 0 ? theirs : ours;
        must(devices[first == 0], dart_buffer_write(left, 0, sent, BYTES), "write");
        must(devices[first == 0], dart_buffer_read(left, 0, got, BYTES), "read");
        assert_memory_equal(got, sent, BYTES);
        dart_buffer_destroy(&left);
    }
}

static void refuses(void **unused)
{
    (void)unused;
    dart_buffer *buffer = NULL, *plain = NULL, *shared = NULL;
    int fd = -1;
    uint64_t allocated = 0;
    must(devices[0], dart_buffer_create(devices[0], BYTES, &plain), "dart_buffer_create");
    assert_int_equal(dart_buffer_create_shared(NULL, BYTES, &buffer), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_create_shared(devices[0], 0, &buffer), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_create_shared(devices[0], BYTES, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_export(NULL, &fd, &allocated), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_export(plain, &fd, &allocated), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_import(devices[0], -1, BYTES, BYTES, &buffer), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_import(devices[0], 0, BYTES, BYTES + 1, &buffer), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_buffer_import(devices[0], 0, BYTES, 0, &buffer), DART_INVALID_ARGUMENT);
    if (can()) {
        must(devices[0], dart_buffer_create_shared(devices[0], BYTES, &shared), "dart_buffer_create_shared");
        assert_int_equal(dart_buffer_export(shared, NULL, &allocated), DART_INVALID_ARGUMENT);
        must(devices[0], dart_buffer_export(shared, &fd, &allocated), "dart_buffer_export");
        /* Other bytes than were exported. */
        assert_int_equal(dart_buffer_import(devices[0], fd, allocated + (1 << 20), BYTES, &buffer), DART_INVALID_ARGUMENT);
        assert_int_equal(close(fd), 0); /* it was not taken */
        dart_buffer_destroy(&shared);
    }
    assert_null(buffer);
    dart_buffer_destroy(&plain);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_see_it), cmocka_unit_test(refuses)};
    if (argc < 2) {
        fprintf(stderr, "usage: %s SPEC [SPEC]\n", argv[0]);
        return 2;
    }
    specs[0] = argv[1];
    specs[1] = argv[argc > 2 ? 2 : 1];
    return cmocka_run_group_tests_name("unit_shared", tests, open_devices, close_devices);
}
