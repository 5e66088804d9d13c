/* dartlm on a Vulkan device that the host program made. The only public header with Vulkan types: it needs <vulkan/vulkan_core.h>.
 * A library that was built without Vulkan returns DART_UNSUPPORTED from every call.
 *
 * Order of use: dart_vulkan_query, vkCreateDevice with what it names, dart_device_adopt, then everything of dartlm.h. The host destroys
 * the dart_device first and its own VkDevice and VkInstance later. dartlm never waits for a queue or a device to be idle.
 */
#ifndef DARTLM_VULKAN_H
#define DARTLM_VULKAN_H

#include "dartlm/dartlm.h"

#include <vulkan/vulkan_core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What to switch on ---- */

typedef struct dart_vulkan_query_args {
    VkInstance instance; /* made for Vulkan 1.2 or later */
    VkPhysicalDevice physical_device;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    uint32_t api_version; /* VkApplicationInfo.apiVersion of the instance; dartlm uses this version at most */
} dart_vulkan_query_args;

/* Merge into VkDeviceCreateInfo. A feature that is left out costs speed only. The memory is freed by dart_vulkan_needs_destroy. */
typedef struct dart_vulkan_needs {
    bool usable;
    char why_not[256];                  /* when not usable: what the device lacks */
    const char *const *extensions;      /* wanted; the first required_count of them cannot be done without */
    uint32_t extensions_count, required_count;
    /* Wanted features, with a chain of one structure for each extension or core feature. A host whose own chain has the same structure, or
     * VkPhysicalDeviceVulkan11Features to 13Features, must set the members there instead. None is required. */
    const VkPhysicalDeviceFeatures2 *features;
    uint32_t queue_family; /* a family for compute: one without graphics on a discrete device that has one */
    uint32_t separate_family; /* a family for compute without graphics, whose work runs beside frames; UINT32_MAX: the device has none */
} dart_vulkan_needs;
/* Needs no context. DART_OK with usable false for a device that cannot run dartlm. */
DART_API dart_status dart_vulkan_query(const dart_vulkan_query_args *args, dart_vulkan_needs **needs);
DART_API void dart_vulkan_needs_destroy(dart_vulkan_needs **needs);

/* ---- Adopting ---- */

typedef struct dart_vulkan_adopt_args {
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    uint32_t api_version; /* as in dart_vulkan_query_args */
    /* What the device was created with. Nothing else is used. */
    const char *const *extensions;
    uint32_t extensions_count;
    /* The chain of feature structures, e.g. VkDeviceCreateInfo.pNext; NULL: none. Read during the call only. If pipelineRobustness is switched on,
     * it must say so: drivers may then leave checks of ranges out, and dartlm's pipelines ask for them, so that a row that the caller's device tensor
     * names by mistake (dart_rms_norm_args.rows, dart_convert_args.pairs) stays within its buffer. */
    const void *features;
    uint32_t queue_family, queue_index; /* of a queue that the device has, with VK_QUEUE_COMPUTE_BIT and no creation flags */
    /* Called around every use of the queue, from the thread that calls dartlm. Required when anyone else submits to this queue: the host, or
     * another dart_device. NULL: dartlm only locks against itself, within this dart_device. */
    void (*lock_queue)(void *user);
    void (*unlock_queue)(void *user);
    void *queue_user;
    /* Other queue families of the host that read or write buffers which dartlm makes, in dart_vulkan_buffer_of: these are then made with
     * VK_SHARING_MODE_CONCURRENT. At most 7. Without any, a host that uses such a buffer on another family transfers its ownership. */
    const uint32_t *families;
    uint32_t families_count;
    /* Called once, when a call of dartlm first meets VK_ERROR_DEVICE_LOST, from the thread of that call. It must not call dartlm. */
    void (*lost)(void *user);
    void *lost_user;
} dart_vulkan_adopt_args;
/* A dart_device on the host's VkDevice. options may be NULL; its spec is ignored. The context needs no Vulkan of its own
 * (dart_context_options.without_vulkan). Blocking: probes of matrix hardware submit work unless options->unchecked. */
DART_API dart_status dart_device_adopt(dart_context *context, const dart_vulkan_adopt_args *args, const dart_device_options *options,
                                       dart_device **device);

/* ---- Buffers ---- */

typedef struct dart_vulkan_buffer {
    VkBuffer buffer;
    uint64_t offset, bytes;   /* bytes > 0 */
    VkBufferUsageFlags usage; /* of the VkBuffer's creation */
    /* The memory behind it. With `mapped`, the first byte of the range where it is mapped, the host's side of dart_buffer_write and
     * dart_buffer_read is a memcpy; else they copy through memory of dartlm's own and the queue, and wait. */
    VkMemoryPropertyFlags memory; /* of its type. mapped needs HOST_VISIBLE and HOST_COHERENT; 0 without mapped: not known */
    void *mapped;                 /* stays mapped as long as the dart_buffer lives */
} dart_vulkan_buffer;
/* A dart_buffer on a range of the host's buffer, which must outlive it and is never destroyed by dartlm.
 * usage must have VK_BUFFER_USAGE_STORAGE_BUFFER_BIT. offset: a multiple of 4 and of minStorageBufferOffsetAlignment; bytes: a multiple of 4. The
 * range must lie in the buffer, as far as its memory requirements tell. Ranges of different dart_buffers must not overlap. A buffer that several
 * queue families use is made with VK_SHARING_MODE_CONCURRENT, or the host transfers its ownership. Not counted by dart_device_bytes.
 * Without mapped, dart_buffer_write needs TRANSFER_DST and dart_buffer_read TRANSFER_SRC, else they return DART_UNSUPPORTED. With it, a read of more
 * than 256 bytes from a discrete device is still a copy where usage has TRANSFER_SRC and the memory is not HOST_CACHED, since a processor reads such
 * memory a word at a time. Either way the host first waits for work of its own that uses the range, and puts a barrier to
 * VK_PIPELINE_STAGE_HOST_BIT behind what it recorded by dart_vulkan_record. */
DART_API dart_status dart_vulkan_wrap(dart_device *device, const dart_vulkan_buffer *range, dart_buffer **buffer);
/* Where a dart_buffer of a Vulkan device lies. It stays there until dart_buffer_destroy. memory and mapped are told of dartlm's own buffers, too:
 * dartlm keeps those in mapped memory on devices that share theirs with the processor. */
DART_API dart_status dart_vulkan_buffer_of(const dart_buffer *buffer, dart_vulkan_buffer *range);

/* ---- Streams ---- */

typedef struct dart_vulkan_semaphore {
    VkSemaphore semaphore;
    uint64_t value; /* of a timeline semaphore; 0 for a binary one */
} dart_vulkan_semaphore;
typedef struct dart_vulkan_submit_args {
    const dart_vulkan_semaphore *waits, *signals;
    uint32_t waits_count, signals_count; /* at most 64 each */
} dart_vulkan_submit_args;
/* dart_stream_submit that starts after all waits and then signals. Semaphores carry memory both ways: no barrier is needed besides. Values
 * above 0 need the feature timelineSemaphore, or the call returns DART_UNSUPPORTED. dart_stream_wait is still due before the next use. */
DART_API dart_status dart_vulkan_submit(dart_stream *stream, const dart_vulkan_submit_args *args);

/* The semaphore behind a dart_semaphore of a Vulkan device, for the host's own submissions to that device. It lives until dart_semaphore_destroy. */
DART_API dart_status dart_vulkan_semaphore_of(const dart_semaphore *semaphore, VkSemaphore *handle);

/* dart_stream_begin, but the ops that follow go into the host's command buffer, which is in the recording state, outside of a render pass, of a
 * pool of the adopted queue's family. Nothing is submitted, except that an op may write small constants through the queue. dart_stream_submit then
 * returns DART_INVALID_ARGUMENT; dart_stream_begin or the next dart_vulkan_record ends it. Until then, and until the command buffer has run for the
 * last time, the stream must not begin again or be destroyed. Bound compute pipeline, descriptor sets and push constants are undefined after.
 * Barriers: dartlm begins with one from COMPUTE_SHADER (SHADER_WRITE) and TRANSFER (TRANSFER_WRITE) to its reads and writes. The host puts
 * one before for writes of other stages, and one after from COMPUTE_SHADER (SHADER_WRITE) to whatever reads the results, the host included.
 * DART_UNSUPPORTED for profiled devices and for streams with options.warm. */
DART_API dart_status dart_vulkan_record(dart_stream *stream, VkCommandBuffer commands);

#ifdef __cplusplus
}
#endif
#endif
