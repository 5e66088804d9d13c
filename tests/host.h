/* A program with a Vulkan device of its own, which dartlm adopts. Made through the loader. Calls that dartlm makes can fail, and are counted. */
#ifndef DARTLM_TESTS_HOST_H
#define DARTLM_TESTS_HOST_H

#include "rig.h"

#include "runtime/device.h"
#include "vulkan/vk.h"

typedef struct host {
    void *loader;
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue, other; /* of the family that dartlm uses; of one with graphics beside it, where there is one */
    uint32_t other_family;
    dart_vulkan_needs *needs;
    struct VolkDeviceTable vk;
    PFN_vkDestroyInstance destroy_instance;
    base_mutex mutex;
    uint32_t locks, losses;
    bool full; /* all that dart_vulkan_query named is switched on, else what is required */
    const char *extensions[16]; /* switched on */
    uint32_t extensions_count;
    const void *features;                                     /* the chain of those that are switched on */
    VkPhysicalDevicePipelineRobustnessFeaturesEXT robustness; /* in the chain after host_open_choosing */
    dart_context *context;
} host;

#define GET(h, name) ((PFN_##name)(h)->get((h)->instance, #name))

/* Of dartlm's submissions, after host_open: the in-th `gives`; how many there were. */
struct host_fault {
    uint32_t in, submissions;
    uint32_t destroyed; /* calls that dartlm must not make */
    uint32_t pipelines, checked; /* that were made, of those the ones that ask for checks of ranges */
    VkResult gives;
    PFN_vkQueueSubmit submit;
    PFN_vkCreateComputePipelines make;
    PFN_vkGetDeviceProcAddr device_get;
    PFN_vkGetInstanceProcAddr instance_get;
};
extern struct host_fault fault;

void host_open(host *h, bool full);
/* With everything and VK_EXT_pipeline_robustness, as a host that chooses pipeline by pipeline. false: the device has no such extension, and nothing
 * is open. */
bool host_open_choosing(host *h);
dart_device *host_adopt(host *h, const dart_device_options *options);
/* What host_adopt passes as get_instance_proc_addr. */
PFN_vkGetInstanceProcAddr host_get(void);
/* dartlm destroyed nothing of the host's and waited for no idle device. */
void host_close(host *h);

/* A buffer of 2 HOST_ALL bytes of all families that are used, in memory with `flags`, which becomes all flags of its type. */
enum { HOST_ALL = 65536 };
VkBuffer host_buffer(host *h, VkBufferUsageFlags usage, VkMemoryPropertyFlags *flags, VkDeviceMemory *memory);

#endif
