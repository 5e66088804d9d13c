/* How large everything of a state is, and the buffers of one piece. */
#include "state.h"

#include "ops/window/window.h"

/* Tokens of a piece: a discrete GPU of 132 multiprocessors took 36 us for the in_proj of dart-130m at 1024, 59 us at 2048 and
 * 214 us at 8192 (H200, November 2026); elsewhere a piece fills the device earlier. */
enum { DEFAULT_ROWS = 1024, DEFAULT_ROWS_DISCRETE = 4096 };
enum { ALIGNED_ELEMENTS = 64, DEFAULT_SLICE_MS = 100, FUSED_BATCH = 4 };

/* Before anything has been measured, and where a layer of a whole piece takes too long, submissions are bounded by work (device_assumed_rate).
 * Nothing is cut for a processor: its submissions keep no screen waiting. */
enum { PIECE_STEP = 64 };

/* Memories and entering states of a piece: beyond this a piece is cut shorter, as small chunks would multiply the scratch. */
#define CHUNKS_BYTES (UINT64_C(64) << 20)
#define LOGITS_BYTES (UINT64_C(32) << 20)
/* Kernels count elements in 32 bits. */
#define LARGEST_BINDING (UINT64_C(1) << 32)

typedef struct work_shape {
    enum { PER_SEQUENCE, PER_TOKEN, PER_LOGITS } per; /* what a row belongs to */
    dart_dtype dtype;
    uint64_t width; /* elements of a row, 0: the state does without */
} work_shape;

static work_shape shape_of(const dart_state *state, model_work work)
{
    const dart_model_config *c = &state->model->config;
    const dart_dtype activations = state->model->activations;
    switch (work) {
    case WORK_CU:
    case WORK_PAIRS:
    case WORK_SEQ: return (work_shape){PER_SEQUENCE, DART_I32, 2};
    case WORK_NEXT:
    case WORK_LIVE:
    case WORK_ENDS: return (work_shape){PER_SEQUENCE, DART_I32, 1};
    case WORK_SETTINGS: return (work_shape){PER_SEQUENCE, DART_I32, SETTING_WORDS};
    case WORK_STOPS: return (work_shape){PER_SEQUENCE, DART_I32, STOP_WORDS};
    case WORK_LOG: return (work_shape){PER_SEQUENCE, DART_I32, MODEL_LOG};
    case WORK_SEEN: return (work_shape){PER_SEQUENCE, DART_I32, base_ceil_div(c->V, 32)};
    case WORK_LAST: return (work_shape){PER_SEQUENCE, activations, c->W};
    case WORK_IDS: return (work_shape){PER_TOKEN, DART_I32, 1};
    case WORK_STREAM: return (work_shape){PER_TOKEN, DART_F32, c->W};
    case WORK_INPUT: return (work_shape){PER_TOKEN, activations, c->W};
    case WORK_PROJ: return (work_shape){PER_TOKEN, activations, c->transformer ? model_config_qkv(c) : model_config_in_proj_row(c)};
    case WORK_CONV: return (work_shape){PER_TOKEN, activations, c->transformer ? 0 : model_config_conv(c)};
    case WORK_MLP: return (work_shape){PER_TOKEN, activations, model_config_mlp(c)};
    case WORK_HIDDEN: return (work_shape){PER_TOKEN, activations, c->F};
    case WORK_SMA_PROJ: return (work_shape){PER_TOKEN, activations, state->sma ? model_config_sma_proj(c) : 0};
    case WORK_SMA_CONV: return (work_shape){PER_TOKEN, activations, state->sma ? model_config_sma_conv(c) : 0};
    case WORK_Y: return (work_shape){PER_TOKEN, activations, model_config_inner(c)};
    case WORK_R: return (work_shape){PER_TOKEN, DART_F32, state->sma ? model_config_inner(c) : 0};
    case WORK_ROWS: return (work_shape){PER_LOGITS, DART_I32, 1};
    case WORK_PICKED: return (work_shape){PER_LOGITS, activations, c->W};
    case WORK_LOGITS: return (work_shape){PER_LOGITS, DART_F32, c->V};
    case WORK_TARGETS: return (work_shape){PER_LOGITS, DART_I32, 1};
    case WORK_LOG_Z:
    case WORK_TARGET: return (work_shape){PER_LOGITS, DART_F32, 1};
    case WORK_TOP_IDS: return (work_shape){PER_LOGITS, DART_I32, DART_MOST_TOP};
    case WORK_TOP: return (work_shape){PER_LOGITS, DART_F32, DART_MOST_TOP};
    case WORK_COUNT: break;
    }
    return (work_shape){.dtype = DART_F32};
}

static uint64_t row_bytes(const work_shape *shape) { return shape->width * dart_dtype_size(shape->dtype); }

/* Bytes of the widest row of a token. */
static uint64_t widest_row(const dart_state *state)
{
    uint64_t widest = 0;
    for (int w = 0; w < WORK_COUNT; w++) {
        const work_shape shape = shape_of(state, (model_work)w);
        if (shape.per == PER_TOKEN) widest = base_larger(widest, row_bytes(&shape));
    }
    return widest;
}

/* The largest batch whose every tensor one kernel can see. */
static uint64_t largest_batch(const dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t tail = (uint64_t)model_config_tail(c) * model_config_conv(c) * dart_dtype_size(state->model->activations);
    const uint64_t state_or_row = base_larger(model_config_memory(c) * 4, widest_row(state));
    return state->limit / base_larger(base_larger(state_or_row, tail), (uint64_t)c->V * 4);
}

/* Bytes of the states of all chunks of a piece: the longest one of one sequence, of all, or a token of all. */
static uint64_t chunks_bytes(const dart_state *state)
{
    const uint64_t memory = model_config_memory(&state->model->config) * 4, token = state->B * memory;
    const uint64_t one = dart_ssd_chunks(state->rows, state->S, true) * memory;
    const uint64_t all = dart_ssd_chunks((uint32_t)base_ceil_div(state->rows, state->B), state->S, true) * token;
    /* Two chunks a sequence in any case: a piece of a chunk's length may touch as many, and token by token is far slower. */
    return base_smaller(base_smaller(state->limit, base_larger(CHUNKS_BYTES, 2 * token)), base_larger(base_larger(one, all), token));
}

static uint64_t place(uint64_t *at, uint64_t bytes)
{
    const uint64_t here = *at;
    *at += base_round_up(bytes, BACKEND_ALIGN);
    return here;
}

uint64_t model_window_elements(const dart_model_config *config)
{
    return (uint64_t)dart_window_tokens() * (model_config_inner(config) + config->G * config->N);
}

static void place_layer(dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t h = state->B * model_config_memory(c) * 4, size = dart_dtype_size(state->model->activations);
    const uint64_t tails = (uint64_t)state->B * model_config_tail(c) * size;
    uint64_t at = 0;
    if (c->transformer) return; /* what it keeps lies in its cache */
    state->h_at = place(&at, h);
    state->tail_at = place(&at, tails * model_config_conv(c));
    if (state->sma) {
        state->open_at = place(&at, h);
        state->decay_at = place(&at, (uint64_t)state->B * c->H * 4);
        state->sma_tail_at = place(&at, tails * model_config_sma_conv(c));
    }
    state->layer_bytes = at;
    at = 0;
    state->rows_at = place(&at, state->B * model_window_elements(c) * size);
    state->steps_at = place(&at, (uint64_t)state->B * dart_window_tokens() * c->H * 8);
    state->hin_at = place(&at, h / 4 * size);
    state->hin_scale_at = place(&at, size < 4 ? (uint64_t)state->B * c->H * c->N * 4 : 0);
    state->window_bytes = at;
}

/* The pieces of a call depend on what it asks for and on the device, never on measured times: results have the same bits every time. */
static void plan_work(dart_state *state)
{
    const dart_device_info *info = &state->model->device->info;
    state->token_work = model_config_work(&state->model->config, state->S, state->sma, &state->context_work);
    state->weights_work = model_bytes_work(state, state->token_work / 2 * (double)dart_dtype_size(state->model->activations));
    if (state->slice_ns == UINT64_MAX || info->type == DART_DEVICE_CPU) return;
    state->most_work = DEVICE_SLICE_SHARE * (double)state->slice_ns * 1e-9 * device_assumed_rate(info);
}

double model_step_layer(const dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    const dart_device_info *info = &state->model->device->info;
    const double weights = state->token_work / 2 * (double)dart_dtype_size(state->model->activations), memory = (double)model_config_memory(c);
    double bytes = weights, work = 0;
    for (uint32_t b = 0; b < state->B; b++) {
        const double position = state->positions[b];
        work += state->token_work + state->context_work * position;
        bytes += memory * 4 * (state->sma ? 4 : 2); /* h and the open memory, read and written */
        const double size = (double)dart_dtype_size(state->model->memories);
        bytes += c->transformer ? 2 * position * c->G * c->P * size : state->sma ? position / state->S * memory * size : 0;
    }
    return 1e9 * (work / device_assumed_rate(info) + bytes / device_assumed_bytes(info));
}

double model_step_head(const dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    const dart_device_info *info = &state->model->device->info;
    const double elements = (double)c->V * c->W;
    return 1e9 * (2 * elements * state->B / device_assumed_rate(info) +
                  elements * (double)dart_dtype_size(state->model->activations) / device_assumed_bytes(info));
}

static double rows_work(const dart_state *state, uint64_t rows, uint64_t context)
{
    return (double)rows * (state->token_work + state->context_work * (double)context);
}

double model_bytes_work(const dart_state *state, double bytes)
{
    const dart_device_info *info = &state->model->device->info;
    return bytes / device_assumed_bytes(info) * device_assumed_rate(info);
}

double model_piece_work(const dart_state *state, uint64_t rows, uint64_t context)
{
    return rows_work(state, rows, context) + state->weights_work;
}

uint32_t model_piece_rows(const dart_state *state, uint64_t context)
{
    if (!(state->most_work > 0)) return state->rows;
    const double fit = state->most_work / rows_work(state, 1, context);
    if (fit >= state->rows) return state->rows;
    const uint32_t rows = fit > 1 ? (uint32_t)fit : 1;
    const uint32_t even = rows > PIECE_STEP ? rows - rows % PIECE_STEP : rows;
    return even < state->rows ? even : state->rows;
}

dart_status model_state_plan(dart_state *state, const dart_state_options *options)
{
    const dart_model *model = state->model;
    const dart_model_config *c = &model->config;
    base_report *report = &state->report;
    const uint64_t memory = model_config_memory(c);
    state->limit = base_smaller(model->device->info.max_binding_bytes, LARGEST_BINDING);
    state->limit -= base_smaller(state->limit, BACKEND_ALIGN);
    state->B = options->B != 0 ? options->B : 1;
    state->S = c->transformer ? 1 : options->S != 0 ? options->S : c->S;
    state->sma = c->sma && !options->no_sma;
    state->keeps_queries = options->keep_queries && state->sma;
    state->block = options->memory_block;
    state->marks_most = options->marks != 0 ? options->marks : 1;
    state->timeout_ns = options->timeout_ns != 0 ? options->timeout_ns : UINT64_MAX;
    const uint64_t slice_ms = options->slice_ms != 0 ? options->slice_ms : DEFAULT_SLICE_MS;
    state->slice_ns = options->slice_ms != UINT32_MAX ? slice_ms * 1000000 : UINT64_MAX;
    /* Fewer launches cost repeated work in each of them: a good bargain where launches are dear. dart_mixer_step reads with the scan's c and takes
     * its matrices whole. */
    const uint64_t matrix = (uint64_t)model_config_in_proj(c) * c->W * dart_dtype_size(model->weights_dtype);
    state->fused = state->B <= FUSED_BATCH && matrix <= state->limit && model->device->info.type != DART_DEVICE_CPU && !c->transformer &&
                   !(state->sma && c->independent_c) && !state->keeps_queries && !(model->quantised && c->P % 8 != 0);
    const dart_dtype activations = model->activations;
    const dart_window_args windows = {.B = state->B, .N = c->N, .P = c->P, .rows = {.dtype = activations}, .hin = {.dtype = activations}};
    const bool pay = window_pays(model->device, &windows);
    state->windowed = !state->fused && !c->transformer && c->N % 8 == 0 && c->P % 8 == 0 && model->device->info.type != DART_DEVICE_CPU &&
                      pay && state->B * model_window_elements(c) * dart_dtype_size(model->activations) <= state->limit;
    REQUIRE(report, state->marks_most <= 1024, "marks %u must be at most 1024", state->marks_most);
    REQUIRE(report, state->S <= 1u << 30, "S %u must be at most 2^30", state->S);
    if (state->B > largest_batch(state))
        return base_fail(report, DART_UNSUPPORTED, "B %u: %s binds at most %llu bytes, which is B %llu of this model",
                         state->B, model->device->info.name,
                         (unsigned long long)model->device->info.max_binding_bytes,
                         (unsigned long long)largest_batch(state));
    const bool discrete = model->device->info.type == DART_DEVICE_DISCRETE;
    const uint64_t usual = discrete ? DEFAULT_ROWS_DISCRETE : DEFAULT_ROWS;
    const uint64_t wanted = base_larger(options->max_piece != 0 ? options->max_piece : usual, state->B);
    state->rows = (uint32_t)base_smaller(wanted, base_smaller(state->limit / widest_row(state), INT32_MAX));
    plan_work(state);
    uint64_t logits_fit = base_smaller(state->limit, LOGITS_BYTES) / ((uint64_t)c->V * 4);
    if (state->most_work > 0) logits_fit = base_smaller(logits_fit, (uint64_t)(state->most_work / (2.0 * c->V * c->W)));
    state->logits_rows = (uint32_t)base_larger(state->B, base_smaller(state->rows, logits_fit));
    state->chunks_bytes = chunks_bytes(state);
    state->step = 1;
    while (state->step * memory % ALIGNED_ELEMENTS != 0 ||
           (state->sma && (uint64_t)state->step * c->H % ALIGNED_ELEMENTS != 0))
        state->step++;
    place_layer(state);
    return DART_OK;
}

uint64_t model_work_bytes(const dart_state *state, model_work work)
{
    const work_shape shape = shape_of(state, work);
    const uint64_t rows = shape.per == PER_SEQUENCE ? state->B : shape.per == PER_TOKEN ? state->rows : state->logits_rows;
    return rows * row_bytes(&shape);
}

dart_tensor model_work_tensor(const dart_state *state, model_work work)
{
    return (dart_tensor){.buffer = state->work[work], .dtype = shape_of(state, work).dtype};
}

dart_status model_state_write(dart_state *state, model_work work, uint64_t first, const int32_t *data, uint64_t count,
                              const char *call)
{
    const dart_status status = dart_buffer_write(state->work[work], first * 4, data, count * 4);
    return model_take(&state->report, &state->model->device->report, status, call);
}

dart_status model_state_read(dart_state *state, model_work work, uint64_t first, void *data, uint64_t count,
                             const char *call)
{
    const dart_status status = dart_buffer_read(state->work[work], first * 4, data, count * 4);
    return model_take(&state->report, &state->model->device->report, status, call);
}
