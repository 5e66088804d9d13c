/* The host's device: unit_adopt [vulkan]. */
#include "unit_adopt.h"

/* x, weight and y lie one after another in one buffer. */
void fill_inputs(float *values)
{
    for (int i = 0; i < (T + W) * W; i++) values[i] = (float)(i * 37 % 101) / 64 - 0.7f;
}

dart_status linear(dart_stream *stream, dart_buffer *buffer)
{
    return dart_linear(stream, &(dart_linear_args){.T = T, .IN = W, .OUT = W, .x = {.buffer = buffer},
                                                   .weight = {.buffer = buffer, .offset = WEIGHT_AT / 4},
                                                   .y = {.buffer = buffer, .offset = Y_AT / 4}});
}

void write_inputs(dart_buffer *buffer)
{
    static float values[(T + W) * W];
    fill_inputs(values);
    assert_int_equal(dart_buffer_write(buffer, 0, values, BYTES), DART_OK);
    assert_int_equal(dart_buffer_write(buffer, WEIGHT_AT, values + T * W, W * W * 4), DART_OK);
}

static void compute(dart_device *device, float *y)
{
    dart_buffer *buffer = NULL;
    dart_stream *stream = NULL;
    assert_int_equal(dart_buffer_create(device, ALL, &buffer), DART_OK);
    write_inputs(buffer);
    assert_int_equal(dart_stream_create(device, NULL, &stream), DART_OK);
    assert_int_equal(linear(stream, buffer), DART_OK);
    assert_int_equal(dart_stream_submit(stream), DART_OK);
    assert_int_equal(dart_stream_wait(stream, UINT64_MAX), DART_OK);
    assert_int_equal(dart_buffer_read(buffer, Y_AT, y, BYTES), DART_OK);
    dart_stream_destroy(&stream);
    dart_buffer_destroy(&buffer);
}

void expect(float *y, uint32_t without)
{
    dart_context *context = NULL;
    dart_device *device = NULL;
    assert_int_equal(dart_context_create(NULL, &context), DART_OK);
    assert_int_equal(dart_device_open(context, &(dart_device_options){.spec = rig_spec, .without_capabilities = without}, &device), DART_OK);
    compute(device, y);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
}

static void works_on(bool full)
{
    host h;
    float expected[T * W], y[T * W];
    host_open(&h, full);
    dart_device *device = host_adopt(&h, NULL), *second = host_adopt(&h, NULL);
    dart_device_info info;
    dart_device_describe(device, &info);
    if (!full) assert_int_equal(info.capabilities & (DART_CAP_MATRIX | DART_CAP_STORE16 | DART_CAP_FLOAT16), 0);
    expect(expected, ~info.capabilities);
    VkDeviceMemory memory;
    const VkBuffer theirs = host_buffer(&h, VK_BUFFER_USAGE, &(VkMemoryPropertyFlags){0}, &memory);
    dart_buffer *buffer = NULL;
    dart_vulkan_buffer range = {.buffer = theirs, .offset = ALL, .bytes = 2 * ALL, .usage = VK_BUFFER_USAGE};
    assert_int_equal(dart_vulkan_wrap(device, &range, &buffer), DART_INVALID_ARGUMENT);
    range.bytes = ALL;
    range.offset = 2;
    assert_int_equal(dart_vulkan_wrap(device, &range, &buffer), DART_INVALID_ARGUMENT);
    range.offset = ALL;
    range.usage = VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    assert_int_equal(dart_vulkan_wrap(device, &range, &buffer), DART_INVALID_ARGUMENT);
    range.usage = VK_BUFFER_USAGE;
    assert_int_equal(dart_vulkan_wrap(device, &range, &buffer), DART_OK);
    assert_int_equal(dart_device_bytes(device), 0);
    write_inputs(buffer);
    dart_vulkan_buffer got;
    assert_int_equal(dart_vulkan_buffer_of(buffer, &got), DART_OK);
    assert_true(got.buffer == theirs && got.offset == ALL && got.bytes == ALL);
    dart_stream *stream = NULL;
    assert_int_equal(dart_stream_create(device, NULL, &stream), DART_OK);
    const uint32_t locks = h.locks;
    /* Between two values of the host's timeline. */
    VkSemaphore semaphore = VK_NULL_HANDLE;
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo made = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = full ? &type : NULL};
    assert_int_equal(h.vk.vkCreateSemaphore(h.device, &made, NULL, &semaphore), VK_SUCCESS);
    const dart_vulkan_semaphore before = {semaphore, 1}, after = {semaphore, 2};
    assert_int_equal(linear(stream, buffer), DART_OK);
    const dart_vulkan_submit_args chain = {.waits = &before, .signals = &after, .waits_count = 1, .signals_count = 1};
    assert_int_equal(dart_vulkan_submit(stream, &chain), full ? DART_OK : DART_UNSUPPORTED);
    if (full) {
        uint64_t value = 9;
        assert_int_equal(dart_stream_wait(stream, 1000000), DART_TIMEOUT);
        const VkSemaphoreSignalInfo go = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore, .value = 1};
        assert_int_equal(h.vk.vkSignalSemaphore(h.device, &go), VK_SUCCESS);
        assert_int_equal(dart_stream_wait(stream, UINT64_MAX), DART_OK);
        assert_int_equal(h.vk.vkGetSemaphoreCounterValue(h.device, semaphore, &value), VK_SUCCESS);
        assert_int_equal(value, 2);
    } else {
        assert_int_equal(dart_stream_submit(stream), DART_OK);
        assert_int_equal(dart_stream_wait(stream, UINT64_MAX), DART_OK);
    }
    assert_int_equal(h.locks, locks + 1);
    assert_int_equal(dart_buffer_read(buffer, Y_AT, y, BYTES), DART_OK);
    rig_same_bits("submitted", y, expected, T * W);
    /* Into the host's command buffer. */
    memset(y, 0, sizeof y);
    assert_int_equal(dart_buffer_write(buffer, Y_AT, y, BYTES), DART_OK);
    VkCommandPool pool;
    VkCommandBuffer commands;
    const VkCommandPoolCreateInfo of = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .queueFamilyIndex = h.needs->queue_family};
    assert_int_equal(h.vk.vkCreateCommandPool(h.device, &of, NULL, &pool), VK_SUCCESS);
    const VkCommandBufferAllocateInfo one = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool, .commandBufferCount = 1};
    assert_int_equal(h.vk.vkAllocateCommandBuffers(h.device, &one, &commands), VK_SUCCESS);
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    assert_int_equal(h.vk.vkBeginCommandBuffer(commands, &begin), VK_SUCCESS);
    assert_int_equal(dart_vulkan_record(stream, commands), DART_OK);
    assert_int_equal(linear(stream, buffer), DART_OK);
    assert_int_equal(dart_stream_submit(stream), DART_INVALID_ARGUMENT);
    assert_int_equal(h.vk.vkEndCommandBuffer(commands), VK_SUCCESS);
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
    assert_int_equal(h.vk.vkQueueSubmit(h.queue, 1, &submit, VK_NULL_HANDLE), VK_SUCCESS);
    assert_int_equal(h.vk.vkQueueWaitIdle(h.queue), VK_SUCCESS);
    assert_int_equal(dart_buffer_read(buffer, Y_AT, y, BYTES), DART_OK);
    rig_same_bits("recorded", y, expected, T * W);
    /* A loss is one status, told once, and leaves the host's things alone. */
    assert_int_equal(dart_stream_begin(stream), DART_OK);
    assert_int_equal(linear(stream, buffer), DART_OK);
    fault.in = 1;
    fault.gives = VK_ERROR_DEVICE_LOST;
    assert_int_equal(dart_stream_submit(stream), DART_DEVICE_LOST);
    assert_int_equal(dart_stream_begin(stream), DART_DEVICE_LOST);
    assert_int_equal(dart_vulkan_wrap(device, &range, &(dart_buffer *){NULL}), DART_DEVICE_LOST);
    assert_int_equal(h.losses, 1);
    dart_stream_destroy(&stream);
    dart_buffer_destroy(&buffer);
    dart_device_destroy(&device);
    dart_device_destroy(&second);
    h.vk.vkDestroyCommandPool(h.device, pool, NULL);
    h.vk.vkDestroySemaphore(h.device, semaphore, NULL);
    h.vk.vkDestroyBuffer(h.device, theirs, NULL);
    h.vk.vkFreeMemory(h.device, memory, NULL);
    host_close(&h);
}

static void works_with_everything_switched_on(void **unused)
{
    (void)unused;
    works_on(true);
}
static void works_with_nothing_switched_on(void **unused)
{
    (void)unused;
    works_on(false);
}

/* Where the host lets pipelines choose, each asks for checks of ranges; where it does not, none may. */
static void pipelines_ask_for_checks(void **unused)
{
    (void)unused;
    for (int chooses = 0; chooses <= 1; chooses++) {
        host h;
        float expected[T * W], y[T * W];
        if (chooses && !host_open_choosing(&h)) {
            print_message("NOT RUN: this driver has no VK_EXT_pipeline_robustness\n");
            skip();
        }
        if (!chooses) host_open(&h, true);
        dart_device *device = host_adopt(&h, NULL);
        expect(expected, 0);
        compute(device, y);
        rig_same_bits(chooses ? "choosing" : "not choosing", y, expected, T * W);
        assert_true(fault.pipelines > 0);
        assert_int_equal(fault.checked, chooses ? fault.pipelines : 0);
        dart_device_destroy(&device);
        host_close(&h);
    }
}

/* Queues that the device does not have, and names that are none: drivers need not notice. */
static void refuses_what_is_not_there(void **unused)
{
    (void)unused;
    static const char *const unnamed[] = {NULL};
    enum { MOST = 64 };
    VkQueueFamilyProperties families[MOST];
    uint32_t count = MOST;
    host h;
    host_open(&h, true);
    GET(&h, vkGetPhysicalDeviceQueueFamilyProperties)(h.physical, &count, families);
    const uint32_t own = h.needs->queue_family;
    const dart_vulkan_adopt_args right = {.instance = h.instance, .physical_device = h.physical, .device = h.device,
        .get_instance_proc_addr = host_get(), .api_version = VK_API_VERSION_1_3, .queue_family = own};
    dart_vulkan_adopt_args wrong[7];
    for (int i = 0; i < 7; i++) wrong[i] = right;
    wrong[0].queue_family = count;
    wrong[1].queue_family = UINT32_MAX;
    wrong[2].queue_index = families[own].queueCount;
    wrong[3].queue_index = UINT32_MAX;
    wrong[4].families = &count;
    wrong[4].families_count = 1;
    wrong[5].families = &(uint32_t){VK_QUEUE_FAMILY_EXTERNAL};
    wrong[5].families_count = 1;
    wrong[6].extensions = unnamed;
    wrong[6].extensions_count = 1;
    for (int i = 0; i < 7; i++) {
        dart_device *device = NULL;
        if (dart_device_adopt(h.context, &wrong[i], NULL, &device) != DART_INVALID_ARGUMENT) fail_msg("wrong call %d was not refused", i);
        assert_null(device);
    }
    for (uint32_t i = 0; i < count; i++) {
        if ((families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0) continue;
        dart_vulkan_adopt_args copies = right;
        copies.queue_family = i;
        assert_int_equal(dart_device_adopt(h.context, &copies, NULL, &(dart_device *){NULL}), DART_INVALID_ARGUMENT);
    }
    dart_device *device = host_adopt(&h, NULL);
    dart_stream *stream = NULL;
    assert_int_equal(dart_stream_create(device, NULL, &stream), DART_OK);
    const dart_vulkan_semaphore none = {VK_NULL_HANDLE, 0};
    assert_int_equal(dart_vulkan_submit(stream, &(dart_vulkan_submit_args){.waits = &none, .waits_count = 1}), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_vulkan_submit(stream, &(dart_vulkan_submit_args){.signals = &none, .signals_count = 1}), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_vulkan_submit(stream, &(dart_vulkan_submit_args){.waits_count = 0}), DART_OK); /* the stream is as it was */
    assert_int_equal(dart_stream_wait(stream, UINT64_MAX), DART_OK);
    dart_stream_destroy(&stream);
    dart_device_destroy(&device);
    host_close(&h);
}

typedef struct worker {
    dart_device *device;
    dart_status status;
    float y[T * W];
} worker;

/* No assertions: cmocka's end the wrong thread. */
static void work(void *user)
{
    worker *w = user;
    dart_buffer *buffer = NULL;
    dart_stream *stream = NULL;
    w->status = dart_buffer_create(w->device, ALL, &buffer);
    float *inputs = malloc((T + W) * W * sizeof *inputs);
    if (inputs != NULL) fill_inputs(inputs);
    if (w->status == DART_OK) w->status = dart_buffer_write(buffer, 0, inputs, BYTES);
    if (w->status == DART_OK) w->status = dart_buffer_write(buffer, WEIGHT_AT, inputs + T * W, W * W * 4);
    if (w->status == DART_OK) w->status = dart_stream_create(w->device, NULL, &stream);
    for (int i = 0; i < 50 && w->status == DART_OK; i++) {
        w->status = dart_stream_begin(stream);
        if (w->status == DART_OK) w->status = linear(stream, buffer);
        if (w->status == DART_OK) w->status = dart_stream_submit(stream);
        if (w->status == DART_OK) w->status = dart_stream_wait(stream, UINT64_MAX);
    }
    if (w->status == DART_OK) w->status = dart_buffer_read(buffer, Y_AT, w->y, BYTES);
    free(inputs);
    dart_stream_destroy(&stream);
    dart_buffer_destroy(&buffer);
}

static void two_share_a_queue(void **unused)
{
    (void)unused;
    host h;
    float expected[T * W];
    worker workers[2] = {0};
    base_thread threads[2];
    host_open(&h, true);
    for (int i = 0; i < 2; i++) workers[i].device = host_adopt(&h, NULL);
    expect(expected, 0);
    const uint32_t locks = h.locks;
    for (int i = 0; i < 2; i++) assert_int_equal(base_thread_start(&threads[i], work, &workers[i]), DART_OK);
    for (int i = 0; i < 2; i++) base_thread_join(&threads[i]);
    assert_true(h.locks >= locks + 100);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(workers[i].status, DART_OK);
        rig_same_bits("two devices", workers[i].y, expected, T * W);
        dart_device_destroy(&workers[i].device);
    }
    host_close(&h);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(mapped_memory_is_used),
    cmocka_unit_test(own_memory_is_told),
    cmocka_unit_test(a_separate_queue_works_beside_graphics),
    cmocka_unit_test(an_adopted_device_shares),
    cmocka_unit_test(refuses_what_is_not_there),
    cmocka_unit_test(two_share_a_queue),
    cmocka_unit_test(pipelines_ask_for_checks),
    cmocka_unit_test(works_with_everything_switched_on),
    cmocka_unit_test(works_with_nothing_switched_on),
};
RIG_MAIN("unit_adopt")
