/* Choosing among devices of which some cannot be used, and which drivers are loaded for that: unit_choosing. The null backend's place in the
 * listing is taken by one that pretends to have such devices, those of Vulkan and CUDA by backends that pretend to have a GPU. */
#ifndef DARTLM_VULKAN
#define DARTLM_VULKAN
#endif
#ifndef DARTLM_CUDA
#define DARTLM_CUDA
#endif
#define null_backend pretended_backend
#define vulkan_backend pretended_vulkan
#define cuda_backend pretended_cuda
#include "runtime/context.c" /* NOLINT(bugprone-suspicious-include) */
#undef null_backend
#undef vulkan_backend
#undef cuda_backend

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int handle;
static bool absent; /* the pretended backend has no driver */

static dart_status instance_create(const dart_context_options *options, base_report *report, void **instance)
{
    (void)options;
    if (absent) base_note(report, DART_LOG_INFO, "null: no devices, its driver is missing");
    *instance = absent ? NULL : &handle;
    return DART_OK;
}
static void instance_destroy(void *instance) { (void)instance; }

static const char *const why_not[] = {"it is too old", NULL, "it is too small", NULL};
enum { DEVICES = COUNT_OF(why_not) };

static uint32_t device_count(const void *instance) { return instance != NULL ? DEVICES : 0; }

static void device_info(const void *instance, uint32_t index, dart_device_info *info)
{
    (void)instance;
    info->usable = why_not[index] == NULL;
    snprintf(info->name, sizeof info->name, "device %c", (char)('a' + index));
    if (!info->usable) snprintf(info->why_not, sizeof info->why_not, "%s", why_not[index]);
}

static dart_status device_create(void *instance, uint32_t index, const dart_device_options *options, uint32_t capabilities, base_report *report,
                                 void **device)
{
    (void)instance, (void)index, (void)options, (void)capabilities, (void)report;
    *device = &handle;
    return DART_OK;
}
static void device_destroy(void *device) { (void)device; }

const backend pretended_backend = {.kind = DART_BACKEND_NULL, .rows = DART_BACKEND_CPU, .instance_create = instance_create,
                                   .instance_destroy = instance_destroy, .device_count = device_count, .device_info = device_info,
                                   .device_create = device_create, .device_destroy = device_destroy};

static uint32_t loaded[DART_BACKEND_NULL + 1]; /* how often each driver was */
static bool gpu_usable;

static dart_status vulkan_create(const dart_context_options *options, base_report *report, void **instance)
{
    loaded[DART_BACKEND_VULKAN]++;
    return instance_create(options, report, instance);
}
static dart_status cuda_create(const dart_context_options *options, base_report *report, void **instance)
{
    loaded[DART_BACKEND_CUDA]++;
    return instance_create(options, report, instance);
}
static uint32_t one_device(const void *instance) { return instance != NULL; }
static void gpu_info(const void *instance, uint32_t index, dart_device_info *info)
{
    (void)instance, (void)index;
    info->usable = gpu_usable;
    info->type = DART_DEVICE_DISCRETE;
    strcpy(info->name, "gpu");
}

const backend pretended_vulkan = {.kind = DART_BACKEND_VULKAN, .rows = DART_BACKEND_CPU, .instance_create = vulkan_create,
                                  .instance_destroy = instance_destroy, .device_count = one_device, .device_info = gpu_info,
                                  .device_create = device_create, .device_destroy = device_destroy};
const backend pretended_cuda = {.kind = DART_BACKEND_CUDA, .rows = DART_BACKEND_CPU, .instance_create = cuda_create,
                                .instance_destroy = instance_destroy, .device_count = one_device, .device_info = gpu_info,
                                .device_create = device_create, .device_destroy = device_destroy};

/* A context for one device loads the drivers before the device's, in the order of the listing, where the spec can mean one of their devices,
 * and none after it. */
static void loads_what_one_device_needs(void **unused)
{
    (void)unused;
    static const struct { const char *only_for; bool usable; uint32_t vulkan, cuda, devices; dart_backend_kind first; } cases[] = {
        {NULL, true, 1, 1, 3, DART_BACKEND_VULKAN},         {"", true, 1, 0, 1, DART_BACKEND_VULKAN},
        {"", false, 1, 1, 3, DART_BACKEND_CPU},             {"vulkan", true, 1, 0, 1, DART_BACKEND_VULKAN},
        {"vulkan:0", true, 1, 0, 1, DART_BACKEND_VULKAN},   {"vulkan:gpu", false, 1, 0, 1, DART_BACKEND_NULL},
        {"cuda", true, 0, 1, 1, DART_BACKEND_CUDA},         {"cuda:1", true, 0, 1, 1, DART_BACKEND_NULL},
        {"cpu", true, 0, 0, 1, DART_BACKEND_CPU},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dart_context *context = NULL;
        dart_device *device = NULL;
        memset(loaded, 0, sizeof loaded);
        gpu_usable = cases[i].usable;
        assert_int_equal(dart_context_create(&(dart_context_options){.only_for = cases[i].only_for}, &context), DART_OK);
        assert_int_equal(loaded[DART_BACKEND_VULKAN], cases[i].vulkan);
        assert_int_equal(loaded[DART_BACKEND_CUDA], cases[i].cuda);
        assert_int_equal(dart_context_device_count(context), cases[i].devices);
        const dart_status status = dart_device_open(context, &(dart_device_options){.spec = cases[i].only_for, .unchecked = true}, &device);
        /* DART_BACKEND_NULL: there is none that can be used. */
        assert_int_equal(status, cases[i].first == DART_BACKEND_NULL ? DART_UNSUPPORTED : DART_OK);
        if (status == DART_OK) assert_int_equal(device->info.backend, cases[i].first);
        dart_device_destroy(&device);
        dart_context_destroy(&context);
    }
}

static void passes_over_devices_that_cannot_be_used(void **unused)
{
    (void)unused;
    static const struct { const char *spec, *name, *why; } choices[] = {
        {"null", "device b", NULL},           {"null:1", "device b", NULL},
        {"null:device", "device b", NULL},    {"null:3", "device d", NULL},
        {"null:device d", "device d", NULL},  {"null:0", NULL, "device a cannot be used: it is too old"},
        {"null:device c", NULL, "device c cannot be used: it is too small"},
        {"null:4", NULL, "none found"},
    };
    dart_context *context = NULL;
    assert_int_equal(dart_context_create(&(dart_context_options){.with_null = true, .without_vulkan = true, .without_cuda = true}, &context),
                     DART_OK);
    assert_int_equal(dart_context_device_count(context), 1 + DEVICES);
    for (size_t i = 0; i < COUNT_OF(choices); i++) {
        dart_device *device = NULL;
        char text[512] = "";
        const dart_status status = dart_device_open(context, &(dart_device_options){.spec = choices[i].spec, .unchecked = true}, &device);
        dart_context_error(context, text, sizeof text);
        if (status != (choices[i].name != NULL ? DART_OK : DART_UNSUPPORTED))
            fail_msg("'%s': %s: %s", choices[i].spec, dart_status_name(status), text);
        if (choices[i].name != NULL) assert_string_equal(device->info.name, choices[i].name);
        else if (strstr(text, choices[i].why) == NULL) fail_msg("'%s': %s", choices[i].spec, text);
        dart_device_destroy(&device);
    }
    dart_context_destroy(&context);
}

static void tells_why_there_are_none(void **unused)
{
    (void)unused;
    dart_context *context = NULL;
    dart_device *device = NULL;
    char text[512] = "";
    for (int wanted = 0; wanted < 2; wanted++) {
        for (int there = 0; there < 2; there++) {
            absent = there == 0;
            const dart_context_options options = {.with_null = wanted == 1, .without_vulkan = true, .without_cuda = true};
            assert_int_equal(dart_context_create(&options, &context), DART_OK);
            const char *why = wanted == 1 && there == 0 ? "null: no devices, its driver is missing" : "";
            assert_int_equal(dart_context_why_none(context, DART_BACKEND_NULL, text, sizeof text), strlen(why));
            assert_string_equal(text, why);
            assert_int_equal(dart_context_why_none(context, DART_BACKEND_CPU, text, sizeof text), 0);
            assert_int_equal(dart_context_why_none(context, DART_BACKEND_NULL, text, 6), strlen(why));
            assert_true(strlen(text) <= 5 && strncmp(text, why, strlen(text)) == 0);
            if (why[0] != '\0') {
                assert_int_equal(dart_device_open(context, &(dart_device_options){.spec = "null", .unchecked = true}, &device), DART_UNSUPPORTED);
                dart_context_error(context, text, sizeof text);
                assert_string_equal(text, "device 'null': null: no devices, its driver is missing");
            }
            dart_context_destroy(&context);
        }
    }
    absent = false;
    assert_int_equal(dart_context_why_none(NULL, DART_BACKEND_CPU, text, sizeof text), 0);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loads_what_one_device_needs), cmocka_unit_test(passes_over_devices_that_cannot_be_used),
                                       cmocka_unit_test(tells_why_there_are_none)};
    return cmocka_run_group_tests_name("unit_choosing", tests, NULL, NULL);
}
