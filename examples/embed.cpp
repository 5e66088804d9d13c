// dartlm inside a program that has a Vulkan device of its own: C++17, two threads, one queue. Each thread adopts the device, wraps a buffer of
// its own, and computes y = x weight^T in two ways:
//   recorded    its command buffer fills x, dartlm records the op behind it, and the same command buffer copies y to where the host reads it;
//   submitted   its command buffer fills x and signals a timeline semaphore, dartlm waits for that and signals the next value, and a second
//               command buffer of its own waits for it and copies y.
// x is a constant v and weight is 1 everywhere, so that every element of y must be v times the width.
//
//   example_embed [NUMBER_OF_PHYSICAL_DEVICE]
#include <dartlm/vulkan.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t T = 64, W = 32, ROUNDS = 20;
constexpr uint64_t X_AT = 0, WEIGHT_AT = 65536, Y_AT = 131072, ALL = 196608, Y_BYTES = uint64_t{T} * W * 4;

[[noreturn]] void die(const std::string &text)
{
    std::fprintf(stderr, "embed: %s\n", text.c_str());
    std::exit(1);
}

void must(VkResult result, const char *call)
{
    if (result != VK_SUCCESS) die(std::string(call) + " gave " + std::to_string(result));
}

void must(dart_status status, const char *call)
{
    if (status != DART_OK) die(std::string(call) + ": " + dart_status_name(status));
}

// The program's own device.
struct Host {
    PFN_vkGetInstanceProcAddr get_instance_proc_addr = nullptr;
    PFN_vkGetDeviceProcAddr get_device_proc_addr = nullptr;
    VkInstance instance = VK_NULL_HANDLE;
    VkPhysicalDevice physical = VK_NULL_HANDLE;
    VkDevice device = VK_NULL_HANDLE;
    VkQueue queue = VK_NULL_HANDLE;
    std::mutex queue_mutex;
    dart_vulkan_needs *needs = nullptr;

    // An entry point by its type: of<PFN_vkCreateFence>("vkCreateFence").
    template <typename F> F of(const char *name) const
    {
        const auto found = device != VK_NULL_HANDLE ? get_device_proc_addr(device, name) : get_instance_proc_addr(instance, name);
        if (found == nullptr) die(std::string("no ") + name);
        return reinterpret_cast<F>(found);
    }
    template <typename F> F of_instance(const char *name) const
    {
        const auto found = get_instance_proc_addr(instance, name);
        if (found == nullptr) die(std::string("no ") + name);
        return reinterpret_cast<F>(found);
    }
};
#define CALL(host, name) (host).of<PFN_##name>(#name)

void open(Host &host, uint32_t number)
{
    void *loader = dlopen("libvulkan.so.1", RTLD_NOW);
    if (loader == nullptr) die("there is no libvulkan.so.1");
    host.get_instance_proc_addr = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(loader, "vkGetInstanceProcAddr"));
    if (host.get_instance_proc_addr == nullptr) die("libvulkan.so.1 has no vkGetInstanceProcAddr");
    VkApplicationInfo application{};
    application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    application.apiVersion = VK_API_VERSION_1_3;
    VkInstanceCreateInfo instance{};
    instance.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    instance.pApplicationInfo = &application;
    must(host.of_instance<PFN_vkCreateInstance>("vkCreateInstance")(&instance, nullptr, &host.instance), "vkCreateInstance");
    host.get_device_proc_addr = host.of_instance<PFN_vkGetDeviceProcAddr>("vkGetDeviceProcAddr");
    const auto enumerate = host.of_instance<PFN_vkEnumeratePhysicalDevices>("vkEnumeratePhysicalDevices");
    uint32_t count = 0;
    must(enumerate(host.instance, &count, nullptr), "vkEnumeratePhysicalDevices");
    std::vector<VkPhysicalDevice> all(count);
    must(enumerate(host.instance, &count, all.data()), "vkEnumeratePhysicalDevices");
    if (number >= count) die("there are " + std::to_string(count) + " physical devices");
    host.physical = all[number];

    // What dartlm wants. A program with wishes of its own puts both together here.
    const dart_vulkan_query_args query{host.instance, host.physical, host.get_instance_proc_addr, VK_API_VERSION_1_3};
    must(dart_vulkan_query(&query, &host.needs), "dart_vulkan_query");
    if (!host.needs->usable) die(host.needs->why_not);
    const float priority = 1;
    VkDeviceQueueCreateInfo queue{};
    queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
    queue.queueFamilyIndex = host.needs->queue_family;
    queue.queueCount = 1;
    queue.pQueuePriorities = &priority;
    VkDeviceCreateInfo device{};
    device.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
    device.pNext = host.needs->features;
    device.queueCreateInfoCount = 1;
    device.pQueueCreateInfos = &queue;
    device.enabledExtensionCount = host.needs->extensions_count;
    device.ppEnabledExtensionNames = host.needs->extensions;
    VkDevice made = VK_NULL_HANDLE;
    must(host.of_instance<PFN_vkCreateDevice>("vkCreateDevice")(host.physical, &device, nullptr, &made), "vkCreateDevice");
    host.device = made;
    CALL(host, vkGetDeviceQueue)(host.device, host.needs->queue_family, 0, &host.queue);
}

void close(Host &host)
{
    CALL(host, vkDestroyDevice)(host.device, nullptr);
    host.of_instance<PFN_vkDestroyInstance>("vkDestroyInstance")(host.instance, nullptr);
    dart_vulkan_needs_destroy(&host.needs);
}

// A buffer that the host reads and writes, too.
struct Buffer {
    VkBuffer handle = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    float *values = nullptr;
};
constexpr VkBufferUsageFlags USAGE = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;

Buffer make_buffer(const Host &host, uint64_t bytes)
{
    Buffer made;
    VkBufferCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.size = bytes;
    info.usage = USAGE;
    must(CALL(host, vkCreateBuffer)(host.device, &info, nullptr, &made.handle), "vkCreateBuffer");
    VkMemoryRequirements needs{};
    CALL(host, vkGetBufferMemoryRequirements)(host.device, made.handle, &needs);
    VkPhysicalDeviceMemoryProperties types{};
    host.of_instance<PFN_vkGetPhysicalDeviceMemoryProperties>("vkGetPhysicalDeviceMemoryProperties")(host.physical, &types);
    constexpr VkMemoryPropertyFlags wanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    uint32_t type = 0;
    while (type < types.memoryTypeCount &&
           ((needs.memoryTypeBits >> type & 1) == 0 || (types.memoryTypes[type].propertyFlags & wanted) != wanted))
        type++;
    VkMemoryAllocateInfo allocate{};
    allocate.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    allocate.allocationSize = needs.size;
    allocate.memoryTypeIndex = type; /* Vulkan promises one */
    must(CALL(host, vkAllocateMemory)(host.device, &allocate, nullptr, &made.memory), "vkAllocateMemory");
    must(CALL(host, vkBindBufferMemory)(host.device, made.handle, made.memory, 0), "vkBindBufferMemory");
    void *mapped = nullptr;
    must(CALL(host, vkMapMemory)(host.device, made.memory, 0, VK_WHOLE_SIZE, 0, &mapped), "vkMapMemory");
    made.values = static_cast<float *>(mapped);
    return made;
}

void destroy(const Host &host, const Buffer &buffer)
{
    CALL(host, vkDestroyBuffer)(host.device, buffer.handle, nullptr);
    CALL(host, vkFreeMemory)(host.device, buffer.memory, nullptr);
}

void barrier(const Host &host, VkCommandBuffer commands, VkPipelineStageFlags from, VkAccessFlags written, VkPipelineStageFlags to,
             VkAccessFlags read)
{
    VkMemoryBarrier memory{};
    memory.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
    memory.srcAccessMask = written;
    memory.dstAccessMask = read;
    CALL(host, vkCmdPipelineBarrier)(commands, from, to, 0, 1, &memory, 0, nullptr, 0, nullptr);
}

void begin(const Host &host, VkCommandBuffer commands)
{
    VkCommandBufferBeginInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    info.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
    must(CALL(host, vkBeginCommandBuffer)(commands, &info), "vkBeginCommandBuffer");
}

void fill(const Host &host, VkCommandBuffer commands, const Buffer &buffer, float value)
{
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    CALL(host, vkCmdFillBuffer)(commands, buffer.handle, X_AT, Y_BYTES, bits);
}

void copy_result(const Host &host, VkCommandBuffer commands, const Buffer &from, const Buffer &to)
{
    const VkBufferCopy region{Y_AT, 0, Y_BYTES};
    CALL(host, vkCmdCopyBuffer)(commands, from.handle, to.handle, 1, &region);
    barrier(host, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
}

// wait, signal: values of the timeline semaphore, 0 for none.
void submit(Host &host, VkCommandBuffer commands, VkSemaphore timeline, uint64_t wait, uint64_t signal, VkFence fence)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    VkTimelineSemaphoreSubmitInfo values{};
    values.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
    values.waitSemaphoreValueCount = wait > 0;
    values.pWaitSemaphoreValues = &wait;
    values.signalSemaphoreValueCount = signal > 0;
    values.pSignalSemaphoreValues = &signal;
    VkSubmitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.pNext = wait > 0 || signal > 0 ? &values : nullptr;
    info.waitSemaphoreCount = wait > 0;
    info.pWaitSemaphores = &timeline;
    info.pWaitDstStageMask = &stage;
    info.commandBufferCount = 1;
    info.pCommandBuffers = &commands;
    info.signalSemaphoreCount = signal > 0;
    info.pSignalSemaphores = &timeline;
    const std::lock_guard<std::mutex> lock(host.queue_mutex);
    must(CALL(host, vkQueueSubmit)(host.queue, 1, &info, fence), "vkQueueSubmit");
}

void finish(const Host &host, VkFence fence)
{
    must(CALL(host, vkWaitForFences)(host.device, 1, &fence, VK_TRUE, UINT64_MAX), "vkWaitForFences");
    must(CALL(host, vkResetFences)(host.device, 1, &fence), "vkResetFences");
}

void check(const Buffer &result, float value, const char *how)
{
    for (uint32_t i = 0; i < T * W; i++)
        if (result.values[i] != value * W) die(std::string(how) + ": element " + std::to_string(i) + " is " + std::to_string(result.values[i]));
}

dart_device *adopt(Host &host, dart_context *context)
{
    dart_vulkan_adopt_args args{};
    args.instance = host.instance;
    args.physical_device = host.physical;
    args.device = host.device;
    args.get_instance_proc_addr = host.get_instance_proc_addr;
    args.api_version = VK_API_VERSION_1_3;
    args.extensions = host.needs->extensions;
    args.extensions_count = host.needs->extensions_count;
    args.features = host.needs->features;
    args.queue_family = host.needs->queue_family;
    args.lock_queue = [](void *user) { static_cast<Host *>(user)->queue_mutex.lock(); };
    args.unlock_queue = [](void *user) { static_cast<Host *>(user)->queue_mutex.unlock(); };
    args.queue_user = &host;
    dart_device *device = nullptr;
    const dart_status status = dart_device_adopt(context, &args, nullptr, &device);
    if (status != DART_OK) {
        char text[512];
        dart_context_error(context, text, sizeof text);
        die(text);
    }
    return device;
}

void work(Host &host, dart_context *context, uint32_t number)
{
    dart_device *device = adopt(host, context);
    const Buffer ours = make_buffer(host, ALL), result = make_buffer(host, Y_BYTES);
    for (uint32_t i = 0; i < W * W; i++) ours.values[WEIGHT_AT / 4 + i] = 1;
    const dart_vulkan_buffer range{ours.handle, 0, ALL, USAGE, 0, nullptr};
    dart_buffer *wrapped = nullptr;
    must(dart_vulkan_wrap(device, &range, &wrapped), "dart_vulkan_wrap");
    dart_stream *stream = nullptr;
    must(dart_stream_create(device, nullptr, &stream), "dart_stream_create");
    dart_linear_args linear{};
    linear.T = T;
    linear.IN = linear.OUT = W;
    linear.x = {wrapped, DART_F32, X_AT / 4, 0};
    linear.weight = {wrapped, DART_F32, WEIGHT_AT / 4, 0};
    linear.y = {wrapped, DART_F32, Y_AT / 4, 0};

    VkCommandPoolCreateInfo pool_info{};
    pool_info.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
    pool_info.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
    pool_info.queueFamilyIndex = host.needs->queue_family;
    VkCommandPool pool = VK_NULL_HANDLE;
    must(CALL(host, vkCreateCommandPool)(host.device, &pool_info, nullptr, &pool), "vkCreateCommandPool");
    VkCommandBufferAllocateInfo allocate{};
    allocate.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
    allocate.commandPool = pool;
    allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    allocate.commandBufferCount = 2;
    VkCommandBuffer commands[2];
    must(CALL(host, vkAllocateCommandBuffers)(host.device, &allocate, commands), "vkAllocateCommandBuffers");
    VkFenceCreateInfo fence_info{};
    fence_info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
    VkFence fence = VK_NULL_HANDLE;
    must(CALL(host, vkCreateFence)(host.device, &fence_info, nullptr, &fence), "vkCreateFence");
    VkSemaphoreTypeCreateInfo type{};
    type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo semaphore_info{};
    semaphore_info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
    semaphore_info.pNext = &type;
    VkSemaphore timeline = VK_NULL_HANDLE;
    must(CALL(host, vkCreateSemaphore)(host.device, &semaphore_info, nullptr, &timeline), "vkCreateSemaphore");

    uint64_t reached = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const float recorded = static_cast<float>(1 + number + 2 * round), submitted = -recorded;
        begin(host, commands[0]);
        fill(host, commands[0], ours, recorded);
        barrier(host, commands[0], VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        must(dart_vulkan_record(stream, commands[0]), "dart_vulkan_record");
        must(dart_linear(stream, &linear), "dart_linear");
        barrier(host, commands[0], VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT,
                VK_ACCESS_TRANSFER_READ_BIT);
        copy_result(host, commands[0], ours, result);
        must(CALL(host, vkEndCommandBuffer)(commands[0]), "vkEndCommandBuffer");
        submit(host, commands[0], VK_NULL_HANDLE, 0, 0, fence);
        finish(host, fence);
        check(result, recorded, "recorded");

        begin(host, commands[0]);
        fill(host, commands[0], ours, submitted);
        must(CALL(host, vkEndCommandBuffer)(commands[0]), "vkEndCommandBuffer");
        begin(host, commands[1]);
        copy_result(host, commands[1], ours, result);
        must(CALL(host, vkEndCommandBuffer)(commands[1]), "vkEndCommandBuffer");
        must(dart_stream_begin(stream), "dart_stream_begin");
        must(dart_linear(stream, &linear), "dart_linear");
        const dart_vulkan_semaphore wait{timeline, reached + 1}, signal{timeline, reached + 2};
        const dart_vulkan_submit_args between{&wait, &signal, 1, 1};
        submit(host, commands[0], timeline, 0, reached + 1, VK_NULL_HANDLE);
        must(dart_vulkan_submit(stream, &between), "dart_vulkan_submit");
        submit(host, commands[1], timeline, reached + 2, 0, fence);
        finish(host, fence);
        must(dart_stream_wait(stream, UINT64_MAX), "dart_stream_wait");
        check(result, submitted, "submitted");
        reached += 2;
    }
    std::printf("thread %u: %u rounds, recorded and submitted, all right\n", number, ROUNDS);

    // dartlm's objects first, then those of the program.
    dart_stream_destroy(&stream);
    dart_buffer_destroy(&wrapped);
    dart_device_destroy(&device);
    CALL(host, vkDestroySemaphore)(host.device, timeline, nullptr);
    CALL(host, vkDestroyFence)(host.device, fence, nullptr);
    CALL(host, vkDestroyCommandPool)(host.device, pool, nullptr);
    destroy(host, ours);
    destroy(host, result);
}

} // namespace

int main(int argc, char **argv)
{
    Host host;
    open(host, argc > 1 ? static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10)) : 0);
    dart_context_options options{};
    options.without_vulkan = true; // dartlm makes no instance of its own
    dart_context *context = nullptr;
    must(dart_context_create(&options, &context), "dart_context_create");
    std::thread other(work, std::ref(host), context, 1u);
    work(host, context, 0);
    other.join();
    dart_context_destroy(&context);
    close(host);
}
