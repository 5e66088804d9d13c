/* The block of the model: which ops make it up, in an order in which launches that do not depend on each other stand side by
 * side. */
#include "block.h"
#include "checkpoint/config.h"
#include "ops/mixer/mixer.h"
#include "ops/window/window.h"
#include "runtime/stream.h"

/* Columns of the projection's [z|x|b|c|dt], of the convolved [x|b|c] and of SMA's [q|e|gate]. */
static dart_tensor proj_columns(const model_block_args *a, uint64_t first)
{
    return model_columns(a->work.proj, first, model_config_in_proj_row(a->config));
}
static dart_tensor conv_columns(const model_block_args *a, uint64_t first)
{
    return model_columns(a->work.conv, first, model_config_conv(a->config));
}
static dart_tensor sma_proj_columns(const model_block_args *a, uint64_t first)
{
    return model_columns(a->work.sma_proj, first, model_config_sma_proj(a->config));
}
static dart_tensor steps_of(const model_block_args *a)
{
    return proj_columns(a, (uint64_t)model_config_inner(a->config) + model_config_conv(a->config));
}

static bool has(dart_tensor tensor) { return tensor.buffer != NULL; }

/* ---- Projections and convolutions ---- */

static dart_norm_linear_args normalised_product(const model_block_args *a, uint32_t outputs, dart_tensor weight, dart_tensor y)
{
    const dart_model_config *c = a->config;
    return (dart_norm_linear_args){.T = model_block_rows(a), .IN = c->W, .OUT = outputs, .eps = c->eps, .x = a->x, .norm = a->weights.norm,
                                   .weight = weight, .y = y};
}

/* rest: the last rows of a quantised weight, `kept` of them. */
static void product(dart_stream *stream, const model_block_args *a, bool normalises, uint32_t outputs, dart_tensor weight,
                    dart_tensor rest, uint32_t kept, dart_tensor y)
{
    if (has(rest)) {
        outputs -= kept;
        dart_linear(stream, &(dart_linear_args){.T = model_block_rows(a), .IN = a->config->W, .OUT = kept, .x = a->work.input, .weight = rest,
                                                .y = model_columns(y, outputs, y.row)});
    }
    const dart_norm_linear_args args = normalised_product(a, outputs, weight, y);
    if (normalises)
        dart_norm_linear(stream, &args);
    else
        dart_linear(stream, &(dart_linear_args){
            .T = args.T, .IN = args.IN, .OUT = outputs, .x = a->work.input, .weight = weight, .y = y});
}

static void normalise(dart_stream *stream, const model_block_args *a)
{
    dart_rms_norm(stream, &(dart_rms_norm_args){.T = model_block_rows(a), .W = a->config->W, .eps = a->config->eps, .x = a->x,
                                                .weight = a->weights.norm, .y = a->work.input});
}

/* `normalises`: products normalise what they read, a launch less to wait for. */
static void project(dart_stream *stream, const model_block_args *a, bool normalises)
{
    const dart_model_config *c = a->config;
    const model_block_labelled *labelled = &a->labelled;
    const uint32_t padded = model_config_sma_proj(c), z = labelled->of.rows > 0 ? model_config_inner(c) : 0; /* columns that are not for all tokens */
    dart_tensor in_proj = a->weights.in_proj;
    in_proj.offset += (uint64_t)z * c->W;
    product(stream, a, normalises, model_config_in_proj(c) - z, in_proj, a->weights.in_proj_rest, c->H, proj_columns(a, z));
    if (z > 0) {
        model_take_labelled(stream, &labelled->of, model_block_rows(a), c->W, a->work.input, labelled->input);
        dart_linear(stream, &(dart_linear_args){.T = labelled->of.rows, .IN = c->W, .OUT = z, .x = labelled->input, .weight = a->weights.in_proj,
                                                .y = labelled->z});
    }
    if (a->sma)
        product(stream, a, normalises, padded, a->weights.sma_proj, a->weights.sma_proj_rest, padded - model_config_sma_conv(c),
                sma_proj_columns(a, 0));
}

/* Of the scan's input and of SMA's; a single token's tails are replaced at once, those of a piece by replace_tails. */
static dart_conv_args scan_conv(const model_block_args *a)
{
    return (dart_conv_args){
        .B = a->B, .L = a->L, .T = a->T, .C = model_config_conv(a->config), .K = a->config->K, .keep_tail = a->L > 1,
        .x = proj_columns(a, model_config_inner(a->config)), .weight = a->weights.conv_weight, .bias = a->weights.conv_bias,
        .tail = a->carried.tail, .seq = a->seq, .cu = a->cu, .y = a->work.conv};
}

static dart_conv_args sma_conv(const model_block_args *a)
{
    return (dart_conv_args){
        .B = a->B, .L = a->L, .T = a->T, .C = model_config_sma_conv(a->config), .K = a->config->K, .keep_tail = a->L > 1,
        .x = sma_proj_columns(a, 0), .weight = a->weights.sma_conv_weight, .bias = a->weights.sma_conv_bias,
        .tail = a->carried.sma_tail, .seq = a->seq, .cu = a->cu, .y = a->work.sma_conv};
}

static void convolve_queries(dart_stream *stream, const model_block_args *a)
{
    const dart_conv_args args = sma_conv(a);
    if (a->sma) dart_conv(stream, &args);
}

/* Beside launches that come later anyway: right behind the convolutions it would cost barriers of its own. */
static void replace_tails(dart_stream *stream, const model_block_args *a)
{
    const dart_conv_args scan_args = scan_conv(a), sma_args = sma_conv(a);
    if (a->L == 1) return;
    dart_conv_tail(stream, &scan_args);
    if (a->sma) dart_conv_tail(stream, &sma_args);
}

/* ---- Scan and attention ---- */

/* Memories of chunks that close go straight to their runs, before the attention reads them: a token looks only at chunks
 * before its own, and those that close within this piece are among them. */
static void scan(dart_stream *stream, const model_block_args *a)
{
    const dart_model_config *c = a->config;
    const uint64_t I = model_config_inner(c), groups = (uint64_t)c->G * c->N;
    dart_ssd_args args = {
        .B = a->B, .L = a->L, .T = a->T, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = a->S, .dt_min = c->dt_min, .dt_max = c->dt_max,
        .eps = c->sma_eps, .quiet = a->labelled.quiet, .x = conv_columns(a, 0), .b = conv_columns(a, I), .c = conv_columns(a, I + groups),
        .dt = steps_of(a), .a_log = a->weights.a_log, .dt_bias = a->weights.dt_bias, .d = a->weights.d, .seq = a->seq, .cu = a->cu, .h = a->carried.h,
        .memories = a->closing, .memories_count = a->closing_count, .y = a->work.y, .dh = a->kept.dh, .dh_scale = a->kept.dh_scale,
        .decay = a->kept.decay,
        .hin = a->kept.hin};
    if (a->sma) {
        args.open = a->carried.open;
        args.open_decay = a->carried.open_decay;
    }
    dart_ssd(stream, &args);
}

/* f32 where runs are merged or f16 might not hold it: sums of undecayed memories have no bound of their own. In training too, as the
 * backward pass takes a sum of its size from another. */
static dart_tensor readout(const model_block_args *a)
{
    dart_tensor r = a->work.r;
    if (a->read_count == 1 && a->work.y.dtype == DART_BF16 && !has(a->kept.dh)) r.dtype = DART_BF16;
    return r;
}

static bool attends(const model_block_args *a) { return a->sma && a->read_count > 0; }

static void attend(dart_stream *stream, const model_block_args *a)
{
    const dart_model_config *c = a->config;
    const uint64_t row = model_config_sma_conv(c), queries = (uint64_t)c->G * c->N, keys = (uint64_t)c->G * c->P;
    const model_block_labelled *labelled = &a->labelled;
    if (!attends(a)) return;
    const dart_tensor reads =
        c->independent_c ? model_columns(a->work.sma_conv, queries + keys, row) : conv_columns(a, model_config_inner(c) + queries);
    if (labelled->S > 0) {
        model_take_labelled(stream, &labelled->of, model_block_rows(a), row, a->work.sma_conv, labelled->queries);
        if (!c->independent_c) model_take_labelled(stream, &labelled->of, model_block_rows(a), queries, reads, labelled->c);
        dart_sma(stream, &(dart_sma_args){
            .B = a->B, .L = labelled->L, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = labelled->S, .eps = c->sma_eps,
            .q = model_columns(labelled->queries, 0, row), .e = model_columns(labelled->queries, queries, row),
            .c = c->independent_c ? model_columns(labelled->queries, queries + keys, row) : labelled->c, .seq = labelled->seq,
            .memories = a->read, .memories_count = a->read_count, .r = labelled->r, .lse = a->kept.lse});
        return;
    }
    dart_sma(stream, &(dart_sma_args){
        .B = a->B, .L = a->L, .T = a->T, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = a->S, .eps = c->sma_eps,
        .q = model_columns(a->work.sma_conv, 0, row), .e = model_columns(a->work.sma_conv, queries, row),
        .c = reads, .seq = a->seq, .cu = a->cu, .memories = a->read,
        .memories_count = a->read_count, .r = readout(a), .lse = a->kept.lse});
}

/* ---- Labelled tokens ---- */

dart_status model_take_labelled(dart_stream *stream, const model_labelled *of, uint32_t T, uint64_t width, dart_tensor x, dart_tensor y)
{
    return dart_convert(stream, &(dart_convert_args){.T = of->rows, .W = (uint32_t)width, .X = T, .x = x, .y = y, .from = of->tokens});
}

dart_status model_put_labelled(dart_stream *stream, const model_labelled *of, uint32_t T, uint64_t width, dart_tensor y, dart_tensor x)
{
    return dart_convert(stream, &(dart_convert_args){.T = T, .W = (uint32_t)width, .X = of->rows, .x = y, .y = x, .from = of->row_of});
}

/* Copies what the gated norm reads of them. */
static void take_labelled(dart_stream *stream, const model_block_args *a, dart_gated_norm_args *norm)
{
    const model_block_labelled *to = &a->labelled;
    const uint32_t T = norm->T, I = norm->I;
    model_take_labelled(stream, &to->of, T, I, norm->y, to->y);
    norm->T = to->of.rows;
    norm->y = to->y;
    norm->z = to->z;
    if (!has(norm->r)) return;
    if (to->S == 0) model_take_labelled(stream, &to->of, T, I, norm->r, to->r);
    model_take_labelled(stream, &to->of, T, 1, norm->gate, to->gate);
    norm->r = to->r;
    norm->gate = to->gate;
}

/* ---- Output ---- */

static dart_tensor normed(const model_block_args *a) { return has(a->work.normed) ? a->work.normed : a->work.y; }

static void gate(dart_stream *stream, const model_block_args *a)
{
    const dart_model_config *c = a->config;
    dart_gated_norm_args norm = {.T = model_block_rows(a), .I = model_config_inner(c), .eps = c->eps, .y = a->work.y, .z = proj_columns(a, 0),
                                 .weight = a->weights.mixer_norm, .out = normed(a)};
    if (attends(a)) {
        norm.r = readout(a);
        norm.gate = sma_proj_columns(a, model_config_sma_conv(c));
    }
    if (a->labelled.of.rows > 0) take_labelled(stream, a, &norm);
    dart_gated_norm(stream, &norm);
}

/* Adds to the residual stream `to`, or writes there what it adds to `from`. A stream's failure sticks, so the status of the last op is that of
 * all. */
static dart_status put_out(dart_stream *stream, const model_block_args *a, dart_tensor from, dart_tensor to)
{
    const model_labelled *labelled = &a->labelled.of;
    uint32_t T = model_block_rows(a);
    if (labelled->rows > 0) {
        model_take_labelled(stream, labelled, T, a->config->W, from, to);
        from = (dart_tensor){0};
        T = labelled->rows;
    }
    return dart_linear(stream, &(dart_linear_args){.T = T, .IN = model_config_inner(a->config), .OUT = a->config->W, .add = from.buffer == NULL,
                                                   .x = normed(a), .weight = a->weights.out_proj, .y = to, .from = from});
}

/* ---- Windows ---- */

static dart_window_args window_args(const model_block_args *a, dart_window_mode mode)
{
    const dart_model_config *c = a->config;
    const dart_conv_args conv = scan_conv(a);
    dart_window_args args = {
        .B = a->B, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .K = c->K, .S = a->S, .mode = mode, .dt_min = c->dt_min,
        .dt_max = c->dt_max, .eps = c->sma_eps, .x = conv.x, .dt = steps_of(a), .conv_weight = conv.weight, .conv_bias = conv.bias,
        .tail = conv.tail, .a_log = a->weights.a_log, .dt_bias = a->weights.dt_bias, .d = a->weights.d, .seq = conv.seq,
        .conv = conv.y, .y = a->work.y, .h = a->carried.h, .rows = a->window.rows, .steps = a->window.steps, .hin = a->window.hin,
        .hin_scale = a->window.hin_scale};
    if (a->sma) {
        args.open = a->carried.open;
        args.open_decay = a->carried.open_decay;
    }
    return args;
}

dart_window_args model_block_fold_args(const model_block_args *a, dart_window_mode mode)
{
    dart_window_args args = window_args(a, mode);
    args.closing = a->closing;
    args.closing_count = a->closing_count;
    return args;
}

/* ---- The block ---- */

dart_status model_block_piece(dart_stream *stream, const model_block_args *a)
{
    const dart_conv_args conv = scan_conv(a);
    normalise(stream, a);
    project(stream, a, false);
    dart_conv(stream, &conv);
    convolve_queries(stream, a);
    scan(stream, a);
    attend(stream, a);
    replace_tails(stream, a);
    gate(stream, a);
    return put_out(stream, a, (dart_tensor){0}, a->x);
}

/* Rows from `first` on. */
static dart_tensor rows_from(dart_tensor tensor, uint64_t first, uint64_t width)
{
    tensor.offset += first * (tensor.row != 0 ? tensor.row : width);
    return tensor;
}

/* What sequence b carries on, whose tokens are the rows from `first` on. Its memories lie in slots from first / S + b on. With an open chunk
 * h is the state before it, as dart_ssd has it. */
static void carry_on(dart_stream *stream, const model_block_args *a, uint32_t b, uint32_t first, uint32_t tokens)
{
    const dart_model_config *c = a->config;
    const uint64_t memory = model_config_memory(c), slot = (uint64_t)first / a->S + b, tail = c->K - 1;
    dart_conv_args convs[] = {scan_conv(a), sma_conv(a)};
    for (size_t i = 0; i < (a->sma ? 2u : 1u); i++) {
        dart_conv_args *conv = &convs[i];
        conv->B = 1;
        conv->L = tokens;
        conv->T = 0;
        conv->cu = (dart_tensor){0};
        conv->x = rows_from(conv->x, first, conv->C);
        conv->tail = rows_from(conv->tail, b, tail * conv->C);
        dart_conv_tail(stream, conv);
    }
    if (!a->sma) return;
    for (uint32_t i = 0; i < a->closing_count && tokens >= a->S; i++) {
        dart_memories to = a->closing[i];
        to.dh = rows_from(to.dh, (uint64_t)b * to.M, memory);
        to.scale = rows_from(to.scale, (uint64_t)b * to.M, (uint64_t)c->H * c->N);
        dart_sma_append(stream, &(dart_sma_append_args){.B = 1, .L = tokens, .H = c->H, .N = c->N, .P = c->P, .S = a->S, .eps = c->sma_eps,
                                                        .dh = rows_from(a->kept.dh, slot, memory), .to = to});
    }
    if (tokens % a->S == 0) return;
    const uint32_t last = tokens / a->S; /* the open chunk */
    dart_convert(stream, &(dart_convert_args){.T = c->H, .W = c->N * c->P, .x = rows_from(a->kept.dh, slot + last, memory),
                                              .y = rows_from(a->carried.open, b, memory)});
    dart_convert(stream, &(dart_convert_args){.T = c->H, .W = c->N * c->P, .x = rows_from(a->kept.hin, slot + last, memory),
                                              .y = rows_from(a->carried.h, b, memory)});
    dart_convert(stream, &(dart_convert_args){.T = 1, .W = c->H, .x = rows_from(a->kept.decay, slot + b + 1 + last, c->H),
                                              .y = rows_from(a->carried.open_decay, b, c->H)});
}

dart_status model_block_packed(dart_stream *stream, const model_block_args *args, const int32_t *borders)
{
    model_block_args a = *args;
    const dart_memories memories = {.M = (uint32_t)base_ceil_div(a.L, a.S), .dh = a.kept.dh};
    a.carried = (model_block_carried){.h = args->carried.h};
    a.closing_count = 0;
    a.read = &memories;
    a.read_count = a.sma && a.L > a.S ? 1 : 0;
    const dart_conv_args conv = scan_conv(&a);
    normalise(stream, &a);
    project(stream, &a, false);
    dart_conv(stream, &conv);
    convolve_queries(stream, &a);
    scan(stream, &a);
    attend(stream, &a);
    for (uint32_t b = 0; b < a.B; b++)
        if (borders[b + 1] > borders[b]) carry_on(stream, args, b, (uint32_t)borders[b], (uint32_t)(borders[b + 1] - borders[b]));
    gate(stream, &a);
    return put_out(stream, &a, (dart_tensor){0}, a.x);
}

dart_status model_block_train(dart_stream *stream, const model_block_args *args, unsigned parts)
{
    model_block_args a = *args;
    const dart_memories memories = {.M = (uint32_t)base_ceil_div(a.L, a.S), .dh = a.kept.dh, .scale = a.kept.dh_scale};
    const dart_conv_args conv = scan_conv(&a);
    a.sma = model_block_attends(args);
    a.read = &memories;
    a.read_count = a.sma ? 1 : 0;
    if ((parts & MODEL_BLOCK_NORM) != 0) normalise(stream, &a);
    if ((parts & MODEL_BLOCK_PROJECT) != 0) project(stream, &a, false);
    if ((parts & MODEL_BLOCK_CONVOLVE) != 0) {
        dart_conv(stream, &conv);
        convolve_queries(stream, &a);
    }
    if ((parts & MODEL_BLOCK_SCAN) != 0) scan(stream, &a);
    if ((parts & MODEL_BLOCK_ATTEND) != 0) attend(stream, &a);
    if ((parts & MODEL_BLOCK_GATE) != 0) gate(stream, &a);
    if ((parts & MODEL_BLOCK_OUT) != 0) put_out(stream, &a, a.x, a.kept.out);
    return stream->status;
}

/* Both products of a step through windows, with what follows them up to the window. */
static window_project_args window_projection(const model_block_args *a)
{
    const dart_model_config *c = a->config;
    const dart_conv_args conv = scan_conv(a);
    return (window_project_args){
        .B = a->B, .W = c->W, .outputs = model_config_in_proj(c), .first = model_config_inner(c), .C = conv.C, .K = c->K, .H = c->H, .S = a->S,
        .kept = model_config_inner(c) + c->G * c->N, .eps = c->eps, .dt_min = c->dt_min, .dt_max = c->dt_max, .x = a->x, .norm = a->weights.norm,
        .weight = a->weights.in_proj, .y = proj_columns(a, 0), .conv = conv.y, .conv_weight = conv.weight, .conv_bias = conv.bias, .tail = conv.tail,
        .seq = a->seq, .a_log = a->weights.a_log, .dt_bias = a->weights.dt_bias, .rows = a->window.rows, .steps = a->window.steps};
}
static window_project_args query_projection(const model_block_args *a)
{
    const dart_conv_args conv = sma_conv(a);
    return (window_project_args){
        .B = a->B, .W = a->config->W, .outputs = model_config_sma_proj(a->config), .C = conv.C, .K = a->config->K, .S = a->S, .eps = a->config->eps,
        .x = a->x, .norm = a->weights.norm, .weight = a->weights.sma_proj, .y = sma_proj_columns(a, 0), .conv = conv.y,
        .conv_weight = conv.weight, .conv_bias = conv.bias, .tail = conv.tail, .seq = a->seq};
}

/* Whether the device has the launches that this block's step through windows makes of several. */
static bool has_window_launches(const model_block_args *a)
{
    const dart_device *device = a->x.buffer->device;
    const window_project_args inner = window_projection(a), queries = query_projection(a);
    const bool rest = has(a->weights.in_proj_rest) || has(a->weights.sma_proj_rest);
    return !rest && window_project_fits(device, &inner) && (!a->sma || window_project_fits(device, &queries));
}

static window_back_args way_back(const model_block_args *a)
{
    return (window_back_args){.B = a->B, .I = model_config_inner(a->config), .W = a->config->W, .eps = a->config->eps, .x = a->work.y,
                              .norm = a->weights.mixer_norm, .weight = a->weights.out_proj, .y = a->x, .seq = a->seq};
}

/* Whether the scan's launch gates its output and the product behind it normalises: without a readout, which comes beside the scan. */
static bool gates_in_window(const model_block_args *a)
{
    const dart_device *device = a->x.buffer->device;
    const dart_window_args window = window_args(a, DART_WINDOW_STEP);
    const window_back_args back = way_back(a);
    return !attends(a) && window_gated_fits(device, &window) && window_back_fits(device, &back);
}

dart_status model_block_window_begin(dart_stream *stream, const model_block_args *a)
{
    const dart_window_args window = window_args(a, DART_WINDOW_STEP);
    if (has_window_launches(a)) {
        const window_project_args inner = window_projection(a), queries = query_projection(a);
        window_project(stream, &inner);
        if (a->sma) window_project(stream, &queries);
    } else {
        const dart_norm_linear_args first =
            normalised_product(a, model_config_in_proj(a->config), a->weights.in_proj, proj_columns(a, 0));
        const bool normalises = mixer_norm_linear_has_matrices(a->x.buffer->device, &first);
        if (!normalises) normalise(stream, a);
        project(stream, a, normalises);
        dart_window_append(stream, &window);
        convolve_queries(stream, a);
    }
    return gates_in_window(a) ? window_gated(stream, &window, proj_columns(a, 0)) : dart_window_output(stream, &window);
}

dart_status model_block_window_end(dart_stream *stream, const model_block_args *a)
{
    if (gates_in_window(a)) {
        const window_back_args back = way_back(a);
        return window_back(stream, &back);
    }
    attend(stream, a);
    gate(stream, a);
    return put_out(stream, a, (dart_tensor){0}, a->x);
}

dart_mixer_step_args model_block_step_args(const model_block_args *a)
{
    const dart_model_config *c = a->config;
    const model_block_weights *w = &a->weights;
    dart_mixer_step_args args = {
        .B = a->B, .W = c->W, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .K = c->K, .S = a->S, .eps = c->eps,
        .sma_eps = c->sma_eps, .dt_min = c->dt_min, .dt_max = c->dt_max, .x = a->x, .seq = a->seq, .norm = w->norm,
        .in_proj = w->in_proj, .in_proj_rest = w->in_proj_rest, .conv_weight = w->conv_weight, .conv_bias = w->conv_bias, .dt_bias = w->dt_bias,
        .a_log = w->a_log, .d = w->d, .mixer_norm = w->mixer_norm, .out_proj = w->out_proj, .tail = a->carried.tail, .h = a->carried.h};
    if (a->sma) {
        args.sma_proj = w->sma_proj;
        args.sma_proj_rest = w->sma_proj_rest;
        args.sma_conv_weight = w->sma_conv_weight;
        args.sma_conv_bias = w->sma_conv_bias;
        args.sma_tail = a->carried.sma_tail;
        args.open = a->carried.open;
        args.open_decay = a->carried.open_decay;
        args.memories = a->read;
        args.memories_count = a->read_count;
        args.closing = a->closing;
        args.closing_count = a->closing_count;
    }
    return args;
}
