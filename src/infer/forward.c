/* The block and what surrounds it, recorded for a piece of some sequences. */
#include "state.h"
#include "runtime/stream.h"

/* A part of the batch going through one layer. */
typedef struct layer_pass {
    dart_state *state;
    dart_stream *stream;
    const dart_model_config *c;
    uint32_t layer, b, B, L, T; /* T = B L */
    bool windowed;
    model_span span;
} layer_pass;

/* A tensor of the layer's carried state, from sequence b on. */
static dart_tensor carried(const layer_pass *p, uint64_t bytes_at, dart_dtype dtype, uint64_t width)
{
    const uint64_t offset = bytes_at / dart_dtype_size(dtype) + p->b * width;
    return (dart_tensor){.buffer = p->state->layers[p->layer], .dtype = dtype, .offset = offset};
}

/* Columns of a row of the workspace. */
static dart_tensor columns(const layer_pass *p, model_work work, uint64_t first, uint64_t row)
{
    dart_tensor tensor = model_work_tensor(p->state, work);
    tensor.offset = first;
    tensor.row = row;
    return tensor;
}

static dart_tensor seq_of(const dart_state *state, uint32_t b)
{
    dart_tensor seq = model_work_tensor(state, WORK_SEQ);
    seq.offset = 2 * (uint64_t)b;
    return seq;
}

static dart_memories memories_of(const layer_pass *p, uint32_t block)
{
    const model_block *from = &p->state->blocks[block];
    const dart_model_config *c = p->c;
    const uint64_t before = (uint64_t)p->b * from->M;
    dart_buffer *buffer = from->buffers[p->layer];
    return (dart_memories){
        .first = from->first, .M = from->M,
        .dh = {.buffer = buffer, .dtype = p->state->model->memories, .offset = before * c->H * c->N * c->P},
        .scale = {.buffer = buffer, .dtype = DART_F32, .offset = from->scale_at + before * c->H * c->N}};
}

static dart_norm_linear_args normalised_product(const layer_pass *p, uint32_t outputs, model_role weight, model_work y)
{
    const dart_model *model = p->state->model;
    return (dart_norm_linear_args){
        .T = p->T, .IN = p->c->W, .OUT = outputs, .eps = p->c->eps, .x = model_work_tensor(p->state, WORK_STREAM),
        .norm = *model_weight(model, p->layer, MODEL_NORM), .weight = *model_weight(model, p->layer, weight), .y = model_work_tensor(p->state, y)};
}

/* Do products normalise what they read? A launch less to wait for. */
static bool normalises(const layer_pass *p)
{
    const dart_norm_linear_args args = normalised_product(p, model_config_in_proj(p->c), MODEL_IN_PROJ, WORK_PROJ);
    return p->windowed && op_norm_linear_has_matrices(p->state->model->device, &args);
}

static void product(const layer_pass *p, bool normalised, uint32_t outputs, model_role weight, model_work y)
{
    const dart_norm_linear_args args = normalised_product(p, outputs, weight, y);
    if (normalised)
        dart_norm_linear(p->stream, &args);
    else
        dart_linear(p->stream, &(dart_linear_args){
            .T = p->T, .IN = args.IN, .OUT = outputs, .x = model_work_tensor(p->state, WORK_INPUT), .weight = args.weight, .y = args.y});
}

/* Launches of one kind stand side by side, as those of the scan's input and of SMA's depend on nothing of each other. */
static void project(const layer_pass *p)
{
    const dart_state *state = p->state;
    const dart_model_config *c = p->c;
    const bool normalised = normalises(p);
    if (!normalised)
        dart_rms_norm(p->stream, &(dart_rms_norm_args){
            .T = p->T, .W = c->W, .eps = c->eps, .x = model_work_tensor(state, WORK_STREAM),
            .weight = *model_weight(state->model, p->layer, MODEL_NORM), .y = model_work_tensor(state, WORK_INPUT)});
    product(p, normalised, model_config_in_proj(c), MODEL_IN_PROJ, WORK_PROJ);
    if (state->sma) product(p, normalised, model_config_sma_proj(c), MODEL_SMA_PROJ, WORK_SMA_PROJ);
}

/* Of the scan's input and of SMA's; a single token's tails are replaced at once, those of a piece by replace_tails. */
static dart_conv_args scan_conv(const layer_pass *p)
{
    const dart_state *state = p->state;
    const dart_model_config *c = p->c;
    const dart_model *model = state->model;
    const uint32_t channels = model_config_conv(c);
    return (dart_conv_args){
        .B = p->B, .L = p->L, .C = channels, .K = c->K, .keep_tail = p->L > 1,
        .x = columns(p, WORK_PROJ, model_config_inner(c), model_config_in_proj(c)),
        .weight = *model_weight(model, p->layer, MODEL_CONV_WEIGHT),
        .bias = *model_weight(model, p->layer, MODEL_CONV_BIAS),
        .tail = carried(p, state->tail_at, model->activations, (uint64_t)(c->K - 1) * channels),
        .seq = seq_of(state, p->b), .y = model_work_tensor(state, WORK_CONV)};
}

static dart_conv_args sma_conv(const layer_pass *p)
{
    const dart_state *state = p->state;
    const dart_model_config *c = p->c;
    const dart_model *model = state->model;
    const uint32_t channels = model_config_sma_conv(c);
    return (dart_conv_args){
        .B = p->B, .L = p->L, .C = channels, .K = c->K, .keep_tail = p->L > 1,
        .x = columns(p, WORK_SMA_PROJ, 0, model_config_sma_proj(c)),
        .weight = *model_weight(model, p->layer, MODEL_SMA_CONV_WEIGHT),
        .bias = *model_weight(model, p->layer, MODEL_SMA_CONV_BIAS),
        .tail = carried(p, state->sma_tail_at, model->activations, (uint64_t)(c->K - 1) * channels),
        .seq = seq_of(state, p->b), .y = model_work_tensor(state, WORK_SMA_CONV)};
}

/* One token of every sequence through the windows. closing: room for the runs that chunks close into; NULL: none do. */
static dart_window_args window_args(const layer_pass *p, dart_window_mode mode, dart_memories *closing)
{
    const dart_state *state = p->state;
    const dart_model_config *c = p->c;
    const dart_model *model = state->model;
    const uint64_t I = model_config_inner(c), row = model_config_conv(c), memory = (uint64_t)c->H * c->N * c->P;
    const dart_conv_args conv = scan_conv(p);
    const dart_tensor absent = {0};
    dart_buffer *window = state->windows[p->layer];
    const uint32_t count = closing != NULL ? p->span.close_to - p->span.close_from : 0;
    for (uint32_t i = 0; i < count; i++) closing[i] = memories_of(p, p->span.close_from + i);
    const dart_dtype dtype = model->activations;
    const uint32_t size = (uint32_t)dart_dtype_size(dtype);
    return (dart_window_args){
        .B = p->B, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .K = c->K, .S = state->S, .mode = mode, .dt_min = c->dt_min,
        .dt_max = c->dt_max, .eps = c->sma_eps > 0 ? c->sma_eps : c->eps, .x = conv.x,
        .dt = columns(p, WORK_PROJ, I + row, model_config_in_proj(c)), .conv_weight = conv.weight, .conv_bias = conv.bias,
        .tail = conv.tail, .a_log = *model_weight(model, p->layer, MODEL_A_LOG),
        .dt_bias = *model_weight(model, p->layer, MODEL_DT_BIAS), .d = *model_weight(model, p->layer, MODEL_D),
        .seq = conv.seq, .conv = conv.y, .y = model_work_tensor(state, WORK_Y), .h = carried(p, state->h_at, DART_F32, memory),
        .open = state->sma ? carried(p, state->open_at, DART_F32, memory) : absent,
        .open_decay = state->sma ? carried(p, state->decay_at, DART_F32, c->H) : absent,
        .rows = {.buffer = window, .dtype = dtype, .offset = state->rows_at / size},
        .steps = {.buffer = window, .dtype = DART_F32, .offset = state->steps_at / 4},
        .hin = {.buffer = window, .dtype = dtype, .offset = state->hin_at / size},
        .hin_scale = size == 4 ? absent : (dart_tensor){.buffer = window, .dtype = DART_F32, .offset = state->hin_scale_at / 4},
        .closing = closing, .closing_count = count};
}

static void convolve(const layer_pass *p)
{
    const dart_conv_args scan_args = scan_conv(p), sma_args = sma_conv(p);
    if (p->windowed) {
        const dart_window_args window = window_args(p, DART_WINDOW_STEP, NULL);
        dart_window_append(p->stream, &window);
    } else {
        dart_conv(p->stream, &scan_args);
    }
    if (p->state->sma) dart_conv(p->stream, &sma_args);
}

/* Beside launches that come later anyway: right behind the convolutions it would cost barriers of its own. */
static void replace_tails(const layer_pass *p)
{
    const dart_conv_args scan_args = scan_conv(p), sma_args = sma_conv(p);
    if (p->L == 1) return;
    dart_conv_tail(p->stream, &scan_args);
    if (p->state->sma) dart_conv_tail(p->stream, &sma_args);
}

/* Memories of chunks that close go straight to their blocks, before the attention reads them: a token looks only at chunks
 * before its own, and those that close within this piece are among them. */
static void scan(const layer_pass *p)
{
    dart_state *state = p->state;
    const dart_model_config *c = p->c;
    const dart_model *model = state->model;
    const uint64_t I = model_config_inner(c), groups = (uint64_t)c->G * c->N, row = model_config_conv(c),
        memory = (uint64_t)c->H * c->N * c->P;
    const dart_tensor absent = {0};
    for (uint32_t i = p->span.close_from; i < p->span.close_to; i++) state->runs[i - p->span.close_from] = memories_of(p, i);
    dart_ssd(p->stream, &(dart_ssd_args){
        .B = p->B, .L = p->L, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = state->S, .dt_min = c->dt_min,
            .dt_max = c->dt_max, .eps = c->sma_eps,
        .x = columns(p, WORK_CONV, 0, row), .b = columns(p, WORK_CONV, I, row), .c = columns(p, WORK_CONV, I + groups,
            row),
        .dt = columns(p, WORK_PROJ, I + row, model_config_in_proj(c)),
        .a_log = *model_weight(model, p->layer, MODEL_A_LOG), .dt_bias = *model_weight(model, p->layer, MODEL_DT_BIAS),
        .d = *model_weight(model, p->layer, MODEL_D), .seq = seq_of(state, p->b),
        .h = carried(p, state->h_at, DART_F32, memory),
        .open = state->sma ? carried(p, state->open_at, DART_F32, memory) : absent,
        .open_decay = state->sma ? carried(p, state->decay_at, DART_F32, c->H) : absent,
        .memories = state->runs, .memories_count = p->span.close_to - p->span.close_from,
        .y = model_work_tensor(state, WORK_Y)});
}

/* f32 where runs are merged or f16 might not hold it: sums of undecayed memories have no bound of their own. */
static dart_tensor readout(const layer_pass *p)
{
    dart_tensor r = model_work_tensor(p->state, WORK_R);
    if (p->span.runs == 1 && p->state->model->activations == DART_BF16) r.dtype = DART_BF16;
    return r;
}

static void attention(const layer_pass *p)
{
    dart_state *state = p->state;
    const dart_model_config *c = p->c;
    const uint64_t row = model_config_sma_conv(c), queries = (uint64_t)c->G * c->N;
    if (p->span.runs == 0) return;
    for (uint32_t i = 0; i < p->span.runs; i++) state->runs[i] = memories_of(p, i);
    dart_sma(p->stream, &(dart_sma_args){
        .B = p->B, .L = p->L, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = state->S, .eps = c->sma_eps,
        .q = columns(p, WORK_SMA_CONV, 0, row), .e = columns(p, WORK_SMA_CONV, queries, row),
        .c = columns(p, WORK_CONV, model_config_inner(c) + queries, model_config_conv(c)), .seq = seq_of(state, p->b),
        .memories = state->runs, .memories_count = p->span.runs, .r = readout(p)});
}

static void scan_window(const layer_pass *p)
{
    const dart_window_args args = window_args(p, DART_WINDOW_STEP, NULL);
    dart_window_output(p->stream, &args);
}

/* Behind the attention, which sees no memory of this chunk: nothing in the layer waits for it, so it stands beside the layer's
 * longest launch of those that are left. */
static dart_status fold_window(const layer_pass *p)
{
    const dart_window_args args = window_args(p, DART_WINDOW_STEP, p->state->runs);
    return dart_window_fold(p->stream, &args);
}

/* One token of a few sequences. */
static dart_status step(const layer_pass *p)
{
    dart_state *state = p->state;
    const dart_model_config *c = p->c;
    const dart_model *model = state->model;
    const uint64_t memory = (uint64_t)c->H * c->N * c->P, kept = c->K - 1;
    dart_mixer_step_args args = {
        .B = p->B, .W = c->W, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .K = c->K, .S = state->S, .eps = c->eps,
        .sma_eps = c->sma_eps, .dt_min = c->dt_min, .dt_max = c->dt_max,
        .x = model_work_tensor(state, WORK_STREAM), .seq = seq_of(state, p->b),
        .norm = *model_weight(model, p->layer, MODEL_NORM), .in_proj = *model_weight(model, p->layer, MODEL_IN_PROJ),
        .conv_weight = *model_weight(model, p->layer, MODEL_CONV_WEIGHT),
        .conv_bias = *model_weight(model, p->layer, MODEL_CONV_BIAS),
        .dt_bias = *model_weight(model, p->layer, MODEL_DT_BIAS), .a_log = *model_weight(model, p->layer, MODEL_A_LOG),
        .d = *model_weight(model, p->layer, MODEL_D), .mixer_norm = *model_weight(model, p->layer, MODEL_MIXER_NORM),
        .out_proj = *model_weight(model, p->layer, MODEL_OUT_PROJ),
        .tail = carried(p, state->tail_at, model->activations, kept * model_config_conv(c)),
        .h = carried(p, state->h_at, DART_F32, memory)};
    if (state->sma) {
        args.sma_proj = *model_weight(model, p->layer, MODEL_SMA_PROJ);
        args.sma_conv_weight = *model_weight(model, p->layer, MODEL_SMA_CONV_WEIGHT);
        args.sma_conv_bias = *model_weight(model, p->layer, MODEL_SMA_CONV_BIAS);
        args.sma_tail = carried(p, state->sma_tail_at, model->activations, kept * model_config_sma_conv(c));
        args.open = carried(p, state->open_at, DART_F32, memory);
        args.open_decay = carried(p, state->decay_at, DART_F32, c->H);
        for (uint32_t i = 0; i < p->span.runs; i++) state->runs[i] = memories_of(p, i);
        args.memories = state->runs;
        args.memories_count = p->span.runs;
        args.closing_count = p->span.close_to - p->span.close_from;
        if (args.closing_count > 0) args.closing = &state->runs[p->span.runs];
        for (uint32_t i = 0; i < args.closing_count; i++)
            state->runs[p->span.runs + i] = memories_of(p, p->span.close_from + i);
    }
    return dart_mixer_step(p->stream, &args);
}

static dart_status layer(const layer_pass *p)
{
    dart_state *state = p->state;
    const dart_model_config *c = p->c;
    const dart_model *model = state->model;
    const uint32_t I = model_config_inner(c), R = model_config_in_proj(c);
    const bool attends = state->sma && p->span.runs > 0;
    const dart_tensor stream = model_work_tensor(state, WORK_STREAM);
    const dart_tensor y = model_work_tensor(state, WORK_Y), absent = {0};
    project(p);
    convolve(p);
    if (p->windowed) scan_window(p);
    else scan(p);
    if (state->sma) attention(p);
    replace_tails(p);
    dart_gated_norm(p->stream, &(dart_gated_norm_args){
        .T = p->T, .I = I, .eps = c->eps, .y = y, .r = attends ? readout(p) : absent,
        .gate = attends ? columns(p, WORK_SMA_PROJ, model_config_sma_conv(c), model_config_sma_proj(c)) : absent,
        .z = columns(p, WORK_PROJ, 0, R), .weight = *model_weight(model, p->layer, MODEL_MIXER_NORM), .out = y});
    const dart_status status = dart_linear(p->stream, &(dart_linear_args){
        .T = p->T, .IN = I, .OUT = c->W, .add = true, .x = y, .weight = *model_weight(model, p->layer, MODEL_OUT_PROJ),
        .y = stream});
    /* A stream's failure sticks, so the status of the last op is that of all. */
    return p->windowed ? fold_window(p) : status;
}

dart_status model_record_embedding(dart_state *state, dart_stream *stream, const model_pass *pass, model_work ids)
{
    const dart_model_config *c = &state->model->config;
    return dart_embed(stream, &(dart_embed_args){
        .T = pass->B * pass->L, .V = c->V, .W = c->W, .ids = model_work_tensor(state, ids),
        .weight = *model_weight(state->model, 0, MODEL_EMBEDDING), .y = model_work_tensor(state, WORK_STREAM)});
}

dart_status model_record_layers(dart_state *state, dart_stream *stream, const model_pass *pass, uint32_t first, uint32_t end)
{
    layer_pass p = {.state = state, .stream = stream, .c = &state->model->config, .layer = first, .b = pass->b, .B = pass->B, .L = pass->L,
                    .T = pass->B * pass->L, .windowed = pass->windowed, .span = pass->span};
    dart_status status = DART_OK;
    for (; status == DART_OK && p.layer < end; p.layer++) status = state->fused && p.L == 1 && !p.windowed ? step(&p) : layer(&p);
    return status;
}

dart_status model_record_fold(dart_state *state, dart_stream *stream, dart_window_mode mode)
{
    layer_pass p = {.state = state, .stream = stream, .c = &state->model->config, .B = state->B, .L = 1, .T = state->B, .windowed = true};
    dart_status status = DART_OK;
    for (; status == DART_OK && p.layer < p.c->layers; p.layer++) {
        const dart_window_args args = window_args(&p, mode, NULL);
        status = dart_window_fold(stream, &args);
    }
    return status;
}

dart_status model_record_norm(dart_state *state, dart_stream *stream, uint32_t T, const dart_tensor *rows,
                              const dart_tensor *y)
{
    const dart_model_config *c = &state->model->config;
    dart_rms_norm_args args = {.T = T, .W = c->W, .eps = c->eps, .x = model_work_tensor(state, WORK_STREAM),
                               .weight = *model_weight(state->model, 0, MODEL_FINAL_NORM), .y = *y};
    if (rows != NULL) args.rows = *rows;
    return dart_rms_norm(stream, &args);
}

dart_status model_record_head(dart_state *state, dart_stream *stream, uint32_t T, const dart_tensor *x)
{
    const dart_model_config *c = &state->model->config;
    return dart_linear(stream, &(dart_linear_args){
        .T = T, .IN = c->W, .OUT = c->V, .x = *x, .weight = *model_head(state->model),
        .y = model_work_tensor(state, WORK_LOGITS)});
}

dart_status model_record_norm_head(dart_state *state, dart_stream *stream)
{
    const dart_model_config *c = &state->model->config;
    return dart_norm_linear(stream, &(dart_norm_linear_args){
        .T = state->B, .IN = c->W, .OUT = c->V, .eps = c->eps, .x = model_work_tensor(state, WORK_STREAM),
        .norm = *model_weight(state->model, 0, MODEL_FINAL_NORM), .weight = *model_head(state->model),
        .y = model_work_tensor(state, WORK_LOGITS)});
}

dart_status model_record_choice(dart_state *state, dart_stream *stream, const dart_sampling *sampling)
{
    const uint32_t B = state->B, V = state->model->config.V;
    const dart_tensor logits = model_work_tensor(state, WORK_LOGITS), ids = model_work_tensor(state, WORK_NEXT);
    if (!(sampling->temperature > 0))
        return dart_argmax(stream, &(dart_argmax_args){.T = B, .V = V, .logits = logits, .ids = ids});
    return dart_sample(stream, &(dart_sample_args){
        .T = B, .V = V, .top_k = sampling->top_k, .temperature = sampling->temperature, .seed = sampling->seed,
        .logits = logits, .seq = model_work_tensor(state, WORK_SEQ), .ids = ids});
}

dart_status model_record_advance(dart_state *state, dart_stream *stream)
{
    return dart_advance(stream, &(dart_advance_args){
        .B = state->B, .slots = MODEL_LOG, .seq = model_work_tensor(state, WORK_SEQ),
        .ids = model_work_tensor(state, WORK_NEXT), .log = model_work_tensor(state, WORK_LOG)});
}

dart_status model_check_sampling(dart_state *state, const dart_sampling *sampling, const char *call)
{
    REQUIRE(&state->report, sampling->temperature >= 0 && sampling->temperature <= 1e6f,
            "%s: temperature %g must be 0 to 1e6", call,
            (double)sampling->temperature);
    return DART_OK;
}

/* ---- Which memories a piece touches ---- */

static uint32_t block_of(const dart_state *state, uint64_t memory)
{
    uint32_t i = 0;
    while (i + 1 < state->blocks_count && state->blocks[i + 1].first <= memory) i++;
    return i;
}

model_span model_span_of(const dart_state *state, uint32_t b, uint32_t B, const int32_t *seq, bool steps)
{
    model_span span = {0};
    const uint64_t S = state->S;
    uint64_t first = UINT64_MAX, end = 0, seen = 0; /* memories that may close, memories that are read */
    if (!state->sma) return span;
    for (uint32_t i = b; i < b + B; i++) {
        const uint64_t position = (uint64_t)seq[2 * i], count = (uint64_t)seq[2 * i + 1];
        if (count == 0) continue;
        const uint64_t closing = (position + count) / S, stop = steps ? position / S + 1 : closing;
        if (stop > position / S && position / S < first) first = position / S;
        if (stop > end) end = stop;
        if ((position + count - 1) / S > seen) seen = (position + count - 1) / S;
    }
    if (first < end) {
        span.close_from = block_of(state, first);
        span.close_to = block_of(state, end - 1) + 1;
    }
    if (seen > 0) span.runs = block_of(state, seen - 1) + 1;
    return span;
}
