#include "attention.h"

#include "logits.comp.h"
#include "weights.comp.h"

#include <string.h>

enum { BINDINGS = 5 }; /* q, e, memories, logits, weights */

/* Push constants of both shaders. Places and rows are counted in elements. */
typedef struct constants {
    uint32_t N, P, H, G;
    uint32_t first, M; /* memories of this run that the token attends to; of weights.comp: of all */
    uint32_t pitch, row;
    uint32_t q_at, e_at, dh_at;
    uint32_t query_dtype, memory_dtype; /* dart_dtype */
    float eps;                          /* under the roots of rms */
} constants;

static VkPipeline make_pipeline(const attention *a, const uint32_t *code, size_t bytes)
{
    VkPipeline made;
    const VkShaderModule shader = host_make_shader(a->host, code, bytes);
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, .layout = a->layout,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = shader,
                  .pName = "main"}};
    must(vkCreateComputePipelines(a->host->device, VK_NULL_HANDLE, 1, &info, NULL, &made), "vkCreateComputePipelines");
    vkDestroyShaderModule(a->host->device, shader, NULL);
    return made;
}

void attention_open(attention *a, host *h, const buffer *weights, uint32_t pitch)
{
    VkDescriptorSetLayoutBinding bindings[BINDINGS];
    VkDescriptorSetLayout layouts[ATTENTION_MOST_RUNS];
    *a = (attention){.host = h, .weights = weights->handle, .weights_bytes = weights->bytes, .pitch = pitch};
    for (uint32_t i = 0; i < BINDINGS; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL};
    const VkDescriptorSetLayoutCreateInfo set_layout = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = BINDINGS,
                                                        .pBindings = bindings};
    must(vkCreateDescriptorSetLayout(h->device, &set_layout, NULL, &a->set_layout), "vkCreateDescriptorSetLayout");
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, BINDINGS * ATTENTION_MOST_RUNS};
    const VkDescriptorPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = ATTENTION_MOST_RUNS,
                                             .poolSizeCount = 1, .pPoolSizes = &size};
    must(vkCreateDescriptorPool(h->device, &pool, NULL, &a->pool), "vkCreateDescriptorPool");
    for (uint32_t i = 0; i < ATTENTION_MOST_RUNS; i++) layouts[i] = a->set_layout;
    const VkDescriptorSetAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, .descriptorPool = a->pool,
                                                  .descriptorSetCount = ATTENTION_MOST_RUNS, .pSetLayouts = layouts};
    must(vkAllocateDescriptorSets(h->device, &allocate, a->sets), "vkAllocateDescriptorSets");
    const VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(constants)};
    const VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1,
                                               .pSetLayouts = &a->set_layout, .pushConstantRangeCount = 1, .pPushConstantRanges = &range};
    must(vkCreatePipelineLayout(h->device, &layout, NULL, &a->layout), "vkCreatePipelineLayout");
    a->logits_pipeline = make_pipeline(a, logits_comp, sizeof logits_comp);
    a->weights_pipeline = make_pipeline(a, weights_comp, sizeof weights_comp);
    a->commands = host_make_commands(h, true);
}

void attention_close(attention *a)
{
    const VkDevice device = a->host->device;
    host_destroy_commands(a->host, &a->commands);
    host_destroy_buffer(a->host, &a->logits);
    vkDestroyPipeline(device, a->logits_pipeline, NULL);
    vkDestroyPipeline(device, a->weights_pipeline, NULL);
    vkDestroyPipelineLayout(device, a->layout, NULL);
    vkDestroyDescriptorPool(device, a->pool, NULL);
    vkDestroyDescriptorSetLayout(device, a->set_layout, NULL);
}

/* On one queue a barrier orders what was submitted before it, by whichever thread, with what comes after; between two, semaphores do. */
static void barrier(const attention *a, VkPipelineStageFlags from, VkAccessFlags written, VkPipelineStageFlags to, VkAccessFlags used)
{
    const VkMemoryBarrier memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = written, .dstAccessMask = used};
    if (host_has_two_queues(a->host)) { /* a family without graphics has no fragment shaders */
        from &= ~(VkPipelineStageFlags)VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT;
        to &= ~(VkPipelineStageFlags)VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT;
        if (to == 0) return;
    }
    vkCmdPipelineBarrier(a->commands.handle, from, to, 0, 1, &memory, 0, NULL, 0, NULL);
}

void attention_clear(attention *a)
{
    const float none = -1;
    uint32_t bits;
    memcpy(&bits, &none, sizeof bits);
    host_begin(&a->commands);
    barrier(a, VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
    vkCmdFillBuffer(a->commands.handle, a->weights, 0, VK_WHOLE_SIZE, bits);
    barrier(a, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
            VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
    host_run(a->host, &a->commands, VK_NULL_HANDLE, VK_NULL_HANDLE);
}

/* Where a tensor of dartlm lies in Vulkan: its buffer, bound from `range->offset` on, and the place in elements from there. */
static uint32_t locate(dart_tensor tensor, VkDescriptorBufferInfo *range)
{
    dart_vulkan_buffer found;
    if (dart_vulkan_buffer_of(tensor.buffer, &found) != DART_OK) die("a tensor of the model does not lie on this device");
    *range = (VkDescriptorBufferInfo){found.buffer, found.offset, found.bytes};
    return (uint32_t)tensor.offset;
}

/* Binds what one run of memories needs. */
static void bind(const attention *a, VkDescriptorSet set, const dart_queries *queries, const dart_memories *run, constants *c)
{
    VkDescriptorBufferInfo ranges[BINDINGS] = {[3] = {a->logits.handle, 0, VK_WHOLE_SIZE}, [4] = {a->weights, 0, VK_WHOLE_SIZE}};
    VkWriteDescriptorSet writes[BINDINGS];
    c->q_at = locate(queries->q, &ranges[0]);
    c->e_at = locate(queries->e, &ranges[1]);
    c->dh_at = locate(run->dh, &ranges[2]);
    c->query_dtype = (uint32_t)queries->q.dtype;
    c->memory_dtype = (uint32_t)run->dh.dtype;
    for (uint32_t i = 0; i < BINDINGS; i++)
        writes[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstSet = set, .dstBinding = i, .descriptorCount = 1,
                                           .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .pBufferInfo = &ranges[i]};
    vkUpdateDescriptorSets(a->host->device, BINDINGS, writes, 0, NULL);
}

void attention_add_row(attention *a, const dart_model_config *config, const dart_queries *queries, uint32_t row)
{
    const VkCommandBuffer to = a->commands.handle;
    constants c = {.N = config->N, .P = config->P, .H = config->H, .G = config->G, .pitch = a->pitch, .row = row,
                   .eps = config->sma_eps};
    if (queries->M == 0 || queries->M > a->pitch || queries->runs_count > ATTENTION_MOST_RUNS) return;
    if (a->logits.handle == VK_NULL_HANDLE)
        a->logits = host_make_buffer(a->host, (VkDeviceSize)config->H * a->pitch * sizeof(float), VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, false);
    host_begin(&a->commands);
    /* After dartlm's step and the row before, and after frames that still read the map. */
    barrier(a, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT,
            VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
    vkCmdBindPipeline(to, VK_PIPELINE_BIND_POINT_COMPUTE, a->logits_pipeline);
    for (uint32_t i = 0; i < queries->runs_count; i++) {
        const dart_memories *run = &queries->runs[i];
        c.first = run->first;
        c.M = queries->M - run->first < run->M ? queries->M - run->first : run->M;
        bind(a, a->sets[i], queries, run, &c);
        vkCmdBindDescriptorSets(to, VK_PIPELINE_BIND_POINT_COMPUTE, a->layout, 0, 1, &a->sets[i], 0, NULL);
        vkCmdPushConstants(to, a->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof c, &c);
        vkCmdDispatch(to, c.M, c.H, 1);
    }
    barrier(a, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT);
    c.M = queries->M;
    vkCmdBindPipeline(to, VK_PIPELINE_BIND_POINT_COMPUTE, a->weights_pipeline);
    vkCmdPushConstants(to, a->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof c, &c);
    vkCmdDispatch(to, 1, 1, 1);
    barrier(a, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT, VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT);
    host_run(a->host, &a->commands, VK_NULL_HANDLE, VK_NULL_HANDLE);
}
