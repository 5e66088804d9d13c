/* Libraries opened at run time, and the driver among them. */
#include "cu.h"

#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#define CU_DRIVER_NAME "nvcuda.dll"

void *cu_library_open(const char *name) { return (void *)LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS); }
void cu_library_close(void *library) { FreeLibrary((HMODULE)library); }
bool cu_library_find(void *library, const char *symbol, void *function, size_t size)
{
    FARPROC found = GetProcAddress((HMODULE)library, symbol);
    memcpy(function, &found, size);
    return found != NULL;
}
#else
#include <dlfcn.h>

/* Libraries stay in the process: their threads do not survive being unmapped. */
#if defined(RTLD_NODELETE)
#define CU_STAY RTLD_NODELETE
#else
#define CU_STAY 0
#endif

#define CU_DRIVER_NAME "libcuda.so.1"

void *cu_library_open(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL | CU_STAY); }
void cu_library_close(void *library) { dlclose(library); }
/* Through memory, since C knows no conversion between object and function pointers. */
bool cu_library_find(void *library, const char *symbol, void *function, size_t size)
{
    void *found = dlsym(library, symbol);
    static_assert(sizeof found == sizeof(void (*)(void)), "POSIX says so");
    memcpy(function, &found, size);
    return found != NULL;
}
#endif

bool cu_driver_load(cu_driver *driver, const char **missing)
{
    memset(driver, 0, sizeof *driver);
    *missing = "the CUDA driver library";
    driver->library = cu_library_open(CU_DRIVER_NAME);
    if (driver->library == NULL) return false;
#define CU_FIND(member, symbol, parameters) \
    *missing = symbol; \
    if (!cu_library_find(driver->library, symbol, &driver->member, sizeof driver->member)) goto fail;
    CU_FUNCTIONS(CU_FIND)
#undef CU_FIND
    return true;
fail:
    cu_driver_unload(driver);
    return false;
}

void cu_driver_unload(cu_driver *driver)
{
    if (driver->library != NULL) cu_library_close(driver->library);
    driver->library = NULL;
}

const char *cu_driver_text(const cu_driver *driver, CUresult result)
{
    const char *text = NULL;
    if (driver->cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL) return "unknown error";
    return text;
}
