#include "vk.h"

#include <stdlib.h>
#include <string.h>

#define POOL_SETS 256u
#define POOL_DESCRIPTORS (POOL_SETS * 8)

/* Absent bindings take turns on pieces of a small buffer, so that launches which may overlap rarely meet there:
 * nobody reads or writes it, but hazard checks go by what a shader could do. */
#define DUMMY_BYTES BACKEND_ALIGN
#define DUMMYS ((uint32_t)(16 * KERNEL_MAX_BINDINGS))

/* Long arguments of launches lie in buffers of that size until the next recording begins. */
#define ARGUMENTS_BYTES (UINT64_C(64) << 10)

/* Queries of a stream: begin, end, and on a profiled device one after each of so many launches. */
#define PROFILED_LAUNCHES 8191u

/* See goes_back: more than caches of most devices hold. */
#define LONG_BYTES (UINT64_C(32) << 20)

typedef struct set_pool set_pool;
struct set_pool {
    VkDescriptorPool handle;
    uint32_t sets, descriptors; /* left */
    set_pool *next;
};

typedef struct argument_block argument_block;
struct argument_block {
    vk_memory *memory;
    argument_block *next;
};

typedef enum stream_state { STREAM_EMPTY, STREAM_RECORDING, STREAM_READY } stream_state;

typedef struct vk_stream {
    stream_state state;
    bool in_flight;
    bool timed; /* a run has ended since the recording began */
    VkCommandPool pool, frame_pool;
    VkCommandBuffer commands;       /* the recording; may stand in one submission several times */
    VkCommandBuffer target, next_target; /* where launches go now and after the next begin; NULL: the next go to `commands` */
    VkCommandBuffer opening, ending; /* around it: time stamps, and what the host reads */
    VkCommandBuffer *submission;    /* opening, recordings, ending */
    uint32_t submission_room;
    VkFence fence;
    uint32_t launches;
    bool back; /* the last launch went from its last tile to its first */
    VkQueryPool times; /* absent where the queue has no clock; the host's is taken then */
    set_pool *sets;    /* all pools */
    set_pool *current; /* earlier ones are used up */
    argument_block *arguments; /* filled one after another */
    argument_block *filling;   /* NULL: none yet */
    uint64_t filled;           /* bytes of it */
    vk_memory *dummy;
    uint32_t dummy_turn;
    uint64_t submitted_ns, host_ns;
} vk_stream;

static uint32_t queries_of(const vk_device *device) { return 2 + (device->profiled ? PROFILED_LAUNCHES : 0); }

static void barrier(vk_device *device, VkCommandBuffer commands, VkPipelineStageFlags from, VkAccessFlags writes,
                    VkPipelineStageFlags to, VkAccessFlags accesses)
{
    const VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = writes, .dstAccessMask = accesses};
    device->vk.vkCmdPipelineBarrier(commands, from, to, 0, 1, &memory, 0, NULL, 0, NULL);
}

static dart_status record_frame(vk_device *device, vk_stream *stream)
{
    dart_status status = DART_OK;
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = device->family.index};
    VK_MAKE(device, vkCreateCommandPool, stream->frame_pool, (device->handle, &pool, NULL, &stream->frame_pool));
    VkCommandBuffer made[2];
    const VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                  .commandPool = stream->frame_pool,
                                                  .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                  .commandBufferCount = 2};
    VK(device, vkAllocateCommandBuffers, (device->handle, &commands, made));
    stream->opening = made[0];
    stream->ending = made[1];
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VK(device, vkBeginCommandBuffer, (stream->opening, &info));
    if (stream->times != VK_NULL_HANDLE) {
        device->vk.vkCmdResetQueryPool(stream->opening, stream->times, 0, 2);
        device->vk.vkCmdWriteTimestamp(stream->opening, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, stream->times, 0);
    }
    VK(device, vkEndCommandBuffer, (stream->opening));
    VK(device, vkBeginCommandBuffer, (stream->ending, &info));
    barrier(device, stream->ending, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
    if (stream->times != VK_NULL_HANDLE)
        device->vk.vkCmdWriteTimestamp(stream->ending, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, stream->times, 1);
    VK(device, vkEndCommandBuffer, (stream->ending));
fail:
    return status;
}

dart_status vk_stream_create(void *self, void **out)
{
    vk_device *device = self;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    vk_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) return base_fail(device->report, DART_OUT_OF_MEMORY, "Vulkan stream");
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = device->family.index};
    VK_MAKE(device, vkCreateCommandPool, stream->pool, (device->handle, &pool, NULL, &stream->pool));
    const VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                  .commandPool = stream->pool,
                                                  .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                  .commandBufferCount = 1};
    VK(device, vkAllocateCommandBuffers, (device->handle, &commands, &stream->commands));
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VK_MAKE(device, vkCreateFence, stream->fence, (device->handle, &fence, NULL, &stream->fence));
    if (device->family.timestamp_bits != 0) {
        const VkQueryPoolCreateInfo times = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                             .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                             .queryCount = queries_of(device)};
        VK_MAKE(device, vkCreateQueryPool, stream->times, (device->handle, &times, NULL, &stream->times));
    }
    TRY(record_frame(device, stream));
    void *dummy = NULL;
    TRY(vk_memory_create(device, (uint64_t)DUMMY_BYTES * DUMMYS, &dummy));
    stream->dummy = dummy;
    *out = stream;
    return DART_OK;
fail:
    vk_stream_destroy(device, stream);
    return status;
}

void vk_stream_destroy(void *self, void *handle)
{
    vk_device *device = self;
    vk_stream *stream = handle;
    if (stream == NULL) return;
    for (set_pool *pool = stream->sets, *next; pool != NULL; pool = next) {
        next = pool->next;
        device->vk.vkDestroyDescriptorPool(device->handle, pool->handle, NULL);
        free(pool);
    }
    if (stream->times != VK_NULL_HANDLE) device->vk.vkDestroyQueryPool(device->handle, stream->times, NULL);
    if (stream->fence != VK_NULL_HANDLE) device->vk.vkDestroyFence(device->handle, stream->fence, NULL);
    if (stream->pool != VK_NULL_HANDLE) device->vk.vkDestroyCommandPool(device->handle, stream->pool, NULL);
    if (stream->frame_pool != VK_NULL_HANDLE) device->vk.vkDestroyCommandPool(device->handle, stream->frame_pool, NULL);
    for (argument_block *block = stream->arguments, *next; block != NULL; block = next) {
        next = block->next;
        vk_memory_destroy(device, block->memory);
        free(block);
    }
    vk_memory_destroy(device, stream->dummy);
    free(stream->submission);
    free(stream);
}

dart_status vk_stream_begin(void *self, void *handle)
{
    vk_device *device = self;
    vk_stream *stream = handle;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    stream->state = STREAM_EMPTY;
    stream->timed = false;
    stream->launches = 0;
    stream->back = false;
    stream->target = stream->next_target != NULL ? stream->next_target : stream->commands;
    stream->next_target = NULL;
    VK(device, vkResetCommandPool, (device->handle, stream->pool, 0));
    for (set_pool *pool = stream->sets; pool != NULL; pool = pool->next) {
        VK(device, vkResetDescriptorPool, (device->handle, pool->handle, 0));
        pool->sets = POOL_SETS;
        pool->descriptors = POOL_DESCRIPTORS;
    }
    stream->current = stream->sets;
    stream->filling = stream->arguments;
    stream->filled = 0;
    stream->dummy_turn = 0;
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};
    if (stream->target == stream->commands) VK(device, vkBeginCommandBuffer, (stream->commands, &info));
    if (device->profiled && stream->times != VK_NULL_HANDLE)
        device->vk.vkCmdResetQueryPool(stream->commands, stream->times, 2, PROFILED_LAUNCHES);
    /* After the copies, the other streams and the previous run of this recording. Writes of the host need nothing:
     * submitting makes them visible. */
    barrier(device, stream->target, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
    stream->state = STREAM_RECORDING;
fail:
    return status;
}

static dart_status add_pool(vk_device *device, vk_stream *stream)
{
    dart_status status = DART_OK;
    set_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL) return base_fail(device->report, DART_OUT_OF_MEMORY, "descriptor pool");
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, POOL_DESCRIPTORS};
    const VkDescriptorPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                             .maxSets = POOL_SETS,
                                             .poolSizeCount = 1,
                                             .pPoolSizes = &size};
    VK_MAKE(device, vkCreateDescriptorPool, pool->handle, (device->handle, &info, NULL, &pool->handle));
    pool->sets = POOL_SETS;
    pool->descriptors = POOL_DESCRIPTORS;
    if (stream->current != NULL) stream->current->next = pool;
    else stream->sets = pool;
    stream->current = pool;
    return DART_OK;
fail:
    free(pool);
    return status;
}

static dart_status get_set(vk_device *device, vk_stream *stream, uint32_t bindings, VkDescriptorSet *set)
{
    dart_status status = DART_OK;
    while (stream->current == NULL || stream->current->sets == 0 || stream->current->descriptors < bindings) {
        if (stream->current != NULL && stream->current->next != NULL) stream->current = stream->current->next;
        else TRY(add_pool(device, stream));
    }
    const VkDescriptorSetAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                              .descriptorPool = stream->current->handle,
                                              .descriptorSetCount = 1,
                                              .pSetLayouts = &device->set_layouts[bindings]};
    VK(device, vkAllocateDescriptorSets, (device->handle, &info, set));
    stream->current->sets--;
    stream->current->descriptors -= bindings;
fail:
    return status;
}

static dart_status describe(vk_device *device, vk_stream *stream, const backend_binding *binding, const char *name,
                            VkDescriptorBufferInfo *info)
{
    const vk_memory *memory = binding->memory;
    if (memory == NULL) {
        info->buffer = stream->dummy->buffer;
        info->offset = (VkDeviceSize)(stream->dummy_turn++ % DUMMYS) * DUMMY_BYTES;
        info->range = DUMMY_BYTES;
        return DART_OK;
    }
    if (binding->bytes > device->adapter->info.max_binding_bytes)
        return base_fail(device->report, DART_UNSUPPORTED, "binding %s has %llu bytes, the device sees %llu at once",
                         name, (unsigned long long)binding->bytes,
                         (unsigned long long)device->adapter->info.max_binding_bytes);
    const uint64_t bytes = base_round_up(binding->bytes, 4);
    REQUIRE(device->report,
            bytes > 0 && binding->offset % BACKEND_ALIGN == 0 && binding->offset <= memory->bytes &&
                bytes <= memory->bytes - binding->offset,
            "binding %s: %llu bytes at %llu of a buffer of %llu", name, (unsigned long long)binding->bytes,
            (unsigned long long)binding->offset, (unsigned long long)memory->bytes);
    info->buffer = memory->buffer;
    info->offset = memory->start + binding->offset;
    info->range = bytes;
    return DART_OK;
}

static dart_status add_arguments(vk_device *device, vk_stream *stream)
{
    argument_block *block = calloc(1, sizeof(*block));
    if (block == NULL) return base_fail(device->report, DART_OUT_OF_MEMORY, "arguments of launches");
    void *memory = NULL;
    const dart_status status = vk_memory_create(device, ARGUMENTS_BYTES, &memory);
    if (status != DART_OK) {
        free(block);
        return status;
    }
    block->memory = memory;
    if (stream->filling != NULL) stream->filling->next = block;
    else stream->arguments = block;
    stream->filling = block;
    stream->filled = 0;
    return DART_OK;
}

/* Puts the arguments where the recording finds them however often it runs. */
static dart_status keep_arguments(vk_device *device, vk_stream *stream, const void *args, uint32_t bytes, VkDescriptorBufferInfo *info)
{
    dart_status status = DART_OK;
    if (stream->filling != NULL && ARGUMENTS_BYTES - stream->filled < bytes && stream->filling->next != NULL) {
        stream->filling = stream->filling->next;
        stream->filled = 0;
    }
    if (stream->filling == NULL || ARGUMENTS_BYTES - stream->filled < bytes) TRY(add_arguments(device, stream));
    TRY(vk_memory_write(device, stream->filling->memory, stream->filled, args, bytes));
    *info = (VkDescriptorBufferInfo){.buffer = stream->filling->memory->buffer, .offset = stream->filled, .range = bytes};
    stream->filled += base_round_up(bytes, BACKEND_ALIGN);
fail:
    return status;
}

/* Kernels that read what one of them has just written, tile by tile alike, and hardly more than once. Others have reasons for the order of their
 * tiles: those that take longest come first. */
static bool streams_memory(kernel_id id)
{
    static const kernel_id ids[] = {
        KERNEL_fill, KERNEL_convert, KERNEL_embed, KERNEL_norm, KERNEL_norm_backward, KERNEL_gated_norm, KERNEL_gated_norm_backward, KERNEL_linear,
        KERNEL_linear_from, KERNEL_linear_backward_x, KERNEL_linear_backward_weight, KERNEL_conv, KERNEL_conv_backward, KERNEL_rope, KERNEL_swiglu,
        KERNEL_swiglu_backward};
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        if (ids[i] == id) return true;
    return false;
}

/* Whether the last tile is begun first. What a long launch wrote last is in the cache, so that a launch behind it which begins there finds it. Steps
 * of training with two narrow layers take some 1 % less (H100, 262,144 tokens, November 2026). No result depends on the order. */
static bool goes_back(const vk_device *device, const vk_stream *stream, const backend_launch *launch)
{
    if (launch->backwards || !device->adapter->turns) return launch->backwards;
    if (launch->first > 0) return stream->back; /* a range of a launch goes as the one before */
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < kernel_table[launch->row->id].bindings_count; i++)
        if (launch->bindings[i].memory != NULL) bytes += launch->bindings[i].bytes;
    return !stream->back && bytes > LONG_BYTES && streams_memory(launch->row->id);
}

dart_status vk_stream_launch(void *self, void *handle, const backend_launch *launch)
{
    vk_device *device = self;
    vk_stream *stream = handle;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    REQUIRE(device->report, stream->state == STREAM_RECORDING, "a launch outside of a recording");
    const kernel_info *kernel = &kernel_table[launch->row->id];
    VkPipeline pipeline = VK_NULL_HANDLE;
    VkDescriptorSet set = VK_NULL_HANDLE;
    VkDescriptorBufferInfo buffers[VK_MAX_BUFFERS];
    VkWriteDescriptorSet writes[VK_MAX_BUFFERS];
    const bool pushed = kernel->args_size <= PUSH_BYTES;
    const uint32_t count = kernel_buffers(launch->row->id);
    uint32_t args[KERNEL_MAX_ARGS / 4 + 1];
    const bool range = vk_is_range(device, launch->row->id, launch->first);
    const uint32_t args_bytes = kernel->args_size + (range ? 4 : 0);
    memcpy(args, launch->args, kernel->args_size);
    args[0] = launch->end; /* `tiles`: where the loop of every shader ends */
    args[kernel->args_size / 4] = launch->first;
    TRY(vk_pipeline_get(device, &(backend_code){launch->row, launch->dtypes, launch->T0, launch->T1, range}, &pipeline));
    for (uint32_t i = 0; i < kernel->bindings_count; i++)
        TRY(describe(device, stream, &launch->bindings[i], kernel->bindings[i].name, &buffers[i]));
    if (!pushed) TRY(keep_arguments(device, stream, args, args_bytes, &buffers[kernel->bindings_count]));
    TRY(get_set(device, stream, count, &set));
    for (uint32_t i = 0; i < count; i++) {
        writes[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                           .dstSet = set,
                                           .dstBinding = i,
                                           .descriptorCount = 1,
                                           .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                           .pBufferInfo = &buffers[i]};
    }
    device->vk.vkUpdateDescriptorSets(device->handle, count, writes, 0, NULL);

    const VkCommandBuffer commands = stream->target;
    const VkPipelineLayout layout = device->layouts[count];
    if (launch->barrier || device->profiled)
        barrier(device, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
    device->vk.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    device->vk.vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, NULL);
    if (pushed)
        device->vk.vkCmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, args_bytes, args);
    const uint32_t tiles = launch->end - launch->first, groups = tiles < device->adapter->max_groups ? tiles : device->adapter->max_groups;
    stream->back = goes_back(device, stream, launch);
    if (stream->back) device->vk.vkCmdDispatchBase(commands, 0, 0, 1, groups, 1, 1);
    else device->vk.vkCmdDispatch(commands, groups, 1, 1);
    if (device->profiled && stream->times != VK_NULL_HANDLE && stream->launches < PROFILED_LAUNCHES)
        device->vk.vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, stream->times, 2 + stream->launches);
    stream->launches++;
fail:
    return status;
}

static dart_status finish(vk_device *device, vk_stream *stream)
{
    dart_status status = DART_OK;
    stream->state = STREAM_EMPTY; /* unless it ends well */
    VK(device, vkEndCommandBuffer, (stream->commands));
    stream->state = STREAM_READY;
fail:
    return status;
}

static dart_status gather(vk_device *device, vk_stream *stream, uint32_t times)
{
    const uint32_t count = times + 2;
    if (count > stream->submission_room) {
        VkCommandBuffer *grown = realloc(stream->submission, count * sizeof(*grown));
        if (grown == NULL) return base_fail(device->report, DART_OUT_OF_MEMORY, "Vulkan submission");
        stream->submission = grown;
        stream->submission_room = count;
    }
    stream->submission[0] = stream->opening;
    for (uint32_t i = 1; i <= times; i++) stream->submission[i] = stream->commands;
    stream->submission[count - 1] = stream->ending;
    return DART_OK;
}

dart_status vk_stream_submit(void *self, void *handle, uint32_t times, const backend_order *order)
{
    vk_device *device = self;
    vk_stream *stream = handle;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    REQUIRE(device->report, stream->state != STREAM_EMPTY, "nothing is recorded");
    REQUIRE(device->report, stream->target == stream->commands, "the recording is in the host's command buffer, which the host submits");
    REQUIRE(device->report, !stream->in_flight, "the last submission was not waited for");
    if (stream->state == STREAM_RECORDING) TRY(finish(device, stream));
    TRY(gather(device, stream, times));
    VK(device, vkResetFences, (device->handle, 1, &stream->fence));
    stream->submitted_ns = base_now_ns();
    TRY(vk_device_submit(device, stream->submission, times + 2, stream->fence, order));
    stream->in_flight = true;
fail:
    return status;
}

void vk_stream_target(void *handle, VkCommandBuffer commands)
{
    vk_stream *stream = handle;
    stream->next_target = commands;
}

dart_status vk_stream_wait(void *self, void *handle, uint64_t timeout_ns)
{
    vk_device *device = self;
    vk_stream *stream = handle;
    const dart_status status = vk_device_check(device);
    if (status != DART_OK || !stream->in_flight) return status;
    const VkResult result = device->vk.vkWaitForFences(device->handle, 1, &stream->fence, VK_TRUE, timeout_ns);
    if (result == VK_TIMEOUT) return DART_TIMEOUT; /* an answer, not a failure: no text */
    if (result != VK_SUCCESS) return vk_fail(device, result, "vkWaitForFences");
    stream->host_ns = base_now_ns() - stream->submitted_ns;
    stream->in_flight = false;
    stream->timed = true;
    return DART_OK;
}

static uint64_t ticks_ns(const vk_device *device, uint64_t from, uint64_t to)
{
    const uint32_t bits = device->family.timestamp_bits;
    const uint64_t ticks = (to - from) & (bits < 64 ? (UINT64_C(1) << bits) - 1 : UINT64_MAX);
    return (uint64_t)((double)ticks * (double)device->adapter->timestamp_period);
}

dart_status vk_stream_elapsed(void *self, void *handle, uint64_t *ns)
{
    vk_device *device = self;
    const vk_stream *stream = handle;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    REQUIRE(device->report, stream->timed && !stream->in_flight, "no submission has finished");
    if (stream->times == VK_NULL_HANDLE) {
        *ns = stream->host_ns;
        return DART_OK;
    }
    uint64_t times[2] = {0, 0};
    VK(device, vkGetQueryPoolResults,
       (device->handle, stream->times, 0, 2, sizeof(times), times, sizeof(times[0]), VK_QUERY_RESULT_64_BIT));
    *ns = ticks_ns(device, times[0], times[1]);
fail:
    return status;
}

dart_status vk_stream_times(void *self, void *handle, uint64_t *ns, uint32_t *count)
{
    vk_device *device = self;
    const vk_stream *stream = handle;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    REQUIRE(device->report, stream->timed && !stream->in_flight, "no submission has finished");
    if (*count > stream->launches) *count = stream->launches;
    if (*count > PROFILED_LAUNCHES) *count = PROFILED_LAUNCHES;
    if (stream->times == VK_NULL_HANDLE || !device->profiled) *count = 0;
    if (*count == 0) return DART_OK;
    uint64_t before = 0;
    VK(device, vkGetQueryPoolResults,
       (device->handle, stream->times, 0, 1, sizeof(before), &before, sizeof(before), VK_QUERY_RESULT_64_BIT));
    VK(device, vkGetQueryPoolResults,
       (device->handle, stream->times, 2, *count, *count * sizeof(*ns), ns, sizeof(*ns), VK_QUERY_RESULT_64_BIT));
    for (uint32_t i = 0; i < *count; i++) {
        const uint64_t after = ns[i];
        ns[i] = ticks_ns(device, before, after);
        before = after;
    }
fail:
    return status;
}
