#define VOLK_IMPLEMENTATION
#include "host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("desktop: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void must(VkResult result, const char *call)
{
    if (result != VK_SUCCESS) die("%s gave %d", call, (int)result);
}

double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

/* ---- Instance and device ---- */

void host_open_instance(host *h, const char *const *extensions, uint32_t extensions_count)
{
    if (volkInitialize() != VK_SUCCESS) die("there is no Vulkan loader (libvulkan.so.1)");
    h->api_version = volkGetInstanceVersion() < VK_API_VERSION_1_3 ? volkGetInstanceVersion() : VK_API_VERSION_1_3;
    if (h->api_version < VK_API_VERSION_1_2) die("dartlm needs Vulkan 1.2");
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = h->api_version};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application,
                                       .enabledExtensionCount = extensions_count, .ppEnabledExtensionNames = extensions};
    must(vkCreateInstance(&info, NULL, &h->instance), "vkCreateInstance");
    volkLoadInstance(h->instance);
    pthread_mutex_init(&h->queue_lock, NULL);
}

/* A family for frames, dartlm and presenting, or UINT32_MAX. */
static uint32_t find_family(VkPhysicalDevice physical, VkSurfaceKHR surface)
{
    const VkQueueFlags wanted = VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT;
    VkQueueFamilyProperties families[32];
    uint32_t count = 32;
    vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
    for (uint32_t i = 0; i < count; i++) {
        VkBool32 presents = VK_TRUE;
        if (surface != VK_NULL_HANDLE) vkGetPhysicalDeviceSurfaceSupportKHR(physical, i, surface, &presents);
        if ((families[i].queueFlags & wanted) == wanted && presents) return i;
    }
    return UINT32_MAX;
}

static void choose(host *h, VkSurfaceKHR surface)
{
    VkPhysicalDevice all[16];
    uint32_t count = 16;
    const char *why = "there is none";
    static char text[256];
    const VkResult result = vkEnumeratePhysicalDevices(h->instance, &count, all);
    if (result != VK_INCOMPLETE) must(result, "vkEnumeratePhysicalDevices");
    for (uint32_t i = 0; i < count; i++) {
        const dart_vulkan_query_args query = {.instance = h->instance, .physical_device = all[i],
                                              .get_instance_proc_addr = vkGetInstanceProcAddr, .api_version = h->api_version};
        if (dart_vulkan_query(&query, &h->needs) != DART_OK) die("dart_vulkan_query failed");
        h->physical = all[i];
        h->family = find_family(all[i], surface);
        if (h->needs->usable && h->family != UINT32_MAX) return;
        snprintf(text, sizeof text, "%s", h->needs->usable ? "it has no queue for graphics, compute and presenting" : h->needs->why_not);
        why = text;
        dart_vulkan_needs_destroy(&h->needs);
    }
    die("no Vulkan device can be used: %s", why);
}

void host_open_device(host *h, VkSurfaceKHR surface, bool one_queue)
{
    choose(h, surface);
    h->compute_family = one_queue || h->needs->separate_family == UINT32_MAX ? h->family : h->needs->separate_family;
    if (h->needs->extensions_count >= HOST_MOST_EXTENSIONS) die("dartlm wants %u extensions", h->needs->extensions_count);
    for (uint32_t i = 0; i < h->needs->extensions_count; i++) h->extensions[h->extensions_count++] = h->needs->extensions[i];
    if (surface != VK_NULL_HANDLE) h->extensions[h->extensions_count++] = VK_KHR_SWAPCHAIN_EXTENSION_NAME;
    const float priority = 1;
    VkDeviceQueueCreateInfo queues[2];
    for (uint32_t i = 0; i < 2; i++)
        queues[i] = (VkDeviceQueueCreateInfo){.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority,
                                              .queueFamilyIndex = i == 0 ? h->family : h->compute_family};
    /* The drawing needs no feature of its own. One that did would set its members in a copy of this chain. */
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = h->needs->features,
                                     .queueCreateInfoCount = host_has_two_queues(h) ? 2 : 1, .pQueueCreateInfos = queues,
                                     .enabledExtensionCount = h->extensions_count, .ppEnabledExtensionNames = h->extensions};
    must(vkCreateDevice(h->physical, &info, NULL, &h->device), "vkCreateDevice");
    volkLoadDevice(h->device);
    vkGetDeviceQueue(h->device, h->family, 0, &h->queue);
    vkGetDeviceQueue(h->device, h->compute_family, 0, &h->compute);
    if (host_has_two_queues(h)) { /* Vulkan 1.2 has timeline semaphores, and dartlm wants them */
        const VkSemaphoreTypeCreateInfo timeline = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                                    .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
        const VkSemaphoreCreateInfo turns = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &timeline};
        must(vkCreateSemaphore(h->device, &turns, NULL, &h->turns), "vkCreateSemaphore");
    }
    vkGetPhysicalDeviceProperties(h->physical, &h->properties);
    vkGetPhysicalDeviceMemoryProperties(h->physical, &h->memory);
}

void host_close(host *h)
{
    vkDestroySemaphore(h->device, h->turns, NULL);
    vkDestroyDevice(h->device, NULL);
    vkDestroyInstance(h->instance, NULL);
    dart_vulkan_needs_destroy(&h->needs);
    pthread_mutex_destroy(&h->queue_lock);
    volkFinalize();
}

/* ---- The queues ---- */

void host_lock_queue(void *user) { pthread_mutex_lock(&((host *)user)->queue_lock); }
void host_unlock_queue(void *user) { pthread_mutex_unlock(&((host *)user)->queue_lock); }

/* With two queues frames and the map of attention, which they draw, take turns: a queue's barriers end with it. */
static void submit(host *h, const commands *c, VkSemaphore wait, VkSemaphore signal)
{
    VkSemaphore waits[2] = {wait}, signals[2] = {signal};
    uint64_t wait_values[2] = {0}, signal_values[2] = {0}; /* of a binary semaphore none is read */
    const VkPipelineStageFlags stages[2] = {wait != VK_NULL_HANDLE ? VK_PIPELINE_STAGE_TRANSFER_BIT : VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                            VK_PIPELINE_STAGE_ALL_COMMANDS_BIT};
    uint32_t waits_count = wait != VK_NULL_HANDLE, signals_count = signal != VK_NULL_HANDLE;
    host_lock_queue(h);
    if (host_has_two_queues(h)) {
        waits[waits_count] = signals[signals_count] = h->turns;
        wait_values[waits_count++] = h->turn;
        signal_values[signals_count++] = ++h->turn;
    }
    const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = waits_count, .pWaitSemaphoreValues = wait_values,
                                                  .signalSemaphoreValueCount = signals_count, .pSignalSemaphoreValues = signal_values};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = host_has_two_queues(h) ? &values : NULL, .commandBufferCount = 1,
                               .pCommandBuffers = &c->handle, .waitSemaphoreCount = waits_count, .pWaitSemaphores = waits,
                               .pWaitDstStageMask = stages, .signalSemaphoreCount = signals_count, .pSignalSemaphores = signals};
    const VkResult result = vkQueueSubmit(c->queue, 1, &info, c->done);
    host_unlock_queue(h);
    must(result, "vkQueueSubmit");
}

/* ---- Memory ---- */

VkDeviceMemory host_allocate(const host *h, const VkMemoryRequirements *needs, VkMemoryPropertyFlags wanted)
{
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needs->size, .memoryTypeIndex = UINT32_MAX};
    for (uint32_t i = h->memory.memoryTypeCount; i-- > 0;)
        if ((needs->memoryTypeBits >> i & 1) != 0 && (h->memory.memoryTypes[i].propertyFlags & wanted) == wanted) info.memoryTypeIndex = i;
    if (info.memoryTypeIndex == UINT32_MAX) die("the device has no memory for what is drawn");
    VkDeviceMemory memory;
    must(vkAllocateMemory(h->device, &info, NULL, &memory), "vkAllocateMemory");
    return memory;
}

buffer host_make_buffer(const host *h, VkDeviceSize bytes, VkBufferUsageFlags usage, bool on_host)
{
    buffer made = {.bytes = bytes};
    const uint32_t families[] = {h->family, h->compute_family};
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes, .usage = usage,
                                     .sharingMode = host_has_two_queues(h) ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
                                     .queueFamilyIndexCount = host_has_two_queues(h) ? 2 : 0, .pQueueFamilyIndices = families};
    VkMemoryRequirements needs;
    must(vkCreateBuffer(h->device, &info, NULL, &made.handle), "vkCreateBuffer");
    vkGetBufferMemoryRequirements(h->device, made.handle, &needs);
    made.memory = host_allocate(h, &needs, on_host ? VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
                                                   : VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    must(vkBindBufferMemory(h->device, made.handle, made.memory, 0), "vkBindBufferMemory");
    if (on_host) must(vkMapMemory(h->device, made.memory, 0, VK_WHOLE_SIZE, 0, &made.mapped), "vkMapMemory");
    return made;
}

void host_destroy_buffer(const host *h, buffer *b)
{
    vkDestroyBuffer(h->device, b->handle, NULL);
    vkFreeMemory(h->device, b->memory, NULL);
    *b = (buffer){0};
}

/* ---- Commands ---- */

commands host_make_commands(const host *h, bool compute)
{
    commands made = {.queue = compute ? h->compute : h->queue};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = compute ? h->compute_family : h->family,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT};
    must(vkCreateCommandPool(h->device, &pool, NULL, &made.pool), "vkCreateCommandPool");
    const VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = made.pool,
                                                  .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    must(vkAllocateCommandBuffers(h->device, &allocate, &made.handle), "vkAllocateCommandBuffers");
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    must(vkCreateFence(h->device, &fence, NULL, &made.done), "vkCreateFence");
    return made;
}

void host_destroy_commands(const host *h, commands *c)
{
    vkDestroyFence(h->device, c->done, NULL);
    vkDestroyCommandPool(h->device, c->pool, NULL);
    *c = (commands){0};
}

void host_begin(const commands *c)
{
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    must(vkBeginCommandBuffer(c->handle, &info), "vkBeginCommandBuffer");
}

void host_run(host *h, const commands *c, VkSemaphore wait, VkSemaphore signal)
{
    must(vkEndCommandBuffer(c->handle), "vkEndCommandBuffer");
    submit(h, c, wait, signal);
    must(vkWaitForFences(h->device, 1, &c->done, VK_TRUE, UINT64_MAX), "vkWaitForFences");
    must(vkResetFences(h->device, 1, &c->done), "vkResetFences");
}

VkShaderModule host_make_shader(const host *h, const uint32_t *code, size_t bytes)
{
    const VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = bytes, .pCode = code};
    VkShaderModule made;
    must(vkCreateShaderModule(h->device, &info, NULL, &made), "vkCreateShaderModule");
    return made;
}
