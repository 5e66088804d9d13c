/* A Vulkan layer that tells what the driver's compiler made of each compute pipeline: one line of JSON a pipeline to stderr,
 *   {"ms": 12.5, "parts": [{"name": "CS SIMD32", "subgroup": 32, "statistics": {"Instruction Count": 123, ...}}]}
 * ms is the processor time of the process while the pipeline was created, which other programs on the machine hardly change. The
 * statistics, from VK_KHR_pipeline_executable_properties, bear the driver's names; without that extension there are none.
 * tools/with-vulkan.sh --statistics puts it between a program and the driver. It serves one device at a time. */
#include <vulkan/vulkan.h>
#include <vulkan/vk_layer.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_PARTS = 8, MOST_STATISTICS = 64 };

static struct {
    VkInstance instance;
    PFN_vkGetInstanceProcAddr of_instance;
    PFN_vkGetDeviceProcAddr of_device;
    bool tells; /* the device has the extension */
    PFN_vkCreateComputePipelines create;
    PFN_vkGetPipelineExecutablePropertiesKHR parts;
    PFN_vkGetPipelineExecutableStatisticsKHR statistics;
    PFN_vkGetQueryPoolResults results;
} next;

/* Where the loader says what comes below this layer. Its chain is const only because it hangs on a const struct. */
#define FIND_LINK(Link, info, type) \
    do { \
        const void *at = (info)->pNext; \
        while (at != NULL && !(((const Link *)at)->sType == (type) && ((const Link *)at)->function == VK_LAYER_LINK_INFO)) \
            at = ((const Link *)at)->pNext; \
        link = (Link *)(uintptr_t)at; \
    } while (0)

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *allocator, VkInstance *out)
{
    VkLayerInstanceCreateInfo *link;
    FIND_LINK(VkLayerInstanceCreateInfo, info, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    if (link == NULL) return VK_ERROR_INITIALIZATION_FAILED;
    next.of_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    const VkResult result = ((PFN_vkCreateInstance)next.of_instance(NULL, "vkCreateInstance"))(info, allocator, out);
    next.instance = result == VK_SUCCESS ? *out : VK_NULL_HANDLE;
    return result;
}

static bool has_extension(VkPhysicalDevice physical)
{
    const PFN_vkEnumerateDeviceExtensionProperties list =
        (PFN_vkEnumerateDeviceExtensionProperties)next.of_instance(next.instance, "vkEnumerateDeviceExtensionProperties");
    uint32_t count = 0;
    bool found = false;
    if (list(physical, NULL, &count, NULL) != VK_SUCCESS) return false;
    VkExtensionProperties *all = calloc(count + 1, sizeof *all);
    if (all != NULL && list(physical, NULL, &count, all) == VK_SUCCESS)
        for (uint32_t i = 0; i < count; i++) found = found || strcmp(all[i].extensionName, VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME) == 0;
    free(all);
    return found;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *allocator,
                                                    VkDevice *out)
{
    VkLayerDeviceCreateInfo *link;
    FIND_LINK(VkLayerDeviceCreateInfo, info, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    if (link == NULL) return VK_ERROR_INITIALIZATION_FAILED;
    const PFN_vkGetInstanceProcAddr below = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next.of_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;

    next.tells = has_extension(physical);
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR feature = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
        .pNext = (void *)(uintptr_t)info->pNext,
        .pipelineExecutableInfo = VK_TRUE};
    VkDeviceCreateInfo more = *info;
    const char **names = calloc(info->enabledExtensionCount + 1, sizeof *names);
    if (names == NULL) return VK_ERROR_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++) names[i] = info->ppEnabledExtensionNames[i];
    names[info->enabledExtensionCount] = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
    if (next.tells) {
        more.pNext = &feature;
        more.ppEnabledExtensionNames = names;
        more.enabledExtensionCount++;
    }
    const VkResult result = ((PFN_vkCreateDevice)below(next.instance, "vkCreateDevice"))(physical, &more, allocator, out);
    free(names);
    if (result != VK_SUCCESS) return result;
    next.create = (PFN_vkCreateComputePipelines)next.of_device(*out, "vkCreateComputePipelines");
    next.parts = (PFN_vkGetPipelineExecutablePropertiesKHR)next.of_device(*out, "vkGetPipelineExecutablePropertiesKHR");
    next.statistics = (PFN_vkGetPipelineExecutableStatisticsKHR)next.of_device(*out, "vkGetPipelineExecutableStatisticsKHR");
    next.results = (PFN_vkGetQueryPoolResults)next.of_device(*out, "vkGetQueryPoolResults");
    return VK_SUCCESS;
}

static void write_statistic(FILE *to, const VkPipelineExecutableStatisticKHR *of)
{
    fprintf(to, "\"%s\": ", of->name);
    switch (of->format) {
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: fputs(of->value.b32 ? "true" : "false", to); break;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: fprintf(to, "%" PRId64, of->value.i64); break;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR: fprintf(to, "%" PRIu64, of->value.u64); break;
    default: fprintf(to, "%.9g", of->value.f64);
    }
}

static void write_parts(FILE *to, VkDevice device, VkPipeline pipeline)
{
    VkPipelineExecutablePropertiesKHR parts[MOST_PARTS];
    uint32_t parts_count = MOST_PARTS;
    for (uint32_t i = 0; i < MOST_PARTS; i++)
        parts[i] = (VkPipelineExecutablePropertiesKHR){.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR};
    next.parts(device, &(VkPipelineInfoKHR){.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, .pipeline = pipeline}, &parts_count, parts);
    for (uint32_t i = 0; i < parts_count; i++) {
        VkPipelineExecutableStatisticKHR list[MOST_STATISTICS];
        uint32_t count = MOST_STATISTICS;
        for (uint32_t k = 0; k < MOST_STATISTICS; k++)
            list[k] = (VkPipelineExecutableStatisticKHR){.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR};
        const VkPipelineExecutableInfoKHR which = {
            .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, .pipeline = pipeline, .executableIndex = i};
        next.statistics(device, &which, &count, list);
        fprintf(to, "%s{\"name\": \"%s\", \"subgroup\": %u, \"statistics\": {", i > 0 ? ", " : "", parts[i].name, parts[i].subgroupSize);
        for (uint32_t k = 0; k < count; k++) {
            if (k > 0) fputs(", ", to);
            write_statistic(to, &list[k]);
        }
        fputs("}}", to);
    }
}

static double processor_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_pipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                                       const VkComputePipelineCreateInfo *infos, const VkAllocationCallbacks *allocator,
                                                       VkPipeline *out)
{
    VkComputePipelineCreateInfo *more = calloc(count, sizeof *more);
    if (more == NULL) return VK_ERROR_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        more[i] = infos[i];
        if (next.tells) more[i].flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
    }
    const double start = processor_ms();
    const VkResult result = next.create(device, cache, count, more, allocator, out);
    const double ms = processor_ms() - start;
    free(more);
    for (uint32_t i = 0; i < count && result == VK_SUCCESS; i++) {
        /* Written whole, so that lines of several threads do not mix. */
        char *line = NULL;
        size_t length = 0;
        FILE *to = open_memstream(&line, &length);
        if (to == NULL) return result;
        fprintf(to, "{\"ms\": %.1f, \"parts\": [", ms / count);
        if (next.tells) write_parts(to, device, out[i]);
        fputs("]}\n", to);
        fclose(to);
        fputs(line, stderr);
        free(line);
    }
    return result;
}

/* A GPU that is not there (fake_gpu) writes no time stamps; then they are 0, so that work that it dropped can be waited for. */
static VKAPI_ATTR VkResult VKAPI_CALL query_results(VkDevice device, VkQueryPool pool, uint32_t first, uint32_t count, size_t bytes, void *data,
                                                    VkDeviceSize stride, VkQueryResultFlags flags)
{
    const VkResult result = next.results(device, pool, first, count, bytes, data, stride, flags);
    if (result != VK_NOT_READY) return result;
    memset(data, 0, bytes);
    return VK_SUCCESS;
}

__attribute__((visibility("default"))) VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice device, const char *name);
__attribute__((visibility("default"))) VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name);

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice device, const char *name)
{
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (PFN_vkVoidFunction)vkGetDeviceProcAddr;
    if (strcmp(name, "vkCreateComputePipelines") == 0) return (PFN_vkVoidFunction)create_pipelines;
    if (strcmp(name, "vkGetQueryPoolResults") == 0) return (PFN_vkVoidFunction)query_results;
    return next.of_device(device, name);
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name)
{
    if (strcmp(name, "vkGetInstanceProcAddr") == 0) return (PFN_vkVoidFunction)vkGetInstanceProcAddr;
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (PFN_vkVoidFunction)vkGetDeviceProcAddr;
    if (strcmp(name, "vkCreateInstance") == 0) return (PFN_vkVoidFunction)create_instance;
    if (strcmp(name, "vkCreateDevice") == 0) return (PFN_vkVoidFunction)create_device;
    if (strcmp(name, "vkCreateComputePipelines") == 0) return (PFN_vkVoidFunction)create_pipelines;
    return next.of_instance != NULL ? next.of_instance(instance, name) : NULL;
}
