/* A window with a swapchain, by GLFW (window.c); or none, where the program is built without GLFW (window_none.c). */
#ifndef DESKTOP_WINDOW_H
#define DESKTOP_WINDOW_H

#include "canvas.h"

typedef struct window window;

/* What the user did since the last call: keys, and where on the canvas the mouse is held down. */
typedef enum window_key {
    KEY_RUN = 1 << 0,      /* space */
    KEY_SAVE = 1 << 1,     /* s */
    KEY_LOAD = 1 << 2,     /* l */
    KEY_MEMORIES = 1 << 3, /* m */
    KEY_SMALLER = 1 << 4,  /* left */
    KEY_LARGER = 1 << 5,   /* right */
    KEY_RESTART = 1 << 6,  /* r */
    KEY_CANCEL = 1 << 7,   /* c */
    KEY_QUIT = 1 << 8      /* escape, or the window was closed */
} window_key;
typedef struct window_input {
    unsigned keys;         /* of window_key, those pressed */
    bool pressed, held;    /* the mouse's left button went down; is down */
    float x, y;
} window_input;

/* Whether there can be windows. */
bool window_available(void);
/* Without a surface yet: host_open_instance wants the extensions, and the surface the instance. */
window *window_open(const char *title);
const char *const *window_extensions(const window *w, uint32_t *count);
VkSurfaceKHR window_surface(window *w, host *h);
/* After host_open_device. */
void window_make_swapchain(window *w);
window_input window_poll(window *w);
/* Runs the commands that drew the canvas, copies it to the window and shows it. false: the window has no room for a picture, or changed its
 * size: the commands were dropped, and the next frame may be shown. */
bool window_show(window *w, const commands *c, const canvas *from);
/* Nothing may run on the queue any more. */
void window_destroy_swapchain(window *w);
/* After host_open_device's device has gone; before the instance does. */
void window_destroy_surface(window *w);
void window_close(window **w);

#endif
