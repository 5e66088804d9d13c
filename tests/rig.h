/* What tests of ops share: a device, a stream, and tensors that go with them. A call that should succeed and does not
 * fails the test with the library's text. */
#ifndef DARTLM_TESTS_RIG_H
#define DARTLM_TESTS_RIG_H

#include "dartlm/dartlm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RIG_MAX_BUFFERS = 128, RIG_MAX_LINES = 512, RIG_SKIPPED = 77 };

typedef struct rig {
    dart_context *context;
    dart_device *device;
    dart_stream *stream;
    dart_device_info info;
    dart_buffer *buffers[RIG_MAX_BUFFERS];
    uint32_t buffers_count;
    uint64_t random;
    char lines[RIG_MAX_LINES][160]; /* the trace since rig_begin */
    uint32_t lines_count;
} rig;

/* The device of a spec, poisoned, which stays open for the next test; or one of the rig's own, with options or while another rig has the first. */
void rig_open(rig *r, const char *spec);
void rig_open_with(rig *r, const dart_device_options *options);
/* Frees all that the test made; nothing may be left on the device. */
void rig_close(rig *r);

/* Packed, on the device. values NULL: what new memory holds. */
dart_tensor rig_tensor(rig *r, dart_dtype dtype, uint64_t count, const float *values);
/* Uniform in [low, high). */
dart_tensor rig_random(rig *r, dart_dtype dtype, uint64_t count, float low, float high);
dart_tensor rig_ints(rig *r, uint64_t count, const int32_t *values);
float rig_uniform(rig *r, float low, float high);
/* count uniform values, for free(). */
float *rig_values(rig *r, uint64_t count, float low, float high);
/* What the tensor holds, for free(). */
float *rig_read(const dart_tensor *tensor, uint64_t count);
void rig_write(const dart_tensor *tensor, uint64_t count, const float *values);

void rig_begin(rig *r);
/* Submits, waits, begins anew. */
void rig_run(rig *r);
void rig_must(rig *r, dart_status status, const char *what);
#define MUST(r, call) rig_must((r), (call), #call)

/* Relative L2 distance; infinite for NaN. */
double rig_distance(const float *got, const float *expected, uint64_t count);
void rig_close_to(const char *what, const float *got, const float *expected, uint64_t count, double tolerance);
void rig_same_bits(const char *what, const float *got, const float *expected, uint64_t count);

/* Runs the tests on the spec that the command line gives. A device that is not there is reported and skips them. */
int rig_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t count);
extern const char *rig_spec;
#define RIG_MAIN(name) \
    int main(int argc, char **argv) \
    { \
        return rig_main(argc, argv, name, tests, sizeof tests / sizeof tests[0]); \
    }

#endif
