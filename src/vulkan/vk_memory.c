#include "vk.h"

#include "base/file.h"

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

static void place(const vk_device *device, vk_memory *memory, vk_block *block, uint64_t offset, vk_memory **link)
{
    memory->block = block;
    memory->offset = offset;
    memory->mapped = block->mapped != NULL ? block->mapped + offset : NULL;
    memory->flags = device->adapter->memory.memoryTypes[block->type].propertyFlags;
    memory->next = *link;
    *link = memory;
}

/* Memory by file descriptor: -1 makes what can be exported, else `allocated` bytes are imported. */
typedef struct sharing {
    int descriptor;
    uint64_t allocated;
} sharing;

static void block_free(vk_device *device, vk_block *block)
{
    if (block == NULL) return;
    if (block->memory != VK_NULL_HANDLE) device->vk.vkFreeMemory(device->handle, block->memory, NULL);
    free(block);
}

static bool has_addresses(const vk_device *device) { return (device->capabilities & DART_CAP_ADDRESSES) != 0; }

/* next: of VkMemoryAllocateInfo. *call: which function of Vulkan the result is from. */
static VkResult block_create(vk_device *device, uint64_t bytes, uint32_t type, const void *next, vk_block **out, const char **call)
{
    vk_block *block = calloc(1, sizeof(*block));
    if (block == NULL) return VK_ERROR_OUT_OF_HOST_MEMORY;
    block->bytes = bytes;
    block->type = type;
    const VkMemoryAllocateFlagsInfo flags = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, .pNext = next, .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = has_addresses(device) ? &flags : next,
                                       .allocationSize = bytes,
                                       .memoryTypeIndex = type};
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

/* With VK_MUTEX_MEMORY held. written: as if it were small. */
static VkResult find_place(vk_device *device, const VkMemoryRequirements *needs, bool written, vk_memory *memory, const char **call)
{
    const uint64_t alignment = needs->alignment > BACKEND_ALIGN ? needs->alignment : BACKEND_ALIGN;
    const bool shares = needs->size <= BLOCK_BYTES / 4;
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    uint64_t offset = 0;
    vk_memory **link = NULL;
    memory->size = needs->size;
    for (uint32_t n = 0; n < CHOICES; n++) {
        const uint32_t type = choose_type(device, needs->memoryTypeBits, written ? 0 : needs->size, n);
        if (type == UINT32_MAX) continue;
        for (vk_block *block = device->blocks; block != NULL && shares; block = block->next) {
            if (block->type != type || !find_gap(block, needs->size, alignment, &offset, &link)) continue;
            place(device, memory, block, offset, link);
            return VK_SUCCESS;
        }
        const uint32_t heap = device->adapter->memory.memoryTypes[type].heapIndex;
        if (needs->size > device->adapter->memory.memoryHeaps[heap].size) continue;
        vk_block *block = NULL;
        if (shares) result = block_create(device, BLOCK_BYTES, type, NULL, &block, call);
        if (block == NULL && result != VK_ERROR_DEVICE_LOST)
            result = block_create(device, needs->size, type, NULL, &block, call);
        if (block != NULL) {
            place(device, memory, block, 0, &block->first);
            return VK_SUCCESS;
        }
        if (result == VK_ERROR_DEVICE_LOST) break;
    }
    return result;
}

/* A block of its own, of the one type that both ends choose; in the device's own memory where it has some. */
static VkResult find_shared_place(vk_device *device, const VkMemoryRequirements *needs, const sharing *how, vk_memory *memory, const char **call)
{
    const VkExportMemoryAllocateInfo out = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                            .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    const int copy = how->descriptor >= 0 ? file_copy_descriptor(how->descriptor) : -1; /* an import that succeeds takes it */
    const VkImportMemoryFdInfoKHR in = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
                                        .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
                                        .fd = copy};
    uint32_t type = UINT32_MAX;
    /* The first choice that there is: with as many bytes as are never small. */
    for (uint32_t n = 0; n < CHOICES && type == UINT32_MAX; n++) type = choose_type(device, needs->memoryTypeBits, SMALL_BYTES + 1, n);
    vk_block *block = NULL;
    memory->size = needs->size;
    if (type == UINT32_MAX || (how->descriptor >= 0 && copy < 0)) {
        file_close_descriptor(copy);
        return type == UINT32_MAX ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_ERROR_INVALID_EXTERNAL_HANDLE;
    }
    const VkResult result =
        block_create(device, needs->size, type, how->descriptor < 0 ? (const void *)&out : (const void *)&in, &block, call);
    if (result == VK_SUCCESS) place(device, memory, block, 0, &block->first);
    else if (strcmp(*call, "vkAllocateMemory") == 0) file_close_descriptor(copy);
    return result;
}

/* how: NULL for a buffer of the device alone. written: the host writes it often. */
static dart_status create(vk_device *device, uint64_t bytes, const sharing *how, bool written, void **out)
{
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    if (bytes > UINT64_MAX - BACKEND_ALIGN || base_round_up(bytes, 4) > device->adapter->max_buffer_bytes)
        return base_fail(device->report, DART_OUT_OF_MEMORY, "a buffer of %llu bytes; the device's largest is %llu",
                         (unsigned long long)bytes, (unsigned long long)device->adapter->max_buffer_bytes);
    vk_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL) return base_fail(device->report, DART_OUT_OF_MEMORY, "Vulkan buffer");
    /* 16-bit elements are read and written by the word, the last odd one too. */
    memory->bytes = base_round_up(bytes, 4);
    memory->usage = has_addresses(device) ? VK_ADDRESSED_USAGE : VK_BUFFER_USAGE;
    const VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                       .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .pNext = how != NULL ? &external : NULL,
                                     .size = memory->bytes,
                                     .usage = memory->usage,
                                     .sharingMode = device->families_count > 1 ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
                                     .queueFamilyIndexCount = device->families_count > 1 ? device->families_count : 0,
                                     .pQueueFamilyIndices = device->families};
    VK_MAKE(device, vkCreateBuffer, memory->buffer, (device->handle, &info, NULL, &memory->buffer));
    VkMemoryRequirements needs;
    device->vk.vkGetBufferMemoryRequirements(device->handle, memory->buffer, &needs);
    if (how != NULL && how->descriptor >= 0 && how->allocated != needs.size)
        FAIL(device->report, DART_INVALID_ARGUMENT, "a shared buffer of %llu bytes lies in memory of %llu here, not of %llu",
             (unsigned long long)bytes, (unsigned long long)needs.size, (unsigned long long)how->allocated);
    base_lock(&device->mutexes[VK_MUTEX_MEMORY]);
    const char *call = "vkAllocateMemory";
    const VkResult result = how != NULL ? find_shared_place(device, &needs, how, memory, &call) : find_place(device, &needs, written, memory, &call);
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

dart_status vk_memory_create(void *self, uint64_t bytes, void **out) { return create(self, bytes, NULL, false, out); }

dart_status vk_memory_create_written(void *self, uint64_t bytes, void **out, bool *beside)
{
    const dart_status status = create(self, bytes, NULL, true, out);
    *beside = status == DART_OK && ((const vk_memory *)*out)->mapped != NULL;
    return status;
}

dart_status vk_memory_create_shared(void *self, uint64_t bytes, int descriptor, uint64_t allocated, void **out)
{
    vk_device *device = self;
    const sharing how = {descriptor, allocated};
    if (!device->adapter->shares)
        return base_fail(device->report, DART_UNSUPPORTED,
                         "%s: VK_KHR_external_memory_fd is not there or not switched on, or wants an allocation for each buffer",
                         device->adapter->info.name);
    return create(device, bytes, &how, false, out);
}

dart_status vk_memory_export(void *self, void *handle, int *descriptor, uint64_t *allocated)
{
    vk_device *device = self;
    const vk_memory *memory = handle;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    const VkMemoryGetFdInfoKHR info = {.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
                                       .memory = memory->block->memory,
                                       .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    int fd = -1;
    VK(device, vkGetMemoryFdKHR, (device->handle, &info, &fd));
    *descriptor = fd;
    *allocated = memory->block->bytes;
fail:
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

uint64_t vk_memory_address(void *self, const void *handle)
{
    const vk_device *device = self;
    const vk_memory *memory = handle;
    if (!has_addresses(device) || memory->wrapped) return 0;
    const VkBufferDeviceAddressInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = memory->buffer};
    return device->vk.vkGetBufferDeviceAddress(device->handle, &info);
}
