/* The calls of dartlm/vulkan.h in a library without Vulkan, whose build has no Vulkan headers. */
#include "base/base.h"

#ifndef DARTLM_VULKAN
struct dart_vulkan_query_args;
struct dart_vulkan_needs;
struct dart_vulkan_adopt_args;
struct dart_vulkan_buffer;
struct dart_vulkan_submit_args;
struct VkCommandBuffer_T;
struct VkSemaphore_T;

DART_API dart_status dart_vulkan_query(const struct dart_vulkan_query_args *args, struct dart_vulkan_needs **needs);
DART_API void dart_vulkan_needs_destroy(struct dart_vulkan_needs **needs);
DART_API dart_status dart_device_adopt(dart_context *context, const struct dart_vulkan_adopt_args *args, const dart_device_options *options,
                                       dart_device **device);
DART_API dart_status dart_vulkan_wrap(dart_device *device, const struct dart_vulkan_buffer *range, dart_buffer **buffer);
DART_API dart_status dart_vulkan_buffer_of(const dart_buffer *buffer, struct dart_vulkan_buffer *range);
DART_API dart_status dart_vulkan_submit(dart_stream *stream, const struct dart_vulkan_submit_args *args);
DART_API dart_status dart_vulkan_semaphore_of(const dart_semaphore *semaphore, struct VkSemaphore_T **handle);
DART_API dart_status dart_vulkan_record(dart_stream *stream, struct VkCommandBuffer_T *commands);

dart_status dart_vulkan_query(const struct dart_vulkan_query_args *args, struct dart_vulkan_needs **needs)
{
    (void)args, (void)needs;
    return DART_UNSUPPORTED;
}
void dart_vulkan_needs_destroy(struct dart_vulkan_needs **needs) { (void)needs; }
dart_status dart_device_adopt(dart_context *context, const struct dart_vulkan_adopt_args *args, const dart_device_options *options,
                              dart_device **device)
{
    (void)context, (void)args, (void)options, (void)device;
    return DART_UNSUPPORTED;
}
dart_status dart_vulkan_wrap(dart_device *device, const struct dart_vulkan_buffer *range, dart_buffer **buffer)
{
    (void)device, (void)range, (void)buffer;
    return DART_UNSUPPORTED;
}
dart_status dart_vulkan_buffer_of(const dart_buffer *buffer, struct dart_vulkan_buffer *range)
{
    (void)buffer, (void)range;
    return DART_UNSUPPORTED;
}
dart_status dart_vulkan_submit(dart_stream *stream, const struct dart_vulkan_submit_args *args)
{
    (void)stream, (void)args;
    return DART_UNSUPPORTED;
}
dart_status dart_vulkan_semaphore_of(const dart_semaphore *semaphore, struct VkSemaphore_T **handle)
{
    (void)semaphore, (void)handle;
    return DART_UNSUPPORTED;
}
dart_status dart_vulkan_record(dart_stream *stream, struct VkCommandBuffer_T *commands)
{
    (void)stream, (void)commands;
    return DART_UNSUPPORTED;
}
#else
typedef int without_vulkan_is_empty;
#endif
