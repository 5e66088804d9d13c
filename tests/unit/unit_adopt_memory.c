/* Memory, queues and semaphores of an adopted device. */
#include "unit_adopt.h"

/* ---- Mapped buffers ---- */

/* What the host has mapped is written and read there: no submission, and no usage for copies. */
void mapped_memory_is_used(void **unused)
{
    (void)unused;
    enum { COHERENT = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT };
    host h;
    float expected[T * W], y[T * W];
    host_open(&h, true);
    dart_device *device = host_adopt(&h, &(dart_device_options){.unchecked = true});
    expect(expected, 0);
    vk_adapter *adapter = (vk_adapter *)(uintptr_t)((const vk_device *)device->handle)->adapter;
    VkMemoryPropertyFlags flags = COHERENT;
    VkDeviceMemory memory;
    VkBuffer theirs = host_buffer(&h, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, &flags, &memory);
    void *mapped = NULL;
    assert_int_equal(h.vk.vkMapMemory(h.device, memory, 0, VK_WHOLE_SIZE, 0, &mapped), VK_SUCCESS);
    dart_buffer *buffer = NULL;
    dart_stream *stream = NULL;
    dart_vulkan_buffer range = {.buffer = theirs, .offset = ALL, .bytes = ALL, .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT,
                                .memory = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT, .mapped = (char *)mapped + ALL};
    assert_int_equal(dart_vulkan_wrap(device, &range, &buffer), DART_INVALID_ARGUMENT);
    range.memory = flags;
    assert_int_equal(dart_vulkan_wrap(device, &range, &buffer), DART_OK);
    dart_vulkan_buffer got = {0};
    assert_int_equal(dart_vulkan_buffer_of(buffer, &got), DART_OK);
    assert_true(got.memory == flags && got.mapped == range.mapped);
    for (int discrete = 0; discrete < 2; discrete++) {
        if (discrete) adapter->info.type = DART_DEVICE_DISCRETE; /* without usage for copies there is no other way */
        fault.submissions = 0;
        write_inputs(buffer);
        assert_int_equal(fault.submissions, 0);
        assert_int_equal(dart_stream_create(device, NULL, &stream), DART_OK);
        assert_int_equal(linear(stream, buffer), DART_OK);
        assert_int_equal(dart_stream_submit(stream), DART_OK);
        assert_int_equal(dart_stream_wait(stream, UINT64_MAX), DART_OK);
        assert_int_equal(fault.submissions, 1);
        assert_int_equal(dart_buffer_read(buffer, Y_AT, y, BYTES), DART_OK);
        assert_int_equal(fault.submissions, 1);
        rig_same_bits("dart_buffer_read", y, expected, T * W);
        rig_same_bits("mapped", (const float *)(const void *)((const char *)range.mapped + Y_AT), expected, T * W);
        dart_stream_destroy(&stream);
    }
    dart_buffer_destroy(&buffer);
    h.vk.vkDestroyBuffer(h.device, theirs, NULL);
    h.vk.vkFreeMemory(h.device, memory, NULL);
    /* A discrete device's memory that a processor does not cache is read by a copy, beyond a few words. */
    flags = COHERENT;
    theirs = host_buffer(&h, VK_BUFFER_USAGE, &flags, &memory);
    assert_int_equal(h.vk.vkMapMemory(h.device, memory, 0, VK_WHOLE_SIZE, 0, &mapped), VK_SUCCESS);
    for (int cached = 0; cached < 2; cached++) {
        static const VkMemoryPropertyFlags told[] = {COHERENT | VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, COHERENT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT};
        range = (dart_vulkan_buffer){.buffer = theirs, .bytes = ALL, .usage = VK_BUFFER_USAGE, .memory = told[cached], .mapped = mapped};
        assert_int_equal(dart_vulkan_wrap(device, &range, &buffer), DART_OK);
        fault.submissions = 0;
        for (int i = 0; i < T * W; i++) y[i] = (float)(i + cached);
        assert_int_equal(dart_buffer_write(buffer, Y_AT, y, BYTES), DART_OK);
        assert_int_equal(fault.submissions, 0);
        assert_int_equal(dart_buffer_read(buffer, Y_AT, expected, BYTES), DART_OK);
        assert_int_equal(fault.submissions, !cached);
        assert_memory_equal(expected, y, BYTES);
        assert_int_equal(dart_buffer_read(buffer, Y_AT, expected, 8), DART_OK);
        assert_int_equal(fault.submissions, !cached);
        dart_buffer_destroy(&buffer);
    }
    dart_device_destroy(&device);
    h.vk.vkDestroyBuffer(h.device, theirs, NULL);
    h.vk.vkFreeMemory(h.device, memory, NULL);
    host_close(&h);
}

/* Where dartlm's own buffers lie, for the device and for the processor: at their first byte, also where margins surround them. */
void own_memory_is_told(void **unused)
{
    (void)unused;
    host h;
    host_open(&h, true);
    for (uint32_t margin = 0; margin <= 4096; margin += 4096) {
        dart_device *device = host_adopt(&h, &(dart_device_options){.unchecked = true, .margin = margin});
        dart_buffer *buffer = NULL;
        dart_vulkan_buffer place = {0};
        uint32_t words[64];
        for (uint32_t i = 0; i < COUNT_OF(words); i++) words[i] = 1000 + i;
        assert_int_equal(dart_buffer_create(device, sizeof words, &buffer), DART_OK);
        assert_int_equal(dart_buffer_write(buffer, 0, words, sizeof words), DART_OK);
        assert_int_equal(dart_vulkan_buffer_of(buffer, &place), DART_OK);
        assert_int_equal(place.bytes, sizeof words);
        assert_int_equal(place.offset, ((const vk_memory *)buffer->memory)->start + margin);
        if (place.mapped != NULL) assert_memory_equal(place.mapped, words, sizeof words);
        else print_message("  not mapped\n");
        dart_buffer_destroy(&buffer);
        dart_device_destroy(&device);
    }
    host_close(&h);
}

/* ---- Two queue families ---- */

static VkCommandBuffer begin_commands(const host *h, VkCommandPool pool)
{
    VkCommandBuffer commands;
    const VkCommandBufferAllocateInfo one = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool, .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    assert_int_equal(h->vk.vkAllocateCommandBuffers(h->device, &one, &commands), VK_SUCCESS);
    assert_int_equal(h->vk.vkBeginCommandBuffer(commands, &begin), VK_SUCCESS);
    return commands;
}

static void submit_between(const host *h, VkQueue queue, VkCommandBuffer commands, VkSemaphore semaphore, uint64_t wait, uint64_t signal)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = wait != 0, .pWaitSemaphoreValues = &wait,
                                                  .signalSemaphoreValueCount = signal != 0, .pSignalSemaphoreValues = &signal};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &values, .commandBufferCount = 1, .pCommandBuffers = &commands,
                                 .waitSemaphoreCount = wait != 0, .pWaitSemaphores = &semaphore, .pWaitDstStageMask = &stage,
                                 .signalSemaphoreCount = signal != 0, .pSignalSemaphores = &semaphore};
    assert_int_equal(h->vk.vkEndCommandBuffer(commands), VK_SUCCESS);
    assert_int_equal(h->vk.vkQueueSubmit(queue, 1, &submit, VK_NULL_HANDLE), VK_SUCCESS);
}

/* The graphics queue copies the inputs into dartlm's own buffer, dartlm's queue computes, and the graphics queue copies the result: one timeline
 * orders them. */
void a_separate_queue_works_beside_graphics(void **unused)
{
    (void)unused;
    host h;
    float expected[T * W], y[T * W];
    host_open(&h, true);
    dart_device *device = NULL;
    dart_device_info info;
    if (h.other == VK_NULL_HANDLE) {
        const dart_vulkan_adopt_args args = {.instance = h.instance, .physical_device = h.physical, .device = h.device,
            .get_instance_proc_addr = host_get(), .api_version = VK_API_VERSION_1_3, .queue_family = h.needs->queue_family};
        assert_int_equal(dart_device_adopt(h.context, &args, &(dart_device_options){.separate_queue = true}, &device), DART_UNSUPPORTED);
        assert_null(device);
        print_message("  not run: no family for compute alone\n");
        host_close(&h);
        skip();
    }
    device = host_adopt(&h, &(dart_device_options){.separate_queue = true});
    dart_device_describe(device, &info);
    assert_true(info.separate_queue);
    expect(expected, ~info.capabilities);
    VkDeviceMemory memory;
    const VkBuffer theirs = host_buffer(&h, VK_BUFFER_USAGE, &(VkMemoryPropertyFlags){0}, &memory);
    dart_buffer *wrapped = NULL, *ours = NULL;
    dart_stream *stream = NULL;
    assert_int_equal(dart_vulkan_wrap(device, &(dart_vulkan_buffer){.buffer = theirs, .bytes = ALL, .usage = VK_BUFFER_USAGE}, &wrapped), DART_OK);
    write_inputs(wrapped);
    assert_int_equal(dart_buffer_create(device, ALL, &ours), DART_OK);
    dart_vulkan_buffer place;
    assert_int_equal(dart_vulkan_buffer_of(ours, &place), DART_OK);
    VkSemaphore semaphore;
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo made = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    assert_int_equal(h.vk.vkCreateSemaphore(h.device, &made, NULL, &semaphore), VK_SUCCESS);
    VkCommandPool pool;
    const VkCommandPoolCreateInfo of = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .queueFamilyIndex = h.other_family};
    assert_int_equal(h.vk.vkCreateCommandPool(h.device, &of, NULL, &pool), VK_SUCCESS);
    /* Last first: each waits for the one before it. */
    const VkCommandBuffer after = begin_commands(&h, pool), before = begin_commands(&h, pool);
    h.vk.vkCmdCopyBuffer(after, place.buffer, theirs, 1, &(VkBufferCopy){place.offset + Y_AT, ALL + Y_AT, BYTES});
    h.vk.vkCmdCopyBuffer(before, theirs, place.buffer, 1, &(VkBufferCopy){0, place.offset, Y_AT});
    const dart_vulkan_semaphore wait = {semaphore, 1}, signal = {semaphore, 2};
    assert_int_equal(dart_stream_create(device, NULL, &stream), DART_OK);
    assert_int_equal(linear(stream, ours), DART_OK);
    const dart_vulkan_submit_args order = {.waits = &wait, .signals = &signal, .waits_count = 1, .signals_count = 1};
    assert_int_equal(dart_vulkan_submit(stream, &order), DART_OK);
    submit_between(&h, h.other, before, semaphore, 0, 1);
    submit_between(&h, h.other, after, semaphore, 2, 3);
    assert_int_equal(dart_stream_wait(stream, UINT64_MAX), DART_OK);
    const uint64_t end = 3;
    const VkSemaphoreWaitInfo all = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1, .pSemaphores = &semaphore, .pValues = &end};
    assert_int_equal(h.vk.vkWaitSemaphores(h.device, &all, UINT64_MAX), VK_SUCCESS);
    dart_buffer *result = NULL;
    const dart_vulkan_buffer half = {.buffer = theirs, .offset = ALL, .bytes = ALL, .usage = VK_BUFFER_USAGE};
    assert_int_equal(dart_vulkan_wrap(device, &half, &result), DART_OK);
    assert_int_equal(dart_buffer_read(result, Y_AT, y, BYTES), DART_OK);
    rig_same_bits("between two copies of another queue", y, expected, T * W);
    dart_buffer_destroy(&result);
    dart_buffer_destroy(&wrapped);
    dart_buffer_destroy(&ours);
    dart_stream_destroy(&stream);
    dart_device_destroy(&device);
    h.vk.vkDestroyCommandPool(h.device, pool, NULL);
    h.vk.vkDestroySemaphore(h.device, semaphore, NULL);
    h.vk.vkDestroyBuffer(h.device, theirs, NULL);
    h.vk.vkFreeMemory(h.device, memory, NULL);
    host_close(&h);
}

/* ---- Descriptors ---- */

/* A device of dartlm's own fills memory of the adopted one and signals; the host's queue waits for that. */
void an_adopted_device_shares(void **unused)
{
    (void)unused;
    host h;
    float y[8];
    dart_context *context = NULL;
    dart_device *other = NULL;
    dart_buffer *ours = NULL, *theirs = NULL;
    dart_semaphore *signal = NULL, *wait = NULL;
    dart_stream *stream = NULL;
    int fd = -1;
    uint64_t allocated = 0;
    host_open(&h, true);
    dart_device *device = host_adopt(&h, &(dart_device_options){.unchecked = true});
    assert_int_equal(dart_context_create(NULL, &context), DART_OK);
    assert_int_equal(dart_device_open(context, &(dart_device_options){.spec = rig_spec, .unchecked = true}, &other), DART_OK);
    /* As much as a device that dartlm opens itself. */
    assert_int_equal(dart_buffer_create_shared(other, ALL, &theirs), DART_OK);
    dart_buffer_destroy(&theirs);
    assert_int_equal(dart_buffer_create_shared(device, ALL, &ours), DART_OK);
    assert_int_equal(dart_buffer_export(ours, &fd, &allocated), DART_OK);
    assert_int_equal(dart_buffer_import(other, fd, allocated, ALL, &theirs), DART_OK);
    bool binary = false;
    dart_status status = dart_semaphore_create_shared(device, binary, &wait);
    if (status == DART_UNSUPPORTED) status = dart_semaphore_create_shared(device, binary = true, &wait);
    assert_int_equal(dart_semaphore_create_shared(other, binary, &signal), status);
    dart_semaphore_destroy(&signal);
    assert_int_equal(dart_stream_create(other, NULL, &stream), DART_OK);
    for (int i = 100; i >= 0; i--)
        assert_int_equal(dart_fill(stream, &(dart_fill_args){.T = 1, .W = 8, .value = (float)i, .y = {.buffer = theirs}}), DART_OK);
    if (status == DART_OK) {
        VkSemaphore semaphore = VK_NULL_HANDLE;
        VkCommandPool pool;
        const VkCommandPoolCreateInfo of = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .queueFamilyIndex = h.needs->queue_family};
        assert_int_equal(dart_semaphore_export(wait, &fd), DART_OK);
        assert_int_equal(dart_semaphore_import(other, fd, binary, &signal), DART_OK);
        assert_int_equal(dart_vulkan_semaphore_of(wait, &semaphore), DART_OK);
        const dart_submit_args order = {.signals = &(dart_semaphore_value){signal, 1}, .signals_count = 1};
        assert_int_equal(dart_stream_submit_ordered(stream, &order), DART_OK);
        assert_int_equal(h.vk.vkCreateCommandPool(h.device, &of, NULL, &pool), VK_SUCCESS);
        submit_between(&h, h.queue, begin_commands(&h, pool), semaphore, 1, 0);
        assert_int_equal(h.vk.vkQueueWaitIdle(h.queue), VK_SUCCESS);
        h.vk.vkDestroyCommandPool(h.device, pool, NULL);
        print_message("  memory and a %s semaphore\n", binary ? "binary" : "timeline");
    } else {
        assert_int_equal(status, DART_UNSUPPORTED);
        assert_int_equal(dart_stream_submit(stream), DART_OK);
        assert_int_equal(dart_stream_wait(stream, UINT64_MAX), DART_OK);
        print_message("  memory; semaphores: not run, the driver shares none\n");
    }
    assert_int_equal(dart_buffer_read(ours, 0, y, sizeof y), DART_OK);
    for (int i = 0; i < 8; i++) assert_true(y[i] == 0);
    dart_stream_destroy(&stream);
    dart_semaphore_destroy(&signal);
    dart_semaphore_destroy(&wait);
    dart_buffer_destroy(&theirs);
    dart_buffer_destroy(&ours);
    dart_device_destroy(&other);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    host_close(&h);
}
