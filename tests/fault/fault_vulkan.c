/* Every Vulkan call of the backend that can fail does so once: fault_vulkan [DEVICE_SPEC]. Memory that runs out ends the call of the
 * library with that status, and the same call succeeds the next time; a loss is for good. */
#include "rig.h"

#include "vulkan/vk.h"

#include "runtime/device.h"

/* name, parameters, arguments */
#define CALLS(X) \
    X(vkCreateBuffer, (VkDevice a, const VkBufferCreateInfo *b, const VkAllocationCallbacks *c, VkBuffer *d), (a, b, c, d)) \
    X(vkAllocateMemory, (VkDevice a, const VkMemoryAllocateInfo *b, const VkAllocationCallbacks *c, VkDeviceMemory *d), (a, b, c, d)) \
    X(vkBindBufferMemory, (VkDevice a, VkBuffer b, VkDeviceMemory c, VkDeviceSize d), (a, b, c, d)) \
    X(vkMapMemory, (VkDevice a, VkDeviceMemory b, VkDeviceSize c, VkDeviceSize d, VkMemoryMapFlags e, void **f), (a, b, c, d, e, f)) \
    X(vkCreateCommandPool, (VkDevice a, const VkCommandPoolCreateInfo *b, const VkAllocationCallbacks *c, VkCommandPool *d), (a, b, c, d)) \
    X(vkResetCommandPool, (VkDevice a, VkCommandPool b, VkCommandPoolResetFlags c), (a, b, c)) \
    X(vkAllocateCommandBuffers, (VkDevice a, const VkCommandBufferAllocateInfo *b, VkCommandBuffer *c), (a, b, c)) \
    X(vkBeginCommandBuffer, (VkCommandBuffer a, const VkCommandBufferBeginInfo *b), (a, b)) \
    X(vkEndCommandBuffer, (VkCommandBuffer a), (a)) \
    X(vkCreateFence, (VkDevice a, const VkFenceCreateInfo *b, const VkAllocationCallbacks *c, VkFence *d), (a, b, c, d)) \
    X(vkResetFences, (VkDevice a, uint32_t b, const VkFence *c), (a, b, c)) \
    X(vkQueueSubmit, (VkQueue a, uint32_t b, const VkSubmitInfo *c, VkFence d), (a, b, c, d)) \
    X(vkCreateQueryPool, (VkDevice a, const VkQueryPoolCreateInfo *b, const VkAllocationCallbacks *c, VkQueryPool *d), (a, b, c, d)) \
    X(vkGetQueryPoolResults, (VkDevice a, VkQueryPool b, uint32_t c, uint32_t d, size_t e, void *f, VkDeviceSize g, VkQueryResultFlags h), \
      (a, b, c, d, e, f, g, h)) \
    X(vkCreateDescriptorPool, (VkDevice a, const VkDescriptorPoolCreateInfo *b, const VkAllocationCallbacks *c, VkDescriptorPool *d), (a, b, c, d)) \
    X(vkResetDescriptorPool, (VkDevice a, VkDescriptorPool b, VkDescriptorPoolResetFlags c), (a, b, c)) \
    X(vkAllocateDescriptorSets, (VkDevice a, const VkDescriptorSetAllocateInfo *b, VkDescriptorSet *c), (a, b, c)) \
    X(vkCreateDescriptorSetLayout, (VkDevice a, const VkDescriptorSetLayoutCreateInfo *b, const VkAllocationCallbacks *c, VkDescriptorSetLayout *d), \
      (a, b, c, d)) \
    X(vkCreatePipelineLayout, (VkDevice a, const VkPipelineLayoutCreateInfo *b, const VkAllocationCallbacks *c, VkPipelineLayout *d), (a, b, c, d)) \
    X(vkCreatePipelineCache, (VkDevice a, const VkPipelineCacheCreateInfo *b, const VkAllocationCallbacks *c, VkPipelineCache *d), (a, b, c, d)) \
    X(vkGetPipelineCacheData, (VkDevice a, VkPipelineCache b, size_t *c, void *d), (a, b, c, d)) \
    X(vkCreateShaderModule, (VkDevice a, const VkShaderModuleCreateInfo *b, const VkAllocationCallbacks *c, VkShaderModule *d), (a, b, c, d)) \
    X(vkCreateComputePipelines, (VkDevice a, VkPipelineCache b, uint32_t c, const VkComputePipelineCreateInfo *d, const VkAllocationCallbacks *e, \
      VkPipeline *f), (a, b, c, d, e, f))

static struct faults {
    uint32_t in; /* calls until the one that fails; 0: none does */
    VkResult gives;
    const char *failed;
    PFN_vkGetDeviceProcAddr get;
} faults;

static bool fails(const char *call)
{
    if (faults.in == 0 || --faults.in > 0) return false;
    faults.failed = call;
    return true;
}

#define FAKE(name, parameters, arguments) \
    static PFN_##name real_##name; \
    static VKAPI_ATTR VkResult VKAPI_CALL fake_##name parameters { return fails(#name) ? faults.gives : real_##name arguments; }
CALLS(FAKE)

/* The work itself goes on where waiting for it fails. */
static PFN_vkWaitForFences real_wait;
static VKAPI_ATTR VkResult VKAPI_CALL wait_and_fail(VkDevice device, uint32_t count, const VkFence *fences, VkBool32 all, uint64_t timeout_ns)
{
    const VkResult result = real_wait(device, count, fences, all, timeout_ns);
    return fails("vkWaitForFences") ? faults.gives : result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get(VkDevice device, const char *name)
{
    const PFN_vkVoidFunction found = faults.get(device, name);
#define TAKE(call, parameters, arguments) \
    if (found != NULL && strcmp(name, #call) == 0) { \
        real_##call = (PFN_##call)found; \
        return (PFN_vkVoidFunction)fake_##call; \
    }
    CALLS(TAKE)
    if (found != NULL && strcmp(name, "vkWaitForFences") == 0) {
        real_wait = (PFN_vkWaitForFences)found;
        return (PFN_vkVoidFunction)wait_and_fail;
    }
    return found;
}

/* ---- What a program does with a device ---- */

enum { N = 1000, STEPS = 7, STEP_OPEN = 0 };

typedef struct world {
    dart_context *context;
    dart_device *device;
    dart_buffer *buffer;
    dart_stream *stream;
    unsigned char cache[1 << 16];
    char text[512];
} world;

static dart_status open_device(world *w)
{
    return dart_device_open(w->context, &(dart_device_options){.spec = rig_spec, .unchecked = true}, &w->device);
}
static dart_status make_buffer(world *w) { return dart_buffer_create(w->device, N * sizeof(float), &w->buffer); }
static dart_status make_stream(world *w) { return dart_stream_create(w->device, NULL, &w->stream); }
static dart_status write_buffer(world *w)
{
    static const float zeros[N];
    return dart_buffer_write(w->buffer, 0, zeros, sizeof zeros);
}
static dart_status run(world *w)
{
    uint64_t ns;
    dart_status status = dart_stream_begin(w->stream);
    if (status == DART_OK)
        status = dart_fill(w->stream, &(dart_fill_args){.T = 1, .W = N, .value = 3, .y = {.buffer = w->buffer, .dtype = DART_F32}});
    if (status == DART_OK) status = dart_stream_submit(w->stream);
    if (status == DART_OK) status = dart_stream_wait(w->stream, UINT64_MAX);
    return status == DART_OK ? dart_stream_elapsed(w->stream, &ns) : status;
}
static dart_status read_buffer(world *w)
{
    float values[N];
    const dart_status status = dart_buffer_read(w->buffer, 0, values, sizeof values);
    for (size_t i = 0; i < N && status == DART_OK; i++) assert_true(values[i] == 3);
    return status;
}
static dart_status read_cache(world *w)
{
    size_t bytes = sizeof w->cache;
    return dart_device_cache(w->device, w->cache, &bytes);
}
static dart_status (*const steps[STEPS])(world *w) = {open_device, make_buffer, make_stream, write_buffer, run, read_buffer, read_cache};

static void keep_error(world *w, uint32_t step)
{
    w->text[0] = '\0';
    if (step == STEP_OPEN) dart_context_error(w->context, w->text, sizeof w->text);
    else dart_device_error(w->device, w->text, sizeof w->text);
}

static void end(world *w)
{
    dart_stream_destroy(&w->stream);
    dart_buffer_destroy(&w->buffer);
    if (w->device != NULL) assert_int_equal(dart_device_bytes(w->device), 0);
    dart_device_destroy(&w->device);
}

/* The n-th call fails; false when there are not that many. */
static bool fail_once(world *w, uint32_t n, VkResult gives)
{
    const dart_status expected = gives == VK_ERROR_DEVICE_LOST ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    bool failed = false;
    faults.in = n;
    faults.gives = gives;
    faults.failed = NULL;
    for (uint32_t i = 0; i < STEPS; i++) {
        dart_status status = steps[i](w);
        const bool now = faults.failed != NULL && !failed;
        failed = failed || now;
        /* Another kind or size of memory may do, and mapping it is part of allocating it. */
        const bool memory = now && (strcmp(faults.failed, "vkAllocateMemory") == 0 || strcmp(faults.failed, "vkMapMemory") == 0);
        if (memory && status == DART_OK) continue;
        keep_error(w, i);
        if (now && (status != expected || strstr(w->text, memory ? "vk" : faults.failed) == NULL))
            fail_msg("call %u, %s in step %u: %s: %s", n, faults.failed, i, dart_status_name(status), w->text);
        if (now && i == STEP_OPEN) assert_null(w->device);
        if (now && gives == VK_ERROR_DEVICE_LOST && i != STEP_OPEN) {
            assert_int_equal(dart_buffer_create(w->device, 4, &(dart_buffer *){NULL}), DART_DEVICE_LOST);
            break;
        }
        if (now) status = steps[i](w);
        if (status != DART_OK) fail_msg("call %u, %s: step %u later: %s: %s", n, faults.failed, i, dart_status_name(status), w->text);
    }
    end(w);
    return failed;
}

/* The listing's first device and the adapter behind it, which tests may change. */
static vk_adapter *open_world(world *w)
{
    memset(w, 0, sizeof *w);
    assert_int_equal(dart_context_create(NULL, &w->context), DART_OK);
    assert_int_equal(open_device(w), DART_OK);
    const vk_device *device = w->device->handle;
    vk_instance *instance = (vk_instance *)(uintptr_t)device->instance;
    vk_adapter *adapter = (vk_adapter *)(uintptr_t)device->adapter;
    dart_device_destroy(&w->device);
    faults.in = 0;
    faults.get = instance->vk.vkGetDeviceProcAddr;
    instance->vk.vkGetDeviceProcAddr = get;
    return adapter;
}

static void every_call_fails_once(VkResult gives)
{
    world w;
    /* Discrete devices are read by copies. */
    vk_adapter *adapter = open_world(&w);
    adapter->info.type = DART_DEVICE_DISCRETE;
    uint32_t n = 1;
    while (fail_once(&w, n, gives)) n++;
    assert_true(n > 40);
    print_message("  %u failures\n", n - 1);
    dart_context_destroy(&w.context);
}

static void memory_runs_out_in_every_call(void **unused)
{
    (void)unused;
    every_call_fails_once(VK_ERROR_OUT_OF_DEVICE_MEMORY);
}

static void the_device_is_lost_in_every_call(void **unused)
{
    (void)unused;
    every_call_fails_once(VK_ERROR_DEVICE_LOST);
}

/* More than the staging buffer holds, from an odd place. */
static void reads_by_copies(void **unused)
{
    (void)unused;
    enum { WORDS = 5 << 20, FROM = 3 };
    world w;
    open_world(&w)->info.type = DART_DEVICE_DISCRETE;
    assert_int_equal(open_device(&w), DART_OK);
    uint32_t *words = malloc(2 * (size_t)WORDS * sizeof *words), *got = words + WORDS;
    assert_non_null(words);
    for (uint32_t i = 0; i < WORDS; i++) words[i] = i * 2654435761u;
    assert_int_equal(dart_buffer_create(w.device, WORDS * sizeof *words, &w.buffer), DART_OK);
    assert_int_equal(dart_buffer_write(w.buffer, 0, words, WORDS * sizeof *words), DART_OK);
    assert_int_equal(dart_buffer_read(w.buffer, FROM * sizeof *words, got, (WORDS - FROM) * sizeof *words), DART_OK);
    assert_memory_equal(got, words + FROM, (WORDS - FROM) * sizeof *words);
    free(words);
    end(&w);
    dart_context_destroy(&w.context);
}

typedef struct reader {
    const dart_buffer *buffer;
    const uint32_t *words;
    uint32_t *got;
    uint32_t from, count, wrong;
    base_thread thread;
} reader;

static void read_often(void *argument)
{
    reader *r = argument;
    for (uint32_t i = 0; i < 20; i++) {
        memset(r->got, 0, r->count * sizeof *r->got);
        if (dart_buffer_read(r->buffer, r->from * sizeof *r->got, r->got, r->count * sizeof *r->got) != DART_OK) r->wrong++;
        if (memcmp(r->got, r->words + r->from, r->count * sizeof *r->got) != 0) r->wrong++;
    }
}

/* More threads than staging buffers, and no two read the same. */
static void reads_by_copies_in_threads(void **unused)
{
    (void)unused;
    enum { READERS = 2 * VK_TRANSFERS + 1, COUNT = 1 << 15, WORDS = READERS * COUNT };
    world w;
    open_world(&w)->info.type = DART_DEVICE_DISCRETE;
    assert_int_equal(open_device(&w), DART_OK);
    uint32_t *words = malloc(2 * (size_t)WORDS * sizeof *words);
    reader readers[READERS];
    assert_non_null(words);
    for (uint32_t i = 0; i < WORDS; i++) words[i] = i * 2654435761u;
    assert_int_equal(dart_buffer_create(w.device, WORDS * sizeof *words, &w.buffer), DART_OK);
    assert_int_equal(dart_buffer_write(w.buffer, 0, words, WORDS * sizeof *words), DART_OK);
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i] = (reader){.buffer = w.buffer, .words = words, .got = words + WORDS + i * COUNT, .from = i * COUNT, .count = COUNT};
        assert_int_equal(base_thread_start(&readers[i].thread, read_often, &readers[i]), DART_OK);
    }
    for (uint32_t i = 0; i < READERS; i++) base_thread_join(&readers[i].thread);
    for (uint32_t i = 0; i < READERS; i++) assert_int_equal(readers[i].wrong, 0);
    free(words);
    end(&w);
    dart_context_destroy(&w.context);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(memory_runs_out_in_every_call),
    cmocka_unit_test(the_device_is_lost_in_every_call),
    cmocka_unit_test(reads_by_copies),
    cmocka_unit_test(reads_by_copies_in_threads),
};
RIG_MAIN("fault_vulkan")
