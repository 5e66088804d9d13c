#include "vk.h"

const backend vulkan_backend = {
    .kind = DART_BACKEND_VULKAN,
    .instance_create = vk_instance_create,
    .instance_destroy = vk_instance_destroy,
    .device_count = vk_instance_device_count,
    .device_info = vk_instance_device_info,
    .device_create = vk_device_create,
    .device_destroy = vk_device_destroy,
    .memory_create = vk_memory_create,
    .memory_destroy = vk_memory_destroy,
    .memory_write = vk_memory_write,
    .memory_read = vk_memory_read,
    .stream_create = vk_stream_create,
    .stream_destroy = vk_stream_destroy,
    .stream_begin = vk_stream_begin,
    .stream_launch = vk_stream_launch,
    .stream_submit = vk_stream_submit,
    .stream_wait = vk_stream_wait,
    .stream_elapsed = vk_stream_elapsed,
    .warm = vk_warm,
    .cache_read = vk_cache_read,
};
