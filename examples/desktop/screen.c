#include "screen.h"

#include <stdio.h>

/* Everything in pixels of the canvas. */
enum { MAP_X = 24, MAP_Y = 72, MAP_W = 512, MAP_H = 504, PANEL_X = 568, PANEL_W = 368, BUTTON_H = 32 };
enum { SLIDER_Y = 300, SLIDER_STOPS = 7 /* 4, 8 .. 256 */, SWITCH_Y = 348 };
enum { TEXT = 0xe6e9ef, FAINT = 0x8b93a1, BOX = 0x1d2735, LIT = 0x2f7d6b, KNOB = 0xffc45c };

static const struct button {
    const char *text;
    float x, y, w;
    unsigned key;
} buttons[] = {
    {"run / pause", PANEL_X, 404, 176, KEY_RUN},  {"cancel", PANEL_X + 192, 404, 80, KEY_CANCEL}, {"restart", PANEL_X + 280, 404, 88, KEY_RESTART},
    {"save", PANEL_X, 444, 84, KEY_SAVE},         {"load", PANEL_X + 92, 444, 84, KEY_LOAD},      {"quit", PANEL_X + 280, 444, 88, KEY_QUIT},
};
enum { BUTTONS = sizeof buttons / sizeof *buttons };

static float stop_x(uint32_t stop) { return PANEL_X + 8 + (PANEL_W - 16) * (float)stop / (SLIDER_STOPS - 1); }

static uint32_t stop_of(uint32_t S)
{
    uint32_t stop = 0;
    while (stop + 1 < SLIDER_STOPS && (uint32_t)MODEL_SMALLEST_CHUNK << stop < S) stop++;
    return stop;
}

static void print_bytes(char *text, size_t size, const char *what, uint64_t bytes)
{
    if (bytes < 1u << 20) snprintf(text, size, "%-16s %8.1f KiB", what, (double)bytes / 1024);
    else snprintf(text, size, "%-16s %8.1f MiB", what, (double)bytes / (1 << 20));
}

static void draw_map(canvas *c, const model_view *view, const screen_facts *facts)
{
    const uint32_t S = view->S >= MODEL_SMALLEST_CHUNK ? view->S : MODEL_SMALLEST_CHUNK, chunks = (facts->tokens + S - 1) / S;
    const canvas_map map = {.rows = facts->tokens, .columns = chunks, .pitch = model_map_pitch(facts->tokens)};
    canvas_text(c, MAP_X, 48, 1, FAINT, "attention: a row for each token, a column for each memory (mean over heads, last layer)");
    canvas_draw_map(c, MAP_X, MAP_Y, MAP_W, MAP_H, map);
    const uint32_t row_y = view->position * MAP_H / facts->tokens;
    canvas_rect(c, MAP_X - 8, MAP_Y + (float)row_y, 6, 2, KNOB);
}

static void draw_figures(canvas *c, const model_view *view, const screen_facts *facts)
{
    char text[160];
    float y = 72;
    canvas_text(c, PANEL_X, y, 2, view->failed ? 0xff6b5c : TEXT, view->failed ? "failed" : view->running ? "running" : "paused");
    snprintf(text, sizeof text, "%.60s", view->text);
    canvas_text(c, PANEL_X, y += 24, 1, FAINT, text);
    snprintf(text, sizeof text, "token            %8u of %u", view->position, facts->tokens);
    canvas_text(c, PANEL_X, y += 32, 1, TEXT, text);
    snprintf(text, sizeof text, "recalled         %8u of %u", view->recalled, view->asked);
    canvas_text(c, PANEL_X, y += 16, 1, TEXT, text);
    if (facts->frame_ms >= 0) snprintf(text, sizeof text, "tokens/s         %8.0f", view->tokens_per_second);
    else snprintf(text, sizeof text, "tokens/s                -");
    canvas_text(c, PANEL_X, y += 16, 1, TEXT, text);
    if (facts->frame_ms >= 0) snprintf(text, sizeof text, "frame            %8.1f ms", facts->frame_ms);
    else snprintf(text, sizeof text, "frame                   -");
    canvas_text(c, PANEL_X, y += 16, 1, TEXT, text);
    print_bytes(text, sizeof text, "state", view->state_bytes);
    canvas_text(c, PANEL_X, y += 24, 1, TEXT, text);
    print_bytes(text, sizeof text, "KV cache instead", view->cache_bytes);
    canvas_text(c, PANEL_X, y += 32, 1, FAINT, text);
    /* Both as bars, the larger one over the whole width. */
    const uint64_t most = view->state_bytes > view->cache_bytes ? view->state_bytes : view->cache_bytes;
    const float scale = most > 0 ? (float)PANEL_W / (float)most : 0;
    canvas_rect(c, PANEL_X, y - 20, (float)(int)((float)view->state_bytes * scale), 6, LIT);
    canvas_rect(c, PANEL_X, y + 12, (float)(int)((float)view->cache_bytes * scale), 6, FAINT);
}

static void draw_controls(canvas *c, const model_view *view)
{
    char text[64];
    snprintf(text, sizeof text, "chunk size S     %8u   (left, right)", view->S);
    canvas_text(c, PANEL_X, SLIDER_Y - 28, 1, TEXT, text);
    canvas_rect(c, PANEL_X, SLIDER_Y + 6, PANEL_W, 4, BOX);
    for (uint32_t i = 0; i < SLIDER_STOPS; i++) canvas_rect(c, stop_x(i) - 1, SLIDER_Y + 2, 2, 12, BOX);
    canvas_rect(c, stop_x(stop_of(view->S)) - 6, SLIDER_Y, 12, 16, KNOB);
    canvas_rect(c, PANEL_X, SWITCH_Y, 48, 24, view->memories ? LIT : BOX);
    canvas_rect(c, PANEL_X + (view->memories ? 26.f : 2.f), SWITCH_Y + 2, 20, 20, TEXT);
    canvas_text(c, PANEL_X + 64, SWITCH_Y + 8, 1, TEXT, view->memories ? "state memories on   (m)" : "state memories off  (m)");
    for (uint32_t i = 0; i < BUTTONS; i++) {
        canvas_rect(c, buttons[i].x, buttons[i].y, buttons[i].w, BUTTON_H, buttons[i].key == KEY_RUN && view->running ? LIT : BOX);
        canvas_text(c, buttons[i].x + 12, buttons[i].y + 12, 1, TEXT, buttons[i].text);
    }
    canvas_text(c, PANEL_X, 500, 1, FAINT, "keys: space run or pause, c cancel, r restart,");
    canvas_text(c, PANEL_X, 516, 1, FAINT, "s save, l load, m memories, escape quit");
}

void screen_draw(canvas *c, const model_view *view, const screen_facts *facts)
{
    canvas_clear(c);
    canvas_text(c, MAP_X, 20, 2, TEXT, facts->title);
    canvas_text(c, PANEL_X, 24, 1, FAINT, facts->device);
    draw_map(c, view, facts);
    draw_figures(c, view, facts);
    draw_controls(c, view);
}

static bool within(const window_input *input, float x, float y, float w, float h)
{
    return input->x >= x && input->x < x + w && input->y >= y && input->y < y + h;
}

unsigned screen_clicks(const window_input *input, uint32_t *S)
{
    unsigned keys = 0;
    *S = 0;
    if (input->held && within(input, PANEL_X, SLIDER_Y - 8, PANEL_W, 32)) {
        uint32_t nearest = 0;
        while (nearest + 1 < SLIDER_STOPS && input->x > (stop_x(nearest) + stop_x(nearest + 1)) / 2) nearest++;
        *S = (uint32_t)MODEL_SMALLEST_CHUNK << nearest;
    }
    if (!input->pressed) return 0;
    if (within(input, PANEL_X, SWITCH_Y, PANEL_W, 24)) keys |= KEY_MEMORIES;
    for (uint32_t i = 0; i < BUTTONS; i++)
        if (within(input, buttons[i].x, buttons[i].y, buttons[i].w, BUTTON_H)) keys |= buttons[i].key;
    return keys;
}
