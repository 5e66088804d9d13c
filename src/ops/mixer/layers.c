/* The steps of several mixers on one token in one launch, whose workgroups wait for one another. */
#include "layers.h"
#include "mixer.h"
#include "ops/arguments.h"
#include "ops/places.h"

/* MOST_OF_A_SPLIT: through Vulkan a workgroup looks at a few of its memories at a time; from some 100 memories on launches of many workgroups took
 * less time (one H100, dart-130m: 8 memories a split 1,987 tokens/s in place of 1,429, 32 of them 858 in place of 933). */
enum { LAYERS_MOST_WIDTH = 2048, POSTS_BEGIN = 8, MOST_OF_A_SPLIT = 16 };

bool mixer_lies_at(const dart_tensor *tensor, dart_dtype dtype, uint32_t bytes)
{
    return tensor->dtype == dtype && tensor->row == 0 && tensor->offset * dart_dtype_size(dtype) % bytes == 0;
}

bool mixer_is_16bit(dart_dtype dtype) { return dtype == DART_F16 || dtype == DART_BF16; }

static bool fits_runs(const dart_memories *runs, uint32_t count, uint32_t most, dart_dtype dtype)
{
    if (count > most) return false;
    for (uint32_t i = 0; i < count; i++)
        if (!mixer_lies_at(&runs[i].dh, dtype, 16) || !mixer_lies_at(&runs[i].scale, DART_F32, 16)) return false;
    return true;
}

dart_dtype mixer_memories_dtype(const dart_mixer_step_args *a)
{
    return a->memories_count > 0 ? a->memories[0].dh.dtype : a->closing_count > 0 ? a->closing[0].dh.dtype : DART_BF16;
}

bool mixer_layer_fits(const dart_mixer_step_args *a, const dart_mixer_step_args *first)
{
    const dart_dtype weights = first->in_proj.dtype, memories = mixer_memories_dtype(first);
    const bool sma = op_has(&first->sma_proj);
    const dart_tensor *f32[] = {&a->norm, &a->conv_weight, &a->dt_bias, &a->a_log, &a->d, &a->mixer_norm};
    if (a->B != first->B || a->G != 1 || a->N != LAYERS_N || a->P != LAYERS_P || a->K != LAYERS_TAPS) return false;
    if (a->W != first->W || a->H != first->H || a->S != first->S || op_has(&a->sma_proj) != sma) return false;
    if (a->eps != first->eps || a->sma_eps != first->sma_eps || a->dt_min != first->dt_min || a->dt_max != first->dt_max) return false;
    if (a->x.buffer != first->x.buffer || a->x.offset != first->x.offset || a->seq.buffer != first->seq.buffer || a->seq.offset != first->seq.offset)
        return false;
    if (op_has(&a->in_proj_rest) || op_has(&a->sma_proj_rest) || op_has(&a->proj) || op_has(&a->queries) || op_has(&a->y)) return false;
    if (a->x.dtype != DART_F32 || !mixer_is_16bit(weights)) return false;
    if (!mixer_lies_at(&a->in_proj, weights, 16) || !mixer_lies_at(&a->out_proj, weights, 16)) return false;
    for (size_t i = 0; i < COUNT_OF(f32); i++)
        if (!mixer_lies_at(f32[i], DART_F32, 4)) return false;
    if (op_has(&a->conv_bias) && !mixer_lies_at(&a->conv_bias, DART_F32, 4)) return false;
    if (a->tail.dtype == DART_I32 || !mixer_lies_at(&a->tail, first->tail.dtype, 2) || !mixer_lies_at(&a->h, DART_F32, 16)) return false;
    if (!sma) return true;
    if (!mixer_lies_at(&a->sma_proj, weights, 16) || !mixer_lies_at(&a->sma_conv_weight, DART_F32, 4)) return false;
    if (!mixer_lies_at(&a->sma_tail, first->tail.dtype, 2)) return false;
    if (op_has(&a->sma_conv_bias) && !mixer_lies_at(&a->sma_conv_bias, DART_F32, 4)) return false;
    if (!mixer_lies_at(&a->open, DART_F32, 16) || !mixer_lies_at(&a->open_decay, DART_F32, 4) || !mixer_is_16bit(memories)) return false;
    if (a->memories_count != first->memories_count || a->closing_count != first->closing_count) return false;
    for (uint32_t i = 0; i < a->memories_count && i < MIXER_RUNS; i++)
        if (a->memories[i].first != first->memories[i].first || a->memories[i].M != first->memories[i].M) return false;
    for (uint32_t i = 0; i < a->closing_count && i < MIXER_CLOSING; i++)
        if (a->closing[i].first != first->closing[i].first || a->closing[i].M != first->closing[i].M) return false;
    return fits_runs(a->memories, a->memories_count, MIXER_RUNS, memories) && fits_runs(a->closing, a->closing_count, MIXER_CLOSING, memories);
}

uint32_t mixer_outputs(const dart_mixer_step_args *a)
{
    const uint32_t R = 2 * a->H * LAYERS_P + 2 * LAYERS_N + a->H;
    return op_has(&a->sma_proj) ? R + LAYERS_N + LAYERS_P + 1 : R;
}

/* As many as the driver says that the device has multiprocessors, which run side by side; one where it does not say. Each has rows of in_proj and of
 * out_proj, for which the others wait: one that had none could be overtaken by words of the next layer. */
static uint32_t groups_of(const dart_device *device, const dart_mixer_step_args *a)
{
    const uint32_t known = device->info.multiprocessors;
    return (uint32_t)base_smaller(known != 0 ? known : 1, base_smaller(a->W, 2 * (uint64_t)a->H * LAYERS_P + 2 * LAYERS_N + a->H));
}

/* A workgroup for the scan of each head; those that are left share out the memories, to the nearest number: at least H / 2 workgroups have no
 * split. */
static uint32_t splits_of(const dart_device *device, const dart_mixer_step_args *a)
{
    const uint32_t workgroups = (groups_of(device, a) + a->H / 2) / a->H, splits = workgroups > 1 ? workgroups - 1 : 1;
    return splits < MIXER_MOST_SPLITS ? splits : MIXER_MOST_SPLITS;
}

/* Whether the places that a multiprocessor's weights of a layer take exceed its ring through CUDA, and the first four of in_proj are all there. */
static bool layers_hold(const dart_device *device, const dart_mixer_step_args *a)
{
    const uint64_t groups = groups_of(device, a), I = (uint64_t)a->H * LAYERS_P;
    const uint64_t outputs = mixer_outputs(a);
    const uint64_t in = base_ceil_div(base_ceil_div(outputs, groups), LAYERS_PLACE_ROWS);
    const uint64_t out = base_ceil_div(base_ceil_div(a->W, groups), I > a->W ? LAYERS_PLACE_ROWS / 2 : LAYERS_PLACE_ROWS);
    return a->W <= LAYERS_HELD_WIDTH && in + out > LAYERS_RING_WORDS / a->W && outputs / groups > 3 * LAYERS_PLACE_ROWS;
}

static uint32_t layers_traits(const dart_device *device, const dart_mixer_step_args *layers, uint32_t count)
{
    const dart_mixer_step_args *a = &layers[0];
    const uint32_t known = device->info.multiprocessors;
    uint64_t memories = 0;
    if (count == 0 || a->W == 0 || a->W % 256 != 0 || a->H == 0 || a->H % 4 != 0 || a->W > LAYERS_MOST_WIDTH ||
        (uint64_t)a->H * LAYERS_P > 2 * (uint64_t)a->W)
        return 0;
    /* Where heads and memories took turns on a multiprocessor, launches may take less time: nobody has measured it. */
    if (known != 0 && known < 2 * a->H) return 0;
    for (uint32_t i = 0; i < count; i++)
        if (layers[i].B != 1 || !mixer_layer_fits(&layers[i], a)) return 0;
    for (uint32_t i = 0; i < a->memories_count; i++) memories += a->memories[i].M;
    if (memories > (uint64_t)MOST_OF_A_SPLIT * splits_of(device, a)) return 0;
    return FITS_MIXER_LAYERS | (layers_hold(device, a) ? FITS_MIXER_HOLDS : 0);
}

bool mixer_layers_fit(const dart_stream *stream, const dart_mixer_step_args *layers, uint32_t count)
{
    const op_call call = {.stream = (dart_stream *)(uintptr_t)stream};
    const uint32_t traits = layers_traits(stream->device, layers, count);
    if (traits == 0 || stream->device->backend->memory_address == NULL) return false;
    /* With those that rows of the steps ask for, so that such a row can be asked for by name. */
    return op_prefers(&call, KERNEL_mixer_layers, KERNEL_mixer_project, 1, traits | FITS_MIXER_STEP | FITS_MIXER_HALF_STEP | FITS_MIXER_ROW16);
}

static void put_layer(ops_places *places, uint32_t layer, const dart_mixer_step_args *a, const mixer_window *window)
{
    const struct { uint32_t place; const dart_tensor *tensor; } tensors[] = {
        {PLACE_NORM, &a->norm}, {PLACE_IN_PROJ, &a->in_proj}, {PLACE_TAPS, &a->conv_weight}, {PLACE_BIAS, &a->conv_bias}, {PLACE_TAIL, &a->tail},
        {PLACE_DT_BIAS, &a->dt_bias}, {PLACE_A_LOG, &a->a_log}, {PLACE_D, &a->d}, {PLACE_MIXER_NORM, &a->mixer_norm},
        {PLACE_OUT_PROJ, &a->out_proj}, {PLACE_H, &a->h}, {PLACE_SMA_PROJ, &a->sma_proj}, {PLACE_SMA_TAPS, &a->sma_conv_weight},
        {PLACE_SMA_BIAS, &a->sma_conv_bias}, {PLACE_SMA_TAIL, &a->sma_tail}, {PLACE_OPEN, &a->open}, {PLACE_OPEN_DECAY, &a->open_decay}};
    for (size_t i = 0; i < COUNT_OF(tensors); i++) ops_places_put(places, layer, tensors[i].place, tensors[i].tensor);
    ops_places_put_runs(places, layer, PLACE_RUNS, a->memories, a->memories_count);
    ops_places_put_runs(places, layer, PLACE_CLOSING, a->closing, a->closing_count);
    if (window != NULL) {
        ops_places_put(places, layer, PLACE_ROWS, &window->rows);
        ops_places_put(places, layer, PLACE_HIN, &window->hin);
        ops_places_put(places, layer, PLACE_HIN_SCALE, &window->hin_scale);
        ops_places_put(places, layer, PLACE_STEPS, &window->steps);
    }
    ops_places_fill(places, layer, &a->h, 1ull << PLACE_BIAS | 1ull << PLACE_SMA_BIAS);
}

op_operand mixer_places(op_call *call, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count)
{
    ops_places places;
    if (!ops_places_begin(&places, call, RUN_PAIRS, windows != NULL ? WINDOW_PLACES : PLACES, count)) return (op_operand){0};
    ops_places_sizes(&places, 0, layers[0].memories, layers[0].memories_count);
    ops_places_sizes(&places, MIXER_RUNS, layers[0].closing, layers[0].closing_count);
    for (uint32_t i = 0; i < count; i++) put_layer(&places, i, &layers[i], windows != NULL ? &windows[i] : NULL);
    return ops_places_end(&places);
}

dart_status mixer_layers(dart_stream *stream, const dart_mixer_step_args *layers, uint32_t count)
{
    op_call call;
    if (op_begin(&call, stream, "mixer_layers") != DART_OK) return op_status(&call);
    const dart_mixer_step_args *a = &layers[0];
    const bool sma = op_has(&a->sma_proj);
    for (uint32_t i = 0; i < count; i++)
        if (mixer_check(stream, &layers[i]) != DART_OK) return op_status(&call);
    struct MixerLayersArgs k = {.flags = (op_has(&a->seq) ? HAS_SEQ : 0) | (sma ? HAS_OPEN : 0), .layers = count, .W = a->W, .H = a->H, .S = a->S,
                                .runs = sma ? a->memories_count : 0, .closing = sma ? a->closing_count : 0, .eps = a->eps,
                                .sma_eps = sma ? a->sma_eps : a->eps, .dt_min = a->dt_min, .dt_max = ops_most_step(a->dt_max)};
    op_kernel(&call, KERNEL_mixer_layers, 1, layers_traits(stream->device, layers, count));
    call.T0 = a->W;
    call.T1 = a->H + LAYERS_WORKGROUPS * groups_of(stream->device, a);
    const uint64_t I = (uint64_t)a->H * LAYERS_P, R = 2 * I + 2 * LAYERS_N + a->H;
    k.splits = k.runs > 0 ? splits_of(stream->device, a) : 0;
    const uint64_t words = POSTS_BEGIN + a->W + R + LAYERS_N + LAYERS_P + 1 + I + (uint64_t)a->H * (k.splits + 1) * (LAYERS_P + 2);
    const op_operand absent = {0}, posts = op_posts(&call, 2 * words), stuck = op_stuck(&call), places = mixer_places(&call, layers, NULL, count);
    const op_operand x = {"x", a->x, OP_F32, 1, a->W}, seq = {"seq", a->seq, OP_I32 | OP_OPTIONAL, 1, 2};
    const op_operand weight = {"in_proj", a->in_proj, OP_FLOAT, R, a->W}, tail = {"tail", a->tail, OP_FLOAT, LAYERS_TAPS - 1, I + 2 * LAYERS_N};
    const dart_memories *run = k.runs > 0 ? a->memories : k.closing > 0 ? a->closing : NULL;
    op_operand dh = {.name = "dh", .kinds = OP_FLOAT, .rows = 1, .width = (uint64_t)a->H * LAYERS_N * LAYERS_P};
    if (run != NULL) dh.of = run->dh;
    uint32_t at; /* of what is bound for its type */
    OP_LAUNCH(&call, &k, groups_of(stream->device, a), {BINDING_mixer_layers_weight, &weight, &at, NULL},
              {BINDING_mixer_layers_tail, &tail, &at, NULL}, {BINDING_mixer_layers_dh, run != NULL ? &dh : &absent, &at, NULL},
              OP_AT(mixer_layers, seq, &seq, k), OP_AT(mixer_layers, x, &x, k), OP_WHOLE(mixer_layers, places, &places),
              OP_WHOLE(mixer_layers, posts, &posts), OP_WHOLE(mixer_layers, stuck, &stuck));
    return op_end(&call);
}
