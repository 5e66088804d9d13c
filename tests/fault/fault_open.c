/* Devices of the tests' driver (driver.c): which queue they get; every call that fails once while one is opened with the validation layer and
 * matrices; and host memory that runs out at every place of what dartlm/vulkan.h and descriptors need. Nothing leaks, nothing of the host's is
 * destroyed. The build wraps malloc, calloc, realloc and free of this program at link time (--wrap). */
#include "driver.h"

#include "rig.h"

#include "base/base.h"
#include "base/file.h"

#include "dartlm/vulkan.h"

enum { BYTES = 4096 };

/* ---- Memory ---- */

static struct memory {
    bool counts;    /* of the library, and not of others */
    uint32_t in;    /* calls until the one that fails; 0: none does */
    bool failed;
    int64_t taken;  /* pieces that are allocated */
} memory;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *piece, size_t size);
void __real_free(void *piece);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *piece, size_t size);
void __wrap_free(void *piece);

static bool runs_out(void)
{
    if (!memory.counts || memory.in == 0 || --memory.in > 0) return false;
    memory.failed = true;
    return true;
}
static void *took(void *piece)
{
    memory.taken += memory.counts && piece != NULL;
    return piece;
}
void *__wrap_malloc(size_t size) { return runs_out() ? NULL : took(__real_malloc(size)); }
void *__wrap_calloc(size_t count, size_t size) { return runs_out() ? NULL : took(__real_calloc(count, size)); }
void *__wrap_realloc(void *piece, size_t size)
{
    if (runs_out()) return NULL;
    return piece == NULL ? took(__real_realloc(piece, size)) : __real_realloc(piece, size);
}
void __wrap_free(void *piece)
{
    memory.taken -= memory.counts && piece != NULL;
    __real_free(piece);
}

/* ---- Queues ---- */

static void queues_beside_frames_are_found(void **unused)
{
    (void)unused;
    static const struct {
        bool discrete;
        uint32_t graphics; /* driver_options.graphics_family */
        uint32_t usual, separate; /* the family without and with separate_queue; UINT32_MAX: refused */
    } cases[] = {
        {false, 0, 0, 0},  /* one family, without graphics */
        {false, 1, 0, 1}, {true, 1, 1, 1},
        {false, 2, 0, 0}, {true, 2, 0, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (int asked = 0; asked < 2; asked++) {
            dart_context *context = NULL;
            dart_device *device = NULL;
            dart_device_info info;
            const uint32_t expected = asked ? cases[i].separate : cases[i].usual;
            driver_set(&(driver_options){.discrete = cases[i].discrete, .graphics_family = cases[i].graphics});
            assert_int_equal(dart_context_create(&(dart_context_options){.without_cuda = true}, &context), DART_OK);
            assert_int_equal(dart_context_device_info(context, 0, &info), DART_OK);
            assert_int_equal(info.separate_queue, cases[i].usual == cases[i].separate);
            assert_int_equal(dart_device_open(context, &(dart_device_options){.spec = "vulkan", .separate_queue = asked}, &device), DART_OK);
            assert_int_equal(driver_family(), expected);
            dart_device_describe(device, &info);
            assert_int_equal(info.separate_queue, expected == cases[i].separate);
            dart_device_destroy(&device);
            dart_context_destroy(&context);
        }
}

static void without_such_a_queue_opening_says_so(void **unused)
{
    (void)unused;
    char text[256];
    dart_context *context = NULL;
    dart_device *device = NULL;
    const dart_device_options asked = {.spec = "vulkan", .separate_queue = true}, cpu = {.spec = "cpu", .separate_queue = true};
    driver_set(&(driver_options){.queues = VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT});
    assert_int_equal(dart_context_create(&(dart_context_options){.without_cuda = true}, &context), DART_OK);
    assert_int_equal(dart_device_open(context, &asked, &device), DART_UNSUPPORTED);
    dart_context_error(context, text, sizeof text);
    if (strstr(text, "separate_queue") == NULL) fail_msg("%s", text);
    assert_int_equal(dart_device_open(context, &cpu, &device), DART_UNSUPPORTED);
    assert_null(device);
    dart_context_destroy(&context);
}

/* ---- One failure while opening ---- */

static void ignore(void *user, dart_log_level level, const char *text) { (void)user, (void)level, (void)text; }

static dart_status open_once(dart_device_info *info)
{
    dart_context *context = NULL;
    dart_device *device = NULL;
    const dart_context_options validated = {.without_cuda = true, .vulkan_validation = true, .log = ignore};
    dart_status status = dart_context_create(&validated, &context);
    if (status == DART_OK) status = dart_device_open(context, &(dart_device_options){.spec = "vulkan"}, &device);
    assert_true((status == DART_OK) == (device != NULL));
    if (device != NULL) dart_device_describe(device, info);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    return status;
}

/* A layer that cannot be listed counts as missing, and so does a driver that cannot list devices, unless the host has no memory; a device does
 * without what an extension would add. */
static bool may_give(const char *call, VkResult gives, dart_status status)
{
    const dart_status plain = gives == VK_ERROR_DEVICE_LOST ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    if (strcmp(call, "vkEnumerateInstanceLayerProperties") == 0) return status == DART_UNSUPPORTED;
    if (strcmp(call, "vkEnumerateInstanceExtensionProperties") == 0 || strcmp(call, "vkEnumerateDeviceExtensionProperties") == 0 ||
        strcmp(call, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR") == 0)
        return status == DART_OK;
    if (strcmp(call, "vkEnumeratePhysicalDevices") == 0 && gives != VK_ERROR_OUT_OF_HOST_MEMORY && status == DART_UNSUPPORTED) return true;
    /* Another kind or size of memory may do. */
    return status == plain || ((strcmp(call, "vkAllocateMemory") == 0 || strcmp(call, "vkMapMemory") == 0) && status == DART_OK);
}

static void every_call_of_opening_fails_once(void **unused)
{
    (void)unused;
    static const VkResult results[] = {VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY, VK_ERROR_DEVICE_LOST};
    static const char *const reached[] = {"vkEnumerateInstanceLayerProperties", "vkCreateDebugUtilsMessengerEXT",
                                          "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", "vkCreateDevice", "vkQueueSubmit"};
    for (size_t k = 0; k < COUNT_OF(results); k++) {
        bool seen[COUNT_OF(reached)] = {false};
        uint32_t n = 1;
        for (;; n++) {
            dart_device_info info = {0};
            driver_options options = {.validation = true, .matrices = true, .fail_at = n, .gives = results[k]};
            driver_set(&options);
            const dart_status status = open_once(&info);
            const char *call = driver_failed();
            if (driver_misuse() != NULL) fail_msg("call %u, %s: %s", n, call, driver_misuse());
            if (driver_alive(false) != 0) fail_msg("call %u, %s: %u objects leak", n, call, driver_alive(false));
            if (call == NULL) {
                assert_int_equal(status, DART_OK);
                assert_int_equal(info.capabilities & DART_CAP_MATRIX, 0); /* the driver's products are wrong: probes saw it */
                break;
            }
            if (!may_give(call, results[k], status)) fail_msg("call %u, %s: %s", n, call, dart_status_name(status));
            for (size_t i = 0; i < COUNT_OF(reached); i++) seen[i] = seen[i] || strcmp(call, reached[i]) == 0;
        }
        for (size_t i = 0; i < COUNT_OF(reached); i++)
            if (!seen[i]) fail_msg("%s never failed", reached[i]);
        print_message("  %u calls\n", n - 1);
    }
}

/* ---- Host memory runs out ---- */

/* Query, adopt, wrap, share both kinds with oneself, order a submission, record: until something fails. */
static dart_status live(const driver_program *h)
{
    const dart_vulkan_query_args query = {h->instance, h->physical, driver_get, VK_API_VERSION_1_3};
    const dart_vulkan_buffer range = {.buffer = h->buffer, .bytes = BYTES, .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
    dart_vulkan_needs *needs = NULL;
    dart_context *context = NULL;
    dart_device *device = NULL;
    dart_buffer *wrapped = NULL, *shared = NULL, *imported = NULL;
    dart_semaphore *ours = NULL, *theirs = NULL;
    dart_stream *stream = NULL;
    int fd = -1;
    uint64_t allocated = 0;
    dart_status status = DART_OK;
#define STEP(call) if (status == DART_OK) status = call
    STEP(dart_context_create(&(dart_context_options){.without_cuda = true, .without_vulkan = true}, &context));
    STEP(dart_vulkan_query(&query, &needs));
    const dart_vulkan_adopt_args adopt = {.instance = h->instance, .physical_device = h->physical, .device = h->device,
                                          .get_instance_proc_addr = driver_get, .api_version = VK_API_VERSION_1_3,
                                          .extensions = needs != NULL ? needs->extensions : NULL,
                                          .extensions_count = needs != NULL ? needs->extensions_count : 0,
                                          .features = needs != NULL ? needs->features : NULL};
    STEP(dart_device_adopt(context, &adopt, NULL, &device));
    STEP(dart_vulkan_wrap(device, &range, &wrapped));
    STEP(dart_buffer_create_shared(device, BYTES, &shared));
    STEP(dart_buffer_export(shared, &fd, &allocated));
    STEP(dart_buffer_import(device, fd, allocated, BYTES, &imported));
    if (imported != NULL) fd = -1;
    STEP(dart_semaphore_create_shared(device, false, &ours));
    STEP(dart_semaphore_export(ours, &fd));
    STEP(dart_semaphore_import(device, fd, false, &theirs));
    if (theirs != NULL) fd = -1;
    STEP(dart_stream_create(device, NULL, &stream));
    STEP(dart_fill(stream, &(dart_fill_args){.T = 1, .W = 8, .y = {.buffer = imported}}));
    STEP(dart_stream_submit_ordered(stream, &(dart_submit_args){.signals = &(dart_semaphore_value){theirs, 1}, .signals_count = 1}));
    STEP(dart_stream_wait(stream, UINT64_MAX));
    STEP(dart_vulkan_record(stream, h->commands));
    STEP(dart_fill(stream, &(dart_fill_args){.T = 1, .W = 8, .y = {.buffer = wrapped}}));
#undef STEP
    dart_stream_destroy(&stream);
    dart_semaphore_destroy(&theirs);
    dart_semaphore_destroy(&ours);
    dart_buffer_destroy(&imported);
    dart_buffer_destroy(&shared);
    dart_buffer_destroy(&wrapped);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    dart_vulkan_needs_destroy(&needs);
    file_close_descriptor(fd);
    return status;
}

static void host_memory_runs_out_everywhere(void **unused)
{
    (void)unused;
    uint32_t n = 1, refused = 0, without = 0;
    for (;; n++) {
        driver_program h = {0};
        driver_set(&(driver_options){.discrete = n % 2 == 0});
        driver_program_open(&h);
        memory = (struct memory){.counts = true, .in = n};
        const dart_status status = live(&h);
        memory.counts = false;
        if (driver_misuse() != NULL) fail_msg("allocation %u: %s", n, driver_misuse());
        if (driver_alive(false) != 0 || memory.taken != 0)
            fail_msg("allocation %u: %u objects and %d pieces of memory leak", n, driver_alive(false), (int)memory.taken);
        assert_int_equal(driver_alive(true), DRIVER_PROGRAM_OBJECTS);
        driver_program_close(&h);
        if (!memory.failed) {
            assert_int_equal(status, DART_OK);
            break;
        }
        /* Extensions that could not be listed are missing. */
        if (status != DART_OUT_OF_MEMORY && status != DART_OK && status != DART_UNSUPPORTED)
            fail_msg("allocation %u: %s", n, dart_status_name(status));
        refused += status == DART_OUT_OF_MEMORY;
        without += status != DART_OUT_OF_MEMORY;
    }
    print_message("  %u allocations: %u times out of memory, %u times without something\n", n - 1, refused, without);
    assert_true(refused > 15 && without < 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(queues_beside_frames_are_found), cmocka_unit_test(without_such_a_queue_opening_says_so),
                                       cmocka_unit_test(every_call_of_opening_fails_once), cmocka_unit_test(host_memory_runs_out_everywhere)};
    driver_calloc = __real_calloc;
    driver_free = __real_free;
    volkInitializeCustom(driver_get);
    return cmocka_run_group_tests_name("fault_open", tests, NULL, NULL);
}
