/* Buffers and semaphores that two devices see, by file descriptor: unit_shared SPEC [SPEC]. The first device exports, by default each to itself
 * opened again. */
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
    if (!can()) skip();
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

/* ---- Semaphores ---- */

static const char *const kinds[] = {"timeline", "binary"};

/* One that the first device makes, and what the second imports. False: the first device has none of the kind. */
static bool make_semaphore(bool binary, dart_semaphore **ours, dart_semaphore **theirs)
{
    int fd = -1;
    const dart_status status = dart_semaphore_create_shared(devices[0], binary, ours);
    if (status == DART_UNSUPPORTED) {
        char text[512];
        dart_device_error(devices[0], text, sizeof text);
        print_message("  not run: %s\n", text);
        assert_true(strlen(text) > 20);
        assert_null(*ours);
        return false;
    }
    must(devices[0], status, "dart_semaphore_create_shared");
    must(devices[0], dart_semaphore_export(*ours, &fd), "dart_semaphore_export");
    assert_true(fd >= 0);
    must(devices[1], dart_semaphore_import(devices[1], fd, binary, theirs), "dart_semaphore_import");
    return true;
}

/* Many launches, so that who does not wait for them sees an earlier value. */
static dart_status fill_often(dart_stream *stream, dart_buffer *buffer, float last)
{
    enum { OFTEN = 300 };
    const dart_tensor y = {.buffer = buffer, .dtype = DART_F32};
    dart_status status = DART_OK;
    for (int i = OFTEN - 1; i >= 0 && status == DART_OK; i--)
        status = dart_fill(stream, &(dart_fill_args){.T = T, .W = W, .value = last + (float)i, .y = y});
    return status;
}

static void must_hold(dart_buffer *buffer, dart_device *device, float value)
{
    static float got[NUMBERS];
    must(device, dart_buffer_read(buffer, 0, got, BYTES), "read");
    for (int i = 0; i < NUMBERS; i++)
        if (got[i] != value) fail_msg("element %d is %g, not %g", i, (double)got[i], (double)value);
}

/* The first device fills the buffer, the second copies what it holds, the first fills it anew: nobody waits on the host in between, and a timeline's
 * second comes first. Once more, so that binary semaphores are used again. */
static void orders(bool binary)
{
    dart_semaphore *forth[2] = {NULL, NULL}, *back[2] = {NULL, NULL};
    dart_buffer *ours = NULL, *theirs = NULL, *copied = NULL;
    dart_stream *first = NULL, *second = NULL, *again = NULL;
    int fd = -1;
    uint64_t allocated = 0;
    if (!make_semaphore(binary, &forth[0], &forth[1])) skip();
    assert_true(make_semaphore(binary, &back[0], &back[1]));
    must(devices[0], dart_buffer_create_shared(devices[0], BYTES, &ours), "dart_buffer_create_shared");
    must(devices[0], dart_buffer_export(ours, &fd, &allocated), "dart_buffer_export");
    must(devices[1], dart_buffer_import(devices[1], fd, allocated, BYTES, &theirs), "dart_buffer_import");
    must(devices[1], dart_buffer_create(devices[1], BYTES, &copied), "dart_buffer_create");
    must(devices[0], dart_stream_create(devices[0], NULL, &first), "dart_stream_create");
    must(devices[0], dart_stream_create(devices[0], NULL, &again), "dart_stream_create");
    must(devices[1], dart_stream_create(devices[1], NULL, &second), "dart_stream_create");
    for (int round = 0; round < 2; round++) {
        const float value = 10000.0f * (float)(round + 1);
        const uint64_t step = (uint64_t)round + 1;
        const dart_semaphore_value signal_forth = {forth[0], step}, wait_forth = {forth[1], step};
        const dart_semaphore_value signal_back = {back[1], step}, wait_back = {back[0], step};
        const dart_submit_args fills = {.signals = &signal_forth, .signals_count = 1};
        const dart_submit_args copies = {.waits = &wait_forth, .waits_count = 1, .signals = &signal_back, .signals_count = 1};
        const dart_submit_args refills = {.waits = &wait_back, .waits_count = 1};
        must(devices[0], dart_stream_begin(first), "begin");
        must(devices[0], fill_often(first, ours, value), "fill");
        must(devices[1], dart_stream_begin(second), "begin");
        must(devices[1], dart_convert(second, &(dart_convert_args){.T = T, .W = W, .x = {.buffer = theirs}, .y = {.buffer = copied}}), "copy");
        must(devices[0], dart_stream_begin(again), "begin");
        must(devices[0], fill_often(again, ours, -value), "fill");
        if (!binary) {
            must(devices[1], dart_stream_submit_ordered(second, &copies), "submit");
            assert_int_equal(dart_stream_wait(second, 20000000), DART_TIMEOUT);
        }
        must(devices[0], dart_stream_submit_ordered(first, &fills), "submit");
        if (binary) must(devices[1], dart_stream_submit_ordered(second, &copies), "submit");
        must(devices[0], dart_stream_submit_ordered(again, &refills), "submit");
        must(devices[0], dart_stream_wait(again, UINT64_MAX), "wait");
        must(devices[0], dart_stream_wait(first, UINT64_MAX), "wait");
        must(devices[1], dart_stream_wait(second, UINT64_MAX), "wait");
        must_hold(copied, devices[1], value);
        must_hold(ours, devices[0], -value);
    }
    dart_stream_destroy(&first);
    dart_stream_destroy(&again);
    dart_stream_destroy(&second);
    dart_buffer_destroy(&copied);
    dart_buffer_destroy(&theirs);
    dart_buffer_destroy(&ours);
    for (int i = 0; i < 2; i++) {
        dart_semaphore_destroy(&forth[i]);
        dart_semaphore_destroy(&back[i]);
    }
    print_message("  %s semaphores order two devices\n", kinds[binary]);
}
static void timelines_order(void **unused)
{
    (void)unused;
    orders(false);
}
static void binary_semaphores_order(void **unused)
{
    (void)unused;
    orders(true);
}

/* Nothing is waited for, and the stream can be used as before. */
static void must_refuse(dart_stream *stream, const dart_submit_args *args)
{
    assert_int_equal(dart_stream_submit_ordered(stream, args), DART_INVALID_ARGUMENT);
}

static void semaphores_refuse(void **unused)
{
    (void)unused;
    dart_semaphore *semaphore = NULL, *other = NULL;
    dart_stream *stream = NULL, *warm = NULL;
    int fd = -1;
    assert_int_equal(dart_semaphore_create_shared(NULL, false, &semaphore), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_semaphore_create_shared(devices[0], false, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_semaphore_export(NULL, &fd), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_semaphore_import(NULL, 0, false, &semaphore), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_semaphore_import(devices[1], -1, false, &semaphore), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_submit_ordered(NULL, &(dart_submit_args){0}), DART_INVALID_ARGUMENT);
    dart_semaphore_destroy(NULL);
    dart_semaphore_destroy(&semaphore);
    must(devices[0], dart_stream_create(devices[0], NULL, &stream), "dart_stream_create");
    must(devices[0], dart_stream_create(devices[0], &(dart_stream_options){.warm = true}, &warm), "dart_stream_create");
    must_refuse(stream, NULL);
    must_refuse(stream, &(dart_submit_args){.waits_count = 1});
    must_refuse(stream, &(dart_submit_args){.signals = &(dart_semaphore_value){NULL, 1}, .signals_count = 1});
    must_refuse(warm, &(dart_submit_args){0});
    for (int binary = 0; binary < 2; binary++) {
        if (!make_semaphore(binary, &semaphore, &other)) continue;
        static dart_semaphore_value many[65];
        for (int i = 0; i < 65; i++) many[i] = (dart_semaphore_value){semaphore, 1};
        must_refuse(stream, &(dart_submit_args){.waits = many, .waits_count = 65});
        must_refuse(stream, &(dart_submit_args){.signals = &(dart_semaphore_value){other, 1}, .signals_count = 1}); /* of the other device */
        if (!binary) must_refuse(stream, &(dart_submit_args){.signals = &(dart_semaphore_value){semaphore, 0}, .signals_count = 1});
        assert_int_equal(dart_semaphore_export(semaphore, NULL), DART_INVALID_ARGUMENT);
        assert_int_equal(dart_semaphore_export(other, &fd), DART_INVALID_ARGUMENT);
        dart_semaphore_destroy(&other);
        dart_semaphore_destroy(&semaphore);
    }
    /* Without any it is dart_stream_submit. */
    must(devices[0], dart_stream_submit_ordered(stream, &(dart_submit_args){0}), "submit");
    must(devices[0], dart_stream_wait(stream, UINT64_MAX), "wait");
    dart_stream_destroy(&stream);
    dart_stream_destroy(&warm);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_see_it), cmocka_unit_test(refuses), cmocka_unit_test(timelines_order),
                                       cmocka_unit_test(binary_semaphores_order), cmocka_unit_test(semaphores_refuse)};
    if (argc < 2) {
        fprintf(stderr, "usage: %s SPEC [SPEC]\n", argv[0]);
        return 2;
    }
    specs[0] = argv[1];
    specs[1] = argv[argc > 2 ? 2 : 1];
    return cmocka_run_group_tests_name("unit_shared", tests, open_devices, close_devices);
}
