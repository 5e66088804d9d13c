# The Vulkan backend. vk_volk.c holds volk itself, so nothing is to be linked for it.
set(VULKAN_SOURCES
    src/vulkan/vk_adopt.c
    src/vulkan/vk_backend.c
    src/vulkan/vk_capabilities.c
    src/vulkan/vk_device.c
    src/vulkan/vk_instance.c
    src/vulkan/vk_matrices.c
    src/vulkan/vk_memory.c
    src/vulkan/vk_open.c
    src/vulkan/vk_pipeline.c
    src/vulkan/vk_quirks.c
    src/vulkan/vk_semaphore.c
    src/vulkan/vk_stream.c
    src/vulkan/vk_transfer.c
    src/vulkan/vk_volk.c)
# Another project's code: its warnings are not ours.
set_source_files_properties(src/vulkan/vk_volk.c PROPERTIES COMPILE_OPTIONS "-w")
