#include "window.h"

#define GLFW_INCLUDE_NONE
#include <GLFW/glfw3.h>

#include <stdlib.h>

enum { MOST_IMAGES = 16 };

struct window {
    GLFWwindow *handle;
    host *host;
    VkSurfaceKHR surface;
    VkSwapchainKHR swapchain;
    VkExtent2D extent;
    uint32_t images_count;
    VkImage images[MOST_IMAGES];
    VkSemaphore drawn[MOST_IMAGES]; /* image i may be shown */
    VkSemaphore acquired;           /* the image to draw to is free */
    window_input input;
};

bool window_available(void) { return true; }

/* ---- What the user does ---- */

static void on_key(GLFWwindow *handle, int key, int scancode, int action, int mods)
{
    window *w = glfwGetWindowUserPointer(handle);
    (void)scancode, (void)mods;
    if (action == GLFW_RELEASE) return;
    switch (key) {
    case GLFW_KEY_SPACE: w->input.keys |= KEY_RUN; break;
    case GLFW_KEY_S: w->input.keys |= KEY_SAVE; break;
    case GLFW_KEY_L: w->input.keys |= KEY_LOAD; break;
    case GLFW_KEY_M: w->input.keys |= KEY_MEMORIES; break;
    case GLFW_KEY_R: w->input.keys |= KEY_RESTART; break;
    case GLFW_KEY_C: w->input.keys |= KEY_CANCEL; break;
    case GLFW_KEY_LEFT: w->input.keys |= KEY_SMALLER; break;
    case GLFW_KEY_RIGHT: w->input.keys |= KEY_LARGER; break;
    case GLFW_KEY_ESCAPE: w->input.keys |= KEY_QUIT; break;
    default: break;
    }
}

static void on_button(GLFWwindow *handle, int button, int action, int mods)
{
    window *w = glfwGetWindowUserPointer(handle);
    (void)mods;
    if (button != GLFW_MOUSE_BUTTON_LEFT) return;
    w->input.held = action == GLFW_PRESS;
    if (w->input.held) w->input.pressed = true;
}

window_input window_poll(window *w)
{
    double x, y;
    int width, height;
    w->input.keys = 0;
    w->input.pressed = false;
    glfwPollEvents();
    glfwGetCursorPos(w->handle, &x, &y);
    glfwGetWindowSize(w->handle, &width, &height);
    if (width > 0 && height > 0) {
        w->input.x = (float)(x * CANVAS_WIDTH / width);
        w->input.y = (float)(y * CANVAS_HEIGHT / height);
    }
    if (glfwWindowShouldClose(w->handle)) w->input.keys |= KEY_QUIT;
    return w->input;
}

/* ---- Window and surface ---- */

window *window_open(const char *title)
{
    window *w = calloc(1, sizeof *w);
    if (w == NULL) die("no memory for a window");
    if (!glfwInit()) die("GLFW finds no window system; --headless draws without one");
    if (!glfwVulkanSupported()) die("GLFW finds no Vulkan loader");
    glfwWindowHint(GLFW_CLIENT_API, GLFW_NO_API);
    w->handle = glfwCreateWindow(CANVAS_WIDTH, CANVAS_HEIGHT, title, NULL, NULL);
    if (w->handle == NULL) die("GLFW makes no window");
    glfwSetWindowUserPointer(w->handle, w);
    glfwSetKeyCallback(w->handle, on_key);
    glfwSetMouseButtonCallback(w->handle, on_button);
    return w;
}

const char *const *window_extensions(const window *w, uint32_t *count)
{
    (void)w;
    const char *const *names = (const char *const *)glfwGetRequiredInstanceExtensions(count);
    if (names == NULL) die("this Vulkan loader makes no surfaces for windows");
    return names;
}

VkSurfaceKHR window_surface(window *w, host *h)
{
    w->host = h;
    must(glfwCreateWindowSurface(h->instance, w->handle, NULL, &w->surface), "glfwCreateWindowSurface");
    return w->surface;
}

void window_destroy_surface(window *w) { vkDestroySurfaceKHR(w->host->instance, w->surface, NULL); }

void window_close(window **w)
{
    glfwDestroyWindow((*w)->handle);
    glfwTerminate();
    free(*w);
    *w = NULL;
}

/* ---- Swapchain ---- */

static VkSemaphore make_semaphore(const host *h)
{
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
    VkSemaphore made;
    must(vkCreateSemaphore(h->device, &info, NULL, &made), "vkCreateSemaphore");
    return made;
}

void window_destroy_swapchain(window *w)
{
    const VkDevice device = w->host->device;
    for (uint32_t i = 0; i < w->images_count; i++) vkDestroySemaphore(device, w->drawn[i], NULL);
    w->images_count = 0;
    vkDestroySemaphore(device, w->acquired, NULL);
    vkDestroySwapchainKHR(device, w->swapchain, NULL);
    w->acquired = VK_NULL_HANDLE;
    w->swapchain = VK_NULL_HANDLE;
}

/* A minimised window has no size, and then no swapchain. */
void window_make_swapchain(window *w)
{
    host *h = w->host;
    VkSurfaceCapabilitiesKHR can;
    VkSurfaceFormatKHR formats[32];
    uint32_t count = 32;
    int width, height;
    must(vkGetPhysicalDeviceSurfaceCapabilitiesKHR(h->physical, w->surface, &can), "vkGetPhysicalDeviceSurfaceCapabilitiesKHR");
    const VkResult listed = vkGetPhysicalDeviceSurfaceFormatsKHR(h->physical, w->surface, &count, formats);
    if (listed != VK_INCOMPLETE) must(listed, "vkGetPhysicalDeviceSurfaceFormatsKHR");
    uint32_t chosen = 0; /* one that does not convert: the canvas's numbers are those of a screen */
    for (uint32_t i = count; i-- > 0;)
        if (formats[i].format == VK_FORMAT_B8G8R8A8_UNORM || formats[i].format == VK_FORMAT_R8G8B8A8_UNORM) chosen = i;
    w->extent = can.currentExtent;
    if (w->extent.width == UINT32_MAX) {
        glfwGetFramebufferSize(w->handle, &width, &height);
        w->extent = (VkExtent2D){(uint32_t)width, (uint32_t)height};
    }
    if (w->extent.width == 0 || w->extent.height == 0) return;
    uint32_t images = can.minImageCount + 1;
    if (can.maxImageCount != 0 && images > can.maxImageCount) images = can.maxImageCount;
    const VkSwapchainCreateInfoKHR info = {
        .sType = VK_STRUCTURE_TYPE_SWAPCHAIN_CREATE_INFO_KHR, .surface = w->surface, .minImageCount = images, .imageFormat = formats[chosen].format,
        .imageColorSpace = formats[chosen].colorSpace, .imageExtent = w->extent, .imageArrayLayers = 1,
        .imageUsage = VK_IMAGE_USAGE_TRANSFER_DST_BIT, .preTransform = can.currentTransform,
        .compositeAlpha = (can.supportedCompositeAlpha & VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR) != 0 ? VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR
                                                                                             : VK_COMPOSITE_ALPHA_INHERIT_BIT_KHR,
        .presentMode = VK_PRESENT_MODE_FIFO_KHR, .clipped = VK_TRUE};
    must(vkCreateSwapchainKHR(h->device, &info, NULL, &w->swapchain), "vkCreateSwapchainKHR");
    w->images_count = MOST_IMAGES;
    must(vkGetSwapchainImagesKHR(h->device, w->swapchain, &w->images_count, w->images), "vkGetSwapchainImagesKHR");
    for (uint32_t i = 0; i < w->images_count; i++) w->drawn[i] = make_semaphore(h);
    w->acquired = make_semaphore(h);
}

/* The window changed: wait for what is shown, and begin again. */
static void remake(window *w)
{
    host_lock_queue(w->host);
    vkQueueWaitIdle(w->host->queue);
    host_unlock_queue(w->host);
    window_destroy_swapchain(w);
    window_make_swapchain(w);
    if (w->swapchain == VK_NULL_HANDLE) glfwWaitEventsTimeout(0.1); /* minimised: there is nothing to draw for */
}

static void move_image(VkCommandBuffer to, VkImage image, VkImageLayout old, VkImageLayout made, VkPipelineStageFlags next,
                       VkAccessFlags written, VkAccessFlags read)
{
    const VkImageMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER, .srcAccessMask = written, .dstAccessMask = read, .oldLayout = old, .newLayout = made,
        .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED, .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED, .image = image,
        .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};
    vkCmdPipelineBarrier(to, VK_PIPELINE_STAGE_TRANSFER_BIT, next, 0, 0, NULL, 0, NULL, 1, &barrier);
}

bool window_show(window *w, const commands *c, const canvas *from)
{
    uint32_t i = 0;
    VkResult result = w->swapchain == VK_NULL_HANDLE
                          ? VK_ERROR_OUT_OF_DATE_KHR
                          : vkAcquireNextImageKHR(w->host->device, w->swapchain, UINT64_MAX, w->acquired, VK_NULL_HANDLE, &i);
    if (result == VK_ERROR_OUT_OF_DATE_KHR) {
        must(vkEndCommandBuffer(c->handle), "vkEndCommandBuffer");
        remake(w);
        return false;
    }
    if (result != VK_SUBOPTIMAL_KHR) must(result, "vkAcquireNextImageKHR");
    const VkImageBlit blit = {.srcSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1}, .srcOffsets = {{0, 0, 0}, {CANVAS_WIDTH, CANVAS_HEIGHT, 1}},
                              .dstSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1},
                              .dstOffsets = {{0, 0, 0}, {(int32_t)w->extent.width, (int32_t)w->extent.height, 1}}};
    move_image(c->handle, w->images[i], VK_IMAGE_LAYOUT_UNDEFINED, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, VK_PIPELINE_STAGE_TRANSFER_BIT, 0,
               VK_ACCESS_TRANSFER_WRITE_BIT);
    vkCmdBlitImage(c->handle, from->image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, w->images[i], VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, 1, &blit,
                   VK_FILTER_LINEAR);
    move_image(c->handle, w->images[i], VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, VK_IMAGE_LAYOUT_PRESENT_SRC_KHR,
               VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, VK_ACCESS_TRANSFER_WRITE_BIT, 0);
    host_run(w->host, c, w->acquired, w->drawn[i]);
    const VkPresentInfoKHR present = {.sType = VK_STRUCTURE_TYPE_PRESENT_INFO_KHR, .waitSemaphoreCount = 1, .pWaitSemaphores = &w->drawn[i],
                                      .swapchainCount = 1, .pSwapchains = &w->swapchain, .pImageIndices = &i};
    host_lock_queue(w->host);
    result = vkQueuePresentKHR(w->host->queue, &present);
    host_unlock_queue(w->host);
    if (result == VK_ERROR_OUT_OF_DATE_KHR || result == VK_SUBOPTIMAL_KHR) remake(w);
    else must(result, "vkQueuePresentKHR");
    return true;
}
