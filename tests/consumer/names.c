/* A program whose functions have names that the library uses inside, and that links a Vulkan loader. Compiled twice: with -DLOADER it
 * is what stands for the loader, a shared library with two of its functions. */
#include <stdio.h>

#ifdef LOADER

int vkCreateInstance(const void *info, const void *allocator, void **instance);
int vkEnumerateInstanceVersion(unsigned *version);

int vkCreateInstance(const void *info, const void *allocator, void **instance)
{
    (void)info, (void)allocator, (void)instance;
    return 4321;
}
int vkEnumerateInstanceVersion(unsigned *version)
{
    *version = 1234;
    return 0;
}

#else

#include <dartlm/dartlm.h>

int vkCreateInstance(const void *info, const void *allocator, void **instance);
int vkEnumerateInstanceVersion(unsigned *version);

int file_exists(const char *path);
int base_fail(int code);
int op_begin(void);

int file_exists(const char *path) { return path != NULL; }
int base_fail(int code) { return code + 1; }
int op_begin(void) { return 7; }

int main(void)
{
    dart_context *context = NULL;
    unsigned version = 0;
    void *instance = NULL;
    if (vkCreateInstance(NULL, NULL, &instance) != 4321 || vkEnumerateInstanceVersion(&version) != 0 || version != 1234) {
        printf("the loader's functions were not called\n");
        return 1;
    }
    /* The library looks for a real loader and devices meanwhile, and reports with functions of its own. */
    if (dart_context_create(NULL, &context) != DART_OK) return 1;
    dart_device *device = NULL;
    const dart_status status = dart_device_open(context, &(dart_device_options){.spec = "cpu:77"}, &device);
    const int own = file_exists("") + base_fail(1) + op_begin();
    dart_context_destroy(&context);
    return status == DART_UNSUPPORTED && own == 10 ? 0 : 1;
}

#endif
