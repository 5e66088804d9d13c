/* Memory and semaphores that dartlm and OpenGL share: unit_opengl SPEC. OpenGL is found at run time, through EGL without a window, on the device with
 * the UUID of SPEC's; where there is none with GL_EXT_memory_object_fd, the test is skipped and says why. */
#define _POSIX_C_SOURCE 200809L
#include "dartlm/dartlm.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* MARGIN: Mesa's llvmpipe wants memory to be somewhat longer than OpenGL's buffer in it. */
enum { T = 100, W = 40, NUMBERS = T * W, BYTES = NUMBERS * sizeof(float), MARGIN = 256, SKIPPED = 77 };

/* ---- As much of EGL and OpenGL as is used, so that the build needs no headers of theirs ---- */

enum {
    EGL_OPENGL_API = 0x30A2, EGL_PLATFORM_DEVICE_EXT = 0x313F, EGL_MOST_DEVICES = 16,
    GL_NO_ERROR = 0, GL_VENDOR = 0x1F00, GL_RENDERER = 0x1F01, GL_VERSION = 0x1F02, GL_EXTENSIONS = 0x1F03, GL_NUM_EXTENSIONS = 0x821D,
    GL_COPY_READ_BUFFER = 0x8F36, GL_COPY_WRITE_BUFFER = 0x8F37, GL_STATIC_COPY = 0x88E6, GL_HANDLE_TYPE_OPAQUE_FD_EXT = 0x9586,
    GL_NUM_DEVICE_UUIDS_EXT = 0x9596, GL_DEVICE_UUID_EXT = 0x9597
};
/* Member, parameters. */
#define EGL_FUNCTIONS(X) \
    X(void *, eglGetProcAddress, (const char *name)) \
    X(unsigned, eglInitialize, (void *display, int *major, int *minor)) \
    X(unsigned, eglTerminate, (void *display)) \
    X(unsigned, eglBindAPI, (unsigned api)) \
    X(void *, eglCreateContext, (void *display, void *config, void *shared, const int *attributes)) \
    X(unsigned, eglDestroyContext, (void *display, void *context)) \
    X(unsigned, eglMakeCurrent, (void *display, void *draw, void *read, void *context))
/* Found by eglGetProcAddress, those of EGL before there is a context. */
#define EGL_MORE_FUNCTIONS(X) \
    X(unsigned, eglQueryDevicesEXT, (int room, void **devices, int *count)) \
    X(void *, eglGetPlatformDisplayEXT, (unsigned platform, void *device, const int *attributes))
#define GL_FUNCTIONS(X) \
    X(const unsigned char *, glGetString, (unsigned name)) \
    X(const unsigned char *, glGetStringi, (unsigned name, unsigned index)) \
    X(void, glGetIntegerv, (unsigned name, int *value)) \
    X(unsigned, glGetError, (void)) \
    X(void, glFinish, (void)) \
    X(void, glFlush, (void)) \
    X(void, glGenBuffers, (int count, unsigned *buffers)) \
    X(void, glDeleteBuffers, (int count, const unsigned *buffers)) \
    X(void, glBindBuffer, (unsigned target, unsigned buffer)) \
    X(void, glBufferData, (unsigned target, ptrdiff_t bytes, const void *data, unsigned usage)) \
    X(void, glBufferSubData, (unsigned target, ptrdiff_t offset, ptrdiff_t bytes, const void *data)) \
    X(void, glGetBufferSubData, (unsigned target, ptrdiff_t offset, ptrdiff_t bytes, void *data)) \
    X(void, glCopyBufferSubData, (unsigned from, unsigned to, ptrdiff_t from_at, ptrdiff_t to_at, ptrdiff_t bytes)) \
    X(void, glGetUnsignedBytei_vEXT, (unsigned name, unsigned index, unsigned char *bytes)) \
    X(void, glCreateMemoryObjectsEXT, (int count, unsigned *objects)) \
    X(void, glDeleteMemoryObjectsEXT, (int count, const unsigned *objects)) \
    X(void, glImportMemoryFdEXT, (unsigned memory, uint64_t bytes, unsigned type, int fd)) \
    X(void, glBufferStorageMemEXT, (unsigned target, ptrdiff_t bytes, unsigned memory, uint64_t offset))
#define GL_SEMAPHORE_FUNCTIONS(X) \
    X(void, glGenSemaphoresEXT, (int count, unsigned *semaphores)) \
    X(void, glDeleteSemaphoresEXT, (int count, const unsigned *semaphores)) \
    X(void, glImportSemaphoreFdEXT, (unsigned semaphore, unsigned type, int fd)) \
    X(void, glWaitSemaphoreEXT, (unsigned semaphore, unsigned buffers_count, const unsigned *buffers, unsigned textures_count, \
                                 const unsigned *textures, const unsigned *layouts)) \
    X(void, glSignalSemaphoreEXT, (unsigned semaphore, unsigned buffers_count, const unsigned *buffers, unsigned textures_count, \
                                   const unsigned *textures, const unsigned *layouts))
static struct gl {
#define MEMBER(result, name, parameters) result (*name) parameters; /* NOLINT(bugprone-macro-parentheses): a declaration */
    EGL_FUNCTIONS(MEMBER)
    EGL_MORE_FUNCTIONS(MEMBER)
    GL_FUNCTIONS(MEMBER)
    GL_SEMAPHORE_FUNCTIONS(MEMBER)
    void *display, *context;
    bool semaphores;
} gl;

static const char *spec;
static dart_context *context;
static dart_device *device;

static void must(dart_status status, const char *what)
{
    char text[512] = "";
    if (status == DART_OK) return;
    dart_device_error(device, text, sizeof text);
    fail_msg("%s: %s (%s)", what, dart_status_name(status), text);
}
static void must_gl(const char *what)
{
    const unsigned error = gl.glGetError();
    if (error != GL_NO_ERROR) fail_msg("%s: OpenGL's error 0x%x", what, error);
}

/* ---- Finding OpenGL ---- */

static bool has_extension(const char *name)
{
    int count = 0;
    gl.glGetIntegerv(GL_NUM_EXTENSIONS, &count);
    for (int i = 0; i < count; i++)
        if (strcmp((const char *)gl.glGetStringi(GL_EXTENSIONS, (unsigned)i), name) == 0) return true;
    return false;
}

static void close_display(void)
{
    if (gl.context != NULL) {
        gl.eglMakeCurrent(gl.display, NULL, NULL, NULL);
        gl.eglDestroyContext(gl.display, gl.context);
    }
    if (gl.display != NULL) gl.eglTerminate(gl.display);
    gl.display = gl.context = NULL;
}

/* A current context on the EGL device, if that is `uuid`; else the reason. */
static const char *try_device(void *egl_device, const uint8_t uuid[16])
{
    static const int attributes[] = {0x3098, 4, 0x30FB, 4, 0x3038}; /* version 4.4 */
    static char text[256];
    gl.display = gl.eglGetPlatformDisplayEXT(EGL_PLATFORM_DEVICE_EXT, egl_device, NULL);
    if (gl.display == NULL) return "no display";
    if (!gl.eglInitialize(gl.display, NULL, NULL) || !gl.eglBindAPI(EGL_OPENGL_API)) return "EGL does not start, or knows no OpenGL";
    gl.context = gl.eglCreateContext(gl.display, NULL, NULL, attributes);
    if (gl.context == NULL || !gl.eglMakeCurrent(gl.display, NULL, NULL, gl.context)) return "no context of OpenGL 4.4 without a window";
#define FIND(result, name, parameters) \
    *(void **)&gl.name = gl.eglGetProcAddress(#name); \
    if (gl.name == NULL) return "no " #name;
    GL_FUNCTIONS(FIND)
    if (!has_extension("GL_EXT_memory_object_fd")) {
        snprintf(text, sizeof text, "%s, %s: no GL_EXT_memory_object_fd", (const char *)gl.glGetString(GL_RENDERER),
                 (const char *)gl.glGetString(GL_VERSION));
        return text;
    }
    unsigned char found[16] = {0};
    gl.glGetUnsignedBytei_vEXT(GL_DEVICE_UUID_EXT, 0, found);
    if (memcmp(found, uuid, sizeof found) != 0) {
        snprintf(text, sizeof text, "%s, %s: another device than %s, or another version of its driver", (const char *)gl.glGetString(GL_RENDERER),
                 (const char *)gl.glGetString(GL_VERSION), spec);
        return text;
    }
    print_message("OpenGL: %s, %s\n", (const char *)gl.glGetString(GL_RENDERER), (const char *)gl.glGetString(GL_VERSION));
    gl.semaphores = has_extension("GL_EXT_semaphore_fd");
    if (!gl.semaphores) return NULL;
    GL_SEMAPHORE_FUNCTIONS(FIND)
#undef FIND
    return NULL;
}

/* NULL, or why not. */
static const char *open_gl(const uint8_t uuid[16])
{
    void *devices[EGL_MOST_DEVICES];
    int count = 0;
    const char *why = "EGL lists no devices";
    void *library = dlopen("libEGL.so.1", RTLD_NOW);
    if (library == NULL) return "there is no libEGL.so.1";
#define FIND(result, name, parameters) \
    *(void **)&gl.name = dlsym(library, #name); \
    if (gl.name == NULL) return "libEGL.so.1 has no " #name;
    EGL_FUNCTIONS(FIND)
#undef FIND
#define FIND(result, name, parameters) \
    *(void **)&gl.name = gl.eglGetProcAddress(#name); \
    if (gl.name == NULL) return "EGL has no " #name;
    EGL_MORE_FUNCTIONS(FIND)
#undef FIND
    if (!gl.eglQueryDevicesEXT(EGL_MOST_DEVICES, devices, &count)) count = 0;
    for (int i = 0; i < count; i++) {
        why = try_device(devices[i], uuid);
        if (why == NULL) return NULL;
        print_message("EGL device %d: %s\n", i, why);
        close_display();
    }
    return why;
}

/* ---- What is shared ---- */

typedef struct shared {
    dart_buffer *ours;
    unsigned memory, theirs;
} shared;

static void share(shared *s)
{
    int fd = -1;
    uint64_t allocated = 0;
    must(dart_buffer_create_shared(device, BYTES + MARGIN, &s->ours), "dart_buffer_create_shared");
    must(dart_buffer_export(s->ours, &fd, &allocated), "dart_buffer_export");
    gl.glCreateMemoryObjectsEXT(1, &s->memory);
    gl.glImportMemoryFdEXT(s->memory, allocated, GL_HANDLE_TYPE_OPAQUE_FD_EXT, fd); /* takes fd */
    must_gl("glImportMemoryFdEXT");
    gl.glGenBuffers(1, &s->theirs);
    gl.glBindBuffer(GL_COPY_WRITE_BUFFER, s->theirs);
    gl.glBufferStorageMemEXT(GL_COPY_WRITE_BUFFER, BYTES, s->memory, 0);
    must_gl("glBufferStorageMemEXT");
}

static void release(shared *s)
{
    gl.glDeleteBuffers(1, &s->theirs);
    gl.glDeleteMemoryObjectsEXT(1, &s->memory);
    gl.glFinish();
    dart_buffer_destroy(&s->ours);
}

static void fill(dart_stream *stream, const shared *s, float value)
{
    enum { OFTEN = 300 }; /* so that who does not wait sees an earlier value */
    must(dart_stream_begin(stream), "begin");
    for (int i = OFTEN - 1; i >= 0; i--)
        must(dart_fill(stream, &(dart_fill_args){.T = T, .W = W, .value = value + (float)i, .y = {.buffer = s->ours}}), "fill");
}

static void must_be(const char *what, const float *got, float value)
{
    for (int i = 0; i < NUMBERS; i++)
        if (got[i] != value) fail_msg("%s: element %d is %g, not %g", what, i, (double)got[i], (double)value);
}

static void both_see_memory(void **unused)
{
    (void)unused;
    static float sent[NUMBERS], got[NUMBERS];
    shared s = {0};
    dart_stream *stream = NULL;
    share(&s);
    must(dart_stream_create(device, NULL, &stream), "dart_stream_create");
    fill(stream, &s, 5);
    must(dart_stream_submit(stream), "submit");
    must(dart_stream_wait(stream, UINT64_MAX), "wait");
    gl.glGetBufferSubData(GL_COPY_WRITE_BUFFER, 0, BYTES, got);
    must_gl("glGetBufferSubData");
    must_be("dartlm to OpenGL", got, 5);
    for (int i = 0; i < NUMBERS; i++) sent[i] = (float)i;
    gl.glBufferSubData(GL_COPY_WRITE_BUFFER, 0, BYTES, sent);
    gl.glFinish();
    must_gl("glBufferSubData");
    must(dart_buffer_read(s.ours, 0, got, BYTES), "read");
    assert_memory_equal(got, sent, BYTES);
    dart_stream_destroy(&stream);
    release(&s);
}

static unsigned share_semaphore(dart_semaphore **ours)
{
    unsigned theirs = 0;
    int fd = -1;
    must(dart_semaphore_create_shared(device, true, ours), "dart_semaphore_create_shared");
    must(dart_semaphore_export(*ours, &fd), "dart_semaphore_export");
    gl.glGenSemaphoresEXT(1, &theirs);
    gl.glImportSemaphoreFdEXT(theirs, GL_HANDLE_TYPE_OPAQUE_FD_EXT, fd); /* takes fd */
    must_gl("glImportSemaphoreFdEXT");
    return theirs;
}

/* dartlm fills, OpenGL copies what is there, dartlm fills anew, without the host waiting in between. */
static void semaphores_order(void **unused)
{
    (void)unused;
    static float got[NUMBERS];
    shared s = {0};
    dart_stream *first = NULL, *second = NULL;
    dart_semaphore *forth = NULL, *back = NULL, *none = NULL;
    const dart_status status = dart_semaphore_create_shared(device, true, &none);
    if (status == DART_UNSUPPORTED || !gl.semaphores) {
        char text[512];
        dart_device_error(device, text, sizeof text);
        print_message("  not run: %s\n", gl.semaphores ? text : "OpenGL has no GL_EXT_semaphore_fd");
        dart_semaphore_destroy(&none);
        skip();
    }
    must(status, "dart_semaphore_create_shared");
    dart_semaphore_destroy(&none);
    share(&s);
    unsigned copied = 0;
    gl.glGenBuffers(1, &copied);
    gl.glBindBuffer(GL_COPY_READ_BUFFER, copied);
    gl.glBufferData(GL_COPY_READ_BUFFER, BYTES, NULL, GL_STATIC_COPY);
    const unsigned wait = share_semaphore(&forth), signal = share_semaphore(&back);
    must(dart_stream_create(device, NULL, &first), "dart_stream_create");
    must(dart_stream_create(device, NULL, &second), "dart_stream_create");
    for (int round = 1; round <= 2; round++) {
        const float value = 10000.0f * (float)round;
        fill(first, &s, value);
        fill(second, &s, -value);
        const dart_submit_args signals = {.signals = &(dart_semaphore_value){.semaphore = forth}, .signals_count = 1};
        const dart_submit_args waits = {.waits = &(dart_semaphore_value){.semaphore = back}, .waits_count = 1};
        must(dart_stream_submit_ordered(first, &signals), "submit");
        gl.glWaitSemaphoreEXT(wait, 1, &s.theirs, 0, NULL, NULL);
        gl.glCopyBufferSubData(GL_COPY_WRITE_BUFFER, GL_COPY_READ_BUFFER, 0, 0, BYTES);
        gl.glSignalSemaphoreEXT(signal, 1, &s.theirs, 0, NULL, NULL);
        gl.glFlush();
        must_gl("copying between two semaphores");
        must(dart_stream_submit_ordered(second, &waits), "submit");
        must(dart_stream_wait(second, UINT64_MAX), "wait");
        must(dart_stream_wait(first, UINT64_MAX), "wait");
        gl.glGetBufferSubData(GL_COPY_READ_BUFFER, 0, BYTES, got);
        must_be("what OpenGL copied", got, value);
        must(dart_buffer_read(s.ours, 0, got, BYTES), "read");
        must_be("what dartlm filled behind it", got, -value);
    }
    gl.glDeleteSemaphoresEXT(1, &wait);
    gl.glDeleteSemaphoresEXT(1, &signal);
    gl.glDeleteBuffers(1, &copied);
    dart_stream_destroy(&first);
    dart_stream_destroy(&second);
    dart_semaphore_destroy(&forth);
    dart_semaphore_destroy(&back);
    release(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_see_memory), cmocka_unit_test(semaphores_order)};
    dart_device_info info;
    dart_buffer *buffer = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: %s SPEC\n", argv[0]);
        return 2;
    }
    spec = argv[1];
    if (dart_context_create(NULL, &context) != DART_OK || dart_device_open(context, &(dart_device_options){.spec = spec}, &device) != DART_OK) {
        printf("NOT RUN: no device %s\n", spec);
        dart_context_destroy(&context);
        return SKIPPED;
    }
    dart_device_describe(device, &info);
    const char *why = dart_buffer_create_shared(device, BYTES, &buffer) == DART_OK ? open_gl(info.uuid) : "the device shares no memory";
    dart_buffer_destroy(&buffer);
    const int result = why == NULL ? cmocka_run_group_tests_name("unit_opengl", tests, NULL, NULL) : SKIPPED;
    if (why != NULL) printf("NOT RUN: no OpenGL on %s: %s\n", info.name, why);
    close_display();
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    return result;
}
