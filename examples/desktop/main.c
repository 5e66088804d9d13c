/* A desktop program around dartlm: a window with frames of its own, a model that reads and goes on in a thread of its own, and one Vulkan
 * device for both, with a queue of its own for each where the device has them. A starting point; docs/embedding.md explains it.
 *
 *   host.c       instance, device, queue with its lock, buffers, commands    window.c     GLFW window and swapchain
 *   canvas.c     the picture                                                 screen.c     what is on it
 *   model.c      the model's thread                                          attention.c  weights of memories, on the device
 *   sequence.c   the tokens                                                  font.c       letters
 */
#include "canvas.h"
#include "model.h"
#include "screen.h"
#include "window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct options {
    model_options model;
    bool headless, one_queue;
    uint32_t fps;           /* frames a second without a window */
    uint32_t frames;        /* quit after so many; 0: when asked to */
    uint32_t measure;       /* print the times of so many frames without generation and with it */
    uint32_t random_quit;   /* press random keys and quit at a random moment of so many ms; 0: do not */
    const char *screenshot; /* written once the sequence has ended */
} options;

typedef struct program {
    options options;
    host host;
    window *window; /* NULL: headless */
    buffer weights;
    canvas canvas;
    model *model;
    commands commands;
    screen_facts facts;
    uint64_t seed;
} program;

static const char usage[] =
    "usage: example_desktop [OPTION]...\n"
    "  --model FOLDER     config.json and safetensors (tests/data/mqar-dart)\n"
    "  --preset NAME      instead of a folder: random weights of this size, e.g. dart-130m\n"
    "  --state FILE       of save and load (desktop.state)\n"
    "  --tokens N         length of the sequence (320)\n"
    "  --together N       tokens that one prefill reads at the start (0)\n"
    "  --seed N           of the sequence and of --random-quit (1)\n"
    "  --chunk S          chunk size (the model's)\n"
    "  --no-memories      without state-memory attention\n"
    "  --run              do not wait for space\n"
    "  --rate N           at most about N tokens a second\n"
    "  --slice MS         dartlm's submissions take so many milliseconds at most, and a frame waits for two (2; on a processor 100)\n"
    "  --piece N          tokens that a prefill computes together (256)\n"
    "  --headless         no window: frames into an image\n"
    "  --fps N            so many a second (60)\n"
    "  --one-queue        dartlm's work on the queue of the frames, also where the device has one for compute alone\n"
    "  --frames N         quit after N frames\n"
    "  --measure N        print the times of N frames without generation and of N with it, and quit\n"
    "  --screenshot FILE  run to the end of the sequence, write the picture as PPM without figures of time, and quit\n"
    "  --random-quit MS   press random keys and quit at a random moment within MS milliseconds\n";

static uint32_t number(const char *option, const char *text)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value > 1u << 20) die("%s needs a number up to %u", option, 1u << 20);
    return (uint32_t)value;
}

static options parse(int argc, char **argv)
{
    options o = {.model = {.folder = "tests/data/mqar-dart", .state_path = "desktop.state", .tokens = 320, .piece = 256, .seed = 1}, .fps = 60};
    uint32_t seed = 1;
    const struct {
        const char *name;
        bool *flag;
        uint32_t *number;
        const char **text;
    } all[] = {
        {.name = "--headless", .flag = &o.headless}, {.name = "--one-queue", .flag = &o.one_queue},
        {.name = "--run", .flag = &o.model.run}, {.name = "--no-memories", .flag = &o.model.no_memories},
        {.name = "--tokens", .number = &o.model.tokens}, {.name = "--together", .number = &o.model.together}, {.name = "--seed", .number = &seed},
        {.name = "--rate", .number = &o.model.rate}, {.name = "--slice", .number = &o.model.slice_ms},
        {.name = "--piece", .number = &o.model.piece}, {.name = "--fps", .number = &o.fps},
        {.name = "--chunk", .number = &o.model.S}, {.name = "--frames", .number = &o.frames},
        {.name = "--measure", .number = &o.measure}, {.name = "--random-quit", .number = &o.random_quit},
        {.name = "--model", .text = &o.model.folder}, {.name = "--preset", .text = &o.model.preset},
        {.name = "--state", .text = &o.model.state_path}, {.name = "--screenshot", .text = &o.screenshot}};
    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            exit(0);
        }
        while (k < sizeof all / sizeof *all && strcmp(argv[i], all[k].name) != 0) k++;
        if (k == sizeof all / sizeof *all) die("unknown option %s; --help lists them", argv[i]);
        if (all[k].flag != NULL) {
            *all[k].flag = true;
            continue;
        }
        if (++i == argc) die("%s needs a value", all[k].name);
        if (all[k].number != NULL) *all[k].number = number(all[k].name, argv[i]);
        else *all[k].text = argv[i];
    }
    o.model.seed = seed;
    if (o.model.tokens == 0 || o.model.piece == 0 || o.fps == 0) die("--tokens, --piece and --fps must be at least 1");
    if (o.model.S != 0 && (o.model.S < MODEL_SMALLEST_CHUNK || o.model.S > MODEL_LARGEST_CHUNK))
        die("--chunk must be %d to %d", MODEL_SMALLEST_CHUNK, MODEL_LARGEST_CHUNK);
    o.model.run = o.model.run || o.screenshot != NULL;
    return o;
}

/* ---- Life ---- */

static void open_program(program *p)
{
    uint32_t count = 0;
    const char *const *extensions = NULL;
    if (!p->options.headless) {
        if (!window_available()) die("built without GLFW: only --headless");
        p->window = window_open("dartlm");
        extensions = window_extensions(p->window, &count);
    }
    host_open_instance(&p->host, extensions, count);
    host_open_device(&p->host, p->window != NULL ? window_surface(p->window, &p->host) : VK_NULL_HANDLE, p->options.one_queue);
    if (p->window != NULL) window_make_swapchain(p->window);
    const VkDeviceSize numbers = (VkDeviceSize)p->options.model.tokens * model_map_pitch(p->options.model.tokens);
    p->weights = host_make_buffer(&p->host, numbers * sizeof(float), VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT, false);
    canvas_open(&p->canvas, &p->host, &p->weights);
    p->commands = host_make_commands(&p->host, false);
    p->model = model_start(&p->host, &p->options.model, &p->weights);
    const char *name = p->options.model.preset != NULL ? p->options.model.preset : p->options.model.folder, *slash = strrchr(name, '/');
    p->facts = (screen_facts){.title = slash != NULL && slash[1] != '\0' ? slash + 1 : name,
                              .device = p->options.screenshot != NULL ? "" : p->host.properties.deviceName,
                              .tokens = p->options.model.tokens, .frame_ms = p->options.screenshot != NULL ? -1 : 0};
    p->seed = p->options.model.seed + 1; /* xorshift stays at 0 */
}

/* dartlm's objects first, then those of the program. */
static void close_program(program *p)
{
    model_stop(&p->model);
    must(vkDeviceWaitIdle(p->host.device), "vkDeviceWaitIdle");
    if (p->window != NULL) window_destroy_swapchain(p->window);
    host_destroy_commands(&p->host, &p->commands);
    canvas_close(&p->canvas);
    host_destroy_buffer(&p->host, &p->weights);
    if (p->window != NULL) window_destroy_surface(p->window);
    host_close(&p->host);
    if (p->window != NULL) window_close(&p->window);
}

/* ---- Frames ---- */

/* Returns the milliseconds from the first command to the finished picture. */
static double draw_frame(program *p, const model_view *view, bool screenshot)
{
    const double start = now_ms();
    screen_draw(&p->canvas, view, &p->facts);
    host_begin(&p->commands);
    canvas_record(&p->canvas, p->commands.handle, screenshot);
    if (p->window != NULL) window_show(p->window, &p->commands, &p->canvas);
    else host_run(&p->host, &p->commands, VK_NULL_HANDLE, VK_NULL_HANDLE);
    return now_ms() - start;
}

static void sleep_ms(double ms)
{
    const struct timespec time = {.tv_sec = (time_t)(ms / 1e3), .tv_nsec = (long)(ms * 1e6) % 1000000000};
    if (ms > 0) nanosleep(&time, NULL);
}

/* xorshift */
static uint32_t draw_number(program *p, uint32_t n)
{
    p->seed ^= p->seed << 13;
    p->seed ^= p->seed >> 7;
    p->seed ^= p->seed << 17;
    return (uint32_t)(p->seed >> 16) % n;
}

static void act(program *p, unsigned keys, uint32_t S, const model_view *view)
{
    bool memories = view->memories;
    if (!view->ready) return;
    if (S == 0) S = view->S;
    if ((keys & KEY_SMALLER) != 0 && S > MODEL_SMALLEST_CHUNK) S /= 2;
    if ((keys & KEY_LARGER) != 0 && S < MODEL_LARGEST_CHUNK) S *= 2;
    if ((keys & KEY_MEMORIES) != 0) memories = !memories;
    if (S != view->S || memories != view->memories) model_set(p->model, S, memories);
    if ((keys & KEY_RUN) != 0) model_do(p->model, view->running ? MODEL_PAUSE : MODEL_RUN);
    if ((keys & KEY_RESTART) != 0) model_do(p->model, MODEL_RESTART);
    if ((keys & KEY_SAVE) != 0) model_do(p->model, MODEL_SAVE);
    if ((keys & KEY_LOAD) != 0) model_do(p->model, MODEL_LOAD);
    if ((keys & KEY_CANCEL) != 0) model_do(p->model, MODEL_CANCEL);
}

/* Frames until the user or an option ends them. 0, or 1 after a failure. */
static int show(program *p)
{
    const options *o = &p->options;
    const double opened = now_ms(), quit_at = o->random_quit > 0 ? opened + draw_number(p, o->random_quit) : 0;
    for (uint32_t frame = 0;; frame++) {
        const double start = now_ms();
        const model_view view = model_look(p->model);
        window_input input = {0};
        uint32_t S = 0;
        if (p->window != NULL) input = window_poll(p->window);
        input.keys |= screen_clicks(&input, &S);
        if (o->random_quit > 0 && draw_number(p, 4) == 0) input.keys |= 1u << draw_number(p, 8);
        act(p, input.keys, S, &view);
        const bool ended = o->screenshot != NULL && view.ready && !view.running && view.position >= o->model.tokens;
        const double ms = draw_frame(p, &view, ended);
        if (p->facts.frame_ms >= 0) p->facts.frame_ms += (ms - p->facts.frame_ms) / 16;
        if (ended) canvas_write(&p->canvas, o->screenshot);
        if (view.failed && (o->screenshot != NULL || o->frames > 0)) {
            fprintf(stderr, "desktop: %s\n", view.text);
            return 1;
        }
        if (ended || (input.keys & KEY_QUIT) != 0 || frame + 1 == o->frames || (quit_at > 0 && now_ms() >= quit_at)) return 0;
        if (p->window == NULL) sleep_ms(1e3 / o->fps - (now_ms() - start));
    }
}

/* ---- Times ---- */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure_frames(program *p, const char *when)
{
    const uint32_t n = p->options.measure;
    double *times = malloc(n * sizeof *times), tokens = 0, longest = 0;
    const double began = now_ms(), allowed = 1e3 / p->options.fps;
    const uint64_t read = model_look(p->model).read;
    uint32_t missed = 0;
    if (times == NULL) die("no memory for %u times", n);
    for (uint32_t i = 0; i < n; i++) {
        const double start = now_ms();
        const model_view view = model_look(p->model);
        if (view.failed) die("%s", view.text);
        if (p->window != NULL) (void)window_poll(p->window);
        if (view.position >= p->options.model.tokens) model_do(p->model, MODEL_RESTART);
        times[i] = draw_frame(p, &view, false);
        missed += times[i] > allowed;
        tokens = view.tokens_per_second;
        if (view.longest_ms > longest) longest = view.longest_ms;
        if (p->window == NULL) sleep_ms(allowed - (now_ms() - start));
    }
    const double prefilled = (double)(model_look(p->model).read - read) * 1e3 / (now_ms() - began);
    qsort(times, n, sizeof *times, by_size);
    printf("%s: median %.2f ms, 95 %% %.2f ms, 99 %% %.2f ms, largest %.2f ms, %u missed, %.0f tokens/s, %.0f prefilled, submissions up to %.2f ms\n",
           when, times[n / 2], times[n * 95 / 100], times[n * 99 / 100], times[n - 1], missed, tokens, prefilled, longest);
    free(times);
}

static int measure(program *p)
{
    model_view view = model_look(p->model);
    for (; !view.ready && !view.failed; view = model_look(p->model)) {
        draw_frame(p, &view, false);
        sleep_ms(10);
    }
    if (view.failed) die("%s", view.text);
    printf("%s, %u frames each, %s, %s\n", p->host.properties.deviceName, p->options.measure, p->window != NULL ? "window" : "headless",
           host_has_two_queues(&p->host) ? "two queues" : "one queue");
    measure_frames(p, "without generation");
    model_do(p->model, MODEL_RUN);
    measure_frames(p, "with generation");
    return 0;
}

int main(int argc, char **argv)
{
    program p = {.options = parse(argc, argv)};
    open_program(&p);
    const int result = p.options.measure > 0 ? measure(&p) : show(&p);
    close_program(&p);
    return result;
}
