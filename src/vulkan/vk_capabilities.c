#include "vk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What every kernel of the table may use on any device. */
#define NEED_INVOCATIONS 128u
#define NEED_SHARED_BYTES 16384u
/* What DART_CAP_LARGE, DART_CAP_SHARED48 and DART_CAP_WIDE promise. */
#define LARGE_INVOCATIONS 256u
#define LARGE_SHARED_BYTES 32768u
#define SHARED48_INVOCATIONS 512u
#define SHARED48_BYTES 49152u
#define WIDE_SUBGROUP 32u
/* And of what needs DART_CAP_RESIDENT. */
#define RESIDENT_OPERATIONS (VK_SUBGROUP_FEATURE_SHUFFLE_BIT)
#define SUBGROUP_OPERATIONS (VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT)
/* Kernels count elements of a binding in 32 bits, and grids stay within what every device runs. */
#define MAX_BINDING_BYTES ((UINT64_C(1) << 32) - BACKEND_ALIGN)
#define MAX_GROUPS 65535u
/* Workgroups of kernels with subgroup operations are multiples of the one, and have shared memory for subgroups of the other. */
#define SUBGROUP_MULTIPLE 64u
#define SUBGROUP_LEAST 4u

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
    bool matrix, matrix2, bfloat16;
    bool priority_khr, priority_ext;
    bool memory_fd, semaphore_fd;
    bool multiprocessors_nv, multiprocessors_amd; /* the driver tells how many there are */
} extension_set;

/* Did the host switch it on? */
static bool is_enabled(const dart_vulkan_adopt_args *host, const char *name)
{
    for (uint32_t i = 0; i < host->extensions_count; i++)
        if (strcmp(host->extensions[i], name) == 0) return true;
    return false;
}

static extension_set find_extensions(const vk_instance *instance, VkPhysicalDevice handle)
{
    extension_set set = {false};
    uint32_t count = 0;
    if (instance->vk.vkEnumerateDeviceExtensionProperties(handle, NULL, &count, NULL) != VK_SUCCESS || count == 0)
        return set;
    VkExtensionProperties *list = calloc(count, sizeof(*list));
    if (list == NULL) return set;
    if (instance->vk.vkEnumerateDeviceExtensionProperties(handle, NULL, &count, list) >= VK_SUCCESS) {
        for (uint32_t i = 0; i < count; i++) {
            const char *name = list[i].extensionName;
            if (strcmp(name, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME) == 0) set.size_control = true;
            if (strcmp(name, VK_KHR_GLOBAL_PRIORITY_EXTENSION_NAME) == 0) set.priority_khr = true;
            if (strcmp(name, VK_EXT_GLOBAL_PRIORITY_EXTENSION_NAME) == 0) set.priority_ext = true;
            if (strcmp(name, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME) == 0) set.memory_fd = true;
            if (strcmp(name, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME) == 0) set.semaphore_fd = true;
            if (strcmp(name, "VK_KHR_portability_subset") == 0) set.portability_subset = true;
            if (strcmp(name, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME) == 0) set.matrix = true;
            if (strcmp(name, VK_NV_COOPERATIVE_MATRIX_2_EXTENSION_NAME) == 0) set.matrix2 = true;
            if (strcmp(name, VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME) == 0) set.multiprocessors_nv = true;
            if (strcmp(name, VK_AMD_SHADER_CORE_PROPERTIES_2_EXTENSION_NAME) == 0) set.multiprocessors_amd = true;
            if (strcmp(name, VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME) == 0) set.bfloat16 = true;
        }
    }
    free(list);
    return set;
}

/* Leaves what the host switched on. What is only asked about (multiprocessors) stays. */
static void keep_enabled_extensions(const dart_vulkan_adopt_args *host, extension_set *set)
{
    set->size_control = set->size_control && is_enabled(host, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    set->memory_fd = set->memory_fd && is_enabled(host, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
    set->semaphore_fd = set->semaphore_fd && is_enabled(host, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME);
    set->matrix = set->matrix && is_enabled(host, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
    set->matrix2 = set->matrix2 && is_enabled(host, VK_NV_COOPERATIVE_MATRIX_2_EXTENSION_NAME);
    set->bfloat16 = set->bfloat16 && is_enabled(host, VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME);
}

/* The features that the host switched on, wherever in its chain they stand. */
static void read_host_features(const void *chain, vk_features *on)
{
    for (const VkBaseInStructure *at = chain; at != NULL; at = at->pNext) {
        const VkPhysicalDeviceVulkan11Features *core11 = (const void *)at;
        const VkPhysicalDeviceVulkan12Features *core12 = (const void *)at;
        const VkPhysicalDeviceVulkan13Features *core13 = (const void *)at;
        const VkPhysicalDeviceVulkan14Features *core14 = (const void *)at;
        switch ((int)at->sType) {
#define TAKE(member, type) \
    case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type: memcpy(&on->member, at, sizeof(on->member)); break;
            TAKE(storage16, 16BIT_STORAGE_FEATURES)
            TAKE(float16, SHADER_FLOAT16_INT8_FEATURES)
            TAKE(memory_model, VULKAN_MEMORY_MODEL_FEATURES)
            TAKE(sizes, SUBGROUP_SIZE_CONTROL_FEATURES)
            TAKE(maintenance4, MAINTENANCE_4_FEATURES)
            TAKE(matrix, COOPERATIVE_MATRIX_FEATURES_KHR)
            TAKE(matrix2, COOPERATIVE_MATRIX_2_FEATURES_NV)
            TAKE(bfloat16, SHADER_BFLOAT16_FEATURES_KHR)
            TAKE(timeline, TIMELINE_SEMAPHORE_FEATURES)
            TAKE(robustness, PIPELINE_ROBUSTNESS_FEATURES_EXT)
#undef TAKE
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES:
            on->storage16.storageBuffer16BitAccess = core11->storageBuffer16BitAccess;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES:
            on->float16.shaderFloat16 = core12->shaderFloat16;
            on->memory_model.vulkanMemoryModel = core12->vulkanMemoryModel;
            on->memory_model.vulkanMemoryModelDeviceScope = core12->vulkanMemoryModelDeviceScope;
            on->timeline.timelineSemaphore = core12->timelineSemaphore;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES:
            on->sizes.subgroupSizeControl = core13->subgroupSizeControl;
            on->sizes.computeFullSubgroups = core13->computeFullSubgroups;
            on->maintenance4.maintenance4 = core13->maintenance4;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_4_FEATURES:
            on->robustness.pipelineRobustness = core14->pipelineRobustness;
            break;
        default: break;
        }
    }
}

static void keep_enabled_features(const dart_vulkan_adopt_args *host, vk_features *has)
{
    vk_features on;
    memset(&on, 0, sizeof(on));
    read_host_features(host->features, &on);
#define KEEP(member) has->member = has->member && on.member
    KEEP(storage16.storageBuffer16BitAccess);
    KEEP(float16.shaderFloat16);
    KEEP(memory_model.vulkanMemoryModel);
    KEEP(memory_model.vulkanMemoryModelDeviceScope);
    KEEP(sizes.subgroupSizeControl);
    KEEP(sizes.computeFullSubgroups);
    KEEP(maintenance4.maintenance4);
    KEEP(matrix.cooperativeMatrix);
    KEEP(matrix2.cooperativeMatrixReductions);
    KEEP(matrix2.cooperativeMatrixConversions);
    KEEP(matrix2.cooperativeMatrixPerElementOperations);
    KEEP(bfloat16.shaderBFloat16Type);
    KEEP(bfloat16.shaderBFloat16CooperativeMatrix);
    KEEP(timeline.timelineSemaphore);
#undef KEEP
    has->robustness = on.robustness;
    has->addresses.bufferDeviceAddress = VK_FALSE; /* the host's buffers have none */
}

/* A family of its own for compute, where a discrete device has one, runs beside the display's work. Of an adopted device: the host's. */
static bool find_family(const vk_instance *instance, vk_adapter *adapter)
{
    VkQueueFamilyProperties families[VK_FAMILIES_LISTED];
    uint32_t count = VK_FAMILIES_LISTED;
    instance->vk.vkGetPhysicalDeviceQueueFamilyProperties(adapter->handle, &count, families);
    for (uint32_t i = 0; i < count; i++) {
        if (instance->adopted != NULL && i != instance->adopted->queue_family) continue;
        if ((families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) == 0 || families[i].queueCount == 0) continue;
        const bool separate = (families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT) == 0;
        const vk_family family = {i, families[i].timestampValidBits};
        if (separate && adapter->separate.index == UINT32_MAX) adapter->separate = family;
        if (adapter->family.index == UINT32_MAX) adapter->family = family;
    }
    if (adapter->separate.index != UINT32_MAX && adapter->info.type == DART_DEVICE_DISCRETE) adapter->family = adapter->separate;
    adapter->info.separate_queue = adapter->family.index == adapter->separate.index && adapter->family.index != UINT32_MAX;
    return adapter->family.index != UINT32_MAX;
}

static uint32_t float_controls(const VkPhysicalDeviceFloatControlsProperties *has)
{
    uint32_t bits = 0;
    if (has->shaderSignedZeroInfNanPreserveFloat16) bits |= DART_FLOAT_PRESERVE_F16;
    if (has->shaderSignedZeroInfNanPreserveFloat32) bits |= DART_FLOAT_PRESERVE_F32;
    if (has->shaderDenormPreserveFloat16) bits |= DART_FLOAT_DENORMAL_F16;
    if (has->shaderDenormPreserveFloat32) bits |= DART_FLOAT_DENORMAL_F32;
    if (has->shaderDenormFlushToZeroFloat16) bits |= DART_FLOAT_FLUSH_F16;
    if (has->shaderDenormFlushToZeroFloat32) bits |= DART_FLOAT_FLUSH_F32;
    if (has->shaderRoundingModeRTEFloat16) bits |= DART_FLOAT_NEAREST_F16;
    if (has->shaderRoundingModeRTEFloat32) bits |= DART_FLOAT_NEAREST_F32;
    if (has->shaderRoundingModeRTZFloat16) bits |= DART_FLOAT_TRUNCATE_F16;
    if (has->shaderRoundingModeRTZFloat32) bits |= DART_FLOAT_TRUNCATE_F32;
    return bits;
}

DART_PRINTF(2, 3)
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
    info->max_bindings = limits->maxPerStageDescriptorStorageBuffers;
    if (limits->maxDescriptorSetStorageBuffers < info->max_bindings) info->max_bindings = limits->maxDescriptorSetStorageBuffers;
    if (limits->maxPerStageResources < info->max_bindings) info->max_bindings = limits->maxPerStageResources;
    if (info->max_bindings < kernel_needed_buffers(DART_BACKEND_VULKAN))
        reject(info, "%u storage buffers per stage, %u needed", info->max_bindings, kernel_needed_buffers(DART_BACKEND_VULKAN));
    const uint32_t row = limits->maxComputeWorkGroupSize[0], all = limits->maxComputeWorkGroupInvocations, invocations = row < all ? row : all;
    if (invocations < NEED_INVOCATIONS) reject(info, "%u invocations in a workgroup, %u needed", invocations, NEED_INVOCATIONS);
    if (limits->maxComputeSharedMemorySize < NEED_SHARED_BYTES)
        reject(info, "%u bytes of shared memory, %u needed", limits->maxComputeSharedMemorySize, NEED_SHARED_BYTES);
    if (limits->maxPushConstantsSize < PUSH_BYTES)
        reject(info, "%u bytes of push constants, %d needed", limits->maxPushConstantsSize, PUSH_BYTES);
    if (limits->minStorageBufferOffsetAlignment > BACKEND_ALIGN)
        reject(info, "storage buffers aligned to %llu bytes, %u expected",
               (unsigned long long)limits->minStorageBufferOffsetAlignment, BACKEND_ALIGN);
}

/* Links those that the device knows; returns the first. */
static void *link_features(vk_features *chain, const extension_set *extensions, bool addresses, bool size_control, bool core_1_3)
{
    void *first = NULL;
#define LINK(member, type) \
    chain->member.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type; \
    chain->member.pNext = first; \
    first = &chain->member;
    LINK(storage16, 16BIT_STORAGE_FEATURES)
    LINK(float16, SHADER_FLOAT16_INT8_FEATURES)
    LINK(memory_model, VULKAN_MEMORY_MODEL_FEATURES)
    LINK(timeline, TIMELINE_SEMAPHORE_FEATURES)
    if (addresses) {
        LINK(addresses, BUFFER_DEVICE_ADDRESS_FEATURES)
        LINK(atomics64, SHADER_ATOMIC_INT64_FEATURES)
    }
    if (size_control) { LINK(sizes, SUBGROUP_SIZE_CONTROL_FEATURES) }
    if (core_1_3) { LINK(maintenance4, MAINTENANCE_4_FEATURES) }
    if (extensions->matrix) { LINK(matrix, COOPERATIVE_MATRIX_FEATURES_KHR) }
    if (extensions->matrix2) { LINK(matrix2, COOPERATIVE_MATRIX_2_FEATURES_NV) }
    if (extensions->bfloat16) { LINK(bfloat16, SHADER_BFLOAT16_FEATURES_KHR) }
#undef LINK
    return first;
}

/* Memory of buffers goes out and comes in as it is: on few devices only as an allocation of each buffer's own. */
static bool shares_buffers(const vk_instance *instance, VkPhysicalDevice handle)
{
    const VkExternalMemoryFeatureFlags both = VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
    const VkPhysicalDeviceExternalBufferInfo info = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
                                                     .usage = VK_BUFFER_USAGE,
                                                     .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkExternalBufferProperties can = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
    if (instance->vk.vkGetPhysicalDeviceExternalBufferProperties == NULL) return false;
    instance->vk.vkGetPhysicalDeviceExternalBufferProperties(handle, &info, &can);
    const VkExternalMemoryFeatureFlags flags = can.externalMemoryProperties.externalMemoryFeatures;
    return (flags & both) == both && (flags & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT) == 0;
}

static bool shares_semaphores(const vk_instance *instance, VkPhysicalDevice handle, VkSemaphoreType type)
{
    const VkExternalSemaphoreFeatureFlags both = VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_SEMAPHORE_FEATURE_IMPORTABLE_BIT;
    const VkSemaphoreTypeCreateInfo of = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .semaphoreType = type};
    const VkPhysicalDeviceExternalSemaphoreInfo info = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_SEMAPHORE_INFO,
                                                        .pNext = type == VK_SEMAPHORE_TYPE_TIMELINE ? &of : NULL,
                                                        .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkExternalSemaphoreProperties can = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_SEMAPHORE_PROPERTIES};
    if (instance->vk.vkGetPhysicalDeviceExternalSemaphoreProperties == NULL) return false;
    instance->vk.vkGetPhysicalDeviceExternalSemaphoreProperties(handle, &info, &can);
    return (can.externalSemaphoreFeatures & both) == both;
}

void vk_capabilities_probe(const vk_instance *instance, VkPhysicalDevice handle, vk_adapter *adapter)
{
    dart_device_info *info = &adapter->info;
    adapter->handle = handle;
    adapter->family.index = adapter->separate.index = UINT32_MAX;
    VkPhysicalDeviceProperties base;
    instance->vk.vkGetPhysicalDeviceProperties(handle, &base);
    info->backend = DART_BACKEND_VULKAN;
    info->type = device_type(base.deviceType);
    snprintf(info->name, sizeof(info->name), "%s", base.deviceName);
    snprintf(info->driver, sizeof(info->driver), "driver version 0x%x", base.driverVersion);
    uint32_t version = base.apiVersion;
    if (instance->borrowed && instance->api_version < version) version = instance->api_version;
    if (version < VK_API_VERSION_1_2) {
        reject(info, "its driver%s offers Vulkan %u.%u, 1.2 is needed", version != base.apiVersion ? " or the host's instance" : "",
               VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
        return;
    }

    extension_set extensions = find_extensions(instance, handle);
    const bool core_size_control = version >= VK_API_VERSION_1_3;
    /* Sizes can be asked about where they cannot be controlled. */
    const bool sizes_known = core_size_control || extensions.size_control;
    if (instance->adopted != NULL) keep_enabled_extensions(instance->adopted, &extensions);
    const bool size_control = core_size_control || extensions.size_control;
    adapter->size_control_extension = extensions.size_control && !core_size_control;
    adapter->portability_subset = extensions.portability_subset;
    adapter->shares = extensions.memory_fd && shares_buffers(instance, handle);
    adapter->priority_extension = extensions.priority_khr   ? VK_KHR_GLOBAL_PRIORITY_EXTENSION_NAME
                                  : extensions.priority_ext ? VK_EXT_GLOBAL_PRIORITY_EXTENSION_NAME
                                                            : NULL;

    VkPhysicalDeviceSubgroupSizeControlProperties sizes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
    VkPhysicalDeviceMaintenance4Properties buffers = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES,
        .pNext = sizes_known ? &sizes : NULL};
    VkPhysicalDeviceSubgroupProperties subgroup = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES,
        .pNext = core_size_control ? (void *)&buffers : (void *)(sizes_known ? &sizes : NULL)};
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES,
                                               .pNext = &subgroup};
    VkPhysicalDeviceFloatControlsProperties floats = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES, .pNext = &driver};
    VkPhysicalDeviceIDProperties identity = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES,
                                             .pNext = &floats};
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nv = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV,
                                                       .pNext = &identity};
    VkPhysicalDeviceShaderCoreProperties2AMD amd = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_2_AMD,
                                                    .pNext = &identity};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                              .pNext = extensions.multiprocessors_nv    ? (void *)&nv
                                                       : extensions.multiprocessors_amd ? (void *)&amd
                                                                                        : (void *)&identity};
    instance->vk.vkGetPhysicalDeviceProperties2(handle, &properties);

    vk_features has = {0};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                          .pNext = link_features(&has, &extensions, true, size_control, core_size_control)};
    instance->vk.vkGetPhysicalDeviceFeatures2(handle, &features);
    has.core.features.shaderInt64 = features.features.shaderInt64;
    if (instance->adopted != NULL) keep_enabled_features(instance->adopted, &has);
    adapter->timeline = has.timeline.timelineSemaphore;
    adapter->robustness = has.robustness.pipelineRobustness;
    adapter->shares_semaphores[false] =
        extensions.semaphore_fd && adapter->timeline && shares_semaphores(instance, handle, VK_SEMAPHORE_TYPE_TIMELINE);
    adapter->shares_semaphores[true] = extensions.semaphore_fd && shares_semaphores(instance, handle, VK_SEMAPHORE_TYPE_BINARY);

    if (driver.driverName[0] != '\0') {
        snprintf(info->driver, sizeof(info->driver), "%.200s%s%.50s", driver.driverName,
                 driver.driverInfo[0] != '\0' ? " " : "", driver.driverInfo);
    }
    memcpy(info->uuid, identity.deviceUUID, sizeof(info->uuid));
    const VkPhysicalDeviceLimits *limits = &base.limits;
    info->subgroup = subgroup.subgroupSize;
    info->multiprocessors = extensions.multiprocessors_nv ? nv.shaderSMCount : extensions.multiprocessors_amd ? amd.activeComputeUnitCount : 0;
    info->shared_bytes = limits->maxComputeSharedMemorySize;
    info->workgroup = limits->maxComputeWorkGroupInvocations;
    info->float_controls = float_controls(&floats);
    info->max_binding_bytes = limits->maxStorageBufferRange / BACKEND_ALIGN * BACKEND_ALIGN;
    if (info->max_binding_bytes > MAX_BINDING_BYTES) info->max_binding_bytes = MAX_BINDING_BYTES;
    adapter->max_buffer_bytes = core_size_control ? buffers.maxBufferSize : UINT64_MAX;
    adapter->offset_alignment = limits->minStorageBufferOffsetAlignment;
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
    info->capabilities = DART_CAP_CUMULATIVE;
    if (has.storage16.storageBuffer16BitAccess) info->capabilities |= DART_CAP_STORE16;
    if (has.storage16.storageBuffer16BitAccess && has.float16.shaderFloat16) info->capabilities |= DART_CAP_FLOAT16;
    if (limits->maxComputeWorkGroupInvocations >= LARGE_INVOCATIONS && limits->maxComputeWorkGroupSize[0] >= LARGE_INVOCATIONS &&
        limits->maxComputeSharedMemorySize >= LARGE_SHARED_BYTES)
        info->capabilities |= DART_CAP_LARGE;
    if (info->subgroup >= WIDE_SUBGROUP) info->capabilities |= DART_CAP_WIDE;
    if (limits->maxComputeWorkGroupInvocations >= SHARED48_INVOCATIONS &&
        limits->maxComputeWorkGroupSize[0] >= SHARED48_INVOCATIONS && limits->maxComputeSharedMemorySize >= SHARED48_BYTES)
        info->capabilities |= DART_CAP_SHARED48;
    adapter->require_full_subgroups = size_control && has.sizes.subgroupSizeControl && has.sizes.computeFullSubgroups;
    /* Where subgroups have one size only, whole multiples of it are full without asking. */
    const bool fixed_size = !sizes_known || sizes.minSubgroupSize == sizes.maxSubgroupSize;
    /* Full subgroups of whatever size need workgroups that the largest divides, and the kernels have room for sums of the smallest. */
    adapter->vary_subgroups = adapter->require_full_subgroups && !fixed_size && sizes.minSubgroupSize >= SUBGROUP_LEAST &&
                              SUBGROUP_MULTIPLE % sizes.maxSubgroupSize == 0;
    adapter->require_subgroup_size = adapter->require_full_subgroups && !fixed_size &&
                                     (sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
    /* Adreno before the 8xx: 128 lanes unless 64 are asked for. */
    if (adapter->require_subgroup_size && SUBGROUP_MULTIPLE % subgroup.subgroupSize != 0 && sizes.minSubgroupSize <= SUBGROUP_MULTIPLE &&
        sizes.maxSubgroupSize >= SUBGROUP_MULTIPLE)
        adapter->asked_subgroup = SUBGROUP_MULTIPLE;
    const uint32_t least = sizes_known ? sizes.minSubgroupSize : subgroup.subgroupSize;
    const uint32_t most = sizes_known ? sizes.maxSubgroupSize : subgroup.subgroupSize;
    /* GPUs whose subgroups never have 32 lanes (Mali: 16) have 64 registers a lane. */
    const bool registers96 = most >= WIDE_SUBGROUP || info->type == DART_DEVICE_CPU;
    if (registers96) info->capabilities |= DART_CAP_REGISTERS96;
    /* A subgroup of 64 lanes with 128 registers each takes 32 KiB. Where subgroups cannot be smaller, few of such subgroups have room beside
     * one another: 2 on a SIMD of AMD's GCN, 2 of 16 on a core of Adreno. */
    const bool few_wide = most > SUBGROUP_MULTIPLE || (fixed_size && most == SUBGROUP_MULTIPLE);
    if (!few_wide && registers96) info->capabilities |= DART_CAP_REGISTERS;
    /* Subgroups of fewer than 32 lanes share a register file that is as small: 128 registers a lane at 8 lanes (Intel, 16 from Xe2 on). A
     * processor has 16 or 32, and its compiler takes longest for what counts on many: lavapipe 40 s for a tile of 64 x 64 on matrices. */
    if ((info->capabilities & DART_CAP_REGISTERS) != 0 && least >= WIDE_SUBGROUP && info->type != DART_DEVICE_CPU)
        info->capabilities |= DART_CAP_REGISTERS160;
    if ((subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0 &&
        (subgroup.supportedOperations & SUBGROUP_OPERATIONS) == SUBGROUP_OPERATIONS && subgroup.subgroupSize >= SUBGROUP_LEAST &&
        (SUBGROUP_MULTIPLE % subgroup.subgroupSize == 0 || adapter->asked_subgroup != 0) && (adapter->require_full_subgroups || fixed_size))
        info->capabilities |= DART_CAP_SUBGROUP;
    /* Matrices take whole subgroups of a known size: 32 lanes where there is a choice. */
    adapter->matrix_subgroup = subgroup.subgroupSize;
    if (adapter->require_subgroup_size && sizes.minSubgroupSize <= 32 && sizes.maxSubgroupSize >= 32)
        adapter->matrix_subgroup = 32;
    const uint32_t for_matrices = DART_CAP_SUBGROUP | DART_CAP_FLOAT16;
    if ((info->capabilities & for_matrices) == for_matrices && has.matrix.cooperativeMatrix &&
        (subgroup.supportedOperations & VK_SUBGROUP_FEATURE_SHUFFLE_BIT) != 0 &&
        has.memory_model.vulkanMemoryModel && has.memory_model.vulkanMemoryModelDeviceScope &&
        (fixed_size || adapter->require_subgroup_size)) {
        const bool sixteen =
            vk_matrices_find(instance, adapter, has.bfloat16.shaderBFloat16Type && has.bfloat16.shaderBFloat16CooperativeMatrix);
        if (adapter->matrix_f16.M != 0) info->capabilities |= DART_CAP_MATRIX_F16;
        if (adapter->matrix_bf16.M != 0) info->capabilities |= DART_CAP_MATRIX_BF16;
        if (sixteen && (info->capabilities & DART_CAP_MATRIX) != 0 && has.maintenance4.maintenance4 &&
            has.matrix2.cooperativeMatrixReductions && has.matrix2.cooperativeMatrixConversions &&
            has.matrix2.cooperativeMatrixPerElementOperations)
            info->capabilities |= DART_CAP_MATRIX2 | DART_CAP_MATRIX_CUTS | DART_CAP_MATRIX_PLACES;
    }
    if (has.addresses.bufferDeviceAddress && has.atomics64.shaderBufferInt64Atomics && has.core.features.shaderInt64 &&
        has.memory_model.vulkanMemoryModel && has.memory_model.vulkanMemoryModelDeviceScope && fixed_size &&
        (info->capabilities & DART_CAP_SUBGROUP) != 0 && (subgroup.supportedOperations & RESIDENT_OPERATIONS) == RESIDENT_OPERATIONS) {
        info->capabilities |= DART_CAP_ADDRESSES;
        if (driver.driverID == VK_DRIVER_ID_NVIDIA_PROPRIETARY && info->multiprocessors > 0 && info->subgroup == WIDE_SUBGROUP &&
            (info->capabilities & DART_CAP_SHARED48) != 0)
            info->capabilities |= DART_CAP_RESIDENT;
    }
    vk_quirks_apply(&base, driver.driverID, fixed_size, adapter);
    adapter->turns = driver.driverID == VK_DRIVER_ID_NVIDIA_PROPRIETARY; /* not measured elsewhere */
}

void vk_capabilities_wanted(const vk_adapter *adapter, uint32_t capabilities, vk_wanted *wanted)
{
    const bool matrix = (capabilities & DART_CAP_MATRIX) != 0, matrix2 = (capabilities & DART_CAP_MATRIX2) != 0;
    const bool bfloat16 = (capabilities & DART_CAP_MATRIX_BF16) != 0, addresses = (capabilities & DART_CAP_ADDRESSES) != 0;
    const bool sizes = (matrix || (capabilities & DART_CAP_SUBGROUP) != 0) && adapter->require_full_subgroups;
    const extension_set known = {.matrix = matrix, .matrix2 = matrix2, .bfloat16 = bfloat16};
    vk_features *on = &wanted->features;
    memset(wanted, 0, sizeof(*wanted));
    on->storage16.storageBuffer16BitAccess = matrix || (capabilities & (DART_CAP_STORE16 | DART_CAP_FLOAT16)) != 0;
    on->float16.shaderFloat16 = matrix || (capabilities & DART_CAP_FLOAT16) != 0;
    on->memory_model.vulkanMemoryModel = matrix || addresses;
    /* The atomics of kernels without 16-bit storage have device scope. */
    on->memory_model.vulkanMemoryModelDeviceScope = matrix || addresses;
    on->timeline.timelineSemaphore = adapter->timeline;
    on->sizes.subgroupSizeControl = on->sizes.computeFullSubgroups = VK_TRUE;
    on->maintenance4.maintenance4 = VK_TRUE;
    on->matrix.cooperativeMatrix = VK_TRUE;
    on->matrix2.cooperativeMatrixReductions = on->matrix2.cooperativeMatrixConversions =
        on->matrix2.cooperativeMatrixPerElementOperations = VK_TRUE;
    on->bfloat16.shaderBFloat16Type = on->bfloat16.shaderBFloat16CooperativeMatrix = VK_TRUE;
    on->addresses.bufferDeviceAddress = on->atomics64.shaderBufferInt64Atomics = VK_TRUE;
    wanted->first = link_features(on, &known, addresses, sizes, matrix2);
    if (addresses) {
        on->core = (VkPhysicalDeviceFeatures2){
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = wanted->first, .features = {.shaderInt64 = VK_TRUE}};
        wanted->first = &on->core;
    }
    const char **extensions = wanted->extensions;
    uint32_t count = 0;
    if (adapter->portability_subset) extensions[count++] = "VK_KHR_portability_subset";
    wanted->required_count = count;
    if (sizes && adapter->size_control_extension) extensions[count++] = VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME;
    if (matrix) extensions[count++] = VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME;
    if (matrix2) extensions[count++] = VK_NV_COOPERATIVE_MATRIX_2_EXTENSION_NAME;
    if (bfloat16) extensions[count++] = VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME;
    if (adapter->shares) extensions[count++] = VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME;
    if (adapter->shares_semaphores[false] || adapter->shares_semaphores[true])
        extensions[count++] = VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME;
    wanted->extensions_count = count;
}

VkResult vk_capabilities_enable(const vk_instance *instance, const vk_adapter *adapter, uint32_t capabilities, const vk_family *family,
                                bool low_priority, VkDevice *device)
{
    const VkDeviceQueueGlobalPriorityCreateInfoKHR low = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_GLOBAL_PRIORITY_CREATE_INFO_KHR,
                                                          .globalPriority = VK_QUEUE_GLOBAL_PRIORITY_LOW_KHR};
    const float priority = 1.0f;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .pNext = low_priority ? &low : NULL,
                                           .queueFamilyIndex = family->index,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    vk_wanted wanted;
    vk_capabilities_wanted(adapter, capabilities, &wanted);
    if (low_priority) wanted.extensions[wanted.extensions_count++] = adapter->priority_extension;
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = wanted.first,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = wanted.extensions_count,
                                     .ppEnabledExtensionNames = wanted.extensions};
    return instance->vk.vkCreateDevice(adapter->handle, &info, NULL, device);
}
