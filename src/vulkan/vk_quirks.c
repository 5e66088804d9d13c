/* Driver workarounds. A row may only take capabilities away, lower a limit or have shaders do without an operation, never add, and names the
 * driver, its versions and the reason, with where that was seen. Remove a row when no supported driver version falls into its range any more. */
#include "vk.h"

typedef struct vk_quirk {
    VkDriverId driver;      /* 0 ends the table */
    uint32_t first, last;   /* VkPhysicalDeviceProperties::driverVersion, both included */
    uint32_t subgroup;      /* only devices whose subgroups have this many lanes always; 0: all */
    uint32_t without;       /* dart_capability bits */
    uint64_t binding_bytes; /* largest binding; 0: as the driver says */
    bool lockstep;          /* subgroupBarrier waits for the whole workgroup, and the lanes of a subgroup run in lockstep */
    const char *reference;
} vk_quirk;

/* Rows for FLOAT16 multiply f16 operands into f32 sums. AMD's GCN, the chips of these drivers whose subgroups always have 64 lanes, converts
 * each operand first: 1.4 instructions a product, where f32 operands take 1. From RDNA on the conversion is part of the instruction. No
 * property of Vulkan tells that. */
#define GCN_CONVERTS "docs/lab/2026-11-22-amd-without-matrices.md, Mesa 25.0.7; the instructions are the chip's, so of all versions"

/* With a barrier of the workgroup's scope Mesa's compiler for AMD leaves out the wait for stores (shaders/sma/last.glsl). */
#define AMD_LEAVES_OUT "docs/compilers.md, What the library does about it: seen in Mesa's; AMD's own and NVK, Turnip are not known to be better"

/* LP_NATIVE_VECTOR_WIDTH=512 makes subgroups of 16 lanes, for which the driver dies when it compiles a product of cooperative matrices. No
 * probe within the process can survive that. */
#define LLVMPIPE_DIES "docs/compilers.md, Limits and subgroups: Mesa 26.1.6, LLVM 21.1.8; earlier ones are not known to be better"

#define LLVMPIPE_WAITS "shaders/lib/matrix.glsl, subgroup_sync: Mesa 26.1; others are not known to be better"

static const vk_quirk quirks[] = {
    {VK_DRIVER_ID_MESA_LLVMPIPE, 0, UINT32_MAX, 16, DART_CAP_MATRIX, 0, false, LLVMPIPE_DIES},
    {VK_DRIVER_ID_MESA_LLVMPIPE, 0, UINT32_MAX, 0, 0, 0, true, LLVMPIPE_WAITS},
    {VK_DRIVER_ID_MESA_RADV, 0, UINT32_MAX, 64, DART_CAP_FLOAT16 | DART_CAP_MATRIX, 0, false, GCN_CONVERTS},
    {VK_DRIVER_ID_AMD_OPEN_SOURCE, 0, UINT32_MAX, 64, DART_CAP_FLOAT16 | DART_CAP_MATRIX, 0, false, GCN_CONVERTS},
    {VK_DRIVER_ID_AMD_PROPRIETARY, 0, UINT32_MAX, 64, DART_CAP_FLOAT16 | DART_CAP_MATRIX, 0, false, GCN_CONVERTS},
    {VK_DRIVER_ID_MESA_RADV, 0, UINT32_MAX, 0, DART_CAP_CUMULATIVE, 0, false, AMD_LEAVES_OUT},
    {VK_DRIVER_ID_AMD_OPEN_SOURCE, 0, UINT32_MAX, 0, DART_CAP_CUMULATIVE, 0, false, AMD_LEAVES_OUT},
    {VK_DRIVER_ID_AMD_PROPRIETARY, 0, UINT32_MAX, 0, DART_CAP_CUMULATIVE, 0, false, AMD_LEAVES_OUT},
    {VK_DRIVER_ID_MESA_NVK, 0, UINT32_MAX, 0, DART_CAP_CUMULATIVE, 0, false, AMD_LEAVES_OUT},
    {VK_DRIVER_ID_MESA_TURNIP, 0, UINT32_MAX, 0, DART_CAP_CUMULATIVE, 0, false, AMD_LEAVES_OUT},
    {0},
};

void vk_quirks_apply(const VkPhysicalDeviceProperties *properties, VkDriverId driver, bool fixed_subgroup, vk_adapter *adapter)
{
    dart_device_info *info = &adapter->info;
    for (const vk_quirk *quirk = quirks; quirk->driver != 0; quirk++) {
        if (quirk->driver != driver) continue;
        if (quirk->subgroup != 0 && (!fixed_subgroup || info->subgroup != quirk->subgroup)) continue;
        if (properties->driverVersion < quirk->first || properties->driverVersion > quirk->last) continue;
        info->capabilities &= ~quirk->without;
        if (quirk->binding_bytes != 0 && quirk->binding_bytes < info->max_binding_bytes)
            info->max_binding_bytes = quirk->binding_bytes;
        adapter->lockstep = adapter->lockstep || quirk->lockstep;
    }
}
