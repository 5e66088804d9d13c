#include "canvas.h"

#include "font.h"

#include "draw.frag.h"
#include "draw.vert.h"

#include <stdio.h>
#include <string.h>

static const VkFormat format = VK_FORMAT_R8G8B8A8_UNORM;

static void make_image(canvas *c)
{
    const VkDevice device = c->host->device;
    const VkImageCreateInfo image = {
        .sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO, .imageType = VK_IMAGE_TYPE_2D, .format = format,
        .extent = {CANVAS_WIDTH, CANVAS_HEIGHT, 1}, .mipLevels = 1, .arrayLayers = 1, .samples = VK_SAMPLE_COUNT_1_BIT,
        .usage = VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT | VK_IMAGE_USAGE_TRANSFER_SRC_BIT};
    VkMemoryRequirements needs;
    must(vkCreateImage(device, &image, NULL, &c->image), "vkCreateImage");
    vkGetImageMemoryRequirements(device, c->image, &needs);
    c->memory = host_allocate(c->host, &needs, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    must(vkBindImageMemory(device, c->image, c->memory, 0), "vkBindImageMemory");
    const VkImageViewCreateInfo view = {.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO, .image = c->image,
                                        .viewType = VK_IMAGE_VIEW_TYPE_2D, .format = format,
                                        .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};
    must(vkCreateImageView(device, &view, NULL, &c->view), "vkCreateImageView");
}

/* The pass leaves the image ready to be copied. */
static void make_pass(canvas *c)
{
    const VkAttachmentDescription attachment = {
        .format = format, .samples = VK_SAMPLE_COUNT_1_BIT, .loadOp = VK_ATTACHMENT_LOAD_OP_CLEAR, .storeOp = VK_ATTACHMENT_STORE_OP_STORE,
        .stencilLoadOp = VK_ATTACHMENT_LOAD_OP_DONT_CARE, .stencilStoreOp = VK_ATTACHMENT_STORE_OP_DONT_CARE,
        .initialLayout = VK_IMAGE_LAYOUT_UNDEFINED, .finalLayout = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL};
    const VkAttachmentReference reference = {0, VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL};
    const VkSubpassDescription subpass = {.pipelineBindPoint = VK_PIPELINE_BIND_POINT_GRAPHICS, .colorAttachmentCount = 1,
                                          .pColorAttachments = &reference};
    const VkSubpassDependency dependencies[] = {
        {.srcSubpass = VK_SUBPASS_EXTERNAL, .dstSubpass = 0, .srcStageMask = VK_PIPELINE_STAGE_TRANSFER_BIT,
         .dstStageMask = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT, .srcAccessMask = VK_ACCESS_TRANSFER_READ_BIT,
         .dstAccessMask = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT},
        {.srcSubpass = 0, .dstSubpass = VK_SUBPASS_EXTERNAL, .srcStageMask = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
         .dstStageMask = VK_PIPELINE_STAGE_TRANSFER_BIT, .srcAccessMask = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT,
         .dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT}};
    const VkRenderPassCreateInfo pass = {.sType = VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO, .attachmentCount = 1, .pAttachments = &attachment,
                                         .subpassCount = 1, .pSubpasses = &subpass, .dependencyCount = 2, .pDependencies = dependencies};
    must(vkCreateRenderPass(c->host->device, &pass, NULL, &c->pass), "vkCreateRenderPass");
    const VkFramebufferCreateInfo framebuffer = {.sType = VK_STRUCTURE_TYPE_FRAMEBUFFER_CREATE_INFO, .renderPass = c->pass, .attachmentCount = 1,
                                                 .pAttachments = &c->view, .width = CANVAS_WIDTH, .height = CANVAS_HEIGHT, .layers = 1};
    must(vkCreateFramebuffer(c->host->device, &framebuffer, NULL, &c->framebuffer), "vkCreateFramebuffer");
}

/* One binding, the map's weights. */
static void make_set(canvas *c, const buffer *weights)
{
    const VkDevice device = c->host->device;
    const VkDescriptorSetLayoutBinding binding = {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_FRAGMENT_BIT, NULL};
    const VkDescriptorSetLayoutCreateInfo set_layout = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = 1,
                                                        .pBindings = &binding};
    must(vkCreateDescriptorSetLayout(device, &set_layout, NULL, &c->set_layout), "vkCreateDescriptorSetLayout");
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1};
    const VkDescriptorPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1, .poolSizeCount = 1,
                                             .pPoolSizes = &size};
    must(vkCreateDescriptorPool(device, &pool, NULL, &c->pool), "vkCreateDescriptorPool");
    const VkDescriptorSetAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, .descriptorPool = c->pool,
                                                  .descriptorSetCount = 1, .pSetLayouts = &c->set_layout};
    must(vkAllocateDescriptorSets(device, &allocate, &c->set), "vkAllocateDescriptorSets");
    const VkDescriptorBufferInfo range = {weights->handle, 0, VK_WHOLE_SIZE};
    const VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstSet = c->set, .descriptorCount = 1,
                                        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .pBufferInfo = &range};
    vkUpdateDescriptorSets(device, 1, &write, 0, NULL);
}

static void make_pipeline(canvas *c)
{
    const VkDevice device = c->host->device;
    const VkPushConstantRange constants = {VK_SHADER_STAGE_FRAGMENT_BIT, 0, sizeof(canvas_map)};
    const VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1,
                                               .pSetLayouts = &c->set_layout, .pushConstantRangeCount = 1, .pPushConstantRanges = &constants};
    must(vkCreatePipelineLayout(device, &layout, NULL, &c->layout), "vkCreatePipelineLayout");
    const VkShaderModule vertex = host_make_shader(c->host, draw_vert, sizeof draw_vert);
    const VkShaderModule fragment = host_make_shader(c->host, draw_frag, sizeof draw_frag);
    const VkPipelineShaderStageCreateInfo stages[] = {
        {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_VERTEX_BIT, .module = vertex, .pName = "main"},
        {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_FRAGMENT_BIT, .module = fragment, .pName = "main"}};
    const VkVertexInputBindingDescription binding = {0, sizeof(rect), VK_VERTEX_INPUT_RATE_INSTANCE};
    const VkVertexInputAttributeDescription attributes[] = {{0, 0, VK_FORMAT_R32G32B32A32_SFLOAT, 0},
                                                            {1, 0, VK_FORMAT_R32G32B32A32_UINT, offsetof(rect, color)}};
    const VkPipelineVertexInputStateCreateInfo input = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_VERTEX_INPUT_STATE_CREATE_INFO, .vertexBindingDescriptionCount = 1,
        .pVertexBindingDescriptions = &binding, .vertexAttributeDescriptionCount = 2, .pVertexAttributeDescriptions = attributes};
    const VkPipelineInputAssemblyStateCreateInfo assembly = {.sType = VK_STRUCTURE_TYPE_PIPELINE_INPUT_ASSEMBLY_STATE_CREATE_INFO,
                                                             .topology = VK_PRIMITIVE_TOPOLOGY_TRIANGLE_LIST};
    const VkViewport viewport = {0, 0, CANVAS_WIDTH, CANVAS_HEIGHT, 0, 1};
    const VkRect2D scissor = {{0, 0}, {CANVAS_WIDTH, CANVAS_HEIGHT}};
    const VkPipelineViewportStateCreateInfo area = {.sType = VK_STRUCTURE_TYPE_PIPELINE_VIEWPORT_STATE_CREATE_INFO, .viewportCount = 1,
                                                    .pViewports = &viewport, .scissorCount = 1, .pScissors = &scissor};
    const VkPipelineRasterizationStateCreateInfo raster = {.sType = VK_STRUCTURE_TYPE_PIPELINE_RASTERIZATION_STATE_CREATE_INFO,
                                                           .polygonMode = VK_POLYGON_MODE_FILL, .cullMode = VK_CULL_MODE_NONE, .lineWidth = 1};
    const VkPipelineMultisampleStateCreateInfo samples = {.sType = VK_STRUCTURE_TYPE_PIPELINE_MULTISAMPLE_STATE_CREATE_INFO,
                                                          .rasterizationSamples = VK_SAMPLE_COUNT_1_BIT};
    const VkPipelineColorBlendAttachmentState all = {.colorWriteMask = 0xf};
    const VkPipelineColorBlendStateCreateInfo blend = {.sType = VK_STRUCTURE_TYPE_PIPELINE_COLOR_BLEND_STATE_CREATE_INFO, .attachmentCount = 1,
                                                       .pAttachments = &all};
    const VkGraphicsPipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_GRAPHICS_PIPELINE_CREATE_INFO, .stageCount = 2, .pStages = stages, .pVertexInputState = &input,
        .pInputAssemblyState = &assembly, .pViewportState = &area, .pRasterizationState = &raster, .pMultisampleState = &samples,
        .pColorBlendState = &blend, .layout = c->layout, .renderPass = c->pass};
    must(vkCreateGraphicsPipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &c->pipeline), "vkCreateGraphicsPipelines");
    vkDestroyShaderModule(device, vertex, NULL);
    vkDestroyShaderModule(device, fragment, NULL);
}

void canvas_open(canvas *c, host *h, const buffer *weights)
{
    *c = (canvas){.host = h};
    make_image(c);
    make_pass(c);
    make_set(c, weights);
    make_pipeline(c);
    c->rects = host_make_buffer(h, CANVAS_MOST_RECTS * sizeof(rect), VK_BUFFER_USAGE_VERTEX_BUFFER_BIT, true);
    c->pixels = host_make_buffer(h, (VkDeviceSize)CANVAS_WIDTH * CANVAS_HEIGHT * 4, VK_BUFFER_USAGE_TRANSFER_DST_BIT, true);
}

void canvas_close(canvas *c)
{
    const VkDevice device = c->host->device;
    host_destroy_buffer(c->host, &c->rects);
    host_destroy_buffer(c->host, &c->pixels);
    vkDestroyPipeline(device, c->pipeline, NULL);
    vkDestroyPipelineLayout(device, c->layout, NULL);
    vkDestroyDescriptorPool(device, c->pool, NULL);
    vkDestroyDescriptorSetLayout(device, c->set_layout, NULL);
    vkDestroyFramebuffer(device, c->framebuffer, NULL);
    vkDestroyRenderPass(device, c->pass, NULL);
    vkDestroyImageView(device, c->view, NULL);
    vkDestroyImage(device, c->image, NULL);
    vkFreeMemory(device, c->memory, NULL);
}

/* ---- A picture ---- */

void canvas_clear(canvas *c) { c->count = 0; }

static void add(canvas *c, const rect *r)
{
    if (c->count < CANVAS_MOST_RECTS) memcpy((rect *)c->rects.mapped + c->count++, r, sizeof *r);
}

void canvas_rect(canvas *c, float x, float y, float w, float h, uint32_t color)
{
    add(c, &(rect){.x = x, .y = y, .w = w, .h = h, .color = color});
}

void canvas_text(canvas *c, float x, float y, uint32_t scale, uint32_t color, const char *text)
{
    const float size = 8 * (float)scale;
    for (uint32_t i = 0; text[i] != '\0'; i++) {
        rect letter = {.x = x + (float)(i * FONT_PITCH * scale), .y = y, .w = size, .h = size, .color = color, .kind = 1};
        font_bits(text[i], letter.bits);
        add(c, &letter);
    }
}

void canvas_draw_map(canvas *c, float x, float y, float w, float h, canvas_map map)
{
    c->map = map;
    add(c, &(rect){.x = x, .y = y, .w = w, .h = h, .color = 0xffc45c, .kind = 2});
}

void canvas_record(canvas *c, VkCommandBuffer to, bool screenshot)
{
    const VkClearValue background = {.color = {.float32 = {0x0d / 255.f, 0x10 / 255.f, 0x15 / 255.f, 1}}};
    const VkRenderPassBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_RENDER_PASS_BEGIN_INFO, .renderPass = c->pass, .framebuffer = c->framebuffer,
                                         .renderArea = {{0, 0}, {CANVAS_WIDTH, CANVAS_HEIGHT}}, .clearValueCount = 1, .pClearValues = &background};
    const VkDeviceSize zero = 0;
    vkCmdBeginRenderPass(to, &begin, VK_SUBPASS_CONTENTS_INLINE);
    vkCmdBindPipeline(to, VK_PIPELINE_BIND_POINT_GRAPHICS, c->pipeline);
    vkCmdBindDescriptorSets(to, VK_PIPELINE_BIND_POINT_GRAPHICS, c->layout, 0, 1, &c->set, 0, NULL);
    vkCmdPushConstants(to, c->layout, VK_SHADER_STAGE_FRAGMENT_BIT, 0, sizeof c->map, &c->map);
    vkCmdBindVertexBuffers(to, 0, 1, &c->rects.handle, &zero);
    vkCmdDraw(to, 6, c->count, 0, 0);
    vkCmdEndRenderPass(to);
    if (!screenshot) return;
    const VkBufferImageCopy all = {.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1}, .imageExtent = {CANVAS_WIDTH, CANVAS_HEIGHT, 1}};
    vkCmdCopyImageToBuffer(to, c->image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, c->pixels.handle, 1, &all);
    const VkMemoryBarrier to_host = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    vkCmdPipelineBarrier(to, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &to_host, 0, NULL, 0, NULL);
}

void canvas_write(const canvas *c, const char *path)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) die("cannot write %s", path);
    fprintf(file, "P6\n%d %d\n255\n", CANVAS_WIDTH, CANVAS_HEIGHT);
    const uint8_t *pixel = c->pixels.mapped;
    for (uint32_t i = 0; i < CANVAS_WIDTH * CANVAS_HEIGHT; i++, pixel += 4) fwrite(pixel, 1, 3, file);
    if (ferror(file) != 0 || fclose(file) != 0) die("cannot write %s", path);
}
