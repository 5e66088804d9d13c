/* The CUDA backend as the seam sees it. */
#include "cu.h"

const backend cuda_backend = {
    .kind = DART_BACKEND_CUDA,
    .rows = DART_BACKEND_CUDA,
    .windows_pay_n128_p64 = true,
    .memories_together = 2, /* half as many partials to merge */
    .few_rows_linear = true, /* a warp an output, where dart_norm_linear takes a block for eight */
    .matrices = true, /* tensor cores, from compute capability 8.0 on */
    .instance_create = cu_instance_create,
    .instance_destroy = cu_instance_destroy,
    .device_count = cu_instance_device_count,
    .device_info = cu_instance_device_info,
    .device_create = cu_device_create,
    .device_destroy = cu_device_destroy,
    .memory_create = cu_memory_create,
    .memory_create_shared = cu_memory_create_shared,
    .memory_destroy = cu_memory_destroy,
    .semaphore_create = cu_semaphore_create,
    .semaphore_destroy = cu_semaphore_destroy,
    .memory_write = cu_memory_write,
    .memory_read = cu_memory_read,
    .stream_create = cu_stream_create,
    .stream_destroy = cu_stream_destroy,
    .stream_begin = cu_stream_begin,
    .stream_launch = cu_stream_launch,
    .stream_submit = cu_stream_submit,
    .stream_wait = cu_stream_wait,
    .stream_elapsed = cu_stream_elapsed,
    .stream_times = cu_stream_times,
    .group_key = cu_group_key,
    .group_create = cu_group_create,
    .group_destroy = cu_group_destroy,
    .group_sum = cu_group_sum,
    .group_share = cu_group_share,
    .group_wait = cu_group_wait,
    .warm = cu_warm,
};
