/* The program's own Vulkan: instance, device, and a queue of frames. dartlm's work goes to a queue for compute alone where the device has one, so
 * that it runs beside the frames, else to the same queue. Both are used under one lock. */
#ifndef DESKTOP_HOST_H
#define DESKTOP_HOST_H

#include <volk.h>

#include <dartlm/vulkan.h>

#include <pthread.h>

enum { HOST_MOST_EXTENSIONS = 64 };

typedef struct host {
    uint32_t api_version;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;            /* graphics, compute and, with a window, presenting */
    uint32_t family;
    VkQueue compute;          /* of dartlm and of the map of attention; `queue` where there is no other */
    uint32_t compute_family;
    VkSemaphore turns;        /* with two queues, a timeline: each submission of the program waits for the one before */
    uint64_t turn;            /* of the last one */
    pthread_mutex_t queue_lock; /* of every submission, the frames', the attention's and dartlm's */
    dart_vulkan_needs *needs; /* what dartlm wants of the device */
    const char *extensions[HOST_MOST_EXTENSIONS];
    uint32_t extensions_count;
    VkPhysicalDeviceProperties properties;
    VkPhysicalDeviceMemoryProperties memory;
} host;

/* Prints to standard error and ends the program. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void must(VkResult result, const char *call);
double now_ms(void);

/* extensions: of the window system. */
void host_open_instance(host *h, const char *const *extensions, uint32_t extensions_count);
/* The first device that dartlm and the surface (VK_NULL_HANDLE: none) can use. */
void host_open_device(host *h, VkSurfaceKHR surface, bool one_queue);
static inline bool host_has_two_queues(const host *h) { return h->compute_family != h->family; }
void host_close(host *h);

/* With these two, dartlm and the frames take turns. Their argument is the host. */
void host_lock_queue(void *user);
void host_unlock_queue(void *user);

typedef struct buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    VkDeviceSize bytes;
    void *mapped; /* NULL in memory of the device */
} buffer;
/* on_host: mapped and coherent; else in the device's memory. For both queues. */
buffer host_make_buffer(const host *h, VkDeviceSize bytes, VkBufferUsageFlags usage, bool on_host);
void host_destroy_buffer(const host *h, buffer *b);
VkDeviceMemory host_allocate(const host *h, const VkMemoryRequirements *needs, VkMemoryPropertyFlags wanted);

/* A command buffer with the fence that tells when it has run. One thread uses it. */
typedef struct commands {
    VkQueue queue;
    VkCommandPool pool;
    VkCommandBuffer handle;
    VkFence done;
} commands;
/* compute: for the queue of dartlm's work. */
commands host_make_commands(const host *h, bool compute);
void host_destroy_commands(const host *h, commands *c);
void host_begin(const commands *c);
/* Ends, submits and waits. waits, signals: VK_NULL_HANDLE or a binary semaphore. */
void host_run(host *h, const commands *c, VkSemaphore wait, VkSemaphore signal);

VkShaderModule host_make_shader(const host *h, const uint32_t *code, size_t bytes);

#endif
