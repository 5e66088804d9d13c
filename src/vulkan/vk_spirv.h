/* The embedded shaders; the table itself is written by tools/build/embed_shaders.py during the build. */
#ifndef DART_VK_SPIRV_H
#define DART_VK_SPIRV_H

#include <stdint.h>

typedef struct vk_spirv_module {
    const uint32_t *words;
    uint32_t bytes;
} vk_spirv_module;

/* In the order of the SPIRV_ROW lines of kernels.def, which is that of kernel_row.slot. */
extern const vk_spirv_module vk_spirv_modules[];
extern const uint32_t vk_spirv_modules_count;

#endif
