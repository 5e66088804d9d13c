#include "vk.h"

#include <stdio.h>
#include <stdlib.h>

static const char *result_name(VkResult result)
{
    switch ((int)result) {
#define NAME(code) \
    case code: return #code;
        NAME(VK_NOT_READY)
        NAME(VK_TIMEOUT)
        NAME(VK_INCOMPLETE)
        NAME(VK_ERROR_OUT_OF_HOST_MEMORY)
        NAME(VK_ERROR_OUT_OF_DEVICE_MEMORY)
        NAME(VK_ERROR_INITIALIZATION_FAILED)
        NAME(VK_ERROR_DEVICE_LOST)
        NAME(VK_ERROR_MEMORY_MAP_FAILED)
        NAME(VK_ERROR_LAYER_NOT_PRESENT)
        NAME(VK_ERROR_EXTENSION_NOT_PRESENT)
        NAME(VK_ERROR_FEATURE_NOT_PRESENT)
        NAME(VK_ERROR_INCOMPATIBLE_DRIVER)
        NAME(VK_ERROR_TOO_MANY_OBJECTS)
        NAME(VK_ERROR_FRAGMENTED_POOL)
        NAME(VK_ERROR_OUT_OF_POOL_MEMORY)
        NAME(VK_ERROR_INVALID_SHADER_NV)
        NAME(VK_ERROR_UNKNOWN)
#undef NAME
    }
    return NULL;
}

static dart_status result_status(VkResult result)
{
    switch ((int)result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_OUT_OF_POOL_MEMORY:
    case VK_ERROR_FRAGMENTED_POOL:
    case VK_ERROR_TOO_MANY_OBJECTS:
    case VK_ERROR_MEMORY_MAP_FAILED: return DART_OUT_OF_MEMORY;
    case VK_ERROR_DEVICE_LOST: return DART_DEVICE_LOST;
    case VK_TIMEOUT: return DART_TIMEOUT;
    case VK_ERROR_INITIALIZATION_FAILED:
    case VK_ERROR_LAYER_NOT_PRESENT:
    case VK_ERROR_EXTENSION_NOT_PRESENT:
    case VK_ERROR_FEATURE_NOT_PRESENT:
    case VK_ERROR_INCOMPATIBLE_DRIVER: return DART_UNSUPPORTED;
    default: return DART_INTERNAL;
    }
}

dart_status vk_report(base_report *report, VkResult result, const char *call)
{
    const char *name = result_name(result);
    if (name == NULL) return base_fail(report, result_status(result), "%s: VkResult %d", call, (int)result);
    return base_fail(report, result_status(result), "%s: %s", call, name);
}

dart_status vk_fail(vk_device *device, VkResult result, const char *call)
{
    if (result == VK_ERROR_DEVICE_LOST) return vk_device_lose(device, call);
    return vk_report(device->report, result, call);
}

dart_status vk_device_lose(vk_device *device, const char *reason)
{
    atomic_store(&device->lost, true);
    return base_fail(device->report, DART_DEVICE_LOST, "%s: the device is lost", reason);
}

dart_status vk_device_check(vk_device *device)
{
    if (!atomic_load(&device->lost)) return DART_OK;
    return base_fail(device->report, DART_DEVICE_LOST, "the device was lost before");
}

dart_status vk_device_create(void *self, uint32_t index, const dart_device_options *options, uint32_t capabilities,
                             base_report *report, void **out)
{
    const vk_instance *instance = self;
    REQUIRE(report, index < instance->adapters_count, "Vulkan device %u of %u", index, instance->adapters_count);
    const vk_adapter *adapter = &instance->adapters[index];
    if (!adapter->info.usable)
        return base_fail(report, DART_UNSUPPORTED, "%s: %s", adapter->info.name, adapter->info.why_not);
    vk_device *device = calloc(1, sizeof(*device));
    if (device == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "Vulkan device");
    device->instance = instance;
    device->adapter = adapter;
    device->report = report;
    device->profiled = options->profile != NULL;
    device->capabilities = capabilities & (adapter->info.capabilities | DART_CAP_SPEED);
    atomic_init(&device->lost, false);
    dart_status status = DART_OK;
    for (; device->mutexes_count < VK_MUTEX_COUNT; device->mutexes_count++) {
        if (base_mutex_init(&device->mutexes[device->mutexes_count]) != DART_OK)
            FAIL(report, DART_OUT_OF_MEMORY, "Vulkan device: no lock");
    }
    const VkResult result = vk_capabilities_enable(instance, adapter, device->capabilities, &device->handle);
    if (result != VK_SUCCESS) {
        device->handle = VK_NULL_HANDLE;
        TRY(vk_report(report, result, "vkCreateDevice"));
    }
    vk_instance_load_device(instance, device->handle, &device->vk);
    device->vk.vkGetDeviceQueue(device->handle, adapter->family, 0, &device->queue);
    TRY(vk_pipelines_create(device, options->cache, options->cache_bytes));
    *out = device;
    return DART_OK;
fail:
    vk_device_destroy(device);
    return status;
}

void vk_device_destroy(void *self)
{
    vk_device *device = self;
    if (device == NULL) return;
    if (device->handle != VK_NULL_HANDLE) {
        vk_transfer_destroy(device);
        vk_pipelines_destroy(device);
        device->vk.vkDestroyDevice(device->handle, NULL);
    }
    while (device->mutexes_count > 0) base_mutex_destroy(&device->mutexes[--device->mutexes_count]);
    free(device);
}

dart_status vk_device_submit(vk_device *device, const VkCommandBuffer *commands, uint32_t count, VkFence fence)
{
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = count, .pCommandBuffers = commands};
    base_lock(&device->mutexes[VK_MUTEX_QUEUE]);
    const VkResult result = device->vk.vkQueueSubmit(device->queue, 1, &info, fence);
    base_unlock(&device->mutexes[VK_MUTEX_QUEUE]);
    return result == VK_SUCCESS ? DART_OK : vk_fail(device, result, "vkQueueSubmit");
}
