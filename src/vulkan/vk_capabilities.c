#include "vk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What every kernel of the table may use on any device. */
#define NEED_INVOCATIONS 128u
#define NEED_SHARED_BYTES 16384u
#define SUBGROUP_OPERATIONS (VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT)
/* Kernels count elements of a binding in 32 bits, and grids stay within what every device runs. */
#define MAX_BINDING_BYTES ((UINT64_C(1) << 32) - BACKEND_ALIGN)
#define MAX_GROUPS 65535u
/* Workgroups of kernels with subgroup operations are multiples of this. */
#define SUBGROUP_MULTIPLE 64u

static dart_device_type device_type(VkPhysicalDeviceType type)
{
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return DART_DEVICE_DISCRETE;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return DART_DEVICE_INTEGRATED;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return DART_DEVICE_VIRTUAL;
    case VK_PHYSICAL_DEVICE_TYPE_CPU: return DART_DEVICE_CPU;
    default: return DART_DEVICE_OTHER;
    }
}

typedef struct extension_set {
    bool size_control;
    bool portability_subset;
} extension_set;

static extension_set find_extensions(const vk_instance *instance, VkPhysicalDevice handle)
{
    extension_set set = {false, false};
    uint32_t count = 0;
    if (instance->vk.vkEnumerateDeviceExtensionProperties(handle, NULL, &count, NULL) != VK_SUCCESS || count == 0)
        return set;
    VkExtensionProperties *list = calloc(count, sizeof(*list));
    if (list == NULL) return set;
    if (instance->vk.vkEnumerateDeviceExtensionProperties(handle, NULL, &count, list) >= VK_SUCCESS) {
        for (uint32_t i = 0; i < count; i++) {
            const char *name = list[i].extensionName;
            if (strcmp(name, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME) == 0) set.size_control = true;
            if (strcmp(name, "VK_KHR_portability_subset") == 0) set.portability_subset = true;
        }
    }
    free(list);
    return set;
}

/* A family of its own for compute, where a discrete device has one, runs beside the display's work. */
static bool find_family(const vk_instance *instance, vk_adapter *adapter)
{
    uint32_t count = 0;
    instance->vk.vkGetPhysicalDeviceQueueFamilyProperties(adapter->handle, &count, NULL);
    if (count == 0) return false;
    VkQueueFamilyProperties *families = calloc(count, sizeof(*families));
    if (families == NULL) return false;
    instance->vk.vkGetPhysicalDeviceQueueFamilyProperties(adapter->handle, &count, families);
    bool found = false;
    bool found_alone = false;
    for (uint32_t i = 0; i < count; i++) {
        if ((families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) == 0 || families[i].queueCount == 0) continue;
        const bool alone = adapter->info.type == DART_DEVICE_DISCRETE &&
                           (families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT) == 0;
        if (found && (found_alone || !alone)) continue;
        found = true;
        found_alone = alone;
        adapter->family = i;
        adapter->timestamp_bits = families[i].timestampValidBits;
    }
    free(families);
    return found;
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void reject(dart_device_info *info, const char *format, ...)
{
    if (info->why_not[0] != '\0') return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(info->why_not, sizeof(info->why_not), format, arguments);
    va_end(arguments);
}

static void check_limits(const VkPhysicalDeviceLimits *limits, dart_device_info *info)
{
    if (limits->maxPerStageDescriptorStorageBuffers < KERNEL_MAX_BINDINGS ||
        limits->maxDescriptorSetStorageBuffers < KERNEL_MAX_BINDINGS ||
        limits->maxPerStageResources < KERNEL_MAX_BINDINGS)
        reject(info, "%u storage buffers per stage, %d needed", limits->maxPerStageDescriptorStorageBuffers,
               KERNEL_MAX_BINDINGS);
    if (limits->maxComputeWorkGroupInvocations < NEED_INVOCATIONS ||
        limits->maxComputeWorkGroupSize[0] < NEED_INVOCATIONS)
        reject(info, "%u invocations in a workgroup, %u needed", limits->maxComputeWorkGroupInvocations,
               NEED_INVOCATIONS);
    if (limits->maxComputeSharedMemorySize < NEED_SHARED_BYTES)
        reject(info, "%u bytes of shared memory, %u needed", limits->maxComputeSharedMemorySize, NEED_SHARED_BYTES);
    if (limits->maxPushConstantsSize < KERNEL_MAX_ARGS)
        reject(info, "%u bytes of push constants, %d needed", limits->maxPushConstantsSize, KERNEL_MAX_ARGS);
    if (limits->minStorageBufferOffsetAlignment > BACKEND_ALIGN)
        reject(info, "storage buffers aligned to %llu bytes, %u expected",
               (unsigned long long)limits->minStorageBufferOffsetAlignment, BACKEND_ALIGN);
}

void vk_capabilities_probe(const vk_instance *instance, VkPhysicalDevice handle, vk_adapter *adapter)
{
    dart_device_info *info = &adapter->info;
    adapter->handle = handle;
    VkPhysicalDeviceProperties base;
    instance->vk.vkGetPhysicalDeviceProperties(handle, &base);
    info->backend = DART_BACKEND_VULKAN;
    info->type = device_type(base.deviceType);
    snprintf(info->name, sizeof(info->name), "%s", base.deviceName);
    snprintf(info->driver, sizeof(info->driver), "driver version 0x%x", base.driverVersion);
    if (base.apiVersion < VK_API_VERSION_1_2) {
        reject(info, "Vulkan %u.%u, 1.2 needed", VK_API_VERSION_MAJOR(base.apiVersion),
               VK_API_VERSION_MINOR(base.apiVersion));
        return;
    }

    const extension_set extensions = find_extensions(instance, handle);
    const bool core_size_control = base.apiVersion >= VK_API_VERSION_1_3;
    const bool size_control = core_size_control || extensions.size_control;
    adapter->size_control_extension = extensions.size_control && !core_size_control;
    adapter->portability_subset = extensions.portability_subset;

    VkPhysicalDeviceSubgroupSizeControlProperties sizes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
    VkPhysicalDeviceMaintenance4Properties buffers = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES,
        .pNext = size_control ? &sizes : NULL};
    VkPhysicalDeviceSubgroupProperties subgroup = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES,
        .pNext = core_size_control ? (void *)&buffers : (void *)(size_control ? &sizes : NULL)};
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES,
                                               .pNext = &subgroup};
    VkPhysicalDeviceIDProperties identity = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES,
                                             .pNext = &driver};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                              .pNext = &identity};
    instance->vk.vkGetPhysicalDeviceProperties2(handle, &properties);

    VkPhysicalDeviceSubgroupSizeControlFeatures size_features = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES};
    VkPhysicalDevice16BitStorageFeatures storage16 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES,
        .pNext = size_control ? &size_features : NULL};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &storage16};
    instance->vk.vkGetPhysicalDeviceFeatures2(handle, &features);

    if (driver.driverName[0] != '\0') {
        snprintf(info->driver, sizeof(info->driver), "%.200s%s%.50s", driver.driverName,
                 driver.driverInfo[0] != '\0' ? " " : "", driver.driverInfo);
    }
    memcpy(info->uuid, identity.deviceUUID, sizeof(info->uuid));
    const VkPhysicalDeviceLimits *limits = &base.limits;
    info->subgroup = subgroup.subgroupSize;
    info->shared_bytes = limits->maxComputeSharedMemorySize;
    info->max_binding_bytes = limits->maxStorageBufferRange / BACKEND_ALIGN * BACKEND_ALIGN;
    if (info->max_binding_bytes > MAX_BINDING_BYTES) info->max_binding_bytes = MAX_BINDING_BYTES;
    adapter->max_buffer_bytes = core_size_control ? buffers.maxBufferSize : UINT64_MAX;
    adapter->timestamp_period = limits->timestampPeriod;
    adapter->max_groups = limits->maxComputeWorkGroupCount[0];
    if (adapter->max_groups > MAX_GROUPS) adapter->max_groups = MAX_GROUPS;

    instance->vk.vkGetPhysicalDeviceMemoryProperties(handle, &adapter->memory);
    for (uint32_t i = 0; i < adapter->memory.memoryHeapCount; i++) {
        const VkMemoryHeap *heap = &adapter->memory.memoryHeaps[i];
        if ((heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0 && heap->size > info->memory_bytes)
            info->memory_bytes = heap->size;
    }
    if (!find_family(instance, adapter)) reject(info, "no compute queue");
    check_limits(limits, info);
    if (info->why_not[0] != '\0') return;

    info->usable = true;
    info->capabilities = DART_CAP_SPIRV;
    if (storage16.storageBuffer16BitAccess) info->capabilities |= DART_CAP_STORE16;
    adapter->require_full_subgroups =
        size_control && size_features.subgroupSizeControl && size_features.computeFullSubgroups;
    /* Where subgroups have one size only, whole multiples of it are full without asking. */
    const bool fixed_size = !size_control || sizes.minSubgroupSize == sizes.maxSubgroupSize;
    if ((subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0 &&
        (subgroup.supportedOperations & SUBGROUP_OPERATIONS) == SUBGROUP_OPERATIONS && subgroup.subgroupSize != 0 &&
        SUBGROUP_MULTIPLE % subgroup.subgroupSize == 0 && (adapter->require_full_subgroups || fixed_size))
        info->capabilities |= DART_CAP_SUBGROUP;
    vk_quirks_apply(&base, driver.driverID, info);
}

VkResult vk_capabilities_enable(const vk_instance *instance, const vk_adapter *adapter, uint32_t capabilities,
                                VkDevice *device)
{
    const float priority = 1.0f;
    const char *extensions[2];
    uint32_t extensions_count = 0;
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueFamilyIndex = adapter->family,
                                     .queueCount = 1,
                                     .pQueuePriorities = &priority};
    VkPhysicalDeviceSubgroupSizeControlFeatures sizes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
        .subgroupSizeControl = VK_TRUE,
        .computeFullSubgroups = VK_TRUE};
    VkPhysicalDevice16BitStorageFeatures storage16 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES,
        .storageBuffer16BitAccess = (capabilities & DART_CAP_STORE16) != 0};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &storage16,
                               .queueCreateInfoCount = 1,
                               .pQueueCreateInfos = &queue};
    if ((capabilities & DART_CAP_SUBGROUP) != 0 && adapter->require_full_subgroups) {
        storage16.pNext = &sizes;
        if (adapter->size_control_extension)
            extensions[extensions_count++] = VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME;
    }
    if (adapter->portability_subset) extensions[extensions_count++] = "VK_KHR_portability_subset";
    info.enabledExtensionCount = extensions_count;
    info.ppEnabledExtensionNames = extensions;
    return instance->vk.vkCreateDevice(adapter->handle, &info, NULL, device);
}
