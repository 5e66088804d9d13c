#define _POSIX_C_SOURCE 200809L
#include "driver.h"

#include "base/base.h"
#include "base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { INSTANCE, DEVICE, QUEUE, COMMANDS, BUFFER, MEMORY, COMMAND_POOL, FENCE, QUERY_POOL, DESCRIPTOR_POOL, DESCRIPTOR_SET, SET_LAYOUT,
                    PIPELINE_LAYOUT, PIPELINE_CACHE, SHADER_MODULE, PIPELINE, SEMAPHORE, MESSENGER, GARBAGE, KINDS } kind;

typedef struct object object;
struct object {
    kind kind;
    bool host, alive;
    uint8_t *data; /* of memory */
    object *memory; /* of a buffer */
    uint64_t bytes, offset;
    object *next; /* of all */
};

void *(*driver_calloc)(size_t count, size_t size) = calloc;
void (*driver_free)(void *memory) = free;

static struct driver {
    base_mutex lock;
    driver_options options;
    uint32_t calls;
    const char *failed;
    bool host;
    uint32_t alive[2];
    char misuse[128];
    uint32_t priority, family;
    bool shows_portability; /* the last instance asked for it */
    object *all; /* dead ones too, until nothing is alive */
} drv = {.lock = BASE_MUTEX_STATIC};
static object garbage = {.kind = GARBAGE}, queue = {.kind = QUEUE, .alive = true}, physical = {.alive = true}, commands_of_pools = {.kind = COMMANDS},
              commands_of_host = {.kind = COMMANDS},
              sets_of_pools = {.kind = DESCRIPTOR_SET};

void driver_set(const driver_options *options)
{
    drv.options = *options;
    drv.calls = 0;
    drv.failed = NULL;
    drv.misuse[0] = '\0';
    drv.alive[0] = drv.alive[1] = 0;
}
const char *driver_failed(void) { return drv.failed; }
void driver_host(bool host) { drv.host = host; }
uint32_t driver_alive(bool of_host) { return drv.alive[of_host]; }
const char *driver_misuse(void) { return drv.misuse[0] != '\0' ? drv.misuse : NULL; }

uint32_t driver_priority(void) { return drv.priority; }
uint32_t driver_family(void) { return drv.family; }

static void misuse(const char *call, const char *what)
{
    if (drv.misuse[0] == '\0') snprintf(drv.misuse, sizeof drv.misuse, "%s: %s", call, what);
}

/* Counts a call of the library. Only waiting can time out. */
static bool fails(const char *call)
{
    base_lock(&drv.lock);
    const bool can = !drv.host && (drv.options.gives != VK_TIMEOUT || strcmp(call, "vkWaitForFences") == 0);
    const bool now = can && ++drv.calls == drv.options.fail_at;
    if (now) drv.failed = call;
    base_unlock(&drv.lock);
    return now;
}

static object *make(kind of)
{
    object *made = driver_calloc(1, sizeof *made);
    if (made == NULL) abort();
    base_lock(&drv.lock);
    *made = (object){.kind = of, .host = drv.host, .alive = true, .next = drv.all};
    drv.all = made;
    drv.alive[made->host]++;
    base_unlock(&drv.lock);
    return made;
}

static void destroy(void *handle, kind of, const char *call)
{
    object *o = handle;
    if (o == NULL) return;
    base_lock(&drv.lock);
    if (o->kind != of || !o->alive) misuse(call, o->kind == GARBAGE ? "what a failed call left" : o->alive ? "of another kind" : "a second time");
    else if (o->host != drv.host) misuse(call, o->host ? "the host's" : "the library's");
    else {
        o->alive = false;
        drv.alive[o->host]--;
        driver_free(o->data);
        o->data = NULL;
    }
    for (object *next; drv.alive[0] + drv.alive[1] == 0 && drv.all != NULL; drv.all = next) {
        next = drv.all->next;
        driver_free(drv.all);
    }
    base_unlock(&drv.lock);
}

#define PORTABILITY_SUBSET "VK_KHR_portability_subset" /* its macro stands among the provisional ones */
enum { MOST_EXTENSIONS = 6 };
static uint32_t device_extensions(const char *list[MOST_EXTENSIONS])
{
    uint32_t count = 0;
    list[count++] = VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME;
    list[count++] = VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME;
    if (drv.options.portability) list[count++] = PORTABILITY_SUBSET;
    if (drv.options.extension != NULL) list[count++] = drv.options.extension;
    if (drv.options.matrices) list[count++] = VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME;
    return count;
}
static bool has_extension(const char *name)
{
    const char *list[MOST_EXTENSIONS];
    for (uint32_t i = device_extensions(list); i-- > 0;)
        if (strcmp(list[i], name) == 0) return true;
    return false;
}

#define FUNCTION(result, name, ...) static VKAPI_ATTR result VKAPI_CALL name(__VA_ARGS__)
/* The name of a fake without its first letter is Vulkan's. */
#define MAKE(name, KIND, info_type, parent) \
    FUNCTION(VkResult, fvkCreate##name, parent of, const info_type *info, const VkAllocationCallbacks *allocator, Vk##name *out) \
    { \
        (void)of, (void)info, (void)allocator; \
        const bool failed = fails("vkCreate" #name); \
        *out = (Vk##name)(void *)(failed ? &garbage : make(KIND)); \
        return failed ? drv.options.gives : VK_SUCCESS; \
    }
#define DESTROY(name, type, KIND) \
    FUNCTION(void, fvkDestroy##name, VkDevice of, type handle, const VkAllocationCallbacks *allocator) \
    { \
        (void)of, (void)allocator; \
        destroy((void *)handle, KIND, "vkDestroy" #name); \
    }
#define BOTH(name, KIND) MAKE(name, KIND, Vk##name##CreateInfo, VkDevice) DESTROY(name, Vk##name, KIND)
BOTH(CommandPool, COMMAND_POOL)
BOTH(Fence, FENCE)
BOTH(QueryPool, QUERY_POOL)
BOTH(DescriptorPool, DESCRIPTOR_POOL)
BOTH(DescriptorSetLayout, SET_LAYOUT)
BOTH(PipelineLayout, PIPELINE_LAYOUT)
BOTH(PipelineCache, PIPELINE_CACHE)
BOTH(ShaderModule, SHADER_MODULE)
BOTH(Semaphore, SEMAPHORE)
DESTROY(Buffer, VkBuffer, BUFFER)
DESTROY(Pipeline, VkPipeline, PIPELINE)

/* ---- Instances ---- */

FUNCTION(VkResult, fvkCreateInstance, const VkInstanceCreateInfo *info, const VkAllocationCallbacks *allocator, VkInstance *out)
{
    (void)allocator;
    const bool failed = fails("vkCreateInstance");
    bool enabled = false;
    for (uint32_t i = 0; info != NULL && i < info->enabledExtensionCount; i++)
        enabled = enabled || strcmp(info->ppEnabledExtensionNames[i], VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME) == 0;
    drv.shows_portability = drv.host || (enabled && (info->flags & VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR) != 0);
    *out = (VkInstance)(void *)(failed ? &garbage : make(INSTANCE));
    return failed ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(void, fvkDestroyInstance, VkInstance instance, const VkAllocationCallbacks *allocator)
{
    (void)allocator;
    destroy((void *)instance, INSTANCE, "vkDestroyInstance");
}
MAKE(DebugUtilsMessengerEXT, MESSENGER, VkDebugUtilsMessengerCreateInfoEXT, VkInstance)
FUNCTION(void, fvkDestroyDebugUtilsMessengerEXT, VkInstance instance, VkDebugUtilsMessengerEXT messenger, const VkAllocationCallbacks *allocator)
{
    (void)instance, (void)allocator;
    destroy((void *)messenger, MESSENGER, "vkDestroyDebugUtilsMessengerEXT");
}
FUNCTION(void, fvkDestroyDevice, VkDevice device, const VkAllocationCallbacks *allocator)
{
    (void)allocator;
    destroy((void *)device, DEVICE, "vkDestroyDevice");
}
FUNCTION(VkResult, fvkEnumerateInstanceVersion, uint32_t *version)
{
    *version = VK_API_VERSION_1_3;
    return VK_SUCCESS;
}
FUNCTION(VkResult, fvkEnumerateInstanceLayerProperties, uint32_t *count, VkLayerProperties *list)
{
    *count = drv.options.validation;
    if (list != NULL && *count == 1) snprintf(list->layerName, sizeof list->layerName, "VK_LAYER_KHRONOS_validation");
    return fails("vkEnumerateInstanceLayerProperties") ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(VkResult, fvkEnumerateInstanceExtensionProperties, const char *layer, uint32_t *count, VkExtensionProperties *list)
{
    *count = layer == NULL ? drv.options.portability : drv.options.validation;
    if (list != NULL && *count == 1)
        snprintf(list->extensionName, sizeof list->extensionName, "%s",
                 layer == NULL ? VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME : VK_EXT_LAYER_SETTINGS_EXTENSION_NAME);
    return fails("vkEnumerateInstanceExtensionProperties") ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(VkResult, fvkEnumeratePhysicalDevices, VkInstance instance, uint32_t *count, VkPhysicalDevice *list)
{
    (void)instance;
    *count = !drv.options.portability || drv.shows_portability;
    if (list != NULL && *count == 1) list[0] = (VkPhysicalDevice)(void *)&physical;
    return fails("vkEnumeratePhysicalDevices") ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(VkResult, fvkEnumerateDeviceExtensionProperties, VkPhysicalDevice of, const char *layer, uint32_t *count, VkExtensionProperties *list)
{
    (void)of, (void)layer;
    const char *names[MOST_EXTENSIONS];
    const uint32_t found = device_extensions(names);
    for (uint32_t i = 0; list != NULL && i < found && i < *count; i++) snprintf(list[i].extensionName, sizeof list[i].extensionName, "%s", names[i]);
    *count = found;
    return fails("vkEnumerateDeviceExtensionProperties") ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(void, fvkGetPhysicalDeviceProperties, VkPhysicalDevice of, VkPhysicalDeviceProperties *p)
{
    (void)of;
    *p = (VkPhysicalDeviceProperties){.apiVersion = VK_API_VERSION_1_3, .deviceName = "the tests' driver"};
    p->deviceType = drv.options.discrete ? VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU : VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    p->limits = (VkPhysicalDeviceLimits){.maxPerStageDescriptorStorageBuffers = 64, .maxDescriptorSetStorageBuffers = 64, .maxPerStageResources = 128,
                                         .maxComputeWorkGroupInvocations = 1024, .maxComputeWorkGroupSize = {1024, 1024, 64},
                                         .maxComputeSharedMemorySize = 49152, .maxPushConstantsSize = 256, .minStorageBufferOffsetAlignment = 16,
                                         .maxStorageBufferRange = 1u << 30, .timestampPeriod = 1, .maxComputeWorkGroupCount = {65535, 65535, 65535}};
    if (drv.options.change != NULL) drv.options.change(p);
}
FUNCTION(void, fvkGetPhysicalDeviceProperties2, VkPhysicalDevice of, VkPhysicalDeviceProperties2 *p)
{
    fvkGetPhysicalDeviceProperties(of, &p->properties);
    for (VkBaseOutStructure *at = (VkBaseOutStructure *)p->pNext; at != NULL; at = at->pNext) {
        if (at->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES) {
            VkPhysicalDeviceSubgroupProperties *subgroup = (VkPhysicalDeviceSubgroupProperties *)(void *)at;
            subgroup->subgroupSize = 32;
            subgroup->supportedStages = VK_SHADER_STAGE_COMPUTE_BIT;
            subgroup->supportedOperations = 0xff;
        } else if (at->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES) {
            VkPhysicalDeviceSubgroupSizeControlProperties *sizes = (VkPhysicalDeviceSubgroupSizeControlProperties *)(void *)at;
            sizes->minSubgroupSize = sizes->maxSubgroupSize = 32;
        } else if (at->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES) {
            ((VkPhysicalDeviceMaintenance4Properties *)(void *)at)->maxBufferSize = 1u << 30;
        }
    }
}
FUNCTION(void, fvkGetPhysicalDeviceFeatures2, VkPhysicalDevice of, VkPhysicalDeviceFeatures2 *features)
{
    (void)of;
    for (VkBaseOutStructure *at = (VkBaseOutStructure *)features->pNext; at != NULL; at = at->pNext) {
        VkPhysicalDeviceVulkanMemoryModelFeatures *model = (VkPhysicalDeviceVulkanMemoryModelFeatures *)(void *)at;
        switch ((int)at->sType) {
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES:
            ((VkPhysicalDevice16BitStorageFeatures *)(void *)at)->storageBuffer16BitAccess = VK_TRUE;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES:
            ((VkPhysicalDeviceTimelineSemaphoreFeatures *)(void *)at)->timelineSemaphore = VK_TRUE;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES:
            ((VkPhysicalDeviceShaderFloat16Int8Features *)(void *)at)->shaderFloat16 = drv.options.matrices;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES:
            model->vulkanMemoryModel = model->vulkanMemoryModelDeviceScope = drv.options.matrices;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR:
            ((VkPhysicalDeviceCooperativeMatrixFeaturesKHR *)(void *)at)->cooperativeMatrix = VK_TRUE;
            break;
        default: break;
        }
    }
}
FUNCTION(VkResult, fvkGetPhysicalDeviceCooperativeMatrixPropertiesKHR, VkPhysicalDevice of, uint32_t *count, VkCooperativeMatrixPropertiesKHR *list)
{
    (void)of;
    *count = 1;
    if (list != NULL)
        *list = (VkCooperativeMatrixPropertiesKHR){.MSize = 16, .NSize = 16, .KSize = 16, .AType = VK_COMPONENT_TYPE_FLOAT16_KHR,
                                                   .BType = VK_COMPONENT_TYPE_FLOAT16_KHR, .CType = VK_COMPONENT_TYPE_FLOAT32_KHR,
                                                   .ResultType = VK_COMPONENT_TYPE_FLOAT32_KHR, .scope = VK_SCOPE_SUBGROUP_KHR};
    return fails("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR") ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(void, fvkGetPhysicalDeviceExternalBufferProperties, VkPhysicalDevice of, const VkPhysicalDeviceExternalBufferInfo *info,
         VkExternalBufferProperties *can)
{
    (void)of, (void)info;
    can->externalMemoryProperties.externalMemoryFeatures = VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
}
FUNCTION(void, fvkGetPhysicalDeviceExternalSemaphoreProperties, VkPhysicalDevice of, const VkPhysicalDeviceExternalSemaphoreInfo *info,
         VkExternalSemaphoreProperties *can)
{
    (void)of, (void)info;
    can->externalSemaphoreFeatures = VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_SEMAPHORE_FEATURE_IMPORTABLE_BIT;
}
FUNCTION(void, fvkGetPhysicalDeviceMemoryProperties, VkPhysicalDevice of, VkPhysicalDeviceMemoryProperties *p)
{
    const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    (void)of;
    *p = (VkPhysicalDeviceMemoryProperties){.memoryTypeCount = 3, .memoryHeapCount = 1,
                                            .memoryTypes = {{VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0},
                                                            {host | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 0},
                                                            {host | VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0}},
                                            .memoryHeaps = {{UINT64_C(1) << 32, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT}}};
}
FUNCTION(void, fvkGetPhysicalDeviceQueueFamilyProperties, VkPhysicalDevice of, uint32_t *count, VkQueueFamilyProperties *list)
{
    (void)of;
    const VkQueueFlags flags = drv.options.queues != 0 ? drv.options.queues : VK_QUEUE_COMPUTE_BIT;
    const uint32_t room = list != NULL ? *count : UINT32_MAX;
    *count = drv.options.graphics_family != 0 ? 2 : 1;
    if (list == NULL || room < *count) return;
    list[0] = list[*count - 1] = (VkQueueFamilyProperties){.queueFlags = flags, .queueCount = 2, .timestampValidBits = 64};
    if (drv.options.graphics_family != 0) list[drv.options.graphics_family - 1].queueFlags |= VK_QUEUE_GRAPHICS_BIT;
}

/* ---- Devices ---- */

FUNCTION(VkResult, fvkCreateDevice, VkPhysicalDevice of, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *allocator, VkDevice *out)
{
    (void)of, (void)allocator;
    const bool failed = fails("vkCreateDevice");
    *out = (VkDevice)(void *)(failed ? &garbage : make(DEVICE));
    drv.priority = 0;
    bool part = false;
    for (uint32_t i = 0; info != NULL && i < info->enabledExtensionCount; i++) {
        if (!has_extension(info->ppEnabledExtensionNames[i])) misuse("vkCreateDevice", "an extension that there is not");
        part = part || strcmp(info->ppEnabledExtensionNames[i], PORTABILITY_SUBSET) == 0;
    }
    if (drv.options.portability && !drv.host && !part) misuse("vkCreateDevice", "without " PORTABILITY_SUBSET);
    drv.family = info != NULL ? info->pQueueCreateInfos[0].queueFamilyIndex : 0;
    for (const VkBaseInStructure *at = info != NULL ? info->pQueueCreateInfos[0].pNext : NULL; at != NULL; at = at->pNext)
        if (at->sType == VK_STRUCTURE_TYPE_DEVICE_QUEUE_GLOBAL_PRIORITY_CREATE_INFO_KHR)
            drv.priority = (uint32_t)((const VkDeviceQueueGlobalPriorityCreateInfoKHR *)(const void *)at)->globalPriority;
    return failed ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(void, fvkGetDeviceQueue, VkDevice device, uint32_t family, uint32_t index, VkQueue *out)
{
    (void)device, (void)family, (void)index;
    *out = (VkQueue)(void *)&queue;
}
FUNCTION(VkResult, fvkCreateBuffer, VkDevice device, const VkBufferCreateInfo *info, const VkAllocationCallbacks *allocator, VkBuffer *out)
{
    (void)device, (void)allocator;
    const bool failed = fails("vkCreateBuffer");
    object *made = failed ? &garbage : make(BUFFER);
    if (!failed) made->bytes = info->size;
    *out = (VkBuffer)(void *)made;
    return failed ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(void, fvkGetBufferMemoryRequirements, VkDevice device, VkBuffer buffer, VkMemoryRequirements *needs)
{
    (void)device;
    *needs = (VkMemoryRequirements){.size = base_round_up(((object *)(void *)buffer)->bytes, 256), .alignment = 256, .memoryTypeBits = 7};
}
FUNCTION(VkResult, fvkAllocateMemory, VkDevice device, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *allocator, VkDeviceMemory *out)
{
    (void)device, (void)allocator;
    const bool failed = fails("vkAllocateMemory");
    object *made = failed ? &garbage : make(MEMORY);
    for (const VkBaseInStructure *at = info->pNext; at != NULL && !failed; at = at->pNext)
        if (at->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR) file_close_descriptor(((const VkImportMemoryFdInfoKHR *)(const void *)at)->fd);
    if (!failed && (made->data = driver_calloc(1, (size_t)info->allocationSize)) == NULL) abort();
    *out = (VkDeviceMemory)(void *)made;
    return failed ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(void, fvkFreeMemory, VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *allocator)
{
    (void)device, (void)allocator;
    destroy((void *)memory, MEMORY, "vkFreeMemory");
}
FUNCTION(VkResult, fvkBindBufferMemory, VkDevice device, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize offset)
{
    (void)device;
    object *o = (object *)(void *)buffer;
    o->memory = (object *)(void *)memory;
    o->offset = offset;
    memset(o->memory->data + offset, 0, (size_t)o->bytes); /* what nobody computes is 0, an id among others */
    return fails("vkBindBufferMemory") ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(VkResult, fvkMapMemory, VkDevice device, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize size, VkMemoryMapFlags flags, void **out)
{
    (void)device, (void)size, (void)flags;
    const bool failed = fails("vkMapMemory");
    *out = failed ? &garbage : (void *)(((object *)(void *)memory)->data + offset);
    return failed ? drv.options.gives : VK_SUCCESS;
}
/* A descriptor of nothing. */
static VkResult give_descriptor(const char *call, int *out)
{
    const bool failed = fails(call);
    *out = failed ? 1 << 20 : open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (*out < 0) abort();
    return failed ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(VkResult, fvkGetMemoryFdKHR, VkDevice device, const VkMemoryGetFdInfoKHR *info, int *out)
{
    (void)device, (void)info;
    return give_descriptor("vkGetMemoryFdKHR", out);
}
FUNCTION(VkResult, fvkGetSemaphoreFdKHR, VkDevice device, const VkSemaphoreGetFdInfoKHR *info, int *out)
{
    (void)device, (void)info;
    return give_descriptor("vkGetSemaphoreFdKHR", out);
}
FUNCTION(VkResult, fvkImportSemaphoreFdKHR, VkDevice device, const VkImportSemaphoreFdInfoKHR *info)
{
    (void)device;
    if (fails("vkImportSemaphoreFdKHR")) return drv.options.gives;
    file_close_descriptor(info->fd);
    return VK_SUCCESS;
}
FUNCTION(VkResult, fvkAllocateCommandBuffers, VkDevice device, const VkCommandBufferAllocateInfo *info, VkCommandBuffer *out)
{
    (void)device;
    const bool failed = fails("vkAllocateCommandBuffers");
    object *const given = failed ? &garbage : drv.host ? &commands_of_host : &commands_of_pools;
    for (uint32_t i = 0; i < info->commandBufferCount; i++) out[i] = (VkCommandBuffer)(void *)given;
    return failed ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(VkResult, fvkAllocateDescriptorSets, VkDevice device, const VkDescriptorSetAllocateInfo *info, VkDescriptorSet *out)
{
    (void)device, (void)info;
    const bool failed = fails("vkAllocateDescriptorSets");
    *out = (VkDescriptorSet)(void *)(failed ? &garbage : &sets_of_pools);
    return failed ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(VkResult, fvkCreateComputePipelines, VkDevice device, VkPipelineCache cache, uint32_t count, const VkComputePipelineCreateInfo *info,
         const VkAllocationCallbacks *allocator, VkPipeline *out)
{
    (void)device, (void)cache, (void)count, (void)info, (void)allocator;
    const bool failed = fails("vkCreateComputePipelines");
    *out = (VkPipeline)(void *)(failed ? NULL : make(PIPELINE)); /* of these Vulkan says so */
    return failed ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(VkResult, fvkGetPipelineCacheData, VkDevice device, VkPipelineCache cache, size_t *bytes, void *data)
{
    (void)device, (void)cache;
    if (data == NULL) *bytes = 32;
    else memset(data, 0, *bytes);
    return fails("vkGetPipelineCacheData") ? drv.options.gives : VK_SUCCESS;
}
FUNCTION(VkResult, fvkGetQueryPoolResults, VkDevice device, VkQueryPool pool, uint32_t first, uint32_t count, size_t size, void *data,
         VkDeviceSize stride, VkQueryResultFlags flags)
{
    (void)device, (void)pool, (void)first, (void)count, (void)stride, (void)flags;
    memset(data, 0, size);
    return fails("vkGetQueryPoolResults") ? drv.options.gives : VK_SUCCESS;
}
/* What only has a result, and what has none. The arguments, then their names. */
#define RESULT(name, arguments, ...) \
    static VKAPI_ATTR VkResult VKAPI_CALL f##name arguments \
    { \
        const void *unused[] = {__VA_ARGS__}; \
        (void)unused; \
        return fails(#name) ? drv.options.gives : VK_SUCCESS; \
    }
#define NOTHING(name, arguments, ...) \
    static VKAPI_ATTR void VKAPI_CALL f##name arguments \
    { \
        const void *unused[] = {__VA_ARGS__}; \
        (void)unused; \
    }
RESULT(vkResetCommandPool, (VkDevice a, VkCommandPool b, VkCommandPoolResetFlags c),
       &a, &b, &c)
RESULT(vkBeginCommandBuffer, (VkCommandBuffer a, const VkCommandBufferBeginInfo *b),
       &a, &b)
RESULT(vkEndCommandBuffer, (VkCommandBuffer a),
       &a)
RESULT(vkResetFences, (VkDevice a, uint32_t b, const VkFence *c),
       &a, &b, &c)
RESULT(vkResetDescriptorPool, (VkDevice a, VkDescriptorPool b, VkDescriptorPoolResetFlags c),
       &a, &b, &c)
RESULT(vkQueueSubmit, (VkQueue a, uint32_t b, const VkSubmitInfo *c, VkFence d),
       &a, &b, &c, &d)
RESULT(vkWaitForFences, (VkDevice a, uint32_t b, const VkFence *c, VkBool32 d, uint64_t e),
       &a, &b, &c, &d, &e)
NOTHING(vkUpdateDescriptorSets, (VkDevice a, uint32_t b, const VkWriteDescriptorSet *c, uint32_t d, const VkCopyDescriptorSet *e),
        &a, &b, &c, &d, &e)
NOTHING(vkCmdPipelineBarrier, (VkCommandBuffer a, VkPipelineStageFlags b, VkPipelineStageFlags c, VkDependencyFlags d, uint32_t e,
        const VkMemoryBarrier *f, uint32_t g, const VkBufferMemoryBarrier *h, uint32_t i, const VkImageMemoryBarrier *j),
        &a, &b, &c, &d, &e, &f, &g, &h, &i, &j)
NOTHING(vkCmdBindPipeline, (VkCommandBuffer a, VkPipelineBindPoint b, VkPipeline c),
        &a, &b, &c)
NOTHING(vkCmdBindDescriptorSets, (VkCommandBuffer a, VkPipelineBindPoint b, VkPipelineLayout c, uint32_t d, uint32_t e,
        const VkDescriptorSet *f, uint32_t g, const uint32_t *h),
        &a, &b, &c, &d, &e, &f, &g, &h)
NOTHING(vkCmdPushConstants, (VkCommandBuffer a, VkPipelineLayout b, VkShaderStageFlags c, uint32_t d, uint32_t e, const void *f),
        &a, &b, &c, &d, &e, &f)
NOTHING(vkCmdDispatch, (VkCommandBuffer a, uint32_t b, uint32_t c, uint32_t d),
        &a, &b, &c, &d)
NOTHING(vkCmdResetQueryPool, (VkCommandBuffer a, VkQueryPool b, uint32_t c, uint32_t d),
        &a, &b, &c, &d)
NOTHING(vkCmdWriteTimestamp, (VkCommandBuffer a, VkPipelineStageFlagBits b, VkQueryPool c, uint32_t d),
        &a, &b, &c, &d)
FUNCTION(void, fvkCmdCopyBuffer, VkCommandBuffer of, VkBuffer from, VkBuffer to, uint32_t count, const VkBufferCopy *regions)
{
    const object *a = (const object *)(const void *)from, *b = (const object *)(const void *)to;
    (void)of;
    for (uint32_t i = 0; i < count; i++)
        memcpy(b->memory->data + b->offset + regions[i].dstOffset, a->memory->data + a->offset + regions[i].srcOffset, (size_t)regions[i].size);
}

/* ---- Finding them ---- */

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL fvkGetDeviceProcAddr(VkDevice device, const char *name)
{
    (void)device;
    return driver_get(NULL, name);
}
VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL driver_get(VkInstance instance, const char *name)
{
#define NAME(call) {#call, (PFN_vkVoidFunction)f##call}
    static const struct { const char *name; PFN_vkVoidFunction call; } all[] = {
        NAME(vkCreateInstance), NAME(vkDestroyInstance), NAME(vkEnumerateInstanceVersion), NAME(vkEnumerateInstanceExtensionProperties),
        NAME(vkEnumeratePhysicalDevices), NAME(vkEnumerateDeviceExtensionProperties), NAME(vkGetPhysicalDeviceProperties),
        NAME(vkGetPhysicalDeviceProperties2), NAME(vkGetPhysicalDeviceFeatures2), NAME(vkGetPhysicalDeviceMemoryProperties),
        NAME(vkGetPhysicalDeviceQueueFamilyProperties), NAME(vkCreateDevice), NAME(vkDestroyDevice), NAME(vkGetDeviceProcAddr),
        NAME(vkGetDeviceQueue),
        NAME(vkCreateBuffer), NAME(vkDestroyBuffer), NAME(vkGetBufferMemoryRequirements), NAME(vkAllocateMemory), NAME(vkFreeMemory),
        NAME(vkBindBufferMemory), NAME(vkMapMemory), NAME(vkCreateCommandPool), NAME(vkDestroyCommandPool), NAME(vkResetCommandPool),
        NAME(vkAllocateCommandBuffers), NAME(vkBeginCommandBuffer), NAME(vkEndCommandBuffer), NAME(vkCreateFence), NAME(vkDestroyFence),
        NAME(vkResetFences), NAME(vkWaitForFences), NAME(vkQueueSubmit), NAME(vkCreateQueryPool), NAME(vkDestroyQueryPool),
        NAME(vkGetQueryPoolResults), NAME(vkCreateDescriptorPool), NAME(vkDestroyDescriptorPool), NAME(vkResetDescriptorPool),
        NAME(vkAllocateDescriptorSets), NAME(vkUpdateDescriptorSets), NAME(vkCreateDescriptorSetLayout), NAME(vkDestroyDescriptorSetLayout),
        NAME(vkCreatePipelineLayout), NAME(vkDestroyPipelineLayout), NAME(vkCreatePipelineCache), NAME(vkDestroyPipelineCache),
        NAME(vkGetPipelineCacheData), NAME(vkCreateShaderModule), NAME(vkDestroyShaderModule), NAME(vkCreateComputePipelines),
        NAME(vkDestroyPipeline), NAME(vkCreateSemaphore), NAME(vkDestroySemaphore), NAME(vkCmdPipelineBarrier), NAME(vkCmdBindPipeline),
        NAME(vkCmdBindDescriptorSets), NAME(vkCmdPushConstants), NAME(vkCmdDispatch), NAME(vkCmdResetQueryPool), NAME(vkCmdWriteTimestamp),
        NAME(vkCmdCopyBuffer), NAME(vkEnumerateInstanceLayerProperties), NAME(vkCreateDebugUtilsMessengerEXT),
        NAME(vkDestroyDebugUtilsMessengerEXT), NAME(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR),
        NAME(vkGetPhysicalDeviceExternalBufferProperties), NAME(vkGetPhysicalDeviceExternalSemaphoreProperties), NAME(vkGetMemoryFdKHR),
        NAME(vkGetSemaphoreFdKHR), NAME(vkImportSemaphoreFdKHR)};
    (void)instance;
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (strcmp(all[i].name, name) == 0) return all[i].call;
    return NULL;
}

/* ---- A program that uses it ---- */

void driver_program_open(driver_program *p)
{
    uint32_t one = 1;
    driver_host(true);
    fvkCreateInstance(NULL, NULL, &p->instance);
    fvkEnumeratePhysicalDevices(p->instance, &one, &p->physical);
    fvkCreateDevice(p->physical, NULL, NULL, &p->device);
    fvkCreateBuffer(p->device, &(VkBufferCreateInfo){.size = DRIVER_PROGRAM_BYTES}, NULL, &p->buffer);
    fvkAllocateMemory(p->device, &(VkMemoryAllocateInfo){.allocationSize = DRIVER_PROGRAM_BYTES}, NULL, &p->memory);
    fvkBindBufferMemory(p->device, p->buffer, p->memory, 0);
    fvkCreateSemaphore(p->device, NULL, NULL, &p->semaphore);
    fvkAllocateCommandBuffers(p->device, &(VkCommandBufferAllocateInfo){.commandBufferCount = 1}, &p->commands);
    driver_host(false);
}

void driver_program_close(const driver_program *p)
{
    driver_host(true);
    fvkDestroySemaphore(p->device, p->semaphore, NULL);
    fvkDestroyBuffer(p->device, p->buffer, NULL);
    fvkFreeMemory(p->device, p->memory, NULL);
    fvkDestroyDevice(p->device, NULL);
    fvkDestroyInstance(p->instance, NULL);
    driver_host(false);
}
