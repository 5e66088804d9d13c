#include "vk.h"

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
        NAME(VK_ERROR_INVALID_EXTERNAL_HANDLE)
        NAME(VK_ERROR_MEMORY_MAP_FAILED)
        NAME(VK_ERROR_LAYER_NOT_PRESENT)
        NAME(VK_ERROR_EXTENSION_NOT_PRESENT)
        NAME(VK_ERROR_FEATURE_NOT_PRESENT)
        NAME(VK_ERROR_INCOMPATIBLE_DRIVER)
        NAME(VK_ERROR_TOO_MANY_OBJECTS)
        NAME(VK_ERROR_FRAGMENTED_POOL)
        NAME(VK_ERROR_OUT_OF_POOL_MEMORY)
        NAME(VK_ERROR_INVALID_SHADER_NV)
        NAME(VK_ERROR_NOT_PERMITTED_KHR)
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
    case VK_ERROR_INVALID_EXTERNAL_HANDLE: return DART_INVALID_ARGUMENT;
    case VK_ERROR_DEVICE_LOST: return DART_DEVICE_LOST;
    case VK_TIMEOUT: return DART_TIMEOUT;
    case VK_ERROR_INITIALIZATION_FAILED:
    case VK_ERROR_LAYER_NOT_PRESENT:
    case VK_ERROR_EXTENSION_NOT_PRESENT:
    case VK_ERROR_FEATURE_NOT_PRESENT:
    case VK_ERROR_NOT_PERMITTED_KHR:
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
    if (!atomic_exchange(&device->lost, true) && device->lost_callback != NULL) device->lost_callback(device->lost_user);
    return base_fail(device->report, DART_DEVICE_LOST, "%s: the device is lost", reason);
}

dart_status vk_device_check(vk_device *device)
{
    if (!atomic_load(&device->lost)) return DART_OK;
    return base_fail(device->report, DART_DEVICE_LOST, "the device was lost before");
}

dart_status vk_device_submit(vk_device *device, const VkCommandBuffer *commands, uint32_t count, VkFence fence, const backend_order *order)
{
    VkSemaphore waits[BACKEND_MAX_SIGNALS], signals[BACKEND_MAX_SIGNALS];
    uint64_t wait_values[BACKEND_MAX_SIGNALS], signal_values[BACKEND_MAX_SIGNALS];
    VkPipelineStageFlags stages[BACKEND_MAX_SIGNALS];
    VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                            .pWaitSemaphoreValues = wait_values,
                                            .pSignalSemaphoreValues = signal_values};
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = count, .pCommandBuffers = commands};
    if (order != NULL) {
        for (uint32_t i = 0; i < order->waits_count; i++) {
            waits[i] = ((const vk_semaphore *)order->waits[i].semaphore)->handle;
            wait_values[i] = order->waits[i].value;
            stages[i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
        }
        for (uint32_t i = 0; i < order->signals_count; i++) {
            signals[i] = ((const vk_semaphore *)order->signals[i].semaphore)->handle;
            signal_values[i] = order->signals[i].value;
        }
        info.waitSemaphoreCount = values.waitSemaphoreValueCount = order->waits_count;
        info.signalSemaphoreCount = values.signalSemaphoreValueCount = order->signals_count;
        info.pWaitSemaphores = waits;
        info.pWaitDstStageMask = stages;
        info.pSignalSemaphores = signals;
        if (device->adapter->timeline) info.pNext = &values;
    }
    /* The host's lock first: the lock of this device then never waits inside it for another. */
    if (device->lock_queue != NULL) device->lock_queue(device->queue_user);
    base_lock(&device->mutexes[VK_MUTEX_QUEUE]);
    const VkResult result = device->vk.vkQueueSubmit(device->queue, 1, &info, fence);
    base_unlock(&device->mutexes[VK_MUTEX_QUEUE]);
    if (device->unlock_queue != NULL) device->unlock_queue(device->queue_user);
    return result == VK_SUCCESS ? DART_OK : vk_fail(device, result, "vkQueueSubmit");
}
