/* The picture: rectangles, letters and the map of the attention, drawn into an image of the program's own. A window shows a copy of it, and
 * without a window it is drawn all the same. */
#ifndef DESKTOP_CANVAS_H
#define DESKTOP_CANVAS_H

#include "host.h"

enum { CANVAS_WIDTH = 960, CANVAS_HEIGHT = 600, CANVAS_MOST_RECTS = 4096 };

/* Colours are 0xRRGGBB. */
typedef struct rect {
    float x, y, w, h; /* pixels from the top left corner */
    uint32_t color;
    uint32_t kind;    /* 0: filled, 1: a letter of `bits`, 2: the map */
    uint32_t bits[2];
} rect;

/* weights f32 rows columns: row t of `pitch` numbers. Below 0: there is no such memory. */
typedef struct canvas_map {
    uint32_t rows, columns, pitch;
} canvas_map;

typedef struct canvas {
    host *host;
    VkImage image; /* R8G8B8A8, after canvas_record in TRANSFER_SRC_OPTIMAL */
    VkDeviceMemory memory;
    VkImageView view;
    VkRenderPass pass;
    VkFramebuffer framebuffer;
    VkDescriptorSetLayout set_layout;
    VkDescriptorPool pool;
    VkDescriptorSet set;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    buffer rects, pixels; /* pixels: where a screenshot goes */
    uint32_t count;
    canvas_map map;
} canvas;

/* weights: the map's buffer, which other work on the queue writes. */
void canvas_open(canvas *c, host *h, const buffer *weights);
void canvas_close(canvas *c);

/* What the next picture consists of, back to front. */
void canvas_clear(canvas *c);
void canvas_rect(canvas *c, float x, float y, float w, float h, uint32_t color);
void canvas_text(canvas *c, float x, float y, uint32_t scale, uint32_t color, const char *text);
void canvas_draw_map(canvas *c, float x, float y, float w, float h, canvas_map map);

/* Between frames: what was put together since canvas_clear. The commands must have run before the next canvas_clear. */
void canvas_record(canvas *c, VkCommandBuffer to, bool screenshot);
/* Of a frame recorded with `screenshot`: a PPM file. */
void canvas_write(const canvas *c, const char *path);

#endif
