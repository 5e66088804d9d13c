#include "vk.h"

#include <stdlib.h>

dart_status vk_device_create(void *self, uint32_t index, const dart_device_options *options, uint32_t capabilities,
                             base_report *report, void **out)
{
    const vk_instance *instance = self;
    REQUIRE(report, index < instance->adapters_count, "Vulkan device %u of %u", index, instance->adapters_count);
    const vk_adapter *adapter = &instance->adapters[index];
    if (!adapter->info.usable)
        return base_fail(report, DART_UNSUPPORTED, "%s: %s", adapter->info.name, adapter->info.why_not);
    if (options->low_priority && (instance->adopted != NULL || adapter->priority_extension == NULL))
        return base_fail(report, DART_UNSUPPORTED, "low_priority: %s", instance->adopted != NULL ? "the host has made the queue"
                                                                                                 : "the driver knows no global priorities of queues");
    const vk_family family = options->separate_queue ? adapter->separate : adapter->family;
    if (family.index == UINT32_MAX || (options->separate_queue && instance->adopted != NULL && family.index != adapter->family.index))
        return base_fail(report, DART_UNSUPPORTED, "separate_queue: %s",
                         instance->adopted != NULL ? "the host's queue is of a family with graphics"
                                                   : "the device has no queues for compute without graphics");
    vk_device *device = calloc(1, sizeof(*device));
    if (device == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "Vulkan device");
    device->instance = instance;
    device->adapter = adapter;
    device->report = report;
    device->family = family;
    device->families[device->families_count++] = family.index;
    device->profiled = options->profile != NULL;
    device->directed = options->backwards != 0 || adapter->turns;
    device->capabilities = capabilities & (adapter->info.capabilities | DART_CAP_SPEED);
    /* Only launches with DART_CAP_RESIDENT, and window_folds, find memory by address: buffers of other devices do without. */
    if ((device->capabilities & (DART_CAP_RESIDENT | DART_CAP_MATRIX_BF16)) == 0) device->capabilities &= ~(uint32_t)DART_CAP_ADDRESSES;
    atomic_init(&device->lost, false);
    dart_status status = DART_OK;
    for (; device->mutexes_count < VK_MUTEX_COUNT; device->mutexes_count++) {
        if (base_mutex_init(&device->mutexes[device->mutexes_count]) != DART_OK)
            FAIL(report, DART_OUT_OF_MEMORY, "Vulkan device: no lock");
    }
    for (; device->conditions_count < VK_CONDITION_COUNT; device->conditions_count++) {
        if (base_condition_init(&device->conditions[device->conditions_count]) != DART_OK)
            FAIL(report, DART_OUT_OF_MEMORY, "Vulkan device: no condition");
    }
    const dart_vulkan_adopt_args *host = instance->adopted;
    if (host != NULL) {
        device->adopted = true;
        device->lock_queue = host->lock_queue;
        device->unlock_queue = host->unlock_queue;
        device->queue_user = host->queue_user;
        device->lost_callback = host->lost;
        device->lost_user = host->lost_user;
        device->handle = host->device;
        for (uint32_t i = 0; i < host->families_count; i++) { /* each once, as vkCreateBuffer wants them */
            bool known = false;
            for (uint32_t k = 0; k < device->families_count; k++) known = known || device->families[k] == host->families[i];
            if (!known) device->families[device->families_count++] = host->families[i];
        }
    }
    const VkResult result =
        host != NULL ? VK_SUCCESS : vk_capabilities_enable(instance, adapter, device->capabilities, &family,
                                                            options->low_priority, &device->handle);
    if (result != VK_SUCCESS) {
        device->handle = VK_NULL_HANDLE;
        TRY(vk_report(report, result, "vkCreateDevice"));
    }
    vk_instance_load_device(instance, device->handle, &device->vk);
    device->vk.vkGetDeviceQueue(device->handle, family.index, host != NULL ? host->queue_index : 0, &device->queue);
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
        vk_transfers_destroy(device);
        vk_pipelines_destroy(device);
        if (!device->adopted) device->vk.vkDestroyDevice(device->handle, NULL);
    }
    while (device->conditions_count > 0) base_condition_destroy(&device->conditions[--device->conditions_count]);
    while (device->mutexes_count > 0) base_mutex_destroy(&device->mutexes[--device->mutexes_count]);
    free(device);
}
