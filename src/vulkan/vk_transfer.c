#include "vk.h"

#include <string.h>

#define STAGING_BYTES (UINT64_C(8) << 20)
/* A copy waits for the launches before it. Drivers end a hanging device themselves, usually within seconds. */
#define TRANSFER_TIMEOUT_NS (UINT64_C(600) * 1000000000)
/* Reading a discrete device's own memory directly takes about a microsecond a word, a copy about 50 in all. */
#define DIRECT_READ_BYTES 256u

static void transfer_destroy(vk_device *device, vk_transfer *transfer)
{
    if (transfer->fence != VK_NULL_HANDLE) device->vk.vkDestroyFence(device->handle, transfer->fence, NULL);
    if (transfer->pool != VK_NULL_HANDLE) device->vk.vkDestroyCommandPool(device->handle, transfer->pool, NULL);
    if (transfer->buffer != VK_NULL_HANDLE) device->vk.vkDestroyBuffer(device->handle, transfer->buffer, NULL);
    if (transfer->memory != VK_NULL_HANDLE) device->vk.vkFreeMemory(device->handle, transfer->memory, NULL);
    memset(transfer, 0, sizeof(*transfer));
}

/* All of it or nothing: mapped is set last. */
static dart_status transfer_create(vk_device *device, vk_transfer *transfer)
{
    if (transfer->mapped != NULL) return DART_OK;
    dart_status status = DART_OK;
    const VkBufferCreateInfo buffer = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                       .size = STAGING_BYTES,
                                       .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                       .sharingMode = VK_SHARING_MODE_EXCLUSIVE};
    VK_MAKE(device, vkCreateBuffer, transfer->buffer, (device->handle, &buffer, NULL, &transfer->buffer));
    VkMemoryRequirements needs;
    device->vk.vkGetBufferMemoryRequirements(device->handle, transfer->buffer, &needs);
    /* Reading uncached memory is many times slower; the device's own memory is left to buffers. */
    const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    uint32_t type = vk_memory_type(device, needs.memoryTypeBits, host, VK_MEMORY_PROPERTY_HOST_CACHED_BIT, local);
    if (type == UINT32_MAX) type = vk_memory_type(device, needs.memoryTypeBits, host, 0, 0);
    if (type == UINT32_MAX) FAIL(device->report, DART_UNSUPPORTED, "no memory that the host and the device both see");
    const VkMemoryAllocateInfo memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needs.size, .memoryTypeIndex = type};
    VK_MAKE(device, vkAllocateMemory, transfer->memory, (device->handle, &memory, NULL, &transfer->memory));
    VK(device, vkBindBufferMemory, (device->handle, transfer->buffer, transfer->memory, 0));
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
                                          .queueFamilyIndex = device->family.index};
    VK_MAKE(device, vkCreateCommandPool, transfer->pool, (device->handle, &pool, NULL, &transfer->pool));
    const VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                  .commandPool = transfer->pool,
                                                  .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                  .commandBufferCount = 1};
    VK(device, vkAllocateCommandBuffers, (device->handle, &commands, &transfer->commands));
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VK_MAKE(device, vkCreateFence, transfer->fence, (device->handle, &fence, NULL, &transfer->fence));
    void *mapped = NULL;
    VK(device, vkMapMemory, (device->handle, transfer->memory, 0, VK_WHOLE_SIZE, 0, &mapped));
    transfer->mapped = mapped;
    return DART_OK;
fail:
    transfer_destroy(device, transfer);
    return status;
}

void vk_transfers_destroy(vk_device *device)
{
    for (uint32_t i = 0; i < VK_TRANSFERS; i++) transfer_destroy(device, &device->transfers[i]);
}

/* The first free one, so that one thread alone makes one. Waits where all are taken. */
static uint32_t take(vk_device *device)
{
    uint32_t i = 0;
    base_lock(&device->mutexes[VK_MUTEX_TRANSFER]);
    while (device->transfer_taken[i])
        if (++i == VK_TRANSFERS) {
            base_condition_wait(&device->conditions[VK_CONDITION_TRANSFER], &device->mutexes[VK_MUTEX_TRANSFER]);
            i = 0;
        }
    device->transfer_taken[i] = true;
    base_unlock(&device->mutexes[VK_MUTEX_TRANSFER]);
    return i;
}

static void give(vk_device *device, uint32_t i)
{
    base_lock(&device->mutexes[VK_MUTEX_TRANSFER]);
    device->transfer_taken[i] = false;
    base_condition_broadcast(&device->conditions[VK_CONDITION_TRANSFER]);
    base_unlock(&device->mutexes[VK_MUTEX_TRANSFER]);
}

/* One copy, waited for. Launches and copies before it on the queue are finished when it starts. */
static dart_status copy(vk_device *device, const vk_transfer *transfer, VkBuffer from, VkBuffer to, const VkBufferCopy *region)
{
    dart_status status = DART_OK;
    const VkMemoryBarrier before = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                    .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                                    .dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT};
    const VkMemoryBarrier after = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                   .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                   .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    const VkPipelineStageFlags work = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    VK(device, vkResetFences, (device->handle, 1, &transfer->fence));
    VK(device, vkResetCommandPool, (device->handle, transfer->pool, 0));
    VK(device, vkBeginCommandBuffer, (transfer->commands, &begin));
    device->vk.vkCmdPipelineBarrier(transfer->commands, work, VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 1, &before, 0, NULL,
                                    0, NULL);
    device->vk.vkCmdCopyBuffer(transfer->commands, from, to, 1, region);
    device->vk.vkCmdPipelineBarrier(transfer->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0,
                                    1, &after, 0, NULL, 0, NULL);
    VK(device, vkEndCommandBuffer, (transfer->commands));
    TRY(vk_device_submit(device, &transfer->commands, 1, transfer->fence, NULL));
    const VkResult result =
        device->vk.vkWaitForFences(device->handle, 1, &transfer->fence, VK_TRUE, TRANSFER_TIMEOUT_NS);
    if (result == VK_TIMEOUT) TRY(vk_device_lose(device, "a copy did not end within ten minutes"));
    if (result != VK_SUCCESS) TRY(vk_fail(device, result, "vkWaitForFences"));
fail:
    return status;
}

/* needed: usage for copies; 0: there are none. */
static dart_status check_range(vk_device *device, const vk_memory *memory, uint64_t offset, uint64_t bytes, VkBufferUsageFlags needed)
{
    if ((memory->usage & needed) != needed)
        return base_fail(device->report, DART_UNSUPPORTED, "the host made its buffer without the usage of copies that this needs");
    REQUIRE(device->report, offset <= memory->bytes && bytes <= memory->bytes - offset,
            "%llu bytes at %llu of a buffer of %llu", (unsigned long long)bytes, (unsigned long long)offset,
            (unsigned long long)memory->bytes);
    return vk_device_check(device);
}

dart_status vk_memory_write(void *self, void *handle, uint64_t offset, const void *data, uint64_t bytes)
{
    vk_device *device = self;
    const vk_memory *memory = handle;
    dart_status status = check_range(device, memory, offset, bytes, memory->mapped != NULL ? 0 : VK_BUFFER_USAGE_TRANSFER_DST_BIT);
    if (status != DART_OK) return status;
    if (memory->mapped != NULL) {
        memcpy(memory->mapped + offset, data, (size_t)bytes);
        return DART_OK;
    }
    const uint32_t taken = take(device);
    vk_transfer *transfer = &device->transfers[taken];
    status = transfer_create(device, transfer);
    for (uint64_t at = 0; at < bytes && status == DART_OK; at += STAGING_BYTES) {
        const uint64_t size = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        memcpy(transfer->mapped, (const uint8_t *)data + at, (size_t)size);
        const VkBufferCopy region = {.srcOffset = 0, .dstOffset = memory->start + offset + at, .size = size};
        status = copy(device, transfer, transfer->buffer, memory->buffer, &region);
    }
    give(device, taken);
    return status;
}

dart_status vk_memory_read(void *self, void *handle, uint64_t offset, void *data, uint64_t bytes)
{
    vk_device *device = self;
    const vk_memory *memory = handle;
    const bool fast = device->adapter->info.type != DART_DEVICE_DISCRETE || (memory->flags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
    const bool direct =
        memory->mapped != NULL && (fast || bytes <= DIRECT_READ_BYTES || (memory->usage & VK_BUFFER_USAGE_TRANSFER_SRC_BIT) == 0);
    dart_status status = check_range(device, memory, offset, bytes, direct ? 0 : VK_BUFFER_USAGE_TRANSFER_SRC_BIT);
    if (status != DART_OK) return status;
    if (direct) {
        memcpy(data, memory->mapped + offset, (size_t)bytes);
        return DART_OK;
    }
    const uint32_t taken = take(device);
    vk_transfer *transfer = &device->transfers[taken];
    status = transfer_create(device, transfer);
    for (uint64_t at = 0; at < bytes && status == DART_OK; at += STAGING_BYTES) {
        const uint64_t size = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        const VkBufferCopy region = {.srcOffset = memory->start + offset + at, .dstOffset = 0, .size = size};
        status = copy(device, transfer, memory->buffer, transfer->buffer, &region);
        if (status == DART_OK) memcpy((uint8_t *)data + at, transfer->mapped, (size_t)size);
    }
    give(device, taken);
    return status;
}
