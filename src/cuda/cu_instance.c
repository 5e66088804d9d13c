/* The devices that the driver lists. */
#include "cu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int attribute(const cu_driver *driver, CUdevice device, int which)
{
    int value = 0;
    return driver->cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS && value > 0 ? value : 0;
}

static void describe(const cu_instance *instance, CUdevice device, dart_device_info *info)
{
    const cu_driver *driver = &instance->driver;
    const int major = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    const int minor = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    int version = 0;
    size_t bytes = 0;
    memset(info, 0, sizeof *info);
    info->backend = DART_BACKEND_CUDA;
    info->type =
        attribute(driver, device, CU_DEVICE_ATTRIBUTE_INTEGRATED) ? DART_DEVICE_INTEGRATED : DART_DEVICE_DISCRETE;
    if (driver->cuDeviceGetName(info->name, (int)sizeof info->name, device) != CUDA_SUCCESS)
        strcpy(info->name, "CUDA device");
    info->name[sizeof info->name - 1] = '\0';
    if (driver->cuDriverGetVersion(&version) != CUDA_SUCCESS) version = 0;
    snprintf(info->driver, sizeof info->driver, "CUDA %d.%d, compute capability %d.%d", version / 1000,
             version % 1000 / 10, major, minor);
    if (driver->cuDeviceGetUuid(info->uuid, device) != CUDA_SUCCESS) memset(info->uuid, 0, sizeof info->uuid);
    if (driver->cuDeviceTotalMem(&bytes, device) == CUDA_SUCCESS) info->memory_bytes = bytes;
    info->capabilities = (major == 9 && minor == 0 ? DART_CAP_SM90 : 0) |
                         (instance->blas.library != NULL ? DART_CAP_CUBLASLT : 0) |
                         (attribute(driver, device, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) ? DART_CAP_RESIDENT : 0);
    info->subgroup = (uint32_t)attribute(driver, device, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    info->shared_bytes = (uint32_t)attribute(driver, device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    info->workgroup = (uint32_t)attribute(driver, device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    info->multiprocessors = (uint32_t)attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    info->max_binding_bytes = UINT64_MAX / 2;
    info->usable = major >= 8;
    if (!info->usable)
        snprintf(info->why_not, sizeof info->why_not, "compute capability %d.%d, at least 8.0 is needed", major, minor);
}

/* Discrete before integrated, else as the driver numbers them. */
static void list(cu_instance *instance, uint32_t count)
{
    for (int integrated = 0; integrated < 2; integrated++) {
        for (uint32_t i = 0; i < count; i++) {
            cu_adapter adapter;
            if (instance->driver.cuDeviceGet(&adapter.handle, (int)i) != CUDA_SUCCESS) continue;
            describe(instance, adapter.handle, &adapter.info);
            if ((adapter.info.type == DART_DEVICE_INTEGRATED) != (integrated == 1)) continue;
            adapter.info.index = instance->adapters_count;
            instance->adapters[instance->adapters_count++] = adapter;
        }
    }
}

dart_status cu_instance_create(const dart_context_options *options, base_report *report, void **instance)
{
    (void)options;
    cu_instance *made = calloc(1, sizeof *made);
    if (made == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "cuda: no host memory");
    const char *missing = NULL;
    dart_status status = DART_OK;
    int count = 0;
    if (!cu_driver_load(&made->driver, &missing)) {
        base_note(report, DART_LOG_INFO, "cuda: no devices, %s was not found", missing);
        goto none;
    }
    CUresult result = made->driver.cuInit(0);
    if (result == CUDA_SUCCESS) result = made->driver.cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS || count <= 0) {
        const bool usual = result == CUDA_SUCCESS || result == CUDA_ERROR_NO_DEVICE;
        base_note(report, usual ? DART_LOG_INFO : DART_LOG_WARNING, "cuda: no devices, the driver says %s (CUDA error %d)",
                  cu_driver_text(&made->driver, result), result);
        goto none;
    }
    made->adapters = calloc((size_t)count, sizeof *made->adapters);
    if (made->adapters == NULL) {
        status = base_fail(report, DART_OUT_OF_MEMORY, "cuda: no host memory");
        goto none;
    }
    if (!cu_blas_load(&made->blas)) base_log_line(report->log, DART_LOG_INFO, "cuda: cuBLASLt was not found");
    list(made, (uint32_t)count);
    *instance = made;
    return DART_OK;
none:
    cu_instance_destroy(made);
    if (status == DART_OK) *instance = NULL;
    return status;
}

void cu_instance_destroy(void *instance)
{
    cu_instance *i = instance;
    if (i == NULL) return;
    cu_blas_unload(&i->blas);
    cu_driver_unload(&i->driver);
    free(i->adapters);
    free(i);
}

uint32_t cu_instance_device_count(const void *instance)
{
    const cu_instance *i = instance;
    return i == NULL ? 0 : i->adapters_count;
}

void cu_instance_device_info(const void *instance, uint32_t index, dart_device_info *info)
{
    const cu_instance *i = instance;
    *info = i->adapters[index].info;
}
