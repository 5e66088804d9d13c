#include "vk.h"

#include <stdlib.h>
#include <string.h>

/* Buffers up to a quarter of a block share blocks; larger ones get an allocation of their own. */
#define BLOCK_BYTES (UINT64_C(16) << 20)
/* Ids, positions and the like, which the host writes before every piece or step. */
#define SMALL_BYTES (UINT64_C(64) << 10)

#define HOST_FLAGS (VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT)
/* Types that need a feature or do not back storage buffers. */
#define SPECIAL_FLAGS \
    (VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT | \
     VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD | VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD)

static uint32_t bit_count(uint32_t bits)
{
    uint32_t count = 0;
    for (; bits != 0; bits &= bits - 1) count++;
    return count;
}

uint32_t vk_memory_type(const vk_device *device, uint32_t allowed, VkMemoryPropertyFlags need,
                        VkMemoryPropertyFlags want, VkMemoryPropertyFlags avoid)
{
    const VkPhysicalDeviceMemoryProperties *memory = &device->adapter->memory;
    uint32_t best = UINT32_MAX;
    uint32_t best_score = 0;
    for (uint32_t i = 0; i < memory->memoryTypeCount; i++) {
        const VkMemoryPropertyFlags flags = memory->memoryTypes[i].propertyFlags;
        if ((allowed >> i & 1) == 0 || (flags & need) != need || (flags & (avoid | SPECIAL_FLAGS)) != 0) continue;
        const uint32_t score = bit_count(flags & want) + 1;
        if (score <= best_score) continue;
        best = i;
        best_score = score;
    }
    return best;
}

/* The n-th choice for buffers. A discrete device keeps them in its own memory, small ones where the host can write to it, as
 * that saves a copy and a wait for each; others let the host at them, be it in memory that is not marked as the device's. */
static uint32_t choose_type(const vk_device *device, uint32_t allowed, uint64_t bytes, uint32_t n)
{
    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    const VkMemoryPropertyFlags cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    if (device->adapter->info.type == DART_DEVICE_DISCRETE) {
        const bool small = bytes <= SMALL_BYTES;
        if (small && n == 0) return vk_memory_type(device, allowed, local | HOST_FLAGS, 0, cached);
        if (n == small) return vk_memory_type(device, allowed, local, 0, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT);
        return vk_memory_type(device, allowed, local, 0, 0);
    }
    if (n == 0) return vk_memory_type(device, allowed, local | HOST_FLAGS, cached, 0);
    if (n == 1) return vk_memory_type(device, allowed, HOST_FLAGS, cached, local);
    return vk_memory_type(device, allowed, local, 0, 0);
}
#define CHOICES 3u

static bool is_direct(const vk_device *device, uint32_t type)
{
    return (device->adapter->memory.memoryTypes[type].propertyFlags & HOST_FLAGS) == HOST_FLAGS;
}

/* Finds room for bytes in a block: the offset and the link to insert at. */
static bool find_gap(vk_block *block, uint64_t bytes, uint64_t alignment, uint64_t *offset, vk_memory ***link)
{
    uint64_t at = 0;
    vk_memory **next = &block->first;
    for (;; next = &(*next)->next) {
        const uint64_t end = *next != NULL ? (*next)->offset : block->bytes;
        at = base_round_up(at, alignment);
        if (at <= end && bytes <= end - at) {
            *offset = at;
            *link = next;
            return true;
        }
        if (*next == NULL) return false;
        at = (*next)->offset + (*next)->size;
    }
}

static void place(vk_memory *memory, vk_block *block, uint64_t offset, vk_memory **link)
{
    memory->block = block;
    memory->offset = offset;
    memory->mapped = block->mapped != NULL ? block->mapped + offset : NULL;
    memory->next = *link;
    *link = memory;
}

static void block_free(vk_device *device, vk_block *block)
{
    if (block == NULL) return;
    if (block->memory != VK_NULL_HANDLE) device->vk.vkFreeMemory(device->handle, block->memory, NULL);
    free(block);
}

/* *call: which function of Vulkan the result is from. */
static VkResult block_create(vk_device *device, uint64_t bytes, uint32_t type, vk_block **out, const char **call)
{
    vk_block *block = calloc(1, sizeof(*block));
    if (block == NULL) return VK_ERROR_OUT_OF_HOST_MEMORY;
    block->bytes = bytes;
    block->type = type;
    const VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = bytes, .memoryTypeIndex = type};
    *call = "vkAllocateMemory";
    VkResult result = device->vk.vkAllocateMemory(device->handle, &info, NULL, &block->memory);
    if (result != VK_SUCCESS) block->memory = VK_NULL_HANDLE;
    if (result == VK_SUCCESS && is_direct(device, type)) {
        void *mapped = NULL;
        *call = "vkMapMemory";
        result = device->vk.vkMapMemory(device->handle, block->memory, 0, VK_WHOLE_SIZE, 0, &mapped);
        block->mapped = mapped;
    }
    if (result != VK_SUCCESS) {
        block_free(device, block);
        return result;
    }
    block->next = device->blocks;
    device->blocks = block;
    *out = block;
    return VK_SUCCESS;
}

/* With VK_MUTEX_MEMORY held. */
static VkResult find_place(vk_device *device, const VkMemoryRequirements *needs, vk_memory *memory, const char **call)
{
    const uint64_t alignment = needs->alignment > BACKEND_ALIGN ? needs->alignment : BACKEND_ALIGN;
    const bool shares = needs->size <= BLOCK_BYTES / 4;
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    uint64_t offset = 0;
    vk_memory **link = NULL;
    memory->size = needs->size;
    for (uint32_t n = 0; n < CHOICES; n++) {
        const uint32_t type = choose_type(device, needs->memoryTypeBits, needs->size, n);
        if (type == UINT32_MAX) continue;
        for (vk_block *block = device->blocks; block != NULL && shares; block = block->next) {
            if (block->type != type || !find_gap(block, needs->size, alignment, &offset, &link)) continue;
            place(memory, block, offset, link);
            return VK_SUCCESS;
        }
        const uint32_t heap = device->adapter->memory.memoryTypes[type].heapIndex;
        if (needs->size > device->adapter->memory.memoryHeaps[heap].size) continue;
        vk_block *block = NULL;
        if (shares) result = block_create(device, BLOCK_BYTES, type, &block, call);
        if (block == NULL && result != VK_ERROR_DEVICE_LOST)
            result = block_create(device, needs->size, type, &block, call);
        if (block != NULL) {
            place(memory, block, 0, &block->first);
            return VK_SUCCESS;
        }
        if (result == VK_ERROR_DEVICE_LOST) break;
    }
    return result;
}

dart_status vk_memory_create(void *self, uint64_t bytes, void **out)
{
    vk_device *device = self;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    if (bytes > UINT64_MAX - BACKEND_ALIGN || base_round_up(bytes, 4) > device->adapter->max_buffer_bytes)
        return base_fail(device->report, DART_OUT_OF_MEMORY, "a buffer of %llu bytes; the device's largest is %llu",
                         (unsigned long long)bytes, (unsigned long long)device->adapter->max_buffer_bytes);
    vk_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL) return base_fail(device->report, DART_OUT_OF_MEMORY, "Vulkan buffer");
    /* 16-bit elements are read and written by the word, the last odd one too. */
    memory->bytes = base_round_up(bytes, 4);
    memory->usage = VK_BUFFER_USAGE;
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = memory->bytes,
                                     .usage = VK_BUFFER_USAGE,
                                     .sharingMode = VK_SHARING_MODE_EXCLUSIVE};
    VK_MAKE(device, vkCreateBuffer, memory->buffer, (device->handle, &info, NULL, &memory->buffer));
    VkMemoryRequirements needs;
    device->vk.vkGetBufferMemoryRequirements(device->handle, memory->buffer, &needs);
    base_lock(&device->mutexes[VK_MUTEX_MEMORY]);
    const char *call = "vkAllocateMemory";
    const VkResult result = find_place(device, &needs, memory, &call);
    base_unlock(&device->mutexes[VK_MUTEX_MEMORY]);
    if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY)
        FAIL(device->report, DART_OUT_OF_MEMORY, "%s: VK_ERROR_OUT_OF_DEVICE_MEMORY for %llu bytes", call,
             (unsigned long long)needs.size);
    if (result != VK_SUCCESS) TRY(vk_fail(device, result, call));
    VK(device, vkBindBufferMemory, (device->handle, memory->buffer, memory->block->memory, memory->offset));
    *out = memory;
    return DART_OK;
fail:
    vk_memory_destroy(device, memory);
    return status;
}

void vk_memory_destroy(void *self, void *handle)
{
    vk_device *device = self;
    vk_memory *memory = handle;
    if (memory == NULL) return;
    if (memory->buffer != VK_NULL_HANDLE && !memory->wrapped) device->vk.vkDestroyBuffer(device->handle, memory->buffer, NULL);
    vk_block *block = memory->block;
    if (block != NULL) {
        base_lock(&device->mutexes[VK_MUTEX_MEMORY]);
        vk_memory **link = &block->first;
        while (*link != memory) link = &(*link)->next;
        *link = memory->next;
        if (block->first == NULL) {
            vk_block **blocks = &device->blocks;
            while (*blocks != block) blocks = &(*blocks)->next;
            *blocks = block->next;
            block_free(device, block);
        }
        base_unlock(&device->mutexes[VK_MUTEX_MEMORY]);
    }
    free(memory);
}
