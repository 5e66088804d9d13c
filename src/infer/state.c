/* What a batch of sequences keeps: workspace, carried state, memory blocks. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens of a piece: a discrete GPU of 132 multiprocessors took 36 us for the in_proj of dart-130m at 1024, 59 us at 2048 and
 * 214 us at 8192 (H200, November 2026); elsewhere a piece fills the device earlier. */
enum { DEFAULT_ROWS = 1024, DEFAULT_ROWS_DISCRETE = 4096 };
enum { FIRST_BLOCK_TOKENS = 1024, ALIGNED_ELEMENTS = 64, DEFAULT_SLICE_MS = 100, FUSED_BATCH = 4 };

/* Memories and entering states of a piece: beyond this a piece is cut shorter, as small chunks would multiply the scratch. */
#define CHUNKS_BYTES (UINT64_C(64) << 20)
#define LOGITS_BYTES (UINT64_C(32) << 20)
/* Kernels count elements in 32 bits. */
#define LARGEST_BINDING (UINT64_C(1) << 32)

dart_status model_take(base_report *to, const base_report *from, dart_status status, const char *what)
{
    if (status == DART_OK) return status;
    char text[400];
    base_report_copy(from, text, sizeof text);
    base_lock(&to->mutex);
    snprintf(to->text, sizeof to->text, "%s: %s", what, text);
    base_unlock(&to->mutex);
    return status;
}

dart_status model_take_stream(dart_state *state, const dart_stream *stream, dart_status status, const char *what)
{
    if (status == DART_OK) return status;
    if (status == DART_TIMEOUT)
        return base_fail(&state->report, status, "%s: not done in %llu ns", what,
                         (unsigned long long)state->timeout_ns);
    char text[400] = "";
    dart_stream_error(stream, text, sizeof text);
    base_lock(&state->report.mutex);
    snprintf(state->report.text, sizeof state->report.text, "%s: %s", what, text);
    base_unlock(&state->report.mutex);
    return status;
}

/* ---- Sizes ---- */

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t memory_elements(const dart_model_config *c) { return (uint64_t)c->H * c->N * c->P; }

/* Bytes of the widest activation row. */
static uint64_t widest_row(const dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t proj = (uint64_t)model_config_in_proj(c) * dart_dtype_size(state->model->activations);
    const uint64_t inner = (uint64_t)model_config_inner(c) * 4, stream = (uint64_t)c->W * 4;
    return larger(proj, larger(inner, stream));
}

/* The largest batch whose every tensor one kernel can see. */
static uint64_t largest_batch(const dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t tail = (uint64_t)(c->K - 1) * model_config_conv(c) * dart_dtype_size(state->model->activations);
    const uint64_t state_or_row = larger(memory_elements(c) * 4, widest_row(state));
    return state->limit / larger(larger(state_or_row, tail), (uint64_t)c->V * 4);
}

/* Bytes of the states of all chunks of a piece: the longest one of one sequence, of all, or a token of all. */
static uint64_t chunks_bytes(const dart_state *state)
{
    const uint64_t memory = memory_elements(&state->model->config) * 4, token = state->B * memory;
    const uint64_t one = dart_ssd_chunks(state->rows, state->S, true) * memory;
    const uint64_t all = dart_ssd_chunks((uint32_t)base_ceil_div(state->rows, state->B), state->S, true) * token;
    /* Two chunks a sequence in any case: a piece of a chunk's length may touch as many, and token by token is far slower. */
    return smaller(smaller(state->limit, larger(CHUNKS_BYTES, 2 * token)), larger(larger(one, all), token));
}

static dart_status plan(dart_state *state, const dart_state_options *options)
{
    const dart_model *model = state->model;
    const dart_model_config *c = &model->config;
    base_report *report = &state->report;
    const uint64_t memory = memory_elements(c);
    state->limit = smaller(model->device->info.max_binding_bytes, LARGEST_BINDING);
    state->limit -= smaller(state->limit, BACKEND_ALIGN);
    state->B = options->B != 0 ? options->B : 1;
    state->S = options->S != 0 ? options->S : c->S;
    state->sma = c->sma && !options->no_sma;
    state->block = options->memory_block;
    state->timeout_ns = options->timeout_ns != 0 ? options->timeout_ns : UINT64_MAX;
    const uint64_t slice_ms = options->slice_ms != 0 ? options->slice_ms : DEFAULT_SLICE_MS;
    state->slice_ns = options->slice_ms != UINT32_MAX ? slice_ms * 1000000 : UINT64_MAX;
    /* Fewer launches cost repeated work in each of them: a good bargain where launches are dear. */
    state->fused = state->B <= FUSED_BATCH && model->device->info.type != DART_DEVICE_CPU;
    /* What memory costs, windows save; on CUDA nobody has compared yet. */
    const uint64_t rows = (uint64_t)state->B * dart_window_tokens() * (model_config_inner(c) + c->G * c->N);
    state->windowed = !state->fused && c->N % 8 == 0 && c->P % 8 == 0 && model->device->info.type != DART_DEVICE_CPU &&
                      model->device->info.backend != DART_BACKEND_CUDA &&
                      rows * dart_dtype_size(model->activations) <= state->limit;
    REQUIRE(report, state->S <= 1u << 30, "S %u must be at most 2^30", state->S);
    if (state->B > largest_batch(state))
        return base_fail(report, DART_UNSUPPORTED, "B %u: %s binds at most %llu bytes, which is B %llu of this model",
                         state->B, model->device->info.name,
                         (unsigned long long)model->device->info.max_binding_bytes,
                         (unsigned long long)largest_batch(state));
    const bool discrete = model->device->info.type == DART_DEVICE_DISCRETE;
    const uint64_t usual = discrete ? DEFAULT_ROWS_DISCRETE : DEFAULT_ROWS;
    const uint64_t wanted = larger(options->max_piece != 0 ? options->max_piece : usual, state->B);
    state->rows = (uint32_t)smaller(wanted, smaller(state->limit / widest_row(state), INT32_MAX));
    const uint64_t logits_fit = smaller(state->limit, LOGITS_BYTES) / ((uint64_t)c->V * 4);
    state->logits_rows = (uint32_t)larger(state->B, smaller(state->rows, logits_fit));
    state->chunks_bytes = chunks_bytes(state);
    state->step = 1;
    while (state->step * memory % ALIGNED_ELEMENTS != 0 ||
           (state->sma && (uint64_t)state->step * c->H % ALIGNED_ELEMENTS != 0))
        state->step++;
    return DART_OK;
}

static uint64_t place(uint64_t *at, uint64_t bytes)
{
    const uint64_t here = *at;
    *at += base_round_up(bytes, BACKEND_ALIGN);
    return here;
}

static void place_layer(dart_state *state)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t h = state->B * memory_elements(c) * 4, size = dart_dtype_size(state->model->activations);
    const uint64_t tails = (uint64_t)state->B * (c->K - 1) * size;
    uint64_t at = 0;
    state->h_at = place(&at, h);
    state->tail_at = place(&at, tails * model_config_conv(c));
    if (state->sma) {
        state->open_at = place(&at, h);
        state->decay_at = place(&at, (uint64_t)state->B * c->H * 4);
        state->sma_tail_at = place(&at, tails * model_config_sma_conv(c));
    }
    state->layer_bytes = at;
    const uint64_t slots = (uint64_t)state->B * dart_window_tokens();
    at = 0;
    state->rows_at = place(&at, slots * (model_config_inner(c) + c->G * c->N) * size);
    state->steps_at = place(&at, slots * c->H * 8);
    state->hin_at = place(&at, h / 4 * size);
    state->hin_scale_at = place(&at, size < 4 ? (uint64_t)state->B * c->H * c->N * 4 : 0);
    state->window_bytes = at;
}

static uint64_t work_size(const dart_state *state, model_work work)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t rows = state->rows, size = dart_dtype_size(state->model->activations);
    const uint64_t sma = state->sma;
    switch (work) {
    case WORK_SEQ: return (uint64_t)state->B * 8;
    case WORK_NEXT:
    case WORK_LIVE:
    case WORK_ENDS: return (uint64_t)state->B * 4;
    case WORK_SETTINGS: return (uint64_t)state->B * SETTING_WORDS * 4;
    case WORK_STOPS: return (uint64_t)state->B * STOP_WORDS * 4;
    case WORK_LOG: return (uint64_t)state->B * MODEL_LOG * 4;
    case WORK_LAST: return (uint64_t)state->B * c->W * size;
    case WORK_IDS: return rows * 4;
    case WORK_STREAM: return rows * c->W * 4;
    case WORK_INPUT: return rows * c->W * size;
    case WORK_PROJ: return rows * model_config_in_proj(c) * size;
    case WORK_CONV: return rows * model_config_conv(c) * size;
    case WORK_SMA_PROJ: return sma * rows * model_config_sma_proj(c) * size;
    case WORK_SMA_CONV: return sma * rows * model_config_sma_conv(c) * size;
    case WORK_Y: return rows * model_config_inner(c) * size;
    case WORK_R: return sma * rows * model_config_inner(c) * 4;
    case WORK_ROWS: return (uint64_t)state->logits_rows * 4;
    case WORK_PICKED: return (uint64_t)state->logits_rows * c->W * size;
    case WORK_LOGITS: return (uint64_t)state->logits_rows * c->V * 4;
    case WORK_COUNT: break;
    }
    return 0;
}

dart_tensor model_work_tensor(const dart_state *state, model_work work)
{
    dart_tensor tensor = {.buffer = state->work[work], .dtype = state->model->activations};
    switch (work) {
    case WORK_SEQ:
    case WORK_NEXT:
    case WORK_SETTINGS:
    case WORK_STOPS:
    case WORK_LIVE:
    case WORK_LOG:
    case WORK_IDS:
    case WORK_ENDS:
    case WORK_ROWS: tensor.dtype = DART_I32; break;
    case WORK_STREAM:
    case WORK_R:
    case WORK_LOGITS: tensor.dtype = DART_F32; break;
    default: break;
    }
    return tensor;
}

/* ---- Life ---- */

static dart_status allocate(dart_state *state)
{
    dart_device *device = state->model->device;
    const uint32_t layers = state->model->config.layers;
    state->positions = device_calloc(device, state->B, sizeof *state->positions);
    state->layers = device_calloc(device, layers, sizeof *state->layers);
    state->host_ids = device_calloc(device, state->rows, sizeof *state->host_ids);
    state->host_log = device_calloc(device, state->B, MODEL_LOG * sizeof *state->host_log);
    state->host_steps = device_calloc(device, state->B, MODEL_LOG * sizeof *state->host_steps);
    state->host_seq = device_calloc(device, state->B, 2 * sizeof *state->host_seq);
    state->host_next = device_calloc(device, state->B, sizeof *state->host_next);
    state->host_settings = device_calloc(device, state->B, SETTING_WORDS * sizeof *state->host_settings);
    state->host_stops = device_calloc(device, state->B, STOP_WORDS * sizeof *state->host_stops);
    state->ended = device_calloc(device, state->B, sizeof *state->ended);
    state->taken = device_calloc(device, state->B, sizeof *state->taken);
    state->host_ends = device_calloc(device, state->B, sizeof *state->host_ends);
    state->host_rows = device_calloc(device, state->logits_rows, sizeof *state->host_rows);
    state->host_places = device_calloc(device, state->logits_rows, sizeof *state->host_places);
    if (state->positions == NULL || state->layers == NULL || state->host_ids == NULL || state->host_log == NULL ||
        state->host_steps == NULL || state->host_seq == NULL || state->host_next == NULL || state->host_settings == NULL ||
        state->host_stops == NULL || state->ended == NULL || state->taken == NULL ||
        state->host_ends == NULL || state->host_rows == NULL || state->host_places == NULL)
        return DART_OUT_OF_MEMORY;
    dart_status status = DART_OK;
    for (uint32_t l = 0; l < layers && status == DART_OK; l++)
        status = dart_buffer_create(device, state->layer_bytes, &state->layers[l]);
    for (int w = 0; w < WORK_COUNT && status == DART_OK; w++) {
        const uint64_t bytes = work_size(state, (model_work)w);
        if (bytes > 0) status = dart_buffer_create(device, bytes, &state->work[w]);
        state->work_bytes += bytes;
    }
    if (status == DART_OK) status = dart_stream_create(device, NULL, &state->prefill);
    if (status == DART_OK) status = dart_stream_create(device, NULL, &state->ahead);
    if (status == DART_OK) status = dart_stream_create(device, NULL, &state->decode);
    return status;
}

dart_status dart_state_create(dart_model *model, const dart_state_options *options, dart_state **state)
{
    if (model == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&model->report, state != NULL, "dart_state_create: no place for the state");
    const dart_state_options defaults = {0};
    if (options == NULL) options = &defaults;
    dart_state *made = device_calloc(model->device, 1, sizeof *made);
    if (made == NULL) {
        const dart_status lost = atomic_load(&model->device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
        return model_take(&model->report, &model->device->report, lost, "dart_state_create");
    }
    if (base_report_init(&made->report, model->report.log) != DART_OK) {
        free(made);
        return base_fail(&model->report, DART_OUT_OF_MEMORY, "dart_state_create: no lock for a state");
    }
    made->model = model;
    const base_report *from = &made->report;
    dart_status status = DART_OK;
    TRY(plan(made, options));
    place_layer(made);
    from = &model->device->report;
    TRY(allocate(made));
    from = &made->report;
    TRY(dart_state_reset(made, -1));
    *state = made;
    return DART_OK;
fail:
    if (atomic_load(&model->device->lost)) status = DART_DEVICE_LOST;
    model_take(&model->report, from, status, "dart_state_create");
    dart_state_destroy(&made);
    return status;
}

static void destroy_block(dart_state *state, memory_block *block)
{
    if (block->buffers != NULL)
        for (uint32_t l = 0; l < state->model->config.layers; l++) dart_buffer_destroy(&block->buffers[l]);
    free(block->buffers);
    block->buffers = NULL;
}

void dart_state_destroy(dart_state **state)
{
    if (state == NULL || *state == NULL) return;
    dart_state *s = *state;
    dart_stream_destroy(&s->prefill);
    dart_stream_destroy(&s->ahead);
    dart_stream_destroy(&s->decode);
    for (uint32_t i = 0; i < s->blocks_count; i++) destroy_block(s, &s->blocks[i]);
    if (s->layers != NULL)
        for (uint32_t l = 0; l < s->model->config.layers; l++) dart_buffer_destroy(&s->layers[l]);
    for (uint32_t l = 0; s->windows != NULL && l < s->model->config.layers; l++) dart_buffer_destroy(&s->windows[l]);
    for (int w = 0; w < WORK_COUNT; w++) dart_buffer_destroy(&s->work[w]);
    free(s->blocks);
    free(s->windows);
    free(s->runs);
    free(s->layers);
    free(s->positions);
    free(s->host_ids);
    free(s->host_log);
    free(s->host_steps);
    free(s->host_seq);
    free(s->host_next);
    free(s->host_settings);
    free(s->host_stops);
    free(s->ended);
    free(s->taken);
    free(s->host_ends);
    free(s->host_rows);
    free(s->host_places);
    base_report_destroy(&s->report);
    free(s);
    *state = NULL;
}

size_t dart_state_error(const dart_state *state, char *text, size_t size)
{
    return state != NULL ? base_report_copy(&state->report, text, size) : 0;
}

dart_status model_state_usable(dart_state *state, const char *call)
{
    if (state->broken == DART_OK) return DART_OK;
    return base_fail(&state->report, state->broken, "%s: an earlier call failed half-way: reset all sequences first",
                     call);
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

dart_status model_state_run(dart_state *state, dart_stream *stream, uint32_t times, uint64_t *ns, const char *call)
{
    const dart_status status = dart_stream_submit_times(stream, times);
    return status == DART_OK ? model_state_wait(state, stream, ns, call) : model_take_stream(state, stream, status, call);
}

dart_status model_state_wait(dart_state *state, dart_stream *stream, uint64_t *ns, const char *call)
{
    dart_status status = dart_stream_wait(stream, state->timeout_ns);
    if (status == DART_OK && ns != NULL) status = dart_stream_elapsed(stream, ns);
    return model_take_stream(state, stream, status, call);
}

/* ---- Reset ---- */

static void clear(dart_stream *stream, dart_buffer *buffer, uint64_t bytes_at, dart_dtype dtype, uint32_t b, uint32_t B,
                  uint64_t width)
{
    const dart_tensor y = {.buffer = buffer, .dtype = dtype, .offset = bytes_at / dart_dtype_size(dtype) + b * width};
    dart_fill(stream, &(dart_fill_args){.T = B, .W = (uint32_t)width, .y = y});
}

/* Sets *ran once the device may have changed the state. */
static dart_status clear_sequences(dart_state *state, uint32_t b, uint32_t B, bool *ran)
{
    const dart_model_config *c = &state->model->config;
    const dart_dtype dtype = state->model->activations;
    const uint64_t memory = memory_elements(c), tail = c->K - 1;
    dart_stream *stream = state->prefill;
    dart_status status = dart_stream_begin(stream);
    if (status != DART_OK) return model_take_stream(state, stream, status, "dart_state_reset");
    for (uint32_t l = 0; l < c->layers; l++) {
        dart_buffer *layer = state->layers[l];
        clear(stream, layer, state->h_at, DART_F32, b, B, memory);
        clear(stream, layer, state->tail_at, dtype, b, B, tail * model_config_conv(c));
        if (!state->sma) continue;
        clear(stream, layer, state->open_at, DART_F32, b, B, memory);
        clear(stream, layer, state->decay_at, DART_F32, b, B, c->H);
        clear(stream, layer, state->sma_tail_at, dtype, b, B, tail * model_config_sma_conv(c));
    }
    /* Steps of the window need not be cleared: slots of a sequence at its start are taken before they count. What is not finite
     * must go, as it would be multiplied by zero. */
    const uint64_t kept = (uint64_t)dart_window_tokens() * (model_config_inner(c) + c->G * c->N);
    for (uint32_t l = 0; l < c->layers && state->in_windows; l++) {
        clear(stream, state->windows[l], state->rows_at, dtype, b, B, kept);
        clear(stream, state->windows[l], state->hin_at, dtype, b, B, memory);
        if (dart_dtype_size(dtype) < 4) clear(stream, state->windows[l], state->hin_scale_at, DART_F32, b, B, (uint64_t)c->H * c->N);
    }
    clear(stream, state->work[WORK_LAST], 0, dtype, b, B, c->W);
    /* A recording that failed says so here, before anything runs. */
    status = dart_stream_submit(stream);
    if (status != DART_OK) return model_take_stream(state, stream, status, "dart_state_reset");
    *ran = true;
    status = dart_stream_wait(stream, state->timeout_ns);
    return model_take_stream(state, stream, status, "dart_state_reset");
}

dart_status dart_state_reset(dart_state *state, int32_t b)
{
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, b < 0 || (uint32_t)b < state->B, "dart_state_reset: sequence %d of %u", b, state->B);
    dart_status status = b >= 0 ? model_state_usable(state, "dart_state_reset") : DART_OK;
    if (status != DART_OK) return status;
    if (b < 0) {
        /* A step or a slice that timed out may still run. */
        state->recorded = false;
        status = model_take_stream(state, state->decode, dart_stream_begin(state->decode), "dart_state_reset");
        if (status == DART_OK)
            status = model_take_stream(state, state->ahead, dart_stream_begin(state->ahead), "dart_state_reset");
    }
    const uint32_t first = b < 0 ? 0 : (uint32_t)b, count = b < 0 ? state->B : 1;
    bool ran = false;
    if (status == DART_OK) status = clear_sequences(state, first, count, &ran);
    if (status != DART_OK) {
        if (ran) state->broken = status;
        return status;
    }
    state->seq_current = false;
    state->chosen = false;
    state->judged = false;
    for (uint32_t i = first; i < first + count; i++) {
        state->positions[i] = 0;
        state->ended[i] = false;
    }
    if (b < 0) state->broken = DART_OK;
    if (b < 0) state->in_windows = false;
    return DART_OK;
}

/* ---- Windows ---- */

dart_status model_windows_reserve(dart_state *state, const char *call)
{
    dart_device *device = state->model->device;
    const dart_model_config *c = &state->model->config;
    if (!state->windowed || state->windows != NULL) return DART_OK;
    dart_status status = DART_OK;
    dart_buffer **made = device_calloc(device, c->layers, sizeof *made);
    if (made == NULL) status = atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    for (uint32_t l = 0; l < c->layers && status == DART_OK; l++) status = dart_buffer_create(device, state->window_bytes, &made[l]);
    if (status == DART_OK) {
        state->windows = made;
        return DART_OK;
    }
    for (uint32_t l = 0; made != NULL && l < c->layers; l++) dart_buffer_destroy(&made[l]);
    free(made);
    return model_take(&state->report, &device->report, status, call);
}

/* seq is the state's own then. */
static dart_status fold_windows(dart_state *state, dart_window_mode mode, const char *call)
{
    const dart_model_config *c = &state->model->config;
    dart_stream *stream = state->prefill;
    const uint32_t slots = state->B * dart_window_tokens(), kept = model_config_inner(c) + c->G * c->N;
    dart_status status = DART_OK;
    TRY(model_write_seq(state, call));
    TRY(model_take_stream(state, stream, dart_stream_begin(stream), call));
    for (uint32_t l = 0; l < c->layers && mode == DART_WINDOW_OPEN; l++)
        clear(stream, state->windows[l], state->rows_at, state->model->activations, 0, slots, kept);
    TRY(model_take_stream(state, stream, model_record_fold(state, stream, mode), call));
    state->broken = DART_INTERNAL;
    TRY(model_state_run(state, stream, 1, NULL, call));
    state->broken = DART_OK;
    state->in_windows = mode == DART_WINDOW_OPEN;
fail:
    if (state->broken == DART_INTERNAL) state->broken = status;
    return status;
}

dart_status model_windows_open(dart_state *state, const char *call)
{
    if (!state->windowed || state->in_windows) return DART_OK;
    const dart_status status = model_windows_reserve(state, call);
    return status == DART_OK ? fold_windows(state, DART_WINDOW_OPEN, call) : status;
}

dart_status model_windows_close(dart_state *state, const char *call)
{
    return state->in_windows ? fold_windows(state, DART_WINDOW_CLOSE, call) : DART_OK;
}

/* ---- Memory blocks ---- */

static dart_status add_block(dart_state *state, uint32_t M)
{
    dart_device *device = state->model->device;
    const dart_model_config *c = &state->model->config;
    const uint32_t had = state->blocks_count;
    const uint64_t memories = (uint64_t)state->B * M, size = dart_dtype_size(state->model->memories);
    const uint64_t dh_bytes = base_round_up(memories * memory_elements(c) * size, BACKEND_ALIGN);
    memory_block block = {.first = had > 0 ? state->blocks[had - 1].first + state->blocks[had - 1].M : 0, .M = M,
                         .scale_at = dh_bytes / 4};
    dart_status status = device_fault(device);
    if (status != DART_OK) return status;
    memory_block *blocks = realloc(state->blocks, (had + 1) * sizeof *blocks);
    if (blocks == NULL) return base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory for %u blocks", had + 1);
    state->blocks = blocks;
    dart_memories *runs = realloc(state->runs, 2 * (size_t)(had + 1) * sizeof *runs);
    if (runs == NULL) return base_fail(&device->report, DART_OUT_OF_MEMORY, "no host memory for %u blocks", had + 1);
    state->runs = runs;
    block.buffers = device_calloc(device, c->layers, sizeof *block.buffers);
    if (block.buffers == NULL) return atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY;
    for (uint32_t l = 0; l < c->layers && status == DART_OK; l++)
        status = dart_buffer_create(device, dh_bytes + memories * c->H * c->N * 4, &block.buffers[l]);
    if (status != DART_OK) {
        destroy_block(state, &block);
        return status;
    }
    state->blocks[had] = block;
    state->blocks_count++;
    return DART_OK;
}

static uint64_t room_for(const dart_state *state)
{
    if (state->blocks_count == 0) return 0;
    const memory_block *last = &state->blocks[state->blocks_count - 1];
    return (uint64_t)last->first + last->M;
}

/* Blocks without memories give way to one that holds all: every block is a launch of the attention, and needs r merged. */
static void drop_empty_blocks(dart_state *state)
{
    for (uint32_t b = 0; b < state->B; b++)
        if ((uint64_t)state->positions[b] >= state->S) return;
    for (uint32_t i = 0; i < state->blocks_count; i++) destroy_block(state, &state->blocks[i]);
    state->blocks_count = 0;
    state->recorded = false;
}

dart_status model_state_reserve(dart_state *state, uint64_t count, const char *call)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t widest = larger(memory_elements(c) * dart_dtype_size(state->model->memories),
                                   (uint64_t)c->H * c->N * 4);
    const uint64_t most = state->limit / (widest * state->B);
    if (room_for(state) < count) drop_empty_blocks(state);
    for (;;) {
        const uint64_t have = room_for(state);
        if (have >= count) return DART_OK;
        const uint64_t growth = larger(base_ceil_div(FIRST_BLOCK_TOKENS, state->S), have / 2);
        const uint64_t wanted = state->block != 0 ? state->block : larger(growth, count - have);
        const dart_status status = add_block(state, (uint32_t)larger(1, smaller(wanted, most)));
        if (status != DART_OK) return model_take(&state->report, &state->model->device->report, status, call);
    }
}

/* ---- Queries ---- */

uint64_t dart_state_position(const dart_state *state, uint32_t b)
{
    return state != NULL && b < state->B ? (uint64_t)state->positions[b] : 0;
}

uint64_t dart_state_bytes(const dart_state *state, dart_state_kind kind)
{
    if (state == NULL) return 0;
    const dart_model_config *c = &state->model->config;
    const uint64_t memory = memory_elements(c), activation = dart_dtype_size(state->model->activations);
    const uint64_t stored = dart_dtype_size(state->model->memories), B = state->B;
    const uint64_t one_memory = (memory * stored + (uint64_t)c->H * c->N * 4) * c->layers;
    uint64_t tokens = 0, closed = 0, room = 0;
    for (uint32_t b = 0; b < state->B; b++) {
        tokens += (uint64_t)state->positions[b];
        closed += (uint64_t)state->positions[b] / state->S;
    }
    for (uint32_t i = 0; i < state->blocks_count; i++) room += B * state->blocks[i].M;
    switch (kind) {
    case DART_STATE_CONVOLUTION:
        return B * (c->K - 1) * ((uint64_t)model_config_conv(c) + (state->sma ? model_config_sma_conv(c)
                                                                   : 0)) * activation * c->layers;
    case DART_STATE_RECURRENT:
        return (B * (state->sma ? 2 * memory + c->H : memory) * 4 + (state->windows != NULL ? state->window_bytes : 0)) * c->layers;
    case DART_STATE_MEMORIES: return room * one_memory;
    case DART_STATE_MEMORIES_USED: return state->sma ? closed * one_memory : 0;
    case DART_STATE_WORKSPACE: return state->work_bytes;
    case DART_STATE_KV_CACHE: return tokens * 2 * model_config_inner(c) * stored * c->layers;
    }
    return 0;
}
