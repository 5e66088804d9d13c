/* Driver workarounds. A row may only take capabilities away or lower a limit, never add, and names the report that
 * shows the fault. Remove a row when no supported driver version falls into its range any more. */
#include "vk.h"

typedef struct vk_quirk {
    VkDriverId driver;      /* 0 ends the table */
    uint32_t first, last;   /* VkPhysicalDeviceProperties::driverVersion, both included */
    uint32_t without;       /* dart_capability bits */
    uint64_t binding_bytes; /* largest binding; 0: as the driver says */
    const char *reference;
} vk_quirk;

static const vk_quirk quirks[] = {
    {0},
};

void vk_quirks_apply(const VkPhysicalDeviceProperties *properties, VkDriverId driver, dart_device_info *info)
{
    for (const vk_quirk *quirk = quirks; quirk->driver != 0; quirk++) {
        if (quirk->driver != driver) continue;
        if (properties->driverVersion < quirk->first || properties->driverVersion > quirk->last) continue;
        info->capabilities &= ~quirk->without;
        if (quirk->binding_bytes != 0 && quirk->binding_bytes < info->max_binding_bytes)
            info->max_binding_bytes = quirk->binding_bytes;
    }
}
