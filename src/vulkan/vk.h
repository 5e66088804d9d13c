/* The Vulkan backend's own types. A file calls those above it in this list only:
 *
 * vk_quirks.c        driver workarounds
 * vk_capabilities.c  what a device can do, and switching it on: the only place that names features and extensions
 * vk_instance.c      loader, instance, validation, list of devices
 * vk_device.c        results as statuses, loss, the queue
 * vk_memory.c        buffers in blocks of device memory
 * vk_transfer.c      host access to buffers
 * vk_pipeline.c      layouts and pipelines
 * vk_semaphore.c     semaphores by file descriptor
 * vk_stream.c        recording, submission, waiting, times
 * vk_open.c          a device with all of that, made and destroyed
 * vk_backend.c       the table of functions
 * vk_adopt.c         dartlm/vulkan.h: the host's device, buffers, semaphores and command buffers
 */
#ifndef DART_VK_H
#define DART_VK_H

#include "runtime/backend.h"

#include <stdatomic.h>
#include <volk.h>

#include "dartlm/vulkan.h"

/* ---- Instances ---- */

/* Global entry points belong to one instance in volk, and a process may have several: each keeps its own. */
#define VK_INSTANCE_FUNCTIONS(X) \
    X(vkDestroyInstance) \
    X(vkEnumeratePhysicalDevices) \
    X(vkEnumerateDeviceExtensionProperties) \
    X(vkGetPhysicalDeviceProperties) \
    X(vkGetPhysicalDeviceProperties2) \
    X(vkGetPhysicalDeviceFeatures2) \
    X(vkGetPhysicalDeviceMemoryProperties) \
    X(vkGetPhysicalDeviceQueueFamilyProperties) \
    X(vkCreateDevice) \
    X(vkGetDeviceProcAddr)

typedef struct vk_instance_table {
#define VK_MEMBER(name) PFN_##name name;
    VK_INSTANCE_FUNCTIONS(VK_MEMBER)
#undef VK_MEMBER
    /* NULL where there is none: */
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR;
    PFN_vkGetPhysicalDeviceExternalBufferProperties vkGetPhysicalDeviceExternalBufferProperties;
    PFN_vkGetPhysicalDeviceExternalSemaphoreProperties vkGetPhysicalDeviceExternalSemaphoreProperties;
    PFN_vkCreateDebugUtilsMessengerEXT vkCreateDebugUtilsMessengerEXT;
    PFN_vkDestroyDebugUtilsMessengerEXT vkDestroyDebugUtilsMessengerEXT;
} vk_instance_table;

/* Sizes of a cooperative matrix product; M == 0: there is none. */
typedef struct vk_matrix {
    uint32_t M, N, K;
} vk_matrix;

typedef struct vk_family {
    uint32_t index;
    uint32_t timestamp_bits;
} vk_family;

/* A physical device and what was found out about it. */
typedef struct vk_adapter {
    VkPhysicalDevice handle;
    dart_device_info info;
    VkPhysicalDeviceMemoryProperties memory;
    uint64_t max_buffer_bytes;
    vk_family family;   /* of the queue */
    vk_family separate; /* for compute without graphics; index UINT32_MAX: there is none */
    float timestamp_period; /* ns */
    uint32_t max_groups;    /* of one dispatch */
    bool require_full_subgroups;
    bool vary_subgroups;        /* rows with subgroup operations leave the size to the driver's compiler */
    bool require_subgroup_size; /* rows with matrices ask for matrix_subgroup lanes */
    uint32_t asked_subgroup;    /* rows with subgroup operations ask for as many lanes; 0: they do not */
    uint32_t matrix_subgroup;
    vk_matrix matrix_f16, matrix_bf16; /* with sums in f32 */
    bool lockstep; /* shaders do without subgroupBarrier (vk_quirks.c) */
    bool turns;    /* long launches that stream memory go in turns from either end (vk_stream.c) */
    bool size_control_extension; /* else in the core, or absent */
    bool portability_subset;
    const char *priority_extension; /* by which queues have global priorities; NULL: there is none */
    bool shares;   /* buffers by file descriptor */
    bool shares_semaphores[2]; /* by file descriptor: timelines, binary ones */
    bool timeline; /* timeline semaphores; of an adopted device: they are switched on */
    bool robustness; /* the host switched on pipelineRobustness: pipelines ask for checks of ranges, which NVIDIA's have by themselves otherwise */
    uint64_t offset_alignment; /* of storage buffers */
} vk_adapter;

/* Everything beyond the core that rows of the table use, as one chain: what a device has, or what is switched on. */
typedef struct vk_features {
    VkPhysicalDevice16BitStorageFeatures storage16;
    VkPhysicalDeviceShaderFloat16Int8Features float16;
    VkPhysicalDeviceVulkanMemoryModelFeatures memory_model;
    VkPhysicalDeviceSubgroupSizeControlFeatures sizes;
    VkPhysicalDeviceMaintenance4Features maintenance4;
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix;
    VkPhysicalDeviceCooperativeMatrix2FeaturesNV matrix2;
    VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16;
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline;
    VkPhysicalDeviceBufferDeviceAddressFeatures addresses;
    VkPhysicalDeviceShaderAtomicInt64Features atomics64;
    VkPhysicalDeviceFeatures2 core;
    VkPhysicalDevicePipelineRobustnessFeaturesEXT robustness; /* of an adopted device */
} vk_features;

/* What a device is to be created with. */
typedef struct vk_wanted {
    vk_features features;
    void *first; /* of the features, linked */
    const char *extensions[10];
    uint32_t extensions_count, required_count;
} vk_wanted;

typedef struct vk_instance {
    VkInstance handle;
    vk_instance_table vk;
    base_log *log;
    VkDebugUtilsMessengerEXT messenger;
    const dart_vulkan_adopt_args *adopted; /* handle is the host's; during dart_device_adopt what the host gave */
    bool borrowed;                         /* handle is the host's */
    uint32_t api_version;                  /* of a borrowed instance */
    vk_adapter *adapters;
    uint32_t adapters_count;
} vk_instance;

dart_status vk_instance_create(const dart_context_options *options, base_report *report, void **instance);
void vk_instance_destroy(void *instance);
uint32_t vk_instance_device_count(const void *instance);
void vk_instance_device_info(const void *instance, uint32_t index, dart_device_info *info);
void vk_instance_load_device(const vk_instance *instance, VkDevice device, struct VolkDeviceTable *table);

/* Fills *adapter; a device that will not do gets info.usable == false and the reason. */
void vk_capabilities_probe(const vk_instance *instance, VkPhysicalDevice handle, vk_adapter *adapter);
/* Fills adapter->matrix_f16 and, if asked, matrix_bf16. Returns whether the device has the sizes that rows of DART_CAP_MATRIX2 are made for. */
bool vk_matrices_find(const vk_instance *instance, vk_adapter *adapter, bool bfloat16);
/* What `capabilities` of the adapter need, the required extensions first. */
void vk_capabilities_wanted(const vk_adapter *adapter, uint32_t capabilities, vk_wanted *wanted);
/* A logical device with one queue of a family and what `capabilities` needs switched on. low_priority needs adapter->priority_extension. */
VkResult vk_capabilities_enable(const vk_instance *instance, const vk_adapter *adapter, uint32_t capabilities, const vk_family *family,
                                bool low_priority, VkDevice *device);
/* fixed_subgroup: subgroups have info->subgroup lanes always. */
void vk_quirks_apply(const VkPhysicalDeviceProperties *properties, VkDriverId driver, bool fixed_subgroup, vk_adapter *adapter);

/* ---- Devices ---- */

typedef struct vk_memory vk_memory;
typedef struct vk_block vk_block;
typedef struct vk_pipeline vk_pipeline;

/* A range of a block, with the buffer that lies there. */
struct vk_memory {
    VkBuffer buffer;
    uint64_t bytes; /* of the buffer: a multiple of 4 */
    vk_block *block;
    uint64_t offset, size; /* in the block */
    uint8_t *mapped;       /* NULL: only through staging */
    uint64_t start;        /* in the buffer; above 0 for wrapped ones only */
    VkBufferUsageFlags usage;
    VkMemoryPropertyFlags flags;
    bool wrapped;          /* the host's buffer, of no block */
    vk_memory *next;       /* in the block, by offset */
};

/* Allocations are few on some drivers (4096 on a device), so small buffers share them. */
struct vk_block {
    VkDeviceMemory memory;
    uint8_t *mapped;
    uint64_t bytes;
    uint32_t type;
    vk_memory *first;
    vk_block *next;
};

#define VK_FAMILIES_LISTED 64u /* more than any driver has: those beyond are not looked at */
#define VK_MAX_FAMILIES 8u

typedef enum vk_mutex {
    VK_MUTEX_QUEUE,
    VK_MUTEX_MEMORY,
    VK_MUTEX_TRANSFER,
    VK_MUTEX_PIPELINES,
    VK_MUTEX_COUNT
} vk_mutex;
typedef enum vk_condition {
    VK_CONDITION_TRANSFER,  /* with VK_MUTEX_TRANSFER: one has been given back */
    VK_CONDITION_PIPELINES, /* with VK_MUTEX_PIPELINES: a thread has compiled one, or failed */
    VK_CONDITION_COUNT
} vk_condition;

/* Copies between host and memory that the host cannot see, each of one thread at a time. Made when first needed. */
enum { VK_TRANSFERS = 8 };
typedef struct vk_transfer {
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkFence fence;
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint8_t *mapped;
} vk_transfer;

/* Bindings of a kernel, and its arguments where they are too long for push constants. */
#define VK_MAX_BUFFERS (KERNEL_MAX_BINDINGS + 1)

typedef struct vk_device {
    const vk_instance *instance;
    const vk_adapter *adapter;
    base_report *report;
    uint32_t capabilities;
    bool profiled; /* every launch is timed */
    bool directed; /* some launches go backwards, see IS_DIRECTED of shaders/lib/dart.glsl */
    bool adopted;  /* handle is the host's */
    void (*lock_queue)(void *user);
    void (*unlock_queue)(void *user);
    void *queue_user;
    void (*lost_callback)(void *user);
    void *lost_user;
    VkDevice handle;
    struct VolkDeviceTable vk;
    vk_family family;
    VkQueue queue;
    uint32_t families[VK_MAX_FAMILIES]; /* that use its buffers, its own among them */
    uint32_t families_count;
    base_mutex mutexes[VK_MUTEX_COUNT];
    uint32_t mutexes_count; /* that were made */
    atomic_bool lost;
    vk_block *blocks;
    vk_transfer transfers[VK_TRANSFERS];
    bool transfer_taken[VK_TRANSFERS]; /* under VK_MUTEX_TRANSFER */
    base_condition conditions[VK_CONDITION_COUNT];
    uint32_t conditions_count; /* that were made */
    VkPipelineCache cache;
    VkDescriptorSetLayout set_layouts[VK_MAX_BUFFERS + 1]; /* by number of buffers; as far as the device goes */
    VkPipelineLayout layouts[VK_MAX_BUFFERS + 1];
    vk_pipeline **pipelines; /* by slot: a list over dtypes; under VK_MUTEX_PIPELINES */
} vk_device;

dart_status vk_device_create(void *instance, uint32_t index, const dart_device_options *options, uint32_t capabilities,
                             base_report *report, void **device);
void vk_device_destroy(void *device);
/* DART_DEVICE_LOST once the device was lost, else DART_OK. */
dart_status vk_device_check(vk_device *device);
dart_status vk_device_lose(vk_device *device, const char *reason);
/* order: of vk_semaphores, or NULL. */
dart_status vk_device_submit(vk_device *device, const VkCommandBuffer *commands, uint32_t count, VkFence fence, const backend_order *order);

/* A failed result as a status with text, e.g. "vkAllocateMemory: VK_ERROR_OUT_OF_DEVICE_MEMORY". */
dart_status vk_report(base_report *report, VkResult result, const char *call);
dart_status vk_fail(vk_device *device, VkResult result, const char *call);

/* For functions with a local `dart_status status` and a label `fail`: VK(device, vkFoo, (arguments)). */
#define VK(device, function, arguments) \
    do { \
        const VkResult vk_result_ = (device)->vk.function arguments; \
        if (vk_result_ != VK_SUCCESS) { \
            status = vk_fail((device), vk_result_, #function); \
            goto fail; \
        } \
    } while (0)

/* VK of a call that makes `made`: a call that fails leaves garbage there. */
#define VK_MAKE(device, function, made, arguments) \
    do { \
        const VkResult vk_result_ = (device)->vk.function arguments; \
        if (vk_result_ != VK_SUCCESS) { \
            (made) = VK_NULL_HANDLE; \
            status = vk_fail((device), vk_result_, #function); \
            goto fail; \
        } \
    } while (0)

/* ---- Memory ---- */

#define VK_BUFFER_USAGE \
    (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)
/* Of a buffer of a device with DART_CAP_ADDRESSES. */
#define VK_ADDRESSED_USAGE (VK_BUFFER_USAGE | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT)
dart_status vk_memory_create(void *device, uint64_t bytes, void **memory);
dart_status vk_memory_create_written(void *device, uint64_t bytes, void **memory, bool *beside);
dart_status vk_memory_create_shared(void *device, uint64_t bytes, int descriptor, uint64_t allocated, void **memory);
dart_status vk_memory_export(void *device, void *memory, int *descriptor, uint64_t *allocated);
void vk_memory_destroy(void *device, void *memory);
uint64_t vk_memory_address(void *device, const void *memory);
/* A type among `allowed` bits with all flags of need, most of `want`, none of `avoid`; UINT32_MAX without any. */
uint32_t vk_memory_type(const vk_device *device, uint32_t allowed, VkMemoryPropertyFlags need,
                        VkMemoryPropertyFlags want, VkMemoryPropertyFlags avoid);

dart_status vk_memory_write(void *device, void *memory, uint64_t offset, const void *data, uint64_t bytes);
dart_status vk_memory_read(void *device, void *memory, uint64_t offset, void *data, uint64_t bytes);
void vk_transfers_destroy(vk_device *device);

/* ---- Semaphores ---- */

typedef struct vk_semaphore {
    VkSemaphore handle;
} vk_semaphore;
dart_status vk_semaphore_create(void *device, bool binary, int descriptor, void **semaphore);
dart_status vk_semaphore_export(void *device, void *semaphore, int *descriptor);
void vk_semaphore_destroy(void *device, void *semaphore);

/* ---- Pipelines ---- */

/* cache: bytes of an earlier vk_cache_read, or NULL. */
dart_status vk_pipelines_create(vk_device *device, const void *cache, size_t cache_bytes);
void vk_pipelines_destroy(vk_device *device);
/* range: for dispatches whose arguments are followed by the tile that they begin at. */
dart_status vk_pipeline_get(vk_device *device, const backend_code *code, VkPipeline *pipeline);
/* Does a launch of the kernel that begins at tile `first` run the code of ranges? */
bool vk_is_range(const vk_device *device, kernel_id id, uint32_t first);
dart_status vk_warm(void *device, const backend_code *code);
dart_status vk_cache_read(void *device, void *data, size_t *bytes);

/* ---- Streams ---- */

dart_status vk_stream_create(void *device, void **stream);
void vk_stream_destroy(void *device, void *stream);
dart_status vk_stream_begin(void *device, void *stream);
dart_status vk_stream_launch(void *device, void *stream, const backend_launch *launch);
dart_status vk_stream_submit(void *device, void *stream, uint32_t times, const backend_order *order);
/* For the next vk_stream_begin: where launches go. NULL: the stream's own command buffer. */
void vk_stream_target(void *stream, VkCommandBuffer commands);
dart_status vk_stream_wait(void *device, void *stream, uint64_t timeout_ns);
dart_status vk_stream_elapsed(void *device, void *stream, uint64_t *ns);
dart_status vk_stream_times(void *device, void *stream, uint64_t *ns, uint32_t *count);

#endif
