/* Without GLFW there are no windows: main.c draws without one and calls none of these. */
#include "window.h"

bool window_available(void) { return false; }

window *window_open(const char *title)
{
    (void)title;
    die("built without GLFW: only --headless");
}

const char *const *window_extensions(const window *w, uint32_t *count)
{
    (void)w;
    *count = 0;
    return NULL;
}

VkSurfaceKHR window_surface(window *w, host *h)
{
    (void)w, (void)h;
    return VK_NULL_HANDLE;
}

void window_make_swapchain(window *w) { (void)w; }

window_input window_poll(window *w)
{
    (void)w;
    return (window_input){0};
}

bool window_show(window *w, const commands *c, const canvas *from)
{
    (void)w, (void)c, (void)from;
    return false;
}

void window_destroy_swapchain(window *w) { (void)w; }
void window_destroy_surface(window *w) { (void)w; }
void window_close(window **w) { (void)w; }
