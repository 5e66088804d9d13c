/* The driver, a library that is opened at run time, and what every call of it for a device needs. */
#include "cu.h"

#include <string.h>

#if defined(_WIN32)
#define CU_DRIVER_NAME "nvcuda.dll"
#else
#define CU_DRIVER_NAME "libcuda.so.1"
#endif

bool cu_driver_load(cu_driver *driver, const char **missing)
{
    memset(driver, 0, sizeof *driver);
    *missing = "the CUDA driver library";
    driver->library = base_library_open(CU_DRIVER_NAME);
    if (driver->library == NULL) return false;
#define CU_FIND(member, symbol, parameters) \
    *missing = symbol; \
    if (!base_library_find(driver->library, symbol, &driver->member, sizeof driver->member)) goto fail;
    CU_FUNCTIONS(CU_FIND)
#undef CU_FIND
    return true;
fail:
    cu_driver_unload(driver);
    return false;
}

void cu_driver_unload(cu_driver *driver)
{
    if (driver->library != NULL) base_library_close(driver->library);
    driver->library = NULL;
}

const char *cu_driver_text(const cu_driver *driver, CUresult result)
{
    const char *text = NULL;
    if (driver->cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL) return "unknown error";
    return text;
}

base_mutex cu_code = BASE_MUTEX_STATIC;

/* What the caller can do about a result. The errors of a kernel stay with the context, hence with the device. */
static dart_status status_of(CUresult result)
{
    switch (result) {
    case CUDA_SUCCESS: return DART_OK;
    case CUDA_ERROR_OUT_OF_MEMORY: return DART_OUT_OF_MEMORY;
    case 4:   /* CUDA_ERROR_DEINITIALIZED */
    case 46:  /* CUDA_ERROR_DEVICE_UNAVAILABLE */
    case 214: /* CUDA_ERROR_ECC_UNCORRECTABLE */
    case 220: /* CUDA_ERROR_NVLINK_UNCORRECTABLE */
    case 226: /* CUDA_ERROR_CONTAINED */
    case 700: /* CUDA_ERROR_ILLEGAL_ADDRESS */
    case 702: /* CUDA_ERROR_LAUNCH_TIMEOUT */
    case 709: /* CUDA_ERROR_CONTEXT_IS_DESTROYED */
    case 710: /* CUDA_ERROR_ASSERT */
    case 714: /* CUDA_ERROR_HARDWARE_STACK_ERROR */
    case 715: /* CUDA_ERROR_ILLEGAL_INSTRUCTION */
    case 716: /* CUDA_ERROR_MISALIGNED_ADDRESS */
    case 717: /* CUDA_ERROR_INVALID_ADDRESS_SPACE */
    case 718: /* CUDA_ERROR_INVALID_PC */
    case 719: /* CUDA_ERROR_LAUNCH_FAILED */
    case 721: /* CUDA_ERROR_TENSOR_MEMORY_LEAK */
        return DART_DEVICE_LOST;
    case 200: /* CUDA_ERROR_INVALID_IMAGE */
    case 209: /* CUDA_ERROR_NO_BINARY_FOR_GPU */
    case 218: /* CUDA_ERROR_INVALID_PTX */
    case 221: /* CUDA_ERROR_JIT_COMPILER_NOT_FOUND */
    case 222: /* CUDA_ERROR_UNSUPPORTED_PTX_VERSION */
    case 223: /* CUDA_ERROR_JIT_COMPILATION_DISABLED */
    case 801: /* CUDA_ERROR_NOT_SUPPORTED */
        return DART_UNSUPPORTED;
    default: return DART_INTERNAL;
    }
}

dart_status cu_check(cu_device *device, CUresult result, const char *function)
{
    const dart_status status = status_of(result);
    if (status == DART_OK) return DART_OK;
    if (status == DART_DEVICE_LOST) atomic_store(&device->lost, true);
    if (result >= CU_FIRST_CAPTURE_ERROR && result <= CU_LAST_CAPTURE_ERROR) { /* the submission goes on without, see cu_stream.c */
        base_note(device->report, DART_LOG_INFO, "%s: %s (CUDA error %d)", function, cu_driver_text(device->driver, result), result);
        return status;
    }
    return base_fail(device->report, status, "%s: %s (CUDA error %d)", function, cu_driver_text(device->driver, result),
                     result);
}

dart_status cu_enter(cu_device *device)
{
    if (atomic_load(&device->lost))
        return base_fail(device->report, DART_DEVICE_LOST, "cuda: the device was lost before");
    return CU(device, cuCtxPushCurrent, device->context);
}

void cu_leave(cu_device *device)
{
    CUcontext popped = NULL;
    device->driver->cuCtxPopCurrent(&popped);
}
