/* The steps of several mixers for many sequences, whose newest tokens wait in windows, in one launch. */
#include "layers.h"
#include "ops/arguments.h"

#include <assert.h>

static_assert((int)BINDING_mixer_window_layers_tail == (int)BINDING_mixer_windows_tail &&
              (int)BINDING_mixer_window_layers_work == (int)BINDING_mixer_windows_work &&
              (int)BINDING_mixer_window_layers_stuck == (int)BINDING_mixer_windows_stuck, "bindings of mixer_window_layers");

/* What a multiprocessor has room for: sequences of a group, heads, tiles of eight outputs of in_proj and of out_proj, sequences in one of the
 * latter. TILE_IN, TILE_OUT: outputs in a tile of mixer_window_layers. */
enum { MOST_MEMBERS = 32, MOST_IN = 8, MOST_OUT = 4, ROWS_OUT = 16, MOST_WIDTH = 768, POSTS_BEGIN = 8, MOST_GROUPS = 2, TILE_IN = 64, TILE_OUT = 32 };

/* How sequences and workgroups are shared out, see MixerWindowsArgs. */
typedef struct windows_shape {
    uint32_t tiles, groups, members, share, heads;
    uint32_t workgroups, quarters; /* of a group: workgroups, and tiles of sequences in the product behind the norm */
} windows_shape;

/* False where no share of sequences and heads fits; both kernels want more than this. */
static bool share_out(const dart_device *device, const dart_mixer_step_args *a, windows_shape *shape)
{
    shape->tiles = device->info.multiprocessors;
    shape->groups = (uint32_t)base_ceil_div(a->B, MOST_MEMBERS);
    if (shape->groups > MOST_GROUPS || shape->tiles < shape->groups) return false;
    shape->workgroups = shape->tiles / shape->groups;
    shape->members = (uint32_t)base_ceil_div(a->B, shape->groups);
    if (shape->workgroups < shape->members) return false;
    shape->heads = (uint32_t)base_ceil_div(a->H, shape->workgroups / shape->members);
    shape->share = (uint32_t)base_ceil_div(a->H, shape->heads);
    shape->quarters = (uint32_t)base_ceil_div(shape->members, ROWS_OUT);
    return shape->heads <= WINDOWS_MOST_HEADS;
}

static bool shape_of(const dart_device *device, const dart_mixer_step_args *a, windows_shape *shape)
{
    if (!share_out(device, a, shape)) return false;
    const uint32_t tiles = (uint32_t)base_ceil_div(mixer_outputs(a), 8);
    return tiles >= shape->workgroups + shape->groups && base_ceil_div(tiles, shape->workgroups) <= MOST_IN &&
           base_ceil_div(a->W / 8, shape->workgroups / shape->quarters) <= MOST_OUT;
}

/* Of mixer_window_layers, which has no memories, and where a workgroup has a tile of each product at most. */
static bool unfolded_shape_of(const dart_device *device, const dart_mixer_step_args *a, windows_shape *shape)
{
    return a->memories_count == 0 && share_out(device, a, shape) && base_ceil_div(mixer_outputs(a), TILE_IN) <= shape->workgroups &&
           shape->quarters * (a->W / TILE_OUT) <= shape->workgroups;
}

/* What is copied sixteen bytes at a time besides what mixer_layer_fits asks for. */
static bool fits_window(const mixer_window *window, const dart_mixer_step_args *a)
{
    const dart_tensor *f32[] = {&a->conv_weight, &a->dt_bias, &a->a_log, &a->conv_bias, &a->sma_conv_weight, &a->sma_conv_bias};
    for (size_t i = 0; i < COUNT_OF(f32); i++)
        if (op_has(f32[i]) && !mixer_lies_at(f32[i], DART_F32, 16)) return false;
    if (!mixer_lies_at(&a->tail, DART_BF16, 16) || (op_has(&a->sma_tail) && !mixer_lies_at(&a->sma_tail, DART_BF16, 16))) return false;
    return mixer_lies_at(&window->rows, DART_BF16, 16) && mixer_lies_at(&window->hin, DART_BF16, 16) &&
           mixer_lies_at(&window->hin_scale, DART_F32, 16) && mixer_lies_at(&window->steps, DART_F32, 16);
}

/* What both kernels ask for. */
static bool fit(const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    const dart_mixer_step_args *a = &layers[0];
    if (count == 0 || a->B == 0 || a->W == 0 || a->W % 256 != 0 || a->W > MOST_WIDTH || a->H == 0) return false;
    if (a->H * LAYERS_P % 512 != 0 || a->H * LAYERS_P > 2 * MOST_WIDTH) return false;
    if (a->in_proj.dtype != DART_BF16 || mixer_memories_dtype(a) != DART_BF16) return false;
    if (a->x.row != 0 && a->x.row != a->W) return false;
    for (uint32_t i = 0; i < count; i++)
        if (!mixer_layer_fits(&layers[i], a) || !fits_window(&windows[i], &layers[i])) return false;
    return true;
}

static uint32_t windows_traits(const dart_device *device, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    windows_shape shape;
    return fit(layers, windows, count) && shape_of(device, &layers[0], &shape) ? FITS_MIXER_WINDOWS : 0;
}
static uint32_t unfolded_traits(const dart_device *device, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    windows_shape shape;
    return fit(layers, windows, count) && unfolded_shape_of(device, &layers[0], &shape) ? FITS_MIXER_WINDOWS : 0;
}

static bool prefers(const dart_stream *stream, kernel_id id, uint32_t traits)
{
    const op_call call = {.stream = (dart_stream *)(uintptr_t)stream};
    if (traits == 0 || stream->device->backend->memory_address == NULL) return false;
    return op_prefers(&call, id, KERNEL_window_output, 1, traits | FITS_16BIT | FITS_N128_P64);
}

bool mixer_windows_fit(const dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    return prefers(stream, KERNEL_mixer_windows, windows_traits(stream->device, layers, windows, count));
}
bool mixer_window_layers_fit(const dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    return prefers(stream, KERNEL_mixer_window_layers, unfolded_traits(stream->device, layers, windows, count));
}

static dart_status check(op_call *call, const dart_mixer_step_args *a, const mixer_window *window)
{
    const uint64_t slots = (uint64_t)a->B * WINDOW, I = (uint64_t)a->H * a->P;
    struct { op_operand rows, steps, hin, hin_scale; } o = {
        .rows = {"rows", window->rows, OP_FLOAT | OP_ALIGNED, slots, I + (uint64_t)a->G * a->N},
        .steps = {"steps", window->steps, OP_F32 | OP_ALIGNED, slots, 2 * (uint64_t)a->H},
        .hin = {"hin", window->hin, OP_FLOAT | OP_ALIGNED, a->B, I * a->N},
        .hin_scale = {"hin_scale", window->hin_scale, OP_F32, a->B, (uint64_t)a->H * a->N}};
    OP_CHECK(call, o);
    return op_status(call);
}

static dart_status launch(dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count, bool folds)
{
    op_call call;
    if (op_begin(&call, stream, folds ? "mixer_windows" : "mixer_window_layers") != DART_OK) return op_status(&call);
    const dart_mixer_step_args *a = &layers[0];
    const bool sma = op_has(&a->sma_proj);
    windows_shape shape = {0};
    for (uint32_t i = 0; i < count; i++)
        if (mixer_check(stream, &layers[i]) != DART_OK || check(&call, &layers[i], &windows[i]) != DART_OK) return op_status(&call);
    if (folds) op_kernel(&call, KERNEL_mixer_windows, 1, windows_traits(stream->device, layers, windows, count));
    else op_kernel(&call, KERNEL_mixer_window_layers, 1, unfolded_traits(stream->device, layers, windows, count));
    if (!(folds ? shape_of : unfolded_shape_of)(stream->device, a, &shape)) return op_status(&call);
    struct MixerWindowsArgs k = {.flags = (op_has(&a->seq) ? HAS_SEQ : 0) | (sma ? HAS_OPEN : 0), .layers = count, .B = a->B, .W = a->W, .H = a->H,
                                 .S = a->S, .runs = sma ? a->memories_count : 0, .closing = sma ? a->closing_count : 0, .groups = shape.groups,
                                 .members = shape.members, .share = shape.share, .heads = shape.heads, .eps = a->eps,
                                 .sma_eps = sma ? a->sma_eps : a->eps, .dt_min = a->dt_min, .dt_max = ops_most_step(a->dt_max)};
    call.T0 = a->W;
    call.T1 = a->H;
    const uint64_t I = (uint64_t)a->H * LAYERS_P, blocks = shape.tiles / shape.groups + shape.groups;
    const uint64_t of_windows = a->W / 2 + I / 2 + blocks + shape.share, of_layers = a->W / 2 + I / 2 + a->W / 16 + I + LAYERS_N + a->H + shape.share;
    const op_operand work = op_scratch(&call, DART_F32, a->B, folds ? of_windows : of_layers);
    const uint64_t numbers = folds ? a->B * base_round_up((uint64_t)mixer_outputs(a) + a->H, 2) : 0;
    const uint64_t words = POSTS_BEGIN + 3 * (uint64_t)shape.tiles + numbers;
    const op_operand posts = op_posts(&call, 2 * words), stuck = op_stuck(&call);
    const op_operand places = mixer_places(&call, layers, windows, count);
    const op_operand x = {"x", a->x, OP_F32, a->B, a->W}, seq = {"seq", a->seq, OP_I32 | OP_OPTIONAL, a->B, 2};
    const op_operand tail = {"tail", a->tail, OP_FLOAT, (uint64_t)a->B * (LAYERS_TAPS - 1), I + 2 * LAYERS_N};
    uint32_t at; /* of what is bound for its type */
    OP_LAUNCH(&call, &k, shape.tiles, {BINDING_mixer_windows_tail, &tail, &at, NULL}, OP_AT(mixer_windows, seq, &seq, k),
              OP_AT(mixer_windows, x, &x, k), OP_WHOLE(mixer_windows, work, &work), OP_WHOLE(mixer_windows, places, &places),
              OP_WHOLE(mixer_windows, posts, &posts), OP_WHOLE(mixer_windows, stuck, &stuck));
    return op_end(&call);
}

dart_status mixer_windows(dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    return launch(stream, layers, windows, count, true);
}
dart_status mixer_window_layers(dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    return launch(stream, layers, windows, count, false);
}
