/* dartlm/vulkan.h: the host's device, buffers, semaphores and command buffers. Above the backend: it makes public objects. */
#include "vk.h"

#include "runtime/device.h"
#include "runtime/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An instance that belongs to the host, with one adapter. NULL: no host memory, or a missing entry point. */
static vk_instance *borrow(VkInstance handle, VkPhysicalDevice physical, PFN_vkGetInstanceProcAddr get, uint32_t api_version,
                           const dart_vulkan_adopt_args *adopted, base_log *log, dart_status *status)
{
    vk_instance *instance = calloc(1, sizeof(*instance));
    vk_adapter *adapters = calloc(1, sizeof(*adapters));
    *status = DART_OUT_OF_MEMORY;
    if (instance == NULL || adapters == NULL) goto fail;
    instance->handle = handle;
    instance->borrowed = true;
    instance->api_version = api_version;
    instance->log = log;
    instance->adopted = adopted;
    *status = DART_INVALID_ARGUMENT;
#define LOAD(name) instance->vk.name = (PFN_##name)get(handle, #name);
#define NEED(name) \
    LOAD(name) \
    if (instance->vk.name == NULL) goto fail;
    VK_INSTANCE_FUNCTIONS(NEED)
    LOAD(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)
    LOAD(vkGetPhysicalDeviceExternalBufferProperties)
    LOAD(vkGetPhysicalDeviceExternalSemaphoreProperties)
#undef NEED
#undef LOAD
    vk_capabilities_probe(instance, physical, adapters);
    instance->adapters = adapters;
    instance->adapters_count = 1;
    *status = DART_OK;
    return instance;
fail:
    free(instance);
    free(adapters);
    return NULL;
}

/* ---- What to switch on ---- */

typedef struct needs_block {
    dart_vulkan_needs needs; /* first: the caller holds its address */
    vk_wanted wanted;
    VkPhysicalDeviceFeatures2 features;
} needs_block;

dart_status dart_vulkan_query(const dart_vulkan_query_args *args, dart_vulkan_needs **needs)
{
    if (args == NULL || needs == NULL || args->instance == NULL || args->physical_device == NULL || args->get_instance_proc_addr == NULL)
        return DART_INVALID_ARGUMENT;
    dart_status status;
    needs_block *block = calloc(1, sizeof(*block));
    if (block == NULL) return DART_OUT_OF_MEMORY;
    vk_instance *instance =
        borrow(args->instance, args->physical_device, args->get_instance_proc_addr, args->api_version, NULL, NULL, &status);
    if (instance == NULL) {
        free(block);
        return status;
    }
    const vk_adapter *adapter = &instance->adapters[0];
    vk_capabilities_wanted(adapter, adapter->info.capabilities & ~(uint32_t)DART_CAP_ADDRESSES, &block->wanted);
    block->features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    block->features.pNext = block->wanted.first;
    block->needs.usable = adapter->info.usable;
    memcpy(block->needs.why_not, adapter->info.why_not, sizeof(block->needs.why_not));
    block->needs.extensions = block->wanted.extensions;
    block->needs.extensions_count = block->wanted.extensions_count;
    block->needs.required_count = block->wanted.required_count;
    block->needs.features = &block->features;
    block->needs.queue_family = adapter->family.index;
    block->needs.separate_family = adapter->separate.index;
    vk_instance_destroy(instance);
    *needs = &block->needs;
    return DART_OK;
}

void dart_vulkan_needs_destroy(dart_vulkan_needs **needs)
{
    if (needs == NULL) return;
    free(*needs);
    *needs = NULL;
}

/* ---- Adopting ---- */

/* A driver need not notice a queue that it does not have. */
static dart_status check_queues(const vk_instance *instance, const dart_vulkan_adopt_args *args, base_report *report)
{
    uint32_t count = VK_FAMILIES_LISTED;
    VkQueueFamilyProperties families[VK_FAMILIES_LISTED];
    instance->vk.vkGetPhysicalDeviceQueueFamilyProperties(args->physical_device, &count, families);
    REQUIRE(report, args->queue_family < count, "dart_device_adopt: queue family %u of %u", args->queue_family, count);
    const VkQueueFamilyProperties *own = &families[args->queue_family];
    REQUIRE(report, (own->queueFlags & VK_QUEUE_COMPUTE_BIT) != 0, "dart_device_adopt: queue family %u does not compute", args->queue_family);
    REQUIRE(report, args->queue_index < own->queueCount, "dart_device_adopt: queue %u of %u in family %u", args->queue_index, own->queueCount,
            args->queue_family);
    for (uint32_t i = 0; i < args->families_count; i++)
        REQUIRE(report, args->families[i] < count, "dart_device_adopt: families[%u] is family %u of %u", i, args->families[i], count);
    return DART_OK;
}

dart_status dart_device_adopt(dart_context *context, const dart_vulkan_adopt_args *args, const dart_device_options *options,
                              dart_device **device)
{
    if (context == NULL) return DART_INVALID_ARGUMENT;
    base_report *report = context_report(context);
    REQUIRE(report, args != NULL && device != NULL, "dart_device_adopt: no arguments, or no place for the device");
    REQUIRE(report, args->instance != NULL && args->physical_device != NULL && args->device != NULL && args->get_instance_proc_addr != NULL,
            "dart_device_adopt: needs instance, physical_device, device and get_instance_proc_addr");
    REQUIRE(report, args->extensions != NULL || args->extensions_count == 0, "dart_device_adopt: no names of extensions");
    for (uint32_t i = 0; i < args->extensions_count; i++)
        REQUIRE(report, args->extensions[i] != NULL, "dart_device_adopt: extension %u has no name", i);
    REQUIRE(report, (args->lock_queue == NULL) == (args->unlock_queue == NULL), "dart_device_adopt: lock_queue and unlock_queue go together");
    REQUIRE(report, (args->families != NULL || args->families_count == 0) && args->families_count < VK_MAX_FAMILIES,
            "dart_device_adopt: at most %u queue families beside dartlm's", VK_MAX_FAMILIES - 1);
    dart_status status;
    vk_instance *instance = borrow(args->instance, args->physical_device, args->get_instance_proc_addr, args->api_version, args,
                                   report->log, &status);
    if (instance == NULL)
        return base_fail(report, status, "dart_device_adopt: %s",
                         status == DART_OUT_OF_MEMORY ? "no host memory" : "the instance lacks functions of Vulkan 1.2");
    status = check_queues(instance, args, report);
    if (status != DART_OK) {
        vk_instance_destroy(instance);
        return status;
    }
    dart_device *made = NULL;
    status = context_open_device(context, &vulkan_backend, instance, 0, true, options, &made);
    if (status != DART_OK) return status;
    instance->adopted = NULL; /* the caller's memory */
    *device = made;
    return DART_OK;
}

static bool is_vulkan(const dart_device *device) { return device->info.backend == DART_BACKEND_VULKAN; }

/* ---- Buffers ---- */

dart_status dart_vulkan_wrap(dart_device *device, const dart_vulkan_buffer *range, dart_buffer **buffer)
{
    if (device == NULL) return DART_INVALID_ARGUMENT;
    base_report *report = &device->report;
    REQUIRE(report, range != NULL && buffer != NULL && range->buffer != VK_NULL_HANDLE, "dart_vulkan_wrap: needs a buffer and a place for ours");
    if (!is_vulkan(device)) return base_fail(report, DART_UNSUPPORTED, "dart_vulkan_wrap: not a Vulkan device");
    vk_device *d = device->handle;
    const uint64_t alignment = base_larger(d->adapter->offset_alignment, 4);
    REQUIRE(report, (range->usage & VK_BUFFER_USAGE_STORAGE_BUFFER_BIT) != 0, "dart_vulkan_wrap: the buffer is no storage buffer");
    REQUIRE(report, range->bytes > 0 && range->bytes % 4 == 0 && range->offset % alignment == 0,
            "dart_vulkan_wrap: %llu bytes at %llu; bytes must be a multiple of 4, the offset of %llu", (unsigned long long)range->bytes,
            (unsigned long long)range->offset, (unsigned long long)alignment);
    const VkMemoryPropertyFlags coherent = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    REQUIRE(report, range->mapped == NULL || (range->memory & coherent) == coherent,
            "dart_vulkan_wrap: mapped needs memory that is HOST_VISIBLE and HOST_COHERENT; leave it NULL for other memory");
    dart_status status = device_fault(device);
    if (status == DART_OK) status = vk_device_check(d);
    if (status != DART_OK) return status;
    VkMemoryRequirements needs;
    d->vk.vkGetBufferMemoryRequirements(d->handle, range->buffer, &needs);
    REQUIRE(report, range->offset <= needs.size && range->bytes <= needs.size - range->offset,
            "dart_vulkan_wrap: bytes %llu to %llu of a buffer of %llu", (unsigned long long)range->offset,
            (unsigned long long)(range->offset + range->bytes), (unsigned long long)needs.size);
    dart_buffer *made = device_calloc(device, 1, sizeof(*made));
    vk_memory *memory = made != NULL ? device_calloc(device, 1, sizeof(*memory)) : NULL;
    if (memory == NULL) {
        free(made);
        return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    }
    memory->buffer = range->buffer;
    memory->start = range->offset;
    memory->bytes = range->bytes;
    memory->usage = range->usage;
    memory->flags = range->memory;
    memory->mapped = range->mapped;
    memory->wrapped = true;
    made->device = device;
    made->memory = memory;
    made->bytes = range->bytes;
    made->wrapped = true;
    *buffer = made;
    return DART_OK;
}

dart_status dart_vulkan_buffer_of(const dart_buffer *buffer, dart_vulkan_buffer *range)
{
    if (buffer == NULL || range == NULL) return DART_INVALID_ARGUMENT;
    if (!is_vulkan(buffer->device)) return base_fail(&buffer->device->report, DART_UNSUPPORTED, "dart_vulkan_buffer_of: not a Vulkan device");
    const vk_memory *memory = buffer->memory;
    *range = (dart_vulkan_buffer){.buffer = memory->buffer, .offset = memory->start + buffer->margin, .bytes = buffer->bytes, .usage = memory->usage,
                                  .memory = memory->flags, .mapped = memory->mapped != NULL ? memory->mapped + buffer->margin : NULL};
    return DART_OK;
}

/* ---- Streams ---- */

/* As the backend takes them. False: a value, but the device has no timelines. */
static bool translate(const vk_device *device, const dart_vulkan_semaphore *list, uint32_t count, vk_semaphore *handles, backend_signal *to)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].value != 0 && !device->adapter->timeline) return false;
        handles[i].handle = list[i].semaphore;
        to[i] = (backend_signal){&handles[i], list[i].value};
    }
    return true;
}

dart_status dart_vulkan_submit(dart_stream *stream, const dart_vulkan_submit_args *args)
{
    if (stream == NULL) return DART_INVALID_ARGUMENT;
    if (!is_vulkan(stream->device)) return base_fail(&stream->report, DART_UNSUPPORTED, "dart_vulkan_submit: not a Vulkan device");
    REQUIRE(&stream->report, args != NULL && (args->waits != NULL || args->waits_count == 0) && (args->signals != NULL || args->signals_count == 0),
            "dart_vulkan_submit: no semaphores");
    REQUIRE(&stream->report, args->waits_count <= BACKEND_MAX_SIGNALS && args->signals_count <= BACKEND_MAX_SIGNALS && !stream->options.warm,
            "dart_vulkan_submit: at most %u semaphores each, and no stream with options.warm", BACKEND_MAX_SIGNALS);
    for (uint32_t i = 0; i < args->waits_count; i++)
        REQUIRE(&stream->report, args->waits[i].semaphore != VK_NULL_HANDLE, "dart_vulkan_submit: wait %u has no semaphore", i);
    for (uint32_t i = 0; i < args->signals_count; i++)
        REQUIRE(&stream->report, args->signals[i].semaphore != VK_NULL_HANDLE, "dart_vulkan_submit: signal %u has no semaphore", i);
    const vk_device *device = stream->device->handle;
    vk_semaphore handles[2][BACKEND_MAX_SIGNALS];
    backend_signal waits[BACKEND_MAX_SIGNALS], signals[BACKEND_MAX_SIGNALS];
    if (!translate(device, args->waits, args->waits_count, handles[0], waits) ||
        !translate(device, args->signals, args->signals_count, handles[1], signals))
        return base_fail(&stream->report, DART_UNSUPPORTED, "dart_vulkan_submit: timelineSemaphore is not switched on");
    return stream_submit(stream, 1, &(backend_order){waits, signals, args->waits_count, args->signals_count});
}

dart_status dart_vulkan_semaphore_of(const dart_semaphore *semaphore, VkSemaphore *handle)
{
    if (semaphore == NULL || handle == NULL) return DART_INVALID_ARGUMENT;
    if (!is_vulkan(semaphore->device))
        return base_fail(&semaphore->device->report, DART_UNSUPPORTED, "dart_vulkan_semaphore_of: not a Vulkan device");
    *handle = ((const vk_semaphore *)semaphore->handle)->handle;
    return DART_OK;
}

dart_status dart_vulkan_record(dart_stream *stream, VkCommandBuffer commands)
{
    if (stream == NULL) return DART_INVALID_ARGUMENT;
    const dart_device *device = stream->device;
    if (!is_vulkan(device) || device->profile != NULL || stream->options.warm)
        return base_fail(&stream->report, DART_UNSUPPORTED,
                         "dart_vulkan_record: not a Vulkan device, or one that is profiled, or a stream with options.warm");
    REQUIRE(&stream->report, commands != NULL, "dart_vulkan_record: no command buffer");
    vk_stream_target(stream->handle, commands);
    const dart_status status = dart_stream_begin(stream);
    vk_stream_target(stream->handle, NULL);
    return status;
}
