#include "vk.h"
#include "vk_spirv.h"

#include <stdlib.h>

struct vk_pipeline {
    backend_code code; /* with range: IS_RANGE of shaders/lib/dart.glsl */
    VkPipeline handle; /* VK_NULL_HANDLE while a thread compiles it */
    vk_pipeline *next;
};

/* Specialisation constants in the order of their numbers (shaders/lib/dart.glsl). */
typedef struct constants {
    uint32_t dtypes, T0, T1, local;
    vk_matrix matrix;
    uint32_t subgroup, range, lockstep, directed;
} constants;
#define CONSTANTS_COUNT (sizeof(constants) / sizeof(uint32_t))

dart_status vk_pipelines_create(vk_device *device, const void *cache, size_t cache_bytes)
{
    dart_status status = DART_OK;
    VkDescriptorSetLayoutBinding bindings[VK_MAX_BUFFERS];
    for (uint32_t i = 0; i < VK_MAX_BUFFERS; i++) {
        bindings[i] = (VkDescriptorSetLayoutBinding){.binding = i,
                                                     .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                     .descriptorCount = 1,
                                                     .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    }
    const VkPushConstantRange pushed = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .offset = 0, .size = PUSH_BYTES};
    for (uint32_t count = 1; count <= VK_MAX_BUFFERS && count <= device->adapter->info.max_bindings; count++) {
        const VkDescriptorSetLayoutCreateInfo set = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                     .bindingCount = count,
                                                     .pBindings = bindings};
        VK_MAKE(device, vkCreateDescriptorSetLayout, device->set_layouts[count],
                (device->handle, &set, NULL, &device->set_layouts[count]));
        const VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                                   .setLayoutCount = 1,
                                                   .pSetLayouts = &device->set_layouts[count],
                                                   .pushConstantRangeCount = 1,
                                                   .pPushConstantRanges = &pushed};
        VK_MAKE(device, vkCreatePipelineLayout, device->layouts[count], (device->handle, &layout, NULL, &device->layouts[count]));
    }
    /* The driver looks at the bytes' header and starts empty when they are another's. */
    const VkPipelineCacheCreateInfo made = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                            .initialDataSize = cache_bytes,
                                            .pInitialData = cache};
    VK_MAKE(device, vkCreatePipelineCache, device->cache, (device->handle, &made, NULL, &device->cache));
    device->pipelines = calloc(vk_spirv_modules_count, sizeof(vk_pipeline *));
    if (device->pipelines == NULL) FAIL(device->report, DART_OUT_OF_MEMORY, "table of pipelines");
fail:
    return status;
}

void vk_pipelines_destroy(vk_device *device)
{
    for (uint32_t slot = 0; slot < vk_spirv_modules_count && device->pipelines != NULL; slot++) {
        for (vk_pipeline *pipeline = device->pipelines[slot], *next; pipeline != NULL; pipeline = next) {
            next = pipeline->next;
            device->vk.vkDestroyPipeline(device->handle, pipeline->handle, NULL);
            free(pipeline);
        }
    }
    free(device->pipelines);
    device->pipelines = NULL;
    if (device->cache != VK_NULL_HANDLE) device->vk.vkDestroyPipelineCache(device->handle, device->cache, NULL);
    for (uint32_t count = 1; count <= VK_MAX_BUFFERS; count++) {
        if (device->layouts[count] != VK_NULL_HANDLE)
            device->vk.vkDestroyPipelineLayout(device->handle, device->layouts[count], NULL);
        if (device->set_layouts[count] != VK_NULL_HANDLE)
            device->vk.vkDestroyDescriptorSetLayout(device->handle, device->set_layouts[count], NULL);
    }
}

static dart_status compile(vk_device *device, const backend_code *of, VkPipeline *out)
{
    const kernel_row *row = of->row;
    dart_status status = DART_OK;
    VkShaderModule module = VK_NULL_HANDLE;
    const vk_spirv_module *code = &vk_spirv_modules[row->slot];
    const VkShaderModuleCreateInfo module_info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                                  .codeSize = code->bytes,
                                                  .pCode = code->words};
    const vk_adapter *adapter = device->adapter;
    const bool matrix = ROW_HAS_MATRIX(row);
    const bool subgroup = !matrix && (row->needs & DART_CAP_SUBGROUP) != 0;
    const bool bfloat16 = (row->needs & DART_CAP_MATRIX_BF16) != 0;
    const constants values = {.dtypes = of->dtypes, .T0 = of->T0, .T1 = of->T1,
                              .local = matrix ? row->local * adapter->matrix_subgroup : row->local,
                              .matrix = bfloat16 ? adapter->matrix_bf16 : adapter->matrix_f16,
                              .subgroup = adapter->matrix_subgroup, .range = of->range, .lockstep = adapter->lockstep, .directed = device->directed};
    VkSpecializationMapEntry entries[CONSTANTS_COUNT];
    for (uint32_t i = 0; i < CONSTANTS_COUNT; i++)
        entries[i] = (VkSpecializationMapEntry){i, i * (uint32_t)sizeof(uint32_t), sizeof(uint32_t)};
    const VkSpecializationInfo specialization = {.mapEntryCount = CONSTANTS_COUNT,
                                                 .pMapEntries = entries,
                                                 .dataSize = sizeof(values),
                                                 .pData = &values};
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = matrix ? adapter->matrix_subgroup : adapter->asked_subgroup};
    /* Without it NVIDIA's compiler leaves out the checks where pipelines can choose, and rows were wrong then
     * (docs/lab/2026-11-26-loads-outside-tensors.md). */
    const VkPipelineRobustnessCreateInfoEXT checked = {.sType = VK_STRUCTURE_TYPE_PIPELINE_ROBUSTNESS_CREATE_INFO_EXT,
                                                       .storageBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_EXT,
                                                       .uniformBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DEVICE_DEFAULT_EXT,
                                                       .vertexInputs = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DEVICE_DEFAULT_EXT,
                                                       .images = VK_PIPELINE_ROBUSTNESS_IMAGE_BEHAVIOR_DEVICE_DEFAULT_EXT};
    VK_MAKE(device, vkCreateShaderModule, module, (device->handle, &module_info, NULL, &module));
    VkComputePipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                        .pNext = adapter->robustness ? &checked : NULL,
                                        .flags = device->directed ? VK_PIPELINE_CREATE_DISPATCH_BASE_BIT : 0,
                                        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                  .module = module,
                                                  .pName = "main",
                                                  .pSpecializationInfo = &specialization},
                                        .layout = device->layouts[kernel_buffers(row->id)]};
    if ((matrix && adapter->require_subgroup_size) || (subgroup && adapter->asked_subgroup != 0)) info.stage.pNext = &size;
    if ((matrix || subgroup) && adapter->require_full_subgroups)
        info.stage.flags |= VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
    /* Otherwise subgroups have the size that the device reports, for which Intel's have too few registers (docs/compilers.md). Those of
     * one dispatch are all of one size, by the specification of SubgroupSize. */
    if (subgroup && adapter->vary_subgroups)
        info.stage.flags |= VK_PIPELINE_SHADER_STAGE_CREATE_ALLOW_VARYING_SUBGROUP_SIZE_BIT;
    VK(device, vkCreateComputePipelines, (device->handle, device->cache, 1, &info, NULL, out));
fail:
    if (module != VK_NULL_HANDLE) device->vk.vkDestroyShaderModule(device->handle, module, NULL);
    if (status != DART_OK && device->report->log != NULL)
        base_log_line(device->report->log, DART_LOG_ERROR, "vulkan: no pipeline for %s[%s]",
                      kernel_table[row->id].name, row->variant);
    return status;
}

/* The place of the pipeline in the list of its row, NULL where it is not there. With VK_MUTEX_PIPELINES held. */
static vk_pipeline **find(const vk_device *device, const backend_code *code)
{
    vk_pipeline **at = &device->pipelines[code->row->slot];
    while (*at != NULL && ((*at)->code.dtypes != code->dtypes || (*at)->code.T0 != code->T0 || (*at)->code.T1 != code->T1 ||
                           (*at)->code.range != code->range))
        at = &(*at)->next;
    return *at != NULL ? at : NULL;
}

/* The pipeline that is ready, or a new one that this thread is to compile; NULL where there is no memory. Waits while another thread compiles it. */
static vk_pipeline *find_or_add(vk_device *device, const backend_code *code)
{
    vk_pipeline **at;
    base_lock(&device->mutexes[VK_MUTEX_PIPELINES]);
    while ((at = find(device, code)) != NULL && (*at)->handle == VK_NULL_HANDLE)
        base_condition_wait(&device->conditions[VK_CONDITION_PIPELINES], &device->mutexes[VK_MUTEX_PIPELINES]);
    vk_pipeline *pipeline = at != NULL ? *at : calloc(1, sizeof(*pipeline));
    if (at == NULL && pipeline != NULL) {
        pipeline->code = *code;
        pipeline->next = device->pipelines[code->row->slot];
        device->pipelines[code->row->slot] = pipeline;
    }
    base_unlock(&device->mutexes[VK_MUTEX_PIPELINES]);
    return pipeline;
}

dart_status vk_pipeline_get(vk_device *device, const backend_code *code, VkPipeline *out)
{
    const kernel_row *row = code->row;
    REQUIRE(device->report, row->backend == DART_BACKEND_VULKAN && row->slot < vk_spirv_modules_count,
            "%s[%s] is not a Vulkan kernel", kernel_table[row->id].name, row->variant);
    if ((row->needs & ~device->capabilities) != 0)
        return base_fail(device->report, DART_UNSUPPORTED, "%s[%s] needs capabilities 0x%x, the device has 0x%x",
                         kernel_table[row->id].name, row->variant, row->needs, device->capabilities);
    if (!kernel_fits(row->id, &device->adapter->info))
        return base_fail(device->report, DART_UNSUPPORTED, "%s takes %u buffers, the device %u", kernel_table[row->id].name,
                         kernel_buffers(row->id), device->adapter->info.max_bindings);
    vk_pipeline *pipeline = find_or_add(device, code);
    if (pipeline == NULL) return base_fail(device->report, DART_OUT_OF_MEMORY, "pipeline");
    if (pipeline->handle != VK_NULL_HANDLE) { /* for good, as this thread has seen it so under the lock */
        *out = pipeline->handle;
        return DART_OK;
    }
    /* Compiling takes long, so others may look up meanwhile. */
    VkPipeline made = VK_NULL_HANDLE;
    const dart_status status = compile(device, code, &made);
    base_lock(&device->mutexes[VK_MUTEX_PIPELINES]);
    if (status == DART_OK) {
        pipeline->handle = made;
    } else {
        *find(device, code) = pipeline->next;
        free(pipeline);
    }
    base_condition_broadcast(&device->conditions[VK_CONDITION_PIPELINES]);
    base_unlock(&device->mutexes[VK_MUTEX_PIPELINES]);
    *out = made;
    return status;
}

/* A processor takes longer to compile code (lavapipe seconds for a row) than for what a test or a small model launches with it, and its launches are
 * cut from the first on (device_assumed_rate): whole launches run the code of ranges there, from tile 0. */
bool vk_is_range(const vk_device *device, kernel_id id, uint32_t first)
{
    return first > 0 || (device->adapter->info.type == DART_DEVICE_CPU && kernel_table[id].args_size != PUSH_BYTES);
}

dart_status vk_warm(void *self, const backend_code *code)
{
    vk_device *device = self;
    const dart_status status = vk_device_check(device);
    VkPipeline pipeline = VK_NULL_HANDLE;
    backend_code made = *code;
    made.range = made.range || vk_is_range(device, code->row->id, 0);
    return status == DART_OK ? vk_pipeline_get(device, &made, &pipeline) : status;
}

dart_status vk_cache_read(void *self, void *data, size_t *bytes)
{
    vk_device *device = self;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    const VkResult result = device->vk.vkGetPipelineCacheData(device->handle, device->cache, bytes, data);
    if (result == VK_INCOMPLETE) return base_fail(device->report, DART_INVALID_ARGUMENT, "no room for the pipeline cache");
    return result == VK_SUCCESS ? DART_OK : vk_fail(device, result, "vkGetPipelineCacheData");
}
