#include "vk.h"

#include <stdlib.h>
#include <string.h>

#define VALIDATION_LAYER "VK_LAYER_KHRONOS_validation"

/* volk keeps the loader in globals; this guards them. The loader stays open until the process ends. */
static base_mutex loader_mutex = BASE_MUTEX_STATIC;

static bool load_loader(void)
{
    base_lock(&loader_mutex);
    bool loaded = vkGetInstanceProcAddr != NULL || volkInitialize() == VK_SUCCESS;
    loaded = loaded && vkGetInstanceProcAddr != NULL && vkCreateInstance != NULL;
    base_unlock(&loader_mutex);
    return loaded;
}

void vk_instance_load_device(const vk_instance *instance, VkDevice device, struct VolkDeviceTable *table)
{
    base_lock(&loader_mutex);
    vkGetDeviceProcAddr = instance->vk.vkGetDeviceProcAddr; /* volk asks through this global */
    volkLoadDeviceTable(table, device);
    base_unlock(&loader_mutex);
}

static void warn(base_report *report, const char *call, VkResult result)
{
    base_note(report, DART_LOG_WARNING, "vulkan: no devices, %s gave %d", call, (int)result);
}

static bool has_layer(const char *name)
{
    uint32_t count = 0;
    if (vkEnumerateInstanceLayerProperties(&count, NULL) != VK_SUCCESS || count == 0) return false;
    VkLayerProperties *layers = calloc(count, sizeof(*layers));
    if (layers == NULL) return false;
    bool found = false;
    if (vkEnumerateInstanceLayerProperties(&count, layers) >= VK_SUCCESS) {
        for (uint32_t i = 0; i < count && !found; i++) found = strcmp(layers[i].layerName, name) == 0;
    }
    free(layers);
    return found;
}

static bool has_extension(const char *layer, const char *name)
{
    uint32_t count = 0;
    if (vkEnumerateInstanceExtensionProperties(layer, &count, NULL) != VK_SUCCESS || count == 0) return false;
    VkExtensionProperties *extensions = calloc(count, sizeof(*extensions));
    if (extensions == NULL) return false;
    bool found = false;
    if (vkEnumerateInstanceExtensionProperties(layer, &count, extensions) >= VK_SUCCESS) {
        for (uint32_t i = 0; i < count && !found; i++) found = strcmp(extensions[i].extensionName, name) == 0;
    }
    free(extensions);
    return found;
}

static VKAPI_ATTR VkBool32 VKAPI_CALL log_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                  VkDebugUtilsMessageTypeFlagsEXT types,
                                                  const VkDebugUtilsMessengerCallbackDataEXT *data, void *user)
{
    (void)types;
    const dart_log_level level =
        (severity & VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT) != 0 ? DART_LOG_ERROR : DART_LOG_WARNING;
    base_log_line(user, level, "vulkan: %s", data->pMessage);
    return VK_FALSE;
}

static VkResult create_handle(vk_instance *instance, bool validation)
{
    const char *extensions[3];
    uint32_t extensions_count = 0;
    const char *layer = VALIDATION_LAYER;
    VkApplicationInfo application = {
        .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .pEngineName = "dartlm", .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    if (has_extension(NULL, VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME)) {
        extensions[extensions_count++] = VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME;
        info.flags |= VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
    }
    VkDebugUtilsMessengerCreateInfoEXT messenger = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity =
            VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
        .pfnUserCallback = log_message,
        .pUserData = instance->log};
    /* Without the heuristic, hazards between dispatches that share storage buffers go unseen. */
    const VkBool32 yes = VK_TRUE;
    const VkLayerSettingEXT settings[] = {
        {VALIDATION_LAYER, "validate_sync", VK_LAYER_SETTING_TYPE_BOOL32_EXT, 1, &yes},
        {VALIDATION_LAYER, "syncval_shader_accesses_heuristic", VK_LAYER_SETTING_TYPE_BOOL32_EXT, 1, &yes}};
    VkLayerSettingsCreateInfoEXT layer_settings = {.sType = VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT,
                                                   .settingCount = (uint32_t)COUNT_OF(settings),
                                                   .pSettings = settings};
    const bool messages = validation && instance->log != NULL;
    if (validation) {
        info.enabledLayerCount = 1;
        info.ppEnabledLayerNames = &layer;
        if (has_extension(layer, VK_EXT_LAYER_SETTINGS_EXTENSION_NAME)) {
            extensions[extensions_count++] = VK_EXT_LAYER_SETTINGS_EXTENSION_NAME;
            layer_settings.pNext = info.pNext;
            info.pNext = &layer_settings;
        }
    }
    if (messages) {
        extensions[extensions_count++] = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
        messenger.pNext = info.pNext;
        info.pNext = &messenger;
    }
    info.enabledExtensionCount = extensions_count;
    info.ppEnabledExtensionNames = extensions;
    const VkResult result = vkCreateInstance(&info, NULL, &instance->handle);
    if (result != VK_SUCCESS) {
        instance->handle = VK_NULL_HANDLE;
        return result;
    }
#define VK_LOAD(name) instance->vk.name = (PFN_##name)vkGetInstanceProcAddr(instance->handle, #name);
    VK_INSTANCE_FUNCTIONS(VK_LOAD)
    VK_LOAD(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)
    VK_LOAD(vkGetPhysicalDeviceExternalBufferProperties)
    VK_LOAD(vkGetPhysicalDeviceExternalSemaphoreProperties)
    if (messages) {
        VK_LOAD(vkCreateDebugUtilsMessengerEXT)
        VK_LOAD(vkDestroyDebugUtilsMessengerEXT)
        messenger.pNext = NULL;
        const VkResult made = instance->vk.vkCreateDebugUtilsMessengerEXT(instance->handle, &messenger, NULL, &instance->messenger);
        if (made != VK_SUCCESS) instance->messenger = VK_NULL_HANDLE; /* garbage */
        return made;
    }
#undef VK_LOAD
    return VK_SUCCESS;
}

static int rank(const vk_adapter *adapter)
{
    switch (adapter->info.type) {
    case DART_DEVICE_DISCRETE: return 0;
    case DART_DEVICE_INTEGRATED: return 1;
    case DART_DEVICE_VIRTUAL: return 2;
    case DART_DEVICE_CPU: return 3;
    case DART_DEVICE_OTHER: break;
    }
    return 4;
}

static dart_status list_adapters(vk_instance *instance, base_report *report)
{
    uint32_t count = 0;
    VkResult result = instance->vk.vkEnumeratePhysicalDevices(instance->handle, &count, NULL);
    if (result != VK_SUCCESS || count == 0) {
        if (result == VK_ERROR_OUT_OF_HOST_MEMORY) return vk_report(report, result, "vkEnumeratePhysicalDevices");
        if (result == VK_ERROR_INITIALIZATION_FAILED) /* Mesa: Mali before the G310 */
            base_note(report, DART_LOG_WARNING, "vulkan: no devices, the driver refuses the GPU: VK_ERROR_INITIALIZATION_FAILED");
        else if (result != VK_SUCCESS) warn(report, "vkEnumeratePhysicalDevices", result);
        else base_note(report, DART_LOG_INFO, "vulkan: no devices, the drivers list none");
        return DART_OK;
    }
    dart_status status = DART_OK;
    VkPhysicalDevice *handles = calloc(count, sizeof(*handles));
    vk_adapter *adapters = calloc(count, sizeof(*adapters));
    if (handles == NULL || adapters == NULL) FAIL(report, DART_OUT_OF_MEMORY, "list of Vulkan devices");
    result = instance->vk.vkEnumeratePhysicalDevices(instance->handle, &count, handles);
    if (result < VK_SUCCESS) TRY(vk_report(report, result, "vkEnumeratePhysicalDevices"));
    for (uint32_t i = 0; i < count; i++) {
        vk_adapter adapter = {0};
        vk_capabilities_probe(instance, handles[i], &adapter);
        uint32_t at = i;
        for (; at > 0 && rank(&adapters[at - 1]) > rank(&adapter); at--) adapters[at] = adapters[at - 1];
        adapters[at] = adapter;
    }
    for (uint32_t i = 0; i < count; i++) adapters[i].info.index = i;
    free(handles);
    instance->adapters = adapters;
    instance->adapters_count = count;
    return DART_OK;
fail:
    free(handles);
    free(adapters);
    return status;
}

dart_status vk_instance_create(const dart_context_options *options, base_report *report, void **out)
{
    const bool validation = options != NULL && options->vulkan_validation;
    const bool loaded = load_loader();
    if (validation && (!loaded || !has_layer(VALIDATION_LAYER)))
        return base_fail(report, DART_UNSUPPORTED, "vulkan_validation: %s is not installed",
                         loaded ? VALIDATION_LAYER : "the Vulkan loader");
    /* Loaders of 1.0 cannot be asked for more. */
    if (!loaded || vkEnumerateInstanceVersion == NULL) {
        base_note(report, DART_LOG_INFO, loaded ? "vulkan: no devices, the Vulkan loader is older than 1.1"
                                                : "vulkan: no devices, the Vulkan loader was not found");
        *out = NULL;
        return DART_OK;
    }
    vk_instance *instance = calloc(1, sizeof(*instance));
    if (instance == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "Vulkan instance");
    instance->log = report->log;
    dart_status status = DART_OK;
    const VkResult result = create_handle(instance, validation);
    if (result != VK_SUCCESS) {
        const bool memory = result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY;
        if (validation || memory) TRY(vk_report(report, result, "vkCreateInstance"));
        /* No driver, or a broken one: the other backends still work. */
        if (result != VK_ERROR_INCOMPATIBLE_DRIVER) warn(report, "vkCreateInstance", result);
        else base_note(report, DART_LOG_INFO, "vulkan: no devices, the Vulkan loader found no driver");
        vk_instance_destroy(instance);
        *out = NULL;
        return DART_OK;
    }
    TRY(list_adapters(instance, report));
    *out = instance;
    return DART_OK;
fail:
    vk_instance_destroy(instance);
    return status;
}

void vk_instance_destroy(void *self)
{
    vk_instance *instance = self;
    if (instance == NULL) return;
    if (instance->messenger != VK_NULL_HANDLE)
        instance->vk.vkDestroyDebugUtilsMessengerEXT(instance->handle, instance->messenger, NULL);
    if (instance->handle != VK_NULL_HANDLE && !instance->borrowed) instance->vk.vkDestroyInstance(instance->handle, NULL);
    free(instance->adapters);
    free(instance);
}

uint32_t vk_instance_device_count(const void *self)
{
    const vk_instance *instance = self;
    return instance != NULL ? instance->adapters_count : 0;
}

void vk_instance_device_info(const void *self, uint32_t index, dart_device_info *info)
{
    const vk_instance *instance = self;
    *info = instance->adapters[index].info;
}
