/* What is shown and what can be clicked. */
#ifndef DESKTOP_SCREEN_H
#define DESKTOP_SCREEN_H

#include "canvas.h"
#include "model.h"
#include "window.h"

typedef struct screen_facts {
    const char *title;
    const char *device;
    uint32_t tokens; /* rows of the map */
    double frame_ms; /* below 0: figures that depend on time are left out */
} screen_facts;

void screen_draw(canvas *c, const model_view *view, const screen_facts *facts);
/* The keys that the mouse stands for; *S becomes the chunk size under it where it drags the slider, else 0. */
unsigned screen_clicks(const window_input *input, uint32_t *S);

#endif
