/* The driver, a library that is opened at run time. */
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
