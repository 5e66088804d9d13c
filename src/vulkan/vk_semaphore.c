#include "vk.h"

#include <stdlib.h>

dart_status vk_semaphore_create(void *self, bool binary, int descriptor, void **out)
{
    vk_device *device = self;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    if (!device->adapter->shares_semaphores[binary])
        return base_fail(device->report, DART_UNSUPPORTED, "%s: VK_KHR_external_semaphore_fd is not there or not switched on, or knows no %s ones",
                         device->adapter->info.name, binary ? "binary" : "timeline");
    vk_semaphore *made = calloc(1, sizeof(*made));
    if (made == NULL) return base_fail(device->report, DART_OUT_OF_MEMORY, "Vulkan semaphore");
    const VkExportSemaphoreCreateInfo out_by = {.sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO,
                                                .handleTypes = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .pNext = descriptor < 0 ? &out_by : NULL,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = binary ? type.pNext : &type};
    VK_MAKE(device, vkCreateSemaphore, made->handle, (device->handle, &info, NULL, &made->handle));
    /* Last: an import that succeeds takes the descriptor. */
    const VkImportSemaphoreFdInfoKHR in = {.sType = VK_STRUCTURE_TYPE_IMPORT_SEMAPHORE_FD_INFO_KHR,
                                           .semaphore = made->handle,
                                           .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
                                           .fd = descriptor};
    if (descriptor >= 0) VK(device, vkImportSemaphoreFdKHR, (device->handle, &in));
    *out = made;
    return DART_OK;
fail:
    vk_semaphore_destroy(device, made);
    return status;
}

dart_status vk_semaphore_export(void *self, void *handle, int *descriptor)
{
    vk_device *device = self;
    const vk_semaphore *semaphore = handle;
    dart_status status = vk_device_check(device);
    if (status != DART_OK) return status;
    const VkSemaphoreGetFdInfoKHR info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR,
                                          .semaphore = semaphore->handle,
                                          .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    int fd = -1;
    VK(device, vkGetSemaphoreFdKHR, (device->handle, &info, &fd));
    *descriptor = fd;
fail:
    return status;
}

void vk_semaphore_destroy(void *self, void *handle)
{
    vk_device *device = self;
    vk_semaphore *semaphore = handle;
    if (semaphore == NULL) return;
    if (semaphore->handle != VK_NULL_HANDLE) device->vk.vkDestroySemaphore(device->handle, semaphore->handle, NULL);
    free(semaphore);
}
