/* The steps of several mixers for many sequences, whose newest tokens wait in windows, in one launch. */
#include "layers.h"
#include "ops/arguments.h"

/* What a multiprocessor has room for: sequences of a group, heads, tiles of eight outputs of in_proj and of out_proj, sequences in one of the
 * latter. */
enum { MOST_MEMBERS = 32, MOST_IN = 8, MOST_OUT = 4, ROWS_OUT = 16, MOST_WIDTH = 768, POSTS_BEGIN = 8, MOST_GROUPS = 2 };

/* How sequences and workgroups are shared out, see MixerWindowsArgs. */
typedef struct windows_shape {
    uint32_t tiles, groups, members, share, heads;
} windows_shape;

/* False where they do not fit. */
static bool shape_of(const dart_device *device, const dart_mixer_step_args *a, windows_shape *shape)
{
    shape->tiles = device->info.multiprocessors;
    shape->groups = (uint32_t)base_ceil_div(a->B, MOST_MEMBERS);
    if (shape->groups > MOST_GROUPS || shape->tiles < shape->groups) return false;
    const uint32_t workgroups = shape->tiles / shape->groups;
    shape->members = (uint32_t)base_ceil_div(a->B, shape->groups);
    if (workgroups < shape->members) return false;
    shape->heads = (uint32_t)base_ceil_div(a->H, workgroups / shape->members);
    shape->share = (uint32_t)base_ceil_div(a->H, shape->heads);
    const uint32_t quarters = (uint32_t)base_ceil_div(shape->members, ROWS_OUT);
    return shape->heads <= WINDOWS_MOST_HEADS && base_ceil_div(mixer_outputs(a), 8) >= workgroups + shape->groups &&
           base_ceil_div(base_ceil_div(mixer_outputs(a), 8), workgroups) <= MOST_IN && base_ceil_div(a->W / 8, workgroups / quarters) <= MOST_OUT;
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

static uint32_t windows_traits(const dart_device *device, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    const dart_mixer_step_args *a = &layers[0];
    windows_shape shape;
    if (count == 0 || a->B == 0 || a->W == 0 || a->W % 256 != 0 || a->W > MOST_WIDTH || a->H == 0) return 0;
    if (a->H * LAYERS_P % 512 != 0 || a->H * LAYERS_P > 2 * MOST_WIDTH) return 0;
    if (a->in_proj.dtype != DART_BF16 || mixer_memories_dtype(a) != DART_BF16 || !shape_of(device, a, &shape)) return 0;
    if (a->x.row != 0 && a->x.row != a->W) return 0;
    for (uint32_t i = 0; i < count; i++)
        if (!mixer_layer_fits(&layers[i], a) || !fits_window(&windows[i], &layers[i])) return 0;
    return FITS_MIXER_WINDOWS;
}

bool mixer_windows_fit(const dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    const op_call call = {.stream = (dart_stream *)(uintptr_t)stream};
    const uint32_t traits = windows_traits(stream->device, layers, windows, count);
    if (traits == 0 || stream->device->backend->memory_address == NULL) return false;
    return op_prefers(&call, KERNEL_mixer_windows, KERNEL_window_output, 1, traits | FITS_16BIT | FITS_N128_P64);
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

dart_status mixer_windows(dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    op_call call;
    if (op_begin(&call, stream, "mixer_windows") != DART_OK) return op_status(&call);
    const dart_mixer_step_args *a = &layers[0];
    const bool sma = op_has(&a->sma_proj);
    windows_shape shape = {0};
    for (uint32_t i = 0; i < count; i++)
        if (mixer_check(stream, &layers[i]) != DART_OK || check(&call, &layers[i], &windows[i]) != DART_OK) return op_status(&call);
    op_kernel(&call, KERNEL_mixer_windows, 1, windows_traits(stream->device, layers, windows, count));
    if (!shape_of(stream->device, a, &shape)) return op_status(&call);
    struct MixerWindowsArgs k = {.flags = (op_has(&a->seq) ? HAS_SEQ : 0) | (sma ? HAS_OPEN : 0), .layers = count, .B = a->B, .W = a->W, .H = a->H,
                                 .S = a->S, .runs = sma ? a->memories_count : 0, .closing = sma ? a->closing_count : 0, .groups = shape.groups,
                                 .members = shape.members, .share = shape.share, .heads = shape.heads, .eps = a->eps,
                                 .sma_eps = sma ? a->sma_eps : a->eps, .dt_min = a->dt_min, .dt_max = ops_most_step(a->dt_max)};
    call.T0 = a->W;
    call.T1 = a->H;
    const uint64_t I = (uint64_t)a->H * LAYERS_P, blocks = shape.tiles / shape.groups + shape.groups;
    const op_operand work = op_scratch(&call, DART_F32, a->B, a->W / 2 + I / 2 + blocks + shape.share);
    const uint64_t words = POSTS_BEGIN + 2 * (uint64_t)shape.tiles + a->B * base_round_up((uint64_t)mixer_outputs(a) + a->H, 2);
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
