#include "host.h"

#include <dlfcn.h>

struct host_fault fault;

static VKAPI_ATTR VkResult VKAPI_CALL fake_submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence)
{
    fault.submissions++;
    if (fault.in != 0 && --fault.in == 0) return fault.gives;
    return fault.submit(queue, count, infos, fence);
}
static VKAPI_ATTR VkResult VKAPI_CALL count_pipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                                      const VkComputePipelineCreateInfo *infos, const VkAllocationCallbacks *allocator,
                                                      VkPipeline *pipelines)
{
    fault.pipelines += count;
    for (uint32_t i = 0; i < count; i++)
        for (const VkBaseInStructure *at = infos[i].pNext; at != NULL; at = at->pNext)
            fault.checked += at->sType == VK_STRUCTURE_TYPE_PIPELINE_ROBUSTNESS_CREATE_INFO_EXT &&
                             ((const VkPipelineRobustnessCreateInfoEXT *)(const void *)at)->storageBuffers ==
                                 VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_EXT;
    return fault.make(device, cache, count, infos, allocator, pipelines);
}
static VKAPI_ATTR VkResult VKAPI_CALL never_idle(VkDevice device)
{
    (void)device;
    fault.destroyed++;
    return VK_SUCCESS;
}
static VKAPI_ATTR void VKAPI_CALL never_destroy(VkDevice device, const VkAllocationCallbacks *allocator)
{
    (void)device, (void)allocator;
    fault.destroyed++;
}
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device(VkDevice device, const char *name)
{
    const PFN_vkVoidFunction found = fault.device_get(device, name);
    if (strcmp(name, "vkDestroyDevice") == 0) return (PFN_vkVoidFunction)never_destroy;
    if (strcmp(name, "vkDeviceWaitIdle") == 0) return (PFN_vkVoidFunction)never_idle;
    if (strcmp(name, "vkCreateComputePipelines") == 0) {
        fault.make = (PFN_vkCreateComputePipelines)found;
        return (PFN_vkVoidFunction)count_pipelines;
    }
    if (strcmp(name, "vkQueueSubmit") != 0) return found;
    fault.submit = (PFN_vkQueueSubmit)found;
    return (PFN_vkVoidFunction)fake_submit;
}
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_instance(VkInstance instance, const char *name)
{
    const PFN_vkVoidFunction found = fault.instance_get(instance, name);
    if (strcmp(name, "vkGetDeviceProcAddr") != 0) return found;
    fault.device_get = (PFN_vkGetDeviceProcAddr)found;
    return (PFN_vkVoidFunction)get_device;
}

static void lock(void *user)
{
    host *h = user;
    base_lock(&h->mutex);
    h->locks++;
}
static void unlock(void *user) { base_unlock(&((host *)user)->mutex); }
static void lost(void *user) { ((host *)user)->losses++; }

/* The physical device behind rig_spec. */
static VkPhysicalDevice find_physical(const host *h)
{
    enum { MOST = 16 };
    VkPhysicalDevice all[MOST];
    uint32_t count = MOST;
    dart_context *context = NULL;
    dart_device *device = NULL;
    dart_device_info info;
    assert_int_equal(dart_context_create(NULL, &context), DART_OK);
    assert_int_equal(dart_device_open(context, &(dart_device_options){.spec = rig_spec, .unchecked = true}, &device), DART_OK);
    dart_device_describe(device, &info);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    assert_true(GET(h, vkEnumeratePhysicalDevices)(h->instance, &count, all) >= VK_SUCCESS);
    for (uint32_t i = 0; i < count; i++) {
        VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
        VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id};
        GET(h, vkGetPhysicalDeviceProperties2)(all[i], &properties);
        if (memcmp(id.deviceUUID, info.uuid, sizeof info.uuid) == 0) return all[i];
    }
    fail_msg("no physical device is %s", rig_spec);
    return VK_NULL_HANDLE;
}

/* Where dartlm's family is one without graphics. */
static uint32_t graphics_family(const host *h)
{
    VkQueueFamilyProperties families[16];
    uint32_t count = 16;
    GET(h, vkGetPhysicalDeviceQueueFamilyProperties)(h->physical, &count, families);
    for (uint32_t i = 0; i < count && h->needs->queue_family == h->needs->separate_family; i++)
        if ((families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT) != 0) return i;
    return UINT32_MAX;
}

static bool has_extension(const host *h, const char *name)
{
    uint32_t count = 0;
    bool found = false;
    assert_int_equal(GET(h, vkEnumerateDeviceExtensionProperties)(h->physical, NULL, &count, NULL), VK_SUCCESS);
    VkExtensionProperties *list = calloc(count + (size_t)1, sizeof *list);
    assert_non_null(list);
    assert_int_equal(GET(h, vkEnumerateDeviceExtensionProperties)(h->physical, NULL, &count, list), VK_SUCCESS);
    for (uint32_t i = 0; i < count; i++) found = found || strcmp(list[i].extensionName, name) == 0;
    free(list);
    return found;
}

static bool open_host(host *h, bool full, bool chooses)
{
    memset(h, 0, sizeof *h);
    memset(&fault, 0, sizeof fault);
    h->full = full;
    assert_int_equal(base_mutex_init(&h->mutex), DART_OK);
    h->loader = dlopen("libvulkan.so.1", RTLD_NOW);
    assert_non_null(h->loader);
    *(void **)&h->get = dlsym(h->loader, "vkGetInstanceProcAddr");
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_3};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    assert_int_equal(GET(h, vkCreateInstance)(&info, NULL, &h->instance), VK_SUCCESS);
    h->physical = find_physical(h);
    assert_int_equal(dart_vulkan_query(&(dart_vulkan_query_args){h->instance, h->physical, h->get, VK_API_VERSION_1_3}, &h->needs), DART_OK);
    assert_true(h->needs->usable);
    const float priority = 1;
    VkDeviceQueueCreateInfo queues[2];
    for (int i = 0; i < 2; i++)
        queues[i] = (VkDeviceQueueCreateInfo){.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
    queues[0].queueFamilyIndex = h->needs->queue_family;
    queues[1].queueFamilyIndex = h->other_family = graphics_family(h);
    const bool two = h->other_family != UINT32_MAX;
    h->extensions_count = full ? h->needs->extensions_count : h->needs->required_count;
    memcpy(h->extensions, h->needs->extensions, h->extensions_count * sizeof *h->extensions);
    h->features = full ? h->needs->features : NULL;
    if (chooses && has_extension(h, VK_EXT_PIPELINE_ROBUSTNESS_EXTENSION_NAME)) {
        h->robustness = (VkPhysicalDevicePipelineRobustnessFeaturesEXT){
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES_EXT, .pNext = (void *)(uintptr_t)h->features,
            .pipelineRobustness = VK_TRUE};
        h->features = &h->robustness;
        h->extensions[h->extensions_count++] = VK_EXT_PIPELINE_ROBUSTNESS_EXTENSION_NAME;
    }
    const VkDeviceCreateInfo device = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                       .pNext = h->features,
                                       .queueCreateInfoCount = two ? 2 : 1,
                                       .pQueueCreateInfos = queues,
                                       .enabledExtensionCount = h->extensions_count,
                                       .ppEnabledExtensionNames = h->extensions};
    assert_int_equal(GET(h, vkCreateDevice)(h->physical, &device, NULL, &h->device), VK_SUCCESS);
    vk_instance with = {.vk.vkGetDeviceProcAddr = GET(h, vkGetDeviceProcAddr)};
    vk_instance_load_device(&with, h->device, &h->vk);
    h->vk.vkGetDeviceQueue(h->device, h->needs->queue_family, 0, &h->queue);
    if (two) h->vk.vkGetDeviceQueue(h->device, h->other_family, 0, &h->other);
    assert_int_equal(dart_context_create(&(dart_context_options){.without_vulkan = true}, &h->context), DART_OK);
    fault.instance_get = h->get;
    return h->robustness.pipelineRobustness || !chooses;
}

void host_open(host *h, bool full) { open_host(h, full, false); }

bool host_open_choosing(host *h)
{
    if (open_host(h, true, true)) return true;
    host_close(h);
    return false;
}

dart_device *host_adopt(host *h, const dart_device_options *options)
{
    dart_device *device = NULL;
    const dart_vulkan_adopt_args args = {.instance = h->instance, .physical_device = h->physical, .device = h->device,
        .get_instance_proc_addr = get_instance, .api_version = VK_API_VERSION_1_3, .extensions = h->extensions,
        .extensions_count = h->extensions_count, .features = h->features,
        .queue_family = h->needs->queue_family, .families = &h->other_family, .families_count = h->other != VK_NULL_HANDLE,
        .lock_queue = lock, .unlock_queue = unlock, .queue_user = h, .lost = lost, .lost_user = h};
    assert_int_equal(dart_device_adopt(h->context, &args, options, &device), DART_OK);
    return device;
}

void host_close(host *h)
{
    assert_int_equal(fault.destroyed, 0);
    dart_context_destroy(&h->context);
    h->vk.vkDestroyDevice(h->device, NULL);
    GET(h, vkDestroyInstance)(h->instance, NULL);
    dart_vulkan_needs_destroy(&h->needs);
    base_mutex_destroy(&h->mutex);
}

PFN_vkGetInstanceProcAddr host_get(void) { return get_instance; }

VkBuffer host_buffer(host *h, VkBufferUsageFlags usage, VkMemoryPropertyFlags *flags, VkDeviceMemory *memory)
{
    VkBuffer buffer;
    VkPhysicalDeviceMemoryProperties types;
    const uint32_t families[] = {h->needs->queue_family, h->other_family};
    const bool two = h->other != VK_NULL_HANDLE;
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 2 * HOST_ALL, .usage = usage,
                                     .sharingMode = two ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
                                     .queueFamilyIndexCount = two ? 2 : 0, .pQueueFamilyIndices = families};
    assert_int_equal(h->vk.vkCreateBuffer(h->device, &info, NULL, &buffer), VK_SUCCESS);
    VkMemoryRequirements needs;
    h->vk.vkGetBufferMemoryRequirements(h->device, buffer, &needs);
    uint32_t type = 0;
    GET(h, vkGetPhysicalDeviceMemoryProperties)(h->physical, &types);
    while (type < types.memoryTypeCount &&
           ((needs.memoryTypeBits >> type & 1) == 0 || (types.memoryTypes[type].propertyFlags & *flags) != *flags))
        type++;
    assert_true(type < types.memoryTypeCount);
    *flags = types.memoryTypes[type].propertyFlags;
    const VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needs.size, .memoryTypeIndex = type};
    assert_int_equal(h->vk.vkAllocateMemory(h->device, &allocate, NULL, memory), VK_SUCCESS);
    assert_int_equal(h->vk.vkBindBufferMemory(h->device, buffer, *memory, 0), VK_SUCCESS);
    return buffer;
}
